"""Rebuild a results figure from run folders: python docs/make_figures.py OUT "TITLE" "NAME=RUN" "NAME=RUN" …

Writes OUT.png and OUT.csv. A RUN may also be a folder that holds only the run's metrics.jsonl.
"""

from __future__ import annotations

import sys
from pathlib import Path

from leadline.report.figures import write_curves
from leadline.training.run import read_metrics

EVERY = 50  # training rows kept, so that the table stays small


def main(out: str, title: str, *named: str) -> None:
    runs = {}
    for each in named:
        name, _, folder = each.partition("=")
        rows = read_metrics(Path(folder))
        runs[name] = [row for row in rows if "valid_nll" in row or row["update"] % EVERY == 0]
    write_curves(runs, Path(f"{out}.png"), Path(f"{out}.csv"), title)


if __name__ == "__main__":
    main(*sys.argv[1:])
