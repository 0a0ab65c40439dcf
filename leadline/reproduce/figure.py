"""A figure of a paper: the runs it needs, what is read from them, what the paper claims, and the charts.

A run is known by its label ("post_ln, warm-up 500") and its seed; figures that ask for the same config share it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leadline.config import Config
from leadline.files import write_json
from leadline.report import page
from leadline.report.page import Section, Series, Table, Words
from leadline.reproduce.claims import Claim, Judged, Numbers, judge
from leadline.reproduce.jobs import Execute, Job, OnEvent, execute, finished, read_rows

Variants = dict[str, tuple[Config, int]]  # label -> config, and every how many updates it is watched (0: not)


@dataclass(frozen=True)
class Run:
    """One that is finished."""

    label: str
    seed: int
    result: dict[str, Any]
    rows: list[dict[str, Any]]  # of metrics.jsonl

    def curve(self, key: str) -> tuple[list[float], list[float]]:
        found = [row for row in self.rows if row.get(key) is not None]
        return [row["update"] for row in found], [row[key] for row in found]

    def last(self, key: str) -> float:
        """NaN where it was never measured; a loss that diverged is infinite."""
        if key == "valid_nll" and self.result["diverged"]:
            return math.inf
        return next((row[key] for row in reversed(self.rows) if row.get(key) is not None), math.nan)


Runs = Mapping[str, Sequence[Run]]  # by label, one a seed


@dataclass(frozen=True)
class Figure:
    title: str
    paper: str  # where it is
    variants: Callable[[str, Config], Variants]  # of a scale, from its base
    numbers: Callable[[Runs], Numbers]
    charts: Callable[[Runs], list[Section]]
    claims: tuple[Claim, ...]
    seeds: int = 1  # at least, for its claims


def reproduce(
    name: str,
    figure: Figure,
    scale: str,
    base: Config,
    data_key: str,
    seeds: int,
    at_once: int,
    out: Path,
    on_event: OnEvent = lambda name, event: None,
    execute: Execute = execute,
) -> list[Judged]:
    """Train what is not there yet; writes claims.json and the page, also of a command that is stopped."""
    labelled = [
        (label, seed, Job(f"{label}, seed {seed}", config.set(train={"seed": seed}), data_key, watch))
        for label, (config, watch) in figure.variants(scale, base).items()
        for seed in range(1, seeds + 1)
    ]
    root = out / "runs"
    try:
        execute([job for _, _, job in labelled], root, at_once, on_event)
    finally:
        runs: dict[str, list[Run]] = {}
        for label, seed, job in labelled:
            if result := finished(job, root):
                runs.setdefault(label, []).append(Run(label, seed, result, read_rows(job, root)))
        judged = [judge(claim, scale, figure.numbers(runs)) for claim in figure.claims]
        facts = {"figure": name, "scale": scale, "seeds": seeds, "data": data_key, "claims": [_row(j) for j in judged]}
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / f"{name}.json", facts)
        page.write(figure.title, sections(figure, scale, runs, judged), out / f"{name}.html", out / name)
    return judged


def _row(judged: Judged) -> dict[str, Any]:
    claim = judged.claim
    return {
        "claim": claim.text,
        "paper": claim.paper,
        "wanted": claim.wanted,
        "measured": judged.measured,
        "values": list(judged.values),
        "verdict": judged.verdict,
    }


def sections(figure: Figure, scale: str, runs: Runs, judged: Sequence[Judged]) -> list[Section]:
    columns = ["claim", "the paper", "wanted", "measured", "verdict"]
    claims = [[j.claim.text, j.claim.paper, j.claim.wanted, j.measured, j.verdict] for j in judged]
    table = [
        [run.label, run.seed, run.result["updates"], run.last("valid_nll"), run.last("valid_bleu"),
         "diverged" if run.result["diverged"] else "", run.result["seconds"]]
        for members in runs.values() for run in members
    ]  # fmt: skip
    names = ["run", "seed", "updates", "valid loss (nats a token)", "BLEU", "", "seconds"]
    return [
        Words("What this is", [f"{figure.paper}, at scale “{scale}”. A claim that does not hold is a result."]),
        Table("Claims", columns, claims),
        *figure.charts(runs),
        Table("Runs", names, table, folded=True),
    ]


def curves(runs: Runs, key: str) -> list[Series]:
    """A line a label: the mean over its seeds, in a band from the lowest to the highest."""
    found = []
    for label, members in runs.items():
        points: dict[float, list[float]] = {}
        for run in members:
            for x, y in zip(*run.curve(key), strict=True):
                points.setdefault(x, []).append(y)
        if points:
            xs = sorted(points)
            mean = [sum(points[x]) / len(points[x]) for x in xs]
            band = len(members) > 1
            low, high = ([pick(points[x]) for x in xs] if band else None for pick in (min, max))
            found.append(Series(label, xs, mean, low, high))
    return found


def of(runs: Runs, label: str, read: Callable[[Run], float]) -> list[float]:
    """A number of each seed of a label; nothing where it was not run."""
    return [read(run) for run in runs.get(label, ())]


def differences(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """Of seeds that both have; where both are infinite there is none."""
    return [a - b for a, b in zip(left, right, strict=False) if not (math.isinf(a) and math.isinf(b))]


def by_depth(runs: Runs, placement: str) -> dict[int, Sequence[Run]]:
    """Of labels such as "post_ln 6-6"."""
    found = {int(label.split()[1].split("-")[0]): runs[label] for label in runs if label.startswith(placement + " ")}
    return dict(sorted(found.items()))


def slope(depths: Sequence[int], values: Sequence[float]) -> float:
    """Of log value against log depth, by least squares."""
    xs, ys = [math.log(depth) for depth in depths], [math.log(value) for value in values]
    x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x0) * (y - y0) for x, y in zip(xs, ys, strict=True)) / sum((x - x0) ** 2 for x in xs)


def band(name: str, xs: Sequence[float], values: Sequence[Sequence[float]]) -> Series:
    """The means of several values at each x, in a band from the lowest to the highest."""
    several = len(values[0]) > 1
    low, high = ([pick(each) for each in values] if several else None for pick in (min, max))
    return Series(name, list(xs), [sum(each) / len(each) for each in values], low, high)
