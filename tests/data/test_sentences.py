"""Sentences end where a reader says they do."""

from __future__ import annotations

import random
import re

import pytest

from leadline.data import sentences
from leadline.data.sentences import splitter

TEXTS = {
    "plain": ["It rains.", "We stay in!", "Do we?", "Yes… No."],
    "abbreviations": ["Mr. Smith met J. K. Rowling at 3 p.m. in the U.S. Senate.", "See No. 5, e.g. there."],
    "numbers": ["It costs 3.50 now.", "2020 was cheaper."],
    "quotes": ['"Really?" she said.', '"Yes."', "(He left.)", "“So.”", "‘Then?’"],
    "no capital": ["This goes on... and on. and on."],
    "no end": ["Etymology and terminology"],
    "number word": ["They said No.", "Then they left."],
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_line_is_split_where_sentences_end(kind: str) -> None:
    expected = ["Yes…", "No."] if kind == "plain" else []
    expected = [*TEXTS[kind][:3], *expected] if kind == "plain" else TEXTS[kind]
    assert splitter("en")(" ".join(TEXTS[kind])) == expected


def test_nothing_is_lost() -> None:
    line = "  A b. C d?  E — f! «G.» h.\tI j.  "
    assert " ".join(splitter("en")(line)).split() == line.split()
    assert splitter("en")("   ") == []


def test_abbreviations_are_those_of_the_language() -> None:
    line = "Das ist z.B. Herr Dr. Müller. Er kommt am 3. Mai."
    assert splitter("de")(line)[0] == "Das ist z.B. Herr Dr. Müller."
    assert splitter("xx")("Mr. Ab cd. Ef gh.") == ["Mr. Ab cd.", "Ef gh."]  # English where a language has no list


def test_ends_are_those_of_the_plain_expression_and_a_line_without_one_takes_no_longer() -> None:
    opening = re.escape(sentences._OPENING)
    plain = re.compile(rf"""([.?!…]+)["'”’»)\]}}]*\s+(?=[{opening}\s]*(\w))""")
    rng = random.Random(0)
    for _ in range(3000):
        line = "".join(rng.choices("aB1.?!…\"')] \t(-“", k=rng.randint(1, 30)))
        assert [m.span() for m in sentences._END.finditer(line)] == [m.span() for m in plain.finditer(line)]
    for line in ("." * 300_000, "a." + " " * 300_000, "a. " + "(" * 300_000):
        assert splitter("en")(line) == [line.rstrip()]
