"""The tutorials run: their blocks of bash and Python, in their order, each page in a folder of its own.

A comment right above a block says how the test runs it:

    <!-- test: --set train.updates=4 -->   these words are added to each command of the block that knows such options
    <!-- test: skip, it needs a GPU -->    its commands are only parsed
    <!-- test: file gated.py -->           it is written to that file
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from matplotlib.figure import Figure

from leadline.cli import app, keys
from leadline.jobs import finetune as tuning
from leadline.report import page

DOCS = Path(__file__).parent.parent / "docs"
PAGES = [DOCS / "install.md", *sorted((DOCS / "tutorials").glob("*.md"))]
BLOCK = re.compile(r"(?:<!-- test: ([^\n]*?) -->\n)?```(bash|python)\n(.*?)```", re.DOTALL)
OTHERS = ("git ", "make ", "source ")  # commands that are not ours


@dataclass(frozen=True)
class Block:
    hint: str
    language: str
    text: str


def blocks(tutorial: Path) -> list[Block]:
    return [Block(*match.groups(default="")) for match in BLOCK.finditer(tutorial.read_text(encoding="utf-8"))]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """(what is piped into it, its words) of every command of ours."""
    for line in text.replace("\\\n", " ").splitlines():
        *before, command = line.split(" #")[0].split(" | ")
        words = shlex.split(command)
        if "-m" in words:  # torchrun … -m leadline
            words = words[words.index("-m") + 1 :]
        if not words or command.startswith(OTHERS):
            continue
        assert words[0] == "leadline", command
        piped = " ".join(before)
        assert not piped or piped.startswith("echo "), line
        yield " ".join(shlex.split(piped)[1:]), words[1:]


def parsed(words: list[str]) -> Any:
    """The command as it was understood; nothing is run."""
    command, rest = typer.main.get_command(app), list(words)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    return command.make_context(" ".join(words), rest)


def lacks(text: str) -> bool:
    """The one package that a page needs and Leadline does not."""
    return "ctranslate2" in text and importlib.util.find_spec("ctranslate2") is None


def reduced(words: list[str], hint: str) -> list[str]:
    return [*words, *shlex.split(hint)] if hint and words[0] not in ("report", "translate") else words


@pytest.fixture(scope="module")
def text(documents: Path) -> str:
    return documents.read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, but for text where the pages say that the reader has some."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my" / "text").mkdir(parents=True)
    (tmp_path / "my" / "text" / "text.txt").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, in_process: Callable[..., None]) -> None:
    def execute(jobs: Any, root: Path, at_once: int, on_event: Any, on_finished: Any) -> None:
        in_process(jobs, root, at_once, on_event, on_finished)

    monkeypatch.setattr(tuning, "execute", execute)
    monkeypatch.setattr(page, "picture", lambda chart: Figure())  # a second of CPU for each chart, tested elsewhere


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", PAGES, ids=lambda path: path.stem)
def test_a_tutorial_runs(tutorial: Path, folder: Path, here: None, leadline: Callable[..., Any]) -> None:
    if tutorial.stem == "fairseq":
        exec(blocks(DOCS / "tutorials" / "translate.md")[0].text, {})  # its readers have text
    for block in blocks(tutorial):
        if block.hint.startswith("file "):
            (folder / block.hint.removeprefix("file ")).write_text(block.text, encoding="utf-8")
        elif block.language == "python" and not lacks(block.text):
            exec(compile(block.text, tutorial.name, "exec"), {"__name__": "tutorial"})
        elif block.language == "bash":
            for piped, words in commands(block.text):
                if block.hint.startswith("skip") or lacks(" ".join(words)):
                    assert parsed(words).params
                    continue
                run = [str(path) for word in words for path in (sorted(folder.glob(word)) if "*" in word else [word])]
                answer = leadline(*reduced(run, block.hint), stdin=f"{piped}\n".encode())
                assert answer.code == 0, f"{tutorial.name}: {' '.join(words)}: {answer.err}"
                assert answer.out.strip() or words[0] == "translate", words


def test_every_key_that_a_tutorial_names_exists() -> None:
    known = {key.key for key in keys.every()}
    sections = "|".join(sorted({key.partition(".")[0] for key in known if "." in key}))
    for tutorial in PAGES:
        named = re.findall(rf"`(?:--set )?((?:{sections})\.\w{{3,}})", tutorial.read_text(encoding="utf-8"))
        assert set(named) <= known, tutorial.name
