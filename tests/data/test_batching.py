"""Batches: every row once an epoch, no pack over its size, hardly any room wasted."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from leadline.data import batching
from leadline.data.batching import Shape, epoch_plan, plan, shape_for


def random_lengths(rows: int, longest: int = 60, seed: int = 0) -> np.ndarray:
    """Like a corpus: the sides of a pair are about as long as each other, and most are short."""
    rng = np.random.default_rng(seed)
    target = np.clip(rng.gamma(2.5, 6, rows).astype(np.int64), 1, longest)
    source = np.clip((target * rng.normal(1.1, 0.2, rows)).astype(np.int64), 1, longest)
    return np.stack([source, target], 1)


def lengths_like_ted(rows: int, seed: int = 0) -> np.ndarray:
    """Log-normal with a mean of 24 tokens, the sides about as long as each other."""
    rng = np.random.default_rng(seed)
    target = np.clip(np.exp(rng.normal(2.93, 0.7, rows)), 2, 256).astype(np.int64)
    source = np.clip(target * rng.normal(1.1, 0.2, rows), 2, 256).astype(np.int64)
    return np.stack([source, target], 1)


def as_lists(batches: Iterable[np.ndarray]) -> list[list[int]]:
    return [rows.tolist() for rows in batches]


# Sizes at which tokens, or the number of sequences, or neither decides when a pack is full.
SHAPES = [Shape((256, 256), 64), Shape((80, 300), 64), Shape((300, 80), 64), Shape((256, 256), 3), Shape((60, 60), 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_every_row_comes_exactly_once_an_epoch(rows: int, shape: Shape) -> None:
    lengths = random_lengths(rows)
    for epoch in range(2):
        batches = epoch_plan(lengths, shape, seed=1, epoch=epoch)
        assert sorted(np.concatenate(batches)) == list(range(rows))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_pack_is_over_its_size(shape: Shape) -> None:
    lengths = random_lengths(1000)
    for rows in epoch_plan(lengths, shape, seed=1, epoch=0):
        source, target = lengths[rows].sum(0)
        assert source <= shape.sides[0]
        assert target <= shape.sides[1]
        assert 1 <= len(rows) <= shape.sequences


def test_a_row_that_fills_a_pack_exactly_fits() -> None:
    lengths = np.array([[10, 10], [10, 4], [4, 10], [10, 10]])
    batches = plan(lengths, Shape((10, 10), 4), range(4))
    assert sorted(as_lists(batches)) == [[0], [1], [2], [3]]


def test_a_row_goes_where_there_is_room() -> None:
    lengths = np.array([[6, 6], [6, 6], [4, 4], [4, 4]])
    assert sorted(sorted(rows) for rows in as_lists(plan(lengths, Shape((10, 10), 4), range(4)))) == [[0, 2], [1, 3]]


def test_room_that_is_left_goes_to_the_longest_that_fits_of_the_rows_to_come() -> None:
    lengths = np.array([[5, 5], [4, 4], [9, 9], [1, 1], [2, 2], [7, 7]])
    assert as_lists(plan(lengths, Shape((11, 11), 4), range(6))) == [[4, 1, 0], [3, 2], [5]]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "shape", [Shape((60, 60), 16), Shape((60, 200), 3), Shape((61, 97), 5), Shape((60, 60), 1)], ids=str
)
def test_lengths_that_are_very_uneven(shape: Shape, seed: int) -> None:
    """Short rows, rows that fill a pack by themselves, and pairs with one long side, in any order."""
    rng = np.random.default_rng(seed)
    lengths = rng.choice([1, 2, 30, 59, 60], (400, 2))
    batches = plan(lengths, shape, rng.permutation(400))
    assert sorted(np.concatenate(batches)) == list(range(400))
    for rows in batches:
        assert (lengths[rows].sum(0) <= shape.sides).all()
        assert 1 <= len(rows) <= shape.sequences


def test_only_the_rows_asked_for_are_planned() -> None:
    lengths = random_lengths(50)
    assert sorted(np.concatenate(plan(lengths, SHAPES[0], [7, 3, 44]))) == [3, 7, 44]
    assert list(plan(lengths, SHAPES[0], [])) == []


@pytest.mark.parametrize("row", [[11, 1], [1, 11]])
def test_a_row_that_fits_in_no_pack_is_an_error(row: list[int]) -> None:
    with pytest.raises(ValueError, match="do not fit in Shape"):
        plan(np.array([[1, 1], row]), Shape((10, 10), 4), range(2))


@pytest.mark.parametrize("sides", [1, 3])
def test_any_number_of_sides_is_packed(sides: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 40, (500, sides))
    shape = Shape((150, 90, 200)[:sides], 16)
    batches = epoch_plan(lengths, shape, seed=1, epoch=0)
    assert sorted(np.concatenate(batches)) == list(range(500))
    assert all((lengths[rows].sum(0) <= shape.sides).all() and len(rows) <= 16 for rows in batches)


def test_one_side_is_planned_as_two_that_are_equal() -> None:
    lengths = random_lengths(700)[:, :1]
    one = plan(lengths, Shape((200,), 12), range(700))
    assert as_lists(one) == as_lists(plan(np.repeat(lengths, 2, axis=1), Shape((200, 200), 12), range(700)))


def test_rows_may_repeat() -> None:
    order = np.random.default_rng(0).integers(0, 50, 400)
    batches = plan(random_lengths(50), SHAPES[0], order)
    assert sorted(np.concatenate(batches)) == sorted(order)


def test_rows_of_a_pack_are_sorted_by_their_longest_side() -> None:
    lengths = random_lengths(500)
    for rows in epoch_plan(lengths, Shape((256, 256), 64), seed=0, epoch=0):
        longest = lengths[rows].max(1)
        assert (np.diff(longest) >= 0).all()


def test_order_is_a_function_of_seed_and_epoch() -> None:
    lengths, shape = random_lengths(300), Shape((256, 256), 64)
    orders = {
        (seed, epoch): as_lists(epoch_plan(lengths, shape, seed, epoch)) for seed in range(3) for epoch in range(3)
    }
    np.random.seed(7)
    np.random.random(3)
    for (seed, epoch), order in orders.items():
        assert as_lists(epoch_plan(lengths, shape, seed, epoch)) == order
    assert len({str(order) for order in orders.values()}) == len(orders)
    assert len({str(sorted(map(sorted, order))) for order in orders.values()}) == len(orders)  # not just shuffled packs


def test_neither_long_rows_nor_full_packs_come_first() -> None:
    """What is left in the open packs at the end must not be trained on last in every epoch."""
    lengths, shape = random_lengths(3000), Shape((256, 256), 64)
    last = [int(lengths[epoch_plan(lengths, shape, 0, epoch)[-1], 1].sum()) for epoch in range(20)]
    assert np.median(last) > 0.9 * shape.sides[1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("batch_tokens", [256, 1024])
def test_packs_are_nine_tenths_full(batch_tokens: int, seed: int) -> None:
    lengths = random_lengths(5000, seed=seed)
    shape = shape_for(lengths, batch_tokens)
    batches = epoch_plan(lengths, shape, seed, epoch=0)
    assert lengths[:, 1].sum() / (len(batches) * shape.sides[1]) > 0.9
    assert lengths[:, 0].sum() / (len(batches) * shape.sides[0]) > 0.9


def test_next_to_nothing_is_wasted_on_a_corpus_like_ted() -> None:
    lengths = lengths_like_ted(75_000)
    shape = shape_for(lengths, 4096)
    batches = epoch_plan(lengths, shape, seed=0, epoch=0)
    assert lengths[:, 1].sum() / (len(batches) * shape.sides[1]) > 0.995


def test_the_work_grows_with_the_batches_and_not_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that millions of rows are planned in the time of a few updates."""
    calls = []
    first_beyond = batching._first_beyond
    monkeypatch.setattr(batching, "_first_beyond", lambda *args: calls.append(1) or first_beyond(*args))
    lengths = lengths_like_ted(20_000)
    batches = epoch_plan(lengths, shape_for(lengths, 4096), seed=0, epoch=0)
    assert len(batches) <= len(calls) < 4 * len(batches)


def test_packs_sorted_some_at_a_time_are_those_sorted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, shape = random_lengths(2000), Shape((256, 256), 64)
    at_once = as_lists(epoch_plan(lengths, shape, 1, 0))
    monkeypatch.setattr(batching, "PACKS", 3)
    assert as_lists(epoch_plan(lengths, shape, 1, 0)) == at_once


def test_small_types_change_nothing() -> None:
    lengths, shape = random_lengths(500), Shape((70_000, 256), 64)
    planned = epoch_plan(lengths.astype(np.uint16), shape, 1, 0)
    assert as_lists(planned) == as_lists(epoch_plan(lengths, shape, 1, 0))
    assert {rows.dtype for rows in planned} == {np.dtype(np.int64)}


def test_shape_for_has_the_tokens_asked_for_and_source_in_proportion() -> None:
    shape = shape_for(np.array([[30, 10], [10, 10]]), 1000)
    assert shape.sides[1] == 1000
    assert shape.sides[0] % 16 == 0
    assert 2000 <= shape.sides[0] <= 2000 * 1.02 + 16
    assert shape.sequences == 250


def test_shape_for_has_room_for_the_longest_source() -> None:
    lengths = np.array([[90, 5], *[[1, 5]] * 100])
    shape = shape_for(lengths, 16)
    assert shape.sides[0] >= 90
    assert sorted(np.concatenate(plan(lengths, shape, range(101)))) == list(range(101))
    assert all(lengths[rows, 0].sum() <= shape.sides[0] for rows in plan(lengths, shape, range(101)))


def test_shape_for_allows_at_least_one_sequence() -> None:
    assert shape_for(np.array([[1, 1]]), 1).sequences == 1
