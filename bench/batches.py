"""How many batches a second the host makes, one thread: what a fast device must not have to wait for.

python -m bench.batches [TOKENS]      65,536 tokens a batch if nothing is said

The text is made up: documents of about 30 sentences of about 25 tokens, pairs of sentences of about 25 tokens each.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from leadline import recipes, tasks
from leadline.config import Config
from leadline.data.corpus import Shard
from leadline.data.parallel import Split
from leadline.data.tokenizer import BERT_SPECIAL

VOCABULARY = 32768
SHARDS, TOKENS = 4, 2_000_000


class Made:
    """As much of prepared data as tasks ask for; itself also its tokenizer."""

    vocab_size = VOCABULARY

    def __init__(self) -> None:
        self.manifest = {"vocab_size": VOCABULARY, "labels": ["no", "yes"]}
        self.tokenizer, self.rng = self, np.random.default_rng(0)

    def special(self, name: str) -> int:
        return BERT_SPECIAL.index(name)

    def begins_word(self) -> np.ndarray:
        return np.arange(VOCABULARY) % 4 != 0

    def _shard(self) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.clip(np.exp(self.rng.normal(3.0, 0.6, TOKENS // 24)), 1, 250).astype(np.int64)
        ends = np.cumsum(lengths[: len(lengths) // 2 * 2])
        return self.rng.integers(5, VOCABULARY, ends[-1]).astype(np.uint16), ends

    def documents(self, split: str) -> list[Shard]:
        shards = [self._shard() for _ in range(SHARDS)]
        counts = [np.unique(np.append(self.rng.integers(1, len(e), len(e) // 30), len(e))) for _, e in shards]
        return [Shard(t, e.astype(np.uint32), c.astype(np.uint32)) for (t, e), c in zip(shards, counts, strict=True)]

    def split(self, split: str, kind: str = "pairs") -> Split:
        tokens, ends = zip(*(self._shard() for _ in range(SHARDS)), strict=True)
        pairs = [each.reshape(-1, 2) for each in ends]
        return Split(list(tokens), pairs, np.cumsum([0, *map(len, pairs)]))

    def directions(self, split: str) -> dict[str, int]:
        return {}

    def labels(self, split: str) -> np.ndarray:
        return self.rng.integers(0, 2, 10**6)


def cases(size: int) -> dict[str, Config]:
    bert = recipes.bert_base_pre_ln().set(train={"batch_tokens": size})
    return {
        "translation": recipes.iwslt14_pre_ln().set(train={"batch_tokens": size}),
        "masked LM": bert,
        "masked LM, whole words": bert.set(mask={"whole_words": True}),
        "masked LM, next sentences": bert.set(model={"classes": 2}),
        "classification": recipes.rte().set(train={"batch_tokens": size, "batch_sequences": 0}),
    }


def speed(config: Config, seconds: float = 3.0) -> float:
    """Batches of a planned epoch in a second of the CPU, which a busy machine makes little slower."""
    store: Any = Made()
    task = tasks.find(config.task)(config, store)
    epoch = task.epoch(0)
    task.collate(epoch[0])
    started, done = time.thread_time(), 0
    while (passed := time.thread_time() - started) < seconds:
        task.collate(epoch[done % len(epoch)])
        done += 1
    return done / passed


def main() -> None:
    size = int(sys.argv[1]) if sys.argv[1:] else 65536
    for name, config in cases(size).items():
        a_second = speed(config)
        print(
            f"{name:26} {a_second:8.1f} batches a second, {a_second * size / 1e6:6.2f} million tokens a second",
            flush=True,
        )


if __name__ == "__main__":
    main()
