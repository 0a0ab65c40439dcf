"""`leadline explain`: what went wrong in a training, where first and since when, from its run folder. No torch.

    explanation = leadline.explain("runs/mine")        or the rows of leadline.flight.read, and those of metrics.jsonl
    print(explanation)

The rules are in `leadline.diagnose.rules` and `leadline.diagnose.slow`. The first update that one can name is the
cause; what follows are its consequences.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leadline import flight, history
from leadline.diagnose.rules import RULES
from leadline.diagnose.settings import SET
from leadline.diagnose.slow import SLOW, trend
from leadline.diagnose.timeline import Cause, Timeline
from leadline.errors import UserError, not_a_run, runs_in
from leadline.flight import EMBEDDINGS
from leadline.history import Row

BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Explanation:
    name: str
    causes: Sequence[Cause]  # the first is the one to mend
    facts: dict[str, Any]  # first and last update, how many layers and looks
    rows: Sequence[Row] = ()
    looks: Sequence[Row] = ()

    @property
    def verdict(self) -> str:
        """fault, healthy, or "no sudden fault" where nobody looked into the model."""
        if self.causes:
            return "fault"
        return "healthy" if self.facts["looks"] else "no sudden fault"

    @property
    def healthy(self) -> bool:
        return self.verdict == "healthy"

    def __str__(self) -> str:
        return "\n".join(lines(self))


def explain(run: str | Path | Sequence[Row], looks: Sequence[Row] = ()) -> Explanation:
    """Of a run folder; or of the rows of `leadline.flight.read`, and the rows of metrics.jsonl."""
    name = "training"
    if isinstance(run, str | Path):
        folder, name = Path(run), Path(run).resolve().name
        if not folder.is_dir():
            raise not_a_run(folder)
        run, looks = flight.read(folder), history.read(folder).rows
        if not run and not looks and runs_in(folder):
            raise not_a_run(folder)
    rows = [row for row in run if "loss" in row] or [row for row in looks if "loss" in row]
    if not rows:
        raise UserError(f"{name} has measured nothing yet: there is nothing to explain")
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, of what was not measured or is not finite
        timeline = Timeline(rows, looks)
        causes = causes_of(timeline)
    facts = {"first": int(timeline.updates[0]), "last": int(timeline.updates[-1])}
    facts |= {"layers": len(timeline.layers), "looks": len(timeline.looks)}
    return Explanation(name, causes, facts, rows, timeline.looks)


def causes_of(timeline: Timeline) -> list[Cause]:
    """The first fault of each kind, the earliest first."""
    causes: dict[str, Cause] = {}
    for rule in SET:
        for cause in rule(timeline):
            causes.setdefault(cause.kind, cause)
    for at in timeline.marked():
        if sudden := next(filter(None, (rule(timeline, at) for rule in RULES)), None):
            causes.setdefault(sudden.kind, sudden)
    for slow in SLOW:
        for cause in slow(timeline):
            causes.setdefault(cause.kind, cause)
    for cause in trend(timeline, list(causes.values())):
        causes.setdefault(cause.kind, cause)
    # Of numbers that are not finite nothing can be said.
    end = causes["not_finite"].update if "not_finite" in causes else math.inf
    return sorted((cause for cause in causes.values() if cause.update <= end), key=lambda cause: cause.update)


# In words

# What is said where nothing was found and nobody has looked into the model: Post-LN that is stuck is such a training.
NOT_SEEN = (
    "nobody looked into the model, so this cannot tell whether all tokens have become alike or only their frequencies "
    "were learnt: train with --watch 50 to know"
)


def lines(explanation: Explanation) -> list[str]:
    facts = explanation.facts
    seen = f"updates {facts['first']} to {facts['last']}"
    if not explanation.causes:
        title = f"{explanation.name}: {explanation.verdict} ({seen}, {facts['looks']} looks)"
        return [title, *([] if explanation.healthy else [f"  {NOT_SEEN}"]), *_curve(explanation, None)]
    first, *others = explanation.causes
    said = [f"{explanation.name}: {_words(first)} ({seen})", f"  {first.message}", f"  to do: {first.remedy}"]
    said += [f"  what else was seen: {cause.message}" for cause in others]
    return [*said, *_curve(explanation, explanation.causes[0].update)]


def _words(cause: Cause) -> str:
    where = f" in {cause.where}" if cause.where not in ("", EMBEDDINGS) else ""
    return f"{KINDS.get(cause.kind, cause.kind)}{where}, since update {cause.update}"


KINDS = {
    "bad_batch": "a bad batch",
    "data": "other data, or another loss",
    "labels": "labels that do not belong to their inputs, or another loss",
    "rate": "a rate that is too high",
    "weights": "weights that were written to",
    "embedding": "embeddings that were written to",
    "loss_scale": "gradients of another scale",
    "precision": "weights in too few bits",
    "moments": "an optimizer that has lost its moments, or has other settings",
    "epsilon": "an optimizer whose steps are damped",
    "norm": "a norm that does nothing",
    "not_finite": "numbers that are not finite",
    "collapse": "a model that has collapsed",
    "logits": "attention logits that are too large",
    "starving": "a norm whose gain shrinks",
    "decay": "weights that shrink",
    "growth": "weights that grow",
    "still": "weights that have stopped",
    "drift": "a loss that rises slowly",
    "mode": "a model in evaluation mode",
    "settings": "other settings",
    "repeated": "the same batches again and again",
    "kept": "gradients that are not set to zero",
    "mask": "a causal mask that is lost",
    "sign": "a loss of the other sign",
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
