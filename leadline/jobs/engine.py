"""Many trainings: what is finished is skipped, what was stopped goes on, several run side by side.

A job is a config and a name. Its folder is named after a hash of the config, the data and the number of the numerics,
so figures that need the same run share it, and what other code computed is not taken for it. `result.json` says that it
is finished, and which code made it; its checkpoints are then deleted, metrics and config stay.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leadline import machine
from leadline.config import Config, settings, to_toml
from leadline.errors import UserError
from leadline.files import write_json
from leadline.provenance import NUMERICS
from leadline.training.events import Event

Result = dict[str, Any]
OnEvent = Callable[[str, Any], None]


@dataclass(frozen=True)
class Job:
    name: str  # for people
    config: Config
    data_key: str  # of the prepared data: see leadline.data.store
    watch: int = 0  # every so many updates, layers and output are looked at (leadline.diagnose); 0: never
    start: str = ""  # what tells the weights it starts from from others, where train.start names a run
    keep: tuple[str, ...] = ()  # checkpoints that are not deleted when it is finished
    group: str = ""  # what it is made for: a job of the same group and name takes the place of an earlier one

    @property
    def key(self) -> str:
        """Of everything that makes a difference to the result, which is not where the run is computed."""
        values = settings(self.config) | {"task": self.config.task, "data": self.data_key, "numerics": NUMERICS}
        values |= {"watch": self.watch} if self.watch else {}
        values |= {"start": self.start} if self.start else {}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def start_folder(self) -> Path:
        return Path(self.config.train.start) / "checkpoints" / self.config.train.start_checkpoint

    def folder(self, root: Path) -> Path:
        return root / f"{self.config.model.placement.rpartition(':')[2]}-{self.key}"


Execute = Callable[[Sequence[Job], Path, int, OnEvent], None]  # jobs, their root, how many at once


def finished(job: Job, root: Path) -> Result | None:
    try:
        result: Result = json.loads((job.folder(root) / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    kept = all((job.folder(root) / "checkpoints" / name).exists() for name in job.keep)
    return result if kept or result["diverged"] else None


def read_rows(job: Job, root: Path) -> list[dict[str, Any]]:
    """The lines of its metrics.jsonl."""
    lines = (job.folder(root) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def unfinished(jobs: Sequence[Job], root: Path) -> list[Job]:
    different = {job.key: job for job in reversed(jobs)}  # of equal ones the first
    return [job for job in reversed(different.values()) if finished(job, root) is None]


def stale(jobs: Sequence[Job], root: Path) -> Iterator[tuple[str, str]]:
    """(name, why) of earlier results that had the place of these jobs and cannot be used."""
    waiting = {(job.group, job.name): job for job in unfinished(jobs, root)}
    ours = {job.folder(root) for job in jobs}
    for path in sorted(root.glob("*/result.json")) if waiting else []:
        if path.parent in ours:
            continue
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            made_for = path.with_name("job.json")
            before = json.loads(made_for.read_text(encoding="utf-8")) if made_for.exists() else {}
            group = before.get("group")
            matching = [job for job in waiting.values() if job.name == result["name"] and group in (None, job.group)]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        for job in matching:
            yield job.name, f"the result in {path.parent} is not used: {_why(result, before, job)}"


def _why(result: Result, facts: dict[str, Any], job: Job) -> str:
    if result.get("numerics") != NUMERICS:
        return f"it was computed by numerics {result.get('numerics', 1)}, and this is {NUMERICS}"
    before, now = result.get("settings", {}), json.loads(json.dumps(settings(job.config)))
    changed = [key for key in before | now if before.get(key) != now.get(key)]
    texts = [f"{key} was {before.get(key, 'not there')} and is {now.get(key, 'not there')}" for key in changed]
    if facts.get("start") != job.start:
        texts.append("it started from other weights")
    if facts.get("watch") != job.watch:
        texts.append(f"it was looked into every {facts.get('watch')} updates, and this is every {job.watch}")
    if facts.get("data") != job.data_key:
        texts.append("it is of other data")
    return ", ".join(texts)


def tell_stale(jobs: Sequence[Job], root: Path, on_event: OnEvent) -> None:
    for name, why in stale(jobs, root):
        on_event(name, Event("message", 0, 0, {}, why))


def execute(jobs: Sequence[Job], root: Path, at_once: int = 1, on_event: OnEvent = lambda name, event: None) -> None:
    """Run what is not finished yet, each in a process of its own. `on_event(name, event)` hears of every step."""
    waiting = unfinished(jobs, root)
    running: dict[subprocess.Popen[str], Job] = {}
    failed: list[str] = []
    events: queue.Queue[tuple[str, Event]] = queue.Queue()
    threads = max(1, machine.cores() // max(1, min(at_once, len(waiting))))
    try:
        while waiting or running or not events.empty():
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[start(job, root, threads, events)] = job
            try:
                on_event(*events.get(timeout=0.1))
            except queue.Empty:
                for process in [process for process in running if process.poll() is not None]:
                    job = running.pop(process)
                    if process.returncode:
                        failed.append(f"{job.name}: {last_words(job.folder(root))}")
    finally:
        for process in running:
            process.terminate()  # the trainings save and leave
        for process in running:
            process.wait()
    require_none(failed, jobs)


def require_none(failed: Sequence[str], jobs: Sequence[Job]) -> None:
    if failed:
        raise UserError(f"{len(failed)} of {len(jobs)} runs failed; start again to go on with them; {failed[0]}")


def lay_out(job: Job, root: Path) -> Path:
    """The folder of a job, with what its worker reads."""
    folder = job.folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.toml").write_text(to_toml(job.config), encoding="utf-8")
    made_for = {"name": job.name, "group": job.group, "data": job.data_key, "start": job.start, "watch": job.watch}
    write_json(folder / "job.json", made_for)
    return folder


def start(job: Job, root: Path, threads: int, events: queue.Queue[tuple[str, Event]]) -> subprocess.Popen[str]:
    """The worker of one job; what it tells goes to `events`."""
    folder = lay_out(job, root)
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "leadline.jobs.worker", str(folder), job.name, str(job.watch), *job.keep],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )

    def listen() -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                events.put((job.name, Event(**json.loads(line))))

    threading.Thread(target=listen, daemon=True).start()
    return process


def last_words(folder: Path) -> str:
    lines = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"{lines[-1] if lines else 'it was killed'} ({folder / 'log.txt'})"
