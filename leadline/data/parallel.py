"""Pairs of sentences as tokens, for leadline.tasks.translation.

FOLDER/train-00000.tokens.npy all tokens of the shard, one row after the other: source, target, source, …
FOLDER/train-00000.ends.npy   [rows, 2] where each side of each row ends
FOLDER/valid.text.jsonl       the sentences themselves, for BLEU (valid and test only)

Of many languages the rows of a direction stand together, in the order of the manifest's `directions`, and the tag of
the language to write is the first token of the source (data.tag=source). flores.text.jsonl has a sentence in all.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from leadline.config import DataConfig
from leadline.data.directions import ends, targets, unseen
from leadline.data.flat import Flat, spans
from leadline.data.making import Progress
from leadline.data.many import FLORES, Many
from leadline.data.pairs import Pair, Pairs
from leadline.data.sampling import counts
from leadline.data.tokenizer import Tokenizer, clean, learn, tag
from leadline.errors import UserError
from leadline.files import Facts

SHARD_TOKENS = 1 << 24  # what is held in memory before it is written
CHUNK = 4096  # pairs encoded at once
LEARN_ON = 2_000_000  # the BPE is learnt on this many pairs at the most


def build(folder: Path, config: DataConfig, source: Pairs, progress: Progress) -> Facts:
    """Fill a folder with pairs; what the manifest says of it."""
    bpe = learn(_sentences(source, config, progress), config, languages=targets(config.directions))
    given = Path(config.vocabulary).expanduser()
    tokenizer = Tokenizer(bpe, config, Tokenizer.load(given, config).target if config.vocabulary else None)
    tokenizer.save(folder)
    splits = {split: _encode(folder, split, source, tokenizer, progress) for split in source.splits()}
    directions = {split: facts.pop("directions") for split, facts in splits.items()}
    for split, facts in splits.items():
        if not facts["rows"]:
            raise UserError(f"the {split} split of {config.source} has no pair with text on both sides")
    facts = {"vocab_size": tokenizer.vocab_size, "splits": splits, "notes": source.notes()}
    if isinstance(source, Many):
        facts["directions"] = directions | _every(folder, source)
    return facts


def lines(source: Pairs) -> Iterator[str]:
    return itertools.chain.from_iterable(source.pairs("train"))


def _sentences(source: Pairs, config: DataConfig, progress: Progress) -> Iterator[str]:
    """What the BPE is learnt on: of many languages, lines of each in proportion to its lines^(1/temperature)."""
    progress("learning BPE", 0)
    if config.directions:
        sizes = Counter(language for language, _ in _lines_by_language(source))
        total = min(sizes.total(), 2 * LEARN_ON)
        wanted = dict(zip(sizes, counts([*sizes.values()], config.temperature, total).tolist(), strict=True))
        seen: Counter[str] = Counter()
        for language, line in _lines_by_language(source):
            seen[language] += 1
            if seen[language] % CHUNK == 0:
                progress("learning BPE", CHUNK // 2)
            # Evenly spaced, and as often as it takes.
            times = seen[language] * wanted[language] // sizes[language]
            times -= (seen[language] - 1) * wanted[language] // sizes[language]
            yield from itertools.repeat(clean(line, config, language), times)
        return
    for number, (left, right) in enumerate(itertools.islice(source.pairs("train"), LEARN_ON), 1):
        if number % CHUNK == 0:
            progress("learning BPE", CHUNK)
        yield clean(left, config, config.source_lang)
        yield clean(right, config, config.target_lang)


def _lines_by_language(source: Pairs) -> Iterator[tuple[str, str]]:
    """Every line of train once, also where its pair is trained both ways."""
    used: set[tuple[str, str]] = set()
    for left, right, pairs in source.streams("train"):
        if (right, left) not in used:
            used.add((left, right))
            for pair in pairs:
                yield left, pair[0]
                yield right, pair[1]


def _every(folder: Path, source: Many) -> dict[str, dict[str, int]]:
    """Write the sentences that are there in all languages; which directions they are of."""
    if len(source.flores) < 2:
        return {}
    rows = list(source.every())
    with (folder / f"{FLORES}.text.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    known = sorted([*source.config.directions, *unseen(source.config.directions)])
    return {FLORES: {d: len(rows) for d in known if {*ends(d)} <= source.flores.keys()}}


def _encode(folder: Path, split: str, source: Pairs, tokenizer: Tokenizer, progress: Progress) -> Facts:
    """Write a split; counts what it holds and what was left out."""
    parts, lengths = [tokenizer.stored(np.zeros(0, np.int64))], [np.zeros((0, 2), np.int64)]
    rows = empty = shards = waiting = 0
    tokens = np.zeros(2, dtype=np.int64)
    directions: Counter[str] = Counter()

    def write_shard() -> None:
        ends = np.cumsum(np.concatenate(lengths).reshape(-1)).reshape(-1, 2)
        np.save(folder / f"{split}-{shards:05d}.tokens.npy", np.concatenate(parts))
        np.save(folder / f"{split}-{shards:05d}.ends.npy", ends)
        del parts[1:], lengths[1:]

    with contextlib.ExitStack() as stack:
        text = split != "train" and stack.enter_context((folder / f"{split}.text.jsonl").open("w", encoding="utf-8"))
        for chunk in _chunks(source, split, tokenizer):
            kept = len(chunk.lengths)
            empty += len(chunk.pairs) - kept
            lengths.append(chunk.lengths)
            parts.append(tokenizer.stored(chunk.tokens))
            if text:
                used = itertools.compress(chunk.pairs, chunk.used)
                text.writelines(json.dumps(pair, ensure_ascii=False) + "\n" for pair in used)
            rows, waiting = rows + kept, waiting + len(parts[-1])
            directions[chunk.direction] += kept
            tokens += chunk.lengths.sum(0)
            progress(f"encoding {split}", len(chunk.pairs))
            if waiting >= SHARD_TOKENS:
                write_shard()
                shards, waiting = shards + 1, 0
        if any(map(len, lengths)) or not shards:
            write_shard()
            shards += 1
    facts = {"rows": rows, "shards": shards, "tokens": tokens.tolist(), "empty_left_out": empty}
    return facts | {"directions": dict(directions)}


class _Chunk(NamedTuple):
    direction: str
    pairs: list[Pair]
    used: np.ndarray  # [pairs] bool: with tokens on both sides
    tokens: np.ndarray  # of those, one row after the other: source, target, source, …
    lengths: np.ndarray  # [used pairs, 2] of them


def _chunks(source: Pairs, split: str, tokenizer: Tokenizer) -> Iterator[_Chunk]:
    tagged = tokenizer.config.directions and tokenizer.config.tag == "source"
    for left, right, stream in source.streams(split):
        first = tokenizer.special(tag(right)) if tagged else None
        while some := list(itertools.islice(stream, CHUNK)):
            sides = [tokenizer.encode_flat([pair[i] for pair in some], each) for i, each in enumerate((left, right))]
            both, lengths = (np.concatenate(parts) for parts in zip(*sides, strict=True))
            begins = np.cumsum(lengths) - lengths
            begins, lengths = (each.reshape(2, -1).T for each in (begins, lengths))
            used = np.logical_and(*lengths.T)
            begins, lengths = begins[used], lengths[used]
            tokens = both[spans(begins.reshape(-1), lengths.reshape(-1))]
            if first is not None:
                tokens = np.insert(tokens, np.cumsum(lengths.sum(1)) - lengths.sum(1), first)
                lengths = lengths + np.array([1, 0])
            yield _Chunk(f"{left}-{right}", some, used, tokens, lengths)


@dataclass(frozen=True)
class Split:
    """Rows of token pairs, read from disk as they are asked for."""

    tokens: list[np.ndarray]
    ends: Sequence[np.ndarray]
    first: np.ndarray  # row at which each shard begins, and the total

    def __len__(self) -> int:
        return int(self.first[-1])

    def __getitem__(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        source, target = self.gather(np.array([row]))
        return source.tokens, target.tokens

    def gather(self, rows: np.ndarray) -> tuple[Flat, Flat]:
        """Source and target of `rows`, at least one, in any order: without a loop over them, for a batch of many."""
        all_begins, all_lengths = self._places
        sources, targets = all_lengths[rows].T.astype(np.int64)
        tokens, begins = self._array_with(rows, all_begins[rows].astype(np.int64), sources + targets)
        source = tokens[spans(begins, sources)].astype(np.int64)
        target = tokens[spans(begins + sources, targets)].astype(np.int64)
        return Flat(source, sources), Flat(target, targets)

    def _array_with(self, rows: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """An array with the tokens of `rows`, which begin there in their shards, and where each begins in the array.

        It is the only shard, or what is needed of several.
        """
        if len(self.tokens) == 1:
            return self.tokens[0], begins
        shards = np.searchsorted(self.first, rows, side="right") - 1
        by_shard = np.argsort(shards, kind="stable")
        in_shard, lengths = begins[by_shard], lengths[by_shard]
        copied = np.cumsum(lengths) - lengths  # where each will begin
        used = np.unique(shards)
        parts = np.split(spans(in_shard, lengths), copied[np.searchsorted(shards[by_shard], used[1:])])
        begins = np.empty_like(copied)
        begins[by_shard] = copied
        return np.concatenate([self.tokens[s][part] for s, part in zip(used, parts, strict=True)]), begins

    @functools.cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each row begins in its shard, and [rows, 2] tokens on each side: of millions, so in small types."""
        begins, lengths = np.empty(len(self), np.uint32), np.empty((len(self), 2), np.uint32)
        for (first, behind), stops in zip(itertools.pairwise(self.first), self.ends, strict=True):
            flat = np.diff(stops.reshape(-1), prepend=0).reshape(-1, 2)
            begins[first:behind], lengths[first:behind] = stops[:, 1] - flat.sum(1), flat
        return begins, lengths.astype(np.uint16) if lengths.max(initial=0) < 1 << 16 else lengths

    def lengths(self) -> np.ndarray:
        """[rows, 2] tokens on each side."""
        return self._places[1].astype(np.int32)


class _Loaded(Sequence[np.ndarray]):
    """Arrays of files, each in memory only while it is looked at."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, which: Any) -> Any:
        return np.load(self.paths[which])


def read(folder: Path, split: str, shards: int) -> Split:
    paths = [folder / f"{split}-{shard:05d}" for shard in range(shards)]
    edges = [f"{path}.ends.npy" for path in paths]
    tokens = [np.load(f"{path}.tokens.npy", mmap_mode="r") for path in paths]
    return Split(tokens, _Loaded(edges), np.cumsum([0, *(len(np.load(path, mmap_mode="r")) for path in edges)]))
