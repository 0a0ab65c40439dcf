"""Keep a figure that was made: python docs/keep.py REPRODUCED NAME …, then python docs/make_claims.py.

Copies its claims, charts and what it read of its runs to docs/results/NAME. With runs.jsonl in REPRODUCED/NAME again,
`leadline reproduce NAME` makes the page anew without training.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def keep(made: Path, name: str) -> None:
    folder = RESULTS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copyfile(made / f"{name}.json", folder / "claims.json")
    for path in sorted((made / name).iterdir()):
        if path.suffix in (".csv", ".png", ".jsonl"):
            shutil.copyfile(path, folder / re.sub(r"^\d\d-", "", path.name))


if __name__ == "__main__":
    for each in sys.argv[2:]:
        keep(Path(sys.argv[1]), each)
