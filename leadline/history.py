"""What a run has measured: the one reader of metrics.jsonl. No torch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

from leadline.files import parse_json

CLOCK = ("seconds", "tokens_per_second", "wait_seconds", "wait_share")  # of a row: not the same in two equal trainings
MOST = 2**53  # updates, and more than any training has
Row = dict[str, Any]  # of one update: what was measured by name; None where it was not finite


@dataclass(frozen=True)
class History:
    rows: Sequence[Row]
    damaged: int = 0  # lines that are not measurements, the last one not counted

    def curve(self, key: str) -> tuple[list[float], list[float | None]]:
        """All measurements of a number; None where it was not finite."""
        rows = [row for row in self.rows if key in row]
        return [row["update"] for row in rows], [number(row[key]) for row in rows]

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
    """None for what is not finite, no number, or an integer beyond floating point."""
    with contextlib.suppress(OverflowError):
        return value if isinstance(value, int | float) and math.isfinite(value) else None
    return None


def lines(path: Path) -> list[tuple[bytes, Row | None]]:
    """Each line and what it says, None where it is damaged.

    Half a last line is no damage: a run that was killed, or is writing right now, leaves one.
    """
    *whole, last = path.read_bytes().split(b"\n")
    parsed = [(line, _parse(line)) for line in whole if line.strip()]
    return [*parsed, (last, row)] if (row := _parse(last)) else parsed


def _parse(line: bytes) -> Row | None:
    try:
        row = parse_json(line)
    except ValueError:  # what is not UTF-8 too
        return None
    return row if isinstance(row, dict) and "update" in row and all(map(_fits, row, row.values())) else None


def _fits(key: str, value: object) -> bool:
    """Whether a value is of the kind that its key has; whatever is not listed here is a number."""
    match key:
        case "update":
            return type(value) is int and 0 <= value <= MOST
        case "alarm":
            return isinstance(value, str)
        case "layers":
            return isinstance(value, list) and all(isinstance(name, str) for name in value)
        case "changed":
            return isinstance(value, dict) and all(isinstance(how, str) for how in value.values())
        case "settings":
            return isinstance(value, dict) and all(map(_is_setting, value.values()))
        case "pulse":
            return _is_table(value, float | None)
        case "rows":
            return _is_table(value, int)
    return value is None or isinstance(value, float) or number(value) is not None


def _is_setting(value: object) -> bool:
    """A number, or the numbers of several groups of weights, of which each may have several."""
    return all(map(_is_setting, value)) if isinstance(value, list) else number(value) is not None


def _is_table(value: object, kind: UnionType | type) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, list) and all(isinstance(one, kind) for one in each) for each in value
    )


def read(folder: Path) -> History:
    """What metrics.jsonl says; damaged lines are left out and counted."""
    try:
        rows = [row for _, row in lines(folder / "metrics.jsonl")]
    except FileNotFoundError:
        return History([])
    return History([row for row in rows if row], sum(row is None for row in rows))
