"""The built-in pairs: balanced, the same every time, hard, and apart by split."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from leadline.data import same_meaning
from leadline.data.same_meaning import KINDS, pairs

from num2words import num2words  # isort: skip


@pytest.fixture(scope="module")
def train() -> list[tuple[str, str, str]]:
    return list(pairs("en", "train", 2000))


def test_half_mean_the_same(train: list[tuple[str, str, str]]) -> None:
    assert Counter(label for _, _, label in train) == {"same": 1000, "different": 1000}
    first_in_words = Counter((label, bool(re.search("[a-z]{3}", a))) for a, _, label in train)
    assert min(first_in_words.values()) > 400  # which side comes first tells nothing


def test_they_are_the_same_every_time_and_differ_by_seed(train: list[tuple[str, str, str]]) -> None:
    assert list(pairs("en", "train", 2000)) == train
    assert list(pairs("en", "train", 500, seed=1)) != list(pairs("en", "train", 500))


def test_words_of_a_split_occur_in_no_other(train: list[tuple[str, str, str]]) -> None:
    def words(found: list[tuple[str, str, str]]) -> set[str]:
        return {max(a, b, key=lambda text: sum(map(str.isalpha, text))) for a, b, _ in found}

    others = [words(list(pairs("en", split, 500))) for split in ("valid", "test")]
    assert not words(train) & others[0]
    assert not words(train) & others[1]
    assert not others[0] & others[1]


def test_the_label_is_true_of_numbers(train: list[tuple[str, str, str]]) -> None:
    seen = Counter[str]()
    for pair in train:
        figures = next((text for text in pair[:2] if text.isdigit()), None)
        if figures is None:
            continue
        words = pair[0] if pair[1] == figures else pair[1]
        assert (num2words(int(figures), lang="en") == words) == (pair[2] == "same"), pair
        seen[pair[2]] += 1
    assert min(seen.values()) > 300


@pytest.mark.parametrize(("name", "meaning"), [
    ("large number", 10042), ("small number", 7), ("date", (2018, 3, 14, "long")), ("money", (12, "EUR")),
])  # fmt: skip
def test_what_differs_differs_in_one_thing(name: str, meaning: object) -> None:
    rng, kind = same_meaning.Random(0), KINDS[name]
    for _ in range(200):
        before, after = (re.findall(r"\d|[A-Z]+|-", kind.figures(m)) for m in (meaning, kind.other(meaning, rng)))
        changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        parts = {sum(token == "-" for token in before[:i]) for i in changed}
        assert len(changed) == 1 or (name == "date" and len(parts) == 1), after
        assert after[0] != "0" or len(after) == 1
