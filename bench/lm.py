"""A training step of a language model, all sequences full: Leadline beside Hugging Face's model of the same weights.

The model, its optimizer and clipping are those of a recipe. Hugging Face's is a copy of ours (leadline.exchange), so
that all contestants begin with the same loss; theirs is asked for its logits, and the loss is as in a training there.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench import convert, flops, ours, peers
from bench.measure import Contestants, Row, Setting, Work, compete
from leadline import recipes
from leadline.config import Config
from leadline.kernels.pack import pack_alone
from leadline.model import Transformer
from leadline.tasks.causal_lm import NOTHING, Batch


@dataclass(frozen=True)
class Size:
    name: str
    recipe: str
    sequences: int  # in a batch, each as long as the recipe's model allows
    vocab: int
    batches: int
    smaller: tuple[tuple[str, int], ...] = ()  # options of the model that the recipe has otherwise


TINY = (("decoder_layers", 2), ("dim", 32), ("ffn_dim", 64), ("heads", 2), ("max_length", 32))
SIZES = {
    "gpt2-124m": Size("gpt2-124m", "gpt2_124m", 32, 50257, 4),
    "llama-124m": Size("llama-124m", "llama_124m", 32, 50257, 4),
    "lm-small": Size("lm-small", "lm_small_pre_ln", 4, 2000, 8),
    "gpt2-tiny": Size("gpt2-tiny", "gpt2_124m", 4, 200, 2, TINY),
    "llama-tiny": Size("llama-tiny", "llama_124m", 4, 200, 2, TINY),
}


def config_of(size: Size, setting: Setting, step: str) -> Config:
    return recipes.find(size.recipe).set(
        model=dict(size.smaller), optim={"lr": ours.LR}, train={"step": step, "precision": setting.precision}
    )


def make_batches(size: Size, length: int) -> list[Batch]:
    """Of random tokens; each sequence's labels are its tokens from the second on, and one more."""
    rng, batches = np.random.default_rng(0), []
    count = size.sequences * length
    for _ in range(size.batches):
        tokens = rng.integers(4, size.vocab, (size.sequences, length + 1))
        given, expected = tokens[:, :-1].ravel(), tokens[:, 1:].ravel().copy()
        target = pack_alone(given, np.full(size.sequences, length), count, size.sequences, length, 0)
        batches.append(Batch(target, torch.from_numpy(expected), count=count, tokens=count))
    return batches


class Task:
    def loss(self, model: Transformer, batch: Batch, divisor: Tensor | float = 1.0) -> Tensor:
        return model.loss(model(batch.target), batch.labels, 0.0, NOTHING, divisor)[0]


def leadline(size: Size, setting: Setting, step: str) -> Work:
    config = config_of(size, setting, step)
    built = ours.build(config, size.vocab, Task(), setting.device)
    batches = make_batches(size, config.model.max_length)
    return _work(ours.one_pass(built, batches, setting.device, step == "graph"), size, config)


def huggingface(size: Size, setting: Setting, compiled: peers.Compiled) -> Work:
    config = config_of(size, setting, "eager")
    model = convert.decoder(ours.model_of(config, size.vocab)).to(setting.device).train()
    batches = []
    for batch in (batch.to(setting.device) for batch in make_batches(size, config.model.max_length)):
        batches.append((batch.target.tokens.view(size.sequences, -1), batch.labels))

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        tokens, labels = batch
        return F.cross_entropy(model(input_ids=tokens, use_cache=False).logits.float().flatten(0, 1), labels)

    update = peers.updates(model, peers.with_compile(loss, [], compiled), batches, setting, config.optim)
    return _work(update, size, config)


def _work(run: Any, size: Size, config: Config) -> Work:
    work = flops.decoder(config.model, size.vocab, size.sequences, config.model.max_length)
    tokens = size.batches * size.sequences * config.model.max_length
    return Work(run, tokens, "tokens", size.batches, size.batches * work)


def contestants(size: Size, setting: Setting) -> Contestants:
    contestants: Contestants = {
        f"leadline, {step}": partial(leadline, size, setting, step) for step in ours.steps(setting.device)
    }
    ways: list[tuple[str, peers.Compiled]] = [("eager", ""), ("compiled", "whole")]
    if setting.device.type == "cuda" and setting.slow:
        ways.append(("compiled, CUDA graphs", "graphs"))
    for way, how in ways:
        contestants[f"Hugging Face, {way}"] = partial(huggingface, size, setting, how)
    return contestants


def run(size: Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> list[Row]:
    return compete(contestants(size, setting), setting, peak)
