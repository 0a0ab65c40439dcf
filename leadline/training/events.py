"""What `on_step` functions are told. No torch: a process that only watches need not load it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import nn

EventKind = Literal["start", "update", "evaluation", "message"]


@dataclass(frozen=True)
class Event:
    kind: EventKind
    update: int
    total: int  # updates the training is expected to take
    row: dict[str, float]
    message: str = ""


OnStep = Callable[[Event], None]


@runtime_checkable
class Watcher(Protocol):
    """An on_step function that reads the model around the updates it is due for."""

    def due(self, update: int) -> bool: ...
    def begin(self, model: nn.Module) -> None:
        """Before the update's forward pass on plain tensors."""

    def seen(self) -> None:
        """After it: no hook may stay."""

    def gradients(self) -> None:
        """When all gradients are there, before the optimizer's step."""

    def end(self, lr: float) -> tuple[dict[str, float], str]:
        """What to log, and what to say, if anything."""
