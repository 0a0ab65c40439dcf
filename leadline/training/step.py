"""One update: the batches' gradients, their norm, clipping, the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leadline.config import Config
from leadline.kernels.attention import ATTENTION
from leadline.model import Transformer
from leadline.model.block import Block
from leadline.model.layers import Attention
from leadline.model.precision import autocast
from leadline.tasks import Task
from leadline.training.events import Watcher


class Result(NamedTuple):
    """Still on the device: reading them waits for the step to end."""

    loss: Tensor  # a token
    grad_norm: Tensor
    tokens: int  # that the loss is a mean over
    watched: list[tuple[dict[str, float], str]]  # what each watcher logs and says


Step = Callable[[Sequence[Any], int, float, Sequence[Watcher]], Result]


def compile_blocks(model: nn.Module) -> None:
    """Block by block, so that the time to compile does not grow with depth."""
    for module in model.modules():
        if isinstance(module, Attention) and module.kernel is ATTENTION["padded"]:
            # Its groups differ from batch to batch: compiled, it would be compiled again and again.
            module.kernel = torch.compiler.disable(module.kernel)
        if isinstance(module, Block):
            module.compile(dynamic=False)


def make_step(config: Config, task: Task, model: Transformer, optimizer: torch.optim.Optimizer) -> Step:
    device = next(model.parameters()).device
    parameters = [p for p in model.parameters() if p.requires_grad]

    def step(batches: Sequence[Any], update: int, lr: float, watchers: Sequence[Watcher] = ()) -> Result:
        for watcher in watchers:
            watcher.begin(model)
        # Dropout is a function of (seed, update): a resumed run draws what the whole run would have drawn.
        torch.manual_seed(config.train.seed * 1_000_003 + update)
        count = sum(batch.count for batch in batches)
        total = torch.zeros((), device=device)
        for batch in batches:
            with autocast(device, config.train.precision):
                loss_sum, _ = task.loss(model, batch.to(device))
            (loss_sum / count).backward()
            total += loss_sum.detach()
        for watcher in watchers:
            watcher.gradients()
        gradients = [p.grad for p in parameters if p.grad is not None]
        grad_norm = nn.utils.get_total_norm(gradients)
        if config.optim.clip:
            nn.utils.clip_grads_with_norm_(parameters, config.optim.clip, grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return Result(total / count, grad_norm, count, [watcher.end(lr) for watcher in watchers])

    return step
