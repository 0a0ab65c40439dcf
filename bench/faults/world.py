"""`leadline ARGUMENTS` by several processes, as torchrun starts them, forked: torch is loaded once.

One of them is killed with kill -9 at a random moment; all must end soon, and when they are started again, as torchrun
does it, the training must end with the weights and metrics of one that nothing has disturbed.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from bench.faults.process import Command, Ended
from bench.faults.subjects import Whole, make_whole, metrics, weights

SOON = 15.0  # seconds within which processes notice that another has died
SIZES = (2, 3)


class Together:
    """The processes of one training. Where they meet is kept here, as torchrun keeps it: it outlives all of them."""

    def __init__(
        self,
        arguments: Callable[[int], list[str]],
        size: int,
        folder: Path,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        from torch.distributed import TCPStore

        self.arguments, self.size, self.folder = arguments, size, folder
        with socket.socket() as free:
            free.bind(("localhost", 0))
            self.port = free.getsockname()[1]
        self.store = TCPStore("localhost", self.port, is_master=True, wait_for_workers=False)
        self.starts = 0
        self.start(before)

    def start(self, before: Callable[[], None] = lambda: None) -> None:
        """Also again, after some have died; `before` runs in each first."""
        about = {"WORLD_SIZE": self.size, "LOCAL_WORLD_SIZE": self.size}
        about |= {"MASTER_ADDR": "localhost", "MASTER_PORT": self.port}  # type: ignore[dict-item]
        about |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": self.starts}
        self.starts += 1

        def become(rank: int) -> None:
            from leadline import world
            from leadline.cli import terminal

            os.environ |= {key: str(value) for key, value in (about | {"RANK": rank, "LOCAL_RANK": rank}).items()}
            world.join.cache_clear()
            terminal.screen.quiet = rank > 0
            before()

        self.commands = [
            Command(self.arguments(rank), self.folder, before=lambda rank=rank: become(rank))  # type: ignore[misc]
            for rank in range(self.size)
        ]

    def end(self) -> None:
        """As torchrun does soon after one has failed."""
        time.sleep(0.1)
        for command in self.commands:
            with contextlib.suppress(ProcessLookupError):
                os.kill(command.pid, signal.SIGTERM)

    def wait(self, limit: float = 120.0) -> list[Ended]:
        return [command.wait(limit) for command in self.commands]


def together(arguments: list[str], size: int, folder: Path) -> list[Ended]:
    """How each process ends that does the same."""
    return Together(lambda rank: arguments, size, folder).wait()


def trial(whole: Whole, folder: Path, rng: random.Random) -> str:
    """How one training ended of which a process was killed."""
    run, size = folder / "killed", rng.choice(SIZES)
    shutil.rmtree(run, ignore_errors=True)
    processes = Together(lambda rank: whole.train(run.name), size, folder)
    time.sleep(rng.uniform(0.0, 3.0))
    victim = rng.randrange(size)
    processes.commands[victim].kill()
    killed = time.monotonic()
    processes.end()
    ended = processes.wait()
    if all(each.code == 0 for each in ended):  # it was faster
        return _compared(run, whole)
    if time.monotonic() - killed > SOON:
        return f"FAILED: {time.monotonic() - killed:.0f} s until all had ended"
    allowed = (-signal.SIGKILL, -signal.SIGTERM, 0, 2, 128 + signal.SIGTERM)
    if any(each.code not in allowed or "Traceback" in each.err for each in ended):
        return f"FAILED: {[each.err for each in ended]}"
    processes.start()
    ended = processes.wait()
    if any(each.code for each in ended):
        return f"FAILED: {[each.err for each in ended]}"
    return _compared(run, whole)


def _compared(run: Path, whole: Whole) -> str:
    if weights(run) != whole.weights:
        return "FAILED: other weights"
    return "identical" if metrics(run) == whole.metrics else "FAILED: other metrics"


def run(wholes: list[Whole], folder: Path, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """`count` trainings, of all tasks in turn; failures are told in full."""
    rng, outcomes, failures = random.Random(seed), Counter[str](), list[str]()
    wholes = [make_whole(whole.task, folder, f"train.accumulate={max(SIZES)}") for whole in wholes]
    for number in range(count):
        whole = wholes[number % len(wholes)]
        outcome = trial(whole, folder, rng)
        outcomes[outcome.partition(":")[0]] += 1
        if outcome != "identical":
            failures.append(f"{whole.task}, training {number}: {outcome}")
    return outcomes, failures
