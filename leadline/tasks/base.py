"""The task contract: what is learnt, on which batches, and how it is judged."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from leadline.config import Config
from leadline.data.batching import Shape
from leadline.model import Transformer


class Batch(Protocol):
    count: int  # what the loss is a sum over

    def to(self, device: torch.device) -> Any: ...
    def fixed(self) -> Any:
        """Only the tensors whose shapes are the same in every batch, which is all that fused kernels need."""


class Task(Protocol):
    """Made from a config and its prepared data."""

    lengths: np.ndarray  # [rows, sides] of the training split, over-long rows left out
    shape: Shape
    skipped: int  # training rows left out because they are longer than model.max_length

    def __init__(self, config: Config, store: Any) -> None: ...
    def build_model(self) -> Transformer: ...
    def collate(self, rows: np.ndarray) -> Any: ...
    def loss(self, model: Transformer, batch: Any, divisor: Tensor | float) -> Tensor:
        """Summed over what batch.count counts, over `divisor`; on fused kernels its gradient must be 1."""
        ...

    def evaluate(self, model: Transformer, split: str, sentences: int = 0) -> dict[str, float]: ...
