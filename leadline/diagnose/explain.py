"""`leadline explain`: what went wrong in a training, where first and since when, from its run folder. No torch.

    explanation = leadline.explain("runs/mine")        or the rows of leadline.flight.read, and those of metrics.jsonl
    print(explanation)

A number that leaves what is usual for it (`leadline.usual`) marks an update; each rule looks at what else changed there
and says whether it was its kind of fault. The first update that a rule can name is the cause, what follows are its
consequences. Rules on looks (`watch/…`) see what comes slowly.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from leadline import flight, history
from leadline.alarm import COLLAPSED, FAR, OUTSIDE, RAMP, RISE, layer_values, numbers_of
from leadline.errors import UserError, not_a_run
from leadline.history import Row
from leadline.pulse import EMBEDDINGS
from leadline.usual import ENOUGH, Usual

BEFORE, AFTER = 20, 8  # updates that a change is compared with, and that say whether it stays
LATER, SMALLER = 12, 0.85  # updates after which a jump in the loss has shown whether it is learnt from; gradients then
SHIFT = 3.0  # spreads of the loss by which its level changes
BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Cause:
    """A fault: of which kind, in which layer ("": none in particular), since which update."""

    kind: str
    where: str
    update: int
    message: str
    remedy: str


@dataclass(frozen=True)
class Explanation:
    name: str
    causes: Sequence[Cause]  # the first is the one to mend
    facts: dict[str, Any] = field(default_factory=dict)
    rows: Sequence[Row] = ()

    @property
    def healthy(self) -> bool:
        return not self.causes

    def __str__(self) -> str:
        return "\n".join(lines(self))


def explain(run: str | Path | Sequence[Row], looks: Sequence[Row] = ()) -> Explanation:
    """Of a run folder; or of the rows of `leadline.flight.read`, and the rows of metrics.jsonl."""
    name = "training"
    if isinstance(run, str | Path):
        folder, name = Path(run), Path(run).name
        if not folder.is_dir():
            raise not_a_run(folder)
        run, looks = flight.read(folder), history.read(folder).rows
    rows = list(run) or [row for row in looks if "loss" in row]
    if not rows:
        raise UserError(f"{name} has measured nothing yet: there is nothing to explain")
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, of what was not measured or is not finite
        timeline = Timeline(rows, looks)
        causes = causes_of(timeline)
    facts = {"first": int(timeline.updates[0]), "last": int(timeline.updates[-1])}
    return Explanation(name, causes, facts | {"layers": len(timeline.layers), "looks": len(timeline.looks)}, rows)


class Timeline:
    """Rows as arrays: what was measured of each update, NaN where it was not."""

    def __init__(self, rows: Sequence[Row], looks: Sequence[Row] = ()) -> None:
        self.rows = [row for row in rows if "loss" in row]
        self.looks = [row for row in looks if any(key.startswith("watch/") for key in row)]
        self.updates = np.array([row["update"] for row in self.rows])
        self.layers: list[str] = next((row["layers"] for row in self.rows if row.get("layers")), [])
        numbers = [numbers_of(row) for row in self.rows]
        self.series = {
            key: np.array([math.nan if n.get(key) is None else n[key] for n in numbers])
            for key in ("loss", "grad_norm", "step")
        }
        self.rates = np.array([row.get("lr") or math.nan for row in self.rows], float)
        self.by_layer = {
            quantity: np.array([self._of(row, quantity) for row in self.rows])
            for quantity in ("grad", "update", "outside")
        }
        self.distance = {key: _distances(values) for key, values in self.series.items()}
        self.shifted = self._shifts(self.series["loss"])

    def _of(self, row: Row, quantity: str) -> list[float]:
        values = layer_values(row, quantity)
        lr = (row.get("lr") or math.nan) if quantity == "update" else 1.0
        return [values.get(name, math.nan) / lr for name in self.layers]

    def change(self, values: np.ndarray, at: int, until: int = 1) -> np.ndarray:
        """Log of the median from `at` on, over the median before it."""
        before, after = values[max(0, at - BEFORE) : at], values[at : at + until]
        return np.log(np.nanmedian(after, axis=0)) - np.log(np.nanmedian(before, axis=0))

    def _shifts(self, loss: np.ndarray) -> np.ndarray:
        """Where the level of the loss rises by more than its noise, at the steepest place of each rise."""
        shifted, rise = np.zeros(len(loss), bool), np.zeros(len(loss))
        logs = np.log(loss)
        for at in range(ENOUGH, len(loss) - 2):
            noise = np.nanstd(np.diff(logs[at - BEFORE : at])) / math.sqrt(2)
            by = np.nanmin(logs[at : at + 3]) - np.nanmedian(logs[at - BEFORE : at])
            rise[at] = by if by > max(SHIFT * noise, 0.05) else 0.0
        for at in map(int, np.flatnonzero(rise)):
            shifted[at] = rise[at] >= rise[max(0, at - BEFORE) : at + AFTER].max()
        return shifted

    def marked(self) -> list[int]:
        """Updates, by their index, at which some number is not as usual."""
        marks = self.shifted.copy()
        for key, distance in self.distance.items():
            marks |= (distance > FAR) | ((distance < -FAR) & (key != "loss"))
        outside = self.by_layer["outside"]
        if outside.size:
            marks |= np.nan_to_num(outside).max(axis=1) > OUTSIDE
        ratio = np.ones(len(self.rows))
        ratio[1:] = self.rates[1:] / self.rates[:-1]
        marks |= (ratio > RISE) & (self.updates > RAMP)
        return [int(i) for i in np.flatnonzero(marks)]


def _distances(values: np.ndarray) -> np.ndarray:
    usual = Usual()
    return np.array([0.0 if math.isnan(value) else usual.add(float(value)) for value in values])


Rule = Callable[[Timeline, int], Cause | None]


def causes_of(timeline: Timeline) -> list[Cause]:
    """The first fault of each kind, the earliest first."""
    causes: dict[str, Cause] = {}
    for at in timeline.marked():
        cause = next(filter(None, (rule(timeline, at) for rule in RULES)), None)
        if cause:
            causes.setdefault(cause.kind, cause)
    for rule in SLOW:
        for cause in rule(timeline):
            causes.setdefault(cause.kind, cause)
    return sorted(causes.values(), key=lambda cause: cause.update)


# What happens from one update to the next


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
    if first == EMBEDDINGS:
        return Cause(
            "embedding", first, update,
            f"before update {update} the norm of an embedding table changed by {size:.2g} of itself though no step was "
            f"taken: rows of it were written to",
            f"find what writes to embeddings before update {update}; go on from a checkpoint before",
        )  # fmt: skip
    return Cause(
        "weights", first, update,
        f"before update {update} the weights of {first} changed by {size:.2g} of their norm though no step was taken",
        f"find what writes to {first} between updates {update - 1} and {update}; go on from a checkpoint before",
    )  # fmt: skip


def _rate(t: Timeline, at: int) -> Cause | None:
    if at == 0 or not t.rates[at] / t.rates[at - 1] > RISE or t.updates[at] <= RAMP:
        return None
    times, update = t.rates[at] / t.rates[at - 1], int(t.updates[at])
    return Cause(
        "rate", "", update,
        f"at update {update} the learning rate rose {times:.3g} times, to {t.rates[at]:.3g}, in one update",
        f"go on from a checkpoint before update {update} with the rate it had",
    )  # fmt: skip


def _does_nothing(look: Row, name: str) -> bool:
    out, entered = (look.get(f"watch/{quantity}/{name}") for quantity in ("norm_output", "norm_input"))
    return out is None or entered is None or abs(out - entered) < 1e-6 * abs(entered)


def _layers_of(look: Row, quantity: str) -> list[str]:
    start = f"watch/{quantity}/"
    return [key.removeprefix(start) for key in look if key.startswith(start)]


def _far(t: Timeline, at: int, keys: Sequence[str]) -> bool:
    return any(t.distance[key][at] > FAR for key in keys)


def _loss_scale(t: Timeline, at: int) -> Cause | None:
    """Every gradient is another by the same factor, and the loss is not."""
    jumps = t.change(t.by_layer["grad"], at) if t.layers else t.change(t.series["grad_norm"][:, None], at)
    stays = t.change(t.series["grad_norm"], at, AFTER)
    if t.distance["loss"][at] > FAR or not abs(np.nanmedian(jumps)) > math.log(3) or not np.nanstd(jumps) < 0.5:
        return None
    if np.sign(stays) != np.sign(np.nanmedian(jumps)) or abs(stays) < math.log(2):
        return None
    update, times = int(t.updates[at]), math.exp(float(np.nanmedian(jumps)))
    return Cause(
        "loss_scale", "", update,
        f"since update {update} the gradients of all layers are {times:.3g} times what they were, and the loss is not",
        "look for a loss that is scaled and not scaled back: a GradScaler without unscale_, another number of batches "
        "to an update, a sum in place of a mean",
    )  # fmt: skip


def _moments(t: Timeline, at: int) -> Cause | None:
    """All layers move by another size, though their gradients are as before."""
    if not t.layers or _far(t, at, ("loss", "grad_norm")) or abs(t.distance["step"][at]) < FAR:
        return None
    moved, pulled = t.change(t.by_layer["update"], at), t.change(t.by_layer["grad"], at)
    update, times = int(t.updates[at]), math.exp(float(np.nanmedian(moved)))
    if abs(np.nanmedian(moved)) < math.log(1.3) or abs(np.nanmedian(pulled)) > math.log(2):
        return None
    same = np.nanmean(np.sign(moved) == np.sign(np.nanmedian(moved)))
    if same < 0.8:
        return None
    said = f"at update {update} all layers step {times:.3g} times as far as before, at the same rate and gradients"
    if times > 1:
        return Cause(
            "moments", "", update, f"{said}: the optimizer has lost its moments",
            "restore the optimizer's state with the weights, or warm up again after it is lost",
        )  # fmt: skip
    return Cause(
        "epsilon", "", update, f"{said}: the optimizer's ε, or what else divides its steps, has grown",
        "look at optim.eps and at what was changed in the optimizer",
    )  # fmt: skip


def _data(t: Timeline, at: int) -> Cause | None:
    """The loss jumps, and nothing has touched the weights: it is what the model was given."""
    if not math.isfinite(t.series["loss"][at]) or not (_far(t, at, ("loss",)) or t.shifted[at]):
        return None
    loss, update = t.series["loss"], int(t.updates[at])
    jump = float(t.change(loss, at))
    after = loss[at + 1 : at + 1 + AFTER]
    stays = float(t.change(loss, at + 1, AFTER)) if len(after) else jump
    row = t.rows[at]
    level, now = float(np.median(loss[max(0, at - BEFORE) : at])), float(loss[at])
    if len(after) and stays < 0.5 * jump:
        rows = f", batch {row['batch']} of epoch {row['epoch']}, rows {_some(row['rows'])}" if "rows" in row else ""
        return Cause(
            "bad_batch", "", update,
            f"at update {update} alone the loss is {now:.3g} in place of {level:.3g}{rows}",
            "look at these rows and leave them out; train.on_spike=rollback does so by itself",
        )  # fmt: skip
    if len(after) and _learns_nothing(t, at, level):
        return Cause(
            "labels", "", update,
            f"since update {update} the loss is {now:.3g} in place of {level:.3g} and does not come back, while "
            f"gradients have become smaller than before: nothing in the inputs tells the labels any more",
            f"look at how inputs and labels are brought together from update {update} on",
        )  # fmt: skip
    return Cause(
        "data", "", update,
        f"since update {update} the loss is {now:.3g} in place of {level:.3g}, and {math.exp(stays):.2g} times that "
        f"{len(after)} updates later: the batches from there on are not like those before",
        f"look at what the data source gives from update {update} on",
    )  # fmt: skip


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


RULES: tuple[Rule, ...] = (_weights, _rate, _loss_scale, _moments, _data)


# What comes slowly


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
    return next((int(t.updates[i]) for i in inside if _far(t, i, ("loss", "grad_norm", "step"))), last)


def _not_finite(t: Timeline) -> Iterator[Cause]:
    bad = np.flatnonzero(~np.isfinite(t.series["loss"]) | np.isinf(t.series["grad_norm"]))
    if len(bad):
        update = int(t.updates[bad[0]])
        yield Cause(
            "not_finite", "", update, f"at update {update} the loss or the gradient is not finite",
            "lower the rate, warm up longer or clip gradients; in fp16, look for overflow",
        )  # fmt: skip


def _collapse(t: Timeline) -> Iterator[Cause]:
    for look in t.looks:
        for name in _layers_of(look, "diversity"):
            value = look[f"watch/diversity/{name}"]
            if value is not None and value < COLLAPSED:
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


LOGITS = 200.0  # softmax of logits this far apart is one-hot in fp32
SLOW: tuple[Callable[[Timeline], Iterator[Cause]], ...] = (_norm, _not_finite, _collapse, _logits)


# In words

# What is said where nothing was found and nobody has looked into the model: Post-LN that is stuck is such a training.
NOT_SEEN = (
    "nobody looked into the model: that its tokens have become alike, or that it learns no more than frequencies, "
    "is not seen without looks; train with --watch 50"
)


def lines(explanation: Explanation) -> list[str]:
    facts = explanation.facts
    seen = f"updates {facts['first']} to {facts['last']}"
    if explanation.healthy:
        answer = "healthy" if facts["looks"] else "no sudden fault"
        title = f"{explanation.name}: {answer} ({seen}, {facts['looks']} looks)"
        return [title, *([] if facts["looks"] else [f"  {NOT_SEEN}"]), *_curve(explanation, None)]
    first, *others = explanation.causes
    said = [f"{explanation.name}: {_words(first)} ({seen})", f"  {first.message}", f"  to do: {first.remedy}"]
    said += [f"  what else was seen: {cause.message}" for cause in others]
    return [*said, *_curve(explanation, explanation.causes[0].update)]


def _words(cause: Cause) -> str:
    where = f" in {cause.where}" if cause.where not in ("", EMBEDDINGS) else ""
    return f"{KINDS.get(cause.kind, cause.kind)}{where}, since update {cause.update}"


KINDS = {
    "bad_batch": "a bad batch",
    "data": "other data",
    "labels": "labels that do not belong to their inputs",
    "rate": "a rate that is too high",
    "weights": "weights that were written to",
    "embedding": "embeddings that were written to",
    "loss_scale": "a loss that is scaled wrongly",
    "precision": "weights in too few bits",
    "moments": "an optimizer that has lost its moments",
    "epsilon": "an optimizer whose steps are damped",
    "norm": "a norm that does nothing",
    "not_finite": "numbers that are not finite",
    "collapse": "a model that has collapsed",
    "logits": "attention logits that are too large",
}


def _curve(explanation: Explanation, update: int | None) -> list[str]:
    """The loss around an update, or of all, in one line of bars."""
    rows = [row for row in explanation.rows if isinstance(row.get("loss"), float) and math.isfinite(row["loss"])]
    if update is not None:
        rows = [row for row in rows if update - 25 <= row["update"] <= update + 25]
    elif len(rows) > 50:
        rows = rows[:: len(rows) // 50]
    if len(rows) < 2:
        return []
    values = [row["loss"] for row in rows]
    low, high = min(values), max(values)
    bars = "".join(BARS[int((value - low) / ((high - low) or 1) * (len(BARS) - 1))] for value in values)
    return [f"  loss {bars}  updates {rows[0]['update']} to {rows[-1]['update']}, {low:.3g} to {high:.3g}"]
