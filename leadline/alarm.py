"""What is told while a training goes on: a number that has left what is usual for it, and a model that has collapsed.

`leadline explain` says afterwards what it was. No torch.
"""

from __future__ import annotations

import math

from leadline.flight import QUANTITIES
from leadline.history import Row
from leadline.usual import Usual

FAR = 6.0  # spreads above the mean at which a number is told of
OUTSIDE = 1e-4  # share of a layer's weights changed by somebody else than the optimizer
LEAST = {"loss": 1.05, "grad_norm": 3.0, "step": 1.3}  # times its usual size that it has to be as well
STAYS = 3.0  # as many of the loss, if two updates in a row are so far
RISE, RAMP = 2.0, 10  # times that the rate rises in one update, after the first updates of a warm-up
QUIET = 20  # updates after an alarm in which the same number is not told of again
COLLAPSED = 0.02  # of the norm; what the tokens of a model that learns differ by is ten times that at least
WORDS = {"loss": "the loss", "grad_norm": "the gradient norm", "step": "the size of the update"}


class Seer:
    """Sees the updates of one training in their order."""

    def __init__(self) -> None:
        self.usual: dict[str, Usual] = {}
        self.told: dict[str, int] = {}
        self.collapsed, self.before, self.rate, self.highest = False, 0.0, 0.0, 0.0
        self.signed = False  # of a loss that may be negative the logarithm says nothing

    def see(self, row: Row) -> list[str]:
        """What is to be told of an update."""
        said = []
        self.signed = self.signed or (row.get("loss") or 0.0) < 0
        for name, value in numbers_of(row).items():
            if name == "loss" and self.signed:
                continue
            usual = self.usual.setdefault(name, Usual())
            times = usual.times(value)
            far, distance = is_far(name, usual, value), usual.add(value)
            twice = name == "loss" and min(distance, self.before) > STAYS
            self.before = distance if name == "loss" else self.before
            if (far or twice) and self._new(name, row["update"]):
                said.append(f"{WORDS[name]} is {value:.4g}, {times:.1f} times its usual size")
        rate, self.rate = self.rate, row.get("lr") or 0.0
        known, self.highest = self.rate < 1.01 * self.highest, max(self.rate, self.highest)  # a schedule that restarts
        if rate and self.rate > RISE * rate and row["update"] > RAMP and not known:
            said.append(f"the learning rate rose {self.rate / rate:.3g} times, to {self.rate:.3g}")
        outside = [(value, name) for name, value in layer_values(row, "outside").items() if value > OUTSIDE]
        if outside and self._new("outside", row["update"]):
            value, name = max(outside)
            said.append(f"the weights of {name} were changed by {value:.2g} of their norm since the last step")
        return said

    def _new(self, name: str, update: int) -> bool:
        before = self.told.get(name, -QUIET)
        self.told[name] = update
        return update - before >= QUIET

    def look(self, values: dict[str, float]) -> list[str]:
        """What is to be told of a look into the model."""
        found, before = collapsed(values), self.collapsed
        self.collapsed = found is not None
        if found is None or before:
            return []
        where, value = found
        return [
            f"the tokens behind {where} are almost identical ({value:.1%} of their norm differs): the model has "
            "collapsed; begin again with more warm-up, a lower rate or another placement of the norm"
        ]


def is_far(name: str, usual: Usual, value: float) -> bool:
    """Whether a number is so far above what is usual that it is told of."""
    return usual.distance(value) > FAR and usual.times(value) > LEAST[name]


def numbers_of(row: Row) -> dict[str, float]:
    """What is followed of an update. A step is the change of all weights, over the rate."""
    values: dict[str, float] = {
        key: float("inf") if row[key] is None else row[key] for key in ("loss", "grad_norm") if key in row
    }
    steps, lr = layer_values(row, "update"), row.get("lr")
    if steps and lr:
        values["step"] = math.sqrt(sum(value * value for value in steps.values())) / lr
    return values


def layer_values(row: Row, quantity: str) -> dict[str, float]:
    """Of one of `leadline.pulse`'s quantities, by layer; empty where it was not measured."""
    from_pulse, number = row.get("pulse") or [], QUANTITIES.index(quantity)
    names = row.get("layers", [])
    if number >= len(from_pulse) or len(from_pulse[number]) != len(names):
        return {}
    values = from_pulse[number]
    return {name: math.inf if v is None else v for name, v in zip(names, values, strict=True)}


def collapsed(look: Row) -> tuple[str, float] | None:
    """Where the tokens have become almost the same first, and how much of their norm still differs."""
    for key, value in look.items():
        if key.startswith("watch/diversity/") and isinstance(value, float) and value < COLLAPSED:
            return key.removeprefix("watch/diversity/"), value
    return None
