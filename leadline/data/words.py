"""Lines to tokens, word by word where that is the same: words that come again are looked up."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer as BPE
from tokenizers import pre_tokenizers

from leadline.data.flat import Flat, spans

REMEMBERED = 1 << 20  # characters of the words whose tokens are kept; about 30 MB

# How text is split before the merges.
SPACES, BERT = pre_tokenizers.Metaspace(), pre_tokenizers.BertPreTokenizer()
APART = pre_tokenizers.Sequence([SPACES, pre_tokenizers.Punctuation()])
DOCUMENTS = pre_tokenizers.Sequence([BERT, SPACES])


class _Numbers(dict[str, int]):
    """A number for every word that is asked for, in turn."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


class _Table(NamedTuple):
    """The tokens of words by their numbers."""

    tokens: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray


class Words:
    """The library takes longer for each word than a look into a table, and text has the same words again and again."""

    def __init__(self, bpe: BPE) -> None:
        self.bpe = bpe
        self.lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self.known = _Numbers()
        self.table = _Table(*(np.zeros(0, np.int64) for _ in _Table._fields))
        self.characters = 0  # of those words

    def encode(self, lines: Sequence[str]) -> Flat:
        """The tokens of each line."""
        if not self._are_apart:
            return self._whole(lines)
        with self.lock:
            return self._looked_up(lines)

    def _looked_up(self, lines: Sequence[str]) -> Flat:
        if self.characters > REMEMBERED:
            self._forget()
        # The library puts ▁ before every word but one that has its own and begins a line: such lines are taken whole.
        texts = [[line] if "▁" in line else line.split(" ") for line in lines]
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        words = itertools.chain.from_iterable(texts)
        numbers = np.fromiter(map(self.known.__getitem__, words), np.int64, ends[-1] if texts else 0)
        self._add_unknown()
        lengths = self.table.lengths[numbers]
        tokens = self.table.tokens[spans(self.table.begins[numbers], lengths)]
        return Flat(tokens, np.diff(np.cumsum(lengths)[ends - 1], prepend=0))

    def _add_unknown(self) -> None:
        """Into the table, what has a number and is not there: also what an interrupted call has left out."""
        new = list(itertools.islice(self.known, len(self.table.lengths), None))
        if new:
            tokens, lengths = map(np.concatenate, zip(self.table[::2], self._whole(new), strict=True))
            self.table = _Table(tokens, np.cumsum(lengths) - lengths, lengths)
            self.characters += sum(map(len, new))

    def _whole(self, lines: Sequence[str]) -> Flat:
        return Flat.of([encoding.ids for encoding in self.bpe.encode_batch(lines, add_special_tokens=False)])

    @functools.cached_property
    def _are_apart(self) -> bool:
        """Whether the tokens of a line are those of its words: other vocabularies than ours may change text, or have
        tokens of several words."""
        return (
            str(self.bpe.pre_tokenizer) in map(str, (SPACES, APART, DOCUMENTS, BERT))
            and self.bpe.normalizer is None
            and all(token.special for token in self.bpe.get_added_tokens_decoder().values())
            and not getattr(self.bpe.model, "dropout", None)
        )
