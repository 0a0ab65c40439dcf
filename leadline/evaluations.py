"""RUN/evaluations: what `leadline evaluate` found by direction, as JSON and as CSV; a report reads it. No torch."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from leadline.files import Facts, read_json, reason, write_json, written

COLUMNS = ("direction", "kind", "sentences", "bleu", "chrf", "off_target", "off_target_references", "exact_match")


def write(run: Path, facts: Facts, apart: Iterable[str] = ()) -> list[str]:
    """SPLIT.json and SPLIT.csv; what to say of it.

    `apart`: how it differs from the whole split with the best checkpoint, which has a name of its own then.
    """
    folder, rows = run / "evaluations", facts["by_direction"]
    name = "-".join([facts["split"], *(re.sub(r"[^\w+=.]+", "-", each) for each in apart)])
    try:
        folder.mkdir(exist_ok=True)
        write_json(folder / f"{name}.json", facts)
        with written(folder / f"{name}.csv") as file:
            writer = csv.DictWriter(file, [*COLUMNS, "bleu_signature", "chrf_signature"], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        return [f"the table is not written to {folder}: {reason(error)}"]
    return [f"{folder / name}.json and .csv hold this table; leadline report {run} shows it as a heat map"]


def read(run: Path) -> Iterator[Facts]:
    """Every table, `name` being that of its file; what cannot be read is left out."""
    for path in sorted((run / "evaluations").glob("*.json")):
        try:
            facts = read_json(path)
            rows = [(row["direction"], float(row["bleu"]), row["kind"]) for row in facts["by_direction"]]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if rows and all(isinstance(direction, str) for direction, *_ in rows):
            yield facts | {"name": path.stem}
