"""Documents cut into sequences for a model: whole sentences of one document, as many as fit.

A sentence that does not fit by itself is cut; nothing is left out. A row is a sequence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leadline.data.corpus import Shard


@dataclass(frozen=True)
class Sequences:
    shards: list[Shard]
    shard: np.ndarray  # [rows] int32
    begins: np.ndarray  # [rows] uint32: its first token in the shard
    ends: np.ndarray  # [rows] uint32
    documents: np.ndarray  # [rows] uint32: which document it is of

    def __len__(self) -> int:
        return len(self.shard)

    def lengths(self) -> np.ndarray:
        return self.ends.astype(np.int64) - self.begins

    def place(self, row: int) -> tuple[Shard, int, int]:
        """Its shard, and where it begins and ends there."""
        return self.shards[self.shard[row]], int(self.begins[row]), int(self.ends[row])

    def breaks(self, row: int) -> np.ndarray:
        """Where a sentence ends and another begins inside a row."""
        shard, begin, end = self.place(row)
        first, last = np.searchsorted(shard.ends, [begin, end], side="right")
        inside = shard.ends[first:last]
        return inside[inside < end].astype(np.int64)


def cut(shards: list[Shard], room: int) -> Sequences:
    """Into sequences of at most `room` tokens. The loop is over sequences, not over sentences."""
    rows: list[np.ndarray] = []
    document = 0
    for number, shard in enumerate(shards):
        ends = shard.ends.data  # a memoryview gives plain numbers, and reads only what is looked at
        found: list[tuple[int, int, int]] = []
        begin = 0
        for sentences in shard.documents.tolist():
            last = ends[sentences - 1]
            while begin < last:
                end = _last_that_fits(ends, begin, last, room)
                found.append((begin, end, document))
                begin = end
            document += 1
        table = np.array(found, dtype=np.uint32).reshape(-1, 3)
        rows.append(np.column_stack([np.full(len(table), number, dtype=np.uint32), table]))
    shard_of, begins, ends_of, documents = np.concatenate(rows).T
    return Sequences(shards, shard_of, begins, ends_of, documents)


def _last_that_fits(ends: Sequence[int], begin: int, last: int, room: int) -> int:
    if begin + room >= last:
        return last
    fitting = bisect_right(ends, begin + room) - 1
    return ends[fitting] if fitting >= 0 and ends[fitting] > begin else begin + room
