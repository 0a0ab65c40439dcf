"""A masked-LM step of BERT: all sequences full, 15 % of the tokens masked; Leadline beside Hugging Face's BERT.

Ours projects the masked tokens onto the vocabulary and has no dense layer before that. Hugging Face's has one, and
puts its head on all tokens; it is also run with its own head on the masked tokens only, which costs it less.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench import flops, ours, peers
from bench.measure import Contestants, Row, Setting, Work, compete
from leadline.config import Config, OptimConfig
from leadline.kernels.pack import Pack, pack
from leadline.model import Transformer

NOTHING = -100  # the label of tokens that are not masked
MASK = 103
OPTIMIZER: dict[str, Any] = {"name": "adamw", "lr": ours.LR, "weight_decay": 0.01}


@dataclass(frozen=True)
class Size:
    name: str
    layers: int
    dim: int
    ffn_dim: int
    heads: int
    vocab: int
    sequences: int
    length: int
    batches: int
    attention_dropout: float = 0.1

    @property
    def tokens(self) -> int:
        return self.sequences * self.length

    @property
    def masked(self) -> int:
        return round(0.15 * self.tokens)


SIZES = {
    "bert-base": Size("bert-base", 12, 768, 3072, 12, 30522, 64, 512, 4),
    "bert-base-plain": Size("bert-base-plain", 12, 768, 3072, 12, 30522, 64, 512, 4, attention_dropout=0.0),
    "bert-tiny": Size("bert-tiny", 2, 32, 64, 2, 500, 4, 32, 2),
}


@dataclass(frozen=True)
class Batch:
    source: Pack
    masked: Tensor  # [M] int64: where the masked tokens are
    labels: Tensor  # [M] what they were
    count: int

    @property
    def tokens(self) -> int:
        return len(self.source.tokens)

    def to(self, device: torch.device) -> Batch:
        masked, labels = (x.to(device, non_blocking=True) for x in (self.masked, self.labels))
        return Batch(self.source.to(device), masked, labels, self.count)

    def fixed(self) -> Batch:
        return dataclasses.replace(self, source=self.source.fixed())


class Task:
    def loss(self, model: Transformer, batch: Batch, divisor: Tensor | float = 1.0) -> Tensor:
        picked = model(batch.source).index_select(0, batch.masked)
        return model.loss(picked, batch.labels, 0.0, NOTHING, divisor)[0]


def make_batches(size: Size) -> list[Batch]:
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(size.batches):
        tokens = rng.integers(4, size.vocab, size.tokens)
        masked = np.sort(rng.choice(size.tokens, size.masked, replace=False))
        labels = tokens[masked]
        tokens[masked] = MASK
        source = pack(np.split(tokens, size.sequences), size.tokens, [size.sequences], size.length, size.sequences)
        batches.append(Batch(source, torch.from_numpy(masked), torch.from_numpy(labels), size.masked))
    return batches


def config_of(size: Size, setting: Setting, step: str) -> Config:
    model = {"placement": "post_ln", "encoder_layers": size.layers, "decoder_layers": 0, "dim": size.dim}
    model |= {"ffn_dim": size.ffn_dim, "heads": size.heads, "activation": "gelu", "max_length": size.length}
    model |= {"dropout": 0.1, "attention_dropout": size.attention_dropout, "positions": "learned", "embed_norm": True}
    return Config().set(model=model, optim=OPTIMIZER, train={"step": step, "precision": setting.precision})


def leadline(size: Size, setting: Setting, step: str) -> Work:
    built = ours.build(config_of(size, setting, step), size.vocab, Task(), setting.device)
    run = ours.one_pass(built, make_batches(size), setting.device, step == "graph")
    return _work(run, size, flops.head(size.dim, size.vocab, size.masked, transform=False))


def huggingface(size: Size, setting: Setting, compiled: peers.Compiled, masked_only: bool = False) -> Work:
    import transformers

    options: dict[str, Any] = dict(
        vocab_size=size.vocab,
        hidden_size=size.dim,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.ffn_dim,
        max_position_embeddings=size.length,
        attention_probs_dropout_prob=size.attention_dropout,
        attn_implementation="sdpa",
    )  # dropout 0.1 elsewhere and gelu are its defaults
    model: Any = transformers.BertForMaskedLM(transformers.BertConfig(**options))
    model.to(setting.device).train()
    batches = []
    for batch in (batch.to(setting.device) for batch in make_batches(size)):
        labels = torch.full((size.tokens,), NOTHING, device=setting.device)
        labels[batch.masked] = batch.labels
        shape = (size.sequences, size.length)
        batches.append((batch.source.tokens.view(shape), labels.view(shape), batch.masked, batch.labels))

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        tokens, labels, masked, masked_labels = batch
        if not masked_only:
            return model(input_ids=tokens, labels=labels).loss
        hidden = model.bert(input_ids=tokens).last_hidden_state.flatten(0, 1).index_select(0, masked)
        return F.cross_entropy(model.cls(hidden).float(), masked_labels)

    run = peers.updates(model, peers.with_compile(loss, [], compiled), batches, setting, OptimConfig(**OPTIMIZER))
    on = size.masked if masked_only else size.tokens
    return _work(run, size, flops.head(size.dim, size.vocab, on, transform=True))


def _work(run: Any, size: Size, head: float) -> Work:
    body = flops.encoder(size.layers, size.dim, size.ffn_dim, size.sequences, size.length)
    return Work(run, size.tokens * size.batches, "tokens", size.batches, size.batches * (body + head))


def contestants(size: Size, setting: Setting) -> Contestants:
    contestants: Contestants = {
        f"leadline, {step}": partial(leadline, size, setting, step) for step in ours.steps(setting.device)
    }
    name = "Hugging Face BERT"
    ways: list[tuple[str, peers.Compiled]] = [("eager", ""), ("compiled", "whole")]
    if setting.device.type == "cuda" and setting.slow:
        ways.append(("compiled, CUDA graphs", "graphs"))
    for way, how in ways:
        contestants[f"{name}, {way}"] = partial(huggingface, size, setting, how)
        contestants[f"{name}, {way}, head on masked"] = partial(huggingface, size, setting, how, masked_only=True)
    return contestants


def run(size: Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> list[Row]:
    return compete(contestants(size, setting), setting, peak)
