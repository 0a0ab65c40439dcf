"""Number words and CLDR phrases: right texts, the same everywhere, and splits that share nothing."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import unicodedata
from itertools import islice

import pytest

from leadline.data import numerals
from leadline.data.numerals import LANGUAGES, LONGEST, SPLITS, pairs, sentence

# Worked out by hand from the grammars of the languages, not copied from the program.
FACTS = [
    (
        [("large number", 243)],
        {
            "ca": "dos-cents quaranta-tres",
            "cs": "dvě stě čtyřicet tři",
            "de": "zweihundertdreiundvierzig",
            "en": "two hundred and forty-three",
            "es": "doscientos cuarenta y tres",
            "fi": "kaksisataaneljäkymmentäkolme",
            "fr": "deux cent quarante-trois",
            "hu": "kétszáznegyvenhárom",
            "id": "dua ratus empat puluh tiga",
            "it": "duecentoquarantatré",
            "nl": "tweehonderddrieënveertig",
            "pl": "dwieście czterdzieści trzy",
            "pt": "duzentos e quarenta e três",
            "ru": "двести сорок три",
            "sv": "tvåhundrafyrtiotre",
            "uk": "двісті сорок три",
        },
    ),
    ([("small number", 0)], {"de": "null", "en": "zero", "fr": "zéro", "ru": "ноль"}),
    ([("small number", 10)], {"cs": "deset", "en": "ten", "it": "dieci"}),
    ([("small number", 19)], {"uk": "девʼятнадцять", "it": "diciannove", "pt": "dezanove"}),
    ([("small number", 80)], {"fr": "quatre-vingts", "de": "achtzig"}),
    ([("large number", 118)], {"it": "centodiciotto"}),
    ([("large number", 302)], {"hu": "háromszázkettő", "cs": "tři sta dva"}),
    ([("large number", 121000)], {"es": "ciento veintiún mil", "fr": "cent vingt et un mille"}),
    ([("large number", 131000)], {"es": "ciento treinta y un mil"}),
    ([("large number", 501000)], {"de": "fünfhunderteintausend", "cs": "pět set jedna tisíc"}),
    ([("large number", 1101)], {"sv": "ettusen etthundraett", "en": "one thousand, one hundred and one"}),
    (
        [("year", 1984)],
        {
            "de": "neunzehnhundertvierundachtzig",
            "en": "nineteen eighty-four",
            "fr": "mille neuf cent quatre-vingt-quatre",
            "nl": "negentienhonderdvierentachtig",
        },
    ),
    # The twelfth of March 2024 was a Tuesday.
    (
        [("date", (2024, 3, 12, "full"))],
        {
            "de": "Dienstag, 12. März 2024",
            "en": "Tuesday, March 12, 2024",
            "fr": "mardi 12 mars 2024",
            "hu": "2024. március 12., kedd",
        },
    ),
    ([("date", (2010, 10, 3, "long"))], {"ca": "3 d’octubre del 2010", "ru": "3 октября 2010 г."}),
    ([("money", (1, "EUR"))], {"de": "1 Euro", "en": "1 euro", "fr": "1 euro"}),
    ([("money", (45_000, "CHF"))], {"de": "45.000 Schweizer Franken", "fr": "45 000 francs suisses"}),
    ([("money", (3, "CZK"))], {"cs": "3 české koruny", "pl": "3 korony czeskie", "ru": "3 чешские кроны"}),
    (
        [("measure", (5, "length-kilometer"))],
        {"pl": "5 kilometrów", "pt": "5 quilómetros", "es": "5 kilómetros"},
    ),
    ([("measure", (1, "mass-gram"))], {"de": "1 Gramm", "en": "1 gram", "fi": "1 gramma"}),
    ([("percent", (37, "concentr-percent"))], {"de": "37 Prozent", "en": "37 percent", "uk": "37 відсотків"}),
    ([("country", "DE")], {"de": "Deutschland", "fi": "Saksa", "pl": "Niemcy", "hu": "Németország"}),
    ([("relative time", -3 * 86400)], {"de": "vor 3 Tagen", "en": "3 days ago", "fr": "il y a 3 jours"}),
    ([("relative time", 4 * 7 * 86400)], {"de": "in 4 Wochen", "en": "in 4 weeks", "nl": "over 4 weken"}),
    ([("time of day", (17, 5))], {"de": "17:05", "en": "5:05 PM", "fi": "17.05"}),
    ([("country", "FR"), ("country", "IT")], {"es": "Francia e Italia", "cs": "Francie a Itálie"}),
    (
        [("small number", 2), ("country", "ES"), ("percent", (5, "concentr-percent"))],
        {
            "en": "two, Spain, and 5 percent",
            "de": "zwei, Spanien und 5 Prozent",
            "es": "dos, España y 5 por ciento",
        },
    ),
]


@pytest.mark.parametrize(
    ("items", "language", "expected"), [(items, *fact) for items, texts in FACTS for fact in texts.items()]
)
def test_known_facts(items, language, expected):
    assert sentence(items, language) == expected


def test_languages_are_supported_by_both_libraries():
    from babel.localedata import locale_identifiers
    from num2words import CONVERTER_CLASSES

    assert len(set(LANGUAGES)) == len(LANGUAGES) >= 12
    assert set(LANGUAGES) <= set(CONVERTER_CLASSES)
    assert {numerals.LOCALES.get(language, language) for language in LANGUAGES} <= set(locale_identifiers())


@pytest.mark.parametrize("language", [language for language in LANGUAGES if language != "en"])
def test_every_language_pairs_with_english(language):
    made = list(pairs(language, "en", "train", 200))
    assert len(made) == 200
    for text in (text for pair in made for text in pair):
        assert text == " ".join(text.split())
        assert not re.search(r"[^\S ]", text), "a space other than the plain one"
        assert unicodedata.is_normalized("NFC", text)
        assert 0 < len(text) <= LONGEST
        assert any(character.isalpha() for character in text)
        # Babel answers with the name of the unit where it has no translation.
        assert not re.search("area-|digital-|duration-|length-|mass-|power-|speed-|concentr-|volume-", text)
    assert sum(first != second for first, second in made) > 190
    assert sum(len(second) < 60 for _, second in made) > 140


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_meaning_has_its_own_words(language):
    numbers = [*range(300), *range(900, 1100), *range(10_000, 100_000, 700), *range(100_000, 300_000, 1000)]
    assert len({sentence([("large number", number)], language) for number in numbers}) == len(numbers)
    for name, meanings in (("country", numerals.COUNTRIES), ("year", numerals.YEARS)):
        if name != "year" or language in numerals.YEAR_LANGUAGES:
            assert len({sentence([(name, meaning)], language) for meaning in meanings}) == len(meanings)


def test_splits_share_no_sentence_on_either_side():
    made = {split: list(pairs("de", "en", split, 1200, seed)) for seed, split in enumerate(SPLITS)}
    # The English of another language pair keeps to the same splits.
    others = {split: list(pairs("en", "fr", split, 300)) for split in SPLITS}
    source = {split: {first for first, _ in made[split]} for split in SPLITS}
    target = {split: {text for _, text in made[split]} | {text for text, _ in others[split]} for split in SPLITS}
    for side in (source, target):
        assert min(map(len, side.values())) > 800
        assert not side["train"] & side["valid"]
        assert not side["train"] & side["test"]
        assert not side["valid"] & side["test"]


def test_pairs_are_the_same_in_every_process():
    program = (
        "import hashlib; from leadline.data.numerals import pairs;"
        "print(hashlib.sha256(repr(list(pairs('fr', 'en', 'valid', 300, 7))).encode()).hexdigest())"
    )
    surroundings = (
        {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "LANG": "de_DE.UTF-8", "LC_ALL": "C"},
        {"PYTHONHASHSEED": "2", "TZ": "America/Lima", "LANG": "tr_TR.UTF-8", "LC_ALL": "C.UTF-8"},
    )
    here = hashlib.sha256(repr(list(pairs("fr", "en", "valid", 300, 7))).encode()).hexdigest()
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for variables in surroundings:
        command = [sys.executable, "-c", program]
        there = subprocess.run(command, env=os.environ | paths | variables, capture_output=True, text=True, check=True)
        assert there.stdout.strip() == here


def test_arguments_choose_the_pairs_and_size_only_where_they_end():
    made = list(pairs("de", "en", "train", 50))
    assert list(pairs("de", "en", "train", 50)) == made
    assert list(islice(pairs("de", "en", "train", 10**15), 50)) == made
    assert list(pairs("de", "en", "train", 50, seed=1)) != made
    assert list(pairs("de", "en", "train", 0)) == []


@pytest.mark.parametrize(("target", "kinds"), [("en", set(numerals.KINDS)), ("ru", set(numerals.KINDS) - {"year"})])
def test_both_sides_render_the_same_items(monkeypatch, target, kinds):
    seen: dict[str, list] = {"de": [], target: []}

    def spy(items, language):
        seen[language].append(tuple(items))
        return sentence(items, language)

    monkeypatch.setattr(numerals, "sentence", spy)
    list(pairs("de", target, "train", 1500))
    assert set(seen[target]) <= set(seen["de"])
    assert {name for items in seen[target] for name, _ in items} == kinds
    assert {len(items) for items in seen[target]} == {1, 2, 3}
    for items in seen[target]:
        names = [name for name, _ in items]
        assert sum(name in numerals.NUMBERS for name in names) <= 1
        assert len(names) > 1 or names[0] in numerals.ALONE
        assert all(name != "large number" or meaning not in numerals.YEARS for name, meaning in items)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dee", "en", "train"), r"source language 'dee', the nearest is 'de' of ca, cs, .*, uk$"),
        (("de", "eng", "train"), r"target language 'eng', the nearest is 'en' of ca, cs, .*, uk$"),
        (("de", "en", "validation"), r"split 'validation', the nearest is 'valid' of train, valid, test$"),
        (("de", "de", "train"), r"both 'de'.*two different languages$"),
    ],
)
def test_wrong_arguments_are_named_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        pairs(*arguments, size=1)


def test_import_needs_only_the_standard_library(monkeypatch):
    for library in ("babel", "num2words"):
        monkeypatch.setitem(sys.modules, library, None)
    specification = importlib.util.spec_from_file_location("numerals_alone", numerals.__file__)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert module.LANGUAGES == LANGUAGES
