"""A trigram model of tokens, the number that a language model has to beat: interpolated Kneser-Ney.

    p3(c | a b) = max(n(abc) - D3, 0) / n(ab)  +  D3·N(ab·) / n(ab) · p2(c | b)
    p2(c | b)   = max(N(·bc) - D2, 0) / N(·b·) +  D2·N(b·) / N(·b·) · p1(c)
    p1(c)       = max(N(·c) - D1, 0) / N(··)   +  D1·N(·) / N(··) / V

n counts trigrams, N the different ones with any token in place of a dot, and D = n1 / (n1 + 2·n2) of the trigrams,
bigrams and tokens counted once and twice (Chen and Goodman 1998). A context that was never seen leaves it to the lower
order. Two ends of text stand before each document.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

MOST = 1 << 24  # tokens that are counted; of a larger corpus the first ones


@dataclass(frozen=True)
class Counts:
    """Of one order, by context and by context and token. Keys are sorted; a context's key is its tokens' number."""

    grams: np.ndarray  # [different grams] context · V + token
    counts: np.ndarray
    contexts: np.ndarray  # [different contexts]
    totals: np.ndarray  # of a context: the sum of its counts,
    followers: np.ndarray  # and how many different tokens it has
    discount: float

    @staticmethod
    def of(grams: np.ndarray, counts: np.ndarray, vocabulary: int) -> Counts:
        contexts, first = np.unique(grams // vocabulary, return_index=True)
        once, twice = (int((counts == n).sum()) for n in (1, 2))
        discount = once / (once + 2 * twice) if once else 0.5
        followers = np.diff(first, append=len(grams))
        return Counts(grams, counts, contexts, np.add.reduceat(counts, first), followers, discount)

    def interpolated(self, grams: np.ndarray, lower: np.ndarray, vocabulary: int) -> np.ndarray:
        """p of each gram, given that of the lower order."""
        counts = _looked_up(self.grams, self.counts, grams)
        totals, followers = (_looked_up(self.contexts, x, grams // vocabulary) for x in (self.totals, self.followers))
        seen, totals = totals > 0, np.maximum(totals, 1)
        mixed = (np.maximum(counts - self.discount, 0) + self.discount * followers * lower) / totals
        return np.where(seen, mixed, lower)


def _looked_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """0 where a key is not there."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)


class Trigrams:
    """Learnt from documents that each end with the token `end`, one after the other."""

    def __init__(self, tokens: np.ndarray, vocabulary: int, end: int) -> None:
        self.vocabulary, self.end = vocabulary, end
        three, counts = np.unique(self._grams(tokens), return_counts=True)
        two, before = np.unique(three % vocabulary**2, return_counts=True)  # a different token before it, each
        one, followed = np.unique(two % vocabulary, return_counts=True)
        seen = ((three, counts), (two, before), (one, followed))
        self.orders = [Counts.of(*order, vocabulary) for order in seen]

    def _grams(self, tokens: np.ndarray) -> np.ndarray:
        """[tokens] each with the two before it in its document, as one number."""
        c = tokens.astype(np.int64)
        b = np.concatenate([[self.end], c[:-1]])
        a = np.concatenate([[self.end], b[:-1]])
        a[b == self.end] = self.end  # the document has just begun
        return (a * self.vocabulary + b) * self.vocabulary + c

    def probabilities(self, tokens: np.ndarray) -> np.ndarray:
        """Of each token of such documents."""
        V, grams = self.vocabulary, self._grams(tokens)
        p = np.full(len(grams), 1 / V)
        for order, size in zip(reversed(self.orders), (V, V**2, V**3), strict=True):
            p = order.interpolated(grams % size, p, V)
        return p


def baseline(train: list[np.ndarray], valid: list[np.ndarray], lengths: np.ndarray, end: int) -> dict[str, float]:
    """The loss on `valid` in nats a token and in bits a byte, where tokens have `lengths` in bytes [V].

    Learnt on the first MOST tokens of `train`.
    """
    rooms = np.maximum(MOST - np.cumsum([0, *map(len, train)])[:-1], 0)
    learnt = np.concatenate([tokens[:room] for tokens, room in zip(train, rooms.tolist(), strict=True)])
    model = Trigrams(learnt, len(lengths), end)
    nats = -sum(float(np.log(model.probabilities(tokens)).sum()) for tokens in valid)
    count, size = sum(map(len, valid)), sum(int(lengths[tokens].sum()) for tokens in valid)
    return {"nll": nats / count, "bits_per_byte": nats / math.log(2) / max(size, 1)}
