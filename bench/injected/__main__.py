"""Does `leadline explain` name what went wrong? Faults are put into small trainings, and healthy ones are left alone.

    python -m bench.injected make FOLDER --table sudden --seed 7     trains: every fault of a table (or healthy ones)
    python -m bench.injected judge FOLDER    bench/results/injected.csv: what explain says of each; docs/watch.md
    python -m bench.injected gallery FOLDER  docs/post-mortems.md
    python -m bench.injected others FOLDER   twenty other ways to break a training, and what explain says of each
    python -m bench.injected saved           bench/results/rollback.csv: trainings with a bad batch, rolled back and not
    python -m bench.injected cost            bench/results/watch_cost.csv: time of watching in a plain loop
    python -m bench.injected recorder        bench/results/recorder_cost.csv: time of the flight recorder in our loop

Trainings are of translation (number words), a masked LM and a language model (the standard library's docstrings), each
in our own loop, and of Hugging Face's GPT-2 in a plain one. A fault comes at a random update. The thresholds of explain
were chosen on even seeds; odd ones judge (bench/injected/judge.py says which are untouched). Healthy trainings (of five
seeds) have small batches, dropout and high rates; noisy ones (of two) besides a share of wrong labels, some batches
from elsewhere, the smallest batches, or a rate that restarts. A folder's trainings are kept, so `make` can be stopped
and started again.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bench.injected.cost import cost, cost_of_recording
from bench.injected.faults import cases
from bench.injected.gallery import gallery
from bench.injected.judge import judge, tell
from bench.injected.others import others
from bench.injected.saved import saved
from bench.injected.trainings import train


def make(folder: Path, table: str, seed: int) -> None:
    for case in cases(table, seed):
        place = folder / case.name
        if (place / "truth.txt").exists():
            continue
        shutil.rmtree(place, ignore_errors=True)
        began = time.perf_counter()
        where = train(case, place)
        (place / "truth.txt").write_text(where)
        print(f"{case.name}: {time.perf_counter() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "judge", "tell", "gallery", "others", "saved", "cost", "recorder"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument(
        "--table", choices=["sudden", "slow", "healthy", "noisy"], default="sudden", help="make: which faults"
    )
    parser.add_argument("--seed", type=int, default=7, help="make")
    parser.add_argument("--number", type=int, default=4, help="saved: seeds; cost, recorder: updates")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what in ("make", "judge", "gallery", "others") and given.folder is None:
        parser.error("name a folder for the trainings")
    does: dict[str, Callable[[], None]] = {
        "make": lambda: make(given.folder, given.table, given.seed), "judge": lambda: judge(given.folder), "tell": tell,
        "gallery": lambda: gallery(given.folder), "others": lambda: others(given.folder),
        "saved": lambda: saved(given.number), "cost": lambda: cost(given.number),
        "recorder": lambda: cost_of_recording(given.number),
    }  # fmt: skip
    does[given.what]()


if __name__ == "__main__":
    main()
