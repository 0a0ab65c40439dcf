"""The flight recorder of our own loop, what is done about a spike, and an update run again."""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from leadline import flight, history
from leadline.config import Config
from leadline.diagnose.explain import explain
from leadline.diagnose.watch import Watch
from leadline.errors import Diverged, UserError
from leadline.tasks.base import Task
from leadline.training import checkpoint, recorder
from leadline.training.checkpoint import State
from leadline.training.events import Event
from leadline.training.loop import resume, train
from leadline.training.replay import replay
from leadline.training.setup import Setup, set_up
from leadline.training.step import Result
from leadline.usual import ENOUGH, Usual

BAD = 33  # the update whose batch is made bad


@pytest.fixture(scope="module")
def config(tiny: Config) -> Config:
    return tiny.set(
        model={"dropout": 0.1}, optim={"lr": 2e-3, "warmup": 5},
        train={"updates": 44, "eval_every": 22, "save_every": 10, "log_every": 10},
    )  # fmt: skip


@pytest.fixture(scope="module")
def plain(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(config, tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture
def bad(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for the rows of update BAD in its epoch is given labels that mean nothing."""
    row = flight.read(plain)[BAD - 1]
    collate = Task.collate

    def spoilt(self: Any, rows: np.ndarray, epoch: int = 0) -> Any:
        batch = collate(self, rows, epoch)
        if epoch != row["epoch"] or rows.tolist() != row["rows"][0]:
            return batch
        generator = torch.Generator().manual_seed(1)
        labels = torch.randint(100, 190, batch.labels.shape, generator=generator)
        return dataclasses.replace(batch, labels=torch.where(batch.labels != 0, labels, 0))

    monkeypatch.setattr(Task, "collate", spoilt)


def weights(run: Path) -> dict[str, torch.Tensor]:
    folder = run / "checkpoints" / checkpoint.names(run)[-1]
    return load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")


def same(left: Path, right: Path) -> bool:
    a, b = weights(left), weights(right)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def spikes(run: Path) -> list[dict[str, Any]]:
    return json.loads((run / "run.json").read_text())["spikes"]


# The recorder


def test_every_update_is_recorded_with_its_rows(plain: Path, config: Config) -> None:
    rows = flight.read(plain)
    assert [row["update"] for row in rows] == list(range(1, 45))
    first = [row for row in rows if row["epoch"] == 0]
    seen = [number for row in first for batch in row["rows"] for number in batch]
    assert len(seen) == len(set(seen)) > 200
    logged = history.read(plain)
    means = [np.mean([row["loss"] for row in rows[at - 10 : at]]) for at in (10, 20)]
    assert [row["loss"] for row in logged.rows if "lr" in row and row["update"] in (10, 20)] == pytest.approx(means)
    assert all(row["grad_norm"] == pytest.approx(np.linalg.norm(row["pulse"][0]), rel=1e-3) for row in rows)


def test_the_recorder_is_bounded_and_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "KEPT", 5)
    recorded = flight.Flight(tmp_path)
    for update in range(1, 18):
        recorded.write({"update": update, "rows": [[update]]})
        recorded.write({"update": update, "loss": 1.0, "layers": ["a"], "pulse": [[0.123456789]] * 4})
    rows = flight.read(tmp_path)  # it was not closed: what was written is there
    assert [row["update"] for row in rows] == list(range(11, 18))
    assert all(row["layers"] == ["a"] and row["rows"] == [[row["update"]]] for row in rows)
    assert rows[0]["pulse"][0] == [0.12346]
    with (tmp_path / "flight.jsonl").open("a") as file:
        file.write('{"update": 18, "lo')
    recorded.close()
    again = flight.Flight(tmp_path, 15)  # what came after a checkpoint is of a training that was killed
    again.write({"update": 16, "loss": 2.0})
    again.close()
    assert [row["update"] for row in flight.read(tmp_path)] == [11, 12, 13, 14, 15, 16]
    assert flight.read(tmp_path)[-2]["layers"] == ["a"]


def test_a_pulse_that_is_not_finite_is_gone_on_from(tmp_path: Path) -> None:
    recorded = flight.Flight(tmp_path)
    recorded.write({"update": 1, "layers": ["a", "b"], "pulse": [[float("inf"), 2.0]] * 4})
    recorded.close()
    flight.Flight(tmp_path, 1).close()
    assert flight.read(tmp_path) == [{"update": 1, "layers": ["a", "b"], "pulse": [[None, 2.0]] * 4}]


def test_without_the_line_that_names_the_layers_nothing_is_said_of_them(plain: Path, tmp_path: Path) -> None:
    for path in flight.paths(plain):
        lines = path.read_text().splitlines()
        named = next((line for line in lines if '"layers"' in line), "")
        (tmp_path / path.name).write_text("\n".join(line[:40] if line == named else line for line in lines) + "\n")
    rows = flight.read(tmp_path)
    assert len(rows) == len(flight.read(plain))
    assert not any("pulse" in row or "layers" in row for row in rows)
    assert explain(tmp_path).facts["layers"] == 0


def test_a_resumed_run_goes_on_with_the_recorder(plain: Path, config: Config, tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if event.kind == "update" and event.update == 30:
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        train(config, tmp_path / "run", [stop])
    resume(tmp_path / "run")
    assert same(tmp_path / "run", plain)
    drop = functools.partial(map, lambda row: {key: value for key, value in row.items() if key != "pulse"})
    assert list(drop(flight.read(tmp_path / "run"))) == list(drop(flight.read(plain)))


def test_where_numbers_are_read_later_each_update_has_its_own_rate(tmp_path: Path) -> None:
    told = []
    for change in (10.0, 0.1):
        state = State()
        (folder := tmp_path / str(change)).mkdir()
        recorded = recorder.Recorder(flight.Flight(folder), state, ["a"])
        for update in range(1, 41):
            lr = 1e-3 * (change if update >= 37 else 1.0)
            recorded.begin(0, update, [np.array([update])], lr)
            state.update = update
            one, pulse = torch.tensor(1.0), torch.tensor([[1.0], [lr], [1.0], [0.0]])
            recorded.add(0, update, Result(one, one, 1, [], pulse))
            told += recorded.read()[1] if update % 10 == 0 else []
        recorded.close()
    assert told == ["update 37: the learning rate rose 10 times, to 0.01"]


# What is usual


def test_a_value_far_out_is_seen_and_does_not_become_usual() -> None:
    usual, rng = Usual(), np.random.default_rng(0)
    values = [float(np.exp(0.05 * rng.normal() - 0.01 * i)) for i in range(100)]
    assert max(usual.add(value) for value in values) < 4.5
    low = usual.mean
    assert usual.distance(3 * np.exp(low)) > 12
    usual.add(float(3 * np.exp(low)))
    assert usual.distance(3 * np.exp(low)) > 9
    assert usual.distance(float("nan")) == float("inf")
    assert Usual().add(5.0) == 0.0


def test_what_stays_becomes_usual() -> None:
    usual = Usual()
    for _ in range(ENOUGH + 20):
        usual.add(1.0)
    distances = [usual.add(2.0) for _ in range(60)]
    assert distances[0] > 30
    assert distances[-1] < 1


# Spikes


def test_a_spike_is_rolled_back_and_its_batch_left_out(bad: None, plain: Path, config: Config, tmp_path: Path) -> None:
    told: list[str] = []
    asked = config.set(train={"on_spike": "rollback", "spike_lr": 0.5})
    run = train(asked, tmp_path / "run", [lambda event: told.append(event.message)])
    (spike,) = spikes(run)
    assert (spike["update"], spike["did"], spike["back_to"]) == (BAD, "rollback", 30)
    assert any("back to update 30, without its batch at 0.5 of the rate" in message for message in told)
    rows, before = flight.read(run), flight.read(plain)
    assert [row["rows"] for row in rows[BAD - 1 : -1]] == [row["rows"] for row in before[BAD:]]
    assert all(row["lr"] == pytest.approx(0.5 * other["lr"]) for row, other in zip(rows[30:], before[30:], strict=True))
    state = json.loads((run / "checkpoints" / checkpoint.names(run)[-1] / "state.json").read_text())
    assert state["spikes"] == 1
    assert state["left_out"] == [[spike["epoch"], spike["batch"]]]


@pytest.mark.parametrize("stopped", [BAD - 2, BAD + 4])
def test_a_rolled_back_training_resumes_to_the_same_bits(
    stopped: int, bad: None, config: Config, tmp_path: Path
) -> None:
    """Killed before the spike, and after it was rolled back but before a checkpoint says so."""
    asked = config.set(train={"on_spike": "rollback", "log_every": 1})
    whole = train(asked, tmp_path / "whole")
    met = 0

    def stop(event: Event) -> None:
        nonlocal met
        met += event.kind == "update" and event.update == stopped
        if met:
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        train(asked, tmp_path / "run", [stop])
    resume(tmp_path / "run")
    assert same(whole, tmp_path / "run")
    assert spikes(tmp_path / "run") == spikes(whole)


def test_a_model_that_is_rolled_back_is_gone_before_the_next_is_built(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One on fused kernels and its operations hold each other, and a GPU may have no room for two."""
    models: list[Any] = []

    def built(*arguments: Any) -> Setup:
        assert not any(model() for model in models)
        setup = set_up(*arguments)
        setup.model.held = [setup.model]
        if not models:
            torch.nn.init.constant_(next(setup.model.parameters()), float("nan"))
        models.append(weakref.ref(setup.model))
        return setup

    monkeypatch.setattr("leadline.training.loop.set_up", built)
    gc.disable()
    try:
        train(config.set(train={"on_spike": "rollback", "updates": 2, "eval_every": -1}), tmp_path / "run")
    finally:
        gc.enable()
    assert len(models) == 2


def test_a_spike_is_skipped(bad: None, config: Config, tmp_path: Path) -> None:
    run = train(config.set(train={"on_spike": "skip"}), tmp_path / "run")
    (spike,) = spikes(run)
    assert (spike["update"], spike["did"]) == (BAD, "skip")
    row = flight.read(run)[BAD - 1]
    assert "pulse" not in row  # no step was taken
    assert row["loss"] == pytest.approx(spike["loss"])


def test_where_numbers_are_read_later_an_update_is_still_judged_by_all_before_it(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a resumed training, which has read them at another time, would skip others."""
    accepts, waiting = recorder.Recorder.accepts, []

    def judge(self: recorder.Recorder, *numbers: torch.Tensor) -> bool:
        waiting.append(len(self.waiting))
        return accepts(self, *numbers)

    def elsewhere(*arguments: Any) -> Setup:
        return dataclasses.replace(set_up(*arguments), device=torch.device("meta"))

    monkeypatch.setattr(recorder.Recorder, "accepts", judge)
    monkeypatch.setattr("leadline.training.loop.set_up", elsewhere)
    train(config.set(train={"on_spike": "skip", "updates": 12}), tmp_path / "run")
    assert waiting == [0] * 12


def test_a_spike_stops_where_that_is_asked_and_after_too_many(
    bad: None, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Diverged, match=rf"update {BAD} is a spike .* train.on_spike=stop"):
        train(config.set(train={"on_spike": "stop"}), tmp_path / "stop")
    monkeypatch.setattr(recorder, "MOST", 0)
    monkeypatch.setattr("leadline.training.loop.MOST", 0)
    with pytest.raises(Diverged, match=rf"update {BAD} is a spike"):
        train(config.set(train={"on_spike": "rollback"}), tmp_path / "many")


def test_without_a_spike_nothing_changes(plain: Path, config: Config, tmp_path: Path) -> None:
    for asked in ("skip", "rollback"):
        assert same(plain, train(config.set(train={"on_spike": asked}), tmp_path / asked))


def test_what_cannot_be_is_said(config: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="captured step cannot leave out an update"):
        train(config.set(train={"on_spike": "skip", "step": "graph"}), tmp_path / "run")
    with pytest.raises(UserError, match="spike_lr must be above 0"):
        config.set(train={"spike_lr": 0.0})


# An update again


def test_an_update_is_run_again(plain: Path, config: Config, tmp_path: Path, leadline: Callable[..., Any]) -> None:
    row = flight.read(plain)[34]
    again = replay(plain, 35, Watch(every=1))
    assert again["from_checkpoint"] == 30
    assert (again["loss"], again["grad_norm"]) == (row["loss"], row["grad_norm"])
    assert again["rows"] == [number for batch in row["rows"] for number in batch]
    assert again["watch/hidden/encoder.blocks.0.ffn"] > 0
    copy = tmp_path / "copy"
    shutil.copytree(plain, copy)
    answer = leadline("replay", copy, 2, "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["loss"] == flight.read(plain)[1]["loss"]
    assert leadline("replay", copy, 0).code == 2


@pytest.mark.parametrize(("did", "spike_lr"), [("rollback", 0.5), ("skip", 1.0)])
def test_updates_around_a_spike_are_run_again_as_the_run_went_on(
    did: str, spike_lr: float, bad: None, config: Config, tmp_path: Path
) -> None:
    run = train(config.set(train={"on_spike": did, "spike_lr": spike_lr}), tmp_path / "run")
    rows = {row["update"]: row for row in flight.read(run)}
    for update in (BAD - 1, BAD + 1, 43):
        again = replay(run, update, Watch(every=1))
        assert again["loss"] == rows[update]["loss"]
        assert (again["batch"], again["lr"]) == (rows[update]["batch"], pytest.approx(rows[update]["lr"]))
    assert replay(run, BAD, Watch(every=1))["loss"] == spikes(run)[0]["loss"]


def test_an_update_is_run_again_with_the_config_of_then(plain: Path, config: Config, tmp_path: Path) -> None:
    before = {row["update"]: row["loss"] for row in flight.read(plain)}
    run = tmp_path / "run"
    shutil.copytree(plain, run)
    resume(run, config=config.set(optim={"schedule": "constant"}, train={"updates": 50}))
    assert replay(run, 44, Watch(every=1))["loss"] == before[44]
    assert replay(run, 46, Watch(every=1))["loss"] == flight.read(run)[45]["loss"]
    for name in checkpoint.names(run):
        if int(name) >= 44:
            shutil.rmtree(run / "checkpoints" / name)
    with pytest.raises(UserError, match=r"update 46 cannot be computed again: there is no checkpoint .* update 44"):
        replay(run, 46, Watch(every=1))
