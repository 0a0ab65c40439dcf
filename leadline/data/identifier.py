"""Which language a line is in: naive Bayes over the scripts of its letters and its runs of up to three characters.

It knows the languages it is given text of and no others, which is what the outputs of a model of those languages need.
"""

from __future__ import annotations

import functools
import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

LONGEST = 3  # characters of a run
SMOOTHING = 0.5  # added to every count


class Identifier:
    def __init__(self, texts: Mapping[str, Sequence[str]]) -> None:
        """From lines of each language."""
        self.languages = list(texts)
        seen = [Counter(itertools.chain.from_iterable(map(features, lines))) for lines in texts.values()]
        self.numbers = {feature: number for number, feature in enumerate(sorted({*itertools.chain(*seen)}))}
        counts = np.full((len(self.numbers), len(seen)), SMOOTHING)
        for language, counter in enumerate(seen):
            counts[[self.numbers[feature] for feature in counter], language] += [*counter.values()]
        self.log_p = np.log(counts / counts.sum(0)).astype(np.float32)

    def identify(self, line: str) -> str:
        """ "" where it has no letter, or nothing that was in the text."""
        known = [self.numbers[feature] for feature in features(line) if feature in self.numbers]
        if not known or not has_letter(line):
            return ""
        return self.languages[int(self.log_p[known].sum(0).argmax())]

    def wrong(self, lines: Sequence[str], language: str) -> float:
        """The share of lines in another language, or empty; figures and signs alone are in any."""
        return sum(self.identify(line) != language and not _in_any(line) for line in lines) / max(len(lines), 1)


def has_letter(line: str) -> bool:
    return any(map(str.isalpha, line))


def _in_any(line: str) -> bool:
    return bool(line.strip()) and not has_letter(line)


def features(line: str) -> Iterator[str]:
    text = f" {' '.join(line.lower().split())} "
    for length in range(1, LONGEST + 1):
        yield from (text[i : i + length] for i in range(len(text) - length + 1))
    yield from (_script(character) for character in text if character.isalpha())


@functools.lru_cache(1 << 16)
def _script(letter: str) -> str:
    """LATIN, CYRILLIC, CJK, …: longer than any run of characters."""
    return "script " + unicodedata.name(letter, "").partition(" ")[0]
