"""Which tokens are masked, and by what (Devlin et al. 2018, section 3.1): 15 % of them; of those 80 % become [MASK],
10 % a random token and 10 % stay. Whole words are masked as a whole.

Every draw is a hash of (seed, epoch, row, position, what it is for). So a row's mask is the same whatever batch it is
in, another one every epoch, and nothing about it need be stored for a training that goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from leadline.data.flat import spans
from leadline.data.tokenizer import BERT_SPECIAL, Tokenizer

ORDER, EDGE, FATE, OTHER, CUT, FOLLOWS, PARTNER, START = range(8)  # what a number is drawn for
AS_MASK, AS_OTHER = 0.8, 0.1  # the rest stays as it is
EARLY = 1.4  # times the share: so many words are nearly always enough to choose from


def uniform(*parts: ArrayLike, after: np.ndarray | None = None) -> np.ndarray:
    """A number in [0, 1) for each combination of whole numbers, which are broadcast; `after`: a hash of the first."""
    return (hashed(*parts, after=after) >> np.uint64(11)) * 2.0**-53


def hashed(*parts: ArrayLike, after: np.ndarray | None = None) -> np.ndarray:
    """splitmix64 of whole numbers, one after another."""
    mixed = np.zeros(1, dtype=np.uint64) if after is None else after
    for part in parts:
        mixed = mixed ^ (np.asarray(part).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed ^= mixed >> np.uint64(shift)
            mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    return mixed


@dataclass(frozen=True)
class Vocabulary:
    """What masking must know of the tokens."""

    mask: int
    ordinary: np.ndarray  # the tokens that are text; only they are masked, or stand in for others
    is_ordinary: np.ndarray  # [vocabulary] bool
    begins: np.ndarray  # [vocabulary] bool: those that begin a word

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        is_ordinary = np.ones(tokenizer.vocab_size, dtype=bool)
        is_ordinary[[tokenizer.special(name) for name in BERT_SPECIAL]] = False
        return cls(tokenizer.special("[MASK]"), np.flatnonzero(is_ordinary), is_ordinary, tokenizer.begins_word())


def choose(
    tokens: np.ndarray,
    lengths: np.ndarray,
    keys: tuple[int, int, np.ndarray],
    vocabulary: Vocabulary,
    share: float,
    whole_words: bool,
) -> np.ndarray:
    """Places in `tokens` to mask, of sequences of these `lengths` end to end with `keys` (seed, epoch, rows).

    A sequence's words are taken in a random order until its share is full. The word that would overfill it is taken
    with the probability that makes the expected number of tokens exactly the share.
    """
    seed, epoch, rows = keys
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(len(tokens)) - (np.cumsum(lengths) - lengths)[sequence]
    ordinary = vocabulary.is_ordinary[tokens]
    firsts = np.flatnonzero(ordinary)
    sizes = np.ones_like(firsts)
    if whole_words:
        begins = vocabulary.begins[tokens] | ~ordinary | (position == 0)
        begins[1:] |= ~ordinary[:-1]
        edges = np.flatnonzero(begins)
        usable = ordinary[edges]
        firsts, sizes = edges[usable], np.diff(edges, append=len(tokens))[usable]

    of = sequence[firsts]
    wanted = share * np.bincount(of, sizes, minlength=len(lengths))  # tokens of each sequence
    drawn = hashed(position[firsts], after=hashed(seed, epoch, rows)[of])
    turn = uniform(ORDER, after=drawn)
    # Only the first are taken: where those below a limit are enough, the others need not be sorted.
    early = np.flatnonzero(turn < EARLY * share)
    enough = np.bincount(of[early], sizes[early], minlength=len(lengths)) >= wanted
    if not enough.all():
        early = np.flatnonzero((turn < EARLY * share) | ~enough[of])
    order = early[_sorted(turn[early], of[early])]
    firsts, sizes, of, drawn = firsts[order], sizes[order], of[order], drawn[order]
    totals = np.bincount(of, sizes, minlength=len(lengths))
    before = np.cumsum(sizes) - sizes - (np.cumsum(totals) - totals)[of]
    taken = before + uniform(EDGE, after=drawn) * sizes < wanted[of]
    masked = np.zeros(len(tokens), dtype=bool)
    masked[spans(firsts[taken], sizes[taken])] = True
    return np.flatnonzero(masked)


def _sorted(numbers: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """np.lexsort((numbers, groups)) for numbers of at least 0, whose bits are in the same order as they are.

    Sixteen bits at a time, because numpy sorts those several times faster.
    """
    digits = np.ascontiguousarray(numbers.astype("<f8").view("<u2").reshape(-1, 4).T)
    return np.lexsort((*digits, groups.astype(np.min_scalar_type(groups.max(initial=0)))))


def replaced(
    tokens: np.ndarray, places: np.ndarray, keys: tuple[int, int, np.ndarray, np.ndarray], vocabulary: Vocabulary
) -> np.ndarray:
    """What stands at `places` instead; `keys`: (seed, epoch, and of each place its row and its position there)."""
    fate, other = uniform(*keys, FATE), uniform(*keys, OTHER)
    others = vocabulary.ordinary[(other * len(vocabulary.ordinary)).astype(np.int64)]
    return np.where(fate < AS_MASK, vocabulary.mask, np.where(fate < AS_MASK + AS_OTHER, others, tokens[places]))
