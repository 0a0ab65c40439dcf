"""What comes slowly: rules on looks, and on trends of weights and of the loss. No torch.

A trend is told some updates after it began, and its first update is known only about: see docs/watch.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from leadline.alarm import collapsed
from leadline.diagnose.timeline import Cause, Timeline
from leadline.flight import EMBEDDINGS, NORMS
from leadline.history import Row
from leadline.usual import ENOUGH

LOGITS = 200.0  # softmax of logits this far apart is one-hot in fp32
LARGER = 3.0  # times its usual size at which a logit is one that grows
FALLING, STARVED, QUICKLY = 4, 0.5, 200  # looks that a norm's output shrinks in, how far, within so many updates
AT_ONCE = 0.7  # of its fall, between two looks: more is no slow one
SPAN, MOVED, CALM = 30, 1.5, 1.15  # updates in which a layer's weights grow or shrink so many times, and before them
STILL = 20  # updates in which a layer has not moved
LEVEL, RISEN = 10, 0.05  # losses whose median is a level, and how far it rises
HIGHER = 5.0  # times a rate that was constant, to which it rises little by little


def _does_nothing(look: Row, name: str) -> bool:
    out, entered = (look.get(f"watch/{quantity}/{name}") for quantity in ("norm_output", "norm_input"))
    return out is None or entered is None or abs(out - entered) < 1e-6 * abs(entered)


def _layers_of(look: Row, quantity: str) -> list[str]:
    start = f"watch/{quantity}/"
    return [key.removeprefix(start) for key in look if key.startswith(start)]


def _norm(t: Timeline) -> Iterator[Cause]:
    """A norm that did something in the look before does nothing in the look after."""
    for row in t.rows:  # of a model whose operations are followed: another placement than before
        for name, change in row.get("changed", {}).items():
            update = int(row["update"])
            yield Cause(
                "norm", name, update,
                f"the look at update {update} saw another model than the one before: {name} was {change}",
                f"put the norms of {name} back",
            )  # fmt: skip
            return
    for before, after in itertools.pairwise(t.looks):
        for name in _layers_of(before, "norm_output"):
            if _does_nothing(after, name) and not _does_nothing(before, name):
                first, last = int(before["update"]) + 1, int(after["update"])
                yield Cause(
                    "norm", name, last if first == last else _worst(t, first, last),
                    f"between updates {first} and {last} the norm of {name} has ceased to do anything: what enters it "
                    f"leaves it as it is",
                    f"put the norm of {name} back",
                )  # fmt: skip
                return


def _worst(t: Timeline, first: int, last: int) -> int:
    """The first update among these at which some number of the whole model is not as usual; the last where all are."""
    inside = [i for i, update in enumerate(t.updates) if first <= update <= last]
    return next((int(t.updates[i]) for i in inside if t.far(i, ("loss", "grad_norm", "step"))), last)


def _not_finite(t: Timeline) -> Iterator[Cause]:
    bad = np.flatnonzero(~np.isfinite(t.series["loss"]) | np.isinf(t.series["grad_norm"]))
    if len(bad):
        update, grads = int(t.updates[bad[0]]), ~np.isfinite(t.by_layer["grad"][bad[0]])
        # It goes from the loss back to the first layer: the last that has it is where it comes from.
        layers = [name for name, of in zip(t.layers, grads, strict=True) if of and name not in (EMBEDDINGS, NORMS)]
        finite = np.isfinite(t.series["loss"][bad[0]])
        where = layers[-1] if layers and finite and not grads.all() else ""
        what = "loss" if not finite else f"gradient of {where}" if where else "gradient"
        yield Cause(
            "not_finite", where, update, f"at update {update} the {what} is not finite",
            "lower the rate, warm up longer or clip gradients; in fp16, look for overflow",
        )  # fmt: skip


def _collapse(t: Timeline) -> Iterator[Cause]:
    for look in t.looks:
        if found := collapsed(look):
            name, value = found
            yield Cause(
                "collapse", name, int(look["update"]),
                f"at update {look['update']} the tokens behind {name} are almost identical: {value:.1%} of "
                f"their norm differs",
                "the model has collapsed and seldom recovers: begin again with more warm-up, a lower rate or "
                "another placement of the norm",
            )  # fmt: skip
            return


def _logits(t: Timeline) -> Iterator[Cause]:
    for look in t.looks:
        for name in _layers_of(look, "logits"):
            value = look[f"watch/logits/{name}"]
            if value is not None and value > LOGITS:
                yield Cause(
                    "logits", name, int(look["update"]),
                    f"at update {look['update']} an attention logit of {name} is {value:.3g}: each token attends to "
                    f"one other, and no gradient passes",
                    "normalise queries and keys (model.qk_norm), or lower the rate",
                )  # fmt: skip
                return


# Trends


def _starving(t: Timeline) -> Iterator[Cause]:
    """The output of a norm shrinks from look to look, though it is a norm: its gain does."""
    for name in {name: None for look in t.looks for name in _layers_of(look, "norm_output")}:
        seen = [look for look in t.looks if look.get(f"watch/norm_output/{name}") and not _does_nothing(look, name)]
        sizes = [look[f"watch/norm_output/{name}"] for look in seen]
        for at in range(FALLING, len(seen)):
            start = at - FALLING
            steps = -np.diff(np.log(sizes[start : at + 1]))
            falls = steps.min() > 0 and steps.max() < AT_ONCE * steps.sum()  # and was not written to
            if falls and sizes[at] < STARVED * sizes[start] and seen[at]["update"] - seen[start]["update"] <= QUICKLY:
                first = _began(np.log(sizes), at)
                since, until = int(seen[first]["update"]) + 1, int(seen[at]["update"])
                yield Cause(
                    "starving", name, since,
                    f"since about update {since} the gain of the norm of {name} shrinks: at update {until} what leaves "
                    f"the norm is {sizes[at] / sizes[first]:.2g} of what it was",
                    f"look at what decays the gain of the norm of {name}: norms need no weight decay",
                )  # fmt: skip
                break


def _fading(t: Timeline) -> Iterator[Cause]:
    """The weights of one layer shrink by themselves."""
    for name, since, until, times in _moved(t, -1):
        yield Cause(
            "decay", name, since,
            f"since about update {since} the weights of {name} shrink, to {times:.2g} of their norm at update {until}, "
            f"and those of most layers much less",
            f"look at the weight decay of the parameter group of {name}, and at what else shrinks it",
        )  # fmt: skip


def _growing(t: Timeline) -> Iterator[Cause]:
    """The weights of one layer grow by themselves, and with them its attention logits if it has some."""
    for name, since, until, times in _moved(t, 1):
        said = f"since about update {since} the weights of {name} grow, to {times:.2g} times their norm at {until}"
        key = f"watch/logits/{name}"
        looks = [(look["update"], look[key]) for look in t.looks if look.get(key)]
        before, after = ([v for u, v in looks if (u >= since) == later] for later in (False, True))
        if before and after and after[-1] > LARGER * np.median(before):
            yield Cause(
                "logits", name, since,
                f"{said}, and its attention logits with them, from {np.median(before):.3g} to {after[-1]:.3g}",
                "normalise queries and keys (model.qk_norm), or lower the rate of this layer",
            )  # fmt: skip
        else:
            yield Cause(
                "growth", name, since, f"{said}, and those of most layers much less",
                f"look at the rate and the parameter group of {name}, and at what else writes to it",
            )  # fmt: skip


def _moved(t: Timeline, sign: int) -> Iterator[tuple[str, int, int, float]]:
    """Layers whose weights have shrunk or grown within SPAN updates, after a calm and unlike the others: since when,
    until when, and how many times."""
    weight = t.by_layer["weight"]
    read = np.isfinite(weight).all(axis=1) if weight.size else np.zeros(0, bool)
    if not read.any() or len(t.layers) < 3:
        return
    updates, sizes = t.updates[read], np.log(weight[read])
    earlier = np.searchsorted(updates, updates - SPAN, side="right") - 1
    seen: set[int] = set()
    for at in map(int, np.flatnonzero(earlier >= 0)):
        then = int(earlier[at])
        if earlier[then] < 0 or updates[at] - updates[then] > 2 * SPAN:
            continue
        change, before = sign * (sizes[at] - sizes[then]), sign * (sizes[then] - sizes[earlier[then]])
        apart, calm = change - np.nanmedian(change), before - np.nanmedian(before) < math.log(CALM)
        steps = sign * np.diff(sizes[then : at + 1], axis=0)
        slow = (steps.max(axis=0) < change / 2) | (len(steps) < 3)  # and not written to between two updates
        for layer in map(int, np.flatnonzero((np.minimum(change, apart) > math.log(MOVED)) & calm & slow)):
            first = _began(sizes[:, layer], at)
            # Gains are seen in looks, and scalars such as ReZero's may pass zero.
            if layer not in seen and t.layers[layer] != NORMS:
                seen.add(layer)
                times = np.exp(sizes[at, layer] - sizes[first, layer])
                yield t.layers[layer], int(updates[first]) + 1, int(updates[at]), times


def _began(values: np.ndarray, at: int) -> int:
    """The last place before a fall or a rise."""
    change = np.diff(values[: at + 1])
    pace = (values[at] - values[max(0, at - FALLING)]) / min(at, FALLING) / 3
    calm = np.flatnonzero(np.sign(pace) * change < abs(pace))
    return int(calm[-1]) + 1 if len(calm) else 0


def _still(t: Timeline) -> Iterator[Cause]:
    """The weights of some layers, or of all, no longer move."""
    moves = t.by_layer["update"]
    read = np.isfinite(moves).all(axis=1) if moves.size else np.zeros(0, bool)
    if not read.any():
        return
    updates, moves = t.updates[read], moves[read] > 0
    last = len(moves) - 1 - moves[::-1].argmax(axis=0)  # the last update in which a layer moves
    always = [moves[: at + 1, layer].all() for layer, at in enumerate(last)]
    stopped = np.flatnonzero((last >= ENOUGH) & (last < len(moves) - STILL) & always & (np.array(t.layers) != NORMS))
    if len(stopped) and (last < len(moves) - STILL).all():
        since = int(updates[last.max() + 1])
        yield Cause(
            "still", "", since, f"since update {since} no weights move at all, at a rate of {t.rates[read][-1]:.3g}",
            "look at what the optimizer is given, and whether gradients reach it",
        )  # fmt: skip
    elif len(stopped) and (last == len(moves) - 1).any():
        first = int(stopped[last[stopped].argmin()])
        name, since = t.layers[first], int(updates[last[first] + 1])
        others = f" and of {len(stopped) - 1} more layers" if len(stopped) > 1 else ""
        yield Cause(
            "still", name, since,
            f"since update {since} the weights of {name}{others} do not move at all, and those of the others do",
            f"look at what freezes {name} (requires_grad, a parameter group, a gradient that is cut off); weights of "
            f"16 bits do not move by steps that are too small for them",
        )  # fmt: skip


def _no_rate(t: Timeline) -> Iterator[Cause]:
    """A schedule that has ended, and a training that has not."""
    zero = np.array([row.get("lr") == 0 for row in t.rows])
    ended = int((~zero).nonzero()[0].max(initial=-1)) + 1
    if ENOUGH <= ended < len(zero) - STILL:
        update = int(t.updates[ended])
        yield Cause(
            "still", "", update, f"since update {update} the learning rate is 0, and no weights move",
            f"look at the schedule of the rate: it ends before update {update}, and the training does not",
        )  # fmt: skip


def _rate(t: Timeline) -> Iterator[Cause]:
    """A rate that was constant and then rises little by little."""
    for at in range(2 * LEVEL, len(t.rates)):
        plateau = t.rates[at - 2 * LEVEL : at]
        if np.ptp(plateau) > 1e-6 * plateau[0] or not t.rates[at] > plateau[0]:
            continue
        highest = int(np.nanargmax(t.rates[at:])) + at
        if t.rates[highest] > HIGHER * plateau[0]:
            since, until = int(t.updates[at]), int(t.updates[highest])
            yield Cause(
                "rate", "", since,
                f"since update {since} the learning rate rises from {plateau[0]:.3g}, which it had been before, to "
                f"{t.rates[highest]:.3g} at update {until}",
                f"go on from a checkpoint before update {since} with the rate it had",
            )  # fmt: skip
            return


def trend(t: Timeline, causes: Sequence[Cause]) -> Iterator[Cause]:
    """The loss has been rising for a while, and nothing else explains it, or what looks like a jump to other data."""
    if t.signed or any(cause.kind != "data" for cause in causes):
        return
    logs = np.log(t.series["loss"])
    level = np.array([np.nanmedian(logs[max(0, at - LEVEL + 1) : at + 1]) for at in range(len(logs))])
    lowest = np.minimum.accumulate(level)
    least = max(RISEN, 2 * np.nanmedian(np.abs(np.diff(logs))) / 0.95)  # spreads of one loss
    high = level - lowest > least
    ats = [at for at in range(ENOUGH + 2 * LEVEL, len(level)) if high[at - 2 * LEVEL : at + 1].all()]
    if causes:  # it is a trend if the loss was higher before the jump already
        at = int(np.searchsorted(t.updates, causes[0].update))
        ats = [at] if np.nanmedian(logs[max(0, at - 4) : at]) - lowest[at - 1] > least else []
    if ats:
        at = ats[0]
        first = int(np.flatnonzero(level[: at + 1] == lowest[at])[-1])
        since, until = int(t.updates[first]) + 1, int(t.updates[at])
        yield Cause(
            "drift", "", since,
            f"since about update {since} the loss rises little by little, from {np.exp(level[first]):.3g} to "
            f"{np.exp(logs[at]):.3g} at update {until}, and neither the rate nor any layer's weights explain it: the "
            f"data drift, or the training is slowly becoming unstable",
            f"look at what the data source gives from update {since} on; if it is the same, lower the rate",
        )  # fmt: skip


SLOW: tuple[Callable[[Timeline], Iterator[Cause]], ...] = (
    _norm, _not_finite, _collapse, _logits, _starving, _fading, _growing, _still, _no_rate, _rate,
)  # fmt: skip
