"""python -m bench.faults [kinds] [--count N]: break things many times over, and count what became of it.

kills   kill -9 at random moments, then resume           identical, or FAILED
disk    the n-th write, flush or rename fails            identical, told (one sentence, exit code 2), or FAILED
damage  a byte of any file flipped, zeroed, cut, gone    identical, told, or FAILED
cache   three processes prepare the same data at once    whole, or FAILED
inputs  wrong arguments, configs and files               done, told, or FAILED
world   kill -9 of one of several processes, then again  identical, or FAILED (not part of --short)
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch loads; forked processes must not share a pool of threads
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from bench.faults import cache, damage, disk, inputs, kills, world
from bench.faults.process import load
from bench.faults.subjects import RECIPES, make_text, make_whole

KINDS = {
    "kills": kills.run,
    "disk": disk.run,
    "damage": damage.run,
    "cache": cache.run,
    "inputs": inputs.run,
    "world": world.run,
}
LONG = {"kills": 500, "disk": 300, "damage": 500, "cache": 100, "inputs": 5000, "world": 50}
SHORT = {"kills": 2, "disk": 2, "damage": 4, "cache": 1, "inputs": 10}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="all if none is named")
    parser.add_argument("--count", type=int, help=f"trials of each; as it is: {LONG}")
    parser.add_argument("--tasks", nargs="+", choices=list(RECIPES), default=list(RECIPES), help="all if none is named")
    parser.add_argument("--short", action="store_true", help=f"translation alone, in seconds: {SHORT}")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    load()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "two" / "down"  # what a mistake writes to ../.. is removed too
        folder.mkdir(parents=True)
        os.environ |= {"LEADLINE_CACHE": str(folder / "cache"), "HOME": str(folder)}
        make_text(folder)
        wholes = [make_whole(task, folder) for task in given.tasks[: 1 if given.short else None]]
        for kind in given.kinds or list(SHORT if given.short else KINDS):
            count = given.count or (SHORT if given.short else LONG).get(kind, 1)
            begun = time.monotonic()
            outcomes, failures = KINDS[kind](wholes, folder, count, given.seed)
            failed += len(failures)
            counts = ", ".join(f"{name} {number:,}" for name, number in sorted(outcomes.items()))
            print(f"{kind}: {count:,} asked for: {counts}; {time.monotonic() - begun:.0f} s", flush=True)
            for failure in failures:
                print(f"  FAILED {failure}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
