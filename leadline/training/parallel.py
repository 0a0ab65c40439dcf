"""The eager update by several processes: each computes some micro-batches, then updates its slice of the weights.

On CPUs the gradients of all micro-batches are added one by one in their order, as a single process adds them: the same
bits, however many processes there are. On GPUs each process adds up its own, and a reduce-scatter those sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leadline.config import Config
from leadline.model import Transformer
from leadline.tasks import Task
from leadline.training import optim
from leadline.training.events import Watcher
from leadline.training.shard import ALIGN, Shard, lay_out, padded
from leadline.training.step import EagerStep, Result, Whole
from leadline.world import World


class ParallelStep(EagerStep):
    def __init__(self, config: Config, task: Task[Any, Any], model: Transformer, world: World) -> None:
        super().__init__(config, task, model)
        self.world, self.ordered = world, self.device.type == "cpu"
        self.spans, size = lay_out(self.parameters)
        self.size = padded(size, world)
        self.weights = torch.zeros(self.size, device=self.device)
        for p in self.parameters:
            view = self._view(self.weights, p)
            view.copy_(p.data)
            p.data = view
        self.shard = Shard(self.weights, self.spans, world)
        self.optimizer = self.shard.optimizer(config.optim, optim.spared(config.optim, model))
        self.sum = torch.zeros(self.size + ALIGN, device=self.device)  # gradients, and behind them the loss
        self.begun = False
        self.pulsed = self.ordered and world.leads  # otherwise it has only its slice of the gradients
        if not self.pulsed:
            self.layers = ()

    def gathered(self) -> Any:
        return self.shard.gathered(self.optimizer)

    def restore(self, moments: Mapping[str, Tensor]) -> None:
        self.shard.restore(self.optimizer, self.model, moments)

    def __call__(
        self,
        batches: Sequence[Any],
        update: int,
        lr: float,
        watchers: Sequence[Watcher] = (),
        whole: Whole | None = None,
    ) -> Result:
        whole, world = whole or Whole.of(batches), self.world
        if not self.begun:  # machines that differ may have begun with weights that differ in the last bit
            world.broadcast(self.weights, 0)
            self.begun = True
        try:
            for watcher in watchers:
                watcher.begin(self.model)
            self.sum.zero_()
            for begin in range(0, whole.batches, world.size):
                turn = begin // world.size
                own = None
                if turn < len(batches):
                    own = self._taken(self.backward(batches[turn], update, begin + world.rank, whole.count))
                self._add(own, begin, min(world.size, whole.batches - begin))
        finally:
            for watcher in watchers:
                watcher.seen()
        if watchers:
            self._show(watchers)
        loss, grad_norm = self._reduced()
        if self.accepts and not self.accepts(loss, grad_norm):
            return Result(loss, grad_norm, whole.tokens, [watcher.end(lr) for watcher in watchers], skipped=True)
        if self.pulsed:
            self.pulse.before(torch._foreach_norm([self._view(self.sum, p) for p in self.pulse.weights]))
        pieces = [piece.own for piece in self.shard.pieces]
        for piece in self.shard.pieces:
            piece.own.grad = self.sum[piece.place]
        if self.config.optim.clip:
            nn.utils.clip_grads_with_norm_(pieces, self.config.optim.clip, grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        world.collect(self.weights)
        pulse = self.pulse.after() if self.pulsed else None
        return Result(loss, grad_norm, whole.tokens, [watcher.end(lr) for watcher in watchers], pulse)

    def _view(self, flat: Tensor, parameter: Tensor) -> Tensor:
        return flat[self.spans[parameter]].view(parameter.shape)

    def _taken(self, loss: Tensor) -> Tensor:
        """The gradients of one micro-batch end to end, and its loss."""
        own = torch.zeros_like(self.sum)
        for p in self.parameters:
            if p.grad is not None:
                self._view(own, p).copy_(p.grad)
                p.grad = None
        own[self.size] = loss
        return own

    def _add(self, own: Tensor | None, begin: int, present: int) -> None:
        """Micro-batches `begin` and after, one of each of the first `present` processes, to the sum."""
        if not self.ordered:
            if own is not None:
                self.sum += own
            return
        for source in range(present):
            theirs = own if own is not None and source == self.world.rank else torch.empty_like(self.sum)
            self.world.broadcast(theirs, source)
            if begin + source:
                self.sum += theirs
            else:
                self.sum.copy_(theirs)

    def _reduced(self) -> tuple[Tensor, Tensor]:
        """Loss and gradient norm of the whole update; the own slice of the sum is then that of all processes."""
        if self.ordered:  # it is the whole sum already, and its norm is taken as EagerStep does
            return self.sum[self.size].clone(), nn.utils.get_total_norm(
                [self._view(self.sum, p) for p in self.parameters]
            )
        own = self.world.add_up_slice(self.sum[: self.size])
        numbers = torch.stack([self.sum[self.size], torch.linalg.vector_norm(own).square()])
        self.world.add(numbers)
        return numbers[0], numbers[1].sqrt()

    def _show(self, watchers: Sequence[Watcher]) -> None:
        """All gradients, where those who watch look for them."""
        everything = self.sum.clone()
        if not self.ordered:
            self.world.add(everything)
        for p in self.parameters:
            p.grad = self._view(everything, p)
        for watcher in watchers:
            watcher.gradients()
        for p in self.parameters:
            p.grad = None
