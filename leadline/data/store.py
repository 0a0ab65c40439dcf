"""Prepared data: token shards that are memory-mapped, and a manifest that says what they are.

    FOLDER/manifest.json   format, data config, what it holds, counts, hashes, what was left out, notes
    FOLDER/tokenizer.json  the BPE, in the standard format of the `tokenizers` library

and shards of pairs (leadline.data.parallel), documents (leadline.data.corpus) or examples (leadline.data.labelled). A
folder is written under another name and renamed when complete, so it is whole or absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from leadline import config as configuration
from leadline import machine
from leadline.config import DataConfig
from leadline.data import corpus, published
from leadline.data.pairs import Pair
from leadline.data.parallel import Split
from leadline.data.remembered import cache_folder
from leadline.data.sources import FORMS, Form, parse
from leadline.data.tokenizer import Tokenizer
from leadline.errors import UserError
from leadline.files import sha256

FORMAT = 1

Progress = Callable[[str, int], None]  # what is being done, and how many more pairs are done


def prepare(config: DataConfig, out: Path | None = None, progress: Progress = lambda what, done: None) -> Path:
    """The folder with this data as tokens: found if it is there and nothing changed, made otherwise."""
    source = parse(config.source)
    if source.kind == "prepared":
        _manifest(source.path)
        return source.path
    text = source.open(config)
    key = _key(config, source.holds, text.fingerprint())
    name = f"{config.source_lang}-{config.target_lang}" if source.holds == "pairs" else source.holds
    folder = out.resolve() if out else cache_folder() / f"{name}-{key[:16]}"
    if _is_made(folder, key):
        return folder
    if out and folder.exists() and not (folder / "manifest.json").exists() and not _is_empty_folder(folder):
        raise UserError(f"{folder} exists and is not prepared data: choose another folder")
    form = FORMS[source.holds]

    def fill(building: Path) -> None:
        facts = {"holds": source.holds} | form.build(building, config, text, progress)
        hashes = {path.name: sha256(path) for path in sorted(building.iterdir())}
        manifest = {"format": FORMAT, "key": key, "data": configuration.to_dict(config), **facts, "sha256": hashes}
        (building / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")

    _make(folder, key, form, fill)
    return folder


def _key(config: DataConfig, holds: str, fingerprint: str) -> str:
    """Of everything that makes a difference to the tokens, which is not where something lies."""
    options = configuration.to_dict(config) | {"source": ""}
    parts: list[Any] = [FORMAT, options, fingerprint]
    if vocabulary := options.pop("vocabulary"):
        parts.append(sha256(_existing(Path(vocabulary).expanduser())))
    if holds != "examples":
        for column in ("first", "second", "label"):
            del options[column]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"data.vocabulary: {path} does not exist: give a tokenizer.json")
    return path


def _is_made(folder: Path, key: str) -> bool:
    return (folder / "manifest.json").exists() and bool(_manifest(folder)["key"] == key)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _make(folder: Path, key: str, form: Form, fill: Callable[[Path], None]) -> None:
    """Fill a hidden folder and rename it, one process at a time; what a kill leaves is gone on with or removed."""
    building = folder.with_name(f".{folder.name}.{key[:16]}.unfinished")
    building.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f".{folder.name}.lock")):
        if _is_made(folder, key):  # by another process meanwhile
            return
        if not form.resumes:
            shutil.rmtree(building, ignore_errors=True)
        building.mkdir(exist_ok=True)
        try:
            fill(building)
            shutil.rmtree(folder, ignore_errors=True)
            building.rename(folder)
        finally:
            if not form.resumes:
                shutil.rmtree(building, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """While the file is locked and is still the one of that name: who had it before has removed it."""
    while True:
        with path.open("w") as file:
            machine.lock(file, wait=True)
            if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file.fileno())):
                continue
            try:
                yield
            finally:
                path.unlink()
            return


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
    """Of data.source: pairs, documents or examples."""
    parsed = parse(source)
    return _manifest(parsed.path).get("holds", "pairs") if parsed.kind == "prepared" else parsed.holds


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
        rows: Split = self._read(name, kind)
        return rows

    def labels(self, name: str) -> np.ndarray:
        """[rows] of a split of examples: which of manifest["labels"]."""
        self._shards(name, "examples")
        with self._opening(name):
            return np.load(self.folder / f"{name}.labels.npy")

    def documents(self, name: str) -> list[corpus.Shard]:
        shards: list[corpus.Shard] = self._read(name, "documents")
        return shards

    def _read(self, name: str, kind: str) -> Any:
        shards = self._shards(name, kind)
        with self._opening(name):
            return FORMS[kind].read(self.folder, name, shards)

    def first(self, name: str, count: int) -> list[list[np.ndarray]]:
        """The first pairs, documents or examples of a split: the tokens of their sentences."""
        if self.holds != "documents":
            rows = self.split(name, self.holds)
            return [[side for side in rows[i] if len(side)] for i in range(min(count, len(rows)))]
        documents = (document for shard in self.documents(name) for document in shard.each())
        return list(itertools.islice(documents, count))

    def _shards(self, name: str, kind: str) -> Any:
        """What the manifest says of a split's shards."""
        if self.holds != kind:
            raise UserError(
                f"{self.folder} holds {self.holds}, and this task needs {kind}: "
                f"prepare them with data.source={FORMS[kind].needed}"
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
