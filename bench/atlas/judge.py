"""Fits the two answers on the atlas and judges them on what was left out: `python -m bench.atlas judge`.

Edge      up to which rate a model learns: a score of each rate of the ladder, made to fall with the rate; where it
          crosses zero. Features of a rate: how far above the rate with the lowest loss after the look it lies, how much
          of that rate's progress it makes, how alike its hidden states have become, how far the first step moves.
Best      the rate that ends best: the one with the lowest loss after the look, times a constant that is fitted.

Nothing is fitted on a task (or a family of architectures) that it is judged on. Beside them, judged in the same way:
kind      what placement, optimizer, width, depth and warm-up say without a look at the model (ridge regression)
critical  the lowest rate whose first step raises the loss on another batch, times a fitted constant
verdict   what `leadline inspect` says today; it was fitted elsewhere

An answer is withheld ("I do not know") where the look says nothing: no rate has lowered the loss by FLAT nats, or the
lowest loss is at an end of the ladder.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.atlas import design
from bench.atlas.choices import autos
from bench.atlas.design import Cell
from bench.atlas.rows import Rows, cell_of
from bench.calibrate import fit as logistic
from leadline.files import write_text

FLAT = 0.02
TINY = 1e-4


class Case(NamedTuple):
    cell: Cell
    ends: dict[float, float]  # final losses by rate
    edge: float
    good: tuple[float, float]
    rates: list[float]  # of the probe
    features: np.ndarray  # [rates, features]
    lowest: float  # rate with the lowest loss after the look
    critical: float
    known: str  # "": the look says something; else why not
    verdict: float  # 0: not asked

    @property
    def open_ended(self) -> bool:
        """The highest rate of the ladder learns: there is no edge in it."""
        return self.edge >= self.cell.ladder[-1]


def cases(rows: Rows) -> tuple[list[Case], list[str]]:
    """Those cells that are whole, and the names of those in which no training learnt anything."""
    whole, nothing = [], []
    for name, probes in rows.probes.items():
        cell, ends = cell_of(name), rows.ends.get((name, 1), {})
        if not ends or rows.left(cell):
            continue
        edge = design.edge(ends, rows.frequencies[name])
        if not edge:
            nothing.append(name)
            continue
        verdict = float(rows.verdicts.get(name, {}).get("highest_rate", 0.0))
        whole.append(case(cell, ends, edge, sorted(probes, key=lambda row: row["rate"]), verdict))
    return whole, nothing


def case(cell: Cell, ends: dict[float, float], edge: float, probes: Sequence[dict[str, Any]], verdict: float) -> Case:
    start = probes[0]["start"]
    after = [last_of(row, start) for row in probes]
    at = int(np.argmin(after))
    gained = max(start - after[at], TINY)
    rates = [row["rate"] for row in probes]
    features = [
        [
            math.log2(row["rate"] / rates[at]),
            max(-3.0, (start - loss) / gained),
            math.log10(max(least_of(row["diversities"]), TINY) / max(row["spread"], TINY)),
            math.log10(max(row["moved"][0] or 10.0, TINY)) if row["moved"] else 1.0,
        ]
        for row, loss in zip(probes, after, strict=True)
    ]
    rising = [r["rate"] for r in probes if not r["losses"] or r["losses"][0] is None or r["losses"][0] > start]
    known = "no rate lowers the loss" if gained < FLAT else ""
    if not known and at in (0, len(rates) - 1):
        known = "the lowest loss is at an end of the ladder"
    critical = min(rising, default=2 * rates[-1])
    return Case(cell, ends, edge, design.good(ends), rates, np.array(features), rates[at], critical, known, verdict)


def last_of(row: dict[str, Any], start: float) -> float:
    """The loss after the whole look; one that broke off counts as three times the start."""
    whole = len(row["losses"]) == len(design.PROBE_STEPS) and row["losses"][-1] is not None
    return min(row["losses"][-1], 3 * start) if whole else 3 * start


def least_of(values: Sequence[float | None]) -> float:
    """Of what was measured; one that broke off has nothing left that differs."""
    return min((v if v is not None else 0.0 for v in values), default=0.0)


Answer = Callable[[Case], float]


def edge_by_look(train: Sequence[Case]) -> Answer:
    x = np.concatenate([c.features for c in train])
    y = np.concatenate([[rate <= c.edge for rate in c.rates] for c in train]).astype(float)
    w = logistic(x, y)

    def answer(c: Case) -> float:
        scores = np.minimum.accumulate(np.c_[c.features, np.ones(len(c.rates))] @ w)
        below = int((scores > 0).sum())
        if below == 0:
            return c.rates[0] / 2
        if below == len(scores):
            return 2 * c.rates[-1]
        part = scores[below - 1] / max(scores[below - 1] - scores[below], 1e-9)
        return float(c.rates[below - 1] * 2**part)

    return answer


def times(train: Sequence[Case], measured: Answer, truth: Answer) -> Answer:
    factor = 2 ** float(np.median([math.log2(truth(c) / measured(c)) for c in train]))
    return lambda c: factor * measured(c)


def by_kind(train: Sequence[Case], truth: Answer) -> Answer:
    names = sorted({n for c in train for n in (c.cell.placement, c.cell.optimizer)})

    def row(c: Case) -> list[float]:
        given = (c.cell.placement, c.cell.optimizer)
        numbers = [math.log2(c.cell.width), math.log2(c.cell.depth), float(c.cell.warmup > 0), 1.0]
        return [float(name in given) for name in names] + numbers

    x, y = np.array([row(c) for c in train]), np.array([math.log2(truth(c)) for c in train])
    w = np.linalg.solve(x.T @ x + 0.3 * np.eye(x.shape[1]), x.T @ y)
    return lambda c: float(2 ** (np.array(row(c)) @ w))


def true_edge(c: Case) -> float:
    """Between the highest rate that learnt and the next."""
    return c.edge * math.sqrt(2)


def true_best(c: Case) -> float:
    return math.sqrt(c.good[0] * c.good[1])


def off_edge(c: Case, said: float) -> float:
    """How many times too high or too low; of a model without an edge only too low counts."""
    if c.open_ended and said >= c.edge:
        return 1.0
    return max(said / true_edge(c), true_edge(c) / said)


def off_best(c: Case, said: float) -> float:
    """From the nearer end of the interval of good rates; within it: 1."""
    return max(c.good[0] / said, said / c.good[1], 1.0)


QUESTIONS: dict[str, tuple[dict[str, Callable[[Sequence[Case]], Answer]], Callable[[Case, float], float]]] = {
    "edge": (
        {
            "look": edge_by_look,
            "lowest loss × constant": lambda t: times(t, lambda c: c.lowest, true_edge),
            "kind": lambda t: by_kind(t, true_edge),
            "critical rate": lambda t: times(t, lambda c: c.critical, true_edge),
            "verdict today": lambda t: lambda c: c.verdict,
        },
        off_edge,
    ),
    "best": (
        {
            "look": lambda t: times(t, lambda c: c.lowest, true_best),
            "kind": lambda t: by_kind(t, true_best),
            "critical rate": lambda t: times(t, lambda c: c.critical, true_best),
        },
        off_best,
    ),
}
GROUPS: dict[str, Callable[[Case], str]] = {"task": lambda c: c.cell.task, "family": lambda c: c.cell.family}


def judged(everything: Sequence[Case]) -> list[dict[str, Any]]:
    """A row a question, split and way of answering, with every wrong answer."""
    table = []
    for question, (ways, off) in QUESTIONS.items():
        for split, group in GROUPS.items():
            for way, make in ways.items():
                answers = []
                for left_out in sorted({group(c) for c in everything}):
                    answer = make([c for c in everything if group(c) != left_out])
                    answers += [(c, answer(c)) for c in everything if group(c) == left_out]
                table.append(_row(question, split, way, answers, off))
    return table


def _row(question: str, split: str, way: str, answers: Sequence[tuple[Case, float]], off: Any) -> dict[str, Any]:
    given = [(c, said) for c, said in answers if said and (way == "kind" or way == "verdict today" or not c.known)]
    offs = [off(c, said) for c, said in given]
    wrong = [
        f"{c.cell.name}: said {said:.1e}, is {truth(question, c)}"
        for (c, said), times in zip(given, offs, strict=True)
        if times > 2
    ]
    return {
        "question": question,
        "left out": split,
        "by": way,
        "cells": len(answers),
        "abstains": len(answers) - len(given),
        "within 2": sum(t <= 2 for t in offs) / max(len(offs), 1),
        "within 4": sum(t <= 4 for t in offs) / max(len(offs), 1),
        "wrong": wrong,
    }


def truth(question: str, c: Case) -> str:
    if question == "edge":
        return f"{c.edge:g} or more" if c.open_ended else f"{c.edge:g} to {2 * c.edge:g}"
    return f"{c.good[0]:g} to {c.good[1]:g}"


def page(rows: Rows) -> str:
    """The first tables of docs/inspect.md, without the second set."""
    second = {cell.name for cell in design.second()}
    whole, nothing = cases(rows)
    whole, nothing = [c for c in whole if c.cell.name not in second], [name for name in nothing if name not in second]
    trainings = sum(len(ends) for (name, _), ends in rows.ends.items() if name not in second)
    kinds = Counter(c.cell.task for c in whole), Counter(c.cell.family for c in whole)
    told = ["; ".join(f"{name} {count}" for name, count in sorted(kind.items())) for kind in kinds]
    lines = [
        f"{trainings} trainings of {len(whole) + len(nothing)} whole cells; in {len(nothing)} of them nothing was "
        f"learnt, which leaves {len(whole)} ({told[0]}; {told[1]}). The look says nothing for "
        f"{sum(bool(c.known) for c in whole)} of them.",
        "",
        "| question | left out | by | cells | abstains | within 2× | within 4× |",
        "|---|---|---|---|---|---|---|",
    ]
    table = judged(whole)
    for row in table:
        said = [f"{row['within 2']:.0%}", f"{row['within 4']:.0%}"] if row["abstains"] < row["cells"] else ["–", "–"]
        lines.append(
            "| "
            + " | ".join(str(row[k]) for k in ("question", "left out", "by", "cells", "abstains"))
            + f" | {said[0]} | {said[1]} |"
        )
    for row in table:
        if row["by"] == "look":
            lines += [
                "",
                f"Answers of the look that are off by more than 2 ({row['question']}, {row['left out']} left out):",
                "",
            ]
            lines += [f"- {wrong}" for wrong in row["wrong"]]
    return "\n".join([*lines, "", *autos(rows)]) + "\n"


DOCS = Path("docs/inspect.md")
BEGIN, END = "<!-- python -m bench.atlas {} --write -->\n", "<!-- end -->\n"


def written(docs: str, what: str, text: str) -> str:
    """The document with `text` in the place of what this command writes."""
    before, begin, rest = docs.partition(BEGIN.format(what))
    assert begin, what
    return f"{before}{begin}{text}{END}{rest.partition(END)[2]}"


def write(what: str, text: str) -> None:
    write_text(DOCS, written(DOCS.read_text(encoding="utf-8"), what, text))
