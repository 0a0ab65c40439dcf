"""The only batch format: sequences laid end to end in flat tensors of a fixed size.

Nothing is spent on padding and shapes never change. What is left over behind the last sequence is *filler*:
sequences of their own that nothing attends to and no loss counts.

    tokens      a a a a | b b | c c c | . . .
    positions   0 1 2 3 | 0 1 | 0 1 2 | 0 1 2
    starts      0         4     6       9       12

The sequences of a pack are ordered by length and cut into `groups` of similar length. Packs that belong
together (the two sides of a translation) hold the same sequences in the same order and the same groups, so
attention may also be computed on a small padded copy of each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Group(NamedTuple):
    """Consecutive sequences of similar length."""

    sequences: int
    length: int  # of the longest
    valid: Tensor  # [sequences, length] bool: where there is a token
    full: bool  # all have the same length


@dataclass(frozen=True)
class Pack:
    tokens: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    starts: Tensor  # [S+1] int32, cumulative; covers the filler too
    slots: Tensor  # [real tokens] int64: where each token lies when the groups are padded
    groups: tuple[Group, ...]
    max_length: int  # no sequence is longer

    def to(self, device: torch.device) -> Pack:
        return replace(
            self,
            tokens=self.tokens.to(device, non_blocking=True),
            positions=self.positions.to(device, non_blocking=True),
            starts=self.starts.to(device, non_blocking=True),
            slots=self.slots.to(device, non_blocking=True),
            groups=tuple(g._replace(valid=g.valid.to(device, non_blocking=True)) for g in self.groups),
        )

    @property
    def last(self) -> Tensor:
        """Index of the last token of each real sequence."""
        return self.starts[1 : 1 + sum(g.sequences for g in self.groups)].long() - 1


def group_sizes(lengths: Sequence[Sequence[int]]) -> list[int]:
    """How many sequences go in each group, for sequences sorted by their longest side.

    A new group starts where the padded copy would otherwise be more than half empty for a sequence.
    """
    longest = [max(sides) for sides in zip(*lengths, strict=True)]
    sizes: list[int] = []
    smallest = 0
    for length in longest:
        if not sizes or length > 2 * smallest:
            sizes.append(0)
            smallest = max(length, 8)
        sizes[-1] += 1
    return sizes


def pack(
    sequences: Sequence[np.ndarray],
    size: int,
    sizes: Sequence[int],
    max_length: int,
    max_sequences: int,
    pad: int = 0,
) -> Pack:
    """Lay `sequences` end to end in `size` tokens, in groups of `sizes` sequences.

    `max_sequences` counts those of the filler too; packs that attend to one another need the same.
    """
    lengths = np.array([len(s) for s in sequences])
    real = int(lengths.sum())
    filler = [min(max_length, size - begin) for begin in range(real, size, max_length)]
    if real > size or len(lengths) + len(filler) > max_sequences or lengths.max(initial=0) > max_length:
        raise ValueError(
            f"{len(sequences)} sequences of {real} tokens, the longest {lengths.max(initial=0)}, do not fit in a pack "
            f"of {max_sequences} sequences and {size} tokens, none longer than {max_length}"
        )
    if sum(sizes) != len(sequences):
        raise ValueError(f"groups of {list(sizes)} do not make {len(sequences)} sequences")
    all_lengths = np.zeros(max_sequences, dtype=np.int64)  # a fixed shape, whatever is inside
    all_lengths[: len(lengths) + len(filler)] = [*lengths, *filler]
    starts = np.concatenate([[0], np.cumsum(all_lengths)])
    tokens = np.full(size, pad, dtype=np.int64)
    if real:
        tokens[:real] = np.concatenate(list(sequences))
    positions = np.arange(size) - np.repeat(starts[:-1], all_lengths)

    groups, slots, first, offset = [], np.empty(real, dtype=np.int64), 0, 0
    for count in sizes:
        member = lengths[first : first + count]
        longest = int(member.max(initial=1))
        valid = np.arange(longest)[None, :] < member[:, None]
        begin, end = starts[first], starts[first + count]
        slots[begin:end] = np.flatnonzero(valid) + offset
        groups.append(Group(count, longest, torch.from_numpy(valid), bool(valid.all())))
        first, offset = first + count, offset + count * longest
    return Pack(
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(positions),
        starts=torch.from_numpy(starts.astype(np.int32)),
        slots=torch.from_numpy(slots),
        groups=tuple(groups),
        max_length=max_length,
    )


def pack_one(sequences: Sequence[np.ndarray], max_length: int | None = None) -> Pack:
    """A pack with no room to spare, in the given order and one group: for decoding and for tests."""
    longest = max(len(s) for s in sequences)
    size = sum(len(s) for s in sequences)
    return pack(sequences, size, [len(sequences)], max_length or longest, len(sequences))
