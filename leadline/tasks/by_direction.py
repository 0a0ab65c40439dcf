"""Scores of a translator of many languages: by direction, their means, and how often it writes the wrong language."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from leadline.config import Config
from leadline.data import directions as known_directions
from leadline.data.directions import ends
from leadline.data.identifier import Identifier, has_letter
from leadline.data.pairs import Pair
from leadline.data.store import Store
from leadline.data.tokenizer import Tokenizer
from leadline.files import Facts
from leadline.model import Transformer
from leadline.tasks import metrics
from leadline.tasks.translator import Translator
from leadline.world import ALONE, World

CENTRE = "en"  # the language whose directions have means of their own
LINES = 2000  # of training text that the identifier of languages learns each from
NUMBERS = ("bleu", "chrf", "exact_match", "off_target")
Done = Callable[[int], None]


def translated_scores(
    model: Transformer,
    tokenizer: Tokenizer,
    config: Config,
    pairs: Sequence[Pair],
    on_done: Done,
    world: World = ALONE,
) -> Facts:
    """Of one direction, the config's."""
    translator = Translator(model, tokenizer, config, world)
    outputs = translator.translate_tokenized([left for left, _ in pairs], on_done)
    scores = metrics.corpus_scores(outputs, [right for _, right in pairs], tokenizer, config.data.target_lang)
    return scores | {"sentences": len(pairs), "in_pieces": translator.split_up}


class ByDirection:
    """Scores on the data of one model."""

    def __init__(self, store: Store, config: Config) -> None:
        self.store, self.config = store, config
        self.trained = config.data.directions  # by the run, which may be others than the store has

    def scores(
        self,
        model: Transformer,
        split: str,
        sentences: int,
        on_done: Done,
        wanted: Sequence[str],
        world: World = ALONE,
    ) -> Facts:
        """Means over directions, and `by_direction` one by one; of `sentences` as many a direction as that gives.

        `wanted`: as data.directions; of sentences that are in all languages only trained directions otherwise.
        """
        names = self.choose(split, wanted)
        most = None if sentences < 0 else max(1, sentences // len(names))
        pairs = {name: self.store.sentences(split, name)[:most] for name in names}
        texts = [left for name in names for left, _ in pairs[name]]
        languages = [ends(name)[1] for name in names for _ in pairs[name]]
        translator = Translator(model, self.store.tokenizer, self.config, world)
        outputs = translator.translate_tokenized(texts, on_done, languages)
        rows, begin, of_origin = [], 0, dict[str, list[Facts]]()
        for name in names:
            written, expected = outputs[begin : begin + len(pairs[name])], [right for _, right in pairs[name]]
            rows.append(self._row(name, written, expected))
            begin += len(written)
            origins = np.array(self.store.origins(split, name)[:most])
            for origin in np.unique(origins):
                some = np.flatnonzero(origins == origin)
                row = self._row(name, [written[i] for i in some], [expected[i] for i in some])
                of_origin.setdefault(str(origin), []).append(row)
        total = {"sentences": len(texts), "in_pieces": translator.split_up}
        means = self._means(rows) | {"identifier_accuracy": self.accuracy}
        apart = {
            origin: {"sentences": sum(row["sentences"] for row in each)} | self._means(each)
            for origin, each in sorted(of_origin.items())
        }
        return means | total | {"signatures": _signatures(rows), "by_origin": apart, "by_direction": rows}

    def choose(self, split: str, wanted: Sequence[str]) -> list[str]:
        """Directions of a split."""
        there = self.store.directions(split)
        if wanted:
            zero = {"zero": [d for d in there if d not in self.trained]}
            some = [name for item in wanted for name in zero.get(item) or known_directions.chosen([item], there, split)]
            return sorted({*some})
        return [d for d in there if d in self.trained or split in self.store.manifest["splits"]]

    def _row(self, name: str, written: list[str], expected: list[str]) -> Facts:
        language = ends(name)[1]
        scores = metrics.corpus_scores(written, expected, self.store.tokenizer, language)
        wrong, floor = (self.identifier.wrong(lines, language) for lines in (written, expected))
        told = {"direction": name, "kind": self.kind(name), "sentences": len(written)}
        return told | scores | {"off_target": wrong, "off_target_references": floor}

    def kind(self, direction: str) -> str:
        """Which mean it belongs to."""
        if direction not in self.trained:
            return "zero_shot"
        source, target = ends(direction)
        return "to_en" if target == CENTRE else "from_en" if source == CENTRE else "others"

    def _means(self, rows: list[Facts]) -> dict[str, float]:
        means = {name: float(np.mean([row[name] for row in rows])) for name in NUMBERS}
        for kind in ("to_en", "from_en", "others", "zero_shot"):
            some = [row for row in rows if row["kind"] == kind]
            if some and len(some) < len(rows):
                means |= {
                    f"{n}_{kind}": float(np.mean([row[n] for row in some])) for n in ("bleu", "chrf", "off_target")
                }
        return means

    @functools.cached_property
    def identifier(self) -> Identifier:
        return Identifier({language: self._lines("train", language) for language in self._languages()})

    @functools.cached_property
    def accuracy(self) -> float:
        """Of the identifier, on the lines of valid that have a letter: the mean over languages."""
        texts = {language: self._valid_lines(language) for language in self._languages()}
        return float(np.mean([1 - self.identifier.wrong(lines, name) for name, lines in texts.items() if lines]))

    def _languages(self) -> list[str]:
        """Those of which there is training text."""
        return sorted({language for direction in self.store.directions("train") for language in ends(direction)})

    def _lines(self, split: str, language: str) -> list[str]:
        """Some of the training text in a language, from all directions that have it; tags are not text."""
        rows, first, lines = self.store.split(split), 0, list[str]()
        sizes = self.store.directions(split)
        having = [name for name in sizes if ends(name)[1] == language] or [n for n in sizes if ends(n)[0] == language]
        for name, size in sizes.items():
            if name in having and size:
                side = ends(name).index(language)
                some = first + np.linspace(0, size - 1, min(size, -(-LINES // len(having)))).astype(np.int64)
                flat = rows.gather(np.unique(some))[side]
                tokens = np.split(flat.tokens, np.cumsum(flat.lengths)[:-1])
                lines += self.store.tokenizer.decode([each.tolist() for each in tokens])
            first += size
        return lines

    def _valid_lines(self, language: str) -> list[str]:
        sides = [
            (name, ends(name).index(language)) for name in self.store.directions("valid") if language in ends(name)
        ]
        lines = [pair[side] for name, side in sides[:2] for pair in self.store.sentences("valid", name)]
        return list(filter(has_letter, lines))


def _signatures(rows: list[Facts]) -> dict[str, str]:
    """Of BLEU and chrF: for which directions, and what is unusual about it."""
    told: dict[str, list[str]] = {}
    for row in rows:
        for name in ("bleu", "chrf"):
            note = f" ({row['bleu_note']})" if name == "bleu" and "bleu_note" in row else ""
            told.setdefault(f"{name} {row[f'{name}_signature']}{note}", []).append(row["direction"].replace("-", "→"))
    return {what: "all" if len(names) == len(rows) else ", ".join(names) for what, names in told.items()}
