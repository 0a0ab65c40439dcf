"""RUN/evaluations: what `leadline evaluate` measured, as JSON; of many directions also as CSV. No torch."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from leadline.files import Facts, facts_in, reason, write_json, written

COLUMNS = ("direction", "kind", "sentences", "bleu", "chrf", "off_target", "off_target_references", "exact_match")


def write(run: Path, facts: Facts, apart: Iterable[str] = ()) -> list[str]:
    """SPLIT.json, and of many directions SPLIT.csv; what to say of it.

    `apart`: how it differs from the whole split with the best checkpoint, which has a name of its own then.
    """
    folder, rows = run / "evaluations", facts.get("by_direction")
    name = "-".join([facts["split"], *(re.sub(r"[^\w+=.]+", "-", each) for each in apart)])
    try:
        folder.mkdir(exist_ok=True)
        write_json(folder / f"{name}.json", facts)
        if rows is None:
            return []
        with written(folder / f"{name}.csv") as file:
            writer = csv.DictWriter(file, [*COLUMNS, "bleu_signature", "chrf_signature"], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        return [f"the scores are not written to {folder}: {reason(error)}"]
    return [f"{folder / name}.json and .csv hold this table; leadline report {run} shows it as a heat map"]


def every(run: Path) -> Iterator[Facts]:
    """All of them, `name` being that of its file; what cannot be read is left out."""
    for path in sorted((run / "evaluations").glob("*.json")):
        if (facts := facts_in(path)) is not None:
            yield facts | {"name": path.stem}


def read(run: Path) -> Iterator[Facts]:
    """Those by direction."""
    for facts in every(run):
        try:
            rows = [(row["direction"], float(row["bleu"]), row["kind"]) for row in facts["by_direction"]]
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
        if rows and all(isinstance(direction, str) for direction, *_ in rows):
            yield facts
