"""What a training is made of before its first update: task, model, attention and the way of a step.

`train.step=auto` is the captured step where it can be used, and otherwise the eager one with a sentence that says why.
Whether it can be used is tried: on the first batch, before anything is written.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from leadline import tasks
from leadline.config import Config
from leadline.data.store import Store
from leadline.errors import UserError
from leadline.kernels import attention
from leadline.model import Transformer
from leadline.model.operations import PLAIN
from leadline.model.precision import autocast
from leadline.placement import find
from leadline.placement.base import Placement
from leadline.training import optim
from leadline.training.device import find_device, release_memory, require_memory, telling_of_memory
from leadline.training.events import Event, EventKind, OnStep, Watcher
from leadline.training.step import Step, make_step
from leadline.world import ALONE, World


@dataclass(frozen=True)
class Setup:
    """What the parts of one training share."""

    folder: Path
    config: Config  # with the way of a step that was chosen
    task: tasks.AnyTask
    device: torch.device
    model: Transformer
    attention: str  # the kernel chosen
    step: Step
    epoch: Callable[[int], Sequence[np.ndarray]]  # the task's, of which the last is kept
    not_captured: str  # why train.step=auto is the eager step here
    updates_per_epoch: int
    total: int
    on_step: Sequence[OnStep]
    world: World

    @functools.cached_property
    def rate(self) -> Callable[[int], float]:
        """The learning rate of an update."""
        return optim.schedule(self.config.optim, self.total, self.updates_per_epoch)

    def watchers(self) -> list[Watcher]:
        functions: Sequence[object] = self.on_step
        for function in functions:
            if hasattr(function, "due") and not isinstance(function, Watcher):
                raise UserError(
                    f"{type(function).__name__} has 'due' but not all of begin, seen, gradients and end: see "
                    "leadline.training.events.Watcher"
                )
        return [function for function in functions if isinstance(function, Watcher)]

    def tell(self, kind: EventKind, update: int, row: dict[str, float] | None = None, message: str = "") -> None:
        for function in self.on_step if self.world.leads else ():
            function(Event(kind, update, self.total, row or {}, message))


class _Built(NamedTuple):
    model: Transformer
    attention: str
    step: Step


def set_up(
    folder: Path,
    config: Config,
    store: Store,
    on_step: Sequence[OnStep],
    updates_per_epoch: int = 0,
    world: World = ALONE,
) -> Setup:
    """What cannot work fails here, before anything is written.

    Where the updates of an epoch are known, the first epoch is planned only if its first batch is looked at, because
    millions of rows take seconds.
    """
    if world.size > config.train.micro_batches:
        raise UserError(
            f"{world.size} processes are too many for {config.train.micro_batches} batches an update: start fewer, or "
            f"set train.global_tokens={world.size * config.train.batch_tokens} (or train.accumulate)"
        )
    device = find_device(config.train.device)
    require_memory(config, store.manifest["vocab_size"], device, world.size)
    task = tasks.find(config.task)(config, store)
    epoch = functools.lru_cache(maxsize=1)(task.epoch)
    calibrates = any("calibrate" in vars(kind) for kind in find(config.model.placement).__mro__ if kind != Placement)
    looks = not updates_per_epoch or calibrates or config.train.step == "auto"
    with telling_of_memory(config):
        config, built, why = _chosen(config, task, device, task.collate(epoch(0)[0]) if looks else None, world)
    updates_per_epoch = updates_per_epoch or math.ceil(len(epoch(0)) / config.train.micro_batches)
    limits = [config.train.updates, config.train.epochs * updates_per_epoch]
    total = min(limit for limit in limits if limit)
    return Setup(folder, config, task, device, *built, epoch, why, updates_per_epoch, total, on_step, world)


def _chosen(
    config: Config, task: tasks.AnyTask, device: torch.device, batch: Any, world: World
) -> tuple[Config, _Built, str]:
    """The config with the way of a step that it is, what was built for that, and why it is not the captured one.

    Processes of one training all go the same way.
    """
    if config.train.step != "auto":
        return config, _build(config, task, device, batch, world), ""
    built = None
    if config.train.on_spike == "skip":
        why = "the captured one cannot leave out an update, as train.on_spike=skip asks"
    elif not (why := not_capturable(device, config.train.precision)):
        captured = config.set(train={"step": "graph"})
        try:
            built = _build(captured, task, device, batch, world)
            built.step.rehearse(batch)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # whatever it is, the eager step does without
            told = str(error).strip().partition("\n")[0]
            why = f"the captured one failed on the first batch: {type(error).__name__}: {told}"
    why = next(filter(None, world.gather(why)), "")
    if built and not why:
        return captured, built, ""
    del built
    release_memory()
    eager = config.set(train={"step": "eager"})
    return eager, _build(eager, task, device, batch, world), why


def not_capturable(device: torch.device, precision: str) -> str:
    """Why the captured step cannot or should not be used here; nothing where it can be tried."""
    if device.type != "cuda" or torch.version.hip:
        return "the captured one needs an NVIDIA GPU"
    if (capability := torch.cuda.get_device_capability(device)) < (8, 0):
        return f"the captured one needs compute capability 8.0, and this GPU has {'.'.join(map(str, capability))}"
    if precision != "bf16":
        return f"the captured one is tuned for bf16, and this is {precision}"
    try:
        import triton  # noqa: F401
    except ImportError:
        return "the captured one needs triton, which is not installed"
    return ""


def _build(config: Config, task: tasks.AnyTask, device: torch.device, batch: Any, world: World) -> _Built:
    model = task.build_model().to(device)
    kernel = attention.choose(device, config.train.precision, config.model.head_width, config.model.attention_dropout)
    model.use_attention(kernel)
    with autocast(device, config.train.precision):
        model.calibrate(lambda: task.loss(model, batch.to(device), 1.0))
    step = make_step(config, task, model, world)
    return _Built(model, kernel if model.ops is PLAIN else "fused", step)
