"""A training's rows as arrays, and the updates at which some number is not as usual. No torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leadline.alarm import FAR, OUTSIDE, RAMP, RISE, layer_values, numbers_of
from leadline.flight import QUANTITIES
from leadline.history import Row
from leadline.usual import ENOUGH, Usual

BEFORE, AFTER = 20, 8  # updates that a change is compared with, and that say whether it stays
SHIFT = 3.0  # spreads of the loss by which its level changes


@dataclass(frozen=True)
class Cause:
    """A fault: of which kind, in which layer ("": none in particular), since which update."""

    kind: str
    where: str
    update: int
    message: str
    remedy: str


class Timeline:
    """Rows as arrays: what was measured of each update, NaN where it was not."""

    def __init__(self, rows: Sequence[Row], looks: Sequence[Row] = ()) -> None:
        self.rows = [row for row in rows if "loss" in row]
        self.looks = [row for row in looks if any(key.startswith("watch/") for key in row)]
        self.updates = np.array([row["update"] for row in self.rows])
        self.layers: list[str] = next((row["layers"] for row in self.rows if row.get("layers")), [])
        numbers = [numbers_of(row) for row in self.rows]
        self.series = {
            key: np.array([math.nan if n.get(key) is None else n[key] for n in numbers], float)
            for key in ("loss", "grad_norm", "step")
        }
        # Of a loss that may be negative the logarithm says nothing.
        self.signed = bool((self.series["loss"] < 0).any())
        self.rates = np.array([row.get("lr") or math.nan for row in self.rows], float)
        self.by_layer = {quantity: np.array([self._of(row, quantity) for row in self.rows]) for quantity in QUANTITIES}
        logs = {
            key: values * math.nan if self.signed and key == "loss" else values for key, values in self.series.items()
        }
        self.distance = {key: _distances(values) for key, values in logs.items()}
        self.shifted = self._shifts(logs["loss"])

    def _of(self, row: Row, quantity: str) -> list[float]:
        values = layer_values(row, quantity)
        lr = (row.get("lr") or math.nan) if quantity == "update" else 1.0
        return [values.get(name, math.nan) / lr for name in self.layers]

    def change(self, values: np.ndarray, at: int, until: int = 1) -> np.ndarray:
        """Log of the median from `at` on, over the median before it."""
        before, after = values[max(0, at - BEFORE) : at], values[at : at + until]
        return np.log(np.nanmedian(after, axis=0)) - np.log(np.nanmedian(before, axis=0))

    @functools.cached_property
    def jumps(self) -> np.ndarray:
        """Of each update: log of its loss, over the median before it."""
        return np.array([self.change(self.series["loss"], at) if at else 0.0 for at in range(len(self.rows))])

    def far(self, at: int, keys: Sequence[str]) -> bool:
        return any(self.distance[key][at] > FAR for key in keys)

    def _shifts(self, loss: np.ndarray) -> np.ndarray:
        """Where the level of the loss rises by more than its noise, at the steepest place of each rise."""
        shifted, rise = np.zeros(len(loss), bool), np.zeros(len(loss))
        logs = np.log(loss)
        for at in range(ENOUGH, len(loss) - 2):
            noise = np.nanstd(np.diff(logs[at - BEFORE : at])) / math.sqrt(2)
            by = np.nanmin(logs[at : at + 3]) - np.nanmedian(logs[at - BEFORE : at])
            rise[at] = by if by > max(SHIFT * noise, 0.05) else 0.0
        for at in map(int, np.flatnonzero(rise)):
            shifted[at] = rise[at] >= rise[max(0, at - BEFORE) : at + AFTER].max()
        return shifted

    def marked(self) -> list[int]:
        """Updates, by their index, at which some number is not as usual."""
        marks = self.shifted.copy()
        for key, distance in self.distance.items():
            marks |= (distance > FAR) | ((distance < -FAR) & (key != "loss"))
        outside = self.by_layer["outside"]
        if outside.size:
            marks |= np.nan_to_num(outside).max(axis=1) > OUTSIDE
        ratio = np.ones(len(self.rows))
        ratio[1:] = self.rates[1:] / self.rates[:-1]
        marks |= (ratio > RISE) & (self.updates > RAMP)
        return [int(i) for i in np.flatnonzero(marks)]


def _distances(values: np.ndarray) -> np.ndarray:
    usual = Usual()
    return np.array([0.0 if math.isnan(value) else usual.add(float(value)) for value in values])
