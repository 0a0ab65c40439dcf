"""Where data comes from: `data.source` as a value, and one table of its kinds.

A kind holds pairs, documents or examples. What each of those is made of, how it becomes tokens and how it is read again
stands in `FORMS`; adding a source is a line in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from leadline.config import DataConfig
from leadline.data import corpus, labelled, parallel
from leadline.data.documents import HubDocuments, TextDocuments
from leadline.data.many import many_folder, many_numerals
from leadline.data.pairs import HuggingFace, Numerals, TextFolder
from leadline.data.python_docs import PythonDocs
from leadline.data.tables import SameMeaning, Table
from leadline.errors import UserError
from leadline.files import Facts


@dataclass(frozen=True)
class Form:
    """What data is made of."""

    words: str  # for people
    needed: str  # how a user gives such data
    build: Callable[[Path, DataConfig, Any, Any], Facts]  # fill a folder; what its manifest says
    read: Callable[[Path, str, Any], Any]  # a split of such a folder
    lines: Callable[[Any], Iterator[str]]  # the text that is learnt from, to look at
    resumes: bool = False  # a preparation that was killed is gone on with


FORMS = {
    "pairs": Form("pairs of sentences", "text:FOLDER", parallel.build, parallel.read, parallel.lines),
    "documents": Form("documents", "documents:PATH", corpus.build, corpus.read, corpus.lines, resumes=True),
    "examples": Form("labelled text", "table:PATH", labelled.build, parallel.read, labelled.lines),
}


@dataclass(frozen=True)
class Source:
    """`kind:place`, or the name of a builtin one, which has no place."""

    kind: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}" if self.place else self.kind

    @property
    def path(self) -> Path:
        return Path(self.place).expanduser()

    @property
    def holds(self) -> str:
        """A name of FORMS, or "" where only the folder says."""
        return KINDS[self.kind].holds

    def open(self, config: DataConfig) -> Any:
        """Its text, to be read: what its form's `build` takes."""
        return KINDS[self.kind].open(self, config)

    def absolute(self) -> Source:
        """The same from any current folder."""
        named = KINDS[self.kind].place
        is_path = named and (named != HUB or Path(self.place.partition("#")[0]).expanduser().exists())
        return Source(self.kind, str(self.path.absolute())) if is_path else self


@dataclass(frozen=True)
class Kind:
    holds: str
    open: Callable[[Source, DataConfig], Any]
    place: str = ""  # what stands behind the colon, for people; "": nothing does


def _prepared(source: Source, _: DataConfig) -> NoReturn:
    raise UserError(f"data.source={source} is prepared: its text is not there")


def _imported(source: Source, _: DataConfig) -> NoReturn:
    raise UserError(
        f"this run was imported from {source.place} and has no data: give it some with "
        "--set data.source=documents:PATH (text:FOLDER for translation, table:PATH for classification)"
    )


def _numerals(config: DataConfig) -> Any:
    return many_numerals(config) if config.directions else Numerals(config)


def _one_pair(config: DataConfig) -> DataConfig:
    if config.directions:
        raise UserError(
            f"data.directions is for many languages, and data.source={config.source} is one pair: use many:FOLDER, "
            "or data.source_lang and data.target_lang"
        )
    return config


HUB = "NAME_OR_PATH"
KINDS = {
    "builtin:numerals": Kind("pairs", lambda source, config: _numerals(config)),
    "text": Kind("pairs", lambda source, config: TextFolder(source.path, _one_pair(config)), "FOLDER"),
    "many": Kind("pairs", lambda source, config: many_folder(source.path, config), "FOLDER"),
    "hf": Kind("pairs", lambda source, config: HuggingFace(source.place, _one_pair(config)), HUB),
    "builtin:python-docs": Kind("documents", lambda source, config: PythonDocs(config)),
    "documents": Kind("documents", lambda source, config: TextDocuments(source.path, config), "PATH"),
    "hf-documents": Kind("documents", lambda source, config: HubDocuments(source.place, config), HUB),
    "builtin:same-meaning": Kind("examples", lambda source, config: SameMeaning(config)),
    "table": Kind("examples", lambda source, config: Table(source.path, config), "PATH"),
    "prepared": Kind("", _prepared, "FOLDER"),
    "imported": Kind("", _imported, "FOLDER"),
}


def parse(text: str) -> Source:
    """data.source as a value; UserError where it is none."""
    kind, _, place = text.partition(":")
    if text in KINDS and not KINDS[text].place:
        return Source(text)
    if kind in KINDS and KINDS[kind].place and place.strip():
        return Source(kind, place)
    if text.strip() and Path(text).expanduser().exists():
        raise UserError(
            f"data.source={text!r} does not say what is there: text:{text} for pairs of sentences (many:{text} of many "
            f"languages), documents:{text} for plain text, table:{text} for labelled text"
        )
    raise UserError(f"data.source={text!r} is not a source: use {'; '.join(_choices())}; or prepared:FOLDER")


def _choices() -> Iterator[str]:
    for name, form in FORMS.items():
        kinds = [f"{k}:{kind.place}" if kind.place else k for k, kind in KINDS.items() if kind.holds == name]
        yield f"{', '.join(kinds)} for {form.words}"


def open_source(config: DataConfig) -> Any:
    """The text that data.source names, to be read."""
    return parse(config.source).open(config)
