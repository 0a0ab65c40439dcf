"""Prepared data: token shards that are memory-mapped, and a manifest that says what they are.

    FOLDER/manifest.json          format, data config, languages, counts, hashes, what was left out, notes
    FOLDER/tokenizer.json         the BPE, in the standard format of the `tokenizers` library
    FOLDER/train-00000.tokens.npy all tokens of the shard, one row after the other: source, target, source, …
    FOLDER/train-00000.ends.npy   [rows, 2] where each side of each row ends
    FOLDER/valid.text.jsonl       the sentences themselves, for BLEU (valid and test only)

Documents have other shards (leadline.data.corpus), and labelled text has labels too (leadline.data.labelled).
A folder is written under another name and renamed when complete, so it is whole or absent.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from leadline import config as configuration
from leadline import machine
from leadline.config import DataConfig
from leadline.data import corpus, labelled, published
from leadline.data.documents import Documents, holds_documents, open_documents
from leadline.data.sources import Pair, Source, open_source
from leadline.data.tables import holds_examples, open_examples
from leadline.data.tokenizer import Tokenizer, clean, learn
from leadline.errors import UserError
from leadline.files import sha256

FORMAT = 1
SHARD_TOKENS = 1 << 24  # what is held in memory before it is written
CHUNK = 4096  # pairs encoded at once
LEARN_ON = 2_000_000  # the BPE is learnt on this many pairs at the most

Progress = Callable[[str, int], None]  # what is being done, and how many more pairs are done


def cache_folder() -> Path:
    return Path(os.environ.get("LEADLINE_CACHE", "~/.cache/leadline")).expanduser()


def prepare(config: DataConfig, out: Path | None = None, progress: Progress = lambda what, done: None) -> Path:
    """The folder with this data as tokens: found if it is there and nothing changed, made otherwise."""
    if config.source.startswith("prepared:"):
        folder = Path(config.source.removeprefix("prepared:")).expanduser()
        _manifest(folder)
        return folder
    documents, examples = holds_documents(config.source), holds_examples(config.source)
    opens: Any = open_documents if documents else open_examples if examples else open_source
    source = opens(config)
    key = _key(config, source.fingerprint())
    name = "documents" if documents else "examples" if examples else f"{config.source_lang}-{config.target_lang}"
    folder = out.resolve() if out else cache_folder() / f"{name}-{key[:16]}"
    if (folder / "manifest.json").exists() and _manifest(folder)["key"] == key:
        return folder
    if out and folder.exists() and not (folder / "manifest.json").exists() and not _is_empty_folder(folder):
        raise UserError(f"{folder} exists and is not prepared data: choose another folder")
    if documents:
        _make_documents(folder, config, source, key, progress)
    else:
        build = labelled.build if examples else _build
        _make_whole(folder, config, key, lambda building: build(building, config, source, progress))
    if _manifest(folder)["key"] != key:
        raise UserError(f"{folder} was changed by another process while it was being prepared: prepare it again")
    return folder


def _key(config: DataConfig, fingerprint: str) -> str:
    """Of everything that makes a difference to the tokens, which is not where something lies."""
    options = configuration.to_dict(config) | {"source": ""}
    parts: list[Any] = [FORMAT, options, fingerprint]
    if vocabulary := options.pop("vocabulary"):
        parts.append(sha256(_existing(Path(vocabulary).expanduser())))
    if not holds_examples(config.source):
        for column in ("first", "second", "label"):
            del options[column]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"data.vocabulary: {path} does not exist: give a tokenizer.json")
    return path


def _make_whole(folder: Path, config: DataConfig, key: str, build: Callable[[Path], dict[str, Any]]) -> None:
    building = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        _write_manifest(building, config, key, build(building))
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another process may have prepared the same data meanwhile
            building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _make_documents(folder: Path, config: DataConfig, source: Documents, key: str, progress: Progress) -> None:
    """In a folder named after the key, which stays when this is killed and is gone on with."""
    building = folder.with_name(f".{folder.name}.{key[:16]}.unfinished")
    building.parent.mkdir(parents=True, exist_ok=True)
    lock = building.with_suffix(".lock")
    with lock.open("w") as file:
        machine.lock(file, wait=True)  # another process may be preparing the same
        if (folder / "manifest.json").exists() and _manifest(folder)["key"] == key:
            return
        building.mkdir(exist_ok=True)
        _write_manifest(building, config, key, corpus.build(building, config, source, progress))
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
        lock.unlink()


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _build(folder: Path, config: DataConfig, source: Source, progress: Progress) -> dict[str, Any]:
    """Fill a folder with pairs; what the manifest says of it."""
    bpe = learn(_sentences(source, config, progress), config)
    bpe.save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer(bpe, config)
    splits = {split: _encode(folder, split, source, tokenizer, progress) for split in source.splits()}
    for split, facts in splits.items():
        if not facts["rows"]:
            raise UserError(f"the {split} split of {config.source} has no pair with text on both sides")
    hashes = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    facts = {"holds": "pairs", "vocab_size": tokenizer.vocab_size, "splits": splits, "sha256": hashes}
    return facts | {"notes": source.notes()}


def _write_manifest(folder: Path, config: DataConfig, key: str, facts: dict[str, Any]) -> None:
    manifest = {"format": FORMAT, "key": key, "data": configuration.to_dict(config), **facts}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")


def _sentences(source: Source, config: DataConfig, progress: Progress) -> Iterator[str]:
    """What the BPE is learnt on."""
    for number, (left, right) in enumerate(itertools.islice(source.pairs("train"), LEARN_ON), 1):
        if number % CHUNK == 0:
            progress("learning BPE", CHUNK)
        yield clean(left, config, config.source_lang)
        yield clean(right, config, config.target_lang)


def _encode(folder: Path, split: str, source: Source, tokenizer: Tokenizer, progress: Progress) -> dict[str, Any]:
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


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is not prepared data ({error}): make it with leadline data prepare") from None
    if not isinstance(manifest, dict) or not {"format", "key", "data", "splits", "vocab_size"} <= manifest.keys():
        raise UserError(f"{folder} is not prepared data: make it with leadline data prepare")
    if manifest["format"] != FORMAT:
        raise UserError(f"{folder} was prepared by another version of leadline: prepare it again")
    return manifest


def holds(source: str) -> str:
    """Of data.source: documents, examples or pairs."""
    if source.startswith("prepared:"):
        return _manifest(Path(source.removeprefix("prepared:")).expanduser()).get("holds", "pairs")
    return "documents" if holds_documents(source) else "examples" if holds_examples(source) else "pairs"


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
        source = tokens[_spans(begins, sources)].astype(np.int64)
        target = tokens[_spans(begins + sources, targets)].astype(np.int64)
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
        parts = np.split(_spans(in_shard, lengths), copied[np.searchsorted(shards[by_shard], used[1:])])
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


def _spans(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """begin, begin + 1, …, begin + length - 1 of each, end to end."""
    return np.arange(lengths.sum()) + np.repeat(begins - np.cumsum(lengths) + lengths, lengths)


class Store:
    """A prepared folder, opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = _manifest(folder)
        self.data: DataConfig = configuration.from_dict(self.manifest["data"], DataConfig, "data.")
        self.tokenizer = Tokenizer.load(folder / "tokenizer.json", self.data)

    @property
    def holds(self) -> str:
        """pairs (of sentences), documents or examples (of labelled text)"""
        return self.manifest.get("holds", "pairs")

    @property
    def notes(self) -> list[str]:
        """What people should know before they compare results, a sentence each: how the text was read, and its size."""
        return [*self.manifest.get("notes", []), *published.compared(self.data, self.manifest["splits"])]

    def split(self, name: str, kind: str = "pairs") -> Split:
        paths = [self.folder / f"{name}-{shard:05d}" for shard in range(self._shards(name, kind))]
        with self._opening(name):
            ends = [np.load(f"{path}.ends.npy", mmap_mode="r") for path in paths]
            tokens = [np.load(f"{path}.tokens.npy", mmap_mode="r") for path in paths]
        return Split(tokens, ends, np.cumsum([0, *(len(e) for e in ends)]))

    def labels(self, name: str) -> np.ndarray:
        """[rows] of a split of examples: which of manifest["labels"]."""
        self._shards(name, "examples")
        with self._opening(name):
            return np.load(self.folder / f"{name}.labels.npy")

    def documents(self, name: str) -> list[corpus.Shard]:
        numbers = self._shards(name, "documents")
        with self._opening(name):
            return corpus.open_shards(self.folder, name, numbers)

    def first(self, name: str, count: int) -> list[list[np.ndarray]]:
        """The first pairs, documents or examples of a split: the tokens of their sentences."""
        if self.holds != "documents":
            rows = self.split(name, self.holds)
            return [[side for side in rows[i] if len(side)] for i in range(min(count, len(rows)))]
        found = (document for shard in self.documents(name) for document in shard.each())
        return list(itertools.islice(found, count))

    def _shards(self, name: str, kind: str) -> Any:
        """What the manifest says of a split's shards."""
        if self.holds != kind:
            needed = {"pairs": "text:FOLDER", "documents": "documents:PATH", "examples": "table:PATH"}[kind]
            raise UserError(
                f"{self.folder} holds {self.holds}, and this task needs {kind}: prepare them with data.source={needed}"
            )
        if name not in self.manifest["splits"]:
            raise UserError(f"{self.folder} has no {name} split, only {', '.join(self.manifest['splits'])}")
        return self.manifest["splits"][name]["shards"]

    @contextlib.contextmanager
    def _opening(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise UserError(f"the {name} shards in {self.folder} are damaged ({error}): prepare them again") from None

    def sentences(self, name: str) -> list[Pair]:
        """The text of valid or test, row by row."""
        self.split(name)  # says so if it does not exist
        lines = (self.folder / f"{name}.text.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        return [(pair[0], pair[1]) for pair in map(json.loads, lines)]
