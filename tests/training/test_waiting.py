"""How long the device waits: between updates, as its own clock says, and not while something else is done."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from leadline import history
from leadline.config import Config
from leadline.tasks import Translation
from leadline.training.events import Event
from leadline.training.loop import train
from leadline.training.waiting import Waiting


def test_only_what_lies_between_two_updates_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0, 15.0, 100.0, 101.0, 103.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    waiting = Waiting(torch.device("cpu"))
    waiting.begins()  # of the first nothing is known
    waiting.ends()
    waiting.begins()
    assert waiting.seconds() == 2
    assert waiting.seconds() == 0
    waiting.ends()
    waiting.interrupted()
    waiting.begins()
    waiting.ends()
    waiting.begins()
    assert waiting.seconds() == 1


def test_on_a_gpu_its_own_clock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        times = iter([5.0, 1005.0])  # in thousandths

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = next(self.times)

        def elapsed_time(self, other: Any) -> float:
            return other.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    waiting = Waiting(torch.device("cuda"))
    waiting.ends()
    waiting.begins()
    assert waiting.seconds() == 1


def test_batches_that_come_late_are_seen_in_the_metrics(
    tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, updates, packs = Translation.pack, threading.Semaphore(), itertools.count()

    def late(self: Any, part: Any, *rest: Any) -> Any:
        if next(packs) > 1:  # the first are of the set-up and of the first update
            updates.acquire(timeout=1)
            time.sleep(0.05)
        return pack(self, part, *rest)

    def done(event: Event) -> None:
        if event.kind == "update":
            updates.release()

    updates.acquire()
    monkeypatch.setattr(Translation, "pack", late)
    run = train(tiny.set(train={"updates": 3, "eval_every": -1}), tmp_path / "run", [done])
    first, *others = history.read(run).rows
    assert (first["wait_seconds"], first["wait_share"]) == (0, 0)
    for row in others:
        assert row["wait_seconds"] >= 0.05
        assert 0 < row["wait_share"] <= 1
