"""What is usual for a number that is measured at every update, and how far the next one is from it. No torch.

A running mean and spread of its logarithm, as ZClip keeps of gradient norms (Kumar et al. 2025, arXiv 2504.02507). The
mean is of the last few values, because a loss falls; the spread is that of values around the mean before them. A
value that is far out counts as one at the edge, so that an outlier does not make the next look usual, and a change
that stays becomes usual in time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

NEAR, MEMORY = 0.8, 0.97  # shares of the mean and of the spread that a new value leaves; ZClip has 0.97 for both
ENOUGH = 25  # values before anything is unusual; ZClip's
FLOOR = 0.02  # the least spread: 2 %
EDGE = 4.0  # spreads at which a value is cut before it counts


@dataclass
class Usual:
    mean: float = 0.0
    spread2: float = 0.0
    count: int = 0

    def distance(self, value: float) -> float:
        """In spreads above (or below) the mean; 0 as long as nothing is usual; infinite for what is not finite."""
        if self.count < ENOUGH:
            return 0.0
        if not math.isfinite(value):
            return math.inf
        return (_log(value) - self.mean) / self.spread

    @property
    def spread(self) -> float:
        return max(math.sqrt(self.spread2), FLOOR)

    def add(self, value: float) -> float:
        """Its distance; from now on it counts."""
        distance = self.distance(value)
        if not math.isfinite(value):
            return distance
        x = _log(value)
        if self.count >= ENOUGH:
            x = self.mean + max(-EDGE, min(EDGE, distance)) * self.spread
        seen = self.count / (self.count + 1)  # at first plain means
        step = x - self.mean if self.count else 0.0
        self.mean = x - min(NEAR, seen) * step if self.count else x
        self.spread2 += (1 - min(MEMORY, seen)) * (step * step - self.spread2)
        self.count += 1
        return distance

    def times(self, value: float) -> float:
        """How many times its usual size a value is; infinite where it is not finite or nothing is usual."""
        if not self.count or not math.isfinite(value):
            return math.inf
        return math.exp(_log(value) - self.mean)


def _log(value: float) -> float:
    return math.log(min(max(value, 1e-30), 1e250))  # so that any ratio of two is finite
