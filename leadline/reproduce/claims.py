"""What a paper says of a figure, as data: a number that was measured, and where it must lie. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from leadline.jobs.interval import mean_and_interval

Verdict = Literal["holds", "does not hold", "undecided", "not tested at this scale", "not measured"]
BIG = ("small", "paper")  # scales that can tell what a few minutes on a CPU cannot
ENOUGH = 3  # runs for an interval that says something
Numbers = Mapping[str, Sequence[float]]  # by name, one a seed; none where it was not measured


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


def big(text: str, paper: str, number: str, at_least: float = -math.inf, at_most: float = math.inf) -> Claim:
    """One that a few minutes on a CPU cannot test."""
    return Claim(text, paper, number, at_least, at_most, BIG)


@dataclass(frozen=True)
class Judged:
    claim: Claim
    verdict: Verdict
    values: tuple[float, ...]  # one a seed

    @property
    def measured(self) -> str:
        """The mean, and of several runs its interval, the lowest and the highest."""
        if not self.values:
            return "–"
        mean, half = mean_and_interval(self.values)
        if len(self.values) == 1:
            return f"{mean:.3g}"
        within = f" ± {half:.2g}" if len(self.values) >= ENOUGH and math.isfinite(half) else ""
        return f"{mean:.3g}{within} ({min(self.values):.3g} to {max(self.values):.3g}, {len(self.values)} runs)"


def judge(claim: Claim, scale: str, numbers: Numbers) -> Judged:
    """The mean decides; of three runs or more, unless its 95 % confidence interval lies on both sides of a bound."""
    values = tuple(value for value in numbers[claim.number] if not math.isnan(value))
    if scale not in claim.scales:
        return Judged(claim, "not tested at this scale", values)
    if not values:
        return Judged(claim, "not measured", values)
    mean, half = mean_and_interval(values)
    on_both_sides = any(mean - half < bound < mean + half for bound in (claim.at_least, claim.at_most))
    if len(values) >= ENOUGH and on_both_sides:
        return Judged(claim, "undecided", values)
    return Judged(claim, "holds" if claim.at_least <= mean <= claim.at_most else "does not hold", values)
