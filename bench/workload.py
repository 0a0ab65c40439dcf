"""The sentences every contestant works on.

Lengths are drawn from a log-normal that fits TED talks (about 24 tokens, a long tail); tokens are random.
A contestant sees all sentences of the pool once a repeat. Ours in packs of fixed size; peers in padded batches
sorted by length, which is what costs them least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from leadline.data.batching import Shape, plan, shape_for
from leadline.data.flat import Flat

BOS, EOS, PAD = 1, 2, 0


@dataclass(frozen=True)
class Size:
    name: str
    layers: int
    dim: int
    ffn_dim: int
    heads: int
    vocab: int
    batch_tokens: int
    batches: int  # packs in the pool
    placement: str = "pre_ln"  # of ours, and of peers that have a choice


SIZES = {
    "tiny": Size("tiny", 2, 32, 64, 2, 200, 256, 2),
    "small": Size("small", 3, 64, 128, 2, 1000, 1024, 8),
    "iwslt14": Size("iwslt14", 6, 512, 1024, 4, 10000, 1024, 6),
    "iwslt14-gpu": Size("iwslt14-gpu", 6, 512, 1024, 4, 10000, 4096, 8),
    "iwslt14-8k": Size("iwslt14-8k", 6, 512, 1024, 4, 10000, 8192, 4),
    "iwslt14-16k": Size("iwslt14-16k", 6, 512, 1024, 4, 10000, 16384, 4),
}


@dataclass(frozen=True)
class Pool:
    pairs: list[tuple[np.ndarray, np.ndarray]]
    lengths: np.ndarray  # [rows, 2], </s> and <s> included
    shape: Shape
    packs: list[np.ndarray]  # rows of each of our packs; together, all rows

    def sides(self, rows: np.ndarray) -> tuple[Flat, Flat]:
        source, target = zip(*(self.pairs[row] for row in rows), strict=True)
        return Flat.of(source), Flat.of(target)

    @property
    def target_tokens(self) -> int:
        return int(self.lengths[:, 1].sum())


def make_pool(size: Size, max_length: int = 256) -> Pool:
    """What fills `size.batches` packs out of the middle of a larger corpus, as in training."""
    rng = np.random.default_rng(0)
    count = size.batch_tokens * (size.batches + 16) // 20
    source_lengths = np.clip(np.exp(rng.normal(2.95, 0.6, count)), 2, max_length - 2).astype(int)
    target_lengths = np.clip(source_lengths * rng.normal(1.0, 0.15, count), 2, max_length - 2).astype(int)
    lengths = np.stack([source_lengths, target_lengths], 1) + 1
    shape = shape_for(lengths, size.batch_tokens)
    chosen = plan(lengths, shape, np.arange(count))[: size.batches]
    rows = np.concatenate(chosen)
    pairs = [(rng.integers(4, size.vocab, n), rng.integers(4, size.vocab, m)) for n, m in lengths[rows] - 1]
    packs = np.split(np.arange(len(rows)), np.cumsum([len(c) for c in chosen])[:-1])
    return Pool(pairs, lengths[rows], shape, packs)


def padded_batches(pool: Pool, count: int) -> list[dict[str, torch.Tensor]]:
    """The pool sorted by length and cut into `count` padded batches of about as many tokens each."""
    order = np.argsort(pool.lengths.max(1), kind="stable")
    edges = np.searchsorted(np.cumsum(pool.lengths[order, 1]), np.linspace(0, pool.target_tokens, count + 1)[1:-1])
    batches = []
    for rows in np.split(order, edges):
        source = _pad([np.append(pool.pairs[i][0], EOS) for i in rows])
        batches.append(
            {
                "source": source,
                "target": _pad([np.append(BOS, pool.pairs[i][1]) for i in rows]),
                "labels": _pad([np.append(pool.pairs[i][1], EOS) for i in rows]),
                "source_padding": source == PAD,
            }
        )
    return batches


def _pad(rows: list[np.ndarray]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.from_numpy(np.stack([np.pad(row, (0, longest - len(row)), constant_values=PAD) for row in rows]))
