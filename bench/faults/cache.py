"""Three processes that prepare the same data at once: each gets it whole, and nothing is left behind."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path

from bench.faults.process import Command
from bench.faults.subjects import RECIPES, Whole


def trial(whole: Whole, folder: Path, rng: random.Random) -> str:
    cache = Path(os.environ["LEADLINE_CACHE"])
    shutil.rmtree(cache, ignore_errors=True)
    recipe, options = RECIPES[whole.task]
    settings = [w for o in options.split() if o.startswith(("data.", "task")) for w in ("--set", o)]
    arguments = ["data", "prepare", recipe, *settings]
    killed = rng.random() < 0.3
    commands = [Command(arguments, folder) for _ in range(3)]
    if killed:
        time.sleep(rng.uniform(0, 0.5))
        commands[0].kill()
    for number, command in enumerate(commands):
        ended = command.wait()
        if ended.code and not (killed and number == 0):
            return ended.err.strip() or f"code {ended.code}"
    left = [path.name for path in cache.iterdir() if path.name.endswith("unfinished")]
    return f"left behind: {', '.join(left)}" if left and not killed else "whole"


def run(wholes: list[Whole], folder: Path, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    rng, outcomes, failures = random.Random(seed), Counter[str](), list[str]()
    for number in range(count):
        whole = wholes[number % len(wholes)]
        outcome = trial(whole, folder, rng)
        outcomes["whole" if outcome == "whole" else "FAILED"] += 1
        if outcome != "whole":
            failures.append(f"{whole.task}: {outcome}")
    return outcomes, failures
