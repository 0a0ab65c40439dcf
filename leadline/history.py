"""What a run has measured: the one reader of metrics.jsonl. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]  # of one update: what was measured by name; None where it was not finite


@dataclass(frozen=True)
class History:
    rows: Sequence[Row]
    damaged: int = 0  # lines that are not measurements, the last one not counted

    def curve(self, key: str, by: str = "update") -> tuple[list[float], list[float | None]]:
        """All measurements of a number; None where it was not finite."""
        rows = [row for row in self.rows if key in row]
        return [row[by] for row in rows], [number(row[key]) for row in rows]

    def points(self, key: str, by: str = "update") -> tuple[list[float], list[float]]:
        """Those that were finite."""
        rows = [row for row in self.rows if number(row.get(key)) is not None]
        return [row[by] for row in rows], [row[key] for row in rows]

    def first(self, key: str) -> float:
        """NaN where it was never measured."""
        return next(iter(self.points(key)[1]), math.nan)

    def last(self, key: str) -> float:
        """NaN where it was never measured."""
        return next(reversed(self.points(key)[1]), math.nan)


def number(value: object) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def parse(line: bytes | str) -> Row | None:
    """A measurement, or None for what is damaged."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # what is not UTF-8 too
        return None
    return row if isinstance(row, dict) and number(row.get("update")) is not None else None


def read(folder: Path) -> History:
    """What metrics.jsonl says; damaged lines are left out and counted.

    Half a last line is no damage: a run that was killed, or is writing right now, leaves one.
    """
    try:
        lines = (folder / "metrics.jsonl").read_bytes().split(b"\n")
    except FileNotFoundError:
        return History([])
    rows = [parse(line) for line in lines]
    return History([row for row in rows if row], sum(row is None for row in rows[:-1]))
