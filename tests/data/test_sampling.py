"""Temperature sampling: how often a direction is drawn equals the formula, and every row has its turn."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from leadline.data.sampling import counts, drawn

SIZES = [31_872, 41_100, 12_598, 5, 1]


@pytest.mark.parametrize("temperature", [1.0, 1.5, 5.0, 100.0])
def test_counts_are_the_formula_to_the_last_pair(temperature: float) -> None:
    total = sum(SIZES)
    weights = [size ** (1 / temperature) for size in SIZES]
    found = counts(SIZES, temperature, total)
    assert found.sum() == total
    assert np.abs(found - np.array([total * w / sum(weights) for w in weights])).max() < 1


def test_at_temperature_one_it_is_the_data() -> None:
    assert counts(SIZES, 1.0, sum(SIZES)).tolist() == SIZES
    assert sorted(drawn([3, 7], 1.0, seed=1, epoch=4)) == list(range(10))


def test_what_is_left_over_goes_to_the_largest_remainders() -> None:
    exact = [Fraction(10 * size, 12) for size in (5, 4, 3)]  # 4 1/6, 3 1/3, 2 1/2
    assert [int(each) for each in exact] == [4, 3, 2]
    assert counts([5, 4, 3], 1.0, 10).tolist() == [4, 3, 3]


def test_a_direction_without_rows_is_never_drawn() -> None:
    assert counts([4, 0], 5.0, 8).tolist() == [8, 0]
    assert drawn([4, 0, 4], 5.0, seed=0, epoch=0).max() == 7


def test_no_row_comes_again_before_all_have_come() -> None:
    sizes, epochs = np.array([40, 9]), 12
    wanted = counts(sizes, 5.0, 49)
    assert wanted[0] < 40
    assert wanted[1] > 2 * 9
    draws = [drawn(sizes, 5.0, seed=3, epoch=epoch) for epoch in range(epochs)]
    for first, size, count in zip((0, 40), sizes, wanted, strict=True):
        mine = np.concatenate([rows[(rows >= first) & (rows < first + size)] for rows in draws])
        assert len(mine) == epochs * count
        for begin in range(0, len(mine) - size + 1, size):
            assert sorted(mine[begin : begin + size] - first) == list(range(size))


def test_draws_are_a_function_of_seed_and_epoch() -> None:
    same, again = (drawn([40, 9], 5.0, seed=3, epoch=7) for _ in range(2))
    assert same.tolist() == again.tolist()
    assert same.tolist() != drawn([40, 9], 5.0, seed=4, epoch=7).tolist()
    assert same.tolist() != drawn([40, 9], 5.0, seed=3, epoch=8).tolist()
