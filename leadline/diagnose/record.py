"""One measured number, and a table of them as JSON lines. No torch: a report is rebuilt anywhere."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from leadline.errors import UserError
from leadline.files import to_json, written


@dataclass(frozen=True)
class Record:
    """A row: what was measured, where in the model, at which step of which seed."""

    quantity: str  # such as "hidden_norm"; QUANTITIES says what each one is
    value: float
    where: str = ""  # the module or weight; "": the whole model
    position: int = -1  # from the input to the output, in the order of the computation; -1: the whole model
    stack: str = ""  # which stack of blocks it belongs to
    step: int = 0  # optimizer steps taken before it was measured
    seed: int = 0
    rate: float = 0.0  # learning rate of the steps taken; 0: none were


QUANTITIES = {
    "hidden_norm": "norm of the stream after a residual connection, mean over tokens",
    "branch_norm": "norm of what a sublayer adds to the stream, mean over tokens",
    "norm_input": "norm of the input of a normalisation over √d, mean over tokens",
    "norm_jacobian": "spectral norm of the Jacobian of a normalisation, mean over tokens",
    "grad_norm_of_mean": "Frobenius norm of the gradient averaged over the batches",
    "mean_grad_norm": "Frobenius norm of the gradient, averaged over the batches",
    "last_gradient": "grad_norm_of_mean of the last feed-forward matrix; `position` is the number of layers",
    "weight_norm": "Frobenius norm of a weight",
    "update_norm": "Frobenius norm of the change of a weight in one optimizer step",
    "hidden_change": "change of the stream after a residual connection, relative to its norm",
    "output_change": "‖ΔF‖: change of the model's output on the first batch since step 0, relative to its norm",
    "step_change": "change of the model's output on the same batch in one optimizer step, relative to its norm",
    "diversity": "how much of the stream differs between tokens: 1 nothing in common, 0 all the same",
    "loss": "loss on the batch of that step",
    "shown_loss": "loss on the batch that is looked at and not trained on, without dropout",
}


def save(records: Iterable[Record], path: Path) -> None:
    """Atomically, one JSON object a line."""
    with written(path) as file:
        for record in records:
            file.write(to_json(asdict(record)) + "\n")


def load(path: Path) -> list[Record]:
    names = {field.name for field in fields(Record)}
    records = []
    number = 0
    try:
        text = path.read_text(encoding="utf-8")
        for line in text.removesuffix("\n").split("\n") if text else []:
            number += 1
            row = json.loads(line)
            value = row.pop("value")
            if not isinstance(value, int | float | None):
                raise TypeError
            records.append(
                Record(value=math.nan if value is None else value, **{k: v for k, v in row.items() if k in names})
            )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{path} line {number} is not a record") from None
    return records


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (0 for a single value)."""
    mean = statistics.fmean(values)
    if len(values) < 2 or not math.isfinite(mean):
        return mean, 0.0 if len(values) < 2 else math.nan
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
