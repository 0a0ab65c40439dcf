"""The arithmetic of matrix products: fp32, or bf16 over fp32 weights."""

from __future__ import annotations

import contextlib

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager:
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
