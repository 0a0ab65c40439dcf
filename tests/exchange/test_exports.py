"""python -m bench exports: what it takes as the cause of a difference is the cause."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from bench import exports
from leadline.config import Config
from leadline.exchange.export import export
from leadline.training.trained import Trained
from tests.exchange.test_translators import run_of, that_ends

pytest.importorskip("transformers")
pytest.importorskip("ctranslate2")

SOURCES = [[5, 6, 7, 30], [9, 60, 61], [33, 8, 70, 71, 20, 21], [44]]


@pytest.fixture(scope="module")
def trained() -> Trained:
    return that_ends(run_of(placement="pre_ln", positions="learned", max_length=12))


def unlimited(trained: Trained) -> Config:
    return trained.config.set(decode={"max_ratio": 900.0})


@pytest.mark.parametrize("tool", ["leadline", *exports.TOOLS])
def test_the_plain_search_writes_what_each_tool_does_up_to_its_end(tool: str, trained: Trained, tmp_path: Path) -> None:
    lines = [trained.tokenizer.decode([source])[0] for source in SOURCES]
    sources = trained.tokenizer.encode(lines, "de")
    if tool == "leadline":
        whole = Trained(unlimited(trained), trained.model, trained.tokenizer, "last")
        written = whole.translator()._search(sources, lambda done: None)
    else:
        to, translate = exports.TOOLS[tool]
        export(tmp_path / "none", trained, tmp_path / to, to)
        written = translate(trained, tmp_path / to, lines)
    assert max(map(len, written)) >= 11  # some reach the end, where the tools differ
    exact = copy.deepcopy(trained.model).double()
    assert [exports.search(exact, trained, source, tool) for source in sources] == written


def test_causes(trained: Trained) -> None:
    exact = copy.deepcopy(trained.model).double()
    ours, theirs, cut = (exports.search(exact, trained, SOURCES[0], tool) for tool in ("leadline", *exports.TOOLS))
    assert ours != theirs != cut
    assert exports.cause(exact, trained, "transformers", SOURCES[0], ours, ours) == "limit"
    assert exports.cause(exact, trained, "transformers", SOURCES[0], ours, [5, 5, 5]) == "unexplained"
    assert exports.cause(exact, trained, "transformers", SOURCES[0], ours, theirs) == "end"
