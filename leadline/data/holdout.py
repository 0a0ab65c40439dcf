"""Splits held out of the training text, where they have no files of their own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from leadline.config import DataConfig
from leadline.errors import UserError

Row = TypeVar("Row")


def held_out(
    split: str, wanted: Sequence[str], rows: Callable[[], Iterator[Row]], config: DataConfig, what: str
) -> Iterator[Row]:
    """Rows for `split`: one of `wanted`, which get data.holdout rows each, drawn by data.seed; or train, the rest."""
    total = sum(1 for _ in rows())
    needed = config.holdout * len(wanted)
    if needed * 2 > total:
        raise UserError(f"data.holdout={config.holdout} would take {needed} of the {total} {what}: choose fewer")
    numbers = random.Random(config.seed).sample(range(total), needed)
    chosen = {number: wanted[i // config.holdout] for i, number in enumerate(numbers)}
    return (row for number, row in enumerate(rows()) if chosen.get(number, "train") == split)
