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
from itertools import accumulate, pairwise
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
    owner: Tensor  # [T] int32: the number of the sequence each token belongs to, filler included
    slots: Tensor  # [real tokens] int64: where each token lies when the groups are padded
    groups: tuple[Group, ...]
    max_length: int  # no sequence is longer
    segments: Tensor | None = None  # [T] int64: the kind of segment each token is in, where the model tells them apart

    def to(self, device: torch.device) -> Pack:
        return replace(
            self,
            tokens=self.tokens.to(device, non_blocking=True),
            positions=self.positions.to(device, non_blocking=True),
            starts=self.starts.to(device, non_blocking=True),
            owner=self.owner.to(device, non_blocking=True),
            slots=self.slots.to(device, non_blocking=True),
            groups=tuple(g._replace(valid=g.valid.to(device, non_blocking=True)) for g in self.groups),
            segments=None if self.segments is None else self.segments.to(device, non_blocking=True),
        )

    def fixed(self) -> Pack:
        """Without what depends on the lengths inside: the shapes of the rest never change."""
        return replace(self, slots=self.slots[:0], groups=())


def group_sizes(lengths: Sequence[Sequence[int]] | Sequence[np.ndarray]) -> list[int]:
    """How many sequences go in each group, for sequences sorted by their longest side.

    A new group starts where the padded copy would otherwise be more than half empty for a sequence.
    """
    longest = np.max(lengths, axis=0)
    sizes: list[int] = []
    while len(longest):
        too_long = longest > 2 * max(longest[0], 8)
        sizes.append(int(too_long.argmax()) or len(longest))  # argmax is 0 where none is: the first never is
        longest = longest[sizes[-1] :]
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
    lengths = np.array([len(s) for s in sequences], dtype=np.int64)
    tokens = np.concatenate([np.zeros(0, dtype=np.int64), *sequences])
    return pack_flat(tokens, lengths, size, sizes, max_length, max_sequences, pad)


def pack_flat(
    tokens: np.ndarray,
    lengths: np.ndarray,
    size: int,
    sizes: Sequence[int],
    max_length: int,
    max_sequences: int,
    pad: int = 0,
    segments: np.ndarray | None = None,
) -> Pack:
    """The same for sequences of these `lengths` that lie end to end already."""
    real = int(lengths.sum())
    filler = [min(max_length, size - begin) for begin in range(real, size, max_length)]
    if real > size or len(lengths) + len(filler) > max_sequences or lengths.max(initial=0) > max_length:
        raise ValueError(
            f"{len(lengths)} sequences of {real} tokens, the longest {lengths.max(initial=0)}, do not fit in a pack "
            f"of {max_sequences} sequences and {size} tokens, none longer than {max_length}"
        )
    if sum(sizes) != len(lengths):
        raise ValueError(f"groups of {list(sizes)} do not make {len(lengths)} sequences")
    all_lengths = np.zeros(max_sequences, dtype=np.int64)  # a fixed shape, whatever is inside
    all_lengths[: len(lengths)] = lengths
    all_lengths[len(lengths) : len(lengths) + len(filler)] = filler
    starts = np.zeros(max_sequences + 1, dtype=np.int64)
    np.cumsum(all_lengths, out=starts[1:])
    owner = np.repeat(np.arange(max_sequences), all_lengths)
    positions = np.arange(size) - starts[owner]
    all_tokens = np.full(size, pad, dtype=np.int64)
    all_tokens[:real] = tokens
    all_segments = None if segments is None else np.pad(segments, (0, size - real))

    bounds = [0, *accumulate(sizes)]
    longest = [int(lengths[begin:end].max(initial=1)) for begin, end in pairwise(bounds)]
    widths = np.repeat(np.array(longest, dtype=np.int64), sizes)  # of each sequence in the padded copy
    slots = (np.cumsum(widths) - widths)[owner[:real]] + positions[:real]
    valid = np.zeros(int(widths.sum()), dtype=bool)
    valid[slots] = True
    groups, begin = [], 0
    for count, length in zip(sizes, longest, strict=True):
        of_group = valid[begin : begin + count * length].reshape(count, length)
        groups.append(Group(count, length, torch.from_numpy(of_group), bool(of_group.all())))
        begin += count * length
    return Pack(
        tokens=torch.from_numpy(all_tokens),
        positions=torch.from_numpy(positions),
        starts=torch.from_numpy(starts.astype(np.int32)),
        owner=torch.from_numpy(owner.astype(np.int32)),
        slots=torch.from_numpy(slots),
        groups=tuple(groups),
        max_length=max_length,
        segments=None if all_segments is None else torch.from_numpy(all_segments),
    )


def pack_alone(
    tokens: np.ndarray,
    lengths: np.ndarray,
    size: int,
    sequences: int,
    max_length: int,
    pad: int,
    segments: np.ndarray | None = None,
) -> Pack:
    """The pack of a model with one stack: at most `sequences`, the shortest first, and what filler is needed."""
    filler = -(-size // max_length)
    return pack_flat(tokens, lengths, size, group_sizes([lengths]), max_length, sequences + filler, pad, segments)


def pack_one(sequences: Sequence[np.ndarray], max_length: int | None = None) -> Pack:
    """A pack with no room to spare, in the given order and one group: for decoding and for tests."""
    longest = max(len(s) for s in sequences)
    size = sum(len(s) for s in sequences)
    return pack(sequences, size, [len(sequences)], max_length or longest, len(sequences))
