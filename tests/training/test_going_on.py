"""A run goes on with what may change; another starts from its weights; the machine decides the precision."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from leadline import history
from leadline.cli import trainings
from leadline.config import LATER, Config, TrainConfig, load, to_toml
from leadline.errors import UserError
from leadline.options import keys
from leadline.training import run as runs
from leadline.training.device import resolved
from leadline.training.loop import resume, train


@pytest.fixture(scope="module")
def short(tiny: Config) -> Config:
    return tiny.set(optim={"schedule": "constant"}, train={"updates": 4, "eval_every": 2})


def weights(run: Path, update: int) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"{update:08d}" / "model.safetensors")


def test_a_run_trains_longer_and_ends_as_if_it_had_been_asked_at_once(
    short: Config, tmp_path: Path, leadline: Callable[..., Any]
) -> None:
    straight = train(short.set(train={"updates": 6}), tmp_path / "straight")
    run = train(short, tmp_path / "run")
    answer = leadline("train", "--resume", run, "--set", "train.updates=6", "--set", "train.log_every=2")
    assert answer.code == 0
    assert "from update 4 on: train.updates 4 → 6, train.log_every 1 → 2" in answer.err.splitlines()
    expected, found = weights(straight, 6), weights(run, 6)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    facts = json.loads((run / "run.json").read_text())
    assert facts["changes"] == [
        {"update": 4, "key": "train.updates", "before": 4, "after": 6},
        {"update": 4, "key": "train.log_every", "before": 1, "after": 2},
    ]
    assert load(run / "config.toml") == short.set(train={"updates": 6, "log_every": 2})
    resume(run)
    assert len(json.loads((run / "run.json").read_text())["changes"]) == 2


def test_another_rate_and_schedule_count_from_there_on(short: Config, tmp_path: Path) -> None:
    run = train(short, tmp_path / "run")
    resume(run, config=short.set(optim={"lr": 1e-4}, train={"updates": 5}))
    rates = [row["lr"] for row in history.read(run).rows if "lr" in row]
    assert rates == [short.optim.lr] * 4 + [1e-4]


@pytest.mark.parametrize(
    "assignment",
    ["model.dim=32", "model.placement=post_ln", "data.vocab_size=300", "optim.name=sgd", "train.seed=2",
     "task=masked_lm", "train.batch_tokens=256", "train.accumulate=2", "train.label_smoothing=0.1", "mask.share=0.3"],
)  # fmt: skip
def test_what_makes_it_another_run_is_refused(assignment: str, finished: Path, leadline: Callable[..., Any]) -> None:
    before = (finished / "run.json").read_bytes()
    answer = leadline("train", "--resume", finished, "--set", assignment)
    assert answer.code == 2
    key = assignment.partition("=")[0]
    assert f"--set {key}: a resumed run keeps it" in answer.err
    advice = "train a new run" if key in ("model.dim", "model.placement", "data.vocab_size") else "start another run"
    assert advice in answer.err
    assert f"--set train.start={finished}" in answer.err
    assert (finished / "run.json").read_bytes() == before


@pytest.mark.parametrize("key", ["lr", "warmup"])
def test_a_run_that_goes_on_is_not_given_a_rate_by_a_look(
    key: str, finished: Path, leadline: Callable[..., Any]
) -> None:
    answer = leadline("train", "--resume", finished, "--set", f"optim.{key}=auto")
    assert answer.code == 2
    assert "chosen before a training begins; give a number" in answer.err


def test_fewer_updates_than_it_has_made_are_refused(
    finished: Path, tmp_path: Path, leadline: Callable[..., Any]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    before = (run / "run.json").read_bytes()
    answer = leadline("train", "--resume", run, "--set", "train.updates=3")
    assert answer.code == 2
    assert f"train.updates=3: {run} has made 20 updates already" in answer.err
    assert (run / "run.json").read_bytes() == before
    done = leadline("train", "--resume", run)
    assert "this run is complete: nothing is left to train (longer: --set train.updates=…)" in done.err


def test_every_key_that_may_change_is_a_key() -> None:
    assert set(keys(Config)) > LATER


def test_text_that_has_moved_is_found_again(tiny: Config, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for name in ("train.de", "train.en", "valid.de", "valid.en"):
        (text / name).write_text("".join(f"word {number} and more\n" for number in range(40)))
    config = tiny.set(data={"source": f"text:{text}", "vocab_size": 30}, train={"updates": 2, "eval_every": 1})
    run = train(config, tmp_path / "run")
    text.rename(tmp_path / "moved")
    longer = config.set(data={"source": f"text:{tmp_path / 'moved'}"}, train={"updates": 3})
    resume(run, config=longer)
    assert load(run / "config.toml") == longer


def test_what_is_watched_is_watched_again(short: Config, tmp_path: Path, leadline: Callable[..., Any]) -> None:
    (tmp_path / "config.toml").write_text(to_toml(short.set(train={"updates": 1})))
    run = tmp_path / "run"
    assert leadline("train", tmp_path / "config.toml", "--out", run, "--watch", 1).code == 0

    def watched() -> list[int]:
        return [row["update"] for row in history.read(run).rows if any(key.startswith("watch/") for key in row)]

    assert watched() == [1]
    answer = leadline("train", "--resume", run, "--set", "train.updates=2")
    assert "its layers are looked at every 1 updates, as before" in answer.err
    assert watched() == [1, 2]
    leadline("train", "--resume", run, "--set", "train.updates=3", "--watch", 0)
    assert watched() == [1, 2]


def test_a_run_that_starts_from_another_has_its_model_and_vocabulary(
    finished: Path, tmp_path: Path, leadline: Callable[..., Any]
) -> None:
    how = ["--set", f"train.start={finished}", "--set", "train.updates=1", "--set", "data.size=400"]
    run = tmp_path / "run"
    answer = leadline("train", "numerals", "--out", run, *how)
    assert answer.code == 0
    assert f"model and vocabulary are those of {finished}" in answer.err
    assert f"from the weights of {finished}" in answer.err
    assert "started from" not in answer.err
    assert runs.read_config(run)[0].model == runs.read_config(finished)[0].model
    assert (run / "tokenizer.json").read_bytes() == (finished / "tokenizer.json").read_bytes()
    other = leadline("train", "numerals", "--out", tmp_path / "other", *how, "--set", "model.dim=64")
    assert other.code == 2
    assert f"model.dim=64 contradicts train.start={finished}, which has 16: leave it out" in other.err
    words = leadline("train", "numerals", "--out", tmp_path / "other", *how, "--set", "data.vocab_size=77")
    assert words.code == 2
    assert f"data.vocab_size=77 contradicts train.start={finished}, which has " in words.err
    same = trainings._asked("numerals", [how[1], "model.dim=16", "model.dropout=0.3", "model.max_length=40"])[0]
    assert (same.model.dim, same.model.dropout, same.model.max_length) == (16, 0.3, 40)


def test_a_config_file_that_contradicts_the_run_it_starts_from_is_refused(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[model]\nffn_dim = 64\n[train]\nepochs = 1\nstart = "{finished}"\n')
    with pytest.raises(UserError, match=r"model\.ffn_dim=64 contradicts"):
        trainings._asked(str(path), [])
    path.write_text(path.read_text().replace("ffn_dim = 64", "ffn_dim = 32"))
    assert trainings._asked(str(path), [])[0].model.dim == 16


def test_another_task_keeps_its_own_heads(finished: Path, tmp_path: Path) -> None:
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    before = Config().set(task="masked_lm", model={"encoder_layers": 2, "decoder_layers": 0, "dim": 16})
    (encoder / "config.toml").write_text(to_toml(before))
    config = trainings._asked("same_meaning", [f"train.start={encoder}"])[0]
    assert (config.model.classes, config.model.dim, config.model.encoder_layers) == (2, 16, 2)
    with pytest.raises(UserError, match="was trained for translation: classification cannot start from its model"):
        trainings._asked("same_meaning", [f"train.start={finished}"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_recipe_in_bf16_trains_in_fp32_on_a_cpu_unless_asked() -> None:
    config, notes = trainings._asked("iwslt14_pre_ln", [])
    assert config.train.precision == "fp32"
    assert notes == [
        "iwslt14_pre_ln says bf16, which is slower on a CPU: fp32 it is (--set train.precision=bf16 asks for it)"
    ]
    assert trainings._asked("iwslt14_pre_ln", ["train.precision=bf16"])[0].train.precision == "bf16"


def test_the_precision_is_chosen_for_the_device_and_kept(
    short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TrainConfig(epochs=1).precision == "auto"
    run = train(short.set(train={"precision": "auto", "updates": 1}), tmp_path / "run")
    facts = json.loads((run / "run.json").read_text())
    assert facts["chosen"]["precision"] == facts["config"]["train"]["precision"] == "fp32"
    monkeypatch.setattr("leadline.training.device.find_device", lambda name: torch.device("cuda"))
    for capability, expected in (((7, 5), "fp32"), ((9, 0), "bf16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        assert resolved(short.set(train={"precision": "auto"})).train.precision == expected
    shutil.rmtree(run)
