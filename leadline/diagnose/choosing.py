"""`leadline.choose`: a learning rate and a warm-up for anybody's model and loop, from a few short real trainings.

    choice = leadline.choose(model, loader, loss=lambda output, batch: ..., optimizer=optimizer, updates=20_000)
    for group in optimizer.param_groups:
        group["lr"] = choice.rate

The model, its gradients and its optimizer are afterwards as they were.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from leadline import rates
from leadline.diagnose import trace
from leadline.diagnose.inspect import optimizer_of
from leadline.diagnose.probe import Loss, Subject, in_words, output_of, quiet, restored, take_step
from leadline.diagnose.state import random_kept, sources_of
from leadline.errors import UserError
from leadline.rates import Choice, Ended, diversity

FEWEST, MOST = 3, 256  # batches


def choose(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    updates: int,
    warmup: int | None = None,
) -> Choice:
    """A learning rate for a training of so many updates at a constant rate or one that decays late.

    batches    three or more of the training's own, such as a DataLoader; the last few are only looked at
    loss       function(output, batch) -> one number; not needed where the output has a `loss`
    optimizer  what will train the model; Adam if not given
    warmup     updates over which the rate will rise; a tenth of all if not given
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"choose takes a torch.nn.Module, not {type(model).__name__}")
    if updates < 1 or (warmup is not None and warmup < 0):
        raise UserError("choose needs the updates of the training, 1 or more, and a warm-up of 0 or more")
    with random_kept([*sources_of(batches), *model.modules()]):  # a loader that shuffles draws, and so do models
        return _chosen(model, batches, loss, optimizer, updates, warmup)


def _chosen(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss | None,
    optimizer: torch.optim.Optimizer | None,
    updates: int,
    warmup: int | None,
) -> Choice:
    with in_words("no batch could be read"):
        taken = list(itertools.islice(batches, MOST))
    if len(taken) < FEWEST:
        raise UserError(
            f"a rate is chosen on batches that it is not trained on: give {FEWEST} batches or more, not {len(taken)}"
        )
    subject = Subject(model, taken, loss, optimizer_of(model, optimizer, 1e-3))
    warm = rates.warmup(updates) if warmup is None else warmup
    look = _Look(subject, updates, warm)
    allowed = rates.budget(updates, look.operations, next(model.parameters()).device.type)
    rate, tried = rates.search(look, rates.ladder(type(subject.optimizer).__name__), allowed, updates)
    return rates.choice(rate, warm, updates, tried)


class _Look:
    """A short training at a rate, from where the model stands, which is left as it was."""

    def __init__(self, subject: Subject, planned: int, warmup: int) -> None:
        self.subject, self.planned, self.warmup = subject, planned, warmup
        self.trained_on = len(subject.batches) - min(rates.OTHER, len(subject.batches) // 2)
        with restored(subject.model, subject.optimizer):
            _, self.diversity, tokens = self._looked()
        self.operations = 6.0 * tokens * sum(p.numel() for p in subject.model.parameters())
        largest = max(group["lr"] for group in subject.optimizer.param_groups) or 1.0
        self.shares = [group["lr"] / largest for group in subject.optimizer.param_groups]

    def __call__(self, rate: float, updates: int) -> Ended:
        subject, optimizer = self.subject, self.subject.optimizer
        with restored(subject.model, subject.optimizer):
            for update in range(1, updates + 1):
                for group, share in zip(optimizer.param_groups, self.shares, strict=True):
                    group["lr"] = share * rate * rates.risen(update, updates, self.planned, self.warmup)
                batch = subject.batches[(update - 1) % self.trained_on]
                for p in subject.model.parameters():
                    p.grad = None
                if not math.isfinite(float(subject.backward(batch, update))):
                    return Ended(math.inf)
                take_step(optimizer)
            loss_there, spread, _ = self._looked()
        return Ended(loss_there, spread / max(self.diversity, 1e-9))

    def _looked(self) -> tuple[float, float, int]:
        """Loss and diversity of the output on the batches that are not trained on, and the tokens of one."""
        subject = self.subject
        losses, spreads, tokens = [], [], 1
        with quiet(subject.model):
            for batch in subject.batches[self.trained_on :]:
                output = subject.run(batch)
                losses.append(float(subject.loss_of(output, batch)))
                if (values := output_of(output)) is not None:
                    spreads.append(diversity(values.float()))
                    tokens = max(tokens, values.numel() // values.shape[-1])
                tokens = max([tokens, *(t.numel() for t in trace.tensors_in(batch) if not t.is_floating_point())])
        return sum(losses) / len(losses), sum(spreads) / max(len(spreads), 1), tokens
