"""One update: the batches' gradients, their norm, clipping, the optimizer. Which way is `train.step`, logged.

eager     operation by operation; any device
compiled  the same, each block through torch.compile
graph     see leadline.training.graph
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from leadline.config import Config
from leadline.model import Transformer
from leadline.model.block import Block
from leadline.model.precision import autocast
from leadline.tasks import Task
from leadline.training import optim
from leadline.training.events import Watcher


class Result(NamedTuple):
    """Still on the device: reading them waits for the step to end."""

    loss: Tensor  # a token
    grad_norm: Tensor
    tokens: int  # in its batches
    watched: list[tuple[dict[str, float], str]]  # what each watcher logs and says


class Step(Protocol):
    optimizer: torch.optim.Optimizer

    def prepare(self, batch: Any) -> Any:
        """What can be done for a batch before its turn, in another thread."""

    def restored(self) -> None:
        """The weights have just been read from a checkpoint."""

    def __call__(self, batches: Sequence[Any], update: int, lr: float, watchers: Sequence[Watcher] = ()) -> Result: ...


def make_step(config: Config, task: Task[Any, Any], model: Transformer) -> Step:
    """May move the model's weights to other memory: make it before anything else holds them."""
    if config.train.step == "graph":
        from leadline.training import graph

        graph.require_usable(next(model.parameters()).device)
        return graph.GraphStep(config, task, model)
    if config.train.step == "compiled":
        compile_blocks(model)
    return EagerStep(config, task, model)


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
        model.use_recompute(config.train.recompute)

    def prepare(self, batch: Any) -> Any:
        return batch

    def restored(self) -> None:
        pass

    def __call__(self, batches: Sequence[Any], update: int, lr: float, watchers: Sequence[Watcher] = ()) -> Result:
        count = sum(batch.count for batch in batches)
        total = torch.zeros((), device=self.device)
        try:
            for watcher in watchers:
                watcher.begin(self.model)
            for number, batch in enumerate(batches):
                torch.manual_seed(dropout_seed(self.config.train.seed, update, number))
                with autocast(self.device, self.config.train.precision):
                    loss = self.task.loss(self.model, batch.to(self.device), count)
                loss.backward()
                total += loss.detach()
        finally:
            for watcher in watchers:
                watcher.seen()
        for watcher in watchers:
            watcher.gradients()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        grad_norm = nn.utils.get_total_norm(gradients)
        if self.config.optim.clip:
            nn.utils.clip_grads_with_norm_(self.parameters, self.config.optim.clip, grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Result(
            total, grad_norm, sum(batch.tokens for batch in batches), [watcher.end(lr) for watcher in watchers]
        )
