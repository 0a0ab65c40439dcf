"""Documents cut into sequences for a model: whole sentences of one document, as many as fit.

A sentence that does not fit by itself is cut; nothing is left out. A row is a sequence. Language models read windows of
a fixed length instead, which begin and end anywhere.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from leadline.data.corpus import Shard
from leadline.data.flat import Flat, spans
from leadline.machine import cores


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
        return self.ends - self.begins

    def places(self, rows: np.ndarray) -> Places:
        begins = self.begins[rows].astype(np.int64)
        return Places(self.shard[rows], begins, self.ends[rows] - begins)

    def gather(self, places: Places) -> Flat:
        """The tokens there, without a loop over the places."""
        return Flat(gathered([shard.tokens for shard in self.shards], places), places.lengths)

    def breaks(self, rows: np.ndarray) -> Flat:
        """Where a sentence ends and another begins inside each row."""
        first, behind = self.sentences[rows].astype(np.int64).T
        places = Places(self.shard[rows], first, behind - first)
        return Flat(gathered([shard.ends for shard in self.shards], places), places.lengths)


def gathered(arrays: list[np.ndarray], places: Places) -> np.ndarray:
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
    """Into sequences of at most `room` tokens."""
    rows = _Columns(*(np.zeros(0, np.uint32) for _ in range(4)), np.zeros((0, 2), np.uint32))
    number, documents, at_once = 0, 0, cores()
    with ThreadPoolExecutor(at_once) as threads:
        for first in range(0, len(shards), at_once):  # all of them at a time would be in memory
            some = threads.map(_cut, shards[first : first + at_once], itertools.repeat(room))
            for begins, ends, document, inside, count in some:
                rows.add(np.full(len(begins), number), begins, ends, document + documents, inside)
                number, documents = number + 1, documents + count
    return Sequences(shards, *rows.whole())


def windows(shards: list[Shard], room: int, across: bool) -> Places:
    """All tokens in stretches of `room`, the last of a document as long as what is left; across: of a shard."""
    rows = _Columns(*(np.zeros(0, np.int64) for _ in range(3)))
    for number, shard in enumerate(shards):
        ends = np.array([len(shard.tokens)]) if across else _in_memory(shard.ends)[shard.documents.astype(np.int64) - 1]
        ends = ends.astype(np.int64)
        sizes = np.diff(ends, prepend=0)
        counts = -(-sizes // room)
        begins = np.repeat(ends - sizes, counts) + room * spans(np.zeros_like(counts), counts)
        lengths = np.minimum(room, np.repeat(ends, counts) - begins)
        rows.add(np.full(len(begins), number), begins, lengths)
    return Places(*rows.whole())


class _Columns:
    """Arrays that grow shard by shard: of millions of rows, which pieces and their whole would have in memory twice."""

    def __init__(self, *columns: np.ndarray) -> None:
        """Of these types, and without a row."""
        self.columns, self.rows = columns, 0

    def add(self, *parts: np.ndarray) -> None:
        end = self.rows + len(parts[0])
        for column, part in zip(self.columns, parts, strict=True):
            if end > len(column):
                column.resize((end + end // 8, *column.shape[1:]), refcheck=False)
            column[self.rows : end] = part
        self.rows = end

    def whole(self) -> tuple[np.ndarray, ...]:
        for column in self.columns:
            column.resize((self.rows, *column.shape[1:]), refcheck=False)
        return self.columns


def _in_memory(array: np.ndarray) -> np.ndarray:
    """What is looked at once: of a mapped file, the pages would stay and count as this process's."""
    return np.load(array.filename) if isinstance(array, np.memmap) and array.filename else array


def _cut(shard: Shard, room: int) -> tuple[Any, ...]:
    """Begins, ends and documents of its sequences, the sentences that end inside them, and how many documents it has.

    The next of all documents at a time.
    """
    short, documents = _in_memory(shard.ends), _in_memory(shard.documents).astype(np.int64)
    ends = short.astype(np.int64)
    lasts = ends[documents - 1]
    begins, going = np.concatenate([[0], lasts[:-1]]), np.arange(len(documents))
    found = []
    while len(going := going[begins[going] < lasts[going]]):
        begin, last = begins[going], lasts[going]
        fitting = np.searchsorted(ends, begin + room, "right") - 1
        sentence = np.where(fitting >= 0, ends[fitting], 0)
        end = np.where(sentence > begin, sentence, begin + room)  # a sentence that is too long is cut anywhere
        end = np.where(begin + room >= last, last, end)
        found.append(np.stack([begin, end, going]))
        begins[going] = end
    begin, end, document = np.concatenate([np.zeros((3, 0), np.int64), *found], axis=1)
    order = np.argsort(begin)
    begin, end, document = begin[order], end[order], document[order]
    inside = np.searchsorted(short, begin, "right"), np.searchsorted(short, end, "left")
    return begin, end, document, np.stack(inside, axis=1), len(documents)
