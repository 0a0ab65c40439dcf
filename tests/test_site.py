"""Links between the pages lead somewhere, on GitHub and on the site, and the site has every page."""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leadline

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "docs"))
import make_site  # noqa: E402

PAGES = make_site.pages()


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub names them."""
    seen: Counter[str] = Counter()
    found = set()
    for line in make_site.outside_code(text):
        if match := re.match(r"#+ (.+)", line):
            words = re.sub(r"\]\([^)]*\)", "", match[1]).lower()
            name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            found.add(name if not seen[name] else f"{name}-{seen[name]}")
            seen[name] += 1
    return found


def entries(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for value in nav if isinstance(nav, list) else nav.values():
            yield from entries(value)


@pytest.fixture(scope="module")
def uris() -> list[str]:
    return list(entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    for link in make_site.links(text_of(page)):
        if re.match("[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.is_file(), f"{page}: {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page}: {link}"


@pytest.mark.parametrize("page", PAGES)
def test_on_the_site_every_link_leads_to_something_that_is_there(page: str, uris: list[str]) -> None:
    there = {*uris, *(f"source/{path}" for path in make_site.sources())}
    there |= {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*") if path.suffix != ".md"}
    at = Path(make_site.uri_of(page)).parent
    for link in make_site.links(make_site.turned(text_of(page), page)):
        if not re.match("[a-z]+:|#", link):
            target = make_site.os.path.normpath(at / link.partition("#")[0])
            assert target in there, f"{page}: {link}"


def test_the_navigation_has_every_page_once(uris: list[str]) -> None:
    assert sorted(uris) == sorted([*map(make_site.uri_of, PAGES), *make_site.GENERATED])


def test_what_comes_from_the_code_is_complete() -> None:
    commands, keys, python = make_site.commands(), make_site.keys(), make_site.python()
    assert set(make_site.ORDER) <= set(leadline.__all__)
    assert all(f'heading: "leadline.{name}"' in python for name in leadline.__all__)
    assert "## leadline data prepare" in commands
    assert "| `--live` | Serve the page" in commands
    assert "| `optim.momentum` | `0.0` | Of sgd. |" in keys
    assert "## numerals" in make_site.recipes()
    assert "::: leadline.training.trained.load\n" in python
    assert "::: leadline.recipes\n" in python
    assert "::: leadline.diagnose.inspect.inspect\n" in python


def test_what_is_checked_on_is_what_is_promised() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text(encoding="utf-8"))
    pythons = workflow["jobs"]["check"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [f"Programming Language :: Python :: {python}" for python in pythons] == [
        each for each in project["classifiers"] if "Python :: 3." in each
    ]
    assert project["requires-python"] == f">={pythons[0]}"
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert runs == ["make check", "make docs"]
    assert " g++ " in (ROOT / "Dockerfile").read_text(encoding="utf-8")  # torch.compile on CPUs raises without it


def test_lists_begin_after_a_blank_line() -> None:
    """Else the site shows them as one paragraph."""
    for page in PAGES:
        before = ""
        for line in make_site.outside_code(text_of(page)):
            if re.match(r"(- |\d+\. )", line):
                assert not before.strip() or re.match(r"(- |\d+\. |  )", before), f"{page}: {line}"
            before = line


def test_what_lies_outside_the_documents_is_turned() -> None:
    text = "[a](../README.md#b) [c](guide.md) ![d](results/e.png) [f](../leadline/world.py) [g](https://h)\n```\n[i](../j)\n```\n"
    turned = make_site.turned(text, "docs/tutorials/../page.md")
    assert turned.startswith(
        "[a](index.md#b) [c](guide.md) ![d](results/e.png) [f](source/leadline/world.py) [g](https://h)"
    )
    assert "[i](../j)" in turned
    assert make_site.turned("[a](../../CONTRIBUTING.md)", "docs/tutorials/x.md") == "[a](../contributing.md)\n"
    assert make_site.turned("[a](docs/guide.md)", "README.md") == "[a](guide.md)\n"
