"""The arithmetic of matrix products: fp32, or bf16 over fp32 weights; and the mode of a model that is only used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager:
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within it nothing is dropped; then the model is in the mode it was in."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
