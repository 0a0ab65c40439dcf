"""One training by one process with two threads, and by two processes with a thread each (torchrun, gloo).

Both make the same updates of the same batches. Tokens a second are those of metrics.jsonl; the first half of the
updates is not counted.

    python -m bench processes --size d256
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.command import watched
from bench.measure import Row, Setting
from leadline import history


@dataclass(frozen=True)
class Size:
    name: str
    updates: int
    settings: str


SIZES = {
    "tiny": Size("tiny", 4, "model.encoder_layers=1 model.decoder_layers=1 data.size=400 data.vocab_size=300"),
    "d64": Size("d64", 80, "model.dim=64 model.ffn_dim=256"),
    "d256": Size("d256", 24, "model.dim=256 model.ffn_dim=1024 model.heads=4"),
}
WAYS = {"one process, two threads": (1, 2), "two processes, a thread each": (2, 1), "one process, one thread": (1, 1)}


def tokens_per_second(size: Size, setting: Setting, way: tuple[int, int], run: Path) -> float:
    processes, threads = way
    given = [*size.settings.split(), "train.accumulate=2", f"train.updates={size.updates}", "train.epochs=0"]
    given += ["train.eval_every=-1", "train.log_every=1", "train.device=cpu", f"train.precision={setting.precision}"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)] * (processes > 1)
    command = [*(command or [sys.executable]), "-m", "leadline", "train", "numerals", "--out", str(run)]
    watched([*command, *(word for each in given for word in ("--set", each))], run, OMP_NUM_THREADS=str(threads))
    rows = [row for row in history.read(run).rows if "loss" in row]
    used = list(itertools.pairwise(rows))[len(rows) // 2 :]
    seconds = [after["seconds"] - before["seconds"] for before, after in used]
    return sum(row["tokens_per_second"] * each for (_, row), each in zip(used, seconds, strict=True)) / sum(seconds)


def run(size: Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> list[Row]:
    chosen = [name for name in WAYS if not setting.only or any(part in name for part in setting.only)]
    speeds: dict[str, list[float]] = {name: [] for name in chosen}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(setting.repeats):
            for number, (name, own) in enumerate(speeds.items()):
                own.append(tokens_per_second(size, setting, WAYS[name], Path(folder) / f"{repeat}-{number}"))
    return [
        {
            "contestant": name,
            "tokens_per_second": statistics.median(own),
            "seconds": [1e6 / each for each in own],  # of a million tokens
        }
        for name, own in speeds.items()
    ]
