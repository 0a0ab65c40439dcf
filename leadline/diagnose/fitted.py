"""On which models the verdict was fitted, and in what a model differs from them. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from leadline.diagnose.connection import Connection, layers_of

PLACEMENTS = ("Post-LN", "Pre-LN", "DeepNorm")
DATA = "builtin:numerals"
WIDTHS = (32, 128)
LAYERS = 24  # of each stack
START = "xavier"
OPTIMIZER = "Adam"
ADAMS = ("Adam", "AdamW")  # their rates mean the same
HIGHEST = 4.5e-2  # edge of the fit: 3.2e-2 learnt, 6.4e-2 did not, with any model
BATCHES = 3  # with fewer, the loss is looked at on a batch that is trained on, or after one that says little


def unlike(connections: Sequence[Connection], facts: Mapping[str, Any]) -> bool:
    """Whether the placement or the optimizer is none of the fit's, so that five steps may not say how it goes on."""
    return not {c.placement for c in connections} <= {*PLACEMENTS} or facts.get("optimizer") not in ADAMS


def limit(facts: Mapping[str, Any]) -> float:
    """The rate above which nothing is promised; of optimizers whose rates mean something else, none."""
    return HIGHEST if facts.get("optimizer") in ADAMS else math.inf


def outside(connections: Sequence[Connection], facts: Mapping[str, Any]) -> list[str]:
    """What sets a model apart from those of the fit; `facts` as `leadline.diagnose.inspect` writes them."""
    names = list(dict.fromkeys(c.placement for c in connections))
    width, depth = max(c.dim for c in connections), max(layers_of(connections).values())
    start = facts.get("start", "")
    batches = "one batch" if facts.get("batches") == 1 else "two batches"
    differences = {
        "not an encoder-decoder": not any(c.sublayer == "cross-attention" for c in connections),
        " and ".join(names): len(names) > 1 or names[0] not in PLACEMENTS,
        f"{depth} layers": depth > LAYERS,
        f"width {width}": not WIDTHS[0] <= width <= WIDTHS[1],
        f"optimizer {facts.get('optimizer')}": facts.get("optimizer") != OPTIMIZER,
        "weights already trained" if start == "trained" else f"weights start at {start}": start not in ("", START),
        "data other than number words": facts.get("data") != DATA,
        f"{batches} to look at": facts.get("batches", BATCHES) < BATCHES,
    }
    return [said for said, differs in differences.items() if differs]


def hint(differences: Sequence[str]) -> str:
    """The sentence that stands beside a verdict on such a model; nothing where there is no difference."""
    if not differences:
        return ""
    return f"outside what the verdict was fitted on ({', '.join(differences)}): a hint, not a verdict"
