"""What `on_step` functions are told. No torch: a process that only watches need not load it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["start", "update", "evaluation", "message"]


@dataclass(frozen=True)
class Event:
    kind: Kind
    update: int
    total: int  # updates the training is expected to take
    row: dict[str, float]
    message: str = ""


OnStep = Callable[[Event], None]
