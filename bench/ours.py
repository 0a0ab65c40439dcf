"""Leadline's contestants: the step that `leadline train` takes, in its three ways."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench import flops
from bench.measure import Setting, Work
from bench.workload import Pool, Size
from leadline import config as configuration
from leadline.config import Config
from leadline.data.tokenizer import PAD
from leadline.kernels import attention
from leadline.model import Transformer
from leadline.tasks.translation import Batch, collate
from leadline.training.step import Step, make_step

SMOOTHING = 0.1
LR = 1e-6  # everyone's: so small that no model diverges, since arithmetic on NaN takes other time


@dataclass(frozen=True)
class TranslationTask:
    """As much of a task as a step needs."""

    def loss(self, model: Transformer, batch: Batch, divisor: Tensor | float = 1.0) -> Tensor:
        return model.loss(model(batch.source, batch.target), batch.labels, SMOOTHING, PAD, divisor)[0]


def config_of(size: Size, setting: Setting, step: str, recompute: bool = False, **train: Any) -> Config:
    model = {"encoder_layers": size.layers, "decoder_layers": size.layers, "dim": size.dim, "ffn_dim": size.ffn_dim}
    return Config().set(
        model=model | {"heads": size.heads, "placement": size.placement},
        optim={"lr": LR},
        train={"step": step, "precision": setting.precision, "recompute": recompute, **train},
    )


def model_of(config: Config, vocab: int) -> Transformer:
    return Transformer(vocab, **configuration.to_dict(config.model))


def build(config: Config, vocab: int, task: Any, device: torch.device) -> Step:
    model = model_of(config, vocab).to(device).train()
    dropout = config.model.attention_dropout
    model.use_attention(attention.choose(device, config.train.precision, config.model.head_width, dropout))
    return make_step(config, task, model)


def packs(pool: Pool, max_length: int) -> list[Batch]:
    return [collate(*pool.sides(rows), pool.shape, max_length) for rows in pool.packs]


def one_pass(step: Step, batches: Sequence[Any], device: torch.device, captured: bool) -> Any:
    """An update a batch. Batches lie on the device beforehand, as the peers' do; a captured step copies its own."""
    prepared = [step.prepare(batch if captured else batch.to(device)) for batch in batches]
    update = itertools.count(1)

    def run() -> None:
        for batch in prepared:
            step([batch], next(update), LR)

    return run


def leadline(size: Size, pool: Pool, setting: Setting, step: str, recompute: bool = False) -> Work:
    config = config_of(size, setting, step, recompute)
    batches = packs(pool, config.model.max_length)
    run = one_pass(
        build(config, size.vocab, TranslationTask(), setting.device), batches, setting.device, step == "graph"
    )
    return Work(run, pool.target_tokens, steps=len(batches), flops=flops.translation(size, pool.lengths))


def steps(device: torch.device) -> list[str]:
    """The ways there are on a device, the fastest first."""
    return ["graph", "compiled", "eager"] if device.type == "cuda" else ["compiled", "eager"]
