"""Floating-point operations that a model needs for an update: what share-of-peak is counted from.

A weight of a matrix product costs each token that passes it 2 forward and 4 backward, 6 in all. An attention costs
each pair of tokens (query, key) that may see each other 4·D forward, 12·D in all: q·k and the weighted sum of v.
Counted are real tokens and real pairs only: not padding, not the half of a causal matrix that is masked, not what is
computed again to save memory, no norms, dropout, softmax or optimizer. So a contestant that pads, or that computes
twice, shows a lower share of the peak, as it should.

Each model is charged with what its own definition needs: a head on all tokens costs more than one on masked tokens.
"""

from __future__ import annotations

import numpy as np

from bench.workload import Size
from leadline.config import ModelConfig


def translation(size: Size, lengths: np.ndarray) -> float:
    """An update on sentences of `lengths` [rows, 2]: source and target tokens, with </s> and <s>."""
    source, target = lengths.astype(np.float64).T
    d, ffn = size.dim, 2 * size.dim * size.ffn_dim
    encoder = source.sum() * (4 * d * d + ffn)
    decoder = target.sum() * (4 * d * d + 2 * d * d + ffn) + source.sum() * 2 * d * d  # cross: q, out; k, v
    pairs = (source**2).sum() + (target * (target + 1) / 2).sum() + (source * target).sum()
    products = size.layers * (encoder + decoder) + target.sum() * d * size.vocab
    return float(6 * products + 12 * d * size.layers * pairs)


def encoder(layers: int, dim: int, ffn_dim: int, sequences: int, length: int) -> float:
    """An update of a stack of encoder layers, without a head."""
    tokens = sequences * length
    return layers * (6 * tokens * (4 * dim * dim + 2 * dim * ffn_dim) + 12 * dim * tokens * length)


def decoder(model: ModelConfig, vocab: int, sequences: int, length: int) -> float:
    """An update of a decoder alone with its head, on full sequences."""
    of_queries, of_keys = model.heads * model.head_width, model.groups * model.head_width
    matrices = 3 if model.activation == "swiglu" else 2
    layer = model.dim * (2 * of_queries + 2 * of_keys + matrices * model.ffn_dim)
    products = sequences * length * (model.decoder_layers * layer + model.dim * vocab)
    pairs = sequences * length * (length + 1) / 2
    return 6 * products + 12 * of_queries * model.decoder_layers * pairs


def head(dim: int, vocab: int, tokens: int, transform: bool) -> float:
    """An update of a projection onto the vocabulary for `tokens`, after a dense layer if `transform`."""
    return 6.0 * tokens * (dim * vocab + (dim * dim if transform else 0))
