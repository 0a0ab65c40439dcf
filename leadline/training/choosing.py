"""`optim.lr=auto` and `optim.warmup=auto`: numbers for both before a training begins, from short trainings of it.

They use the training's own updates (batches, clipping, precision, weight decay) from its own start, step by step.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from leadline import rates
from leadline.config import Config
from leadline.data.store import Store
from leadline.errors import UserError
from leadline.model.precision import autocast
from leadline.rates import Ended, diversity
from leadline.tasks.base import Batch
from leadline.training.device import release_memory
from leadline.training.events import OnStep
from leadline.training.optim import schedule
from leadline.training.setup import Setup, set_up
from leadline.world import World

CLASSES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "radam": "RAdam", "muon": "Muon"}


def chosen(
    folder: Path,
    config: Config,
    store: Store,
    on_step: Sequence[OnStep],
    world: World,
    begin: Callable[[Setup], object],
    signals: Sequence[int] = (),
) -> tuple[Config, dict[str, str]]:
    """The config with numbers, and why these, by key. `begin` gives a model the weights it starts from."""
    optim = config.optim
    if "auto" not in (optim.lr, optim.warmup):
        return config, {}
    if optim.schedule == "inverse_sqrt" and optim.warmup != "auto" and optim.warmup <= 1:
        raise UserError(
            "optim.lr=auto: inverse_sqrt without warm-up falls from the first update on, so that the rate it begins "
            "with says little: set optim.warmup=auto too, or another optim.schedule"
        )
    known = config.set(optim={"lr": 1e-3 if optim.lr == "auto" else optim.lr, "warmup": 1})
    plain = known.set(train={"step": "eager"})
    setup = set_up(folder, plain, store, on_step)
    reasons, rate = {}, known.optim.known_lr
    warm = rates.warmup(setup.total) if optim.warmup == "auto" else optim.warmup
    if optim.warmup == "auto":
        reasons["optim.warmup"] = f"auto: a tenth of {setup.total} updates, at most {rates.LONGEST_WARMUP}"
    if optim.lr == "auto":
        begin(setup)
        look = _Look(setup, config.set(optim={"lr": 1.0, "warmup": warm}), signals)
        allowed = look.budget(world.size)
        if world.leads:
            setup.tell("message", 0, message=f"choosing a learning rate: up to {allowed} updates at several rates …")
        rate, tried = rates.search(look, rates.ladder(CLASSES[optim.name]), allowed, setup.total)
        reasons["optim.lr"] = f"auto: {rates.choice(rate, warm, setup.total, tried).reason}"
        del look  # it holds the setup
    del setup
    release_memory()
    rate, reasons = world.gather([rate, reasons])[0]
    return config.set(optim={"lr": rate, "warmup": warm}), reasons


class _Look:
    """A short training at a rate, from where the model stands now; one of all updates has the training's schedule."""

    def __init__(self, setup: Setup, config: Config, signals: Sequence[int]) -> None:
        self.setup, self.signals, self.plan = setup, signals, setup.epoch(0)
        self.warmup = config.optim.known_warmup
        self.schedule = schedule(config.optim, setup.total, setup.updates_per_epoch)
        if len(self.plan) < 2:
            raise UserError(
                "optim.lr=auto looks at batches that it does not train on, and the data is one batch: make "
                "train.batch_tokens smaller, or give optim.lr a number"
            )
        self.trained_on = len(self.plan) - min(rates.OTHER, len(self.plan) // 2)
        self.tensors = [*setup.model.parameters(), *setup.model.buffers()]
        self.start = [tensor.detach().clone() for tensor in self.tensors]
        self.diversity = self._looked()[1]

    def budget(self, processes: int) -> int:
        train, model = self.setup.config.train, self.setup.model
        weights = sum(p.numel() for p in model.parameters())
        operations = 6.0 * weights * train.batch_tokens * train.micro_batches
        return rates.budget(self.setup.total, operations, self.setup.device.type, processes)

    def __call__(self, rate: float, updates: int) -> Ended:
        setup = self.setup
        with torch.no_grad():
            for tensor, value in zip(self.tensors, self.start, strict=True):
                tensor.copy_(value)
        setup.step.optimizer.state.clear()
        setup.model.train()
        many = setup.config.train.micro_batches
        for update in range(1, updates + 1):
            batches = [self._batch(at % self.trained_on) for at in range((update - 1) * many, update * many)]
            result = setup.step(batches, update, rate * self._share(update, updates))
            if self.signals:  # there is nothing to save yet
                raise KeyboardInterrupt if self.signals[0] == signal.SIGINT else SystemExit(128 + self.signals[0])
            if not torch.isfinite(result.loss):
                return Ended(math.inf)
        loss, spread = self._looked()
        return Ended(loss, spread / max(self.diversity, 1e-9))

    def _share(self, update: int, updates: int) -> float:
        if updates == self.setup.total:
            return self.schedule(update)
        return rates.risen(update, updates, self.setup.total, self.warmup)

    def _batch(self, number: int) -> Batch:
        return self.setup.task.collate(self.plan[number])

    @torch.no_grad()
    def _looked(self) -> tuple[float, float]:
        """The loss of the batches that are not trained on, and how much of their hidden states differs."""
        setup, model = self.setup, self.setup.model
        losses, counts, spreads = 0.0, 0, []
        model.eval()
        with autocast(setup.device, setup.config.train.precision):
            for number in range(self.trained_on, len(self.plan)):
                batch = self._batch(number).to(setup.device)
                hidden: Tensor = setup.task.hidden(model, batch)
                losses += float(setup.task.loss_of_hidden(model, hidden, batch))
                spreads.append(diversity(hidden.float()))
                counts += batch.count
        return losses / counts, sum(spreads) / len(spreads)
