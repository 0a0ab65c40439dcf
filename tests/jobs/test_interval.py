"""Student's interval, against values worked out by hand and against its own definition."""

from __future__ import annotations

import math
import random

import pytest

from leadline.jobs.interval import QUANTILES, mean_and_interval, quantile


def test_by_hand() -> None:
    """Mean 3, s² = (4+1+0+1+4)/4 = 2.5, t(0.975, 4) = 2.7764: 2.7764·√(2.5/5) = 1.9632."""
    mean, half = mean_and_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3.0
    assert half == pytest.approx(1.9632, abs=1e-4)


def test_two_six_one_and_none() -> None:
    assert mean_and_interval([0.0, 1.0]) == (0.5, pytest.approx(12.7062 / 2))
    assert mean_and_interval([0.8] * 6) == (pytest.approx(0.8), pytest.approx(0.0, abs=1e-12))
    mean, half = mean_and_interval([0.7])
    assert (mean, math.isnan(half)) == (0.7, True)
    assert all(map(math.isnan, mean_and_interval([])))


@pytest.mark.parametrize(
    ("freedom", "value"), [(1, 12.7062), (5, 2.5706), (30, 2.0423), (31, 2.0395), (60, 2.0003), (1000, 1.9623)]
)
def test_quantiles_of_published_tables(freedom: int, value: float) -> None:
    assert quantile(freedom) == pytest.approx(value, abs=2e-4)


def test_each_quantile_of_the_table_leaves_a_fortieth_above_it() -> None:
    """∫ of the density to each, by Simpson's rule, is 0.475 from the middle."""
    for freedom, end in enumerate(QUANTILES, 1):
        log = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
        steps = 4000
        values = [
            math.exp(log - (freedom + 1) / 2 * math.log1p((end * i / steps) ** 2 / freedom)) for i in range(steps + 1)
        ]
        area = end / steps / 3 * (values[0] + values[-1] + 4 * sum(values[1:-1:2]) + 2 * sum(values[2:-1:2]))
        assert area == pytest.approx(0.475, abs=1e-5), freedom


def test_it_holds_the_mean_nineteen_times_in_twenty() -> None:
    rng = random.Random(0)
    inside = 0
    for _ in range(2000):
        mean, half = mean_and_interval([rng.gauss(5.0, 2.0) for _ in range(6)])
        inside += abs(mean - 5.0) <= half
    assert 0.935 < inside / 2000 < 0.965
