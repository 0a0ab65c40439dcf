"""python -m bench exports: what it takes as the cause of a difference is the cause."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from bench import exports, exports_alone
from leadline.config import Config, DataConfig
from leadline.data.tokenizer import Tokenizer, learn
from leadline.exchange.export import export
from leadline.training.trained import Trained
from tests.exchange import test_decoders, test_huggingface
from tests.exchange.test_decoders import MODERN
from tests.exchange.test_translators import run_of, that_ends, tokenizer_of

pytest.importorskip("transformers")
pytest.importorskip("ctranslate2")

SOURCES = [[5, 6, 7, 30], [9, 60, 61], [33, 8, 70, 71, 20, 21], [44]]


@pytest.fixture(scope="module")
def trained() -> Trained:
    return that_ends(run_of(placement="pre_ln", positions="learned", max_length=12))


@pytest.fixture(scope="module", params=["source", "target"])
def into_german(request: pytest.FixtureRequest) -> Trained:
    many = tokenizer_of(directions=("de-en", "en-de"), tag=request.param)
    return that_ends(run_of(many, placement="post_ln", positions="learned", max_length=12)).into("de")


def unlimited(trained: Trained) -> Config:
    return trained.config.set(decode={"max_ratio": 900.0})


@pytest.mark.parametrize("tool", ["leadline", *exports.TOOLS])
def test_the_plain_search_writes_what_each_tool_does_up_to_its_end(tool: str, trained: Trained, tmp_path: Path) -> None:
    searches_alike(tool, trained, tmp_path)


@pytest.mark.parametrize("tool", ["leadline", *exports.TOOLS])
def test_the_plain_search_knows_the_tags_of_many_languages(tool: str, into_german: Trained, tmp_path: Path) -> None:
    searches_alike(tool, into_german, tmp_path)


def searches_alike(tool: str, trained: Trained, tmp_path: Path) -> None:
    lines = [trained.tokenizer.decode([source])[0] for source in SOURCES]
    sources = [exports.before(trained) + source for source in trained.tokenizer.encode(lines, "de")]
    if tool == "leadline":
        whole = Trained(unlimited(trained), trained.model, trained.tokenizer, "last")
        written = whole.translator()._search(sources, lambda done: None, [exports.start(trained)] * len(sources))
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


def english(**data: Any) -> Tokenizer:
    config = DataConfig(source_lang="en", target_lang="en", **data)
    return Tokenizer(learn(["the lead line sounds the depth of the sea\n"] * 9, config, documents=True), config)


@pytest.mark.parametrize("options", [{"positions": "learned"}, MODERN | {"qk_norm": "head"}], ids=["opt", "qwen3"])
def test_language_models_are_compared_token_by_token(options: dict, tmp_path: Path) -> None:
    tokenizer = english(tokenizer="byte_bpe", vocab_size=262)
    trained = test_decoders.run_of(tokenizer, max_length=80, **options)
    text = tmp_path / "text"
    text.write_text(f"the lead line\n\nthe sea\nthe sea\ndepth\n{'longword' * 40}\n", encoding="utf-8")
    (row,) = exports_alone.run(tmp_path / "none", trained, text, 9)
    assert (row["sentences"], row["same_prompt"], row["by_unexplained"]) == (3, 3, 0)
    assert row["same"] + row["by_tie"] == 3
    assert row["written"] >= 3

    prompt, end = [tokenizer.end_of_text, 5], tokenizer.end_of_text
    log_p = exports_alone.next_token(trained, [*prompt, 7])
    assert exports_alone.gap(trained, prompt, [7, 8], [7]) == pytest.approx(abs(float(log_p[8] - log_p[end])))


@pytest.mark.parametrize("placement", ["post_ln", "pre_ln"])
def test_encoders_are_compared_number_by_number(placement: str, tmp_path: Path) -> None:
    trained = test_huggingface.run_of(english(lowercase=True, vocab_size=60), placement=placement, head="bert")
    text = tmp_path / "text"
    text.write_text("the lead line\n\nthe sea\n", encoding="utf-8")
    (row,) = exports_alone.run(tmp_path / "none", trained, text, 9)
    assert (row["sentences"], row["same"]) == (2, 2)
    assert 0 < row["apart"] < 1e-4 < row["largest_number"]
