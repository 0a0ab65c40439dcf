"""What goes wrong from one update to the next: a table of rules. No torch.

A number that leaves what is usual for it (`leadline.usual`) marks an update; each rule looks at what else changed there
and says whether it was its kind of fault. What comes slowly is in `leadline.diagnose.slow`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from leadline.alarm import FAR, OUTSIDE, RAMP, RISE
from leadline.diagnose.timeline import AFTER, BEFORE, Cause, Timeline
from leadline.flight import EMBEDDINGS

OFTEN = 2, 0.5  # batches beside it, and their share of its jump, that make a bad batch one of many
BESIDE = 0.25  # share of its jump that the loss of those before and after such a batch has at most
TOGETHER = 0.7  # share of the change of the whole step that most layers have: it is not one layer's
SAME = 1.5  # times that the loss of a few updates changes by at most, where only its gradients are of another scale
LATER, SMALLER = 12, 0.85  # updates after which a jump in the loss has shown whether it is learnt from; gradients then


def _weights(t: Timeline, at: int) -> Cause | None:
    """The weights are not what the last step made of them."""
    outside = np.nan_to_num(t.by_layer["outside"])
    if not outside.size or outside[at].max() <= OUTSIDE:
        return None
    changed = outside[at] > OUTSIDE
    first, size = t.layers[int(outside[at].argmax())], float(outside[at].max())
    update = int(t.updates[at])
    if changed.mean() > 0.6 and size < 0.05:
        return Cause(
            "precision", "", update,
            f"since update {update} the weights of {changed.sum()} of {len(changed)} layers change by about "
            f"{np.median(outside[at][changed]):.1g} of their norm between two steps, as rounding to 16 bits does",
            "keep the weights that the optimizer updates in fp32, and cast for products only (autocast)",
        )  # fmt: skip
    again = outside[max(0, at - AFTER) : at + AFTER, outside[at].argmax()] > OUTSIDE
    if size < 0.01 and again.sum() > AFTER / 2:
        return Cause(
            "precision", first, update,
            f"since update {update} the weights of {first} change by about {size:.1g} of their norm between two steps, "
            f"again and again, as rounding to 16 bits does",
            f"keep the weights of {first} in fp32, and cast for products only (autocast)",
        )  # fmt: skip
    if first == EMBEDDINGS:
        return Cause(
            "embedding", first, update,
            f"before update {update} the norm of an embedding table changed by {size:.2g} of itself though no step was "
            f"taken: rows of it were written to",
            f"find what writes to embeddings before update {update}; go on from a checkpoint before",
        )  # fmt: skip
    others = f", and those of {changed.sum() - 1} more layers" if changed.sum() > 1 else ""
    return Cause(
        "weights", first, update,
        f"before update {update} the weights of {first} changed by {size:.2g} of their norm{others}, though no step "
        f"was taken",
        f"find what writes to {first} between updates {update - 1} and {update}; go on from a checkpoint before",
    )  # fmt: skip


def _rate(t: Timeline, at: int) -> Cause | None:
    if at == 0 or not t.rates[at] / t.rates[at - 1] > RISE or t.updates[at] <= RAMP:
        return None
    known = t.rates[at] < 1.01 * np.nanmax(t.rates[:at])  # a schedule that restarts
    if known and not any(t.far(later, ("loss",)) for later in range(at, min(at + AFTER, len(t.rows)))):
        return None
    times, update = t.rates[at] / t.rates[at - 1], int(t.updates[at])
    return Cause(
        "rate", "", update,
        f"at update {update} the learning rate rose {times:.3g} times, to {t.rates[at]:.3g}, in one update",
        f"go on from a checkpoint before update {update} with the rate it had",
    )  # fmt: skip


def _loss_scale(t: Timeline, at: int) -> Cause | None:
    """Every gradient is another by the same factor, and the loss is not."""
    jumps = t.change(t.by_layer["grad"], at)
    if np.isnan(jumps).all():  # norms by layer are not of every update, or of none
        jumps = t.change(t.series["grad_norm"][:, None], at)
    stays = t.change(t.series["grad_norm"], at, AFTER)
    if abs(t.distance["loss"][at]) > FAR or abs(t.change(t.series["loss"], at, AFTER)) > math.log(SAME):
        return None
    if not abs(np.nanmedian(jumps)) > math.log(3) or not np.nanstd(jumps) < 0.5:
        return None
    if np.sign(stays) != np.sign(np.nanmedian(jumps)) or abs(stays) < math.log(2):
        return None
    update, times = int(t.updates[at]), np.exp(float(np.nanmedian(jumps)))
    return Cause(
        "loss_scale", "", update,
        f"since update {update} the gradients of all layers are {times:.3g} times what they were, and the loss is not",
        "look for a loss that is scaled and not scaled back: a GradScaler without unscale_, another number of batches "
        "to an update, a sum in place of a mean, another threshold of clipping",
    )  # fmt: skip


def _moments(t: Timeline, at: int) -> Cause | None:
    """All layers move by another size, though their gradients are as before."""
    if not t.layers or t.far(at, ("loss", "grad_norm")) or abs(t.distance["step"][at]) < FAR:
        return None
    if abs(t.change(t.rates, at)) > math.log(RISE):  # another rate: nothing is as before
        return None
    moved, pulled = t.change(t.by_layer["update"], at), t.change(t.by_layer["grad"], at)
    update, times = int(t.updates[at]), np.exp(float(np.nanmedian(moved)))
    if abs(np.nanmedian(moved)) < math.log(1.3) or abs(np.nanmedian(pulled)) > math.log(2):
        return None
    same = np.nanmean(np.sign(moved) == np.sign(np.nanmedian(moved)))
    together = abs(np.nanmedian(moved)) > TOGETHER * abs(t.change(t.series["step"], at))
    if same < 0.8 or not together:
        return None
    said = f"at update {update} all layers step {times:.3g} times as far as before, at the same rate and gradients"
    if times > 1:
        return Cause(
            "moments", "", update, f"{said}: the optimizer has lost its moments, or has other settings",
            "restore the optimizer's state with the weights, or warm up again after it is lost; look at what was "
            "changed in its settings (β, weight decay)",
        )  # fmt: skip
    return Cause(
        "epsilon", "", update, f"{said}: the optimizer's ε, or what else divides its steps, has grown",
        "look at optim.eps and at what was changed in the optimizer",
    )  # fmt: skip


def _data(t: Timeline, at: int) -> Cause | None:
    """The loss jumps, and nothing has touched the weights: it is what the model was given."""
    if not math.isfinite(t.series["loss"][at]) or not (t.far(at, ("loss",)) or t.shifted[at]):
        return None
    loss, update = t.series["loss"], int(t.updates[at])
    jump = float(t.change(loss, at))
    after = loss[at + 1 : at + 1 + AFTER]
    stays = float(t.change(loss, at + 1, AFTER)) if len(after) else jump
    row = t.rows[at]
    level, now = float(np.median(loss[max(0, at - BEFORE) : at])), float(loss[at])
    again = _like(t, at, jump)
    if len(again) >= OFTEN[0]:  # the data have such batches
        return None
    if len(after) and max(stays, float(t.change(loss, at + 1, 2))) < 0.5 * jump:
        also = f"; about as far at update {again[0]}" if len(again) else ""
        rows = f", batch {row['batch']} of epoch {row['epoch']}, rows {_some(row['rows'])}" if "rows" in row else ""
        return Cause(
            "bad_batch", "", update,
            f"at update {update} alone the loss is {now:.3g} in place of {level:.3g}{rows}{also}",
            "look at these rows and leave them out; train.on_spike=rollback does so by itself",
        )  # fmt: skip
    if len(after) and _learns_nothing(t, at, level):
        return Cause(
            "labels", "", update,
            f"since update {update} the loss is {now:.3g} in place of {level:.3g} and does not come back, while "
            f"gradients have become smaller than before: nothing in the inputs tells the labels any more, or the "
            f"loss is computed in another way",
            f"look at how inputs and labels are brought together from update {update} on, and at how the loss is "
            f"computed (label smoothing, a penalty, the scale of logits)",
        )  # fmt: skip
    return Cause(
        "data", "", update,
        f"since update {update} the loss is {now:.3g} in place of {level:.3g}, and {np.exp(stays):.2g} times that "
        f"{len(after)} updates later: the batches from there on are not like those before, or their loss is computed "
        f"in another way",
        f"look at what the data source gives from update {update} on, and at how its loss is computed (scale, mask, "
        f"dropout)",
    )  # fmt: skip


def _like(t: Timeline, at: int, jump: float) -> np.ndarray:
    """Other updates whose batches alone are like this one's."""
    low = np.pad(t.jumps < BESIDE * jump, 1, constant_values=True)
    alone = (t.jumps > OFTEN[1] * jump) & low[:-2] & low[2:]
    alone[at : at + AFTER] = False
    return t.updates[alone]


def _learns_nothing(t: Timeline, at: int, level: float) -> bool:
    """Long after a jump, the loss is still high and the gradients are smaller than before it."""
    later = slice(at + LATER, at + 3 * LATER)
    loss, grad = t.series["loss"], t.series["grad_norm"]
    if len(loss[later]) < 3:
        return False
    back = (np.nanmedian(loss[later]) - level) / max(np.nanmedian(loss[at : at + 3]) - level, 1e-9)
    return bool(back > 0.4 and np.nanmedian(grad[later]) < SMALLER * np.nanmedian(grad[max(0, at - BEFORE) : at]))


def _some(rows: Sequence[Sequence[int]]) -> str:
    first = [str(row) for each in rows for row in each]
    return ", ".join(first[:5]) + (f" and {len(first) - 5} more" if len(first) > 5 else "")


RULES: tuple[Callable[[Timeline, int], Cause | None], ...] = (_weights, _rate, _loss_scale, _moments, _data)
