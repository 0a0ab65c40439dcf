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

    @property
    def tokens(self) -> int:
        """What its size and the speed of training are told in."""

    def to(self, device: torch.device) -> Any: ...
    def fixed(self) -> Any:
        """Only the tensors whose shapes are the same in every batch, which is all that fused kernels need."""


class Task(Protocol):
    """Made from a config and its prepared data."""

    lengths: np.ndarray  # [rows, sides] of the training split, over-long rows left out
    shape: Shape
    store: Any  # what it was made from
    skipped: int  # training rows left out because they are longer than model.max_length

    def __init__(self, config: Config, store: Any) -> None: ...
    def build_model(self) -> Transformer: ...
    def collate(self, rows: np.ndarray, epoch: int = 0) -> Any:
        """A batch of training rows; what is drawn at random for a row is a function of (seed, epoch, row)."""
        ...

    def hidden(self, model: Transformer, batch: Any) -> Tensor: ...
    def loss_of_hidden(
        self, model: Transformer, hidden_TD: Tensor, batch: Any, divisor: Tensor | float = 1.0
    ) -> Tensor:
        """Summed over what batch.count counts, over `divisor`; on fused kernels its gradient must be 1."""
        ...

    def loss(self, model: Transformer, batch: Any, divisor: Tensor | float = 1.0) -> Tensor:
        """loss_of_hidden of hidden"""
        ...

    def evaluate(self, model: Transformer, split: str, sentences: int = 0) -> dict[str, float]:
        """Named numbers, of which `nll` (nats a token) says which model is best; `sentences` are translated too."""
        ...
