"""Masks: 15 % of the tokens, 80/10/10, whole words, from (seed, epoch, row) and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leadline.tasks.masking import Vocabulary, choose, replaced, uniform

VOCAB, MASK, CLS, SEP = 1000, 4, 1, 2
ORDINARY = np.arange(VOCAB) >= 5
BEGINS = np.arange(VOCAB) % 3 != 0  # the others go on with a word
VOCABULARY = Vocabulary(MASK, np.flatnonzero(ORDINARY), ORDINARY, BEGINS)


def sequences(count: int, longest: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Text between [CLS] and [SEP], end to end, and the lengths."""
    rng = np.random.default_rng(0)
    parts = [np.array([CLS, *rng.integers(5, VOCAB, n), SEP]) for n in rng.integers(1, longest, count)]
    return np.concatenate(parts), np.array([len(part) for part in parts])


def masked(tokens: np.ndarray, lengths: np.ndarray, epoch: int = 0, **changes: Any) -> np.ndarray:
    rows = changes.pop("rows", np.arange(len(lengths)))
    options = {"share": 0.15, "whole_words": False} | changes
    return choose(tokens, lengths, (7, epoch, rows), VOCABULARY, **options)


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("longest", [6, 120])
def test_fifteen_percent_of_the_text_is_masked_and_nothing_else(whole_words: bool, longest: int) -> None:
    tokens, lengths = sequences(3000, longest)
    places = masked(tokens, lengths, whole_words=whole_words)
    text = ORDINARY[tokens]
    assert text[places].all()
    assert len(set(places.tolist())) == len(places)
    # a sequence's number has a variance of less than one word's square: 3 is more than enough
    tolerance = 5 * (3 * 3000) ** 0.5 / text.sum()
    assert len(places) / text.sum() == pytest.approx(0.15, abs=tolerance)
    if longest == 120:
        assert tolerance < 0.003
    # every position has its turn
    inside = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    first, rest = (places[inside[places] == 1], places[inside[places] > 1])
    assert len(first) / 3000 == pytest.approx(0.15, abs=5 * (0.15 * 0.85 / 3000) ** 0.5)
    assert len(rest)


def test_of_the_masked_80_percent_are_mask_10_random_and_10_stay() -> None:
    tokens, lengths = sequences(2000)
    places = masked(tokens, lengths)
    new = replaced(tokens, places, (7, 0, places, places), VOCABULARY)
    old, n = tokens[places], len(places)
    shares = [(new == MASK).mean(), (new == old).mean()]
    for share, expected in zip(shares, (0.8, 0.1 + 0.1 / len(VOCABULARY.ordinary)), strict=True):
        assert share == pytest.approx(expected, abs=5 * (expected * (1 - expected) / n) ** 0.5)
    others = new[(new != MASK) & (new != old)]
    assert ORDINARY[others].all()
    assert others.mean() == pytest.approx((5 + VOCAB - 1) / 2, abs=5 * VOCAB / 12**0.5 / len(others) ** 0.5)


def test_whole_words_are_masked_whole() -> None:
    tokens, lengths = sequences(500)
    places = masked(tokens, lengths, whole_words=True)
    is_masked = np.zeros(len(tokens), dtype=bool)
    is_masked[places] = True
    within = ORDINARY[tokens[1:]] & ORDINARY[tokens[:-1]] & ~BEGINS[tokens[1:]]
    assert within.sum() > 1000
    assert (is_masked[1:] == is_masked[:-1])[within].all()
    apart = masked(tokens, lengths)
    is_masked[:] = False
    is_masked[apart] = True
    assert not (is_masked[1:] == is_masked[:-1])[within].all()


def test_a_mask_is_a_function_of_seed_epoch_and_row() -> None:
    tokens, lengths = sequences(20)
    begins = np.cumsum(lengths) - lengths
    first = masked(tokens, lengths)
    assert np.array_equal(first, masked(tokens, lengths))
    assert not np.array_equal(first, masked(tokens, lengths, epoch=1))
    assert not np.array_equal(first, masked(tokens, lengths, rows=np.arange(20) + 1))
    assert not np.array_equal(first, choose(tokens, lengths, (8, 0, np.arange(20)), VOCABULARY, 0.15, False))
    # a sequence by itself, or among others, is masked the same
    alone = masked(tokens[begins[7] : begins[7] + lengths[7]], lengths[7:8], rows=np.array([7]))
    among = first[(first >= begins[7]) & (first < begins[7] + lengths[7])] - begins[7]
    assert len(among)
    assert np.array_equal(alone, among)


def test_masks_of_two_epochs_have_nothing_to_do_with_each_other() -> None:
    tokens, lengths = sequences(2000)
    both = set(masked(tokens, lengths).tolist()) & set(masked(tokens, lengths, epoch=1).tolist())
    n = ORDINARY[tokens].sum()
    assert len(both) / n == pytest.approx(0.15**2, abs=5 * (0.15**2 / n) ** 0.5)


def test_draws_are_uniform_and_independent() -> None:
    drawn = uniform(1, np.arange(200)[:, None], np.arange(100), 3)
    assert drawn.shape == (200, 100)
    assert 0 <= drawn.min() < drawn.max() < 1
    assert len(np.unique(drawn)) == drawn.size
    counts, _ = np.histogram(drawn, bins=20, range=(0, 1))
    assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi-squared with 19 degrees of freedom: p = 0.0007
    for other in (
        drawn[1:].ravel(),
        np.roll(drawn, 1, 1)[1:].ravel(),
        uniform(1, np.arange(199)[:, None], np.arange(100), 4).ravel(),
    ):
        assert abs(np.corrcoef(drawn[:-1].ravel(), other)[0, 1]) < 5 / drawn.size**0.5
