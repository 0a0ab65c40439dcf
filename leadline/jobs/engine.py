"""Many trainings on this machine: what is finished is skipped, what was stopped goes on, several run side by side.

Each process does one job after another, so that torch is loaded once: see leadline.jobs.worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from leadline import machine
from leadline.errors import UserError
from leadline.jobs.job import Job, OnEvent, last_words, lay_out, unfinished
from leadline.training.events import Event

DONE, LEFT = "done", "left"  # a job; a process
Execute = Callable[[Sequence[Job], Path, int, OnEvent], None]  # jobs, their root, how many at once


def execute(
    jobs: Sequence[Job],
    root: Path,
    at_once: int = 1,
    on_event: OnEvent = lambda name, event: None,
    on_finished: Callable[[Job], None] = lambda job: None,
) -> None:
    """Run what is not finished yet. `on_event(name, event)` hears of every step, `on_finished(job)` of every end."""
    with Pool(at_once) as pool:
        pool.run(jobs, root, on_event, on_finished)


class Worker:
    """A process that trains. What it says goes to `heard`, as (worker, an event, DONE or LEFT)."""

    def __init__(
        self,
        threads: int,
        heard: queue.Queue[tuple[Worker, Event | str]],
        *folders: Path,
        place: Mapping[str, str] | None = None,
    ) -> None:
        """place: in a training of several processes, as torchrun tells it."""
        self.job: Job | None = None  # what it is doing
        self.process = subprocess.Popen(
            [sys.executable, "-m", "leadline.jobs.worker", *map(str, folders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)} | dict(place or {}),
        )
        threading.Thread(target=self._listen, args=(heard,), daemon=True).start()

    def _listen(self, heard: queue.Queue[tuple[Worker, Event | str]]) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                with contextlib.suppress(ValueError):  # half a line, of one that was killed
                    said = json.loads(line)
                    heard.put((self, said if said == DONE else Event(**said)))
        heard.put((self, LEFT))

    def begin(self, job: Job, folder: Path) -> None:
        assert self.process.stdin is not None
        self.job = job
        with contextlib.suppress(BrokenPipeError):  # one that has died says so by itself
            self.process.stdin.write(f"{folder}\n")
            self.process.stdin.flush()

    def close(self) -> int:
        """Wait for it to leave; its exit status."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        return self.process.wait()


class Pool:
    """At most `at_once` processes that train."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        # Of each training: of the machine and `--jobs` alone, because sums are rounded otherwise with another number.
        self.threads = max(1, machine.cores() // at_once)
        self.heard: queue.Queue[tuple[Worker, Event | str]] = queue.Queue()
        self.workers: list[Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.process.terminate()  # those that train save and leave
        for worker in self.workers:
            worker.close()

    def warm(self) -> Pool:
        """Start all processes now: they load torch while their jobs are prepared."""
        self.workers += [Worker(self.threads, self.heard) for _ in range(self.at_once - len(self.workers))]
        return self

    def run(
        self,
        jobs: Sequence[Job],
        root: Path,
        on_event: OnEvent = lambda name, event: None,
        on_finished: Callable[[Job], None] = lambda job: None,
    ) -> None:
        """As `execute`."""
        waiting, failed = unfinished(jobs, root), list[str]()
        while waiting or any(worker.job for worker in self.workers):
            while waiting and (worker := self._idle()):
                job = waiting.pop(0)
                worker.begin(job, lay_out(job, root, self.threads))
            worker, said = self.heard.get()
            if isinstance(said, Event):
                on_event(worker.job.name if worker.job else "", said)
                continue
            ended, worker.job = worker.job, None
            status = 0
            if said == LEFT:
                self.workers.remove(worker)
                status = worker.close()
            if ended and status:
                failed.append(f"{ended.name}: {last_words(ended.folder(root))}")
            elif ended:
                on_finished(ended)
        require_none(failed, jobs)

    def _idle(self) -> Worker | None:
        """One without a job; a new one where there is room."""
        if free := [worker for worker in self.workers if not worker.job]:
            return free[0]
        if len(self.workers) == self.at_once:
            return None
        self.workers.append(Worker(self.threads, self.heard))
        return self.workers[-1]


def require_none(failed: Sequence[str], jobs: Sequence[Job]) -> None:
    if failed:
        raise UserError(f"{len(failed)} of {len(jobs)} runs failed; start again to go on with them; {failed[0]}")
