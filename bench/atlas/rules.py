"""A rate from part of each training: which rule, of those tried, ends nearest to the best rate (see `second`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from bench.atlas.choices import Ladder, ladders, near
from bench.atlas.design import PROBE_STEPS
from bench.atlas.rows import Row, Rows

MOST = 1.0  # nats above the best: a choice counts as no worse
Seen = Mapping[float, Mapping[int, tuple[float | None, float]]]  # by rate and update: loss and diversity


class Rule(NamedTuple):
    """Of the rates below the first that has failed, the one with the lowest loss, halved so many times."""

    part: int  # of a training that is looked at: 8 is an eighth
    alike: float = 0.01  # of the diversity at the start: less has failed
    rising: bool = False  # a loss that has risen since half of the part has failed too
    halved: int = 0
    slack: float = 0.0  # nats: the lowest rate so near the lowest loss, in place of it
    ahead: int = 0  # how many times the last fall of the loss is taken to go on

    @property
    def said(self) -> str:
        differs = {name: value for name, value in self._asdict().items() if value != self._field_defaults.get(name)}
        return "lowest loss" + "".join(f", {name} {value}" for name, value in differs.items() if name != "part")

    def __call__(self, cell: Ladder, seen: Seen) -> float:
        now, before = (
            {rate: losses.get(cell.cell.updates // part, (None, 0.0)) for rate, losses in sorted(seen.items())}
            for part in (self.part, 2 * self.part)
        )
        losses: dict[float, float] = {}
        for rate, (loss, spread) in now.items():
            earlier = before[rate][0]
            if loss is None or spread < self.alike or (self.rising and earlier is not None and loss > earlier):
                break
            losses[rate] = loss + self.ahead * (loss - (earlier if earlier is not None else loss))
        if not losses:
            return nearest(cell, min(now) / 2**self.halved)
        lowest = min(losses.values())
        rate = min(rate for rate, loss in losses.items() if loss <= lowest + self.slack)
        return nearest(cell, rate / 2**self.halved)


SHARES, SLACKS = (0.01, 0.1, 0.3, 0.5), (0.0, 0.02, 0.05, 0.1, 0.2)
RULES = [Rule(8, alike, False, halved, slack) for alike, halved, slack in product(SHARES, range(4), SLACKS)]
RULES += [
    Rule(4, alike, rising, halved, slack, ahead)
    for alike, rising, halved, slack, ahead in product(SHARES, (False, True), range(4), SLACKS, range(3))
]


def nearest(cell: Ladder, rate: float) -> float:
    """Of the rates that were trained; of two as near the lower."""
    return min(sorted(cell.ends), key=lambda trained: round(abs(math.log(trained / rate)), 6))


def badness(rule: Rule, cells: Sequence[tuple[Ladder, Seen]]) -> float:
    return float(np.mean([min(cell.worse(rule(cell, seen)), MOST) for cell, seen in cells]))


def looked_at(rows: Rows, names: set[str], warmed: bool = False) -> list[tuple[Ladder, Seen]]:
    """Those cells without warm-up (or with) whose trainings were looked at after a part of them."""
    found = [(cell, rows.looks.get(cell.cell.name, {})) for cell in ladders(rows)[0] if cell.cell.name in names]
    return [(cell, seen) for cell, seen in found if any(seen.values()) and bool(cell.cell.warmup) == warmed]


def probed(rows: Rows, names: set[str], after: int, warmed: bool = False) -> list[tuple[Ladder, Seen]]:
    """The same of the looks of another draw, which were at every rate, after so many of its steps."""
    step = PROBE_STEPS.index(after)

    def seen(row: Row) -> tuple[float | None, float]:
        whole = len(row["losses"]) > step
        return (row["losses"][step], (row["diversities"][step] or 0.0) / row["spread"]) if whole else (None, 0.0)

    cells = [c for c in ladders(rows)[0] if c.cell.name in names & set(rows.probes) and bool(c.cell.warmup) == warmed]
    return [(c, {row["rate"]: {c.cell.updates // 4: seen(row)} for row in rows.probes[c.cell.name]}) for c in cells]


def lines(rows: Rows, fitted_on: set[str], judged_on: set[str]) -> list[str]:
    known = looked_at(rows, fitted_on)
    best = [
        min((rule for rule in RULES if rule.part == part), key=lambda rule: badness(rule, known)) for part in (8, 4)
    ]
    table = []
    for said, names in (("first two sets", fitted_on), ("second set", judged_on)):
        asked = [(f"1/{rule.part} of the training", looked_at(rows, names), rule) for rule in best]
        asked += [(f"{n} steps of another draw, every rate", probed(rows, names, n), best[1]) for n in (15, 30)]
        for where, cells, rule in asked:
            for tried in (Rule(rule.part), rule):
                chosen = [(cell, tried(cell, seen)) for cell, seen in cells]
                table.append(f"| {said} | {where} | {tried.said} | {near(chosen)} |")
    return [
        "| cells of | looked at | rate taken | cells | within 0.05 nats | within 0.1 | within 0.2 | above the edge |",
        "|---|---|---|---|---|---|---|---|",
        *table,
    ]
