"""Fits the verdict's three numbers on part of the grid and scores them on the rest, with every confusion listed."""

from __future__ import annotations

import csv
import datetime
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leadline.cli.terminal import table
from leadline.diagnose.verdict import Features, highest_rate, probability, score
from leadline.files import write_json

TUNED_ON = 64  # width of the models the numbers are fitted on; the others are only scored
# What is measured was chosen with a look at the first two sets; the third was trained afterwards.
SETS = {"tuned_on": (TUNED_ON,), "held_out": (32, 128), "trained_afterwards": (48, 96)}
Row = dict[str, str]
CellKey = tuple[str, int, int]  # placement, layers, width


def cell_of(row: Row) -> CellKey:
    return row["placement"], int(row["layers"]), int(row["dim"])


def features_of(row: Row) -> Features:
    return Features(*(float(row[name]) for name in Features._fields))


def highest_learnt(grid: Sequence[Row], warmup: int) -> dict[CellKey, float]:
    """The highest rate of each cell that learnt; 0: none did."""
    highest: dict[CellKey, float] = defaultdict(float)
    for row in grid:
        if int(row["warmup"]) == warmup:
            rate = float(row["lr"]) if row["learnt"] == "1" else 0.0
            highest[cell_of(row)] = max(highest[cell_of(row)], rate)
    return dict(highest)


def fit(x: np.ndarray, y: np.ndarray, ridge: float = 1e-2) -> np.ndarray:
    """Logistic regression by Newton's method; the last number is the intercept."""
    a = np.c_[x, np.ones(len(x))]
    w = np.zeros(a.shape[1])
    for _ in range(100):
        p = 1 / (1 + np.exp(-a @ w))
        hessian = (a * (p * (1 - p))[:, None]).T @ a + ridge * np.eye(len(w))
        w = w - np.linalg.solve(hessian, a.T @ (p - y) + ridge * w)
    return w


def auroc(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """How often a run that learnt scores above one that did not; ties count half."""
    good = np.array([s for s, y in zip(scores, labels, strict=True) if y])
    bad = np.array([s for s, y in zip(scores, labels, strict=True) if not y])
    return float(np.mean((good[:, None] > bad) + 0.5 * (good[:, None] == bad)))


def warmup_gains(grid: Sequence[Row]) -> list[tuple[int, float]]:
    """How many times the highest rate rises with a warm-up: geometric mean over the cells tuned on."""
    without = highest_learnt(grid, 0)
    gains = []
    for warmup in sorted({int(row["warmup"]) for row in grid} - {0}):
        rates = highest_learnt(grid, warmup)
        logs = [
            math.log2(rate / without[c]) for c, rate in rates.items() if c[2] == TUNED_ON and rate and without.get(c)
        ]
        gains.append((warmup, round(2 ** float(np.mean(logs)), 2)))
    return gains


def run(grid: Sequence[Row], probes: Sequence[Row]) -> None:
    truth = highest_learnt(grid, 0)
    # A rate below one that learnt is not unstable: at worst it is too slow for the updates it was given.
    trained = {(cell_of(r), float(r["lr"])) for r in grid if int(r["warmup"]) == 0}
    found_rows = ((cell_of(r), float(r["lr"]), features_of(r)) for r in probes)
    rows = [(cell, lr, features) for cell, lr, features in found_rows if (cell, lr) in trained]
    labels = [lr <= truth[cell] for cell, lr, _ in rows]
    tuned = [cell[2] == TUNED_ON for cell, *_ in rows]
    w = fit(np.array([features for *_, features in rows])[tuned], np.array(labels, dtype=float)[tuned])
    numbers = {name: round(float(value), 3) for name, value in zip([*Features._fields, "intercept"], w, strict=True)}
    scores = [score(features, numbers) for *_, features in rows]

    facts: dict[str, Any] = {"score": numbers, "warmup_gain": warmup_gains(grid)}
    for name, widths in SETS.items():
        chosen = [cell[2] in widths for cell, *_ in rows]
        if any(chosen):
            title = f"{name.replace('_', ' ')} (width {' and '.join(map(str, widths))})"
            facts[name] = report(title, rows, scores, labels, chosen, truth)
    held = [i for i, (cell, *_) in enumerate(rows) if cell[2] in SETS["held_out"]]
    facts["auroc_of_collapse_alone"] = round(auroc([rows[i][2].collapse for i in held], [labels[i] for i in held]), 4)
    facts["with_warmup"] = with_warmup(grid, rows, scores, dict(facts["warmup_gain"]))
    facts["runs"], facts["date"] = len(grid), datetime.date.today().isoformat()
    write_json(Path("leadline/diagnose/calibration.json"), facts)
    write_measured(truth, probes)


def write_measured(truth: dict[CellKey, float], probes: Sequence[Row]) -> None:
    """The table `leadline advise` reads."""
    change = {(cell_of(r), float(r["lr"])): f"{10 ** float(r['first']):.3f}" for r in probes}
    with Path("leadline/diagnose/measured.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["placement", "layers", "dim", "highest_rate", "output_change"])
        for cell, rate in sorted(truth.items()):
            writer.writerow([*cell, f"{rate:g}", change.get((cell, rate), 0)])


def predicted_edge(scores: Mapping[float, float]) -> float:
    """Without a crossing on the ladder of rates, one doubling beyond its end."""
    rates = sorted(scores)
    if min(scores.values()) > 0:
        return rates[-1] * 2
    return highest_rate(scores) or rates[0] / 2


def report(
    title: str, rows: Sequence[Any], scores: Sequence[float], labels: Sequence[bool], chosen: Sequence[bool],
    truth: dict[CellKey, float],
) -> dict[str, Any]:  # fmt: skip
    kept = [i for i, c in enumerate(chosen) if c]
    by_cell: dict[CellKey, dict[float, float]] = defaultdict(dict)
    for i in kept:
        by_cell[rows[i][0]][rows[i][1]] = scores[i]
    shown, right = [], 0
    for cell, rates in sorted(by_cell.items()):
        predicted, lowest = predicted_edge(rates), min(rates)
        true = truth[cell] * math.sqrt(2)  # the edge lies between the highest rate that learnt and the next, twice that
        good = 0.5 <= predicted / true <= 2 if true else predicted < lowest
        right += good
        said = f"{truth[cell]:g} … {2 * truth[cell]:g}" if true else f"below {lowest:g}"
        shown.append([*map(str, cell), said, f"{predicted:.2e}", "" if good else "off"])
    confusions = [
        f"{rows[i][0][0]} {rows[i][0][1]}-{rows[i][0][1]} d {rows[i][0][2]} lr {rows[i][1]:g}: "
        f"{'learnt' if labels[i] else 'did not learn'}, probability {probability(scores[i]):.2f}"
        for i in kept if (scores[i] > 0) != labels[i]
    ]  # fmt: skip
    found_facts = {
        "runs": len(kept),
        "auroc": round(auroc([scores[i] for i in kept], [labels[i] for i in kept]), 4),
        "accuracy": round(1 - len(confusions) / len(kept), 4),
        "cells": len(by_cell),
        "within_a_factor_of_2": round(right / len(by_cell), 4),
        "confusions": confusions,
    }
    columns = ["placement", "layers", "width", "highest rate: true", "predicted", ""]
    table(f"{title}: {dict(list(found_facts.items())[:5])}", columns, shown)
    for line in confusions:
        print("  ", line)
    return found_facts


def with_warmup(
    grid: Sequence[Row], rows: Sequence[Any], scores: Sequence[float], gains: dict[int, float]
) -> dict[str, Any]:
    """Runs with a warm-up of 100, held-out widths: the edge without warm-up times the gain."""
    by_cell: dict[CellKey, dict[float, float]] = defaultdict(dict)
    for (cell, lr, _), value in zip(rows, scores, strict=True):
        by_cell[cell][lr] = value
    truth = highest_learnt(grid, 100)
    rows_with = [r for r in grid if int(r["warmup"]) == 100 and cell_of(r) in by_cell]
    chosen = [r for r in rows_with if int(r["dim"]) in SETS["held_out"]]
    margins = [predicted_edge(by_cell[cell_of(r)]) * gains[100] / float(r["lr"]) for r in chosen]
    labels = [float(r["lr"]) <= truth[cell_of(r)] for r in chosen]
    right = sum((m > 1) == y for m, y in zip(margins, labels, strict=True))
    result = {"runs": len(chosen), "auroc": round(auroc(margins, labels), 4), "accuracy": round(right / len(chosen), 4)}
    print("warm-up 100, held-out widths:", result)
    return result
