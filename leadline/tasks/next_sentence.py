"""Pairs of texts for next-sentence prediction (Devlin et al. 2018): B follows A, or is of another document.

A row is cut between two of its sentences. Half of the time what follows is replaced by as many whole sentences of
another document as fit where it was, so that length tells little. Every draw is a hash of (seed, epoch, row).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from leadline.data.flat import Flat
from leadline.data.sequences import Places, Sequences
from leadline.tasks import masking
from leadline.tasks.masking import uniform

FOLLOWS, OTHER, NOTHING = 0, 1, -100  # B follows A; it does not; there is no B
TRIES = 8  # drawing a sequence of another document


class Pairs(NamedTuple):
    first: Places
    second: Places  # of no tokens where the row has only one
    labels: np.ndarray


def alone(sequences: Sequences, rows: np.ndarray) -> Pairs:
    """Rows as they are."""
    whole = sequences.places(rows)
    nothing = Places(whole.shard, whole.begins + whole.lengths, np.zeros_like(whole.lengths))
    return Pairs(whole, nothing, np.full(len(rows), NOTHING))


def draw(sequences: Sequences, rows: np.ndarray, seed: int, epoch: int) -> Pairs:
    whole, breaks = sequences.places(rows), sequences.breaks(rows)
    where = uniform(seed, epoch, rows, 0, masking.CUT)
    first = 1 + (where * (whole.lengths - 1)).astype(np.int64)  # a sentence by itself is cut anywhere
    several = breaks.lengths > 0
    first[several] = _nth(breaks, where * breaks.lengths)[several] - whole.begins[several]
    begins, lengths = whole.begins + first, whole.lengths - first

    partners = (uniform(seed, epoch, rows[:, None], np.arange(TRIES), masking.PARTNER) * len(sequences)).astype(
        np.int64
    )
    elsewhere = sequences.documents[partners] != sequences.documents[rows, None]
    swapped = (uniform(seed, epoch, rows, 0, masking.FOLLOWS) < 0.5) & elsewhere.any(1) & (lengths > 0)
    others = partners[np.arange(len(rows)), elsewhere.argmax(1)][swapped]
    theirs = _like(sequences, others, lengths[swapped], uniform(seed, epoch, rows[swapped], 0, masking.START))

    shard = whole.shard.copy()
    shard[swapped], begins[swapped], lengths[swapped] = theirs.shard, theirs.begins, theirs.lengths
    labels = np.where(swapped, OTHER, np.where(lengths > 0, FOLLOWS, NOTHING))
    return Pairs(Places(whole.shard, whole.begins, first), Places(shard, begins, lengths), labels)


def _like(sequences: Sequences, rows: np.ndarray, room: np.ndarray, drawn: np.ndarray) -> Places:
    """As many whole sentences of rows as fit in `room`, from where enough follow, not from the first if possible."""
    whole, breaks = sequences.places(rows), sequences.breaks(rows)
    ends = whole.begins + whole.lengths
    usable = _up_to(breaks, ends - room)
    start = np.where(usable > 0, _nth(breaks, drawn * usable), whole.begins)
    fitting = _up_to(breaks, start + room)
    last = np.where(fitting > 0, _nth(breaks, fitting - 1), start)
    end = np.where(ends <= start + room, ends, np.where(last > start, last, start + room))
    return Places(whole.shard, start, end - start)


def _up_to(breaks: Flat, limits: np.ndarray) -> np.ndarray:
    """How many breaks of each row are not beyond its limit."""
    owner = np.repeat(np.arange(len(limits)), breaks.lengths)
    return np.bincount(owner[breaks.tokens <= limits[owner]], minlength=len(limits))


def _nth(breaks: Flat, number: np.ndarray) -> np.ndarray:
    """The break of each row with that number, rounded down; anything where it has none."""
    places = np.cumsum(breaks.lengths) - breaks.lengths + number.astype(np.int64)
    return np.append(breaks.tokens, 0)[np.clip(places, 0, len(breaks.tokens))]
