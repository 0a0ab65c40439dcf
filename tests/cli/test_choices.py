"""What there is to choose is listed from where it is declared, and options of other tools lead to ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leadline import config as configuration
from leadline import recipes
from leadline.cli import keys
from leadline.config import Config
from leadline.model import Transformer

Leadline = Callable[..., Any]


def test_every_key_is_listed_with_its_default_and_a_meaning(leadline: Leadline) -> None:
    rows = {row["key"]: row for row in json.loads(leadline("keys", "--json").out)}
    declared = {
        f"{section}.{key}" if isinstance(options, dict) else section: value
        for section, options in configuration.to_dict(Config()).items()
        for key, value in (options.items() if isinstance(options, dict) else [("", options)])
    }
    assert {key: row["default"] for key, row in rows.items()} == declared
    assert [key for key, row in rows.items() if not row["meaning"]] == []
    assert rows["optim.clip"]["meaning"] == "largest gradient norm; 0: no clipping"
    assert rows["train.precision"]["choices"] == ["auto", "fp32", "bf16"]


def test_the_meaning_of_a_field_is_its_comment() -> None:
    @dataclass
    class Options:
        # above it
        # on two lines
        first: int = 1  # and behind
        second: str = "#"
        third: int = 3  # the third

    assert keys.comments(Options) == {"first": "above it on two lines and behind", "second": "", "third": "the third"}


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("optim.lr", "optim.lr"), ("Learning rate", "optim.lr"), ("learning-rate", "optim.lr"),
        ("batch-size", "train.batch_tokens"), ("cosine", "optim.schedule"), ("gradient_norm", "optim.clip"),
    ],
)  # fmt: skip
def test_keys_are_searched_by_name_choice_and_meaning(word: str, key: str, leadline: Leadline) -> None:
    answer = leadline("keys", word)
    assert key in answer.out
    assert len(answer.out) < len(leadline("keys").out) / 2


def test_a_word_that_no_key_has_is_one_sentence(leadline: Leadline) -> None:
    answer = leadline("keys", "xyzzy")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "leadline: no key has 'xyzzy' in its name or meaning: leadline keys lists them all\n"


@pytest.mark.parametrize(
    ("option", "ours"),
    [
        ("--lr", "--set optim.lr=…"), ("--learning-rate", "--set optim.lr=…"), ("--learning_rate", "--set optim.lr=…"),
        ("--batch-size", "--set train.batch_tokens=…"), ("--epochs", "--set train.epochs=…"),
        ("--max-steps", "--set train.updates=…"), ("--dropout", "--set model.dropout=…"), 
        ("--model", "the recipe or run first, as in leadline"), ("--data", "--set data.source=text:FOLDER"),
        ("--gpus", "torchrun --nproc-per-node"), ("--config", "leadline train config.toml"),
        ("--output-dir", "--out FOLDER"), ("--average", "--checkpoint average:K"),
    ],
)  # fmt: skip
def test_an_option_of_another_tool_names_ours(option: str, ours: str, leadline: Leadline) -> None:
    answer = leadline("train", "numerals", option, "8")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"leadline: there is no {option}: ")
    assert ours in answer.err
    assert answer.err.count("\n") == 1


def test_names_of_other_tools_lead_to_keys_that_exist() -> None:
    assert set(keys.ELSEWHERE.values()) <= {key.key for key in keys.every()}


def test_what_decides_whether_a_key_is_read_are_keys_and_their_choices() -> None:
    known = {key.key: key for key in keys.every()}
    for start, (decides, words) in keys.READ_WITH.items():
        assert [key for key in known if key.startswith(start)], start
        assert not known[decides].choices or set(words) <= set(known[decides].choices), start
    assert keys.unused(recipes.find("numerals"), ["optim.betas", "decode.beam", "train.seed"]) == ""


@pytest.mark.parametrize("arguments", [["trian"], ["train", "--nothing"], ["keys", "a", "b"], ["evaluate"]])
def test_what_does_not_exist_is_one_sentence(arguments: list[str], leadline: Leadline) -> None:
    answer = leadline(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("leadline: ")
    assert answer.err.endswith("--help)\n")
    assert answer.err.count("\n") == 1


def test_without_a_command_the_help_is_shown_and_one_is_asked_for(leadline: Leadline) -> None:
    answer = leadline()
    assert (answer.code, answer.err) == (2, "leadline: name a command (see leadline --help)\n")
    assert "demo" in answer.out


@pytest.mark.parametrize("name", ["config.yaml", "config.yml", "config.json"])
def test_a_config_that_is_no_toml_is_told_so(
    name: str, leadline: Leadline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("{}")
    answer = leadline("train", name)
    assert answer.code == 2
    assert answer.err.startswith(f"leadline: {name} is not TOML: ")


def test_every_recipe_is_listed_with_its_purpose_and_size(leadline: Leadline) -> None:
    rows = json.loads(leadline("recipes", "--json").out)
    assert [row["recipe"] for row in rows] == list(recipes.RECIPES)
    for row in rows:
        assert len(row["purpose"]) > 20, row
        if row["recipe"] in ("numerals", "bert_small_pre_ln", "same_meaning", "lm_small_pre_ln"):  # quickly built
            config = recipes.find(row["recipe"])
            model = Transformer(config.data.vocab_size, **configuration.to_dict(config.model))
            assert row["parameters"] == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.01), row
    assert "numerals" in leadline("recipes").out
    sizes = {row["recipe"]: row["parameters"] for row in rows}
    assert sizes["gpt2_124m"] == pytest.approx(124_439_808, rel=1e-3)  # as published
    assert sizes["llama_124m"] == pytest.approx(sizes["gpt2_124m"], rel=0.01)


def test_the_figures_are_listed_as_json(leadline: Leadline) -> None:
    rows = json.loads(leadline("reproduce", "list", "--json").out)
    assert {"name", "title"} == rows[0].keys()
    assert rows[0]["title"].split()[0] in leadline("reproduce", "list").out


def test_the_version_is_that_of_the_package(leadline: Leadline) -> None:
    import leadline as package

    answer = leadline("--version")
    assert (answer.code, answer.out) == (0, f"leadline {package.__version__}\n")
