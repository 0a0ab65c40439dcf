"""Real parallel sentences without a download: number words and CLDR phrases in many languages.

What `pairs` promises:

- A sentence is one to three items (a number or year in words, dates, money, measures, percentages, countries,
  relative times, times of day), written and joined the way its language does it. Both sides say the same.
- The same arguments give the same pairs on every machine with the same versions of Babel and num2words.
- A text of one split never occurs in another, on either side, in any language, for any size or seed: a hash
  of the text alone decides which split it belongs to. Inside its split a short text may occur repeatedly.
- A text is NFC with single plain spaces, never empty, at most `LONGEST` characters.
- Memory does not grow with `size`.
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterator, Sequence
from difflib import get_close_matches
from functools import lru_cache
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from babel import Locale

LANGUAGES = ("ca", "cs", "de", "en", "es", "fi", "fr", "hu", "id", "it", "nl", "pl", "pt", "ru", "sv", "uk")
SPLITS = ("train", "valid", "test")
# The values of a text's one-byte hash that belong to each split.
HASHES = {"train": range(128), "valid": range(128, 192), "test": range(192, 256)}
LONGEST = 200
ITEM_COUNTS = (1, 1, 1, 2, 2, 3)
NUMBER_SHARE = 0.75  # of the sentences have a number in words

LOCALES = {"pt": "pt_PT"}  # num2words writes European Portuguese, so Babel has to write it too

# What num2words misspells, as (pattern, right spelling).
MENDS = {
    "cs": ((r"(?<=[ěitm])(stě|sta|set)\b", r" \1"),),
    "de": (("einstausend", "eintausend"),),
    "es": (("veintiuno mil", "veintiún mil"), ("uno mil", "un mil")),
    "hu": (("két$", "kettő"),),
    "it": (("dicotto", "diciotto"), (r"(?<=\w)tre$", "tré")),
    "nl": ((" ", ""),),
    "sv": (("ettt", "ett"), ("förtio", "fyrtio")),
    "uk": (("'", "ʼ"),),
}

# The other languages read years in a way that num2words does not know. Plain numbers keep clear of years:
# "mille neuf cent deux" could otherwise be both "nineteen oh-two" and "one thousand, nine hundred and two".
YEARS = range(1900, 2030)
YEAR_LANGUAGES = {"ca", "de", "en", "es", "fi", "fr", "hu", "id", "it", "nl", "pt"}

CURRENCIES = ("AUD", "CAD", "CHF", "CZK", "DKK", "EUR", "GBP", "INR", "JPY", "NOK", "SEK", "USD")
UNITS = (
    "area-hectare", "area-square-meter", "digital-gigabyte", "length-centimeter", "length-kilometer",
    "length-meter", "mass-gram", "mass-kilogram", "power-kilowatt", "speed-kilometer-per-hour",
    "temperature-celsius", "volume-liter",
)  # fmt: skip
COUNTRIES = (
    "AR", "AT", "AU", "BE", "BG", "BO", "BR", "CA", "CH", "CL", "CN", "CO", "CU", "CY", "CZ", "DE", "DK",
    "DZ", "EC", "EE", "EG", "ES", "ET", "FI", "FR", "GB", "GE", "GH", "GR", "HR", "HU", "ID", "IE", "IL",
    "IN", "IQ", "IR", "IS", "IT", "JM", "JO", "JP", "KE", "KZ", "LB", "LT", "LU", "LV", "MA", "MG", "MN",
    "MT", "MX", "NG", "NL", "NO", "NP", "NZ", "PA", "PE", "PH", "PK", "PL", "PT", "PY", "RO", "RS", "RU",
    "SA", "SE", "SG", "SI", "SK", "SN", "TH", "TN", "TR", "TZ", "UA", "US", "UY", "UZ", "VE", "VN", "ZA",
)  # fmt: skip
# (seconds in a unit of time, the most of them that Babel does not yet turn into a larger unit)
SPANS = ((60, 59), (3600, 23), (86400, 6), (7 * 86400, 4), (30 * 86400, 11), (365 * 86400, 50))


def _large_number(rng: Random) -> int:
    # (digits, step): long numbers are round, as in speech, so that the cache of items can hold them all.
    digits, step = rng.choice(((3, 1), (3, 1), (3, 1), (3, 1), (4, 1), (4, 1), (5, 100), (6, 1000)))
    number = rng.randrange(10 ** (digits - 1), 10**digits, step)
    return _large_number(rng) if number in YEARS else number


def _date(rng: Random) -> tuple[int, int, int, str]:
    # From the second, because CLDR lacks the French "premier", to the 28th, which every month has.
    return rng.randint(2000, 2029), rng.randint(1, 12), rng.randint(2, 28), rng.choice(("long", "full"))


def _span(rng: Random) -> int:
    seconds, most = rng.choice(SPANS)
    return rng.choice((-1, 1)) * seconds * rng.randint(1, most)


Kinds = dict[str, tuple[int, Callable[[Random], Hashable]]]  # name: (weight, how to draw a meaning)

# A sentence has at most one of these: "two hundred and six" must not also be a list of two numbers.
NUMBERS: Kinds = {
    "small number": (4, lambda rng: rng.randrange(rng.choice((10, 100)))),
    "large number": (5, _large_number),
    "year": (1, lambda rng: rng.choice(YEARS)),
}
PHRASES: Kinds = {
    "date": (4, _date),
    "money": (4, lambda rng: (rng.randint(1, 99) * rng.choice((1, 1000)), rng.choice(CURRENCIES))),
    "measure": (4, lambda rng: (rng.randint(1, 99), rng.choice(UNITS))),
    "country": (3, lambda rng: rng.choice(COUNTRIES)),
    "relative time": (2, _span),
    "time of day": (1, lambda rng: (rng.randrange(24), rng.randrange(60))),
    "percent": (1, lambda rng: (rng.randint(1, 100), "concentr-percent")),
}
KINDS = NUMBERS | PHRASES
ALONE = {"large number", "date", "money", "measure"}  # have enough meanings to be a sentence by themselves


def pairs(source: str, target: str, split: str, size: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """`size` (source sentence, target sentence) pairs of one split, the same for the same arguments."""
    _require("source language", source, LANGUAGES)
    _require("target language", target, LANGUAGES)
    _require("split", split, SPLITS)
    if source == target:
        raise ValueError(f"Source and target are both {source!r}, but a pair needs two different languages")
    return _pairs(source, target, split, size, Random(f"{seed}:{split}:{source}:{target}"))


def _require(what: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        nearest = get_close_matches(value, choices, n=1, cutoff=0)[0]
        raise ValueError(f"Unknown {what} {value!r}, the nearest is {nearest!r} of {', '.join(choices)}")


def _pairs(source: str, target: str, split: str, size: int, rng: Random) -> Iterator[tuple[str, str]]:
    numbers = [name for name, (weight, _) in NUMBERS.items() for _ in range(weight)]
    phrases = [name for name, (weight, _) in PHRASES.items() for _ in range(weight)]
    if not {source, target} <= YEAR_LANGUAGES:
        numbers = [name for name in numbers if name != "year"]
    while size > 0:
        count = rng.choice(ITEM_COUNTS)
        names = rng.choices(phrases, k=count)
        if rng.random() < NUMBER_SHARE:
            names[rng.randrange(count)] = rng.choice(numbers)
        if count == 1 and names[0] not in ALONE:
            continue
        items = [(name, KINDS[name][1](rng)) for name in names]
        first = sentence(items, source)
        # Rendering is the slow part, so the second text waits until the first one is accepted.
        if _belongs(first, split) and _belongs(second := sentence(items, target), split):
            size -= 1
            yield first, second


def _belongs(text: str, split: str) -> bool:
    return len(text) <= LONGEST and blake2b(text.encode(), digest_size=1).digest()[0] in HASHES[split]


def sentence(items: Sequence[tuple[str, Hashable]], language: str) -> str:
    """The text of some items, each the name of its kind and its meaning."""
    text = _list_pattern(len(items), language).format(*[_item(*item, language) for item in items])
    # Spanish "y" becomes "e" before the sound "i", with which only countries start here.
    return text.replace(" y I", " e I") if language == "es" else text


@lru_cache(maxsize=1 << 17)
def _item(name: str, meaning: Any, language: str) -> str:
    from babel.dates import format_date, format_time, format_timedelta
    from babel.numbers import format_currency
    from babel.units import format_unit
    from num2words import num2words

    locale = _locale(language)
    match name:
        case "small number" | "large number" | "year":
            text = num2words(meaning, lang=language, to="year" if name == "year" else "cardinal")
            for pattern, right in MENDS.get(language, ()):
                text = re.sub(pattern, right, text)
        case "date":
            text = format_date(datetime.date(*meaning[:3]), meaning[3], locale)
        case "money":
            # Without decimals: Babel takes the plural for "1" where it writes "1.00".
            amount, currency = meaning
            text = format_currency(amount, currency, locale=locale, format_type="name", currency_digits=False)
        case "measure" | "percent":
            amount, unit = meaning
            text = format_unit(amount, unit, "long", locale=locale)
        case "country":
            text = locale.territories[meaning]
        case "relative time":
            span = datetime.timedelta(seconds=meaning)
            text = format_timedelta(span, threshold=1, add_direction=True, locale=locale)
        case "time of day":
            text = format_time(datetime.time(*meaning), "short", locale=locale)
    return _clean(text)


@lru_cache(maxsize=256)
def _list_pattern(count: int, language: str) -> str:
    from babel.lists import format_list

    return _clean(format_list(["{0}", "{1}", "{2}"][:count], locale=_locale(language)))


@lru_cache(maxsize=64)
def _locale(language: str) -> Locale:
    from babel import Locale

    return Locale.parse(LOCALES.get(language, language))


def _clean(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())
