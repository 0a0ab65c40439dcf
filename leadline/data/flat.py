"""Sequences end to end in one array, so that many are moved without a loop over them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Flat(NamedTuple):
    """Sequences end to end."""

    tokens: np.ndarray  # int64
    lengths: np.ndarray  # of each sequence

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> Flat:
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        return cls(np.fromiter(itertools.chain.from_iterable(sequences), np.int64, lengths.sum()), lengths)

    def lists(self) -> list[list[int]]:
        tokens, ends = self.tokens.tolist(), np.cumsum(self.lengths).tolist()
        return [tokens[begin:end] for begin, end in itertools.pairwise([0, *ends])]


def spans(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """begin, begin + 1, …, begin + length - 1 of each, end to end."""
    return np.arange(lengths.sum()) + np.repeat(begins - np.cumsum(lengths) + lengths, lengths)
