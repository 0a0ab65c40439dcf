"""kill -9 at any moment: a training that is resumed as often as it takes ends with the same weights and metrics."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from pathlib import Path

from bench.faults.process import Command, call
from bench.faults.subjects import Whole, metrics, weights
from leadline.training.run import is_run

EACH = 5  # kills of one training at the most


def trial(whole: Whole, folder: Path, rng: random.Random, longest: float) -> tuple[int, str]:
    """Kills of one life, and how it ended."""
    run = folder / "killed"
    shutil.rmtree(run, ignore_errors=True)
    kills = 0
    while kills < EACH:
        arguments = ["train", "--resume", run.name] if is_run(run) else whole.train(run.name)
        command = Command(arguments, folder)
        time.sleep(rng.uniform(0, longest))
        command.kill()
        ended = command.wait()
        if ended.code >= 0:  # it was faster
            if ended.code:
                return kills, f"refused: {ended.err.strip()}"
            break
        kills += 1
    arguments = ["train", "--resume", run.name] if is_run(run) else whole.train(run.name)
    ended = call(arguments, folder)
    if ended.crashed or ended.code:
        return kills, f"refused: {ended.err.strip()}"
    if weights(run) != whole.weights:
        return kills, "other weights"
    if metrics(run) != whole.metrics:
        return kills, "other metrics"
    return kills, "identical"


def run(wholes: list[Whole], folder: Path, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """At least `count` kills in all; failures are told in full."""
    rng, outcomes, failures, kills = random.Random(seed), Counter[str](), list[str](), 0
    while kills < count:
        for whole in wholes:
            begun = time.monotonic()
            more, outcome = trial(whole, folder, rng, longest=1.2)
            kills += more
            outcomes["identical" if outcome == "identical" else "FAILED"] += 1
            if outcome != "identical":
                failures.append(f"{whole.task}, {more} kills, {time.monotonic() - begun:.0f} s: {outcome}")
    outcomes["kills"] = kills
    return outcomes, failures
