"""Which tokens are masked, and by what (Devlin et al. 2018, section 3.1): 15 % of them; of those 80 % become [MASK],
10 % a random token and 10 % stay. Whole words are masked as a whole.

Every draw is a hash of (seed, epoch, row, position, what it is for). So a row's mask is the same whatever batch it is
in, another one every epoch, and nothing about it need be stored for a training that goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from leadline.data.tokenizer import BERT_SPECIAL, Tokenizer

ORDER, EDGE, FATE, OTHER, CUT, FOLLOWS, PARTNER, START = range(8)  # what a number is drawn for
AS_MASK, AS_OTHER = 0.8, 0.1  # the rest stays as it is


def uniform(*parts: Any) -> np.ndarray:
    """A number in [0, 1) for each combination of whole numbers, which are broadcast: splitmix64, one after another."""
    mixed = np.zeros(1, dtype=np.uint64)
    for part in parts:
        mixed = mixed ^ (np.asarray(part).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return (mixed >> np.uint64(11)) * 2.0**-53


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
    begins = np.ones(len(tokens), dtype=bool)
    if whole_words:
        begins = vocabulary.begins[tokens] | ~ordinary | (position == 0)
        begins[1:] |= ~ordinary[:-1]
    firsts = np.flatnonzero(begins)
    sizes = np.diff(firsts, append=len(tokens))
    usable = ordinary[firsts]
    firsts, sizes = firsts[usable], sizes[usable]

    of = sequence[firsts]
    order = np.lexsort((uniform(seed, epoch, rows[of], position[firsts], ORDER), of))
    firsts, sizes, of = firsts[order], sizes[order], of[order]
    totals = np.bincount(of, sizes, minlength=len(lengths))
    before = np.cumsum(sizes) - sizes - (np.cumsum(totals) - totals)[of]
    taken = before + uniform(seed, epoch, rows[of], position[firsts], EDGE) * sizes < share * totals[of]
    firsts, sizes = firsts[taken], sizes[taken]
    return np.sort(np.repeat(firsts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum()))


def replaced(
    tokens: np.ndarray, places: np.ndarray, keys: tuple[int, int, np.ndarray, np.ndarray], vocabulary: Vocabulary
) -> np.ndarray:
    """What stands at `places` instead; `keys`: (seed, epoch, and of each place its row and its position there)."""
    fate, other = uniform(*keys, FATE), uniform(*keys, OTHER)
    others = vocabulary.ordinary[(other * len(vocabulary.ordinary)).astype(np.int64)]
    return np.where(fate < AS_MASK, vocabulary.mask, np.where(fate < AS_MASK + AS_OTHER, others, tokens[places]))
