"""A learning rate from short real trainings of the same model from the same start: what is tried, and what decides.

    choice = search(trial, ladder("Adam"), budget(planned=10_000, ...))

Every second rate of a fixed ladder for some updates; then the best of them and its two neighbours, from the start again
and for twice as many. What decides is the loss on batches that none was trained on. No torch.

How long a look may take is counted in updates and never in seconds, so that a busy machine chooses as an idle one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from leadline.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

SHARE = 0.03  # of the planned updates, at most
ENOUGH = 320  # updates: a look that takes less than a minute is not longer
MINUTE = {"cpu": 1.2e12, "cuda": 3e15}  # floating-point operations that count as one
LADDERS = {
    "SGD": (2e-3, 12),
    "": (6.25e-5, 11),
}  # by optimizer: the lowest rate, and how many, each twice the one before
SHORTEST = 8  # updates of a short training: fewer say nothing
LOOK = 4  # updates that a look at the other batches counts as
OTHER = 12  # batches to look at, which no step is trained on
COLLAPSED = 0.05  # of how much of the hidden states differs between tokens at the start: below it they are all alike
NEAR = 0.02  # nats: of rates that end so near the best, the lowest
LONGEST_WARMUP = 4000
WARMUP_SHARE = 0.1  # of the planned updates


class Ended(NamedTuple):
    """A short training: its loss on other batches, and how much of the hidden states still differs between tokens."""

    loss: float
    diversity: float = 1.0  # over that at the start


class Tried(NamedTuple):
    rate: float
    updates: int
    loss: float


class Choice(NamedTuple):
    rate: float
    warmup: int
    reason: str  # a sentence for each of the two
    tried: tuple[Tried, ...]
    updates: int  # that the look took


Trial = Callable[[float, int], Ended]  # train at a rate for so many updates, from the start


def ladder(optimizer: str) -> list[float]:
    """The rates that are tried, by the name of torch's class."""
    lowest, count = LADDERS.get(optimizer, LADDERS[""])
    return [lowest * 2**k for k in range(count)]


def budget(planned: int, operations: float, device: str, processes: int = 1) -> int:
    """Updates a look may take: a share of those planned, or as many as a minute holds, whichever is more.

    operations: of an update, 6 times its tokens times the weights. A look is done by one process.
    """
    in_a_minute = MINUTE.get(device, MINUTE["cpu"]) / max(operations, 1.0)
    return int(max(SHARE * planned / processes, min(ENOUGH, in_a_minute)))


def steps(rates: int, updates: int) -> int:
    """Updates of each short training of the first round, with what looking costs: as much as LOOK updates each time."""
    first, second = len(range(0, rates, 2)), 3
    return (updates - LOOK * (first + second)) // (first + 2 * second)


def search(trial: Trial, rates: Sequence[float], updates: int) -> tuple[float, list[Tried]]:
    """The rate, and everything tried; a ladder that no training survives is an error."""
    length = steps(len(rates), updates)
    if length < SHORTEST:
        needed = next(n for n in itertools.count(updates) if steps(len(rates), n) >= SHORTEST)
        raise UserError(
            f"a rate cannot be chosen in {max(updates, 0)} updates, and it may not take more ({SHARE:.0%} of the "
            f"training, or a minute): {needed} are needed; train longer, or give the rate as a number"
        )
    coarse = {rate: trial(rate, length) for rate in rates[::2]}
    order = _badness(coarse)
    middle = rates.index(min(order, key=lambda rate: order[rate]))
    fine = {rate: trial(rate, 2 * length) for rate in rates[max(middle - 1, 0) : middle + 2]}
    order = _badness(fine)
    failed, loss = min(order.values())
    if math.isinf(loss):
        raise UserError(
            f"the loss is not finite at any rate from {min(rates):g} to {max(rates):g}: look at the model with "
            "leadline inspect"
        )
    tried = [Tried(r, n, end.loss) for ends, n in ((coarse, length), (fine, 2 * length)) for r, end in ends.items()]
    return min(rate for rate in fine if order[rate] <= (failed, loss + NEAR)), tried


def _badness(ends: Mapping[float, Ended]) -> dict[float, tuple[bool, float]]:
    """Of each rate: whether it has failed, and its loss. Above one that has, all have: it would be by luck."""
    failed, badness = False, {}
    for rate in sorted(ends):
        loss = ends[rate].loss if math.isfinite(ends[rate].loss) else math.inf
        failed = failed or math.isinf(loss) or not ends[rate].diversity >= COLLAPSED
        badness[rate] = (failed, loss)
    return badness


def warmup(planned: int) -> int:
    return min(LONGEST_WARMUP, round(WARMUP_SHARE * planned))


def risen(step: int, steps: int, warms: bool) -> float:
    """The share of the rate at a step of a look: where the training warms up, over the first third of it."""
    return min(1.0, step / (steps // 3)) if warms and steps >= 6 else 1.0


def choice(rate: float, warm: int, planned: int, tried: Sequence[Tried]) -> Choice:
    last = max(t.updates for t in tried)
    others = ", ".join(f"{t.rate:g}: {t.loss:.3g}" for t in sorted(tried) if t.updates == last and t.rate != rate)
    loss = next(t.loss for t in tried if t.updates == last and t.rate == rate)
    spent = sum(t.updates for t in tried)
    rates = sorted({t.rate for t in tried})
    end = " (an end of what was tried: beyond it may be better)" if rate in (rates[0], rates[-1]) else ""
    said = (
        f"lr {rate:g} has a loss of {loss:.3g} after {last} updates ({others}), the lowest rate within {NEAR:g} of the "
        f"best; {len(rates)} from {rates[0]:g} to {rates[-1]:g} were tried{end}, {spent} updates in all"
    )
    return Choice(rate, warm, said, tuple(tried), spent)


def diversity(x: Tensor) -> float:
    """How much of the stream differs between tokens: 1 where they have nothing in common, 0 where all are the same."""
    return float(token_diversity(x))


def token_diversity(x: Tensor) -> Tensor:
    """The same on the device."""
    rows = x.detach().float().flatten(0, -2)
    return (rows.var(0, correction=0).mean() / rows.pow(2).mean().clamp_min(1e-30)).sqrt()
