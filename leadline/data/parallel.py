"""Pairs of sentences as tokens, for leadline.tasks.translation.

FOLDER/train-00000.tokens.npy all tokens of the shard, one row after the other: source, target, source, …
FOLDER/train-00000.ends.npy   [rows, 2] where each side of each row ends
FOLDER/valid.text.jsonl       the sentences themselves, for BLEU (valid and test only)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from leadline.config import DataConfig
from leadline.data.pairs import Pair, Pairs
from leadline.data.tokenizer import Tokenizer, clean, learn
from leadline.errors import UserError

SHARD_TOKENS = 1 << 24  # what is held in memory before it is written
CHUNK = 4096  # pairs encoded at once
LEARN_ON = 2_000_000  # the BPE is learnt on this many pairs at the most


def build(folder: Path, config: DataConfig, source: Pairs, progress: Any) -> dict[str, Any]:
    """Fill a folder with pairs; what the manifest says of it."""
    bpe = learn(_sentences(source, config, progress), config)
    bpe.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer(bpe, config)
    splits = {split: _encode(folder, split, source, tokenizer, progress) for split in source.splits()}
    for split, facts in splits.items():
        if not facts["rows"]:
            raise UserError(f"the {split} split of {config.source} has no pair with text on both sides")
    return {"vocab_size": tokenizer.vocab_size, "splits": splits, "notes": source.notes()}


def lines(source: Pairs) -> Iterator[str]:
    return itertools.chain.from_iterable(source.pairs("train"))


def _sentences(source: Pairs, config: DataConfig, progress: Any) -> Iterator[str]:
    """What the BPE is learnt on."""
    for number, (left, right) in enumerate(itertools.islice(source.pairs("train"), LEARN_ON), 1):
        if number % CHUNK == 0:
            progress("learning BPE", CHUNK)
        yield clean(left, config, config.source_lang)
        yield clean(right, config, config.target_lang)


def _encode(folder: Path, split: str, source: Pairs, tokenizer: Tokenizer, progress: Any) -> dict[str, Any]:
    """Write a split; counts what it holds and what was left out."""
    kind = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    parts: list[np.ndarray] = []
    lengths: list[tuple[int, int]] = []
    rows = empty = shards = waiting = 0
    tokens = np.zeros(2, dtype=np.int64)

    def write_shard() -> None:
        ends = np.cumsum(np.array(lengths, dtype=np.int64).reshape(-1)).reshape(-1, 2)
        np.save(folder / f"{split}-{shards:05d}.tokens.npy", np.concatenate([np.zeros(0, kind), *parts]))
        np.save(folder / f"{split}-{shards:05d}.ends.npy", ends)
        parts.clear()
        lengths.clear()

    stream = source.pairs(split)
    with contextlib.ExitStack() as stack:
        text = split != "train" and stack.enter_context((folder / f"{split}.text.jsonl").open("w", encoding="utf-8"))
        while some := list(itertools.islice(stream, CHUNK)):
            encoded = [
                (pair, left, right)
                for pair, left, right in zip(some, *_encode_sides(some, tokenizer), strict=True)
                if left and right
            ]
            empty += len(some) - len(encoded)
            lengths += [(len(left), len(right)) for _, left, right in encoded]
            flat = itertools.chain.from_iterable(side for _, *sides in encoded for side in sides)
            parts.append(np.fromiter(flat, dtype=kind))
            if text:
                text.writelines(json.dumps(pair, ensure_ascii=False) + "\n" for pair, _, _ in encoded)
            rows, waiting = rows + len(encoded), waiting + len(parts[-1])
            tokens += np.array(lengths[len(lengths) - len(encoded) :]).reshape(-1, 2).sum(0, dtype=np.int64)
            progress(f"encoding {split}", len(some))
            if waiting >= SHARD_TOKENS:
                write_shard()
                shards, waiting = shards + 1, 0
        if lengths or not shards:
            write_shard()
            shards += 1
    return {"rows": rows, "shards": shards, "tokens": tokens.tolist(), "empty_left_out": empty}


def _encode_sides(pairs: list[Pair], tokenizer: Tokenizer) -> tuple[list[list[int]], list[list[int]]]:
    config = tokenizer.config
    left, right = zip(*pairs, strict=True)
    return tokenizer.encode(left, config.source_lang), tokenizer.encode(right, config.target_lang)


class Flat(NamedTuple):
    """Sequences end to end."""

    tokens: np.ndarray  # int64
    lengths: np.ndarray  # of each sequence


@dataclass(frozen=True)
class Split:
    """Rows of token pairs, read from disk as they are asked for."""

    tokens: list[np.ndarray]
    ends: list[np.ndarray]
    first: np.ndarray  # row at which each shard begins, and the total

    def __len__(self) -> int:
        return int(self.first[-1])

    def __getitem__(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        source, target = self.gather(np.array([row]))
        return source.tokens, target.tokens

    def gather(self, rows: np.ndarray) -> tuple[Flat, Flat]:
        """Source and target of `rows`, at least one, in any order: without a loop over them, for a batch of many."""
        begins, middles, ends = (self._edges[2 * rows + side] for side in range(3))
        sources, targets = middles - begins, ends - middles
        tokens, begins = self._array_with(rows, begins, sources + targets)
        source = tokens[spans(begins, sources)].astype(np.int64)
        target = tokens[spans(begins + sources, targets)].astype(np.int64)
        return Flat(source, sources), Flat(target, targets)

    def _array_with(self, rows: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """An array with the tokens of `rows`, and where each begins: the only shard, or what is needed of several."""
        if len(self.tokens) == 1:
            return self.tokens[0], begins
        shards = np.searchsorted(self.first, rows, side="right") - 1
        by_shard = np.argsort(shards, kind="stable")
        in_shard = (begins - self._edges[2 * self.first[shards]])[by_shard]
        lengths = lengths[by_shard]
        copied = np.cumsum(lengths) - lengths  # where each will begin
        used = np.unique(shards)
        parts = np.split(spans(in_shard, lengths), copied[np.searchsorted(shards[by_shard], used[1:])])
        begins = np.empty_like(copied)
        begins[by_shard] = copied
        return np.concatenate([self.tokens[s][part] for s, part in zip(used, parts, strict=True)]), begins

    @functools.cached_property
    def _edges(self) -> np.ndarray:
        """[2 rows + 1] where each side of each row begins, the shards taken as one, and where the last ends."""
        return np.concatenate([[0], np.cumsum(self.lengths())])

    def lengths(self) -> np.ndarray:
        """[rows, 2] tokens on each side."""
        return np.concatenate([np.diff(e.reshape(-1), prepend=0).reshape(-1, 2) for e in self.ends])


def spans(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """begin, begin + 1, …, begin + length - 1 of each, end to end."""
    return np.arange(lengths.sum()) + np.repeat(begins - np.cumsum(lengths) + lengths, lengths)


def read(folder: Path, split: str, shards: int) -> Split:
    paths = [folder / f"{split}-{shard:05d}" for shard in range(shards)]
    ends = [np.load(f"{path}.ends.npy", mmap_mode="r") for path in paths]
    tokens = [np.load(f"{path}.tokens.npy", mmap_mode="r") for path in paths]
    return Split(tokens, ends, np.cumsum([0, *(len(e) for e in ends)]))
