"""Do two expressions mean the same? "two hundred and six" and "206" do, "14 March 2018" and "2018-03-15" do not.

- One side is in words (leadline.data.numerals), the other in figures; either may come first.
- Every second pair means the same. The others differ in one digit of a number or in one part of a date or amount, so
  that neither side alone tells.
- The same arguments give the same pairs. A text in words of one split never occurs in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from random import Random
from typing import Any, NamedTuple

from leadline.data import numerals

LABELS = ("different", "same")


class Kind(NamedTuple):
    name: str  # of numerals.KINDS
    figures: Callable[[Any], str]
    other: Callable[[Any, Random], Any]  # a meaning that is nearly the same


def _other_number(number: int, rng: Random) -> int:
    """One digit changed; the first does not become 0."""
    digits = list(str(number))
    place = rng.randrange(len(digits))
    first = place == 0 and len(digits) > 1
    digits[place] = rng.choice([d for d in "0123456789"[first:] if d != digits[place]])
    return int("".join(digits))


def _other_date(date: tuple[int, int, int, str], rng: Random) -> tuple[Any, ...]:
    place = rng.randrange(3)
    choices = (range(2000, 2030), range(1, 13), range(2, 29))[place]
    changed = rng.choice([value for value in choices if value != date[place]])
    return tuple(changed if i == place else date[i] for i in range(3))


def _other_money(money: tuple[int, str], rng: Random) -> tuple[int, str]:
    amount, currency = money
    if rng.random() < 0.5:
        return _other_number(amount, rng), currency
    return amount, rng.choice([other for other in numerals.CURRENCIES if other != currency])


KINDS = {
    "small number": Kind("small number", str, _other_number),
    "large number": Kind("large number", str, _other_number),
    "date": Kind("date", lambda date: "{:04d}-{:02d}-{:02d}".format(*date), _other_date),
    "money": Kind("money", lambda money: f"{money[1]} {money[0]}", _other_money),
}
NAMES = ("small number", "large number", "large number", "large number", "date", "money")


def pairs(language: str, split: str, size: int, seed: int = 0) -> Iterator[tuple[str, str, str]]:
    """(text, text, "same" or "different")"""
    rng = Random(f"{seed}:{split}:{language}:same meaning")
    while size > 0:
        kind = KINDS[rng.choice(NAMES)]
        meaning = numerals.KINDS[kind.name][1](rng)
        words = numerals.sentence([(kind.name, meaning)], language)
        if blake2b(words.encode(), digest_size=1).digest()[0] not in numerals.HASHES[split]:
            continue
        same = size % 2
        figures = kind.figures(meaning if same else kind.other(meaning, rng))
        yield (words, figures, LABELS[same]) if rng.random() < 0.5 else (figures, words, LABELS[same])
        size -= 1
