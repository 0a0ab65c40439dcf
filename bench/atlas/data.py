"""The tasks of the atlas as arrays of fixed shape, made of what a Python installation and this package carry.

translation   number words, German to English (builtin:numerals), or a folder of text that is given
causal_lm     the prose of builtin:python-docs, in windows; masked_lm: the same with 15 % masked
text_classes  in which of eight languages is a number written; letters are the tokens
digits        scikit-learn's 8×8 images
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from leadline.config import DataConfig

LENGTH = 32  # tokens of a sequence, at most
NOTHING = -100  # a label that does not count
LANGUAGES = ("de", "en", "es", "fi", "fr", "hu", "it", "pl")
VALID = 64  # sequences to judge on
PAD = 0


@dataclass(frozen=True)
class Rows:
    """Of a split: `tokens` what the model is given, `source` what an encoder is; lengths of both."""

    tokens: np.ndarray  # [N, LENGTH]; of digits [N, 8, 8]
    labels: np.ndarray  # [N, LENGTH], or [N] of classes
    source: np.ndarray | None = None

    def take(self, rows: np.ndarray) -> Rows:
        return Rows(self.tokens[rows], self.labels[rows], None if self.source is None else self.source[rows])

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Data:
    train: Rows
    valid: Rows
    vocabulary: int
    classes: int  # 0: every token has a label

    @property
    def outputs(self) -> int:
        return self.classes or self.vocabulary

    @property
    def frequencies(self) -> float:
        """The loss on the validation rows of a model that knows how often each label occurs in training."""
        seen = self.train.labels[self.train.labels >= 0]
        counts = np.bincount(seen, minlength=self.outputs) + 1
        asked = self.valid.labels[self.valid.labels >= 0]
        return float(-np.log(counts / counts.sum())[asked].mean())


@cache
def load(task: str, text: str = "") -> Data:
    return {
        "translation": lambda: _translation(text),
        "causal_lm": lambda: _language_model(masked=False),
        "masked_lm": lambda: _language_model(masked=True),
        "text_classes": _text_classes,
        "digits": _digits,
    }[task]()


def _translation(text: str) -> Data:
    from leadline.data.store import Store, prepare
    from leadline.data.tokenizer import BOS, EOS

    source = f"text:{text}" if text else "builtin:numerals"
    store = Store(prepare(DataConfig(source=source, vocab_size=500 if not text else 2000, size=20000)))

    def rows(split: str, most: int) -> Rows:
        data = store.split(split)
        kept = [data[row] for row in range(min(len(data), 4 * most))]
        kept = [(s, t) for s, t in kept if max(len(s), len(t)) < LENGTH][:most]
        sources, givens, labels = (np.full((len(kept), LENGTH), fill, np.int64) for fill in (PAD, PAD, NOTHING))
        for row, (s, t) in enumerate(kept):
            sources[row, : len(s) + 1] = [*s, EOS]
            givens[row, : len(t) + 1] = [BOS, *t]
            labels[row, : len(t) + 1] = [*t, EOS]
        return Rows(givens, labels, sources)

    return Data(rows("train", 16000), rows("valid", VALID), int(store.manifest["vocab_size"]), 0)


def _language_model(masked: bool) -> Data:
    from leadline.data.store import Store, prepare

    config = DataConfig(source="builtin:python-docs", vocab_size=500, tokenizer="byte_bpe", valid_every=20)
    store = Store(prepare(config))
    vocabulary = int(store.manifest["vocab_size"])

    def rows(split: str, most: int) -> Rows:
        flat = np.concatenate([shard.tokens for shard in store.documents(split)]).astype(np.int64)
        count = min(most, (len(flat) - 1) // LENGTH)
        tokens = flat[: count * LENGTH].reshape(count, LENGTH)
        if not masked:
            return Rows(tokens, flat[1 : count * LENGTH + 1].reshape(count, LENGTH))
        chosen = np.random.default_rng(0).random(tokens.shape) < 0.15
        return Rows(np.where(chosen, vocabulary, tokens), np.where(chosen, tokens, NOTHING))

    return Data(rows("train", 16000), rows("valid", 4 * VALID if masked else VALID), vocabulary + masked, 0)


def _text_classes() -> Data:
    from leadline.data import numerals

    def rows(split: str, each: int) -> Rows:
        texts = [
            (words, number)
            for number, language in enumerate(LANGUAGES)
            for _, words in numerals.pairs("en" if language != "en" else "de", language, split, each, 1)
        ]
        tokens = np.full((len(texts), LENGTH), PAD, np.int64)
        for row, (words, _) in enumerate(texts):
            letters = np.frombuffer(words.encode()[: LENGTH - 1], np.uint8).astype(np.int64)
            tokens[row, 1 : len(letters) + 1] = letters
            tokens[row, 0] = 1
        order = np.random.default_rng(0).permutation(len(texts))
        return Rows(tokens[order], np.array([number for _, number in texts])[order])

    return Data(rows("train", 1000), rows("valid", 4 * VALID // len(LANGUAGES)), 256, len(LANGUAGES))


def _digits() -> Data:
    from sklearn.datasets import load_digits

    loaded = load_digits()
    order = np.random.default_rng(0).permutation(len(loaded.target))
    images, labels = (loaded.images / 8 - 1).astype(np.float32)[order], loaded.target.astype(np.int64)[order]
    return Data(Rows(images[4 * VALID :], labels[4 * VALID :]), Rows(images[: 4 * VALID], labels[: 4 * VALID]), 0, 10)


def batch_rows(data: Data, tokens: int, seed: int, number: int) -> np.ndarray:
    """The rows of batch `number`: a function of the seed; a sequence counts as LENGTH tokens, an image as 16."""
    size = max(1, tokens // (LENGTH if data.train.tokens.ndim == 2 else 16))
    each = len(data.train) // size
    epoch, at = divmod(number, each)
    order = np.random.default_rng((seed, epoch)).permutation(len(data.train))
    return order[at * size : (at + 1) * size]
