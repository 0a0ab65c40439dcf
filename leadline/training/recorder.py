"""What the loop keeps of every update: a line in the flight recorder, what is usual of its numbers, and the spikes.

Numbers stay on the device until the loop reads anyway: at a line of metrics, an evaluation or a checkpoint; at once on
a CPU, where reading costs nothing, and where each update is judged before it is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from leadline.alarm import Seer, is_far
from leadline.flight import Flight
from leadline.history import Row
from leadline.training.checkpoint import State
from leadline.training.step import Result
from leadline.usual import Usual

MOST = 20  # spikes that a training goes on from


@dataclass(frozen=True)
class Spike:
    """An update whose loss or gradient norm is not usual."""

    update: int
    epoch: int
    batch: int  # of the epoch, the first of the update
    loss: float
    grad_norm: float

    def facts(self, did: str, **more: Any) -> dict[str, Any]:
        numbers = {key: value if math.isfinite(value) else None for key, value in asdict(self).items()}
        return numbers | {"did": did} | more


class Recorder:
    """Every process of a training has one; the first writes."""

    def __init__(self, flight: Flight | None, state: State, layers: Sequence[str]) -> None:
        self.flight, self.state, self.layers = flight, state, list(layers)
        self.usual = {name: Usual(*state.usual.get(name, ())) for name in ("loss", "grad_norm")}  # type: ignore[arg-type]
        self.seer = Seer()
        self.lr = math.nan
        self.waiting: list[tuple[Spike, float, Result]] = []  # with their rates; their numbers are not yet read

    def begin(self, epoch: int, batch: int, rows: Sequence[np.ndarray], lr: float) -> None:
        """Before an update: if it ends the process, these were its batches."""
        self.lr = lr
        if self.flight:
            update, of_batches = self.state.update + 1, [each.tolist() for each in rows]
            self.flight.write({"update": update, "epoch": epoch, "batch": batch, "rows": of_batches, "lr": lr})

    def accepts(self, loss: torch.Tensor, grad_norm: torch.Tensor) -> bool:
        """Whether an update is as usual: asked before it changes the weights."""
        return not self._far({"loss": float(loss), "grad_norm": float(grad_norm)})

    def add(self, epoch: int, batch: int, result: Result) -> None:
        self.waiting.append((Spike(self.state.update, epoch, batch, math.nan, math.nan), self.lr, result))

    def read(self) -> tuple[list[Spike], list[str]]:
        """The spikes among the updates that wait, and what is to be told of them."""
        waiting, self.waiting = self.waiting, []
        spikes, told = [], []
        numbers = torch.stack([n for *_, result in waiting for n in (result.loss, result.grad_norm)]).tolist()
        for (place, lr, result), loss, grad_norm in zip(waiting, numbers[::2], numbers[1::2], strict=True):
            values = {"loss": loss, "grad_norm": grad_norm}
            if self._far(values):
                spikes.append(Spike(place.update, place.epoch, place.batch, loss, grad_norm))
            for name, value in values.items():
                self.usual[name].add(value)
            row: Row = {"update": place.update, **values}
            if result.pulse is not None:
                row |= {"layers": self.layers, "pulse": result.pulse.tolist()}
            if self.flight:
                self.flight.write(row)
                told += [f"update {place.update}: {message}" for message in self.seer.see(row | {"lr": lr})]
        self.state.usual = {name: list(map(float, asdict(usual).values())) for name, usual in self.usual.items()}
        return spikes, told

    def _far(self, values: dict[str, float]) -> bool:
        return any(not math.isfinite(value) or is_far(name, self.usual[name], value) for name, value in values.items())

    def close(self) -> None:
        if self.flight:
            self.flight.close()
