"""How contestants are timed: one process, warmed up, median of repeats; who raises is reported and stops nobody.

On a GPU one contestant after the other, its memory freed before the next. On a CPU they take turns, so that a machine
that is busy for a while is busy for all of them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from leadline.model.precision import DTYPES

Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What all contestants of a run share."""

    device: torch.device
    precision: str = "fp32"
    repeats: int = 3
    warmups: int = 1  # passes; the first one also compiles
    only: tuple[str, ...] = ()  # contestants whose name holds one of these; (): all
    slow: bool = False  # also those that take minutes to compile
    limit: float = 0.0  # seconds to build, compile and warm up a contestant; 0: as many as it takes
    clock: Callable[[], float] = time.perf_counter
    keep: Callable[[list[Row]], None] = lambda rows: None  # told the rows so far: what is measured is not lost


@dataclass(frozen=True)
class Work:
    """One pass of a contestant over the whole workload."""

    run: Callable[[], None]
    items: int  # done in a pass: tokens that are no padding, or sentences
    unit: str = "target_tokens"
    steps: int = 0  # updates in a pass
    flops: float = 0.0  # that the model needs for a pass, see bench.flops


Contestants = dict[str, Callable[[], Work]]  # name -> builds it; a name that begins with "leadline" is ours


@dataclass
class _Run:
    make: Callable[[], Work]
    work: Work | None = None
    first: float = 0.0  # seconds to build and for the first pass
    seconds: list[float] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    failed: str = ""


def compete(contestants: Contestants, setting: Setting, peak: float | None = None) -> list[Row]:
    """A row a contestant. `peak` is the FLOP/s of a large matrix product, measured in this run."""
    chosen = {
        name: make
        for name, make in contestants.items()
        if not setting.only or any(part in name for part in setting.only)
    }
    rows: list[Row] = []
    for together in [[name] for name in chosen] if setting.device.type == "cuda" else [list(chosen)]:
        rows += _take_turns({name: _Run(chosen[name]) for name in together}, setting, peak)
        compare(rows)
        setting.keep(rows)
    return rows


def _take_turns(runs: dict[str, _Run], setting: Setting, peak: float | None) -> list[Row]:
    if setting.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for name, run in runs.items():
        _attempt(name, run, lambda run: _begin(run, setting))
    for _ in range(setting.repeats):
        for name, run in runs.items():
            _attempt(name, run, lambda run: run.seconds.append(_timed(run, setting)))
    if setting.device.type == "cuda":
        for run in runs.values():
            used, held = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            run.memory = {"peak_gib": used / 2**30, "reserved_gib": held / 2**30}
    rows = [_row(name, run, peak) for name, run in runs.items()]
    runs.clear()
    free(setting.device)
    return rows


def _attempt(name: str, run: _Run, do: Callable[[_Run], None]) -> None:
    if run.failed:
        return
    try:
        do(run)
    except Exception as error:  # whatever a peer does, the others go on
        run.failed, run.work = reason(error), None
        print(f"{name}: failed, {run.failed}", flush=True)


def _begin(run: _Run, setting: Setting) -> None:
    torch.manual_seed(0)
    started = setting.clock()
    with within(setting.limit):
        run.work = run.make()
        for warmup in range(max(setting.warmups, 1)):
            _timed(run, setting)
            if not warmup:
                run.first = setting.clock() - started


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in what takes longer, again and again: a compiler may take the first for one of its own."""
    if not seconds:
        yield
        return

    def late(*_: object) -> None:
        raise TimeoutError(f"not ready after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _timed(run: _Run, setting: Setting) -> float:
    assert run.work is not None
    wait(setting.device)
    started = setting.clock()
    run.work.run()
    wait(setting.device)
    return setting.clock() - started


def _row(name: str, run: _Run, peak: float | None) -> Row:
    if run.failed or run.work is None:
        return {"contestant": name, "failed": run.failed}
    work, seconds = run.work, statistics.median(run.seconds)
    row: Row = {"contestant": name}
    if work.steps:
        row["ms_a_step"] = 1000 * seconds / work.steps
    row[f"{work.unit}_per_second"] = work.items / seconds
    if work.flops:
        row["tflops"] = work.flops / seconds / 1e12
        if peak:
            row["share_of_peak"] = work.flops / seconds / peak
    return row | run.memory | {"seconds": run.seconds, "first_pass_seconds": run.first}


def compare(rows: list[Row]) -> None:
    """Against the fastest of ours, by the median pass: all passes are over the same workload."""
    ours = [statistics.median(r["seconds"]) for r in rows if "seconds" in r and r["contestant"].startswith("leadline")]
    for row in rows:
        if ours and "seconds" in row:
            row["leadline_is_faster_by"] = statistics.median(row["seconds"]) / min(ours)


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def reason(error: BaseException) -> str:
    """One line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def free(device: torch.device) -> None:
    """What the last contestant held: call it when nothing points there any more."""
    if "torch._dynamo" in sys.modules:  # else there is nothing compiled, and loading it takes seconds
        torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def matrix_peak(setting: Setting) -> float:
    """FLOP/s of a square matrix product in the precision of the run: the best of five."""
    device = setting.device
    n, products = (8192, 10) if device.type == "cuda" else (1024, 2)
    a, b = (torch.randn(n, n, device=device).to(DTYPES[setting.precision]) for _ in range(2))
    best = float("inf")
    for repeat in range(6):
        wait(device)
        started = setting.clock()
        for _ in range(products):
            a @ b
        wait(device)
        if repeat:
            best = min(best, setting.clock() - started)
    del a, b
    free(device)
    return 2 * n**3 * products / best
