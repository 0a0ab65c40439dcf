"""Many languages in one model: where the tag is, how often a direction is drawn, what is scored."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leadline as package
from leadline import config as configuration
from leadline.config import Config
from leadline.data.identifier import Identifier
from leadline.data.sampling import counts
from leadline.data.store import Store, prepare
from leadline.data.tokenizer import BOS, EOS, PAD, tag
from leadline.errors import UserError
from leadline.tasks.translation import Translation
from leadline.training.loop import resume, train

WORDS = {"de": "eins zwei drei vier", "fr": "un deux trois quatre", "en": "one two three four"}
SIZES = {"train.de-en": 200, "train.fr-en": 30, "valid.de-en": 6, "valid.fr-en": 6, "test.de-en": 8, "test.fr-en": 8}


def lines(language: str, count: int) -> list[str]:
    words = WORDS[language].split()
    return [" ".join(words[(i * 7 // 4**k) % 4] for k in range(1 + i % 2)) for i in range(count)]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("many")
    for name, count in (SIZES | {"zero.de-fr": 8}).items():
        for language in name.split(".")[1].split("-"):
            (folder / f"{name}.{language}").write_text("\n".join(lines(language, count)), encoding="utf-8")
    (folder / "test.de-en.origin").write_text("web\n" * 6 + "book\n" * 2)
    for language in WORDS:
        (folder / f"flores.{language}").write_text("\n".join(lines(language, 5)), encoding="utf-8")
    return Config().set(
        model={"encoder_layers": 1, "decoder_layers": 1, "dim": 32, "ffn_dim": 64, "heads": 2, "max_length": 24}
        | {"dropout": 0.0},
        data={"source": f"many:{folder}", "vocab_size": 310, "temperature": 5.0},
        optim={"lr": 1e-2, "schedule": "constant"},
        train={"epochs": 0, "updates": 70, "batch_tokens": 192, "precision": "fp32", "device": "cpu"}
        | {"eval_every": 35, "bleu_sentences": 8, "label_smoothing": 0.0},
        decode={"beam": 1},
    )


def task_of(config: Config) -> Translation:
    store = Store(prepare(config.data))
    return Translation(config.set(data={"directions": list(store.data.directions), "target_lang": ""}), store)


@pytest.fixture(scope="module")
def task(config: Config) -> Translation:
    return task_of(config)


@pytest.fixture(scope="module")
def run(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(config, tmp_path_factory.mktemp("trained") / "run")


def test_an_epoch_is_drawn_by_the_formula_and_rows_repeat(task: Translation) -> None:
    sizes = [200, 200, 30, 30]
    for number in (0, 3):
        rows = np.concatenate(task.epoch(number))
        assert np.bincount(task.train.directions[rows]).tolist() == counts(sizes, 5.0, 460).tolist()
    assert max(Counter(rows.tolist()).values()) > 1
    said = "an epoch is 460 pairs, drawn from 4 directions at temperature 5: between 93 (en→fr) and 137 (de→en)"
    assert task.notes() == [said]


@pytest.mark.parametrize("side", ["source", "target"])
def test_the_tag_of_the_language_to_write_is_in_every_batch(config: Config, side: str) -> None:
    task = task_of(config.set(data={"tag": side}))
    number = task.store.tokenizer.special
    names = [*task.store.directions("train")]
    rows = task.epoch(0)[0]
    batch = task.collate(rows)
    for i, row in enumerate(rows):
        source, target = (pack.tokens[pack.starts[i] : pack.starts[i + 1]].tolist() for pack in batch.packs())
        own = number(tag(names[task.train.directions[row]].split("-")[1]))
        assert (source[0] == own) == (side == "source")
        assert target[0] == (own if side == "target" else BOS)
        assert [t for t in (*source[1:], *target[1:]) if t in map(number, map(tag, WORDS))] == []
        labels = batch.labels[batch.target.starts[i] : batch.target.starts[i + 1]].tolist()
        assert labels == [*target[1:], EOS]
    assert (batch.labels != PAD).sum() == batch.count


def test_a_pair_that_is_drawn_twice_is_dropped_out_differently(config: Config) -> None:
    task = task_of(config.set(model={"dropout": 0.3}))
    model = task.build_model().train()
    torch.manual_seed(0)
    row = int(task.epoch(0)[0][0])
    batch = task.collate(np.array([row, row]))
    starts = batch.target.starts.tolist()
    hidden = task.hidden(model, batch)
    assert not torch.equal(hidden[starts[0] : starts[1]], hidden[starts[1] : starts[2]])
    hidden = task.hidden(model.eval(), batch)
    assert torch.allclose(hidden[starts[0] : starts[1]], hidden[starts[1] : starts[2]], atol=1e-5)


def test_one_model_translates_both_ways(run: Path) -> None:
    trained = package.load(run)
    for source, target in (("de", "en"), ("en", "de"), ("en", "fr"), ("fr", "en")):
        outputs = trained.into(target).translate(lines(source, 16))
        right = sum(a == b for a, b in zip(outputs, lines(target, 16), strict=True))
        assert right >= 13, (source, target, outputs)
    first = trained.into("fr").encode(["one two"]).packs[0].tokens.tolist()
    assert first[0] == trained.tokenizer.special(tag("fr"))
    assert first[1:-1] == trained.tokenizer.encode(["one two"], "")[0]


def test_a_run_that_writes_one_language_need_not_be_told_which(config: Config, tmp_path: Path, leadline: Any) -> None:
    short = config.set(data={"directions": ("X-en",)}, train={"updates": 1})
    (tmp_path / "config.toml").write_text(configuration.to_toml(short))
    answer = leadline("train", tmp_path / "config.toml", "--out", tmp_path / "run")
    assert answer.code == 0
    assert answer.out.endswith(f"leadline translate {tmp_path / 'run'}\n")
    said, told = (leadline("translate", tmp_path / "run", *to, stdin=b"drei\n") for to in ([], ["--to", "en"]))
    assert said.code == 0
    assert said.out == told.out


def test_asked_for_no_language_or_another_one_it_says_so(run: Path, leadline: Any) -> None:
    answer = leadline("translate", run, "--to", "en", stdin=b"drei\n")
    assert (answer.code, answer.out) == (0, "three\n")
    answer = leadline("translate", run, stdin=b"drei\n")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "leadline: this run writes several languages: say which, such as --to de (of de, en, fr)\n"
    answer = leadline("translate", run, "--to", "fra", stdin=b"drei\n")
    assert answer.code == 2
    assert "not trained to write 'fra': did you mean 'fr'? the choices are de, en, fr" in answer.err
    with pytest.raises(UserError, match="say which"):
        package.load(run).translate(["drei"])


def test_a_run_of_one_pair_has_one_language(finished: Path, leadline: Any) -> None:
    answer = leadline("translate", finished, "--to", "fr", stdin=b"drei\n")
    assert "not trained to write 'fr': it translates from de into en only" in answer.err
    assert leadline("translate", finished, "--to", "en", stdin=b"drei\n").code == 0


def test_scores_are_by_direction_with_their_means(run: Path, leadline: Any) -> None:
    answer = leadline("evaluate", run)
    assert answer.code == 0
    assert "de→en" in answer.out
    assert "tok:13a" in answer.out
    facts = json.loads(leadline("evaluate", run, "--json").out)
    assert [row["direction"] for row in facts["by_direction"]] == ["de-en", "en-de", "en-fr", "fr-en"]
    assert [row["kind"] for row in facts["by_direction"]] == ["to_en", "from_en", "from_en", "to_en"]
    assert facts["bleu"] == pytest.approx(np.mean([row["bleu"] for row in facts["by_direction"]]))
    to_en = [row["bleu"] for row in facts["by_direction"] if row["kind"] == "to_en"]
    assert facts["bleu_to_en"] == pytest.approx(np.mean(to_en))
    assert facts["off_target"] == 0
    assert {origin: row["sentences"] for origin, row in facts["by_origin"].items()} == {"book": 4, "web": 12}
    assert "book" in answer.out
    assert facts["identifier_accuracy"] == 1
    assert json.loads((run / "evaluations" / "test.json").read_text(encoding="utf-8")) == facts
    table = (run / "evaluations" / "test.csv").read_text(encoding="utf-8").splitlines()
    assert table[0].startswith("direction,kind,sentences,bleu,chrf,off_target,")
    assert len(table) == 5


def test_a_part_of_the_table_does_not_replace_the_whole(run: Path, leadline: Any, finished: Path) -> None:
    whole = json.loads(leadline("evaluate", run, "--json").out)
    some = json.loads(leadline("evaluate", run, "--directions", "de-en,fr-en", "--json").out)
    assert "nll" in whole
    assert "nll" not in some  # which would be that of all directions
    leadline("evaluate", run, "--checkpoint", "average:2", "--json")
    leadline("evaluate", run, "--set", "decode.beam=2", "--json")
    folder = run / "evaluations"
    assert json.loads((folder / "test.json").read_text(encoding="utf-8")) == whole
    assert json.loads((folder / "test-de-en+fr-en.json").read_text(encoding="utf-8")) == some
    assert {"test-checkpoint-average-2.csv", "test-decode.beam=2.csv"} <= {path.name for path in folder.iterdir()}
    answer = leadline("evaluate", finished, "--directions", "de-en")
    assert answer.code == 2
    assert "--directions is for a run of many languages, and" in answer.err


def test_what_was_not_trained_is_zero_shot(run: Path, leadline: Any) -> None:
    rows = json.loads(leadline("evaluate", run, "--split", "zero", "--json").out)["by_direction"]
    assert [(row["direction"], row["kind"], row["sentences"]) for row in rows] == [
        ("de-fr", "zero_shot", 8), ("fr-de", "zero_shot", 8),
    ]  # fmt: skip
    flores = json.loads(leadline("evaluate", run, "--split", "flores", "--json").out)
    assert [row["direction"] for row in flores["by_direction"]] == ["de-en", "en-de", "en-fr", "fr-en"]
    some = json.loads(leadline("evaluate", run, "--split", "flores", "--directions", "zero,X-en", "--json").out)
    assert [row["direction"] for row in some["by_direction"]] == ["de-en", "de-fr", "fr-de", "fr-en"]
    assert {"bleu_to_en", "bleu_zero_shot"} <= some.keys()
    answer = leadline("evaluate", run, "--directions", "de-it")
    assert answer.code == 2
    assert "test has no direction 'de-it': did you mean 'de-en'?" in answer.err


def test_data_of_other_directions_is_judged_by_those_of_the_run(config: Config, run: Path, tmp_path: Path) -> None:
    some = train(config.set(data={"directions": ["de-en", "en-X"]}, train={"updates": 1}), tmp_path / "run")
    for folder, asked, zero in (
        (run, ["both"], set()), (run, ["X-en"], set()), (some, ["both"], {"fr-en"}),
    ):  # fmt: skip
        trained = package.load(folder)
        data = {"directions": asked, "vocabulary": str(folder / "tokenizer.json")}
        task = replace(trained, config=trained.config.set(data=data)).task()
        assert isinstance(task, Translation)
        there = task.store.directions("test")
        assert {name for name in there if task.by_direction.kind(name) == "zero_shot"} == zero
        assert task.by_direction.identifier.languages == ["de", "en", "fr"]
        assert task.by_direction.identifier.wrong(["deux trois"], "en") == 1


def test_a_wrong_language_is_told(task: Translation, monkeypatch: pytest.MonkeyPatch) -> None:
    from leadline.tasks.translator import Translator

    monkeypatch.setattr(
        Translator, "translate_tokenized", lambda self, texts, done, languages: ["deux trois"] * len(texts)
    )
    rows = task.scores(task.build_model(), "test")["by_direction"]
    assert {row["direction"]: row["off_target"] for row in rows} == {"de-en": 1, "en-de": 1, "en-fr": 0, "fr-en": 1}
    assert {row["off_target_references"] for row in rows} == {0.0}


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_training_that_goes_on_ends_with_the_same_bits(config: Config, side: str, tmp_path: Path) -> None:
    short = config.set(data={"tag": side}, train={"updates": 12, "eval_every": -1})
    whole = train(short, tmp_path / "whole")
    part = train(short.set(train={"updates": 7}), tmp_path / "part")
    resume(part, config=package.training.run.load_config(part).set(train={"updates": 12}))
    ends = [(each / "checkpoints" / "00000012" / "model.safetensors").read_bytes() for each in (whole, part)]
    assert ends[0] == ends[1]


def test_languages_are_told_apart_by_script_and_by_letters() -> None:
    found = Identifier({"en": ["the cat", "one two"], "de": ["die Katze", "zwei drei"], "ru": ["кот"], "el": ["γάτα"]})
    assert [found.identify(line) for line in ("TWO", "zwei", "собака", "σκύλος", "12 %", "")] == [
        "en", "de", "ru", "el", "", "",
    ]  # fmt: skip
    assert found.wrong(["two", "zwei", "12", ""], "en") == 0.5
    assert found.wrong(["", " "], "en") == 1
    assert found.wrong([], "en") == 0
