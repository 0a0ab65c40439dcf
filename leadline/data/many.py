"""Pairs of many languages, for one model that translates between them.

many:FOLDER        train.de-en.de, train.de-en.en, train.fr-en.fr, …, valid.…, test.…, plain, .gz or .xz; or OPUS-100's
                   folders (de-en/opus.de-en-train.de, …). zero.de-fr.de and zero.de-fr.fr, or test files of a pair
                   without train files, are directions that are only tested; flores.de, flores.en, … the same sentences
                   in all languages; test.de-en.origin a word a line on where the pair is from, scored apart.
builtin:numerals   with data.directions: number words in as many of its languages
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from leadline.config import LANGUAGE, DataConfig
from leadline.data import directions, numerals
from leadline.data.directions import arrow, ends, reverse
from leadline.data.pairs import OPUS_SPLITS, SPLITS, Numerals, Pair, Pairs, Stream, TextFiles, parallel
from leadline.data.remembered import fingerprint
from leadline.data.text import lines_of
from leadline.errors import UserError

ZERO, FLORES = "zero", "flores"
PAIR = rf"({LANGUAGE})-({LANGUAGE})"
FILE = re.compile(rf"(train|valid|test|zero)\.{PAIR}\.({LANGUAGE})(?:\.gz|\.xz)?")
OPUS = re.compile(rf"opus\.{PAIR}-(train|dev|test)\.({LANGUAGE})(?:\.gz|\.xz)?")
ORIGIN = re.compile(rf"(valid|test)\.{PAIR}\.origin(?:\.gz|\.xz)?")
OTHER = re.compile(r"(?:train|valid|test|zero)\.(?:(.+)-.+\.\1|.+-(.+)\.\2)(?:\.gz|\.xz)?")  # meant as FILE
EVERY = re.compile(rf"{FLORES}\.({LANGUAGE})(?:\.gz|\.xz)?")


class Many(Pairs):
    """Sources of one pair each by the name of their pair; `zero`: those of pairs that are only tested."""

    def __init__(
        self,
        config: DataConfig,
        parts: Mapping[str, Pairs],
        zero: Mapping[str, Pairs],
        flores: Mapping[str, Path],
        where: str,
        origins: Mapping[tuple[str, str], Path] = MappingProxyType({}),
    ) -> None:
        if config.text not in ("raw", "auto") or config.tokenizer != "bpe":
            raise UserError(
                "many languages are read as they are: set data.text=raw and data.tokenizer=bpe, "
                f"not {config.text} and {config.tokenizer}"
            )
        there = [direction for pair in parts for direction in (pair, reverse(pair))]
        chosen = directions.chosen(config.directions or ("both",), there, where)
        # The languages of a sentence are those of its direction.
        self.config = replace(config, directions=chosen, source_lang="", target_lang="", text="raw")
        used = {pair: part for pair, part in parts.items() if {pair, reverse(pair)} & {*chosen}}
        tested = {pair: part for pair, part in zero.items() if {pair, reverse(pair)} & {*directions.unseen(chosen)}}
        languages = {*directions.sources(chosen), *directions.targets(chosen)}
        self.parts, self.zero = used, tested
        self.origins = {key: path for key, path in origins.items() if key[0] in used}  # by pair and split
        self.flores = {language: path for language, path in sorted(flores.items()) if language in languages}
        if not any("valid" in part.splits() for part in used.values()):
            pair = next(iter(used))
            name = f"valid.{pair}.{ends(pair)[0]}"
            raise UserError(
                f"{where} has no {name}, nor valid files of another pair: add those of one, or data.holdout"
            )

    def fingerprint(self) -> str:
        parts = [f"{pair} {part.fingerprint()}" for pair, part in [*self.parts.items(), *self.zero.items()]]
        parts.append(fingerprint(b"flores", [(f"{language} ", path) for language, path in self.flores.items()]))
        if self.origins:
            parts.append(fingerprint(b"origins", [(f"{key} ", path) for key, path in self.origins.items()]))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def splits(self) -> tuple[str, ...]:
        there = [s for s in SPLITS if any(s in part.splits() for part in self.parts.values())]
        return (*there, ZERO) if self.zero else tuple(there)

    def notes(self) -> list[str]:
        chosen = self.config.directions
        without = [pair for pair, part in self.parts.items() if "valid" not in part.splits()]
        notes = [f"{len(chosen)} directions: {', '.join(map(arrow, chosen))}"]
        notes += [f"no valid files of {', '.join(without)}: they are trained and not validated"] if without else []
        return notes + sorted({note for part in self.parts.values() for note in part.notes()})

    def pairs(self, split: str) -> Iterator[Pair]:
        return (pair for _, _, pairs in self.streams(split) for pair in pairs)

    def streams(self, split: str) -> Iterator[Stream]:
        trained = self.config.directions
        parts, wanted = (self.zero, directions.unseen(trained)) if split == ZERO else (self.parts, trained)
        for direction in wanted:
            source, target = ends(direction)
            pair = direction if direction in parts else reverse(direction)
            part = parts.get(pair)
            if part is not None and (split == ZERO or split in part.splits()):
                rows: Any = _with_text(part, "test" if split == ZERO else split)
                if path := self.origins.get((pair, split)):
                    rows = _with_origins(rows, path)
                yield source, target, rows if pair == direction else ((b, a, *more) for a, b, *more in rows)

    def every(self) -> Iterator[dict[str, str]]:
        """The sentences that are there in all languages."""
        files = [(language, lines_of(path)) for language, path in self.flores.items()]
        first = next(iter(self.flores))
        for language in [name for name in self.flores if name != first]:
            for _ in parallel(self.flores[first], self.flores[language]):  # says which is shorter
                pass
        for rows in zip(*(lines for _, lines in files), strict=True):
            yield dict(zip(self.flores, rows, strict=True))


def _with_text(part: Pairs, split: str) -> Iterator[Pair]:
    """The pairs of a split, of which one at least must have text on both sides."""
    empty = True
    for left, right in part.pairs(split):
        empty = empty and not (left.strip() and right.strip())
        yield left, right
    if empty:
        files = part.files.get(split) or part.files["train"] if isinstance(part, TextFiles) else ()
        raise UserError(f"no line of {' and '.join(map(str, files))} has text on both sides: mend or remove them")


def _with_origins(pairs: Iterator[Pair], path: Path) -> Iterator[tuple[str, str, str]]:
    """A third text of each pair: where it is from."""
    missing = object()
    for pair, origin in itertools.zip_longest(pairs, lines_of(path), fillvalue=missing):
        if pair is missing or origin is missing:
            raise UserError(f"{path} has not as many lines as the pairs it describes: mend or remove it")
        yield (*pair, origin)  # type: ignore[misc]


def many_numerals(config: DataConfig) -> Many:
    """Number words of every pair that data.directions names."""
    every = [f"{a}-{b}" for a in numerals.LANGUAGES for b in numerals.LANGUAGES if a < b]
    there = [direction for pair in every for direction in (pair, reverse(pair))]
    chosen = directions.chosen(config.directions, there, "builtin:numerals")

    def parts(wanted: Mapping[str, None]) -> dict[str, Pairs]:
        pairs = {pair: ends(pair) for pair in every if pair in wanted or reverse(pair) in wanted}
        return {
            pair: Numerals(replace(config, source_lang=source, target_lang=target, directions=()))
            for pair, (source, target) in pairs.items()
        }

    trained, zero = (parts(dict.fromkeys(each)) for each in (chosen, directions.unseen(chosen)))
    return Many(config, trained, {pair: part for pair, part in zero.items() if pair not in trained}, {}, config.source)


def many_folder(folder: Path, config: DataConfig) -> Many:
    """The pairs of a folder: files by name, also in folders of their own."""
    if not folder.is_dir():
        raise UserError(f"data.source: the folder {folder} does not exist")
    files: dict[tuple[str, str], dict[str, Path]] = {}  # by pair and split: the file of each language
    flores: dict[str, Path] = {}
    origins: dict[tuple[str, str], Path] = {}
    for path in sorted(path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(depth)):
        if match := EVERY.fullmatch(path.name):
            _put(flores, match[1], path, f"{FLORES} in {match[1]}")
        elif match := ORIGIN.fullmatch(path.name):
            pair, split = f"{match[2]}-{match[3]}", match[1]
            _put(origins, (pair, split), path, f"origins of {split} of {pair}")
        elif match := FILE.fullmatch(path.name) or OPUS.fullmatch(path.name):
            split, a, b = (
                (match[1], match[2], match[3]) if FILE.fullmatch(path.name) else (match[3], match[1], match[2])
            )
            split = {name: ours for ours, name in OPUS_SPLITS.items()}.get(split, split)
            if a == b:
                raise _unread(path)
            if match[4] in (a, b):
                pair = f"{a}-{b}" if (f"{b}-{a}", split) not in files else f"{b}-{a}"
                _put(files.setdefault((pair, split), {}), match[4], path, f"{split} text of {pair} in {match[4]}")
        elif OTHER.fullmatch(path.name):
            raise _unread(path)
    trained = dict.fromkeys(pair for pair, split in files if split == "train")
    if not trained:
        raise UserError(
            f"{folder} has no pairs of files train.xx-yy.xx and train.xx-yy.yy (nor .gz, .xz): name them so, "
            "such as train.de-en.de and train.de-en.en; of one pair of languages, use data.source=text:FOLDER"
        )
    parts = {pair: _files(pair, files, SPLITS, folder, config) for pair in trained}
    zero: dict[str, Pairs] = {}
    first: dict[frozenset[str], Path] = {}  # of the files of each pair that is only tested
    for (pair, split), texts in files.items():
        if split == ZERO or (split == "test" and pair not in trained and reverse(pair) not in trained):
            _put(first, frozenset(ends(pair)), next(iter(texts.values())), f"text that is only tested of {pair}")
            zero[pair] = _files(pair, files, (split,), folder, config)
    return Many(config, parts, zero, flores, str(folder), origins)


def _unread(path: Path) -> UserError:
    return UserError(
        f"{path} is not named after two languages, each written as de, pt_br or zh_Hans: rename it, or move it "
        "elsewhere"
    )


def _put(place: dict[Any, Path], key: Any, path: Path, what: str) -> None:
    if not path.is_file():  # also a pipe, at which one would wait for ever
        raise UserError(f"{path} should be the {what} and is not a file: put the text there, or remove it")
    if key in place:
        raise UserError(f"{place[key]} and {path} are both the {what}: keep one of them")
    place[key] = path


def _files(
    pair: str,
    files: Mapping[tuple[str, str], Mapping[str, Path]],
    splits: tuple[str, ...],
    where: Path,
    config: DataConfig,
) -> TextFiles:
    """Of a pair; what is only tested is its test split."""
    source, target = ends(pair)
    ours: dict[str, tuple[Path, Path]] = {}
    for split in splits:
        both = files.get((pair, split)) or files.get((reverse(pair), split)) or {}
        for language, other in ((source, target), (target, source)):
            if both and language not in both:
                raise UserError(f"{both[other]} has no counterpart in {language}: add it, line by line")
        if both:
            ours["test" if split == ZERO else split] = both[source], both[target]
    one = replace(config, source_lang=source, target_lang=target, directions=())
    return TextFiles(ours, one if "train" in ours else replace(one, holdout=0), where)
