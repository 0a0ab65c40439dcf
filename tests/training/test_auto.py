"""optim.lr=auto: what is chosen is written down with its reason, is the same each time, and stays with the run."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import weakref
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from leadline import config as configuration
from leadline import rates
from leadline.config import Config
from leadline.errors import UserError
from leadline.provenance import facts_of
from leadline.training import checkpoint, choosing
from leadline.training.events import Event
from leadline.training.loop import resume, train
from leadline.training.setup import Setup, set_up

SMALL = {"updates": 4, "epochs": 0, "batch_tokens": 64, "eval_every": -1}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "LADDERS", {"": (1e-3, 5)})
    monkeypatch.setattr(rates, "ENOUGH", 120)


@pytest.fixture
def asked(tiny: Config) -> Config:
    return tiny.set(train=SMALL, optim={"lr": "auto", "warmup": "auto", "schedule": "constant"})


def test_the_model_that_looked_is_gone_before_memory_is_released(
    asked: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a GPU keeps what the captured step, which allocates its own, then needs."""
    models: list[weakref.ref[nn.Module]] = []
    released: list[bool] = []

    def built(*arguments: Any) -> Setup:
        setup = set_up(*arguments)
        models.append(weakref.ref(setup.model))
        return setup

    def release() -> None:
        gc.collect()
        released.append(models[-1]() is None)

    monkeypatch.setattr(choosing, "set_up", built)
    monkeypatch.setattr(choosing, "release_memory", release)
    train(asked, tmp_path / "run")
    assert released == [True]


def test_it_is_chosen_written_with_its_reason_and_kept(asked: Config, tmp_path: Path) -> None:
    said: list[Event] = []
    run = train(asked, tmp_path / "run", [said.append])
    written = configuration.load(run / "config.toml")
    assert written.optim.lr in rates.ladder("Adam")
    assert written.optim.warmup == 0  # a tenth of 4
    text = (run / "config.toml").read_text()
    start = next(event.message for event in said if event.kind == "start")
    for key in ("optim.lr", "optim.warmup"):
        why = facts_of(run)["reasons"][key]
        assert f"{why}\n" in text
        assert why in start

    # The run that had these numbers from the beginning is the same.
    same = train(asked.set(optim={"lr": written.optim.lr, "warmup": 0}), tmp_path / "same")
    assert checkpoint.fingerprint(checkpoint.choose(run, "last")[1]) == checkpoint.fingerprint(
        checkpoint.choose(same, "last")[1]
    )

    # A run that goes on has them still, also where it is asked for auto.
    longer = dataclasses.replace(asked, train=dataclasses.replace(asked.train, updates=6))
    resume(run, config=longer)
    assert configuration.load(run / "config.toml").optim.lr == written.optim.lr
    assert facts_of(run)["reasons"].keys() == {"optim.lr", "optim.warmup"}
    resume(run, config=written.set(optim={"lr": 5e-4}, train={"updates": 7}))
    assert facts_of(run)["reasons"].keys() == {"optim.warmup"}


def test_a_collapse_or_a_loss_that_is_not_finite_is_not_chosen(asked: Config, tmp_path: Path) -> None:
    seen: list[float] = []
    search = rates.search

    def noting(trial: rates.Trial, ladder: list[float], updates: int, planned: int) -> tuple[float, list[rates.Tried]]:
        rate, tried = search(trial, [*ladder, 1e5, 1e30], updates, planned)
        seen.append(tried[len(ladder) // 2 + 1].loss)
        return rate, tried

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rates, "search", noting)
        run = train(asked, tmp_path / "run")
    assert seen == [float("inf")]
    assert configuration.load(run / "config.toml").optim.known_lr < 1


def test_it_starts_from_the_weights_that_training_starts_from(asked: Config, tmp_path: Path) -> None:
    first = train(asked.set(optim={"lr": 1e-3, "warmup": 1}), tmp_path / "first")
    began = []
    begin = choosing.chosen

    def noting(*arguments: object) -> object:
        began.append(arguments)
        return begin(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "chosen", noting)
        run = train(asked.set(train={"start": str(first)}), tmp_path / "second")
    (arguments,) = began
    assert arguments[-2].__name__ == "begun"
    assert configuration.load(run / "config.toml").optim.lr != "auto"


def test_what_it_cannot_choose_is_a_sentence(asked: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="inverse_sqrt without warm-up"):
        train(asked.set(optim={"schedule": "inverse_sqrt", "warmup": 1}), tmp_path / "a")
    with pytest.raises(UserError, match="the data is one batch"):
        train(asked.set(train={"batch_tokens": 100_000}), tmp_path / "b")
    monkeypatch.setattr(rates, "ENOUGH", 3)
    with pytest.raises(UserError, match="are needed; train longer"):
        train(asked, tmp_path / "c")
    with pytest.raises(UserError, match=r"optim\.lr must be a number or auto, not 'often'"):
        configuration.override(asked, ["optim.lr=often"])
    with pytest.raises(UserError, match="chosen when a training begins"):
        _ = asked.optim.known_lr
    assert not (tmp_path / "c" / "config.toml").exists()


def test_a_signal_ends_the_look(asked: Config, tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if event.message.startswith("choosing"):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(asked, tmp_path / "run", [stop])


def test_a_warm_up_alone_needs_no_look(asked: Config, tmp_path: Path) -> None:
    said: list[Event] = []
    run = train(asked.set(optim={"lr": 1e-3}, train={"updates": 20}), tmp_path / "run", [said.append])
    written = configuration.load(run / "config.toml")
    assert (written.optim.lr, written.optim.warmup) == (1e-3, 2)
    assert facts_of(run)["reasons"].keys() == {"optim.warmup"}
    assert not any(event.message.startswith("choosing") for event in said)
