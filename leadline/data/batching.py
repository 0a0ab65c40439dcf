"""Which sequences go into which packed batch. The order is a function of (seed, epoch) and of nothing else."""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

AHEAD = 128  # rows looked through for one that fits in what room is left
PACKS = 1 << 14  # sorted at once


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


class Plan(Sequence[np.ndarray]):
    """The rows of every batch. Millions of them are one array, and a batch a piece of it."""

    def __init__(self, rows: np.ndarray, ends: np.ndarray, turns: np.ndarray | None = None) -> None:
        """`rows` of all packs, where each pack ends there, and the packs in another order than theirs."""
        self.rows, self.ends = rows, np.concatenate([[0], ends])
        self.turns = np.arange(len(ends)) if turns is None else turns

    def __len__(self) -> int:
        return len(self.turns)

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):
            return [self[i] for i in range(*which.indices(len(self)))]
        pack = self.turns[which]
        return self.rows[self.ends[pack] : self.ends[pack + 1]].astype(np.int64)


def whole_type(most: int) -> type[np.unsignedinteger]:
    """The smallest of the usual types for whole numbers up to `most`."""
    return np.uint16 if most < 1 << 16 else np.uint32 if most < 1 << 32 else np.uint64


def plan(lengths: np.ndarray, shape: Shape, order: Sequence[int] | np.ndarray) -> Plan:
    """Rows of each batch: as many as fit, in `order`, and in the room left the longest that fits of those to come.

    `lengths` [rows, sides] are tokens; the last side says which is the longest. `order` may name a row more than once.
    The loop is over batches, so that the device does not wait long for the first batch of an epoch.
    """
    order = np.asarray(order, dtype=None if isinstance(order, np.ndarray) else np.int64)
    if not len(order):
        return Plan(order, order)
    sides = [lengths[:, side][order] for side in range(lengths.shape[1])]
    longest = [int(side.max()) for side in sides]
    if any(most > size for most, size in zip(longest, shape.sides, strict=True)):
        raise ValueError(f"rows of up to {' and '.join(map(str, longest))} tokens do not fit in {shape}")
    sides = [side.astype(whole_type(most), copy=False) for side, most in zip(sides, longest, strict=True)]
    begins, taken, takers = _packs(sides, shape)
    pack_of = np.repeat(np.arange(len(begins), dtype=np.uint32), np.diff(begins, append=len(order)))
    pack_of[taken] = takers
    rows = _sorted(order, np.maximum.reduce(sides), pack_of, begins)
    return Plan(rows, np.cumsum(np.bincount(pack_of)))


def _packs(sides: list[np.ndarray], shape: Shape) -> list[np.ndarray]:
    """Where each pack begins; rows that are taken ahead of their turn, and the packs that take them.

    The last side is not in the lists of the others: where it is the only one, that takes two thirds of the time.
    """
    *others, side = sides
    count, (*sizes, size) = len(side), shape.sides
    # What is taken before each row; a memoryview gives plain numbers at once, without a list of them all.
    total, totals = _totals(side).data, [_totals(other).data for other in others]
    last, longest = side.copy(), int(np.iinfo(side.dtype).max)  # 0 for rows that are taken
    begins, taken, takers = (array("q") for _ in range(3))  # of millions, a list would take five times the memory
    waiting: list[int] = []  # rows taken whose turn is still to come, the next first
    end = 0
    while end < count:
        begin = end
        rows, full = begin + shape.sequences, total[begin] + size  # at the most
        fulls = [before[begin] + most for before, most in zip(totals, sizes, strict=True)] if others else []
        end = _first_beyond(rows, full, fulls, total, totals, begin)
        while waiting and waiting[0] <= end:  # not in this pack: there is room for as much more
            row = waiting.pop(0)
            rows, full = rows + 1, full + int(side[row])
            fulls = [most + int(other[row]) for most, other in zip(fulls, others, strict=True)] if others else []
            end = _first_beyond(rows, full, fulls, total, totals, end)
        rows, room = rows - end, full - total[end]
        rooms = [most - before[end] for most, before in zip(fulls, totals, strict=True)] if others else []
        ahead = slice(end + 1, end + 1 + AHEAD)
        window, beside = last[ahead], [other[ahead] for other in others] if others else []
        while rows > 0 and room > 0 and len(window):
            over = min(room, longest) - window  # what does not fit wraps round, to more than what does
            for other, left in zip(beside, rooms, strict=True) if others else ():
                over[other > left] = longest
            place = int(over.argmin())
            length = int(window[place])
            if not 0 < length <= room or (others and over[place] == longest):
                break
            row = ahead.start + place
            rows, room = rows - 1, room - length
            rooms = [left - int(other[row]) for left, other in zip(rooms, others, strict=True)] if others else []
            window[place] = 0
            taken.append(row)
            takers.append(len(begins))
            insort(waiting, row)
        begins.append(begin)
    return [np.asarray(each) for each in (begins, taken, takers)]


def _totals(side: np.ndarray) -> np.ndarray:
    """0, and the sum up to each."""
    totals = np.zeros(len(side) + 1, dtype=whole_type(int(side.sum())))
    np.cumsum(side, out=totals[1:])
    return totals


def _first_beyond(rows: int, full: int, fulls: list[int], total: Any, totals: list[Any], begin: int) -> int:
    """The first row from `begin` on with which more would be taken than is said."""
    end = bisect_right(total, full, begin, min(rows, len(total) - 1) + 1) - 1
    for before, most in zip(totals, fulls, strict=True):
        end = bisect_right(before, most, begin, end + 1) - 1
    return end


def _sorted(order: np.ndarray, longest: np.ndarray, pack_of: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """`order` by pack, and in a pack by length.

    Some packs at a time: they take nothing from further than AHEAD behind them, and numpy sorts numbers of 16 bits
    several times faster than larger ones.
    """
    rows, done = np.empty_like(order), 0
    for first in range(0, len(begins), PACKS):
        behind = first + PACKS
        end = begins[behind] + AHEAD + 1 if behind < len(begins) else len(order)
        some = slice(begins[first], end)
        ours = np.flatnonzero((pack_of[some] >= first) & (pack_of[some] < behind)) + some.start
        keys = longest[ours], (pack_of[ours] - np.uint32(first)).astype(np.uint16)
        rows[done : done + len(ours)] = order[ours[np.lexsort(keys)]]
        done += len(ours)
    return rows


def epoch_plan(lengths: np.ndarray, shape: Shape, seed: int, epoch: int, drawn: np.ndarray | None = None) -> Plan:
    """The batches of a training epoch, rows and batches in an order drawn from (seed, epoch); all rows, or `drawn`."""
    rng = np.random.default_rng((seed, epoch))
    order = np.arange(len(lengths), dtype=whole_type(len(lengths))) if drawn is None else drawn.copy()
    rng.shuffle(order)
    planned = plan(lengths, shape, order)
    return Plan(planned.rows, planned.ends[1:], rng.permutation(len(planned)))
