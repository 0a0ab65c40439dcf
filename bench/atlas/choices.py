"""Judges what `optim.lr=auto` chose on cells held out, and what shorter trainings would have chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bench.atlas import design
from bench.atlas.design import Cell
from bench.atlas.rows import Row, Rows, cell_of


class Ladder(NamedTuple):
    """A cell of which every rate that is to be trained was trained, and in which something was learnt."""

    cell: Cell
    ends: dict[float, float]
    edge: float
    drawn: str  # for which set

    def worse(self, rate: float) -> float:
        return self.ends[rate] - min(self.ends.values())


def ladders(rows: Rows) -> tuple[list[Ladder], int]:
    """Those cells, and of how many held out nothing was learnt in any training."""
    sets = {"held out": design.held_out(), "second set": design.second()}
    drawn = {cell.name: name for name, cells in sets.items() for cell in cells}
    whole, nothing = [], 0
    for (name, seed), ends in rows.ends.items():
        if seed != 1 or rows.left(cell_of(name)):
            continue
        edge = design.edge(ends, rows.frequencies[name])
        if edge:
            whole.append(Ladder(cell_of(name), ends, edge, drawn.get(name, "design")))
        else:
            nothing += drawn.get(name) == "held out"
    return whole, nothing


def autos(rows: Rows) -> list[str]:
    """What optim.lr=auto chose, beside the best of the rates that were trained, and where it ended worse."""
    whole, nothing = ladders(rows)
    held, second = ([c for c in whole if c.drawn == name] for name in ("held out", "second set"))
    lines = [
        f"Of {len(held) + nothing} cells held out, nothing was learnt in {nothing}.",
        "",
        "| `optim.lr=auto` | cells | within 0.05 nats | within 0.1 | within 0.2 | above the edge | updates of a look |",
        "|---|---|---|---|---|---|---|",
        _auto("before (the last round half of a training, three rates)", whole, rows.earlier),
        _auto("as it is, held out", held, rows.autos),
        _auto("as it is, second set", second, rows.autos),
        "",
        "Where it ended more than 0.05 nats above the best, or above the edge, as it is:",
        "",
    ]
    for c in [*held, *second]:
        rate = float(rows.autos.get(c.cell.name, {}).get("rate", 0))
        if rate in c.ends and (c.worse(rate) > 0.05 or rate > c.edge):
            low, high = design.good(c.ends)
            lines.append(
                f"- {c.cell.name}: {rate:g} ends {c.worse(rate):.2f} above the best, {low:g} to {high:g} is good"
            )
    return [*lines, "", *parts([c for c in held if not c.cell.warmup], rows)]


def _auto(said: str, whole: Sequence[Ladder], chosen: dict[str, Row]) -> str:
    rows = [(c, chosen[c.cell.name]) for c in whole if c.cell.name in chosen]
    rows = [(c, row) for c, row in rows if row["rate"] in c.ends]
    spent = f"{np.median([row['updates'] for _, row in rows]):g}" if rows else "–"
    return f"| {said} | {near([(c, row['rate']) for c, row in rows])} | {spent} |"


def near(chosen: Sequence[tuple[Ladder, float]]) -> str:
    worse = [c.worse(rate) for c, rate in chosen]
    counts = [sum(w <= most for w in worse) for most in (0.05, 0.1, 0.2)]
    return " | ".join(map(str, [len(chosen), *counts, sum(rate > c.edge for c, rate in chosen)]))


def parts(whole: Sequence[Ladder], rows: Rows) -> list[str]:
    """How near the best the rate ends whose loss is lowest after only a part of each training."""
    lines = [
        "| the lowest loss after | cells | within 0.05 nats | within 0.1 | within 0.2 | above the edge |",
        "|---|---|---|---|---|---|",
    ]
    for part in design.PARTS:
        chosen = []
        for c in whole:
            looks = {rate: seen.get(c.cell.updates // part) for rate, seen in rows.looks[c.cell.name].items()}
            losses = {rate: look[0] for rate, look in looks.items() if look and look[0] is not None}
            if losses:
                chosen.append((c, min(losses, key=lambda rate: losses[rate])))
        lines.append(f"| {f'1/{part}' if part > 1 else 'all'} of the updates | {near(chosen)} |")
    return lines
