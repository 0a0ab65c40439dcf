"""The README's examples run as written, but for the number of updates; its commands exist with those options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from leadline.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "docs" / "guide.md", ROOT / "docs" / "results.md"]


def blocks(language: str, page: Path) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("example", blocks("python", PAGES[1]))
def test_python_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    short = example.replace('"updates": 400', '"updates": 3')
    assert "train={" not in example or short != example
    exec(compile(short, "guide.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.strip()


def commands() -> list[str]:
    lines = [
        line for page in PAGES for block in blocks("bash", page) for line in block.replace("\\\n", " ").splitlines()
    ]
    parts = [part.strip() for line in lines for part in line.split("|")]
    return [part.split("  #")[0].replace("$D", "") for part in parts if part.startswith("leadline ")]


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= 140


def test_there_are_commands_to_check() -> None:
    assert len(commands()) >= 8


@pytest.mark.parametrize("line", commands())
def test_command_and_its_options_exist(line: str) -> None:
    command, words = typer.main.get_command(app), shlex.split(line)[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    context = command.make_context(line, words)  # parses, and runs nothing
    assert context.params


def test_the_table_of_claims_is_what_the_figures_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails: python docs/make_claims.py"""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import make_claims

    assert make_claims.page() == PAGES[2].read_text(encoding="utf-8")
