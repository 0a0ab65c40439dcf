"""A byte of any file flipped, zeroed, or the rest of the file gone: the same result, or an error that says so."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path

from bench.faults.process import Ended, call
from bench.faults.subjects import USES, Whole, metrics, weights

CUT_AT = "00000012"  # an unfinished run has no later checkpoint than this


def damage(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    kind = rng.choice(["flip", "zero", "cut", "gone"] if content else ["gone"])
    place = rng.randrange(len(content)) if content else 0
    if kind == "flip":
        content[place] ^= 1 << rng.randrange(8)
    elif kind == "zero":
        content[place] = 0
    elif kind == "cut":
        del content[place:]
    if kind == "gone":
        path.unlink()
    else:
        path.write_bytes(content)
    return f"{kind} at byte {place}"


def unfinished(whole: Whole, run: Path) -> None:
    """As if it had been killed after update 12; a run that has nothing left to go on from would test nothing."""
    shutil.copytree(whole.folder, run)
    for path in (run / "checkpoints").iterdir():
        if path.name > CUT_AT:
            shutil.rmtree(path)
    if not (run / "checkpoints" / CUT_AT).exists():
        raise RuntimeError(f"{whole.task}: no checkpoint {CUT_AT} is kept")


class Answers:
    """What commands say of a whole run, asked once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[tuple[str, str], Ended] = {}

    def of(self, whole: Whole, command: str) -> Ended:
        key = (whole.task, command)
        if key not in self.known:
            shutil.copytree(whole.folder, self.folder / "damaged")
            self.known[key] = ask(whole.task, command, self.folder)
            shutil.rmtree(self.folder / "damaged")
        return self.known[key]


def ask(task: str, command: str, folder: Path) -> Ended:
    use, *options = USES.get(task, [""])
    arguments = {
        "evaluate": ["evaluate", "damaged", "--json"],
        "use": [use, "damaged", *options],
        "resume": ["train", "--resume", "damaged"],
        "report": ["report", "damaged", "--out", "page.html"],
    }[command]
    return call(arguments, folder, stdin=b"ab\tcd\nefg\th\n" if use == "classify" else b"ab cd\nefg\n")


def trial(whole: Whole, folder: Path, rng: random.Random, answers: Answers) -> str:
    run = folder / "damaged"
    shutil.rmtree(run, ignore_errors=True)
    asked = ["resume", "resume", "evaluate", "report"] + ["use"] * (whole.task in USES)
    command = rng.choice(asked)
    expected = answers.of(whole, command)
    unfinished(whole, run) if command == "resume" else shutil.copytree(whole.folder, run)
    cache = Path(os.environ["LEADLINE_CACHE"])
    place = cache if command in ("resume", "evaluate") and rng.random() < 0.4 else run
    files = sorted(path for path in place.rglob("*") if path.is_file() and "tensorboard" not in path.parts)
    path = rng.choice(files)
    saved = path.read_bytes()
    what = f"{command}, {path.relative_to(place)}, {damage(path, rng)}"
    ended = ask(whole.task, command, folder)
    try:
        if ended.crashed:
            return f"{what}: {ended.err.strip()}"
        if ended.code:
            return "told" if ended.code == 2 and len(ended.err.strip().splitlines()) <= 12 else f"{what}: {ended.err}"
        return _compared(what, command, ended, expected, whole, run)
    finally:
        if place == cache:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(saved)


def _compared(what: str, command: str, ended: Ended, expected: Ended, whole: Whole, run: Path) -> str:
    """A run that was told to have lost something may have other metrics, never other weights."""
    told = any(word in ended.err for word in ("damaged", "missing", "restored", "dropped", "prepared again", "gone"))
    if command == "resume":
        if weights(run) != whole.weights:
            return f"{what}: other weights: {ended.err.strip()}"
        if metrics(run) != whole.metrics and not told:
            return f"{what}: other metrics without a word"
        return "told" if told else "identical"
    if command == "report" or ended.out == expected.out:
        return "identical"
    return "told" if told else f"{what}: another answer without a word: {ended.out[:200]}"


def run(wholes: list[Whole], folder: Path, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    rng, outcomes, failures = random.Random(seed), Counter[str](), list[str]()
    answers = Answers(folder)
    for number in range(count):
        whole = wholes[number % len(wholes)]
        outcome = trial(whole, folder, rng, answers)
        outcomes[outcome if outcome in ("identical", "told") else "FAILED"] += 1
        if outcome not in ("identical", "told"):
            failures.append(f"{whole.task}: {outcome}")
    return outcomes, failures
