"""One update: the batches' gradients, their norm, clipping, the optimizer. Which way is `train.step`, logged.

auto      graph where it can be used, otherwise eager: see leadline.training.setup
eager     operation by operation; any device
compiled  the same, each block through torch.compile
graph     see leadline.training.graph
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from leadline.config import Config
from leadline.errors import UserError
from leadline.model import Transformer
from leadline.model.block import Block, sublayers
from leadline.model.precision import autocast
from leadline.pulse import Pulse, layers_of
from leadline.tasks import Task
from leadline.training import checkpoint, optim
from leadline.training.events import Watcher
from leadline.world import ALONE, World


class Result(NamedTuple):
    """Still on the device: reading them waits for the step to end."""

    loss: Tensor  # a token
    grad_norm: Tensor
    tokens: int  # in its batches
    watched: list[tuple[dict[str, float], str]]  # what each watcher logs and says
    pulse: Tensor | None = None  # leadline.pulse of every layer, where the step takes it
    skipped: bool = False  # the weights are as they were: it was not accepted


@dataclass(frozen=True)
class Whole:
    """A whole update, of which a process may have only some batches."""

    count: int
    tokens: int
    batches: int

    @classmethod
    def of(cls, batches: Sequence[Any]) -> Whole:
        return cls(sum(batch.count for batch in batches), sum(batch.tokens for batch in batches), len(batches))


Accepts = Callable[[Tensor, Tensor], bool]  # of an update's loss and gradient norm


class Step(Protocol):
    optimizer: torch.optim.Optimizer
    layers: Sequence[str]  # of the pulse it takes
    accepts: Accepts | None  # asked before the weights are changed

    def prepare(self, batch: Any) -> Any:
        """What can be done for a batch before its turn, in another thread."""

    def rehearse(self, batch: Any) -> None:
        """Compute a batch of the task and keep nothing of it: what this way of a step cannot do raises here."""

    def restored(self) -> None:
        """The weights have just been read from a checkpoint."""

    def settle(self) -> None:
        """Before anything else reads the weights: each process then has all of them. All must call it."""

    def gathered(self) -> Any:
        """Something whose `state` is the optimizer's, of all processes, in the one that leads. All must call it."""

    def restore(self, moments: Mapping[str, Tensor]) -> None:
        """The optimizer's state as a checkpoint has it."""

    def __call__(
        self,
        batches: Sequence[Any],
        update: int,
        lr: float,
        watchers: Sequence[Watcher] = (),
        whole: Whole | None = None,
    ) -> Result:
        """`whole`: what all processes together have; their batches of one update, dealt out one by one in turn."""


def make_step(config: Config, task: Task[Any, Any], model: Transformer, world: World = ALONE) -> Step:
    """May move the model's weights to other memory: make it before anything else holds them."""
    if config.train.step == "graph" and config.train.on_spike == "skip":
        raise UserError(
            "train.on_spike=skip: the captured step cannot leave out an update it has begun; use "
            "train.on_spike=rollback, or train.step=eager"
        )
    if config.train.step == "graph":
        require_usable(next(model.parameters()).device)
        from leadline.training import graph

        return graph.GraphStep(config, task, model, world)
    if config.train.step == "compiled":
        compile_blocks(model)
    if world.grouped:
        from leadline.training import parallel

        return parallel.ParallelStep(config, task, model, world)
    return EagerStep(config, task, model)


def require_usable(device: torch.device) -> None:
    """For the captured step."""
    if device.type != "cuda":
        raise UserError(
            f"train.step=graph needs a CUDA device, and this is {device}: use train.step=eager, compiled or auto"
        )
    if importlib.util.find_spec("triton") is None:
        raise UserError("train.step=graph needs triton, which is not installed: use train.step=eager or auto")


def dropout_seed(seed: int, update: int, micro_batch: int) -> int:
    """What dropout draws is a function of these, and not of how the work is cut: a resumed run, an update that is
    watched and whoever computes only some of an update's micro-batches draw the same."""
    return (seed * 1_000_003 + update + micro_batch * 0x9E3779B97F4A7C15) % 2**63


def compile_blocks(model: nn.Module) -> None:
    """Block by block, so that the time to compile does not grow with depth."""
    # Each kind of block (stack, attention, shapes) is one compilation; more than dynamo's 8 are in order.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(dynamic=False)


class EagerStep:
    def __init__(self, config: Config, task: Task[Any, Any], model: Transformer) -> None:
        self.config, self.task, self.model = config, task, model
        self.device = next(model.parameters()).device
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = optim.optimizer(config.optim, model)
        self.pulse = Pulse(layers_of(model, sublayers(model)))
        self.layers: Sequence[str] = self.pulse.names
        self.accepts: Accepts | None = None
        model.use_recompute(config.train.recompute)

    def prepare(self, batch: Any) -> Any:
        return batch

    def rehearse(self, batch: Any) -> None:
        pass

    def restored(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def gathered(self) -> Any:
        return self.optimizer

    def restore(self, moments: Mapping[str, Tensor]) -> None:
        checkpoint.restore_optimizer(self.model, self.optimizer, moments)

    def backward(self, batch: Any, update: int, number: int, count: int) -> Tensor:
        """The loss of micro-batch `number` of an update; its gradients are added to those of the weights."""
        torch.manual_seed(dropout_seed(self.config.train.seed, update, number))
        with autocast(self.device, self.config.train.precision):
            loss = self.task.loss(self.model, batch.to(self.device), count)
        loss.backward()
        return loss.detach()

    def __call__(
        self,
        batches: Sequence[Any],
        update: int,
        lr: float,
        watchers: Sequence[Watcher] = (),
        whole: Whole | None = None,
    ) -> Result:
        whole = whole or Whole.of(batches)
        total = torch.zeros((), device=self.device)
        try:
            for watcher in watchers:
                watcher.begin(self.model)
            for number, batch in enumerate(batches):
                total += self.backward(batch, update, number, whole.count)
        finally:
            for watcher in watchers:
                watcher.seen()
        for watcher in watchers:
            watcher.gradients()
        gradients = {p: p.grad for p in self.parameters if p.grad is not None}
        each = torch._foreach_norm(list(gradients.values()))
        grad_norm = torch.linalg.vector_norm(torch.stack(each))  # as nn.utils.get_total_norm takes it
        if self.accepts and not self.accepts(total, grad_norm):
            self.optimizer.zero_grad(set_to_none=True)
            return Result(total, grad_norm, whole.tokens, [watcher.end(lr) for watcher in watchers], skipped=True)
        norms = dict(zip(gradients, each, strict=True))
        self.pulse.before([norms.get(p) for p in self.pulse.weights])
        if self.config.optim.clip:
            nn.utils.clip_grads_with_norm_(self.parameters, self.config.optim.clip, grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Result(total, grad_norm, whole.tokens, [watcher.end(lr) for watcher in watchers], self.pulse.after())
