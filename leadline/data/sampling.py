"""How often each direction of translation is drawn in an epoch, and which of its rows.

With n_d training pairs of direction d and a temperature T, direction d is drawn in proportion to n_d^(1/T) (Arivazhagan
et al. 2019, arXiv 1907.05019): T = 1 as the data is, larger T more evenly. An epoch has as many draws as pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def counts(sizes: Sequence[int] | np.ndarray, temperature: float, total: int) -> np.ndarray:
    """`total` divided in proportion to size^(1/temperature): whole numbers whose sum is exact, by largest remainder."""
    weights = np.asarray(sizes, dtype=np.float64)
    weights = np.where(weights > 0, weights ** (1 / temperature), 0.0)
    exact = total * weights / weights.sum()
    whole = np.floor(exact).astype(np.int64)
    order = np.argsort(whole - exact, kind="stable")
    whole[order[: total - whole.sum()]] += 1
    return whole


def drawn(sizes: Sequence[int] | np.ndarray, temperature: float, seed: int, epoch: int) -> np.ndarray:
    """The rows of an epoch, as many as there are; rows of a direction follow those of the one before.

    A direction goes through its rows in one random order after another and goes on in the next epoch where it was: none
    comes again before all have come. What is drawn is a function of (seed, epoch, occurrence) and of nothing else.
    """
    wanted = counts(sizes, temperature, int(np.sum(sizes)))
    first = np.cumsum(sizes) - sizes
    parts = [
        first[number] + _turn(int(size), int(count), (seed, number), epoch)
        for number, (size, count) in enumerate(zip(sizes, wanted, strict=True))
        if count
    ]
    return np.concatenate(parts)


def _turn(size: int, count: int, key: tuple[int, int], epoch: int) -> np.ndarray:
    """Draws epoch·count … (epoch + 1)·count - 1 of endless random orders of `size` rows."""
    begin, end = epoch * count, (epoch + 1) * count
    rounds = range(begin // size, -(-end // size))
    orders = [np.random.default_rng((*key, number, 1)).permutation(size) for number in rounds]
    return np.concatenate(orders)[begin - rounds[0] * size : end - rounds[0] * size]
