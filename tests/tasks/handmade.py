"""Prepared data of random numbers: nothing learnt, so that its batches are the same on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from leadline.config import Config
from leadline.data.corpus import Shard, ended
from leadline.data.parallel import Split
from leadline.data.tokenizer import BERT_SPECIAL

VOCABULARY = 60


class Tokenizer:
    vocab_size = VOCABULARY
    end_of_text = 1

    def byte_lengths(self) -> np.ndarray:
        return (np.arange(VOCABULARY) - 1) % 7

    def special(self, name: str) -> int:
        return BERT_SPECIAL.index(name)

    def begins_word(self) -> np.ndarray:
        return np.arange(VOCABULARY) % 3 != 0


def _tokens(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(5, VOCABULARY, count).astype(np.uint16)


def _split(rng: np.random.Generator, shards: list[int], longest: tuple[int, int]) -> Split:
    """Pairs; where the second side's longest is 0, texts by themselves."""
    ends = []
    for rows in shards:
        lengths = [rng.integers(1, most + 1, rows) if most else np.zeros(rows, dtype=np.int64) for most in longest]
        ends.append(np.cumsum(np.stack(lengths, 1).reshape(-1)).reshape(-1, 2))
    tokens = [_tokens(rng, int(each[-1, 1])) for each in ends]
    return Split(tokens, ends, np.cumsum([0, *shards]))


def _shard(rng: np.random.Generator, documents: int) -> Shard:
    """Documents of 1 to 12 sentences of 1 to 14 tokens, now and then of 1 or of up to 90."""
    counts = rng.integers(1, 13, documents)
    lengths = rng.integers(1, 15, counts.sum())
    unusual = rng.random(len(lengths)) < 0.1
    lengths[unusual] = rng.choice([1, 50, 90], unusual.sum())
    ends = np.cumsum(lengths).astype(np.uint32)
    return Shard(_tokens(rng, int(ends[-1])), ends, np.cumsum(counts).astype(np.uint32))


class Store:
    """As much of leadline.data.store.Store as tasks ask for."""

    def __init__(
        self, longest: tuple[int, int] = (30, 24), shards: tuple[int, ...] = (70, 1, 90), seed: int = 0
    ) -> None:
        self.tokenizer, self.seed, self.longest, self.shards = Tokenizer(), seed, longest, list(shards)
        self.manifest = {"vocab_size": VOCABULARY, "labels": ["no", "yes"], "splits": {"train": {}, "valid": {}}}

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng((self.seed, len(name)))

    def split(self, name: str, kind: str = "pairs") -> Split:
        return _split(self._rng(name), self.shards, self.longest)

    def directions(self, name: str) -> dict[str, int]:
        return {}

    def labels(self, name: str) -> np.ndarray:
        return self._rng(name).integers(0, 2, sum(self.shards))

    def documents(self, name: str) -> list[Shard]:
        rng = self._rng(name)
        return [_shard(rng, documents) for documents in self.shards]


class Documents(Store):
    """As a language model has them: behind each its end."""

    def documents(self, name: str) -> list[Shard]:
        return [ended(shard, self.tokenizer.end_of_text) for shard in super().documents(name)]


MODEL = {"dim": 16, "heads": 2, "ffn_dim": 16, "max_length": 32}
ENCODER = MODEL | {"encoder_layers": 1, "decoder_layers": 0}
DECODER = MODEL | {"encoder_layers": 0, "decoder_layers": 1}
PAIRS = {"classes": 2, "segments": 2}


def configured(task: str, model: dict[str, Any], **changes: dict[str, Any]) -> Config:
    train = {"batch_tokens": 200, "seed": 3} | changes.pop("train", {})
    return Config(task=task).set(model=model, train=train, **changes)


# Name -> config and data.
CASES: dict[str, tuple[Config, Any]] = {
    "translation": (configured("translation", MODEL), Store()),
    "translation, one shard": (configured("translation", MODEL, train={"seed": 1}), Store((32, 14), (300,), 5)),
    "causal_lm": (configured("causal_lm", DECODER), Documents()),
    "causal_lm, across documents": (configured("causal_lm", DECODER, lm={"across_documents": True}), Documents(seed=3)),
    "masked_lm": (configured("masked_lm", ENCODER | {"segments": 2}), Store()),
    "masked_lm, whole words": (
        configured("masked_lm", ENCODER, mask={"whole_words": True}, train={"seed": 8}), Store(seed=1)
    ),
    "masked_lm, pairs": (configured("masked_lm", ENCODER | PAIRS), Store()),
    "masked_lm, pairs, whole words": (
        configured("masked_lm", ENCODER | PAIRS | {"max_length": 90}, mask={"whole_words": True, "share": 0.3}),
        Store(shards=(40,), seed=2),
    ),
    "masked_lm, pairs of few documents": (configured("masked_lm", ENCODER | PAIRS), Store(shards=(1, 1), seed=4)),
    "masked_lm, pairs of one document": (configured("masked_lm", ENCODER | PAIRS), Store(shards=(1,), seed=6)),
    "classification": (
        configured("classification", ENCODER | PAIRS, train={"batch_sequences": 8, "batch_tokens": 256}), Store()
    ),
    "classification, one text": (configured("classification", ENCODER | {"classes": 2}), Store((60, 0), (80,))),
}  # fmt: skip
