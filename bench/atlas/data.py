"""The tasks of the atlas as arrays of fixed shape, made of what a Python installation and this package carry.

translation   numbers below 1,000, from German letters to English words, or a folder of text that is given
causal_lm     the prose of builtin:python-docs, in windows of bytes
masked_lm     the same German letters, 15 % of them masked
text_classes  in which of eight languages is a number written; letters are the tokens
digits        scikit-learn's 8×8 images
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np

from leadline.config import DataConfig

LENGTH = 32  # tokens of a sequence, at most
NOTHING = -100  # a label that does not count
LANGUAGES = ("de", "en", "es", "fi", "fr", "hu", "it", "pl")
VALID = 64  # sequences to judge on
PAD = 0
WORDS = 1000  # numbers written in each language


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
        "causal_lm": _causal_lm,
        "masked_lm": _masked_lm,
        "text_classes": _text_classes,
        "digits": _digits,
    }[task]()


def _translation(text: str) -> Data:
    return _numbers() if not text else _folder(text)


def _numbers() -> Data:
    """Numbers below 1,000 in German letters, to be written in English words."""
    from num2words import num2words

    german = [str(num2words(n, lang="de")) for n in range(1000)]
    english = [str(num2words(n, lang="en")).replace("-", " ").split() for n in range(1000)]
    letters = {letter: 2 + at for at, letter in enumerate(sorted({c for word in german for c in word}))}
    words = {word: 2 + at for at, word in enumerate(sorted({w for line in english for w in line}))}
    longest = max(map(len, english)) + 1
    sources, givens, labels = (
        np.full((1000, n), f, np.int64) for n, f in ((LENGTH, PAD), (longest, PAD), (longest, NOTHING))
    )
    for row, (s, t) in enumerate(zip(german, english, strict=True)):
        target = [words[w] for w in t]
        sources[row, : len(s)] = [letters[c] for c in s]
        givens[row, : len(t) + 1] = [1, *target]
        labels[row, : len(t) + 1] = [*target, 1]
    order = np.random.default_rng(0).permutation(1000)
    rows = Rows(givens[order], labels[order], sources[order])
    valid = np.arange(4 * VALID // 2)
    return Data(rows.take(np.arange(len(valid), 1000)), rows.take(valid), 2 + max(len(letters), len(words)), 0)


def _folder(text: str) -> Data:
    from leadline.data.store import Store, prepare
    from leadline.data.tokenizer import BOS, EOS

    store = Store(prepare(DataConfig(source=f"text:{text}", vocab_size=2000)))

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


def _causal_lm() -> Data:
    """Of every 20 paragraphs one is to be judged on."""
    from leadline.data.python_docs import PythonDocs

    texts = [text for _, text in itertools.islice(PythonDocs(DataConfig()).paragraphs(), 4000)]

    def rows(chosen: list[str], most: int) -> Rows:
        flat = np.frombuffer("\n".join(chosen).encode().replace(b"\0", b" "), np.uint8).astype(np.int64)
        count = min(most, (len(flat) - 1) // LENGTH)
        tokens, labels = (flat[at : count * LENGTH + at].reshape(count, LENGTH) for at in (0, 1))
        return Rows(tokens, labels)

    return Data(rows([t for at, t in enumerate(texts) if at % 20], 16000), rows(texts[::20], VALID), 256, 0)


def _masked_lm() -> Data:
    data = _numbers()

    def rows(rows: Rows, copies: int) -> Rows:
        tokens = np.concatenate([rows.source] * copies)  # type: ignore[list-item]
        masked = (np.random.default_rng(copies).random(tokens.shape) < 0.15) & (tokens != PAD)
        return Rows(np.where(masked, data.vocabulary, tokens), np.where(masked, tokens, NOTHING))

    return Data(rows(data.train, 16), rows(data.valid, 2), data.vocabulary + 1, 0)


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

    return Data(rows("train", WORDS), rows("valid", 4 * VALID // len(LANGUAGES)), 256, len(LANGUAGES))


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
