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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from leadline import config as configuration
from leadline.config import DataConfig
from leadline.data import corpus, published
from leadline.data import manifest as manifests
from leadline.data.making import Progress as Progress
from leadline.data.making import make
from leadline.data.manifest import FORMAT, Damaged
from leadline.data.pairs import Pair
from leadline.data.parallel import Split
from leadline.data.remembered import cache_folder
from leadline.data.sources import FORMS, parse
from leadline.data.tokenizer import TARGET, Tokenizer, tokenisation
from leadline.errors import UserError
from leadline.files import sha256

UNTOKENISED = (
    "the text looks raw (punctuation is attached to words), and data.text=tokenized splits it at spaces only: "
    "use data.text=raw or moses"
)


def prepare(config: DataConfig, out: Path | None = None, progress: Progress = lambda what, done: None) -> Path:
    """The folder with this data as tokens: found if it is there and nothing changed, made otherwise."""
    source = parse(config.source)
    if source.kind == "prepared":
        manifests.read(source.path)
        return source.path
    text, form = source.open(config), FORMS[source.holds]
    config = text.config
    if config.text == "auto":
        config = replace(config, text=tokenisation(form.lines(text)) or "raw")
    key = _key(config, source.holds, text.fingerprint())
    pair = "many" if config.directions else f"{config.source_lang}-{config.target_lang}"
    name = pair if source.holds == "pairs" else source.holds
    folder = out.resolve() if out else cache_folder() / f"{name}-{key[:16]}"
    used = folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    if out and used and not (folder / "manifest.json").exists():
        raise UserError(f"{folder} exists and is not prepared data: choose another folder")

    def is_made() -> bool:
        try:
            return _is_made(folder, key)
        except UserError as error:
            if out and not isinstance(error, Damaged):
                raise  # of another version, or other data
            progress(f"{error.what if isinstance(error, Damaged) else error}: preparing it again", 0)
            return False

    def fill(building: Path) -> None:
        facts = {"data": configuration.to_dict(config), "holds": source.holds}
        facts |= form.build(building, config, text, progress)
        if config.text == "tokenized" and tokenisation(form.lines(text)) == "raw":
            facts["notes"] = [*facts.get("notes", []), UNTOKENISED]
        manifests.write(building, {"key": key, **facts})

    if not is_made():
        make(folder, key, form.resumes, is_made, fill, progress)
    return folder


def _key(config: DataConfig, holds: str, fingerprint: str) -> str:
    """Of everything that makes a difference to the tokens, which is not where something lies."""
    options = configuration.without_neutral(config) | {"source": ""}
    parts: list[Any] = [FORMAT, options, fingerprint]
    if vocabulary := options.pop("vocabulary"):
        path = Path(vocabulary).expanduser()
        if not path.is_file():
            raise UserError(f"data.vocabulary: {path} is not a file that exists: give a tokenizer.json")
        parts += [sha256(path), *(sha256(beside) for beside in [path.with_name(TARGET)] if beside.exists())]
    if holds != "examples":
        for column in ("first", "second", "label"):
            del options[column]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _is_made(folder: Path, key: str) -> bool:
    """Whether this data is there and whole; UserError where it is damaged."""
    if not (folder / "manifest.json").exists():
        return False
    manifest = manifests.read(folder)
    if manifest["key"] != key:
        raise UserError(f"{folder} holds other data, of other text or options: choose another --out, or remove it")
    manifests.check(folder, manifest)
    return True


def holds(source: str) -> str:
    """Of data.source: pairs, documents or examples."""
    parsed = parse(source)
    return str(manifests.read(parsed.path)["holds"]) if parsed.kind == "prepared" else parsed.holds


def of_many(source: str) -> bool:
    """Whether it is of many languages whatever data.directions says."""
    parsed = parse(source)
    return parsed.kind == "many" or (parsed.kind == "prepared" and "directions" in manifests.read(parsed.path))


def _chosen(asked: DataConfig, data: DataConfig) -> list[str]:
    """What the text itself has decided, a sentence each."""
    if parse(asked.source).kind == "prepared" or data.directions:
        return []
    notes = []
    if (asked.source_lang, asked.target_lang) != (data.source_lang, data.target_lang):
        notes.append(
            f"from {data.source_lang} to {data.target_lang}, the languages of the files: --set data.source_lang="
            f"{data.target_lang} --set data.target_lang={data.source_lang} turns it round"
        )
    if asked.text == "auto":
        looks = "tokenised" if data.text == "tokenized" else "raw"
        notes.append(f"the text looks {looks}: data.text={data.text}")
    return notes


class Store:
    """A prepared folder, opened."""

    def __init__(self, folder: Path, asked: DataConfig | None = None) -> None:
        """`asked`: what it was prepared for, if the notes shall say what was chosen."""
        self.folder, self.asked = folder, asked
        self.manifest = manifests.read(folder)
        manifests.check(folder, self.manifest)
        self.data = configuration.from_dict(self.manifest["data"], DataConfig, "data.")
        self.tokenizer = Tokenizer.load(folder / "tokenizer.json", self.data)

    @property
    def holds(self) -> str:
        """pairs (of sentences), documents or examples (of labelled text)"""
        return str(self.manifest["holds"])

    @property
    def notes(self) -> list[str]:
        """What people should know before they compare results, a sentence each: how the text was read, and its size."""
        chosen = _chosen(self.asked, self.data) if self.asked else []
        size = self.manifest["vocab_size"]
        if size < self.data.vocab_size and not self.data.vocabulary:
            chosen.append(f"the text is enough for a vocabulary of {size:,}, not {self.data.vocab_size:,} tokens")
        return [*chosen, *self.manifest.get("notes", []), *published.compared(self.data, self.manifest["splits"])]

    def split(self, name: str, kind: str = "pairs") -> Split:
        return self._read(name, kind)

    def labels(self, name: str) -> np.ndarray:
        """[rows] of a split of examples: which of manifest["labels"]."""
        self._shards(name, "examples")
        with self._opening(name):
            return np.load(self.folder / f"{name}.labels.npy")

    def documents(self, name: str) -> list[corpus.Shard]:
        return self._read(name, "documents")

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
            raise UserError(f"the data has no {name} split, only {', '.join(self.manifest['splits'])}")
        return self.manifest["splits"][name]["shards"]

    @contextlib.contextmanager
    def _opening(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise UserError(f"the {name} shards in {self.folder} are damaged ({error}): prepare them again") from None

    def directions(self, name: str) -> dict[str, int]:
        """Of many languages: the rows that each direction has of a split, one direction after another."""
        return dict(self.manifest.get("directions", {}).get(name, {}))

    def sentences(self, name: str, direction: str = "") -> list[Pair]:
        """The text of valid or test, row by row; of many languages that of one direction."""
        rows = self._text(name, direction)
        if rows and isinstance(rows[0], dict):  # the same sentences in all languages
            source, target = direction.split("-")
            return [(row[source], row[target]) for row in rows]
        return [(row[0], row[1]) for row in rows]

    def origins(self, name: str, direction: str) -> list[str]:
        """Where each pair of a direction is from, or nothing where that is not known."""
        rows = self._text(name, direction)
        return [row[2] for row in rows if isinstance(row, list) and len(row) == 3]

    def _text(self, name: str, direction: str) -> list[Any]:
        sizes = self.directions(name)
        if not sizes:
            self.split(name)  # says so if it does not exist
        lines = (self.folder / f"{name}.text.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        if direction and name in self.manifest["splits"]:
            before = itertools.takewhile(lambda other: other != direction, sizes)
            begin = sum(sizes[other] for other in before)
            lines = lines[begin : begin + sizes[direction]]
        return [json.loads(line) for line in lines]
