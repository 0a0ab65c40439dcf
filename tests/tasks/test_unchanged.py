"""Plans and batches are those of the code that the first results were made with, bit for bit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import pytest

from leadline import tasks
from leadline.training import inputs

STORED = Path(__file__).with_name("unchanged.json")
EPOCHS = (0, 1, 7)


def digest(parts: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for part in parts:
        array = np.ascontiguousarray(part)
        found.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()[:16]


def arrays(batch: Any) -> Iterator[Any]:
    yield from (tensor.numpy() for tensor in inputs.tensors(batch))
    for pack in batch.packs():
        for group in pack.groups:
            yield from (group.valid.numpy(), [group.sequences, group.length, group.full])
    yield [batch.count, batch.tokens]


def measured(name: str) -> dict[str, str]:
    config, store = handmade.CASES[name]
    task = tasks.find(config.task)(config, store)
    plans = {epoch: task.epoch(epoch) for epoch in EPOCHS}
    batches = [task.collate(rows, epoch) for epoch, plan in plans.items() for rows in plan]
    valid = task.batches(task.read("valid"))
    return {
        "plans": digest(rows for plan in plans.values() for rows in plan),
        "batches": digest(array for batch in batches for array in arrays(batch)),
        "valid": digest(array for batch in valid for array in arrays(batch)),
        "counts": f"{len(batches)} batches of {sum(batch.tokens for batch in batches)} tokens",
    }


@pytest.mark.parametrize("name", handmade.CASES)
def test_plans_and_batches_are_what_they_were(name: str) -> None:
    assert measured(name) == json.loads(STORED.read_text())[name]


if __name__ == "__main__":
    STORED.write_text(json.dumps({name: measured(name) for name in handmade.CASES}, indent=1) + "\n")
