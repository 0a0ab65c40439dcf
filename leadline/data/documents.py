"""Documents: a source gives (number of the document, paragraph) in order, as a stream.

hf-documents:NAME_OR_PATH  the rows of a dataset's train split, a document each; its column `text`, a line a paragraph
documents:PATH  a file or a folder of files (all of them, in the order of their names); plain, .gz or .xz.
                A line is a paragraph. Blank lines separate documents; in a file that begins with a title
                `= Title =`, as Wikipedia and WikiText are often written, titles do and blank lines mean nothing
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from leadline.config import DataConfig
from leadline.data import hub
from leadline.data.remembered import fingerprint
from leadline.data.text import LONGEST, lines_of
from leadline.errors import UserError

Paragraph = tuple[int, str]  # the number of its document, from 0, and its text, which is not blank
TITLE = 1000  # characters; a longer line is no title

_TITLE = re.compile(r"\s*=\s*([^=\s](?:.*[^=\s])?)\s*=\s*")
_HEADING = re.compile(r"\s*(?:=\s*){2,}([^=]+?)(?:\s*=){2,}\s*")


class Text(Protocol):
    """What a source of any kind has."""

    config: DataConfig  # with the languages that the text has

    def fingerprint(self) -> str:
        """Changes when the text changes."""


class Divided(Text, Protocol):
    """Text that comes in splits."""

    def splits(self) -> tuple[str, ...]:
        """Those that exist: always train and valid."""

    def notes(self) -> list[str]:
        """What people should know of how it is read, a sentence each."""
        return []


class Documents(Text, Protocol):
    def paragraphs(self) -> Iterator[Paragraph]:
        """From the beginning; UserError where it is damaged."""


class TextDocuments:
    def __init__(self, path: Path, config: DataConfig) -> None:
        if not path.exists():
            raise UserError(f"data.source: {path} does not exist: give a text file or a folder of them")
        self.path, self.config = path, config
        inside = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
        self.files = inside if path.is_dir() else [path]
        if not self.files:
            raise UserError(f"data.source: the folder {path} holds no files")

    def fingerprint(self) -> str:
        return fingerprint(b"", [(f"{p.relative_to(self.path)} {p.stat().st_size} ", p) for p in self.files])

    def paragraphs(self) -> Iterator[Paragraph]:
        number = -1
        for path in self.files:
            for begins, text in _of_lines(lines_of(path, cut_at=LONGEST)):
                number += begins
                yield number, text


class HubDocuments:
    def __init__(self, name: str, config: DataConfig) -> None:
        self.name, self.config = name, config
        self.rows = hub.load(name, needed=("train",))["train"]
        if "text" not in self.rows.column_names:
            raise UserError(f"the dataset {name!r} has no column text, only {', '.join(self.rows.column_names)}")

    def fingerprint(self) -> str:
        return str(self.rows._fingerprint)

    def paragraphs(self) -> Iterator[Paragraph]:
        number = -1
        for row in self.rows:
            lines = [line.rstrip("\r") for line in (row["text"] or "").split("\n")]
            some = [line for line in lines if line and not line.isspace()]
            number += bool(some)
            yield from ((number, line) for line in some)


def _of_lines(lines: Iterator[str]) -> Iterator[tuple[bool, str]]:
    """(whether a document begins, paragraph) of one file."""
    titled: bool | None = None
    begins = True
    for line in lines:
        if not line or line.isspace():
            begins = begins or not titled
            continue
        marked = len(line) <= TITLE and line.lstrip().startswith("=")
        title = _TITLE.fullmatch(line) if marked else None
        if titled is None:
            titled = title is not None
        if titled and title:
            yield True, title[1]
        elif titled and marked and (heading := _HEADING.fullmatch(line)):
            yield begins, heading[1]
        else:
            yield begins, line
        begins = False
