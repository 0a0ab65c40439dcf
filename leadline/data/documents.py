"""Where documents come from. A source gives (number of the document, paragraph) in order, as a stream.

documents:PATH       a file or a folder of files (all of them, in the order of their names); plain, .gz or .xz.
                     A line is a paragraph. Blank lines separate documents; in a file that begins with a title
                     `= Title =`, as Wikipedia and WikiText are often written, titles do and blank lines mean nothing
builtin:python-docs  the English prose that every Python installation carries: pydoc's topics and the docstrings of the
                     standard library, whose modules are parsed and never imported
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from leadline.config import DataConfig
from leadline.data.text import lines_of
from leadline.errors import UserError

Paragraph = tuple[int, str]  # the number of its document, from 0, and its text, which is not blank
LONGEST = 1 << 20  # bytes; a longer line is several paragraphs

_TITLE = re.compile(r"\s*=\s*([^=\s](?:.*[^=\s])?)\s*=\s*")
_HEADING = re.compile(r"\s*(?:=\s*){2,}([^=]+?)(?:\s*=){2,}\s*")


class Documents(Protocol):
    def fingerprint(self) -> str:
        """Changes when the text changes."""

    def paragraphs(self) -> Iterator[Paragraph]:
        """From the beginning; UserError where it is damaged."""


def holds_documents(source: str) -> bool:
    """Of data.source: documents, and not pairs of sentences."""
    return source.startswith("documents:") or source == "builtin:python-docs"


def open_documents(config: DataConfig) -> Documents:
    if config.source == "builtin:python-docs":
        return PythonDocs()
    return TextDocuments(Path(config.source.removeprefix("documents:")).expanduser())


class TextDocuments:
    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise UserError(f"data.source: {path} does not exist: give a text file or a folder of them")
        self.path = path
        inside = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
        self.files = inside if path.is_dir() else [path]
        if not self.files:
            raise UserError(f"data.source: the folder {path} holds no files")

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for path in self.files:
            digest.update(f"{path.relative_to(self.path)} {path.stat().st_size} ".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()

    def paragraphs(self) -> Iterator[Paragraph]:
        number = -1
        for path in self.files:
            for begins, text in _of_lines(lines_of(path, LONGEST)):
                number += begins
                yield number, text


def _of_lines(lines: Iterator[str]) -> Iterator[tuple[bool, str]]:
    """(whether a document begins, paragraph) of one file."""
    titled: bool | None = None
    begins = True
    for line in lines:
        if not line or line.isspace():
            begins = begins or not titled
            continue
        title = _TITLE.fullmatch(line) if line.lstrip().startswith("=") else None
        if titled is None:
            titled = title is not None
        if titled and title:
            yield True, title[1]
        elif titled and (heading := _HEADING.fullmatch(line)):
            yield begins, heading[1]
        else:
            yield begins, line
        begins = False


class PythonDocs:
    """One document a topic, and one a module."""

    def __init__(self) -> None:
        self.made: list[Paragraph] = []  # less than 2 MB, read three times

    def fingerprint(self) -> str:
        return hashlib.sha256(Path(__file__).read_bytes() + sys.version.encode()).hexdigest()

    def paragraphs(self) -> Iterator[Paragraph]:
        if not self.made:
            documents = (list(prose(text)) for text in self._texts())
            self.made = [(n, paragraph) for n, found in enumerate(filter(None, documents)) for paragraph in found]
        return iter(self.made)

    def _texts(self) -> Iterator[str]:
        folder = Path(sysconfig.get_path("stdlib"))
        topics = folder / "pydoc_data" / "topics.py"
        if not topics.is_file():
            raise UserError(
                f"builtin:python-docs: this Python has no {topics}: give a text with data.source=documents:…"
            )
        for node in _parsed(topics).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                yield from ast.literal_eval(node.value).values()
        modules = {folder / f"{name}.py" for name in sys.stdlib_module_names}
        packages = {path for name in sys.stdlib_module_names for path in (folder / name).rglob("*.py")}
        for path in sorted(modules | packages):
            apart = {"test", "tests", "idle_test", "pydoc_data", "__pycache__"} & set(path.relative_to(folder).parts)
            if path.is_file() and not apart:
                yield "\n\n".join(_docstrings(_parsed(path)))


def _parsed(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old escapes in other people's strings
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # some packages carry examples of code that is wrong
            return ast.Module([], [])


def _docstrings(module: ast.Module) -> Iterator[str]:
    """In the order of the file."""
    nodes = [
        module,
        *(n for n in ast.walk(module) if isinstance(n, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)),
    ]
    for node in sorted(nodes, key=lambda n: getattr(n, "lineno", 0)):
        if text := ast.get_docstring(node):
            yield text


def prose(text: str) -> Iterator[str]:
    """The paragraphs of a hard-wrapped text, without code, tables and rules."""
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.split("\n") if re.search(r"\w", line)]
        if lines and not any(re.match(r"\s{3}|\s*(>>>|\.\.\.|\|)|.*::=", line) for line in lines[:2]):
            yield " ".join(" ".join(lines).split())
