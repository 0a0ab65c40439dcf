"""Where one sentence ends and the next begins: the rule of Koehn and Schroeder's splitter for Europarl.

A sentence ends at . ? ! or … (with closing quotes and brackets behind it) before a space and something that can begin
a sentence: a capital, a digit, an opening quote or bracket. Not after an abbreviation of the language (Moses's list of
non-breaking prefixes, which comes with sacremoses), nor after a single letter ("J. Smith") or letters with points
("e.g.", "U.S."), nor after "No." and its like before a number.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

_OPENING = "\"'“‘«„¿¡([{-–—"
# Nothing is tried twice (++, *+, and a run of points from its beginning only), so that a long line takes no longer.
_END = re.compile(rf"""(?<![.?!…])([.?!…]++)["'”’»)\]}}]*+\s++(?=[{re.escape(_OPENING)}\s]*+(\w))""")
_POINTED = re.compile(r"(?:\w\.)*\w")  # the letters of e.g. and U.S., without the last point


@functools.cache
def splitter(language: str) -> Callable[[str], list[str]]:
    """A function from a line to its sentences, which put together with spaces are the line again."""
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(lang=language)  # English prefixes where a language has none
    prefixes = frozenset(moses.NONBREAKING_PREFIXES)
    before_numbers = frozenset(moses.NUMERIC_ONLY_PREFIXES)

    def ends(line: str, end: re.Match[str]) -> bool:
        following = end[2]
        if not (following.isupper() or following.isdigit() or following.istitle()) and not _has_no_case(following):
            return False
        if end[1] != ".":
            return True
        word = line[line.rfind(" ", 0, end.start()) + 1 : end.start()].lstrip(_OPENING)
        if word in before_numbers:
            return not following.isdigit()
        return not (word in prefixes or (_POINTED.fullmatch(word) and not word.isdigit()))

    def split(line: str) -> list[str]:
        sentences, begin = [], 0
        for end in _END.finditer(line):
            if ends(line, end):
                sentences.append(line[begin : end.end()].rstrip())
                begin = end.end()
        rest = line[begin:].rstrip()
        return [*sentences, rest] if rest else sentences

    return split


def _has_no_case(letter: str) -> bool:
    """Scripts without capitals."""
    return letter.isalpha() and letter.lower() == letter.upper()
