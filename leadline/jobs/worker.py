"""A process of leadline.jobs: does the jobs of folders, each laid out by leadline.jobs.job.lay_out, one after another.

python -m leadline.jobs.worker [FOLDER …], or with the folders on stdin, a line each

Trains in a folder, or goes on there. What is to be heard of it goes to stdout, a JSON a line: events, and at the end of
each job "done"; whatever else is printed goes to the folder's log.txt. A process that has used a GPU leaves after one
job, so that the next has all of its memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from leadline import config as configuration
from leadline import history
from leadline.config import Config
from leadline.errors import Diverged, Interrupted, UserError
from leadline.files import Facts, read_json, write_json
from leadline.jobs.job import LAST
from leadline.provenance import stamp
from leadline.training.events import OnStep
from leadline.world import join, leave_with, tells


def work(folder: Path, tell: OnStep = lambda event: None) -> None:
    """Train what is laid out in a folder to its end, and write result.json."""
    from leadline.diagnose.drift import Drift
    from leadline.diagnose.watch import Watch
    from leadline.training.loop import resume, train
    from leadline.training.run import is_run

    world = join()
    config = configuration.load(folder / "job.toml")
    job = read_json(folder / "job.json")
    on_step: list[OnStep] = [tell]
    if watch := job["watch"]:
        on_step += [Watch(every=watch), Drift(watch, config.train.precision)]
        if world.leads:
            _forget(folder)  # what is compared with the beginning has to see it
        world.gather(0)
    diverged = ""
    try:
        if is_run(folder):
            resume(folder, on_step, allow_code=_own_code(config))
        else:
            train(config, folder, on_step)
    except Diverged as error:
        diverged = str(error)
    world.leave()  # the others would not wait for translations that take longer than LEADLINE_TIMEOUT
    if world.leads:
        _finish(folder, config, job, diverged)


def _finish(folder: Path, config: Config, job: Facts, diverged: str) -> None:
    """Write result.json."""
    from leadline.model.init import base_of

    measured = history.read(folder)
    updates = [row for row in measured.rows if "loss" in row]
    evaluations = [row for row in measured.rows if "valid_nll" in row]
    result: Facts = stamp() | {
        "name": job["name"],
        "settings": configuration.settings(config),
        "placement": config.model.placement,
        "init": base_of(config.model),
        "layers": [config.model.encoder_layers, config.model.decoder_layers],
        "seed": config.train.seed,
        "diverged": diverged,
        "updates": int(updates[-1]["update"]) if updates else 0,
        "seconds": max((row.get("seconds", 0.0) for row in updates), default=0.0),
    }
    result |= {key: value for key, value in (evaluations or [{}])[-1].items() if key.startswith("valid_")}
    if evaluations and (job.get("score") or job.get("samples")):
        result |= _translated(folder, job["score"], job["samples"], _own_code(config))
    write_json(folder / "result.json", result)
    _keep(folder, job.get("keep", ()))


def _own_code(config: Config) -> bool:
    """Whether the job itself, which is of this machine, names a placement to import."""
    return ":" in config.model.placement


def _translated(folder: Path, score: int, samples: Sequence[str], allow_code: bool) -> Facts:
    """What a translation makes of test sentences and of some others."""
    from leadline.training.trained import load

    trained = load(folder, "last", allow_code=allow_code)
    scores = trained.task().scores(trained.model, "test", score) if score else {}
    return {f"test_{key}": value for key, value in scores.items()} | {"translations": trained.translate(samples)}


def _keep(folder: Path, names: Sequence[str]) -> None:
    """Delete all other checkpoints."""
    there = sorted((folder / "checkpoints").glob("[0-9]*"))
    kept = {there[-1].name if name == LAST and there else name for name in names}
    if not kept:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    for path in there:
        if path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _forget(folder: Path) -> None:
    """All that the training has written, run.json first: what is left is not taken for a run."""
    from leadline.training.run import LAID_OUT

    written = [path for path in folder.iterdir() if path.name not in LAID_OUT and not path.name.startswith(".")]
    for path in (folder / "run.json", folder / "config.toml", *written):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def main(folders: Iterable[str]) -> None:
    say = _speak()
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    import torch

    import leadline.diagnose.drift
    import leadline.training.trained  # noqa: F401

    for folder in map(Path, folders):
        with (folder / "log.txt").open("a", encoding="utf-8") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        torch.set_num_threads(read_json(folder / "job.json").get("threads", 1))
        try:
            work(folder, lambda event: say(asdict(event)))
        except (UserError, Interrupted) as error:
            if tells():
                print(error, file=sys.stderr)
            leave_with(1)
        if torch.cuda.is_initialized():
            return
        say("done")


def _speak() -> Callable[[object], None]:
    """A function that says something to whoever has started this; print is for the log."""
    stdout = os.dup(1)
    os.dup2(2, 1)

    def say(something: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody listens any more: it is about to be told to leave
            os.write(stdout, f"{json.dumps(something)}\n".encode())

    return say


def _leave_with(parent: int) -> None:
    """A training whose command was killed saves and leaves, as for a SIGTERM."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # before and between trainings: the one who asks decides
    main(sys.argv[1:] or (line.rstrip("\n") for line in sys.stdin))
