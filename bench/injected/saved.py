"""Going on from a bad batch: the loss at the end, with it rolled back and not."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench.injected.faults import TRAININGS, Case
from bench.injected.judge import RESULTS
from bench.injected.trainings import config_of


def saved(seeds: int) -> None:
    """Undisturbed, with a batch that is bad whenever it is met, and the same rolled back: the loss at the end."""
    from leadline import history
    from leadline.errors import Diverged
    from leadline.provenance import facts_of
    from leadline.training import loop

    with (RESULTS / "rollback.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["training", "seed", "at", "how", "valid_nll", "rolled back"])
        for training in TRAININGS[:3]:
            for seed in range(1, 1 + seeds):
                case = Case(training, "bad_rows", seed)
                for how in ("undisturbed", "ignore", "rollback"):
                    base = config_of(case)
                    train: dict[str, Any] = {"updates": 120, "save_every": 20, "eval_every": 60}
                    train["on_spike"] = "ignore" if how == "undisturbed" else how
                    with tempfile.TemporaryDirectory() as folder, _bad_rows(case, how != "undisturbed"):
                        run = Path(folder) / "run"
                        with contextlib.suppress(Diverged):
                            loop.train(base.set(train=train), run)
                        nll, back = history.read(run).last("valid_nll"), len(facts_of(run)["spikes"])
                    writer.writerow([training, seed, case.at, how, nll, back])
                    file.flush()
                    print(training, seed, how, f"{nll:.4f}", back, flush=True)


@contextlib.contextmanager
def _bad_rows(case: Case, bad: bool) -> Iterator[None]:
    """The rows of one update are bad whenever they are asked for in its epoch: random labels, twenty times over."""
    from leadline.tasks.base import Task

    collate, calls, rows_of = Task.collate, -1, {}

    def spoilt(self: Any, rows: Any, epoch: int = 0) -> Any:
        nonlocal calls
        calls += 1
        batch, key = collate(self, rows, epoch), (epoch, tuple(map(int, rows)))
        if calls == case.at:
            rows_of["bad"] = key
        if not bad or rows_of.get("bad") != key:
            return batch
        generator, words = torch.Generator().manual_seed(case.seed), self.store.manifest["vocab_size"]
        labels = torch.randint(8, words, batch.labels.shape, generator=generator)
        valid = batch.labels != 0 if self.config.task == "translation" else batch.labels >= 0
        return dataclasses.replace(
            batch, labels=torch.where(valid, labels, batch.labels), count=max(1, batch.count // 20)
        )

    Task.collate = spoilt  # type: ignore
    try:
        yield
    finally:
        Task.collate = collate  # type: ignore
