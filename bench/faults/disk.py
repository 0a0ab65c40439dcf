"""A disk that is full or broken from the n-th write on, or fails once: a clear error or the same result, never less."""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.faults.process import call
from bench.faults.subjects import Whole, metrics, weights
from leadline.training.run import is_run


class Faults:
    """Counts writes, flushes and renames of this process below a folder, and lets some of them fail."""

    def __init__(self, folder: Path, first: int, once: bool, number: int) -> None:
        self.folder, self.first, self.once, self.number, self.count = str(folder), first, once, number, 0

    def step(self, path: Any) -> None:
        if isinstance(path, str | os.PathLike) and str(Path(path).absolute()).startswith(self.folder):
            self.count += 1
            if self.count == self.first or (self.count > self.first and not self.once):
                raise OSError(self.number, os.strerror(self.number), str(path))

    def install(self) -> None:
        faults = self

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                faults.step(self.name)
                return super().write(data)

        plain = io.open

        def opened(
            file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
            newline: Any = None, closefd: bool = True, opener: Any = None,
        ) -> Any:  # fmt: skip
            if not set(mode) & set("wax") or isinstance(file, int) or "+" in mode or opener:
                return plain(file, mode, buffering, encoding, errors, newline, closefd, opener)
            faults.step(file)
            buffered = io.BufferedWriter(Raw(os.fspath(file), mode.replace("b", "").replace("t", "")))
            text = {"encoding": encoding or "utf-8", "errors": errors, "newline": newline}
            return buffered if "b" in mode else io.TextIOWrapper(buffered, line_buffering=buffering == 1, **text)

        builtins.open = io.open = opened
        for name in ("replace", "rename", "mkdir", "fsync"):
            setattr(os, name, self._failing(getattr(os, name)))

    def _failing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(place: Any, *arguments: Any, **options: Any) -> Any:
            self.step(f"{self.folder}/fsync" if isinstance(place, int) else place)
            return function(place, *arguments, **options)

        return called


def trial(whole: Whole, folder: Path, rng: random.Random) -> str:
    run = folder / "full"
    shutil.rmtree(run, ignore_errors=True)
    number = rng.choice([errno.ENOSPC, errno.EIO])
    faults = Faults(folder, rng.randrange(1, 160), rng.random() < 0.5, number)
    arguments = whole.train(run.name)
    if rng.random() < 0.3:  # the data must be prepared again
        shutil.rmtree(Path(os.environ["LEADLINE_CACHE"]), ignore_errors=True)
    ended = call(arguments, folder, before=faults.install)
    if ended.crashed:
        return f"crashed at operation {faults.first}, {errno.errorcode[number]}: {ended.err.strip()}"
    if ended.code == 0 and run.exists() and weights(run) != whole.weights:
        return f"other weights at operation {faults.first}"
    if ended.code not in (0, 2):
        return f"code {ended.code} at operation {faults.first}: {ended.err.strip()}"
    after = call(["train", "--resume", run.name] if is_run(run) else arguments, folder)
    if after.crashed or after.code or weights(run) != whole.weights or metrics(run) != whole.metrics:
        return f"cannot go on after operation {faults.first}: {after.err.strip() or 'other weights or metrics'}"
    return "identical" if ended.code == 0 else "told"


def run(wholes: list[Whole], folder: Path, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    rng, outcomes, failures = random.Random(seed), Counter[str](), list[str]()
    for number in range(count):
        whole = wholes[number % len(wholes)]
        outcome = trial(whole, folder, rng)
        outcomes[outcome if outcome in ("identical", "told") else "FAILED"] += 1
        if outcome not in ("identical", "told"):
            failures.append(f"{whole.task}: {outcome}")
    return outcomes, failures
