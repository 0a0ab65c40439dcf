"""Pairs of sentences: a source gives (source line, target line) of a split, as a stream.

builtin:numerals   number words, dates, amounts and names in many languages, made on the spot
text:FOLDER        train.de, train.en, valid.de, …, or one pair of a folder of many (train.de-en.de, or OPUS-100's
                   opus.de-en-train.de); plain, .gz or .xz. Words that subword-nmt's BPE has split ("wor@@ ds"), as in
                   fairseq's folders, are joined again
hf:NAME_OR_PATH    a Hugging Face dataset with a `translation` column or a column a language

Many languages in one model (leadline.data.many) are several of these.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from leadline.config import DataConfig
from leadline.data import hub, numerals
from leadline.data.documents import Divided
from leadline.data.holdout import held_out
from leadline.data.remembered import fingerprint
from leadline.data.text import lines_of
from leadline.errors import UserError

SPLITS = ("train", "valid", "test")
Pair = tuple[str, str]
Stream = tuple[str, str, Iterator[Pair]]  # from a language, into a language, the pairs


class Pairs(Divided, Protocol):
    def pairs(self, split: str) -> Iterator[Pair]:
        """The split from its beginning; UserError where it is damaged."""

    def streams(self, split: str) -> Iterator[Stream]:
        """The pairs of a split by direction, of which most sources have one."""
        yield self.config.source_lang, self.config.target_lang, self.pairs(split)


class Numerals(Pairs):
    KEPT = 100_000  # a corpus up to this size is made once, though it is read twice

    def __init__(self, config: DataConfig) -> None:
        self.config = config
        self.made: dict[str, list[Pair]] = {}
        self.sizes = {"train": config.size, "valid": 500, "test": 500}
        self._made("train", 0)  # a language that it does not have is told before anything is made

    def fingerprint(self) -> str:
        code = Path(numerals.__file__).read_bytes()
        return hashlib.sha256(code + f"{self.config.size} {self.config.seed}".encode()).hexdigest()

    def splits(self) -> tuple[str, ...]:
        return SPLITS

    def pairs(self, split: str) -> Iterator[Pair]:
        if self.sizes[split] > self.KEPT:
            return self._made(split, self.sizes[split])
        if split not in self.made:
            self.made[split] = list(self._made(split, self.sizes[split]))
        return iter(self.made[split])

    def _made(self, split: str, size: int) -> Iterator[Pair]:
        config = self.config
        try:
            return numerals.pairs(config.source_lang, config.target_lang, split, size, config.seed)
        except ValueError as error:
            raise UserError(str(error)) from None


OPUS_SPLITS = {"train": "train", "valid": "dev", "test": "test"}
TRAIN_FILE = re.compile(r"(?:train|opus\.[^.]+-train)\.([A-Za-z]{2,3}(?:[-_]\w+)*)(?:\.gz|\.xz)?")
PAIR_FILE = re.compile(r"train\.(\w+)-(\w+)\.(?:\1|\2)(?:\.gz|\.xz)?")
SPLIT_WORD = re.compile(r"(?<=\S)@@ ")  # how subword-nmt marks that a word goes on


class TextFiles(Pairs):
    """The files of a pair of languages, line by line: those of its first language and of its second, by split."""

    def __init__(self, files: dict[str, tuple[Path, Path]], config: DataConfig, where: Path) -> None:
        self.files, self.config, self.where = files, config, where

    def splits(self) -> tuple[str, ...]:
        return SPLITS if self.config.holdout else tuple(self.files)

    def notes(self) -> list[str]:
        return ['BPE had split the words of the text ("wor@@ ds"): they are joined again'] if self._split_up else []

    @functools.cached_property
    def _split_up(self) -> bool:
        """Whether one in ten of the first lines, of train where that is there, has a word that BPE has split."""
        lines = [line for path in next(iter(self.files.values())) for line in itertools.islice(lines_of(path), 1000)]
        return 10 * sum(bool(SPLIT_WORD.search(line)) for line in lines) > len(lines)

    def fingerprint(self) -> str:
        start = str(self.config.holdout).encode() + b" joined" * self._split_up
        return fingerprint(start, [(f"{s} {path.name} ", path) for s, files in self.files.items() for path in files])

    def pairs(self, split: str) -> Iterator[Pair]:
        if split in self.files and not (split == "train" and self.config.holdout):
            return self._read(split)
        wanted = [s for s in ("valid", "test") if s not in self.files]
        return held_out(split, wanted, lambda: self._read("train"), self.config, f"pairs in {self.where}")

    def _read(self, split: str) -> Iterator[Pair]:
        """The pairs of a split's own files, their words joined."""
        for left, right in parallel(*self.files[split]):
            yield (SPLIT_WORD.sub("", left), SPLIT_WORD.sub("", right)) if self._split_up else (left, right)


class TextFolder(TextFiles):
    """A folder with files by split and language."""

    def __init__(self, folder: Path, config: DataConfig) -> None:
        if not folder.is_dir():
            if folder.is_file():
                raise UserError(
                    f"data.source: {folder} is a file: give the folder with train.de, train.en, … (a table of pairs "
                    "makes two such files: cut -f1, cut -f2)"
                )
            raise UserError(
                f"data.source: the folder {folder} does not exist: name yours with --set data.source=text:FOLDER"
            )
        if config.source_lang == config.target_lang:
            raise UserError(f"data.source_lang and data.target_lang are both {config.source_lang}: set the other too")
        self.folder, config = folder, _with_languages_of(folder, config)
        self.languages = (config.source_lang, config.target_lang)
        files = {s: self._files(s) for s in SPLITS if any(self._find(s, lang) for lang in self.languages)}
        if "train" not in files:
            self._files("train")  # says which file is missing
        if "valid" not in files and not config.holdout:
            name = f"valid.{self.languages[0]}"
            raise UserError(
                f"{folder} has no {name} (nor .gz, .xz): "
                "add the valid files, or hold pairs out of train with data.holdout=1000"
            )
        super().__init__(files, config, folder)

    def _find(self, split: str, language: str) -> Path | None:
        pairs = ("-".join(self.languages), "-".join(reversed(self.languages)))
        names = [f"{split}.{language}", *(f"{split}.{pair}.{language}" for pair in pairs)]
        names += [f"opus.{pair}-{OPUS_SPLITS[split]}.{language}" for pair in pairs]
        candidates = (self.folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz", ".xz"))
        return next((path for path in candidates if path.is_file()), None)

    def _files(self, split: str) -> tuple[Path, Path]:
        paths = [self._find(split, language) for language in self.languages]
        for language, path in zip(self.languages, paths, strict=True):
            if path is None:
                raise UserError(f"{self.folder} has no {split}.{language} (nor .gz, .xz)" + self._advice(split))
        return paths[0], paths[1]  # type: ignore[return-value]

    def _advice(self, split: str) -> str:
        """Where the languages may be other ones."""
        if split != "train":
            return ""
        there = sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("."))
        if pair := next((match for match in map(PAIR_FILE.fullmatch, there) if match), None):
            return f": of the pairs that it has choose one, as in data.source_lang={pair[1]} data.target_lang={pair[2]}"
        languages = sorted(languages_in(self.folder))
        if len(languages) > 1:
            return f": set data.source_lang and data.target_lang (it has {', '.join(languages)})"
        has = f"it has {', '.join(there[:4])}{', …' if there[4:] else ''}" if there else "it is empty"
        if languages:
            return f": the other language of {languages[0]} is missing ({has})"
        table = "; a table of pairs makes two such files: cut -f1, cut -f2" * any(".tsv" in name for name in there)
        return f": name the files of a language train.LANGUAGE, valid.LANGUAGE and test.LANGUAGE ({has}{table})"


def languages_in(folder: Path) -> set[str]:
    """Those of its training files."""
    matches = (TRAIN_FILE.fullmatch(path.name) for path in folder.iterdir())
    return {match[1] for match in matches if match} - {"txt", "tsv", "csv"}


def _with_languages_of(folder: Path, config: DataConfig) -> DataConfig:
    """With the two languages that a folder has, where the usual German and English are not both there.

    One that is among the usual two keeps its side; what a user has chosen otherwise is never changed.
    """
    asked, there = [config.source_lang, config.target_lang], languages_in(folder)
    if {*asked} != {"de", "en"} or len(there) != 2 or there == {*asked}:
        return config
    others = iter(sorted(there - {*asked}))
    source, target = (language if language in there else next(others) for language in asked)
    return replace(config, source_lang=source, target_lang=target)


def parallel(source: Path, target: Path) -> Iterator[Pair]:
    """Two files, line by line."""
    missing = object()
    lines = itertools.zip_longest(lines_of(source), lines_of(target), fillvalue=missing)
    count = 0
    for count, (left, right) in enumerate(lines, 1):
        if left is missing or right is missing:
            shorter, longer = (source, target) if left is missing else (target, source)
            total = count - 1
            raise UserError(
                f"{shorter} ends after {total} lines but {longer} goes on: each line of one must be the "
                "translation of the same line of the other"
            )
        yield left, right  # type: ignore[misc]
    if not count:
        raise UserError(f"{source} is empty")


class HuggingFace(Pairs):
    """A dataset with a `translation` column of {language: text}, or with one text column a language."""

    def __init__(self, name: str, config: DataConfig) -> None:
        self.name, self.config, self.data = name, config, hub.load(name)

    def splits(self) -> tuple[str, ...]:
        return tuple(s for s in SPLITS if s in self.data)

    def fingerprint(self) -> str:
        return " ".join(self.data[s]._fingerprint for s in self.splits())

    def pairs(self, split: str) -> Iterator[Pair]:
        languages = (self.config.source_lang, self.config.target_lang)
        for number, row in enumerate(self.data[split]):
            texts = row.get("translation", row)
            for language in languages:
                if not isinstance(texts.get(language), str):
                    raise UserError(
                        f"row {number} of {split} in {self.name!r} has no text for {language!r}, "
                        f"only {', '.join(texts)}: set data.source_lang and data.target_lang"
                    )
            yield texts[languages[0]], texts[languages[1]]
