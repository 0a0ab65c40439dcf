"""Trigrams: they equal the equations, with dictionaries, and their probabilities sum to one."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from leadline.data import ngram
from leadline.data.ngram import Trigrams, baseline

V, END = 9, 0


def corpus(seed: int, documents: int = 40) -> np.ndarray:
    rng = np.random.default_rng(seed)
    parts = [np.append(rng.choice(np.arange(1, V - 1), rng.integers(1, 12), p=P), END) for _ in range(documents)]
    return np.concatenate(parts).astype(np.uint16)


P = np.arange(1.0, V - 1) ** 2 / (np.arange(1.0, V - 1) ** 2).sum()  # token V - 1 never comes


def contexts(tokens: np.ndarray) -> list[tuple[int, int, int]]:
    grams, a, b = [], END, END
    for c in tokens.tolist():
        grams.append((a, b, c))
        a, b = (END, END) if c == END else (b, c)
    return grams


class Reference:
    """As the docstring of the module says it."""

    def __init__(self, tokens: np.ndarray) -> None:
        self.three = Counter(contexts(tokens))
        self.two = Counter((b, c) for _, b, c in self.three)
        self.one = Counter(c for _, c in self.two)

    @staticmethod
    def discount(counts: Counter) -> float:
        once, twice = (sum(n == k for n in counts.values()) for k in (1, 2))
        return once / (once + 2 * twice) if once else 0.5

    def p(self, a: int, b: int, c: int) -> float:
        D3, D2, D1 = map(self.discount, (self.three, self.two, self.one))
        N = sum(self.one.values())
        p = max(self.one[c] - D1, 0) / N + D1 * len(self.one) / N / V
        followers = [n for (x, _), n in self.two.items() if x == b]
        if followers:
            p = (max(self.two[b, c] - D2, 0) + D2 * len(followers) * p) / sum(followers)
        followers = [n for (x, y, _), n in self.three.items() if (x, y) == (a, b)]
        if followers:
            p = (max(self.three[a, b, c] - D3, 0) + D3 * len(followers) * p) / sum(followers)
        return p


def test_they_equal_the_equations() -> None:
    train, valid = corpus(0), corpus(1)
    reference = Reference(train)
    expected = [reference.p(*gram) for gram in contexts(valid)]
    np.testing.assert_allclose(Trigrams(train, V, END).probabilities(valid), expected, rtol=1e-12)
    assert set(contexts(valid)) - set(contexts(train))  # some were never seen


@pytest.mark.parametrize("before", [[], [3], [3, 5], [V - 1, V - 1]])  # the last was never seen
def test_probabilities_sum_to_one(before: list[int]) -> None:
    model = Trigrams(corpus(0), V, END)
    p = [model.probabilities(np.array([*before, token]))[-1] for token in range(V)]
    assert sum(p) == pytest.approx(1, rel=1e-12)
    assert min(p) > 0


def test_the_baseline_is_their_loss_a_token_and_a_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    train, valid, lengths = [corpus(0), corpus(2)], [corpus(1), corpus(3)], np.arange(V)
    p = Trigrams(np.concatenate(train), V, END).probabilities(np.concatenate(valid))
    found = baseline(train, valid, lengths, END)
    assert found["nll"] == pytest.approx(-np.log(p).mean())
    assert found["bits_per_byte"] == pytest.approx(-np.log2(p).sum() / np.concatenate(valid).sum())
    monkeypatch.setattr(ngram, "MOST", len(train[0]))
    assert baseline(train, valid, lengths, END) == baseline(train[:1], valid, lengths, END) != found


def test_one_token_that_never_changes() -> None:
    model = Trigrams(np.array([1, 1, 1, 1, END]), 2, END)
    assert math.isfinite(np.log(model.probabilities(np.array([1, END, END]))).sum())
