"""From records to a plain answer: up to which rate a model trains, what warm-up it needs, and what to change. No torch.

What decides is measured, not assumed. In the first steps of a training that will fail, the tokens of a batch become
alike: the update moves every position the same way, layer upon layer, until attention has nothing to tell apart and
the gradients of the lower layers vanish. Three numbers say so after five steps at a rate:

    collapse   log10 of the tokens' diversity after step 3 over that at step 0, mean over the residual connections
    first      log10 of ‖ΔF‖ in step 1, the change of the model's output in one step (DeepNet's quantity)
    change     log10 of ‖ΔF‖ in step 5, when the first shock is over

A logistic function of them, fitted on part of a grid of real trainings and scored on the rest
(`python -m bench.stability`), gives the probability that the model learns; `calibration.json` holds its numbers.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from leadline.diagnose import theory
from leadline.diagnose.faults import Finding
from leadline.diagnose.record import Record
from leadline.diagnose.structure import Connection, layers_of

STEPS = 5  # optimizer steps of a rollout
COLLAPSE_AFTER = 3  # of them the tokens are compared with the start
FLOOR = 1e-4  # smaller diversities and changes count as this one
HOPELESS = 0.02  # a highest rate below this over the width: no rung of the grid's ladder learnt


@cache
def calibration() -> dict[str, Any]:
    text = resources.files("leadline.diagnose").joinpath("calibration.json").read_text(encoding="utf-8")
    return json.loads(text)


@dataclass(frozen=True)
class Verdict:
    answer: str
    trains: bool  # at the rate and with the warm-up asked for
    probability: float  # that it does
    rate: float
    warmup: int
    highest_rate: float  # without warm-up
    needed_warmup: int | None  # at the rate asked for; None: more than was ever measured
    where: str  # the layer that moves first
    evidence: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)


class Features(NamedTuple):
    collapse: float
    first: float
    change: float


def features(before: Sequence[Record], rollout: Sequence[Record]) -> Features:
    """Of one rollout; one that broke off counts as complete collapse."""
    start = {r.position: r.value for r in before if r.quantity == "diversity" and r.step == 0}
    after = {r.position: r.value for r in rollout if r.quantity == "diversity" and r.step == COLLAPSE_AFTER}
    changes = {r.step: r.value for r in rollout if r.quantity == "step_change"}
    if not after or STEPS not in changes or not all(map(math.isfinite, (*after.values(), *changes.values()))):
        return Features(math.log10(FLOOR), 0.0, 0.0)
    logs = [math.log10(max(value, FLOOR) / max(start[at], FLOOR)) for at, value in after.items()]
    first, last = (math.log10(max(changes[step], FLOOR)) for step in (1, STEPS))
    return Features(sum(logs) / len(logs), first, last)


def score(found: Features, numbers: Mapping[str, float] | None = None) -> float:
    """Log-odds that the model learns."""
    n = numbers or calibration()["score"]
    return n["intercept"] + sum(n[name] * value for name, value in found._asdict().items())


def probability(log_odds: float) -> float:
    if math.isnan(log_odds):
        return 0.0
    return 1 / (1 + math.exp(-max(-50.0, min(50.0, log_odds))))


def highest_rate(scores: Mapping[float, float]) -> float:
    """Where the log-odds cross zero, on a line between the two rates around it in log rate."""
    rates = sorted(scores)
    for low, high in itertools.pairwise(rates):
        if scores[low] > 0 >= scores[high]:
            part = scores[low] / (scores[low] - scores[high])
            return float(low * (high / low) ** part)
    return rates[0] / 2 if scores[rates[0]] <= 0 else rates[-1] * 2


def warmup_gain(updates: int) -> float:
    """How many times higher the rate may be with this warm-up, from the grid; more than it holds counts as its last."""
    points = [(0, 1.0), *((int(w), float(g)) for w, g in calibration()["warmup_gain"])]
    for (w0, g0), (w1, g1) in itertools.pairwise(points):
        if updates <= w1:
            return g0 * (g1 / g0) ** ((updates - w0) / (w1 - w0))
    return points[-1][1]


def longest_warmup() -> int:
    """Of the grid; a longer one is judged as this one."""
    return int(calibration()["warmup_gain"][-1][0])


def needed_warmup(excess: float) -> int | None:
    """Warm-up updates for a rate this many times above the highest without; None: more than was measured."""
    if excess <= 1:
        return 0
    for updates in range(5, longest_warmup() + 1, 5):
        if warmup_gain(updates) >= excess:
            return updates
    return None


def judge(
    connections: Sequence[Connection],
    findings: Sequence[Finding],
    before: Sequence[Record],
    rollouts: Mapping[float, Sequence[Record]],
    rate: float,
    warmup: int = 0,
) -> Verdict:
    """`rollouts`: the records of the first steps at several rates, `rate` among them."""
    scores = {at: score(features(before, records)) for at, records in rollouts.items()}
    highest = highest_rate(scores)
    gain = warmup_gain(warmup)
    # With warm-up, a rate is judged like the lower one that it is worth.
    excess = rate / (highest * gain)
    log_odds = scores[rate] if gain == 1 else -_steepness(scores) * math.log2(excess)
    needed = needed_warmup(rate / highest)
    chance = probability(log_odds)
    where = _first_moved(connections, rollouts[rate])
    dim = max(c.dim for c in connections)
    verdict = Verdict(
        _answer(connections, rate, warmup, highest, chance, needed, dim),
        chance >= 0.5,
        chance,
        rate,
        warmup,
        highest,
        needed,
        where,
        _evidence(connections, before, rollouts[rate], rate),
        _remedies(connections, findings, rate, warmup, highest, chance, needed),
    )
    return verdict


def _steepness(scores: Mapping[float, float]) -> float:
    """How many log-odds a doubling of the rate costs."""
    rates = sorted(scores)
    slopes = [(scores[a] - scores[b]) / math.log2(b / a) for a, b in itertools.pairwise(rates) if scores[a] > scores[b]]
    return sum(slopes) / len(slopes) if slopes else 1.0


def _placements(connections: Sequence[Connection]) -> str:
    layers = layers_of(connections)
    names = list(dict.fromkeys(c.placement for c in connections))
    return f"{'-'.join(str(n) for n in layers.values())} layers, {' and '.join(names)}"


def _answer(
    connections: Sequence[Connection],
    rate: float,
    warmup: int,
    highest: float,
    chance: float,
    needed: int | None,
    dim: int,
) -> str:
    model = _placements(connections)
    without = f"without warm-up it trains up to lr ≈ {highest:.1e}"
    if chance >= 0.5:
        if warmup and needed:
            return f"trains at lr {rate:g} with {warmup} warm-up updates ({model}); {without}"
        return f"trains without warm-up up to lr ≈ {highest:.1e} ({model})"
    if highest * dim < HOPELESS:
        return f"will not train at this depth ({model}): without warm-up even lr {highest:.1e} is too high"
    if needed is not None:
        return f"needs about {needed} warm-up updates at lr {rate:g} ({model}); {without}"
    enough, gain = max(calibration()["warmup_gain"], key=lambda point: point[1])  # of several the shortest
    so_far = f"({model}): {without}, with {enough} warm-up updates up to about {highest * gain:.1e}"
    if warmup > longest_warmup():
        return f"may not train at lr {rate:g} {so_far}; no warm-up above {longest_warmup()} was measured"
    return f"will not train at lr {rate:g} {so_far}"


def _first_moved(connections: Sequence[Connection], rollout: Sequence[Record]) -> str:
    """The first connection whose stream the first step changed by at least half as much as it changed any."""
    moved = sorted((r.position, r.value, r.where) for r in rollout if r.quantity == "hidden_change" and r.step == 1)
    most = max((value for _, value, _ in moved if math.isfinite(value)), default=0.0)
    return next((where for _, value, where in moved if value >= most / 2), connections[-1].where)


def _evidence(
    connections: Sequence[Connection], before: Sequence[Record], rollout: Sequence[Record], rate: float
) -> list[str]:
    said = []
    start = {r.position: r.value for r in before if r.quantity == "diversity"}
    after = [r for r in rollout if r.quantity == "diversity" and r.step == COLLAPSE_AFTER and start.get(r.position)]
    if after:
        worst = min(after, key=lambda r: r.value / start[r.position])
        said.append(
            f"tokens: after {COLLAPSE_AFTER} steps at lr {rate:g} the tokens at {worst.where} differ by "
            f"{worst.value:.3f} of their size, at the start by {start[worst.position]:.3f}"
        )
    changes = {r.step: r.value for r in rollout if r.quantity == "output_change"}
    if changes:
        last = max(changes)
        said.append(
            f"‖ΔF‖: the first step changes the output by {changes[min(changes)]:.2f} of its size, {last} steps by "
            f"{changes[last]:.2f}"
        )
    gradients = {r.position: r.value for r in before if r.quantity == "grad_norm_of_mean" and r.position >= 0}
    for stack in dict.fromkeys(c.stack for c in connections):
        inside = [gradients[c.position] for c in connections if c.stack == stack and c.position in gradients]
        if len(inside) > 1 and min(inside) > 0:
            said.append(
                f"gradients: the first sublayer of {stack} has {inside[0] / inside[-1]:.2g} times the gradient of "
                f"its last"
            )
    return said[:4]


def _remedies(
    connections: Sequence[Connection], findings: Sequence[Finding], rate: float, warmup: int, highest: float,
    chance: float, needed: int | None,
) -> list[str]:  # fmt: skip
    """What to change, the least change first."""
    found = [f"fix {f.where}: {f.message}" for f in findings if f.severity == "fault"]
    if chance >= 0.5:
        return found
    if needed:
        found.append(f"warm up for about {needed} updates")
    gain = warmup_gain(warmup)
    found.append(
        f"lower the rate to {0.7 * highest * gain:.1e}" + (f" with {warmup} warm-up updates" if warmup else "")
    )
    names = {c.placement for c in connections}
    if names & {"Post-LN", "no norm"}:
        layers = layers_of(connections)
        decoders = {c.stack for c in connections if c.sublayer == "cross-attention"}
        counts = [n for s, n in layers.items() if s not in decoders] + [n for s, n in layers.items() if s in decoders]
        constants = theory.deepnet_constants(counts[0], counts[1] if len(counts) > 1 and decoders else 0)
        alphas = ", ".join(f"{name.replace('_', ' ')} {p.value:.3g}" for name, p in constants.items())
        found.append(f"keep Post-LN's order but scale it as DeepNorm does ({alphas}), with warm-up")
    if names - {"Pre-LN", "Sandwich-LN", "Sub-LN"}:
        found.append("put the norm before each sublayer (Pre-LN) and one norm at the end of each stack")
    return found
