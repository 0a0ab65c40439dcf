"""How long the device has nothing to do between two updates: what the host, and most of all its batches, cost.

On a GPU the host only launches work, so that its own clock says nothing: events on the device are compared. On a CPU
the host's clock is the device's.
"""

from __future__ import annotations

import time
from typing import Any

import torch


class Waiting:
    """`begins` and `ends` are called around the launch of every update."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.last: Any = None  # when the update before ended
        self.gaps: list[tuple[Any, Any]] = []

    def begins(self) -> None:
        if self.last is not None:
            self.gaps.append((self.last, self._now()))

    def ends(self) -> None:
        self.last = self._now()

    def interrupted(self) -> None:
        """What comes between two updates now is no waiting: an evaluation."""
        self.last = None

    def seconds(self) -> float:
        """Since this was last asked; the device must have done all that was launched."""
        gaps, self.gaps = self.gaps, []
        if self.cuda:
            return sum(before.elapsed_time(after) for before, after in gaps) / 1000
        return sum(after - before for before, after in gaps)

    def _now(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
