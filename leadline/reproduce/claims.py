"""What a paper says of a figure, as data: a number that was measured, and where it must lie. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "does not hold", "not tested at this scale"]
Numbers = Mapping[str, Sequence[float]]  # by name, one a seed


@dataclass(frozen=True)
class Claim:
    text: str  # what must hold
    paper: str  # what the paper reports
    number: str  # the name of the number it is about
    at_least: float = -math.inf
    at_most: float = math.inf
    scales: tuple[str, ...] = ("tiny", "small", "paper")  # large enough to tell

    @property
    def wanted(self) -> str:
        if self.at_least == -math.inf:
            return f"≤ {self.at_most:g}"
        return f"≥ {self.at_least:g}" if self.at_most == math.inf else f"{self.at_least:g} to {self.at_most:g}"


@dataclass(frozen=True)
class Judged:
    claim: Claim
    verdict: Verdict
    values: tuple[float, ...]  # one a seed

    @property
    def measured(self) -> str:
        """The mean, and of several seeds the lowest and the highest."""
        if not self.values:
            return "–"
        mean = sum(self.values) / len(self.values)
        if len(self.values) == 1:
            return f"{mean:.3g}"
        return f"{mean:.3g} ({min(self.values):.3g} to {max(self.values):.3g}, {len(self.values)} seeds)"


def judge(claim: Claim, scale: str, numbers: Numbers) -> Judged:
    """Of several seeds the mean decides."""
    values = tuple(value for value in numbers.get(claim.number, ()) if not math.isnan(value))
    if not values or scale not in claim.scales:
        return Judged(claim, "not tested at this scale", values)
    mean = sum(values) / len(values)
    return Judged(claim, "holds" if claim.at_least <= mean <= claim.at_most else "does not hold", values)
