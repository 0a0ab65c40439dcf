"""A grid of fine-tunings, several seeds of each setting: what they score, and whose weights are kept."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from leadline.errors import UserError
from leadline.jobs.interval import mean_and_interval
from leadline.jobs.job import LAST, Job, JobResult, OnEvent, finished
from leadline.training.events import Event


@dataclass(frozen=True, order=True)
class Setting:
    batch: int  # sentences or pairs
    lr: float
    epochs: int


def settings_of(batches: Sequence[int], rates: Sequence[float], epochs: Sequence[int]) -> list[Setting]:
    if min(*batches, *epochs) < 1 or min(rates) <= 0:
        raise UserError("--batch and --epochs must be at least 1, --lr above 0")
    return [Setting(*each) for each in product(batches, rates, epochs)]


@dataclass(frozen=True)
class SettingScores:
    """What the runs of a setting have scored."""

    setting: Setting
    scores: list[float]  # of the runs that did not diverge
    diverged: int

    @property
    def mean(self) -> float:
        return mean_and_interval(self.scores)[0]

    @property
    def interval(self) -> float:
        """Half the width of the mean's 95 % confidence interval."""
        return mean_and_interval(self.scores)[1]

    def __str__(self) -> str:
        if not self.scores:
            return "diverged" if self.diverged else "–"
        text = f"{100 * self.mean:.1f}"
        text += f" ± {100 * self.interval:.1f}" if len(self.scores) > 1 else ""
        return text + (f" ({self.diverged} diverged)" if self.diverged else "")


def summary(setting: Setting, results: Sequence[JobResult], metric: str) -> SettingScores:
    scores = [result[f"valid_{metric}"] for result in results if not result["diverged"]]
    return SettingScores(setting, scores, sum(bool(result["diverged"]) for result in results))


Cell = tuple[Setting, int]  # a setting and a seed


@dataclass(frozen=True)
class Grid:
    """The best run of the best setting keeps its weights; all others lose theirs as soon as they cannot be it."""

    jobs: Mapping[Cell, Job]
    root: Path
    metric: str

    def results(self) -> dict[Cell, JobResult]:
        """Of the runs that are finished."""
        return {cell: result for cell, job in self.jobs.items() if (result := finished(job, self.root))}

    def scores(self, setting: Setting) -> SettingScores:
        return summary(setting, [result for (of, _), result in self.results().items() if of == setting], self.metric)

    def table(self) -> list[SettingScores]:
        return [self.scores(setting) for setting in dict.fromkeys(setting for setting, _ in self.jobs)]

    def best(self) -> Cell:
        """The best run of the setting with the best mean."""
        return self._best_of(_highest([each for each in self.table() if each.scores or each.diverged]))

    def _best_of(self, setting: Setting) -> Cell:
        results = {cell: result for cell, result in self.results().items() if cell[0] == setting}

        def score(cell: Cell) -> float:
            return -math.inf if results[cell]["diverged"] else results[cell][f"valid_{self.metric}"]

        return max(results, key=score)

    def train(self, at_once: int, on_event: OnEvent, execute: Callable[..., None]) -> None:
        """What is not finished yet; and the best once more where its weights are gone, as with another metric."""

        def tell(text: str) -> None:
            on_event("", Event("message", 0, 0, {}, text))

        left = [cell for cell, job in self.jobs.items() if finished(job, self.root) is None]
        counted = (
            f"{len(self.jobs)} runs: {len(self.table())} settings, {len(self.jobs) // len(self.table())} seeds each"
        )
        tell(f"{counted}; {len(left)} to do, {at_once} at a time" + ("; the first tells how long" if left else ""))
        began, told = time.monotonic(), list[float]()

        def ended(job: Job) -> None:
            self._prune()
            if not told and len(left) > 1:
                (first,) = (setting for (setting, _), each in self.jobs.items() if each.key == job.key)
                told.append(time.monotonic() - began)
                whole = told[0] / first.epochs * sum(setting.epochs for setting, _ in left) / min(at_once, len(left))
                tell(f"about {_duration(max(whole - told[0], 0))} left")

        execute([replace(self.jobs[cell], keep=(LAST,)) for cell in left], self.root, at_once, on_event, ended)
        best = replace(self.jobs[self.best()], keep=(LAST,))
        if finished(best, self.root) is None:
            tell(f"the weights of the best run ({best.name}) were not kept: it is trained again")
            execute([best], self.root, at_once, on_event, lambda job: None)
        self._prune()

    def _prune(self) -> None:
        """Keep the best run of the best setting, and of each that is not complete: its mean is not known yet."""
        results = self.results()
        begun = dict.fromkeys(setting for setting, _ in results)
        missing = {setting for setting, seed in self.jobs if (setting, seed) not in results}
        kept = {self._best_of(setting) for setting in begun if setting in missing}
        if complete := [self.scores(setting) for setting in begun if setting not in missing]:
            kept.add(self._best_of(_highest(complete)))
        for cell in results:
            if cell not in kept:
                shutil.rmtree(self.jobs[cell].folder(self.root) / "checkpoints", ignore_errors=True)


def _highest(table: Sequence[SettingScores]) -> Setting:
    return max(table, key=lambda each: -math.inf if math.isnan(each.mean) else each.mean).setting


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"
