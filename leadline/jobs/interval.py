"""The mean of a few runs and its 95 % confidence interval.

mean ± t(0.975, n - 1)·s/√n,   s² = Σ (x - mean)² / (n - 1)      (Student's t)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# The 0.975 quantile of Student's t with 1, 2, … degrees of freedom.
QUANTILES = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448,
    2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484,
    2.0452, 2.0423,
)  # fmt: skip


def quantile(freedom: int) -> float:
    """Beyond the table by Cornish and Fisher's expansion, which is right to four places there."""
    if freedom <= len(QUANTILES):
        return QUANTILES[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """(mean, half of the interval's width); not a number where there is nothing to tell it from."""
    n = len(values)
    if not n:
        return math.nan, math.nan
    mean = sum(values) / n
    if n == 1:
        return mean, math.nan
    variance = sum((value - mean) ** 2 for value in values) / (n - 1)
    return mean, quantile(n - 1) * math.sqrt(variance / n)
