"""Watch while training: what is logged, that training is not touched by it, and when the alarm is raised."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import leadline
from leadline import UserError, history
from leadline import config as configuration
from leadline.config import Config
from leadline.data import batching
from leadline.data.store import Store, prepare
from leadline.diagnose.stream import connections_of
from leadline.diagnose.watch import ENOUGH, REMEMBERED, Watch, groups_of
from leadline.errors import Diverged
from leadline.kernels.pack import pack_one
from leadline.model import Transformer
from leadline.tasks import Translation
from leadline.training import checkpoint, optim
from leadline.training.events import Event, Watcher
from leadline.training.loop import resume, train
from leadline.training.step import make_step

SUBLAYERS = [
    "encoder.blocks.0.attn", "encoder.blocks.0.ffn",
    "decoder.blocks.0.attn", "decoder.blocks.0.cross", "decoder.blocks.0.ffn",
]  # fmt: skip


@pytest.fixture(scope="module")
def config(tiny: Config) -> Config:
    return tiny.set(model={"dropout": 0.1}, optim={"warmup": 3, "clip": 0.5}, train={"updates": 8, "eval_every": 4})


@pytest.fixture(scope="module")
def watched(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(config, tmp_path_factory.mktemp("watched") / "run", [Watch(every=2)])


def looks(run: Path) -> list[dict[str, float]]:
    return [row for row in history.read(run).rows if any(key.startswith("watch/") for key in row)]


def weights(run: Path, update: int) -> dict[str, Tensor]:
    folder = run / "checkpoints" / f"{update:08d}"
    return load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")


def model_of(**options: Any) -> Transformer:
    return Transformer(
        20, **({"encoder_layers": 2, "decoder_layers": 0, "dim": 16, "ffn_dim": 32, "heads": 2} | options)
    )


# What is logged


def test_a_row_is_written_every_few_updates(watched: Path) -> None:
    rows = looks(watched)
    assert [row["update"] for row in rows] == [2, 4, 6, 8]
    layers = [*SUBLAYERS, "embeddings", "norms"]
    expected = {f"watch/{kind}/{name}" for kind in ("grad", "update", "weight", "ratio") for name in layers}
    streams = ("hidden", "branch", "diversity", "norm_input", "norm_output")
    expected |= {f"watch/{kind}/{name}" for kind in streams for name in SUBLAYERS}
    expected |= {f"watch/logits/{name}" for name in SUBLAYERS if not name.endswith("ffn")}
    for row in rows:
        assert set(row) == expected | {"update"}
        assert all(value > 0 for key, value in row.items() if "logits" not in key)


def test_the_other_rows_are_as_without_it(watched: Path, config: Config, tmp_path: Path) -> None:
    plain = train(config, tmp_path / "plain")
    clock = history.CLOCK

    def rows(run: Path) -> list[dict[str, float]]:
        kept = [row for row in history.read(run).rows if row not in looks(run)]
        return [{key: value for key, value in row.items() if key not in clock} for row in kept]

    assert rows(watched) == rows(plain)
    for update in (4, 8):
        found, expected = weights(watched, update), weights(plain, update)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_tensorboard_has_the_same(watched: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = accumulator.EventAccumulator(str(watched / "tensorboard"))
    board.Reload()
    tags = set(board.Tags()["scalars"])
    for row in looks(watched):
        for key, value in row.items():
            if key != "update":
                assert key in tags
                assert {e.step: e.value for e in board.Scalars(key)}[row["update"]] == pytest.approx(value, rel=1e-6)


def norm(tensors: list[Tensor]) -> float:
    return float(torch.cat([t.detach().flatten().double() for t in tensors]).norm())


def test_the_values_are_what_an_independent_step_gives(config: Config) -> None:
    """Gradients before clipping, updates after the step, streams after each connection."""
    config = config.set(optim={"clip": 0.01}, model={"dropout": 0.0})
    task = Translation(config, Store(prepare(config.data)))
    plan = batching.epoch_plan(task.train.lengths, task.shape, config.train.seed, 0)
    batch = task.collate(plan[0])

    model = task.build_model()
    watch = Watch(every=1)
    result = make_step(config, task, model)([batch], 1, 1e-3, [watch])
    ((row, alarm),) = result.watched
    assert alarm == ""

    other = task.build_model()
    streams: dict[str, float] = {}
    for name in SUBLAYERS:
        block, _, kind = name.rpartition(".")
        connection = other.get_submodule(f"{block}.{kind}_residual")
        connection.register_forward_hook(
            lambda m, args, output, name=name: streams.update({name: float(output.detach().norm(dim=-1).mean())})
        )
    other.use_attention("padded")
    task.loss(other, batch, batch.count).backward()
    groups = {name: list(other.get_submodule(name).parameters()) for name in SUBLAYERS}
    inside = {id(p) for group in groups.values() for p in group}
    groups["embeddings"] = [p for p in other.parameters() if id(p) not in inside and p.ndim > 1]
    groups["norms"] = [p for p in other.parameters() if id(p) not in inside and p.ndim == 1]
    before = {name: [p.detach().clone() for p in group] for name, group in groups.items()}
    for name, group in groups.items():
        assert row[f"watch/grad/{name}"] == pytest.approx(norm([p.grad for p in group]), rel=1e-4)  # type: ignore
    torch.nn.utils.clip_grad_norm_(other.parameters(), 0.01)
    optimizer = optim.optimizer(config.optim, other)
    for group in optimizer.param_groups:
        group["lr"] = 1e-3
    optimizer.step()
    for name, group in groups.items():
        moved = [p.detach() - was for p, was in zip(group, before[name], strict=True)]
        assert row[f"watch/update/{name}"] == pytest.approx(norm(moved), rel=1e-3)
    assert {name: row[f"watch/hidden/{name}"] for name in SUBLAYERS} == pytest.approx(streams, rel=1e-4)


def test_every_weight_is_in_one_group() -> None:
    for options in ({}, {"decoder_layers": 2}, {"encoder_layers": 0, "decoder_layers": 2}):
        model = model_of(**options)
        found = [id(p) for group in groups_of(model).values() for p in group]
        assert sorted(found) == sorted(id(p) for p in model.parameters())


def test_frozen_weights_are_in_no_group() -> None:
    model = model_of()
    model.encoder.blocks[0].ffn.requires_grad_(False)
    found = {id(p) for group in groups_of(model).values() for p in group}
    assert found == {id(p) for p in model.parameters() if p.requires_grad}


def test_a_layer_that_is_frozen_is_logged_as_still() -> None:
    model = model_of()
    model.encoder.blocks[0].ffn.requires_grad_(False)
    row, _ = look(model, Watch(every=1), lambda: None)
    assert row.get("watch/update/encoder.blocks.0.ffn", 0) == 0


# Training is not touched


def test_hooks_are_removed(tiny: Config, tmp_path: Path) -> None:
    model = model_of()
    look(model, Watch(every=1), lambda: None)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_a_run_that_was_stopped_goes_on_with_watch(watched: Path, config: Config, tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if event.kind == "update" and event.update == 6:
            raise RuntimeError("on purpose")

    run = tmp_path / "run"
    with pytest.raises(RuntimeError, match="on purpose"):
        train(config, run, [Watch(every=2), stop])
    resume(run, [Watch(every=2)])
    assert checkpoint.names(run) == checkpoint.names(watched)
    found, expected = weights(run, 8), weights(watched, 8)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert looks(run) == looks(watched)


def test_several_batches_an_update(config: Config, tmp_path: Path) -> None:
    settings = {"accumulate": 2, "updates": 2, "eval_every": 2}
    plain = train(config.set(train=settings), tmp_path / "plain")
    run = train(config.set(train=settings), tmp_path / "run", [Watch(every=1)])
    assert [row["update"] for row in looks(run)] == [1, 2]
    assert all(torch.equal(weights(run, 2)[name], value) for name, value in weights(plain, 2).items())


def test_one_watch_for_two_trainings(config: Config, watched: Path, tmp_path: Path) -> None:
    watch = Watch(every=2)
    settings = {"updates": 2, "eval_every": 2}
    for name in ("first", "second"):
        run = train(config.set(train=settings), tmp_path / name, [watch])
    assert looks(run) == looks(watched)[:1]


def test_a_run_with_watch_can_be_reported(watched: Path, leadline: Callable[..., Any], tmp_path: Path) -> None:
    answer = leadline("report", watched, "--out", tmp_path / "page.html")
    assert answer.code == 0, answer.err
    assert (tmp_path / "page.html").exists()


def test_the_command_line_watches(leadline: Callable[..., Any], tiny: Config, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(configuration.to_toml(tiny.set(train={"updates": 2})))
    answer = leadline("train", tmp_path / "config.toml", "--out", tmp_path / "run", "--watch", 1, "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["update"] == 2
    assert [row["update"] for row in looks(tmp_path / "run")] == [1, 2]
    refused = leadline("train", tmp_path / "config.toml", "--out", tmp_path / "other", "--watch", -1)
    assert refused.code == 2
    assert refused.err.splitlines()[-1].startswith("leadline: --watch must be 0 (off) or")


# The alarm


def look(
    model: Transformer, watch: Watch, change: Callable[[], None], lr: float = 1e-3
) -> tuple[dict[str, float], str]:
    """One look, with the weights changed by hand where the optimizer would."""
    watch.begin(model)
    model(pack_one([np.arange(3, 9)])).pow(2).mean().backward()
    watch.seen()
    watch.gradients()
    with torch.no_grad():
        change()
    model.zero_grad(set_to_none=True)
    return watch.end(lr)


class Hand:
    """Moves the weights of each layer by a given norm."""

    def __init__(self, alarm: float = 2.0) -> None:
        self.model = model_of()
        self.watch = Watch(every=1, alarm=alarm)
        self.names = list(connections_of(self.model))

    def move(self, size: float, lr: float = 1e-3, **others: float) -> str:
        """`ffn1=3`: the feed-forward of block 1 moves by 3 instead of `size`."""

        def change() -> None:
            for name in self.names:
                _, _, block, kind = name.split(".")
                weight = next(self.model.get_submodule(name).parameters())
                weight.view(-1)[0] += others.get(kind + block, size)

        row, alarm = look(self.model, self.watch, change, lr)
        for name in self.names:
            _, _, block, kind = name.split(".")
            assert row[f"watch/update/{name}"] == pytest.approx(others.get(kind + block, size), rel=1e-3)
        return alarm


def test_the_alarm_names_the_layer_whose_update_grew_most_and_is_raised_once() -> None:
    hand = Hand()
    assert [hand.move(0.1) for _ in range(ENOUGH)] == [""] * ENOUGH
    alarm = hand.move(0.1, ffn1=0.5, attn0=0.3)
    assert alarm.startswith("the update of encoder.blocks.1.ffn is 5.0 times its usual size, 1 more layers with it")
    assert "\n" not in alarm
    assert hand.move(0.1, ffn1=0.5, attn0=0.3) == ""  # said already
    assert hand.move(0.1) == ""


def test_an_alarm_of_one_layer_names_no_others() -> None:
    hand = Hand()
    for _ in range(ENOUGH):
        hand.move(0.1)
    assert "more layers" not in hand.move(0.1, attn1=0.25)


def test_a_layer_that_joins_later_is_an_alarm_of_its_own() -> None:
    hand = Hand()
    for _ in range(ENOUGH):
        hand.move(0.1)
    assert "blocks.1.ffn" in hand.move(0.1, ffn1=0.5)
    assert "blocks.0.attn" in hand.move(0.1, ffn1=0.5, attn0=0.5)


def test_the_alarm_is_raised_again_after_it_was_over() -> None:
    hand = Hand()
    for _ in range(ENOUGH):
        hand.move(0.1)
    assert hand.move(0.1, ffn1=0.5)
    assert hand.move(0.1) == ""
    assert hand.move(0.1, ffn1=0.5)


def test_there_is_no_alarm_before_enough_looks() -> None:
    hand = Hand()
    for _ in range(ENOUGH - 1):
        assert hand.move(0.1) == ""
    assert hand.move(5.0) == ""


def test_growth_below_the_threshold_is_no_alarm() -> None:
    hand = Hand(alarm=3.0)
    for _ in range(ENOUGH):
        hand.move(0.1)
    assert hand.move(0.29) == ""
    assert "3.1 times" in hand.move(0.31)


def test_what_noise_does_is_no_alarm() -> None:
    hand = Hand()
    for i in range(12):
        assert hand.move(0.1 * 1.6 ** (i % 3 - 1)) == ""
    assert hand.move(0.4) == ""
    assert hand.move(20.0)


def test_a_changing_rate_is_no_alarm() -> None:
    """Warm-up from 1e-6 to 1e-3, then a decay; the updates go with the rate."""
    hand = Hand()
    rates = [1e-6 * 4**k for k in range(6)] + [1e-3 / 2**k for k in range(6)]
    assert [hand.move(100 * lr, lr=lr) for lr in rates] == [""] * len(rates)
    assert "times its usual size" in hand.move(100 * 1e-4, lr=1e-5)


def test_what_is_usual_is_forgotten_in_time() -> None:
    hand = Hand()
    for _ in range(REMEMBERED):
        hand.move(0.1)
    said = [hand.move(0.5) for _ in range(REMEMBERED)]
    assert said[0]
    assert not any(said[1:])
    assert hand.move(0.5) == ""
    assert "4.0 times" in hand.move(2.0)


def test_nothing_to_compare_with_is_no_absurd_alarm() -> None:
    hand = Hand()
    for _ in range(ENOUGH):
        hand.move(0.1, ffn0=0.0)
    assert not re.search(r"\d{7}", hand.move(0.1, ffn0=0.001))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_raise_no_error(bad: float) -> None:
    hand = Hand()
    for _ in range(ENOUGH):
        hand.move(0.1)
    model = hand.model

    def poison() -> None:
        next(model.encoder.blocks[0].ffn.parameters()).fill_(bad)

    look(model, hand.watch, poison)
    row, _ = look(model, hand.watch, lambda: None)
    assert not np.isfinite(row["watch/hidden/encoder.blocks.1.ffn"])


def test_an_alarm_is_told_as_a_message(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []
    watch = Watch(every=2)
    monkeypatch.setattr(watch, "_alarm", lambda changes: "look out")
    train(config.set(train={"updates": 4}), tmp_path / "run", [watch, told.append])
    messages = [(event.update, event.message) for event in told if "look out" in event.message]
    assert messages == [(2, "update 2: look out"), (4, "update 4: look out")]
    kept = [(row["update"], row["alarm"]) for row in looks(tmp_path / "run") if "alarm" in row]
    assert kept == [(2, "look out"), (4, "look out")]


# Mistakes


@pytest.mark.parametrize("options", [{"every": 0}, {"every": -1}, {"alarm": 1.0}, {"alarm": 0.0}], ids=str)
def test_wrong_settings_are_one_sentence(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="every must be at least 1 and alarm above 1") as error:
        Watch(**options)
    assert "\n" not in str(error.value)


def test_it_is_a_watcher_and_others_are_not() -> None:
    assert isinstance(Watch(), Watcher)
    assert not isinstance(print, Watcher)
    assert leadline.Watch is Watch


# A run that diverges


def diverged(config: Config, folder: Path, *on_step: Any) -> list[dict[str, Any]]:
    absurd = config.set(optim={"lr": 1e18, "warmup": 0, "clip": 0.0, "schedule": "constant"})
    with pytest.raises(Diverged):
        train(absurd, folder, on_step)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_that_diverges_leaves_a_last_row_without_a_loss(config: Config, tmp_path: Path) -> None:
    rows = diverged(config, tmp_path / "run")
    assert rows[-1]["loss"] is None
    assert rows[-1]["update"] == len({row["update"] for row in rows})
    assert all(row["loss"] is not None for row in rows[:-1] if "loss" in row)


def test_a_run_that_diverges_while_watched(config: Config, tmp_path: Path) -> None:
    rows = diverged(config, tmp_path / "run", Watch(every=1))
    assert rows[-1]["loss"] is None
    assert "watch/grad/encoder.blocks.0.attn" in rows[0]


def test_a_run_that_diverged_can_be_reported(config: Config, tmp_path: Path, leadline: Callable[..., Any]) -> None:
    diverged(config, tmp_path / "run")
    answer = leadline("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert answer.code == 0, answer.err
