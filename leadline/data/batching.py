"""Which sentences go into which packed batch. The order is a function of (seed, epoch) and of nothing else."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

AHEAD = 128  # rows looked through for one that fits in what room is left


@dataclass(frozen=True)
class Shape:
    """The fixed size of every batch."""

    source: int  # tokens
    target: int
    sequences: int  # sentences; filler comes on top


def shape_for(lengths: np.ndarray, batch_tokens: int) -> Shape:
    """`batch_tokens` of target, and as much source as usually goes with it."""
    source, target = lengths.sum(0)
    ratio = max(source / max(target, 1), 0.1)
    size = -(-int(batch_tokens * ratio * 1.02) // 16) * 16
    return Shape(source=max(size, int(lengths[:, 0].max())), target=batch_tokens, sequences=max(1, batch_tokens // 4))


def plan(lengths: np.ndarray, shape: Shape, order: Sequence[int] | np.ndarray) -> list[np.ndarray]:
    """Rows of each batch: as many as fit, in `order`, and in the room left the longest that fits of those to come.

    The loop is over batches, so that the device does not wait long for the first batch of an epoch.
    """
    order = np.asarray(order, dtype=np.int64)
    if not len(order):
        return []
    source, target = np.ascontiguousarray(lengths[order].T)
    if source.max() > shape.source or target.max() > shape.target:
        raise ValueError(f"rows of up to {source.max()} and {target.max()} tokens do not fit in {shape}")
    # Tokens before each row; a memoryview gives plain numbers at once, without a list of them all.
    sources, targets = (np.concatenate([[0], np.cumsum(side)]).data for side in (source, target))
    untaken = target.copy()  # 0 for rows taken ahead of their turn
    begins: list[int] = []
    taken: list[int] = []
    takers: list[int] = []  # the packs that took them
    waiting: list[int] = []  # rows taken whose turn is still to come, the next first
    end = 0
    while end < len(order):
        begin = end
        full = (sources[begin] + shape.source, targets[begin] + shape.target, begin + shape.sequences)
        end = _first_beyond(full, sources, targets, begin)
        while waiting and waiting[0] <= end:  # not in this pack: there is room for as much more
            row = waiting.pop(0)
            full = (full[0] + int(source[row]), full[1] + int(target[row]), full[2] + 1)
            end = _first_beyond(full, sources, targets, end)
        room = [full[0] - sources[end], full[1] - targets[end], full[2] - end]
        ahead = slice(end + 1, end + 1 + AHEAD)
        while min(room) > 0 and ahead.start < len(order):
            fitting = untaken[ahead] * ((source[ahead] <= room[0]) & (untaken[ahead] <= room[1]))
            row = ahead.start + int(fitting.argmax())
            if not fitting[row - ahead.start]:
                break
            room = [room[0] - int(source[row]), room[1] - int(target[row]), room[2] - 1]
            untaken[row] = 0
            taken.append(row)
            takers.append(len(begins))
            insort(waiting, row)
        begins.append(begin)
    pack_of = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(order)))
    pack_of[taken] = takers
    longest = np.maximum(source, target)
    # In the smallest type, because numpy sorts 16 bits several times faster than 64.
    keys = [key.astype(np.min_scalar_type(key.max())) for key in (longest, pack_of)]
    return np.split(order[np.lexsort(keys)], np.cumsum(np.bincount(pack_of))[:-1])


def _first_beyond(full: tuple[int, int, int], sources: Sequence[int], targets: Sequence[int], begin: int) -> int:
    """The first row from `begin` on with which the totals would be more than `full`: source, target, rows."""
    return min(bisect_right(sources, full[0], begin), bisect_right(targets, full[1], begin), full[2] + 1) - 1


def epoch_plan(lengths: np.ndarray, shape: Shape, seed: int, epoch: int) -> list[np.ndarray]:
    """The batches of a training epoch, rows and batches in an order drawn from (seed, epoch)."""
    rng = np.random.default_rng((seed, epoch))
    batches = plan(lengths, shape, rng.permutation(len(lengths)))
    return [batches[i] for i in rng.permutation(len(batches))]
