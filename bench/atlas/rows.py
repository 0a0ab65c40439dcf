"""The files of the atlas: what is there, and what is still to be made of each cell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.atlas import design
from bench.atlas.design import Cell

RESULTS = Path("bench/results")
KINDS = ("train", "probe", "auto", "verdict")
FILES = {
    "train": "atlas.jsonl",
    "probe": "atlas_probes.jsonl",
    "auto": "atlas_auto.jsonl",
    "verdict": "atlas_verdicts.jsonl",
}
EARLIER = "atlas_auto_earlier.jsonl"  # what the form of the search before this one chose
Row = dict[str, Any]


def cell_of(name: str) -> Cell:
    task, arch, placement, start, width, depth, optimizer, tokens, warmup = name.split("/")
    return Cell(task, arch, placement, start, int(width), int(depth), optimizer, int(tokens), int(warmup))


def read(path: Path) -> list[Row]:
    """A last line that was cut off is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


class Rows:
    """What has been measured so far; `add` appends to a file too."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder
        self.ends: dict[tuple[str, int], dict[float, float]] = {}  # by cell and seed: final losses; inf: diverged
        self.looks: dict[str, dict[float, dict[int, tuple[float | None, float]]]] = {}  # by cell, rate and update
        self.frequencies: dict[str, float] = {}
        self.probes: dict[str, list[Row]] = {}
        self.autos: dict[str, Row] = {}
        self.verdicts: dict[str, Row] = {}
        self.earlier: dict[str, Row] = {row["cell"]: row for row in read(folder / EARLIER)}
        for kind in KINDS:
            for row in read(folder / FILES[kind]):
                self._take(kind, row)

    def _take(self, kind: str, row: Row) -> None:
        if kind == "train":
            end = float("inf") if row["loss"] is None else float(row["loss"])
            self.ends.setdefault((row["cell"], row["seed"]), {})[row["rate"]] = end
            self.frequencies[row["cell"]] = row["frequencies"]
            if row["seed"] == 1:
                looks = {update: (loss, spread) for update, loss, spread in row.get("looks", [])}
                self.looks.setdefault(row["cell"], {})[row["rate"]] = looks
        elif kind == "probe":
            self.probes.setdefault(row["cell"], []).append(row)
        elif kind == "auto":
            self.autos[row["cell"]] = row
        else:
            self.verdicts[row["cell"]] = row

    def add(self, kind: str, rows: list[Row]) -> None:
        with (self.folder / FILES[kind]).open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
        for row in rows:
            self._take(kind, row)

    def left(self, cell: Cell) -> list[float]:
        """Rates still to be trained with the first seed."""
        rates = design.rates_left(cell, self.ends.get((cell.name, 1), {}), self.frequencies.get(cell.name, 0.0))
        auto = self.autos.get(cell.name)
        if not rates and auto and auto["rate"] not in self.ends[cell.name, 1]:
            return [float(auto["rate"])]
        return rates

    def edges_left(self, cell: Cell) -> list[tuple[float, int]]:
        """(rate, seed) around the edge, with the other seeds."""
        ends = self.ends.get((cell.name, 1), {})
        at = design.edge(ends, self.frequencies[cell.name]) if ends else 0.0
        around = [rate for rate in cell.ladder if at <= rate < 2.1 * at]
        return [(r, s) for r in around for s in design.EDGE_SEEDS if r not in self.ends.get((cell.name, s), {})]


Make = tuple[str, Callable[[], list[Row]]]


def jobs(cells: list[Cell], rows: Rows, kinds: tuple[str, ...], text: str, device: str) -> Iterator[Make]:
    """(kind of file, how its next rows are made): cell by cell; where the edges lie, other seeds at last."""
    from bench.atlas import trainings

    def train(cell: Cell, rate: float, seed: int) -> list[Row]:
        return [trainings.train(cell, rate, seed, text, device)]

    def choose(cell: Cell) -> list[Row]:
        return [trainings.choose(cell, rows.looks.get(cell.name, {}), text, device)]

    def verdict(cell: Cell) -> list[Row]:
        return [trainings.verdict(cell, text, device)]

    for cell in cells:
        if "train" in kinds:
            while left := rows.left(cell):
                yield "train", partial(train, cell, left[0], 1)
        if "probe" in kinds and cell.name not in rows.probes:
            yield "probe", partial(trainings.probe, cell, text, device)
        if "auto" in kinds and cell.name not in rows.autos:
            yield "auto", partial(choose, cell)
            while "train" in kinds and (left := rows.left(cell)):
                yield "train", partial(train, cell, left[0], 1)
        if "verdict" in kinds and cell.name not in rows.verdicts:
            yield "verdict", partial(verdict, cell)
    for cell in cells if "train" in kinds else []:
        for rate, seed in rows.edges_left(cell):
            yield "train", partial(train, cell, rate, seed)
