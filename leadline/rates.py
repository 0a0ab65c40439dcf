"""A learning rate from short real trainings of the same model from the same start: what is tried, and what decides.

    choice = search(trial, ladder("Adam"), budget(planned=10_000, ...), planned=10_000)

Every second rate of a fixed ladder for some updates; then the best of them and its neighbours, from the start again and
for longer, and so on until the best has both neighbours or the updates are spent. Where they are enough for it, whole
trainings are compared; where those of the last round are a quarter of one or less, half the best rate is taken. What
decides is the loss on batches that none was trained on. No torch.

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
ENOUGH = 1250  # updates: a look that takes less than a minute is not longer
MINUTE = {"cpu": 1.2e12, "cuda": 3e15}  # floating-point operations that count as one
LADDERS = {
    "SGD": (2e-3, 12),
    "": (6.25e-5, 11),
}  # by optimizer: the lowest rate, and how many, each twice the one before
SHORTEST = 8  # updates of a short training: fewer say nothing
LAST = 6  # a training of the last round takes one part in so many of the look, at most ...
KEPT = 4  # ... and there are updates left for so many of them
LOOK = 4  # updates that a look at the other batches counts as
OTHER = 12  # batches to look at, which no step is trained on
COLLAPSED = 0.01  # of how much of the hidden states differs between tokens at the start: below it they are all alike
NEAR = 0.01  # nats: of rates that end so near the best, the lowest
EARLY = 4  # after one part in so many of the training, or less, the best rate is mostly too high: half of it is taken
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
    collapsed: bool = False


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


def lengths(rates: int, updates: int, planned: int) -> tuple[int, int]:
    """Updates of a training of the first round and of the last; looking costs as much as LOOK updates each time."""
    count = len(range(0, rates, 2))
    last = min(planned, updates // LAST - LOOK, (updates - count * (SHORTEST + LOOK)) // KEPT - LOOK)
    return min(last, (updates - KEPT * (last + LOOK)) // count - LOOK), last


def search(trial: Trial, rates: Sequence[float], updates: int, planned: int) -> tuple[float, list[Tried]]:
    """The rate, and everything tried; a ladder that no training survives is an error."""
    first, last = lengths(len(rates), updates, planned)
    shortest = min(SHORTEST, planned)
    if first < shortest:
        needed = next(n for n in itertools.count(updates) if lengths(len(rates), n, planned)[0] >= shortest)
        raise UserError(
            f"a rate cannot be chosen in {max(updates, 0)} updates, and it may not take more ({SHARE:.0%} of the "
            f"training, or a minute): {needed} are needed; train longer, or give the rate as a number"
        )
    coarse = {rate: trial(rate, first) for rate in rates[::2]}
    tried = [Tried(rate, first, end.loss, _has_collapsed(end)) for rate, end in coarse.items()]
    fine = coarse if first == last else {}
    left = updates - len(coarse) * (first + LOOK)
    wanted = [best(coarse)]
    while wanted and left >= last + LOOK:
        if wanted[0] not in fine:
            fine[wanted[0]] = end = trial(wanted[0], last)
            tried.append(Tried(wanted[0], last, end.loss, _has_collapsed(end)))
            left -= last + LOOK
        wanted = _beside(best(fine), rates, coarse, fine)
    order = _badness(fine)
    failed, loss = min(order.values())
    if math.isinf(loss):
        raise UserError(
            f"the loss is not finite at any rate from {min(rates):g} to {max(rates):g}: look at the model with "
            "leadline inspect"
        )
    if _early(last, planned):
        return best(fine) / 2, tried
    return min(rate for rate in fine if order[rate] <= (failed, loss + NEAR)), tried


def _early(last: int, planned: int) -> bool:
    return EARLY * last <= planned


def _beside(
    middle: float, rates: Sequence[float], coarse: Mapping[float, Ended], fine: Mapping[float, Ended]
) -> list[float]:
    """The neighbours that were not tried, first that on whose side the first round was better."""
    order, at = _badness(coarse), rates.index(middle)
    sides = {}
    for side in (-1, 1):
        beyond = at + side if at % 2 else at + 2 * side  # every second rate was in the first round
        if 0 <= at + side < len(rates) and rates[at + side] not in fine:
            sides[rates[at + side]] = order[rates[beyond]] if 0 <= beyond < len(rates) else (True, math.inf)
    return sorted(sides, key=lambda rate: (*sides[rate], rate))


def best(ends: Mapping[float, Ended]) -> float:
    """The rate with the lowest loss that has not failed; where all have, the lowest."""
    order = _badness(ends)
    return min(order, key=lambda rate: (*order[rate], rate))


def _badness(ends: Mapping[float, Ended]) -> dict[float, tuple[bool, float]]:
    """Of each rate: whether it has failed, and its loss. Above one that has, all have: it would be by luck."""
    failed, badness = False, {}
    for rate in sorted(ends):
        loss = ends[rate].loss if math.isfinite(ends[rate].loss) else math.inf
        failed = failed or math.isinf(loss) or _has_collapsed(ends[rate])
        badness[rate] = (failed, loss)
    return badness


def _has_collapsed(end: Ended) -> bool:
    return not end.diversity >= COLLAPSED


def warmup(planned: int) -> int:
    return min(LONGEST_WARMUP, round(WARMUP_SHARE * planned))


def risen(update: int, length: int, planned: int, warmup: int) -> float:
    """The share of the rate at an update of a look: its warm-up is the training's, over a third of the look at most."""
    warmup = warmup if length >= planned else min(warmup, length // 3)
    return min(1.0, update / warmup) if warmup > 1 else 1.0


def choice(rate: float, warm: int, planned: int, tried: Sequence[Tried]) -> Choice:
    length = max(t.updates for t in tried)
    found = 2 * rate if _early(length, planned) else rate
    last = {t.rate: t.loss for t in sorted(tried) if t.updates == length}
    others = ", ".join(f"{other:g}: {loss:.3g}" for other, loss in last.items() if other != found)
    spent = sum(t.updates for t in tried)
    rates = sorted({t.rate for t in tried})
    near = [other for other in last if other >= found and last[found] - NEAR <= last[other]]  # not what has collapsed
    lowest = min(near, key=lambda other: last[other])
    beyond = f" ({lowest:g} is an end of what was tried: beyond it may be better)"
    end = beyond if lowest in (min(last), max(last)) else ""
    collapsed = any(t.collapsed for t in tried if t.rate == found and t.updates == length)
    warning = (
        "; even there the hidden states of all tokens have become almost the same, so this model may not train at all: "
        "leadline inspect says more"
        if collapsed
        else ""
    )
    if found == rate:
        whole = ", the whole training" if length == planned else ""
        decided = (
            f"lr {rate:g} has a loss of {last[rate]:.3g} after {length} updates{whole} ({others}), the lowest rate "
            f"within {NEAR:g} of the best{end}"
        )
    else:
        decided = (
            f"lr {rate:g} is half of {found:g}, whose loss of {last[found]:.3g} is the best after {length} of "
            f"{planned} updates ({others}): so early, the best rate is mostly too high for the whole training{end}"
        )
    said = f"{decided}; {len(rates)} from {rates[0]:g} to {rates[-1]:g} were tried, {spent} updates in all{warning}"
    return Choice(rate, warm, said, tuple(tried), spent)


def diversity(x: Tensor) -> float:
    """How much of the stream differs between tokens: 1 where they have nothing in common, 0 where all are the same."""
    return float(token_diversity(x))


def token_diversity(x: Tensor) -> Tensor:
    """The same on the device."""
    rows = x.detach().float().flatten(0, -2)
    return (rows.var(0, correction=0).mean() / rows.pow(2).mean().clamp_min(1e-30)).sqrt()
