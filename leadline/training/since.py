"""Sums over the updates since the last line of metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

from leadline.training.checkpoint import State
from leadline.training.step import Result
from leadline.training.waiting import Waiting


class Since:
    """Losses stay on the device until they are read."""

    def __init__(self, waiting: Waiting, losses: Iterable[torch.Tensor] = ()) -> None:
        self.started, self.tokens, self.losses, self.waiting = time.perf_counter(), 0, list(losses), waiting

    def add(self, result: Result) -> None:
        self.tokens += result.tokens
        self.losses.append(result.loss)

    def row(self, state: State, result: Result, lr: float) -> dict[str, float]:
        """The line for all updates since; their time counts as training time."""
        loss = float(torch.stack(self.losses).mean())  # waits for the device
        seconds = time.perf_counter() - self.started
        state.seconds += seconds
        waited = self.waiting.seconds()
        return {
            "update": state.update,
            "epoch": state.epoch,
            "loss": loss,
            "lr": lr,
            "grad_norm": float(result.grad_norm),
            "tokens_per_second": self.tokens / max(seconds, 1e-9),
            "seconds": state.seconds,
            "wait_seconds": waited,
            "wait_share": min(waited / max(seconds, 1e-9), 1.0),
        }
