"""What the loop around the model does otherwise than before: rules on what the recorder notes beside the numbers of the
training (`leadline.diagnose.beside`, and the rows of our own loop's batches). No torch.

Of something that changes often, such as the β of a cycle, nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from leadline.diagnose.timeline import AFTER, BEFORE, Cause, Timeline
from leadline.usual import ENOUGH

FEW, MANY = 4, 16  # different batches among BEFORE: as many in a loop that is stuck, and before it was
KEPT = 0.05  # of a gradient, that was there before the backward pass
TWICE = 2.0  # times an optimizer's number is another
CAUSAL, LATER = 1e-3, 0.1  # shares that a first token takes from later ones, with and without a mask
LOOKS = 3  # before and after a mask is lost

WORDS = {"betas": "β", "eps": "ε", "weight_decay": "weight decay", "momentum": "momentum", "dropout": "dropout"}


def _evaluating(t: Timeline) -> Iterator[Cause]:
    """Left in evaluation mode, as after an evaluation without model.train()."""
    for update, old, new in _changes(t, "training"):
        if old and not new:
            yield Cause(
                "mode", "", update,
                f"since update {update} the model is trained in evaluation mode, and before it was not: dropout and "
                f"what batch norms learn of the data are off",
                f"call model.train() after each evaluation; look at what is called before update {update}",
            )  # fmt: skip


def _settings(t: Timeline) -> Iterator[Cause]:
    """Numbers of the optimizer, and dropout, that are constant before and after they become others."""
    for name, word in WORDS.items():
        for update, old, new in _changes(t, name):
            if _is_other(name, old, new):
                yield Cause(
                    "settings", "", update,
                    f"since update {update} the {word} is {_said(new)} in place of {_said(old)}",
                    f"if that was not meant, find what sets it before update {update}",
                )  # fmt: skip


def _changes(t: Timeline, name: str) -> Iterator[tuple[int, Any, Any]]:
    """Since when a setting is another, after it was one for long, and for how long it stays."""
    values = [row.get("settings", {}).get(name) for row in t.rows]
    for at in range(ENOUGH, len(values) - AFTER + 1):
        before, after = values[at - ENOUGH : at], values[at : at + AFTER]
        known = before[0] is not None and after[0] is not None
        if known and before[0] != after[0] and before.count(before[0]) == ENOUGH and after.count(after[0]) == AFTER:
            yield int(t.updates[at]), before[0], after[0]


def _is_other(name: str, old: Any, new: Any) -> bool:
    if name == "dropout":
        return bool(abs(new - old) > 0.05)
    old, new = (np.ravel(value).astype(float) for value in (old, new))
    if len(old) != len(new):  # another number of groups
        return False
    pairs = [(1 - a, 1 - b) if name in ("betas", "momentum") else (a, b) for a, b in zip(old, new, strict=True)]
    return any(max(a, b) > TWICE * max(min(a, b), 0.0) for a, b in pairs)


def _said(value: Any) -> str:
    numbers = value if isinstance(value, list) else [value]
    return " and ".join(str(tuple(n)) if isinstance(n, list) else f"{n:g}" for n in numbers)


def _repeated(t: Timeline) -> Iterator[Cause]:
    """The same few batches again and again."""
    given = [row.get("given", str(row["rows"]) if "rows" in row else None) for row in t.rows]
    if None in given:
        return
    for at in range(BEFORE, len(given) - BEFORE + 1):
        window = given[at : at + BEFORE]
        if len(set(window)) <= FEW and len(set(given[at - BEFORE : at])) >= MANY:
            first = at + next(i for i, batch in enumerate(window) if window.count(batch) > 1)
            update, different = int(t.updates[first]), len(set(given[first : first + BEFORE]))
            which = "the same batch comes" if different == 1 else f"the same {different} batches come"
            yield Cause(
                "repeated", "", update,
                f"since update {update} {which} again and again, and before each was another",
                f"look at what the data loader does from update {update} on",
            )  # fmt: skip
            return


def _kept(t: Timeline) -> Iterator[Cause]:
    """Gradients that did not begin at zero."""
    kept = np.array([row.get("kept", math.nan) for row in t.rows], float) > KEPT
    runs = [at for at in range(len(kept) - AFTER + 1) if kept[at : at + AFTER].all()]
    if runs:
        update = int(t.updates[runs[0]])
        yield Cause(
            "kept", "", update,
            f"since update {update} gradients are added to those of the update before: they are not set to zero "
            f"between two updates",
            "call optimizer.zero_grad() once in each update",
        )  # fmt: skip


def _mask(t: Timeline) -> Iterator[Cause]:
    """Attention that was causal and is not."""
    for name in {key: None for look in t.looks for key in look if key.startswith("watch/later/")}:
        seen = [(look["update"], look[name]) for look in t.looks if look.get(name) is not None]
        later = np.array([value for _, value in seen])
        for at in range(LOOKS, len(seen) - LOOKS + 1):
            if (later[:at] < CAUSAL).all() and (later[at:] > LATER).all():
                first, last, layer = seen[at - 1][0] + 1, seen[at][0], name.removeprefix("watch/later/")
                yield Cause(
                    "mask", layer, first if first == last else int(last),
                    f"between updates {first} and {last} the attention of {layer} has ceased to be causal: the first "
                    f"token takes {later[at]:.0%} of what it has from tokens after it",
                    "put the causal mask back: a model that sees the tokens it is to predict learns to copy them",
                )  # fmt: skip
                return


def _uphill(t: Timeline) -> Iterator[Cause]:
    """A loss whose sign has changed."""
    loss = t.series["loss"]
    if not t.signed:
        return
    at = int(np.flatnonzero(loss < 0)[0])
    before = loss[max(0, at - BEFORE) : at]
    if at >= ENOUGH and np.nanmin(before) > 0.5 * np.nanmedian(before) and loss[at] < -0.5 * np.nanmedian(before):
        update = int(t.updates[at])
        yield Cause(
            "sign", "", update,
            f"at update {update} the loss is {loss[at]:.3g} in place of {np.nanmedian(before):.3g}: its sign has "
            f"changed, and the training climbs what it went down",
            f"look at how the loss is computed from update {update} on",
        )  # fmt: skip


SET: tuple[Callable[[Timeline], Iterator[Cause]], ...] = (_evaluating, _settings, _repeated, _kept, _mask, _uphill)
