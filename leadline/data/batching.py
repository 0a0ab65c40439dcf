"""Which sentences go into which packed batch. The order is a function of (seed, epoch) and of nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

OPEN_PACKS = 16  # filled side by side: a sentence that does not fit in one finds room in another


@dataclass(frozen=True)
class Shape:
    """The fixed size of every batch."""

    source: int  # tokens
    target: int
    sequences: int  # sentences; filler comes on top


def shape_for(lengths: np.ndarray, batch_tokens: int) -> Shape:
    """`batch_tokens` of target, and as much source as usually goes with it."""
    source, target = lengths.sum(0)
    ratio = max(source / max(target, 1), 0.1)
    size = -(-int(batch_tokens * ratio * 1.02) // 16) * 16
    return Shape(source=max(size, int(lengths[:, 0].max())), target=batch_tokens, sequences=max(1, batch_tokens // 4))


def plan(lengths: np.ndarray, shape: Shape, order: Sequence[int] | np.ndarray) -> list[np.ndarray]:
    """Rows of each batch, in `order`: first fit among a few open packs, the fullest of which closes for a new one."""
    batches: list[list[int]] = []
    open_packs: list[tuple[list[int], list[int]]] = []  # rows, and room left: source, target, sequences
    for row in order:
        source, target = int(lengths[row, 0]), int(lengths[row, 1])
        fitting = (p for p in open_packs if source <= p[1][0] and target <= p[1][1] and p[1][2])
        if found := next(fitting, None):
            rows, room = found
        else:
            if len(open_packs) == OPEN_PACKS:
                fullest = min(range(OPEN_PACKS), key=lambda i: min(open_packs[i][1]))
                batches.append(open_packs.pop(fullest)[0])
            rows, room = [], [shape.source, shape.target, shape.sequences]
            open_packs.append((rows, room))
        rows.append(int(row))
        room[0] -= source
        room[1] -= target
        room[2] -= 1
    batches += [rows for rows, _ in open_packs]
    longest = lengths.max(1)
    return [np.array(sorted(rows, key=lambda row: longest[row])) for rows in batches]


def epoch_plan(lengths: np.ndarray, shape: Shape, seed: int, epoch: int) -> list[np.ndarray]:
    """The batches of a training epoch, rows and batches in an order drawn from (seed, epoch)."""
    rng = np.random.default_rng((seed, epoch))
    batches = plan(lengths, shape, rng.permutation(len(lengths)))
    return [batches[i] for i in rng.permutation(len(batches))]
