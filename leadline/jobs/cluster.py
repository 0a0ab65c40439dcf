"""The jobs of leadline.jobs on a cluster, through Ray: a task a job, with a CPU, and a GPU if there are any.

A task starts the same worker in the job's folder as a run on this machine; for a run on several GPUs, one for each
of them, on one node. A training that is killed, with a process, its Ray worker or its whole node, goes on from its last
checkpoint wherever Ray finds room; one that fails does not.

Leadline is installed on every node, and `root`, the data and a run that training starts from have the same path on all
of them. Each node prepares the data for itself, unless LEADLINE_CACHE names a folder that they share.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from leadline.errors import UserError
from leadline.jobs import engine as local
from leadline.jobs.engine import Execute, Worker
from leadline.jobs.job import Job, OnEvent, finished, last_words, lay_out, unfinished
from leadline.training.events import Event
from leadline.training.run import absolute, locked
from leadline.training.signals import watching_signals

RETRIES = 3  # of a run whose process or node dies: more than that is no accident
PATIENCE = 120  # seconds: for trainings to save and leave; for the lock of a dead node, whose lease may be 90
ON_HEAD = {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}  # other nodes may die


class Killed(Exception):
    """A training that ended by a signal: Ray tries it again."""


def runner(on: str, processes: int = 1) -> Execute:
    """What `--on` asks for: "" processes on this machine, "ray" and "ray://HOST:PORT" a cluster.

    processes: that share each run, every one with a GPU of its own if there are any.

    "ray" is the cluster that Ray itself would take: RAY_ADDRESS, or one that `ray start` has started here, or else a
    new one of this machine alone. How many run at once is then Ray's to decide, by what they need and what there is.
    """
    if not on:
        return local.execute
    if not re.fullmatch("ray(://.+)?", on):
        raise UserError(f"--on cannot be {on!r}: use ray (the cluster of this machine) or ray://HOST:PORT")
    _ray()  # that it is missing comes to light before anything is prepared
    address = "" if on == "ray" else on
    return lambda jobs, root, at_once, on_event: execute(jobs, root, address, on_event, processes)


def execute(
    jobs: Sequence[Job],
    root: Path,
    address: str = "",
    on_event: OnEvent = lambda name, event: None,
    processes: int = 1,
) -> None:
    """As leadline.jobs.engine.execute. `address`: as for ray.init."""
    waiting = unfinished(jobs, root)
    if not waiting:
        return
    failed: list[str] = []
    with _connected(address) as ray, watching_signals() as signals:
        from ray.util.queue import Queue

        events = Queue(actor_options=ON_HEAD)
        task = ray.remote(max_retries=RETRIES, retry_exceptions=[Killed])(_work)
        there_are_gpus = ray.cluster_resources().get("GPU", 0) > 0
        wants_gpus = [there_are_gpus and job.config.train.device != "cpu" for job in waiting]
        _require_room(ray.nodes(), processes, any(wants_gpus))
        running: dict[Any, Job] = {}
        try:
            for job, on_gpus in zip(waiting, wants_gpus, strict=True):
                placed = task.options(num_cpus=processes, num_gpus=processes if on_gpus else 0)
                started = placed.remote(_anywhere(job), root.absolute(), events, processes)
                running[started] = job
            while running or not events.empty():
                if signals:
                    raise KeyboardInterrupt if signals[0] == signal.SIGINT else SystemExit(128 + signals[0])
                try:
                    on_event(*events.get(timeout=0.1))
                except queue.Empty:
                    for done in ray.wait(list(running), num_returns=len(running), timeout=0)[0]:
                        job = running.pop(done)
                        if words := _outcome(ray, done):
                            failed.append(f"{job.name}: {words}")
        finally:
            for left in running:
                ray.cancel(left)  # the trainings save and leave
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=PATIENCE)
    local.require_none(failed, jobs)


def _require_room(nodes: Sequence[Mapping[str, Any]], processes: int, gpus: bool) -> None:
    """A run that no node has room for would wait for ever. Each process takes a CPU, and one of `gpus` a GPU too."""
    kinds = ("CPU", "GPU") if gpus else ("CPU",)
    rooms = [min(int(node["Resources"].get(kind, 0)) for kind in kinds) for node in nodes if node["Alive"]]
    most = max(rooms, default=0)
    if processes > max(most, 1):
        needed = " and ".join(f"{kind}s" for kind in kinds)
        raise UserError(
            f"--processes {processes}: no node of the cluster has {needed} for more than {most}; ask for fewer"
        )


def _anywhere(job: Job) -> Job:
    """The same job for any node: no path is relative, and Ray says which GPU."""
    config = absolute(job.config)
    return replace(job, config=config.set(train={"device": config.train.device.partition(":")[0]}))


def _work(job: Job, root: Path, events: Any, processes: int = 1) -> str:
    """On a node: one job to its end. Returns the last words of one that failed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ray cancels by it; a node in the background ignores it
    _wait_for_lock(job.folder(root))
    if finished(job, root):  # by a task that was killed before it could say so
        return ""
    heard: queue.Queue[Any] = queue.Queue()
    folder = lay_out(job, root)
    workers = [Worker(1, heard, folder, place=place) for place in _places(processes)]
    left = 0
    try:
        while left < processes:
            try:
                _, said = heard.get(timeout=0.1)  # not longer: a task that sleeps does not hear that it is cancelled
            except queue.Empty:
                continue
            if isinstance(said, Event):
                events.put((job.name, said))
            left += said == local.LEFT
    finally:
        for worker in workers:
            worker.process.terminate()
        statuses = [worker.close() for worker in workers]
    words = last_words(folder) if any(statuses) else ""
    if min(statuses) < 0:
        raise Killed(words)
    return words


def _places(processes: int) -> list[dict[str, str]]:
    """What torchrun would tell each of the processes of one training."""
    if processes == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    return [shared | {"RANK": str(n), "LOCAL_RANK": str(n)} for n in range(processes)]


def _wait_for_lock(folder: Path) -> None:
    """A training whose Ray worker was killed takes a moment to save and leave."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            with locked(folder):
                return
        except UserError:
            time.sleep(0.2)


def _outcome(ray: Any, task: Any) -> str:
    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:  # killed too often, or it never started
        return str(getattr(error, "cause", error)).strip().splitlines()[-1]


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray loads
    try:
        import ray
    except ImportError:
        raise UserError("--on ray needs Ray, which is not installed: pip install 'leadline[ray]'") from None
    return ray


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    ray = _ray()
    try:
        with warnings.catch_warnings(action="ignore"):
            ray.init(address or None, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        hint = "is it running there, and if it asks for a token, is RAY_AUTH_MODE=token set here?"
        raise UserError(f"cannot connect to {address or 'ray'}: {reason}; {hint}") from None
    try:
        with redirect_stdout(sys.stderr):  # where Ray tells of nodes that died; stdout is for answers
            yield ray
    finally:
        ray.shutdown()
