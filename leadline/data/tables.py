"""Labelled text: a source gives examples of a split, a text or two and a label, as a stream.

table:PATH            a file of rows with named columns, or a folder with files train, valid (or dev, validation) and
                      test: .tsv (no quotes, as GLUE's), .csv, .jsonl; plain, .gz or .xz; or with MRPC's original
                      msr_paraphrase_train.txt and msr_paraphrase_test.txt. The columns are data.first, data.second
                      ("" where an example is one text) and data.label; those of MRPC are known
builtin:same-meaning  do two expressions of a number, a date or an amount mean the same? Made on the spot
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from leadline.config import DataConfig
from leadline.data import numerals, same_meaning
from leadline.data.documents import Divided
from leadline.data.holdout import held_out
from leadline.data.remembered import fingerprint
from leadline.data.text import lines_of
from leadline.errors import UserError, nearest

NAMES = {"train": ("train",), "valid": ("valid", "dev", "validation"), "test": ("test",)}
MRPC_FILES = {"train": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"}  # the original ones
MRPC_COLUMNS = {"sentence1": "#1 String", "sentence2": "#2 String", "label": "Quality"}  # in those and in GLUE's
KINDS = (".tsv", ".csv", ".jsonl", ".ndjson", ".json")


class Example(NamedTuple):
    first: str
    second: str  # "" where there is only one text
    label: str
    where: str  # it stands, for people


class Examples(Divided, Protocol):
    def examples(self, split: str) -> Iterator[Example]:
        """The split from its beginning; UserError where it is damaged."""


class SameMeaning(Examples):
    def __init__(self, config: DataConfig) -> None:
        self.config = config
        self.sizes = {"train": config.size, "valid": 500, "test": 500}

    def fingerprint(self) -> str:
        code = b"".join(Path(str(module.__file__)).read_bytes() for module in (numerals, same_meaning))
        return hashlib.sha256(code).hexdigest()

    def splits(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    def examples(self, split: str) -> Iterator[Example]:
        language, size = self.config.source_lang, self.sizes[split]
        if language not in numerals.LANGUAGES:
            raise UserError(f"data.source_lang={language!r}: {nearest(language, numerals.LANGUAGES)}")
        for number, texts in enumerate(same_meaning.pairs(language, split, size, self.config.seed), 1):
            yield Example(*texts, f"{split}, example {number}")


class Table:
    def __init__(self, path: Path, config: DataConfig) -> None:
        if not path.exists():
            raise UserError(
                f"data.source: {path} does not exist: give a .tsv, .csv or .jsonl file, or a folder of them"
            )
        self.path, self.config = path, config
        self.columns = [name for name in (config.first, config.second, config.label) if name]
        files = {split: _find(path, split) for split in NAMES} if path.is_dir() else {"train": path}
        self._own = {split: file for split, file in files.items() if file}
        if "train" not in self._own:
            raise UserError(f"{path} has no train.tsv, train.csv or train.jsonl (nor .gz, .xz of them)")
        if "valid" not in self._own and not config.holdout:
            raise UserError(
                f"{path} has no examples for validation: add a valid or dev file to a folder, or hold some out of "
                "train with data.holdout=500"
            )
        self._held = [split for split in ("valid", "test") if config.holdout and not files.get(split)]
        self._unlabelled = None
        if "test" in self._own and config.label not in next(rows_of(self._own["test"]), (0, {}))[1]:
            self._unlabelled = self._own.pop("test")  # as GLUE gives them out

    def splits(self) -> tuple[str, ...]:
        return tuple(split for split in NAMES if split in self._own or split in self._held)

    def notes(self) -> list[str]:
        notes = []
        if self._unlabelled:
            notes.append(f"{self._unlabelled.name} has no labels and is left out: there is no test split")
        if "valid" in self._held:
            train = self._own["train"].name
            notes.append(
                f"valid is {self.config.holdout} examples of {train} chosen by data.seed, not a file of its own"
            )
        return notes

    def fingerprint(self) -> str:
        start = b"test is unlabelled" if self.config.holdout and self._unlabelled else b""
        return fingerprint(start, [(f"{split} {path.suffixes} ", path) for split, path in self._own.items()])

    def examples(self, split: str) -> Iterator[Example]:
        if split in self._own and not (split == "train" and self._held):
            return self._read(self._own[split])
        return held_out(
            split, self._held, lambda: self._read(self._own["train"]), self.config, f"examples in {self.path}"
        )

    def _read(self, path: Path) -> Iterator[Example]:
        count = 0
        for line, row in rows_of(path):
            count += 1
            for column in self.columns:
                if column not in row:
                    key = next(key for key in ("first", "second", "label") if getattr(self.config, key) == column)
                    names = [name if len(name) <= LONG else f"{name[:LONG]}…" for name in row]
                    raise UserError(
                        f"{path}, line {line}: there is no column {column!r} (the first line names the columns): set "
                        f"data.{key}; {nearest(column, names)}"
                    )
            label = row[self.config.label].strip()
            if not label:
                raise UserError(
                    f"{path}, line {line}: the column {self.config.label!r} is empty: every example needs it"
                )
            second = row[self.config.second] if self.config.second else ""
            yield Example(row[self.config.first], second, label, f"{path}, line {line}")
        if not count:
            raise UserError(
                f"{path} has no examples: it is empty" + ("" if _kind(path) in JSON else " but for its header")
            )


LONG = 30  # characters of a column's name that are shown
JSON = (".jsonl", ".ndjson", ".json")


def _find(folder: Path, split: str) -> Path | None:
    names = [f"{name}{kind}" for name in NAMES[split] for kind in KINDS]
    names += [MRPC_FILES[split]] if split in MRPC_FILES else []
    candidates = (folder / f"{name}{packed}" for name in names for packed in ("", ".gz", ".xz"))
    return next((path for path in candidates if path.is_file()), None)


def _kind(path: Path) -> str:
    name = path.name.removesuffix(".gz").removesuffix(".xz")
    return ".tsv" if name in MRPC_FILES.values() else Path(name).suffix.lower()


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, text by column) of each row; blank lines are none."""
    kind = _kind(path)
    if kind in JSON:
        return _json_rows(path)
    if kind not in KINDS:
        raise UserError(f"{path} is neither .tsv nor .csv nor .jsonl: rename it to what it is")
    return _headed_rows(path, _quoted(path) if kind == ".csv" else _plain(path))


def _plain(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines_of(path), 1):
        if line.strip():
            yield number, line.split("\t")


def _quoted(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for line in lines_of(path)), strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not CSV ({error})") from None


def _headed_rows(path: Path, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, dict[str, str]]]:
    _, header = next(rows, (0, []))
    for line, fields in rows:
        if len(fields) != len(header):
            raise UserError(f"{path}, line {line}: {len(fields)} columns, and the header has {len(header)}")
        yield line, _usual(dict(zip(header, fields, strict=True)))


def _usual(row: dict[str, str]) -> dict[str, str]:
    """A row of MRPC with the usual names of its columns beside its own."""
    if "#1 String" not in row:
        return row
    return {usual: row[name] for usual, name in MRPC_COLUMNS.items() if name in row} | row


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(lines_of(path), 1):
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not JSON ({error}): write one object a line") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: not a JSON object of columns")
        plain = {key: value for key, value in row.items() if isinstance(value, str | int | float | bool)}
        yield number, {key: v if isinstance(v, str) else json.dumps(v) for key, v in plain.items()}
