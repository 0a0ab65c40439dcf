"""What figures read from their runs: curves, differences seed by seed, slopes against depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from leadline.report.page import Chart, Series
from leadline.reproduce.figure import FinishedRun, Runs


def curves(runs: Runs, key: str, by: str = "update") -> list[Series]:
    """A line a label: the mean over its seeds, in a band from the lowest to the highest."""
    lines = []
    for label, members in runs.items():
        points: dict[float, list[float]] = {}
        for run in members:
            for x, y in zip(*run.history.points(key, by), strict=True):
                points.setdefault(x, []).append(y)
        if points:
            xs = sorted(points)
            several = len(members) > 1
            low, high = ([pick(points[x]) for x in xs] if several else None for pick in (min, max))
            lines.append(Series(label, xs, [mean(points[x]) for x in xs], low, high))
    return lines


def loss_chart(runs: Runs, unit: str = "a token") -> Chart:
    return Chart("Validation loss", "update", f"nats {unit}", curves(runs, "valid_nll"))


def of(runs: Runs, label: str, read: Callable[[FinishedRun], float]) -> list[float]:
    """A number of each seed of a label; nothing where it was not run."""
    return [read(run) for run in runs.get(label, ())]


def nll(run: FinishedRun) -> float:
    return run.last("valid_nll")


def bleu(run: FinishedRun, key: str = "valid_bleu") -> float:
    """What diverged translates nothing."""
    return 0.0 if run.result["diverged"] else run.last(key)


def mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def pairs(left: Sequence[FinishedRun], right: Sequence[FinishedRun]) -> list[tuple[FinishedRun, FinishedRun]]:
    """Those with the same seed."""
    others = {run.seed: run for run in right}
    return [(run, others[run.seed]) for run in left if run.seed in others]


def gaps(runs: Runs, left: str, right: str, read: Callable[[FinishedRun], float] = nll) -> list[float]:
    """How much more the first label has than the second, seed by seed; where both are infinite that is not a number."""
    return [read(a) - read(b) for a, b in pairs(runs.get(left, ()), runs.get(right, ()))]


def reached(run: FinishedRun, loss: float) -> float:
    """The share of the updates after which the validation loss is at most `loss`; infinite if never."""
    updates, losses = run.history.points("valid_nll")
    return next((u / updates[-1] for u, value in zip(updates, losses, strict=True) if value <= loss), math.inf)


def shares(runs: Runs, fast: str, slow: str) -> list[float]:
    """After how much of its updates the first label has the second's final loss, seed by seed."""
    return [reached(a, nll(b)) for a, b in pairs(runs.get(fast, ()), runs.get(slow, ()))]


def by_depth(runs: Runs, placement: str) -> dict[int, Sequence[FinishedRun]]:
    """Of labels such as "post_ln 6-6"."""
    depths = {int(label.split()[1].split("-")[0]): runs[label] for label in runs if label.startswith(placement + " ")}
    return dict(sorted(depths.items()))


def slope(depths: Sequence[int], values: Sequence[float]) -> float:
    """Of log value against log depth, by least squares."""
    xs, ys = [math.log(depth) for depth in depths], [math.log(value) for value in values]
    x0, y0 = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x0) * (y - y0) for x, y in zip(xs, ys, strict=True)) / sum((x - x0) ** 2 for x in xs)


def slopes(runs: Runs, kind: str, read: Callable[[FinishedRun], float]) -> dict[int, float]:
    """Of a number against depth, by seed, where a seed has every depth."""
    depths = by_depth(runs, kind)
    values: dict[int, list[float]] = {}
    for members in depths.values():
        for run in members:
            values.setdefault(run.seed, []).append(read(run))
    return {seed: slope(list(depths), each) for seed, each in values.items() if len(each) == len(depths) > 1}


def band(name: str, xs: Sequence[float], values: Sequence[Sequence[float]]) -> Series:
    """The means of several values at each x, in a band from the lowest to the highest."""
    several = len(values[0]) > 1
    low, high = ([pick(each) for each in values] if several else None for pick in (min, max))
    return Series(name, list(xs), [mean(each) for each in values], low, high)
