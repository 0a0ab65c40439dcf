"""Packing: nothing is lost, nothing moves, and the shapes never change."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from leadline.kernels.attention import pad
from leadline.kernels.pack import Pack, group_sizes, pack, pack_flat, pack_one

SIZE, LONGEST, MOST, FILLER = 60, 12, 14, 99

# Lengths in their order, sequences in each group. 60 tokens are full; 24 and more of filler are several sequences.
CASES = {
    "full": ([12] * 5, [5]),
    "one token each": ([1] * 7, [3, 4]),
    "one token of filler": ([3, 8, 12, 12, 12, 12], [1, 1, 4]),
    "mixed": ([2, 1, 5, 4, 9, 12], [2, 2, 2]),
    "one sequence": ([7], [1]),
    "nothing but filler": ([], []),
}
every_case = pytest.mark.parametrize(("lengths", "sizes"), CASES.values(), ids=CASES)


def sequences_of(lengths: list[int]) -> list[np.ndarray]:
    """1, 2, 3, … so that every token is another."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return [np.arange(end - n, end) + 1 for n, end in zip(lengths, ends, strict=True)]


def packed(lengths: list[int], sizes: list[int]) -> Pack:
    return pack(sequences_of(lengths), SIZE, sizes, LONGEST, MOST, FILLER)


def test_the_example_of_the_docstring() -> None:
    made = pack([np.array(s) for s in ([7, 7, 7, 7], [8, 8], [9, 9, 9])], 12, [3], 4, 5)
    assert made.tokens.tolist() == [7, 7, 7, 7, 8, 8, 9, 9, 9, 0, 0, 0]
    assert made.positions.tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 0, 1, 2]
    assert made.starts.tolist() == [0, 4, 6, 9, 12, 12]
    assert made.owner.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3]


@every_case
def test_tokens_lie_end_to_end_and_filler_behind_them(lengths: list[int], sizes: list[int]) -> None:
    real = sum(lengths)
    tokens = packed(lengths, sizes).tokens
    assert tokens[:real].tolist() == list(range(1, real + 1))
    assert tokens[real:].tolist() == [FILLER] * (SIZE - real)


@every_case
def test_starts_cover_everything_and_positions_restart_at_each(lengths: list[int], sizes: list[int]) -> None:
    made = packed(lengths, sizes)
    starts = made.starts.tolist()
    assert (starts[0], starts[-1]) == (0, SIZE)
    found = [end - begin for begin, end in pairwise(starts)]
    assert found[: len(lengths)] == lengths
    assert all(0 <= n <= LONGEST == made.max_length for n in found)
    assert made.positions.tolist() == [position for n in found for position in range(n)]
    assert made.owner.tolist() == [number for number, n in enumerate(found) for _ in range(n)]


def test_shapes_and_kinds_are_the_same_whatever_is_inside() -> None:
    seen = {
        tuple((tuple(t.shape), t.dtype) for t in (made.tokens, made.positions, made.starts, made.owner))
        for made in (packed(*case) for case in CASES.values())
    }
    flat = (SIZE,)
    assert seen == {((flat, torch.int64), (flat, torch.int64), ((MOST + 1,), torch.int32), (flat, torch.int32))}


@every_case
def test_groups_hold_their_sequences_padded_to_the_longest(lengths: list[int], sizes: list[int]) -> None:
    made = packed(lengths, sizes)
    flat = pad(made.tokens, made)
    assert len(made.slots) == sum(lengths)
    assert [g.sequences for g in made.groups] == sizes
    first = begin = 0
    for group in made.groups:
        members = [torch.from_numpy(s) for s in sequences_of(lengths)[first : first + group.sequences]]
        expected = pad_sequence(members, batch_first=True)
        end = begin + expected.numel()
        assert group.length == max(map(len, members))
        assert torch.equal(flat[begin:end].view_as(expected), expected)
        assert torch.equal(group.valid, expected > 0)
        assert group.full == (len({len(m) for m in members}) == 1)
        first, begin = first + group.sequences, end
    assert begin == len(flat)


@every_case
def test_sequences_that_lie_end_to_end_already_make_the_same_pack(lengths: list[int], sizes: list[int]) -> None:
    tokens = np.arange(1, sum(lengths) + 1)
    made = pack_flat(tokens, np.array(lengths, dtype=np.int64), SIZE, sizes, LONGEST, MOST, FILLER)
    for name, value in vars(packed(lengths, sizes)).items():
        found = getattr(made, name)
        assert torch.equal(found, value) if isinstance(value, torch.Tensor) else str(found) == str(value)


def test_both_sides_of_a_translation_have_the_same_sequences_and_groups() -> None:
    left = pack(sequences_of([3, 9, 5]), 40, [1, 2], LONGEST, MOST)
    right = pack(sequences_of([8, 2, 12]), 23, [1, 2], LONGEST, MOST)
    assert left.starts.shape == right.starts.shape
    assert [g.sequences for g in left.groups] == [g.sequences for g in right.groups]


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [
        ([12] * 5 + [1], [6]),  # 61 tokens
        ([13], [1]),  # longer than max_length
        ([1] * 15, [15]),  # more sequences than max_sequences
        ([1] * 12, [12]),  # 48 tokens of filler are four sequences more
    ],
    ids=["tokens", "length", "sequences", "filler"],
)
def test_what_does_not_fit_is_an_error_that_gives_the_sizes(lengths: list[int], sizes: list[int]) -> None:
    with pytest.raises(ValueError, match=f"{len(lengths)} sequences of {sum(lengths)} tokens.*do not fit"):
        packed(lengths, sizes)


@pytest.mark.parametrize("sizes", [[2], [2, 2], []], ids=["too few", "too many", "none"])
def test_groups_of_another_number_of_sequences_are_an_error(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="groups"):
        packed([3, 4, 5], sizes)


def test_pack_one_has_no_filler_and_one_group() -> None:
    made = pack_one(sequences_of([4, 1, 6]))
    assert made.tokens.tolist() == list(range(1, 12))
    assert made.starts.tolist() == [0, 4, 5, 11]
    assert [(g.sequences, g.length) for g in made.groups] == [(3, 6)]
    assert made.max_length == 6
    assert pack_one(sequences_of([4, 1, 6]), max_length=9).max_length == 9


def test_every_tensor_moves_to_the_device() -> None:
    moved = packed([2, 5], [1, 1]).to(torch.device("meta"))
    tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 5
    assert all(t.is_meta for t in [*tensors, *(g.valid for g in moved.groups)])


@pytest.mark.parametrize("seed", range(5))
def test_group_sizes_bound_the_padding_with_as_few_groups_as_that_allows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sides = rng.integers(1, 120, (50, 2))
    sides = sides[sides.max(1).argsort()]
    sizes = group_sizes(sides.T.tolist())
    assert sum(sizes) == 50
    groups = np.split(sides.max(1), np.cumsum(sizes)[:-1])
    for group in groups:
        assert group[-1] <= 2 * max(group[0], 8)  # up to 16 tokens, padding costs less than another group
    for group, following in pairwise(groups):
        assert following[0] > 2 * max(group[0], 8)


def test_group_sizes_by_hand() -> None:
    assert group_sizes([[1, 16, 17, 34, 35]]) == [2, 2, 1]
    assert group_sizes([[9, 1, 40], [1, 18, 2]]) == [2, 1]
    assert group_sizes([[], []]) == []
