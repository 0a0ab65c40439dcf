"""What a notebook shows: small, escaped, in colours of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import leadline
from leadline import config as configuration
from leadline import notebook
from leadline.config import Config
from leadline.diagnose.faults import Finding
from leadline.diagnose.inspection import Inspection
from leadline.diagnose.verdict import Verdict
from leadline.errors import UserError
from leadline.training.trained import load

EVIL = "<script>alert(1)</script>"


class Tags(HTMLParser):
    """Balanced tags, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.kinds: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.kinds.append(tag)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_parts_escape_what_they_are_given() -> None:
    made = notebook.card(
        EVIL, [notebook.paragraph(EVIL), notebook.points(EVIL, [EVIL]), notebook.table([EVIL], [[EVIL]])]
    )
    tags = Tags(made)
    assert "script" not in tags.kinds
    assert tags.texts.count(EVIL) == 6
    assert notebook.points("nothing", []) == ""


def test_an_inspection_says_the_same_as_when_it_is_printed() -> None:
    verdict = Verdict("does not train", False, 0.1, 0.01, 0, 0.0, None, "encoder.0", ["tokens: alike"], ["lower it"])
    found = Inspection(EVIL, [], [Finding("wrong_alpha", "encoder.0", f"α {EVIL}", places=2)], [], verdict, {})
    tags = Tags(found._repr_html_())
    assert "script" not in tags.kinds
    said = [line.strip().removeprefix("because ").removeprefix("to do: ") for line in str(found).splitlines()]
    assert f"wrong: encoder.0 (2 places): α {EVIL}" in said
    assert set(said) - set(tags.texts) == {"in the first step the residual stream changes most from encoder.0 on"}


def test_a_run(finished: Path) -> None:
    trained = load(finished)
    tags = Tags(trained._repr_html_())
    weights = sum(p.numel() for p in trained.model.parameters())
    assert f"{weights:,} of checkpoint {trained.checkpoint}" in tags.texts
    assert {"1-1, width 16", "builtin:numerals"} <= set(tags.texts)
    evil = replace(trained, config=trained.config.set(data={"source": f"text:{EVIL}"}))
    assert "script" not in Tags(evil._repr_html_()).kinds


def make_run(folder: Path, losses: list[float], **sections: Any) -> Path:
    folder.mkdir()
    (folder / "config.toml").write_text(configuration.to_toml(Config().set(**sections)), encoding="utf-8")
    rows = [{"update": i, "loss": loss, "valid_nll": loss} for i, loss in enumerate(losses, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_runs_are_compared(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", [3.0, 2.0], optim={"lr": 1e-3})
    two = make_run(tmp_path / "two <b>", [4.0, 3.0], optim={"lr": 2e-3})
    compared = leadline.compare(one, str(two))
    assert [row["best valid loss"] for row in compared.rows] == [2.0, 3.0]
    assert compared.differing[0].rows == [["optim.lr", "0.001", "0.002"]]
    lines = str(compared).splitlines()
    assert lines[2].split()[:2] == ["one", "pre_ln"]
    assert lines[-1].split() == ["optim.lr", "0.001", "0.002"]
    tags = Tags(compared._repr_html_())
    assert tags.kinds.count("img") == 1
    assert "b" not in tags.kinds
    assert "two <b>" in tags.texts
    assert len(compared._repr_html_()) < 100_000
    assert leadline.compare(one).differing == []
    with pytest.raises(UserError, match="name one run"):
        leadline.compare()


def test_losses_of_other_tasks_are_not_in_one_picture(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", [3.0])
    other = make_run(tmp_path / "other", [3.0], data={"source": "builtin:numerals-of-another-kind"})
    assert len(leadline.compare(one, other).losses) == 2
