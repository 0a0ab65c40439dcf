"""A second try at a verdict from a short look, and at a rate from part of a training: `python -m bench.atlas second`.

The protocol, written down before any of its figures was looked at:

Fitted on   the cells of the first two sets (66 in which something was learnt). Target: log2 of the middle between the
            highest rate that has learnt and the next; for the best rate, of the middle of the good ones.
Variants    an answer is a regularised linear model of log rate. What it may see: the kind (placement, optimizer, width,
            depth, warm-up, start), the look (rates at which something happens, below), or both; how much it is
            regularised. Every combination that is tried is listed in VARIANTS, which is the count of what was tried.
Chosen      by the mean of the error in log2, at most 3 of each cell, over tasks left out in turn. Nested: the
            variant is chosen again within each fold, of what is left in it, so that the figure holds the choice as
            well. By task and by family.
Judged      once, on the second set of cells (`design.second`), which was drawn and committed before any of it was
            trained: the variant that tasks left out choose, fitted on all cells of the first two sets; beside it what
            the kind alone says, the rate alone (one constant for each optimizer), the rate with the lowest loss times
            a constant, the critical rate times a constant, and the verdict of `leadline inspect`.
Adopted     if within a factor of 2 it is right in at least 8 of 100 cells more than each of those (of the cells that
            both answer), wins more of the cells in which only one of the two is right than chance would in one of ten,
            is not behind within a factor of 4, and abstains on at most a fifth.
Afterwards  295 linear variants and 80 of a logistic score of each rate were tried on the looks as they are. A look's
            loss turned out to be that of 16 to 64 labels where a sequence has few of them. To measure all looks again
            on more was begun and given up, because the machine was too busy, so the looks are as they were. Chosen, and
            committed while the second set was being trained: for the edge Variant("collapse", 1, True, 10), for the
            best rate Variant("all", 2, True, 10); of the rules half the rate with the lowest loss.
A rate for `optim.lr=auto` from 1/8 or 1/4 of the updates: rules of RULES are compared on cells of the first two sets
            that hold looks and have no warm-up; that with the smallest mean of the loss above the best of the cell, at
            most 1 of each, is judged on the second set beside the lowest loss, and adopted if it ends nearer there,
            in the mean and in how many end within 0.1 nats, and does not fail more often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from bench.atlas import design, rules
from bench.atlas.judge import GROUPS, Case, cases, last_of, least_of, off_best, off_edge, true_best, true_edge, truth
from bench.atlas.rows import Row, Rows

WORST = 3.0  # log2: an error counts as no more
TRUTHS: dict[str, tuple[Callable[[Case], float], Callable[[Case, float], float]]] = {
    "edge": (true_edge, off_edge),
    "best": (true_best, off_best),
}
SEEN = {  # sets of what a look may say
    "nothing": (),
    "lowest": ("lowest",),
    "around": ("around",),
    "collapse": ("around", "alike 0.03"),
    "moved": ("alike 0.03", "moved 1"),
    "some": ("around", "alike 0.03", "moved 1", "spread"),
    "more": ("around", "progress 0.8", "alike 0.03", "alike 0.1", "moved 1", "spread", "critical", "rises"),
    "all": (
        "lowest", "around", "progress 0.5", "progress 0.8", "half", "alike 0.3", "alike 0.1", "alike 0.03",
        "ends alike", "critical", "rises", "peak", "moved 1", "moved 0.3", "moved 3 at last", "ratio", "most", "spread",
    ),
}  # fmt: skip

Answers = Callable[[str, np.ndarray, np.ndarray], np.ndarray]  # to a question, fitted on cells, of cells
RIDGES = (0.3, 1.0, 3.0, 10.0, 30.0)


class Variant(NamedTuple):
    seen: str
    kind: int  # 0 optimizer; 1 and placement, width, depth, warm-up; 2 and start; 3 and whether tokens have labels
    gated: bool  # where a look says nothing it is left out
    ridge: float


KIND = Variant("nothing", 1, False, 0.3)
TRIED = "look and kind"
VARIANTS = [
    Variant(seen, kind, gated, ridge)
    for seen, kind, gated, ridge in product(SEEN, range(4), (False, True), RIDGES)
    if seen != "nothing" or (kind and not gated)
]


def crossing(rates: Sequence[float], values: Sequence[float], level: float) -> float:
    """The first log2 rate at which the values reach the level, between two rates; one step beyond, where none does."""
    for at, value in enumerate(values):
        if value >= level:
            if not at:
                return rates[0] - 1
            part = (level - values[at - 1]) / (value - values[at - 1])
            return rates[at - 1] + part * (rates[at] - rates[at - 1])
    return rates[-1] + 1


def happenings(probes: Sequence[Row], critical: float) -> dict[str, float]:
    """At which log2 rate what happens within a look."""
    rows = sorted(probes, key=lambda row: row["rate"])
    rates, start, spread = [math.log2(row["rate"]) for row in rows], rows[0]["start"], max(rows[0]["spread"], 1e-4)
    after = np.array([last_of(row, start) for row in rows])
    at = int(np.argmin(after))
    gained = max(start - after[at], 1e-4)
    progress = np.maximum((start - after) / gained, -3)
    near = np.exp(-(after - after[at]) / max(0.1 * gained, 0.02))
    losses = [_filled(row["losses"], 3 * start) for row in rows]
    alike = [-math.log10(max(least_of(row["diversities"]), 1e-4) / spread) for row in rows]
    last = [-math.log10(max(_filled(row["diversities"], 0.0)[-1], 1e-4) / spread) for row in rows]
    moved = [[math.log10(max(m, 1e-4)) for m in _filled(row["moved"], 10.0)] for row in rows]
    return {
        "lowest": rates[at],
        "around": float((near * np.array(rates)).sum() / near.sum()),
        **{f"progress {p}": crossing(rates[at:], list(-progress[at:]), -p) for p in (0.5, 0.8)},
        "half": crossing(rates, list(progress), 0.5),
        **{f"alike {share}": crossing(rates, alike, -math.log10(share)) for share in (0.3, 0.1, 0.03)},
        "ends alike": crossing(rates, last, 1.0),
        "critical": min(math.log2(critical), rates[-1] + 1),
        "rises": crossing(rates, [seen[-1] - min([start, *seen[:-1]]) for seen in losses], 0.05),
        "peak": crossing(rates, [max(seen) - start for seen in losses], 0.3),
        **{f"moved {m}": crossing(rates, [seen[0] for seen in moved], math.log10(m)) for m in (1, 0.3)},
        "moved 3 at last": crossing(rates, [seen[-1] for seen in moved], math.log10(3)),
        **{
            name: -next((math.log2(r[name] / r["rate"]) for r in rows if r.get(name)), 0.0)
            for name in ("ratio", "most")
        },
        "spread": math.log2(spread),
    }


def _filled(values: Sequence[float | None], missing: float) -> list[float]:
    filled = [missing if value is None else value for value in values]
    return filled + [missing] * (len(design.PROBE_STEPS) - len(filled))


def kind_of(case: Case, kind: int) -> dict[str, float]:
    cell = case.cell
    told = {cell.optimizer: 1.0}
    if kind:
        told |= {cell.placement: 1.0, "width": math.log2(cell.width) - 5.5, "warm-up": float(cell.warmup > 0)}
        told["depth"] = math.log2(cell.blocks if kind > 1 else cell.depth) - 1.5
    if kind > 1:
        told[f"start {cell.start}"] = 1.0
    if kind > 2:
        told["texts" if cell.task in ("text_classes", "digits") else "tokens"] = 1.0
    return told


class Table:
    """Cells as numbers: rates are log2, from the middle of the ladder."""

    def __init__(self, cells: Sequence[Case], rows: Rows) -> None:
        self.cells = list(cells)
        self.middle = np.array([math.log2(c.cell.ladder[0] * c.cell.ladder[-1]) / 2 for c in cells])
        self.truth = {q: np.array([math.log2(of(c)) for c in cells]) - self.middle for q, (of, _) in TRUTHS.items()}
        self.says = np.array([not c.known for c in cells])
        self.sgd = np.array([c.cell.optimizer == "sgd" for c in cells])
        seen = [happenings(rows.probes[c.cell.name], c.critical) for c in cells]
        self.seen = {
            name: np.array([s[name] for s in seen]) - (0 if name == "spread" else self.middle) for name in seen[0]
        }
        self.kinds = []
        for kind in range(4):
            told = [kind_of(c, kind) for c in cells]
            names = sorted({name for one in told for name in one})
            self.kinds.append(np.array([[one.get(name, 0.0) for name in names] for one in told]))

    def groups(self, split: str) -> np.ndarray:
        return np.array([GROUPS[split](c) for c in self.cells])

    def answers(self, variant: Variant, question: str, train: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """What a ridge regression on the cells `train` says of the cells `asked`."""
        looks = np.stack([self.seen[name] for name in SEEN[variant.seen]] or [0 * self.middle], 1)
        base = looks[train & self.says] if variant.gated and (train & self.says).sum() > 3 else looks[train]
        looks = (looks - base.mean(0)) / (base.std(0) + 1e-6)
        if variant.gated:
            looks = np.c_[looks * self.says[:, None], ~self.says]
        x, y = np.c_[self.kinds[variant.kind], looks], self.truth[question]
        mean, a = y[train].mean(), x[train]
        w = np.linalg.solve(a.T @ a + variant.ridge * np.eye(x.shape[1]), a.T @ (y[train] - mean))
        return x[asked] @ w + mean

    def alone(self, question: str, train: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """One rate for SGD and one for the others."""
        said = [np.median(self.truth[question][train & (self.sgd == sgd)]) for sgd in (False, True)]
        return np.where(self.sgd[asked], said[1], said[0])

    def errors(self, said: np.ndarray, question: str, asked: np.ndarray) -> np.ndarray:
        """log2 of how many times too high or too low."""
        rates = 2 ** (said + self.middle[asked])
        cells = [c for c, one in zip(self.cells, asked, strict=True) if one]
        off = TRUTHS[question][1]
        return np.array(
            [math.log2(off(c, rate)) if rate == rate else rate for c, rate in zip(cells, rates, strict=True)]
        )

    def left_out(self, answers: Answers, question: str, groups: np.ndarray, of: np.ndarray) -> np.ndarray:
        """Errors where each group of the cells `of` is left out in turn; elsewhere 0."""
        errors = np.zeros(len(self.cells))
        for group in np.unique(groups[of]):
            asked = of & (groups == group)
            errors[asked] = self.errors(answers(question, of & ~asked, asked), question, asked)
        return errors

    def chosen(self, question: str, groups: np.ndarray, of: np.ndarray) -> Variant:
        def badness(variant: Variant) -> float:
            return mean(self.left_out(partial(self.answers, variant), question, groups, of)[of])

        return min(VARIANTS, key=badness)

    def nested(self, groups: np.ndarray, question: str, train: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """What the variant says that is chosen on the cells `train` alone."""
        return self.answers(self.chosen(question, groups, train), question, train, asked)

    def constant(self, name: str, question: str, train: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """Where this happens within the look, times a constant."""
        seen = self.seen[name]
        return seen[asked] + np.median((self.truth[question] - seen)[train])

    def today(self, question: str, train: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """The verdict of `leadline inspect`; not a number where it has none."""
        said = np.array([math.log2(c.verdict) if c.verdict else math.nan for c in self.cells])
        return (said - self.middle)[asked]


def mean(errors: np.ndarray) -> float:
    return float(np.nanmean(np.minimum(errors, WORST))) if len(errors) else math.nan


def page(rows: Rows) -> str:
    """What was tried and what came out: nested on the first two sets, and once on the second."""
    names = {cell.name for cell in design.second()}
    whole, nothing = cases(rows)
    table, second = Table(whole, rows), np.array([c.cell.name in names for c in whole])
    lines = [
        f"{second.sum()} cells of the second set are whole, beside {sum(name in names for name in nothing)} in which "
        f"nothing was learnt. {len(VARIANTS)} variants and {len(rules.RULES)} rules were tried on the others.",
        "",
        "| question | cells | by | answered | within 2× | within 4× | mean error, log2 |",
        "|---|---|---|---|---|---|---|",
    ]
    notes, wrong = list[str](), list[str]()
    for question in TRUTHS:
        for split in GROUPS:
            groups = table.groups(split)
            for way, answers in list(_ways(table, question, partial(table.nested, groups)).items())[:3]:
                errors = table.left_out(answers, question, groups, ~second)[~second]
                lines.append(_line(question, f"first two sets, {split} left out", way, errors))
        best = table.chosen(question, table.groups("task"), ~second)
        ways = _ways(table, question, partial(table.answers, best))
        found = {w: table.errors(of(question, ~second, second), question, second) for w, of in ways.items()}
        lines += [_line(question, "second set", way, errors) for way, errors in found.items()]
        tried, said = found.pop(TRIED), ways[TRIED](question, ~second, second) + table.middle[second]
        asked = [c for c in whole if c.cell.name in names]
        wrong += [
            f"- {question}, {c.cell.name}: said {2**rate:.1e}, is {truth(question, c)}"
            for c, rate, error in zip(asked, said, tried, strict=True)
            if error > 1
        ]
        notes += [f"- {question}: {_against(tried, errors, way)}" for way, errors in found.items()]
    judged = rules.lines(rows, {c.cell.name for c in whole} - names, names)
    told = [
        "",
        f"{TRIED.capitalize()}, on the second set:",
        "",
        *notes,
        "",
        "Off by more than 2 there:",
        "",
        *wrong,
        "",
    ]
    return "\n".join([*lines, *told, *judged]) + "\n"


def _ways(table: Table, question: str, tried: Answers) -> dict[str, Answers]:
    ways: dict[str, Answers] = {
        TRIED: tried,
        "kind": partial(table.answers, KIND),
        "rate alone": table.alone,
        "lowest loss × constant": partial(table.constant, "lowest"),
        "critical rate × constant": partial(table.constant, "critical"),
    }
    return ways | {"verdict today": table.today} if question == "edge" else ways


def _line(question: str, cells: str, way: str, errors: np.ndarray) -> str:
    given = errors[~np.isnan(errors)]
    within = " | ".join(f"{np.mean(given <= most + 1e-9):.0%}" if len(given) else "–" for most in (1, 2))
    return f"| {question} | {cells} | {way} | {len(given)} of {len(errors)} | {within} | {mean(given):.2f} |"


def _against(mine: np.ndarray, theirs: np.ndarray, way: str) -> str:
    """In how many of the cells that both answer only one is within a factor of 2, and how likely that is by chance."""
    both = ~np.isnan(mine) & ~np.isnan(theirs)
    won, lost = ((a[both] <= 1) & (b[both] > 1) for a, b in ((mine, theirs), (theirs, mine)))
    count, wins = int(won.sum() + lost.sum()), int(won.sum())
    chance = sum(math.comb(count, k) for k in range(wins, count + 1)) / 2**count
    alone = f"right alone in {wins}, wrong alone in {count - wins} (by chance {chance:.2f})"
    return f"against {way}, {both.sum()} cells: {alone}"
