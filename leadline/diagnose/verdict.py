"""From records to a plain answer: up to which rate a model trains, what warm-up it needs, and what to change. No torch.

What decides is measured, not assumed. In the first steps of a training that will fail, the tokens of a batch become
alike: the update moves every position the same way, layer upon layer, until attention has nothing to tell apart and
the gradients of the lower layers vanish. Three numbers say so after five steps at a rate:

    collapse   log10 of the tokens' diversity after step 3 over that at step 0, mean over the residual connections
    first      log10 of ‖ΔF‖ in step 1, the change of the model's output in one step (DeepNet's quantity)
    change     log10 of ‖ΔF‖ in step 5, when the first shock is over

A loss that rises within those steps, or is not finite, counts as complete collapse.

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
from leadline.diagnose.connection import Connection, layers_of
from leadline.diagnose.faults import Finding
from leadline.diagnose.record import Record

STEPS = 5  # optimizer steps of a rollout
ENDURES = 40  # steps in which the loss must not rise again, where the model is of a kind that the fit has not seen
COLLAPSE_AFTER = 3  # of them the tokens are compared with the start
FLOOR = 1e-4  # smaller diversities and changes count as this one
ALIKE = 0.1  # of the spread at the start: less is said to be almost identical
RISES = 0.1  # of the loss before the first step: more is a rise, less may be chance
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
    highest_rate: float  # without warm-up, at most the highest tried; 0: none of those tried trains
    needed_warmup: int | None  # at the rate asked for; None: more than was ever measured
    where: str  # from the input on, the first residual connection that one step changes strongly
    evidence: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    edge_found: bool = True  # False: every rate tried trains, or those up to the highest edge of the fit
    outside: list[str] = field(default_factory=list)  # in what the model differs from those the verdict was fitted on


class Features(NamedTuple):
    collapse: float
    first: float
    change: float


def features(before: Sequence[Record], rollout: Sequence[Record]) -> Features:
    """Of one rollout; one that broke off, or whose loss rises, counts as complete collapse."""
    start = {r.position: r.value for r in before if r.quantity == "diversity" and r.step == 0}
    after = {r.position: r.value for r in rollout if r.quantity == "diversity" and r.step == COLLAPSE_AFTER}
    changes = {r.step: r.value for r in rollout if r.quantity == "step_change"}
    broke_off = STEPS not in changes or not all(map(math.isfinite, (*after.values(), *changes.values())))
    if not after or broke_off or loss_rises(before, rollout):
        return Features(math.log10(FLOOR), 0.0, 0.0)
    logs = [math.log10(max(value, FLOOR) / max(start[at], FLOOR)) for at, value in after.items()]
    first, last = (math.log10(max(changes[step], FLOOR)) for step in (1, STEPS))
    return Features(sum(logs) / len(logs), first, last)


def losses(before: Sequence[Record], rollout: Sequence[Record]) -> tuple[float, float] | None:
    """On the batch that is looked at, before the first step and after the last; None: they were not measured."""
    values = [r.value for r in (*before, *rollout) if r.quantity == "shown_loss"]
    return (values[0], values[-1]) if len(values) > 1 else None


def loss_rises(before: Sequence[Record], rollout: Sequence[Record]) -> bool:
    measured = losses(before, rollout)
    if measured is None:
        return False
    first, last = measured
    return not last - first <= RISES * abs(first)  # also where one is not a number


def score(measured: Features, numbers: Mapping[str, float] | None = None) -> float:
    """Log-odds that the model learns."""
    n = numbers or calibration()["score"]
    return n["intercept"] + sum(n[name] * value for name, value in measured._asdict().items())


def probability(log_odds: float) -> float:
    if math.isnan(log_odds):
        return 0.0
    return 1 / (1 + math.exp(-max(-50.0, min(50.0, log_odds))))


def highest_rate(scores: Mapping[float, float]) -> float:
    """Where the log-odds cross zero, on a line between the two rates around it in log rate.

    Never above the highest rate tried; 0 where none of them trains.
    """
    rates = sorted(scores)
    for low, high in itertools.pairwise(rates):
        if scores[low] > 0 >= scores[high]:
            part = scores[low] / (scores[low] - scores[high])
            return float(low * (high / low) ** part)
    return rates[-1] if scores[rates[0]] > 0 else 0.0


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


class Judged(NamedTuple):
    """What the sentences of a verdict are made of."""

    connections: Sequence[Connection]
    rate: float
    warmup: int
    lowest: float  # rate tried
    highest: float  # rate without warm-up; 0: none of those tried
    edge_found: bool
    chance: float
    needed: int | None  # warm-up updates
    watched: bool  # for ENDURES steps: all that is known of how it trains


def judge(
    connections: Sequence[Connection],
    findings: Sequence[Finding],
    before: Sequence[Record],
    rollouts: Mapping[float, Sequence[Record]],
    rate: float,
    warmup: int = 0,
    outside: Sequence[str] = (),
    limit: float = math.inf,
    endured: float = math.inf,
) -> Verdict:
    """`rollouts`: the records of the first steps at several rates, `rate` among them.

    Above `limit` no model of the fit has its edge, so that the score says nothing there. `endured`: the highest rate
    at which a longer look saw no loss that rises again, if one was taken.
    """
    scores = {at: score(features(before, records)) for at, records in rollouts.items()}
    reached = min(highest_rate(scores), limit)
    highest = min(reached, endured)
    edge_found = highest < reached or (min(scores.values()) <= 0 and highest_rate(scores) <= limit)
    gain = warmup_gain(warmup)
    # With warm-up, a rate is judged like the lower one that it is worth.
    excess = rate / (highest * gain) if highest else math.inf
    chance = probability(
        scores[rate] if gain == 1 and rate <= min(limit, endured) else -_steepness(scores) * math.log2(excess)
    )
    needed = needed_warmup(excess * gain)
    judged = Judged(connections, rate, warmup, min(scores), highest, edge_found, chance, needed, endured < math.inf)
    return Verdict(
        _answer(judged),
        chance >= 0.5,
        chance,
        rate,
        warmup,
        highest,
        needed,
        _first_moved(connections, rollouts[rate]),
        _evidence(judged, before, rollouts[rate]),
        _remedies(judged, findings),
        edge_found,
        list(outside),
    )


def _steepness(scores: Mapping[float, float]) -> float:
    """How many log-odds a doubling of the rate costs."""
    rates = sorted(scores)
    slopes = [(scores[a] - scores[b]) / math.log2(b / a) for a, b in itertools.pairwise(rates) if scores[a] > scores[b]]
    return sum(slopes) / len(slopes) if slopes else 1.0


def _placements(connections: Sequence[Connection]) -> str:
    layers = layers_of(connections)
    names = list(dict.fromkeys(c.placement for c in connections))
    depth = "-".join(str(n) for n in layers.values())
    return f"{depth} layer{'s' * (depth != '1')}, {' and '.join(names)}"


def _answer(judged: Judged) -> str:
    _, rate, warmup, lowest, highest, edge_found, chance, needed, watched = judged
    model = _placements(judged.connections)
    without = f"without warm-up it trains up to lr ≈ {highest:.1e}"
    if chance >= 0.5:
        trains = f"trains for {ENDURES} steps" if watched else "trains"
        if not edge_found:
            return f"{trains} without warm-up at every rate judged ({model}): no edge found up to lr {highest:.1e}"
        if warmup and needed:
            return f"{trains} at lr {rate:g} with {warmup} warm-up updates ({model}); {without}"
        return f"{trains} without warm-up up to lr ≈ {highest:.1e} ({model})"
    if (highest or lowest / 2) * max(c.dim for c in judged.connections) < HOPELESS:
        even = f"only lr below {highest:.1e} is low enough" if highest else f"even lr {lowest:.1e} is too high"
        return f"will not train at this depth ({model}): without warm-up {even}"
    if not highest:
        return f"does not train at any rate tried, the lowest lr {lowest:.1e} ({model})"
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


def _evidence(judged: Judged, before: Sequence[Record], rollout: Sequence[Record]) -> list[str]:
    rate = judged.rate
    said = []
    measured = losses(before, rollout)
    if measured and loss_rises(before, rollout):
        last = max(r.step for r in rollout)
        said.append(f"loss: it rises from {measured[0]:.3g} to {measured[1]:.3g} within {last} steps at lr {rate:g}")
    start = {r.position: r.value for r in before if r.quantity == "diversity"}
    after = [r for r in rollout if r.quantity == "diversity" and r.step == COLLAPSE_AFTER and start.get(r.position)]
    if after:
        worst = min(after, key=lambda r: r.value / start[r.position])
        said.append(f"tokens: after {COLLAPSE_AFTER} steps at lr {rate:g} {_alike(worst, start[worst.position])}")
        if judged.chance < 0.5 and worst.value < ALIKE * start[worst.position]:
            said[-1] += ": the model has collapsed"
    changes = {r.step: r.value for r in rollout if r.quantity == "output_change"}
    if changes:
        last = max(changes)
        said.append(
            f"‖ΔF‖: the first step changes the model's output by {_percent(changes[min(changes)])} of its norm, {last} "
            f"steps by {_percent(changes[last])}"
        )
    return said


def _alike(tokens: Record, start: float) -> str:
    """How different the token vectors still are, beside how different they were."""
    how = "almost identical" if tokens.value < ALIKE * start else "still different"
    spread = f"spread {_percent(tokens.value)} of their norm, {_percent(start)} before training"
    return f"the token vectors at {tokens.where} are {how} ({spread})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 or not share > 0 else f"{100 * share:.2g} %"


def _remedies(judged: Judged, findings: Sequence[Finding]) -> list[str]:
    """What to change, the least change first."""
    connections, warmup = judged.connections, judged.warmup
    steps = [f"fix {f.where}: {f.message}" for f in findings if f.severity == "fault"]
    if judged.chance >= 0.5:
        return steps
    if judged.needed:
        steps.append(f"warm up for about {judged.needed} updates")
    if judged.highest:
        with_warmup = f" with {warmup} warm-up updates" if warmup else ""
        steps.append(f"lower the rate to {0.7 * judged.highest * warmup_gain(warmup):.1e}{with_warmup}")
    else:
        steps.append(f"lower the rate below {judged.lowest:.1e}, the lowest tried")
    names = {c.placement for c in connections}
    if names & {"Post-LN", "no norm"}:
        layers = layers_of(connections)
        decoders = {c.stack for c in connections if c.sublayer == "cross-attention"}
        counts = [n for s, n in layers.items() if s not in decoders] + [n for s, n in layers.items() if s in decoders]
        constants = theory.deepnet_constants(counts[0], counts[1] if len(counts) > 1 and decoders else 0)
        alphas = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in constants.items())
        steps.append(f"keep Post-LN's order but scale it as DeepNorm does ({alphas}), with warm-up")
    if names - {"Pre-LN", "Sandwich-LN", "Sub-LN"}:
        steps.append("put the norm before each sublayer (Pre-LN) and one norm at the end of each stack")
    return steps
