"""A training that is stopped, however roughly, and resumed ends with the weights of one that never stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from leadline import cli, history
from leadline.cli.terminal import TrainingView
from leadline.config import Config, to_toml
from leadline.errors import UserError
from leadline.tasks import Translation
from leadline.training import checkpoint, signals
from leadline.training.events import Event
from leadline.training.loop import resume, train

STOP = 13  # between the checkpoints at 10 and 15, in the middle of the third epoch


@pytest.fixture(scope="module")
def config(tiny: Config) -> Config:
    """Everything that could be forgotten: dropout, several batches an update, warm-up, 6 updates an epoch."""
    return tiny.set(
        model={"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1},
        optim={"schedule": "inverse_sqrt", "warmup": 8, "clip": 0.5},
        train={"accumulate": 2, "save_every": 5, "eval_every": 10, "label_smoothing": 0.1},
    )


@pytest.fixture(scope="module")
def whole(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 updates without a stop."""
    return train(config, tmp_path_factory.mktemp("whole") / "run")


def tensors(run: Path, update: int) -> dict[str, torch.Tensor]:
    """Weights and optimizer state, read without leadline."""
    folder = run / "checkpoints" / f"{update:08d}"
    return load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")


def assert_same_end(run: Path, other: Path) -> None:
    found, expected = tensors(run, 20), tensors(other, 20)
    assert found.keys() == expected.keys()
    assert any("/" in name for name in found)  # there is optimizer state
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
    states = [dataclasses.replace(checkpoint.read(r, "00000020")[0], seconds=0, metrics="") for r in (run, other)]
    assert states[0] == states[1]


def measured(run: Path) -> list[dict[str, float]]:
    """metrics.jsonl without what depends on the clock."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in history.CLOCK} for row in rows]


def test_a_later_epoch_is_gone_on_with_without_planning_the_first(
    config: Config, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    planned: list[int] = []
    epoch = Translation.epoch
    monkeypatch.setattr(Translation, "epoch", lambda task, number: planned.append(number) or epoch(task, number))
    resume(run, config=config.set(train={"updates": 21}))
    assert planned[0] == 20 // 6
    assert 0 not in planned
    assert json.loads((run / "run.json").read_text())["updates_per_epoch"] == 6


def updates_of(run: Path) -> list[float]:
    return [row["update"] for row in measured(run) if "loss" in row]


def train_and_pause(arguments: list[str], errors: Path, pipe: Connection) -> None:
    """The command line, but it waits for a word after the metrics of update STOP are written."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())

    class Pausing(TrainingView):
        def __call__(self, event: Event) -> None:
            super().__call__(event)
            if event.kind == "update" and event.update == STOP:
                pipe.send("paused")
                pipe.recv()

    cli.trainings.TrainingView = Pausing  # type: ignore[misc]
    sys.argv = ["leadline", *arguments]
    cli.main()


@dataclasses.dataclass(frozen=True)
class Paused:
    process: BaseProcess
    pipe: Connection
    errors: Path

    def end_by(self, number: signal.Signals) -> tuple[int | None, str]:
        """Send a signal, let the training go on if it still can; its exit code and what it said."""
        assert self.process.pid
        os.kill(self.process.pid, number)
        with contextlib.suppress(BrokenPipeError):
            self.pipe.send("go on")
        self.process.join(60)
        return self.process.exitcode, self.errors.read_text()


@pytest.fixture
def paused(config: Config, tmp_path: Path) -> Iterator[Paused]:
    """Another process in the middle of training into tmp_path/run. All are forked from one that has loaded torch."""
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["leadline.training.loop", "tensorboard.summary.writer", "torch._dynamo"])
    pipe, other_end = context.Pipe()
    arguments = ["train", str(tmp_path / "config.toml"), "--out", str(tmp_path / "run")]
    process = context.Process(target=train_and_pause, args=(arguments, tmp_path / "stderr", other_end))
    process.start()
    other_end.close()
    try:
        assert pipe.poll(120)
        assert pipe.recv() == "paused"
        yield Paused(process, pipe, tmp_path / "stderr")
    finally:
        process.kill()
        process.join()


def test_a_killed_training_resumes_to_the_same_bits(paused: Paused, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(UserError, match="another training is running"):
        resume(folder)
    assert paused.end_by(signal.SIGKILL)[0] == -signal.SIGKILL
    assert checkpoint.names(folder)[-1] in ("00000005", "00000010")  # the write of the later may be killed too
    assert updates_of(folder) == list(range(1, STOP + 1))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"update": 14, "lo')  # a kill may cut a line in two

    resume(folder)

    assert_same_end(folder, whole)
    assert updates_of(folder) == list(range(1, 21))
    assert measured(folder) == measured(whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_says_how_to_go_on_and_leaves(
    number: signal.Signals, paused: Paused, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    code, said = paused.end_by(number)
    assert code == 128 + number
    assert "Traceback" not in said
    last = said.splitlines()[-1]
    announced = re.fullmatch(rf"leadline: {number.name} after update (\d+): saved; go on with (.*)", last)
    assert announced
    assert announced[2] == f"leadline train --resume {folder}"
    assert checkpoint.names(folder)[-1] == announced[1].zfill(8)

    resume(folder)

    assert_same_end(folder, whole)
    assert measured(folder) == measured(whole)


def test_signals_that_come_together_are_one_and_a_later_one_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt), signals.watching_signals() as received:  # noqa: PT012
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        assert received == [signal.SIGINT, signal.SIGTERM, signal.SIGINT]
        monkeypatch.setattr(signals, "TOGETHER", -1.0)
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Crash(Exception):
    pass


def crash_at(update: int) -> Callable[[Event], None]:
    def crash(event: Event) -> None:
        if event.kind == "update" and event.update == update:
            raise Crash

    return crash


@pytest.mark.parametrize(
    "options",
    [
        {"name": "adam", "clip": 0.0},
        {"name": "adamw", "weight_decay": 0.1},
        {"name": "sgd", "momentum": 0.9},
        {"name": "radam"},
        {"name": "muon", "weight_decay": 0.1},
    ],
    ids=lambda options: options["name"],
)
def test_every_optimizer_resumes_to_the_same_bits(options: dict[str, Any], config: Config, tmp_path: Path) -> None:
    config = config.set(optim=options)
    straight = train(config, tmp_path / "straight")
    with pytest.raises(Crash):
        train(config, tmp_path / "stopped", [crash_at(12)])

    started = []
    resume(tmp_path / "stopped", [lambda event: started.append(event.update) if event.kind == "start" else None])

    assert started == [10]
    assert_same_end(tmp_path / "stopped", straight)
    assert measured(tmp_path / "stopped") == measured(straight)


def test_a_training_that_stops_before_its_first_checkpoint_begins_again(
    config: Config, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(Crash):
        train(config, tmp_path / "run", [crash_at(3)])
    assert checkpoint.names(tmp_path / "run") == []
    resume(tmp_path / "run")
    assert_same_end(tmp_path / "run", whole)
    assert measured(tmp_path / "run") == measured(whole)


def test_a_training_can_stop_exactly_between_two_epochs(config: Config, whole: Path, tmp_path: Path) -> None:
    """How often it evaluates and saves changes nothing either."""
    by_epoch = config.set(train={"eval_every": 0, "save_every": 0})
    with pytest.raises(Crash):
        train(by_epoch, tmp_path / "run", [crash_at(8)])
    assert checkpoint.names(tmp_path / "run") == ["00000006"]
    resume(tmp_path / "run")
    found, expected = tensors(tmp_path / "run", 20), tensors(whole, 20)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize("every", [4, 7])
def test_the_first_line_after_a_resume_is_of_the_same_updates(every: int, config: Config, tmp_path: Path) -> None:
    """Checkpoints at 5 and 15 lie between two lines of metrics."""
    config = config.set(train={"log_every": every, "save_every": 5, "eval_every": -1})
    straight = train(config, tmp_path / "straight")
    with pytest.raises(Crash):
        train(config, tmp_path / "stopped", [crash_at(8 if every == 4 else 7)])
    assert checkpoint.read(tmp_path / "stopped", "00000005")[0].losses != []
    resume(tmp_path / "stopped")
    assert measured(tmp_path / "stopped") == measured(straight)


def test_the_seed_decides_the_bits(config: Config, whole: Path, tmp_path: Path) -> None:
    """So that the other tests cannot pass because nothing depends on anything."""
    again = train(config, tmp_path / "again")
    assert_same_end(again, whole)
    other = train(config.set(train={"seed": 2}), tmp_path / "other")
    assert not any(
        torch.equal(a, b)
        for (name, a), b in zip(tensors(other, 20).items(), tensors(whole, 20).values(), strict=True)
        if not name.endswith("/step")
    )


def test_resuming_a_complete_run_changes_nothing(config: Config, tmp_path: Path) -> None:
    run = train(config.set(train={"updates": 5}), tmp_path / "run")
    before = {path: path.read_bytes() for path in sorted((run / "checkpoints").rglob("*.*"))}
    rows, said = measured(run), []
    resume(run, [lambda event: said.append(event.message)])
    assert "this run is complete: nothing is left to train (longer: --set train.updates=…)" in said
    assert {path: path.read_bytes() for path in sorted((run / "checkpoints").rglob("*.*"))} == before
    assert measured(run) == rows


def test_resuming_a_run_that_stopped_early_trains_no_further(tiny: Config, tmp_path: Path) -> None:
    hopeless = tiny.set(optim={"lr": 1e-30}, train={"eval_every": 2, "patience": 2})
    run = train(hopeless, tmp_path / "run")
    rows = measured(run)
    assert rows[-1]["update"] == 6  # the best at 2, then two that are no better
    resume(run)
    assert measured(run) == rows


def test_two_trainings_in_one_folder_are_refused(tiny: Config, leadline: Callable[..., Any], tmp_path: Path) -> None:
    folder, answers = tmp_path / "run", []

    def meanwhile(event: Event) -> None:
        if event.kind == "update":
            answers.append(leadline("train", "--resume", folder))
            with pytest.raises(UserError, match="holds a run already"):
                train(tiny, folder)

    train(tiny.set(train={"updates": 1}), folder, [meanwhile])
    assert answers[0].code == 2
    assert answers[0].err.splitlines()[-1] == f"leadline: another training is running in {folder}"
    resume(folder)  # the lock has gone with the training


def test_a_folder_that_is_no_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        resume(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_history_leaves_out_half_a_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"update": 1}\n{"update": 2}\n{"upd')
    assert history.read(tmp_path).rows == [{"update": 1}, {"update": 2}]


def test_a_run_does_not_go_on_with_other_data(tiny: Config, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for name in ("train.de", "train.en", "valid.de", "valid.en"):
        (text / name).write_text("".join(f"word {number} and more\n" for number in range(40)))
    config = tiny.set(data={"source": f"text:{text}", "vocab_size": 30}, train={"updates": 2, "eval_every": 1})
    with pytest.raises(Crash):
        train(config, tmp_path / "run", [crash_at(2)])
    (text / "train.de").write_text("".join(f"word {number} and less\n" for number in range(40)))
    with pytest.raises(UserError, match="has changed since the run began"):
        resume(tmp_path / "run")
