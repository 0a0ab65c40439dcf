"""Documents cut into sequences for a model: whole sentences of one document, as many as fit.

A sentence that does not fit by itself is cut; nothing is left out. A row is a sequence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leadline.data.corpus import Shard
from leadline.data.parallel import Flat, spans


@dataclass(frozen=True)
class Places:
    """Stretches of text in shards."""

    shard: np.ndarray  # which
    begins: np.ndarray
    lengths: np.ndarray

    def take(self, chosen: np.ndarray) -> Places:
        return Places(self.shard[chosen], self.begins[chosen], self.lengths[chosen])


@dataclass(frozen=True)
class Sequences:
    shards: list[Shard]
    shard: np.ndarray  # [rows] int32
    begins: np.ndarray  # [rows] uint32: its first token in the shard
    ends: np.ndarray  # [rows] uint32
    documents: np.ndarray  # [rows] uint32: which document it is of
    sentences: np.ndarray  # [rows, 2] uint32: those of the shard that end inside it, but for its own end: first, behind

    def __len__(self) -> int:
        return len(self.shard)

    def lengths(self) -> np.ndarray:
        return self.ends.astype(np.int64) - self.begins

    def places(self, rows: np.ndarray) -> Places:
        begins = self.begins[rows].astype(np.int64)
        return Places(self.shard[rows], begins, self.ends[rows] - begins)

    def gather(self, places: Places) -> Flat:
        """The tokens there, without a loop over the places."""
        return Flat(_gathered([shard.tokens for shard in self.shards], places), places.lengths)

    def breaks(self, rows: np.ndarray) -> Flat:
        """Where a sentence ends and another begins inside each row."""
        first, behind = self.sentences[rows].astype(np.int64).T
        places = Places(self.shard[rows], first, behind - first)
        return Flat(_gathered([shard.ends for shard in self.shards], places), places.lengths)


def _gathered(arrays: list[np.ndarray], places: Places) -> np.ndarray:
    """What the arrays hold there, end to end. The loop is over the arrays that are needed."""
    used = np.unique(places.shard)
    if len(used) < 2:
        return arrays[used[0] if len(used) else 0][spans(places.begins, places.lengths)].astype(np.int64)
    order = np.argsort(places.shard, kind="stable")
    ordered = places.take(order)
    counts = np.concatenate([[0], np.cumsum(ordered.lengths)])
    edges = counts[np.searchsorted(ordered.shard, used[1:])]
    parts = np.split(spans(ordered.begins, ordered.lengths), edges)
    gathered = np.empty(counts[-1], dtype=np.int64)
    own = spans((np.cumsum(places.lengths) - places.lengths)[order], ordered.lengths)
    gathered[own] = np.concatenate([arrays[shard][part] for shard, part in zip(used, parts, strict=True)])
    return gathered


def cut(shards: list[Shard], room: int) -> Sequences:
    """Into sequences of at most `room` tokens. The loop is over sequences, not over sentences."""
    rows: list[np.ndarray] = []
    document = 0
    for number, shard in enumerate(shards):
        ends = shard.ends.data  # a memoryview gives plain numbers, and reads only what is looked at
        places: list[tuple[int, int, int]] = []
        begin = 0
        for sentences in shard.documents.tolist():
            last = ends[sentences - 1]
            while begin < last:
                end = _last_that_fits(ends, begin, last, room)
                places.append((begin, end, document))
                begin = end
            document += 1
        table = np.array(places, dtype=np.uint32).reshape(-1, 3)
        inside = np.searchsorted(shard.ends, table[:, 0], "right"), np.searchsorted(shard.ends, table[:, 1], "left")
        rows.append(np.column_stack([np.full(len(table), number), table, *inside]).astype(np.uint32))
    shard_of, begins, ends_of, documents, *inner = np.concatenate(rows).T
    return Sequences(shards, shard_of, begins, ends_of, documents, np.stack(inner, axis=1))


def _last_that_fits(ends: Sequence[int], begin: int, last: int, room: int) -> int:
    if begin + room >= last:
        return last
    fitting = bisect_right(ends, begin + room) - 1
    return ends[fitting] if fitting >= 0 and ends[fitting] > begin else begin + room
