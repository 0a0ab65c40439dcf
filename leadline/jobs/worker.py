"""One run of leadline.jobs: trains in FOLDER, or goes on there, and tells of it on stdout, a JSON a line.

python -m leadline.jobs.worker FOLDER NAME WATCH [CHECKPOINT …], of which the checkpoints are kept
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
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from leadline import config as configuration
from leadline.errors import Diverged, Interrupted, UserError
from leadline.files import write_json
from leadline.provenance import stamp
from leadline.training import run as runs
from leadline.training.events import Event


def work(folder: Path, name: str, watch: int, keep: Sequence[str] = ()) -> None:
    from leadline.diagnose.drift import Drift
    from leadline.diagnose.watch import Watch
    from leadline.model.init import base_of
    from leadline.training.loop import resume, train

    config = configuration.load(folder / "job.toml")
    on_step: list[Any] = [_tell]
    if watch:
        on_step += [Watch(watch), Drift(watch, config.train.precision)]
        _forget(folder)  # what is compared with the beginning has to see it
    diverged = ""
    try:
        resume(folder, on_step) if runs.is_run(folder) else train(config, folder, on_step)
    except Diverged as error:
        diverged = str(error)
    rows = runs.read_metrics(folder)
    updates = [row for row in rows if "loss" in row]
    evaluations = [row for row in rows if "valid_nll" in row]
    result: dict[str, Any] = stamp() | {
        "name": name,
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
    write_json(folder / "result.json", result)
    for checkpoint in (folder / "checkpoints").glob("*") if keep else [folder / "checkpoints"]:
        if checkpoint.name not in keep:
            shutil.rmtree(checkpoint, ignore_errors=True)


def _forget(folder: Path) -> None:
    """All that the training has written, run.json first: what is left is not taken for a run."""
    for name in ("run.json", "config.toml", "metrics.jsonl", "metrics.damaged.jsonl", "tokenizer.json"):
        (folder / name).unlink(missing_ok=True)
    for name in ("checkpoints", "tensorboard"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _tell(event: Event) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more: the training is about to be told to leave
        print(json.dumps(asdict(event)), flush=True)


def _leave_with(parent: int) -> None:
    """A training whose command was killed saves and leaves, as for a SIGTERM."""
    while os.getppid() == parent:
        time.sleep(0.5)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (nobody listens any more)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    try:
        work(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    except (UserError, Interrupted) as error:
        sys.exit(str(error))
