"""Which sequences go into which packed batch. The order is a function of (seed, epoch) and of nothing else."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

import numpy as np

AHEAD = 128  # rows looked through for one that fits in what room is left


@dataclass(frozen=True)
class Shape:
    """The fixed size of every batch."""

    sides: tuple[int, ...]  # tokens of each
    sequences: int  # filler comes on top

    def with_room_for(self, lengths: np.ndarray) -> Shape:
        """Large enough for the longest row of [rows, sides] too."""
        longest = lengths.max(0, initial=1).tolist()
        return replace(self, sides=tuple(map(max, zip(self.sides, longest, strict=True))))


def shape_for(lengths: np.ndarray, batch_tokens: int) -> Shape:
    """Of pairs: `batch_tokens` of target, and as much source as usually goes with it."""
    source, target = lengths.sum(0)
    ratio = max(source / max(target, 1), 0.1)
    size = -(-int(batch_tokens * ratio * 1.02) // 16) * 16
    return Shape((max(size, int(lengths[:, 0].max())), batch_tokens), sequences=max(1, batch_tokens // 4))


def plan(lengths: np.ndarray, shape: Shape, order: Sequence[int] | np.ndarray) -> list[np.ndarray]:
    """Rows of each batch: as many as fit, in `order`, and in the room left the longest that fits of those to come.

    `lengths` [rows, sides] are tokens; the last side says which is the longest. `order` may name a row more than once.
    The loop is over batches, so that the device does not wait long for the first batch of an epoch.
    """
    order = np.asarray(order, dtype=np.int64)
    if not len(order):
        return []
    tokens = np.ascontiguousarray(lengths[order].T)
    if (tokens.max(1) > shape.sides).any():
        raise ValueError(f"rows of up to {' and '.join(map(str, tokens.max(1)))} tokens do not fit in {shape}")
    # A row takes its tokens of each side, and one of the sequences.
    takes = [*tokens, np.broadcast_to(1, len(order))]
    sizes = [*shape.sides, shape.sequences]
    # What is taken before each row; a memoryview gives plain numbers at once, without a list of them all.
    before = [*(np.concatenate([[0], np.cumsum(side)]).data for side in tokens), range(len(order) + 1)]
    untaken = tokens[-1].copy()  # 0 for rows taken ahead of their turn
    begins: list[int] = []
    taken: list[int] = []
    takers: list[int] = []  # the packs that took them
    waiting: list[int] = []  # rows taken whose turn is still to come, the next first
    end = 0
    while end < len(order):
        begin = end
        full = [total[begin] + size for total, size in zip(before, sizes, strict=True)]
        end = _first_beyond(full, before, begin)
        while waiting and waiting[0] <= end:  # not in this pack: there is room for as much more
            row = waiting.pop(0)
            full = [most + int(take[row]) for most, take in zip(full, takes, strict=True)]
            end = _first_beyond(full, before, end)
        room = [most - total[end] for most, total in zip(full, before, strict=True)]
        ahead = slice(end + 1, end + 1 + AHEAD)
        while min(room) > 0 and ahead.start < len(order):
            fits = reduce(and_, (take[ahead] <= left for take, left in zip(takes, room, strict=True)))
            fitting = untaken[ahead] * fits
            row = ahead.start + int(fitting.argmax())
            if not fitting[row - ahead.start]:
                break
            room = [left - int(take[row]) for left, take in zip(room, takes, strict=True)]
            untaken[row] = 0
            taken.append(row)
            takers.append(len(begins))
            insort(waiting, row)
        begins.append(begin)
    pack_of = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(order)))
    pack_of[taken] = takers
    # In the smallest type, because numpy sorts 16 bits several times faster than 64.
    keys = [key.astype(np.min_scalar_type(key.max())) for key in (tokens.max(0), pack_of)]
    return np.split(order[np.lexsort(keys)], np.cumsum(np.bincount(pack_of))[:-1])


def _first_beyond(full: list[int], before: Sequence[Sequence[int]], begin: int) -> int:
    """The first row from `begin` on with which more than `full` would be taken."""
    return min(bisect_right(total, most, begin) for total, most in zip(before, full, strict=True)) - 1


def epoch_plan(lengths: np.ndarray, shape: Shape, seed: int, epoch: int) -> list[np.ndarray]:
    """The batches of a training epoch, rows and batches in an order drawn from (seed, epoch)."""
    rng = np.random.default_rng((seed, epoch))
    batches = plan(lengths, shape, rng.permutation(len(lengths)))
    return [batches[i] for i in rng.permutation(len(batches))]
