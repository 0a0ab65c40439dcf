"""How sensitive placements are to the rate and to warm-up: the largest rate at which each still trains.

Not a figure of the papers, but what both are about. A rate is stable if the loss ends within 0.3 nats of the lowest of
the placement at any rate, with the same warm-up. (How to tell was chosen after a look at the tiny scale.)
"""

from __future__ import annotations

import math

from leadline.config import Config
from leadline.report.heat import Heat
from leadline.report.page import Section
from leadline.reproduce.claims import Claim, Numbers
from leadline.reproduce.figure import Figure, Runs, Variant, Variants

WARM = {"no warm-up": 0.0, "warm-up": 0.3}  # share of the updates
WITHIN = 0.3  # nats


def _rates(scale: str) -> list[float]:
    """Each four times the one before."""
    return [2e-3, 8e-3, 3.2e-2] if scale == "tiny" else [1e-4, 4e-4, 1.6e-3, 6.4e-3]


def _variants(scale: str, base: Config) -> Variants:
    placements = ("post_ln", "deepnorm", "pre_ln") if scale == "tiny" else ("post_ln", "admin", "deepnorm", "pre_ln")
    updates = {"tiny": 80, "small": 900, "paper": 10_000}[scale]
    train = {"updates": updates, "epochs": 0, "eval_every": updates // 2, "bleu_sentences": 0}
    return {
        f"{placement}, {warm}, {lr:g}": Variant(
            base.set(
                model={"placement": placement},
                optim={"lr": lr, "schedule": "linear", "warmup": round(share * updates)},
                train=train,
            )
        )
        for placement in placements
        for warm, share in WARM.items()
        for lr in _rates(scale)
    }


def _losses(runs: Runs, seed: int) -> dict[str, dict[float, float]]:
    """By placement and warm-up, then by rate."""
    losses: dict[str, dict[float, float]] = {}
    for label, members in runs.items():
        kind, _, lr = label.rpartition(", ")
        for run in members:
            if run.seed == seed:
                losses.setdefault(kind, {})[float(lr)] = run.last("valid_nll")
    return losses


def largest(losses: dict[str, dict[float, float]]) -> dict[str, float]:
    """The largest stable rate; a quarter of the lowest tried where none is, or nothing was learnt.

    Nothing was learnt where the loss is hardly below the worst of the whole map.
    """
    worst = max((loss for of in losses.values() for loss in of.values() if math.isfinite(loss)), default=math.inf)

    def of(by_rate: dict[float, float]) -> float:
        limit = min(min(by_rate.values()) + WITHIN, worst - WITHIN)
        return max((lr for lr, loss in by_rate.items() if loss <= limit), default=min(by_rate) / 4)

    return {kind: of(by_rate) for kind, by_rate in losses.items()}


def _numbers(runs: Runs) -> Numbers:
    pre, warm = list[float](), list[float]()
    for seed in sorted({run.seed for members in runs.values() for run in members}):
        rates = largest(_losses(runs, seed))
        if {"pre_ln, no warm-up", "post_ln, no warm-up"} <= rates.keys():
            pre.append(rates["pre_ln, no warm-up"] / rates["post_ln, no warm-up"])
        if {"post_ln, warm-up", "post_ln, no warm-up"} <= rates.keys():
            warm.append(rates["post_ln, warm-up"] / rates["post_ln, no warm-up"])
    return {"pre/post": pre, "with/without": warm}


def _charts(runs: Runs) -> list[Section]:
    seeds = sorted({run.seed for members in runs.values() for run in members})
    if not seeds:
        return []
    losses = [_losses(runs, seed) for seed in seeds]
    kinds = list(dict.fromkeys(kind for each in losses for kind in each))
    rates = sorted({lr for each in losses for of_kind in each.values() for lr in of_kind})

    def mean(kind: str, lr: float) -> float:
        values = [each[kind][lr] for each in losses if lr in each.get(kind, {})]
        return sum(values) / len(values) if values else math.nan

    limits = [largest(each) for each in losses]
    stable = {kind: min(each[kind] for each in limits if kind in each) for kind in kinds}
    words = (f"{kind} {f'{lr:g}' if lr >= rates[0] else 'at none of these'}" for kind, lr in stable.items())
    caption = "Largest stable rate: " + "; ".join(words)
    values = [[mean(kind, lr) for lr in rates] for kind in kinds]
    names = [f"{lr:g}" for lr in rates]
    return [
        Heat("Validation loss by rate and warm-up (nats a token)", "rate", "placement", names, kinds, values, caption)
    ]


FIGURE = Figure(
    title="The highest learning rate at which each placement trains",
    paper="Xiong et al. 2020, section 3.2; Wang et al. 2022, section 3",
    variants=_variants,
    numbers=_numbers,
    charts=_charts,
    claims=(
        Claim(
            "without warm-up, Pre-LN trains at a higher learning rate than Post-LN, times",
            "Post-LN does not train without warm-up, Pre-LN does",
            "pre/post",
            at_least=2,
        ),
        Claim(
            "warm-up raises the highest learning rate at which Post-LN trains, times",
            "it needs it",
            "with/without",
            at_least=2,
        ),
    ),
)
