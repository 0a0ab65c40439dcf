"""Optimizers, and learning-rate schedules as plain functions of the update (from 1) that return the rate."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from leadline.config import OptimConfig
from leadline.errors import UserError
from leadline.model.layers import Embed
from leadline.training.muon import Muon

Schedule = Callable[[int], float]


def warmup_factor(update: int, warmup: int) -> float:
    """Linear rise to 1 at update `warmup`."""
    return min(1.0, update / max(warmup, 1))


def inverse_sqrt(update: int, peak: float, warmup: int) -> float:
    """Vaswani et al. 2017, Xiong et al. 2020 eq. 1: rise to `peak`, then peak·√(warmup/t). warmup 1: peak/√t."""
    return peak * warmup_factor(update, warmup) * min(1.0, math.sqrt(max(warmup, 1) / update))


def hold_inverse_sqrt(update: int, peak: float, warmup: int, hold: int) -> float:
    """`peak` for `hold` updates, then peak·√(hold/t)."""
    return peak * warmup_factor(update, warmup) * min(1.0, math.sqrt(hold / update))


def constant(update: int, peak: float, warmup: int) -> float:
    return peak * warmup_factor(update, warmup)


def linear(update: int, peak: float, warmup: int, total: int) -> float:
    """Rise to `peak`, then a straight line to 0 after update `total`."""
    left = (total + 1 - update) / max(total + 1 - max(warmup, 1), 1)
    return peak * max(0.0, min(warmup_factor(update, warmup), left))


def cosine(update: int, peak: float, warmup: int, total: int) -> float:
    """Rise to `peak`, then half a cosine to 0 after update `total`."""
    if update <= warmup:
        return peak * warmup_factor(update, warmup)
    done = (update - max(warmup, 1)) / max(total + 1 - max(warmup, 1), 1)
    return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def step(
    update: int, peak: float, warmup: int, decay_after: Iterable[int], factor: float, then_inverse_sqrt: bool
) -> float:
    """`peak`, times `factor` after each update of `decay_after`; then, if asked, ·√(last decay/t)."""
    milestones = sorted(decay_after)
    rate = peak * warmup_factor(update, warmup) * factor ** sum(update > m for m in milestones)
    if then_inverse_sqrt and milestones and update > milestones[-1]:
        rate *= math.sqrt(max(milestones[-1], 1) / update)
    return rate


def schedule(config: OptimConfig, total: int, updates_per_epoch: int) -> Schedule:
    """The configured function with everything but the update filled in."""
    peak, warmup = config.known_lr, config.known_warmup
    # "at epoch 8" means: when epoch 8 begins, that is after 7 whole epochs
    unit = updates_per_epoch if config.decay_unit == "epochs" else 1
    decay_after = [(at - 1) * unit if config.decay_unit == "epochs" else at for at in config.decay_at]
    return {
        "inverse_sqrt": lambda t: inverse_sqrt(t, peak, warmup),
        "hold_inverse_sqrt": lambda t: hold_inverse_sqrt(t, peak, warmup, config.hold),
        "constant": lambda t: constant(t, peak, warmup),
        "linear": lambda t: linear(t, peak, warmup, total),
        "cosine": lambda t: cosine(t, peak, warmup, total),
        "step": lambda t: step(t, peak, warmup, decay_after, config.decay_factor, config.after_decay == "inverse_sqrt"),
    }[config.schedule]


def spared(config: OptimConfig, model: nn.Module) -> set[nn.Parameter]:
    """What weight decay leaves alone: biases, norms and all else that is no matrix; embeddings, where so asked.

    An output matrix that is an embedding too is one; an output matrix of its own is not.
    """
    tables: set[nn.Parameter] = set()
    if not config.decay_embeddings:
        tables = {p for module in model.modules() if isinstance(module, Embed) for p in module.parameters()}
    return tables | {p for p in model.parameters() if p.ndim < 2}


def optimizer(config: OptimConfig, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, RAdam and Muon decouple weight decay from the gradient."""
    parameters, without = [p for p in model.parameters() if p.requires_grad], spared(config, model)
    if config.name == "muon":
        return _light(Muon)(config, model, without, optimizer_of)
    return optimizer_of(config, [p for p in parameters if p not in without], [p for p in parameters if p in without])


def optimizer_of(config: OptimConfig, decayed: list[nn.Parameter], others: list[nn.Parameter]) -> torch.optim.Optimizer:
    """One that works element by element."""
    if config.name == "muon":
        raise UserError(
            "optim.name=muon updates whole matrices, and the processes of torchrun each update a slice of the weights: "
            "start it without torchrun, or set optim.name=adamw"
        )
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    adam: dict[str, Any] = {"lr": config.known_lr, "betas": config.betas, "eps": config.eps}
    if config.name == "sgd":
        return _light(torch.optim.SGD)(groups, lr=config.known_lr, momentum=config.momentum)
    if config.name == "radam":
        return _light(torch.optim.RAdam)(groups, **adam, decoupled_weight_decay=True)
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return _light(kind)(groups, **adam, fused=True)


@functools.cache
def _light(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """The same optimizer; torch wraps its methods in what loads its compiler, a third of the time that training takes
    to start."""
    inner = {name: inspect.unwrap(getattr(kind, name)) for name in ("step", "zero_grad", "add_param_group")}
    return type(kind.__name__, (kind,), inner | {"step": torch.no_grad()(inner["step"])})
