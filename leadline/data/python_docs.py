"""builtin:python-docs, the English prose that every Python installation carries, as documents.

They are pydoc's topics and the docstrings of the standard library, whose modules are parsed and never imported.
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

from leadline.config import DataConfig
from leadline.data.documents import Paragraph
from leadline.data.remembered import remembered
from leadline.errors import UserError


class PythonDocs:
    """One document a topic, and one a module."""

    def __init__(self, config: DataConfig) -> None:
        self.config = config
        self.made: list[Paragraph] = []  # less than 2 MB, read three times

    def fingerprint(self) -> str:
        """Remembered: to parse the whole library takes seconds, and every command that uses a run asks for it."""
        return str(remembered("fingerprint of builtin:python-docs", [Path(__file__), *_files()], self._fingerprint))

    def _fingerprint(self) -> str:
        return hashlib.sha256("".join(f"{number} {text}\n" for number, text in self.paragraphs()).encode()).hexdigest()

    def paragraphs(self) -> Iterator[Paragraph]:
        if not self.made:
            documents = (list(prose(text)) for text in self._texts())
            self.made = [(n, paragraph) for n, document in enumerate(filter(None, documents)) for paragraph in document]
        return iter(self.made)

    def _texts(self) -> Iterator[str]:
        topics, *modules = _files()
        for node in _parsed(topics).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                yield from ast.literal_eval(node.value).values()
        for path in modules:
            yield "\n\n".join(_docstrings(_parsed(path)))


def _files() -> list[Path]:
    """pydoc's topics, and the modules of the standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    topics = folder / "pydoc_data" / "topics.py"
    if not topics.is_file():
        raise UserError(f"builtin:python-docs: this Python has no {topics}: give a text with data.source=documents:…")
    modules = {folder / f"{name}.py" for name in sys.stdlib_module_names}
    packages = {path for name in sys.stdlib_module_names for path in (folder / name).rglob("*.py")}
    left_out = {"test", "tests", "idle_test", "pydoc_data", "__pycache__"}
    wanted = (path for path in sorted(modules | packages) if not left_out & set(path.relative_to(folder).parts))
    return [topics, *(path for path in wanted if path.is_file())]


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
