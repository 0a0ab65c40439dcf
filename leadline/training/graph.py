"""A whole update captured once and replayed: the host copies a batch and a few numbers, the device does the rest.

Two CUDA graphs: one of a batch's forward and backward pass, one of the update (gradient norm, clipping, optimizer).
They read the batch, the learning rate, the divisor of the loss and the seed of dropout from fixed places on the
device. For an update that somebody watches, the plain model runs over its batches first, so that hooks see its
tensors; the update itself is the same as any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from leadline.config import Config
from leadline.flight import QUANTITIES
from leadline.model import Transformer
from leadline.model.block import sublayers
from leadline.model.operations import PLAIN
from leadline.model.precision import DTYPES, autocast
from leadline.pulse import Pulse, layers_of
from leadline.tasks import Task
from leadline.training import checkpoint, inputs, optim
from leadline.training.events import Watcher
from leadline.training.flat import FlatAdam, fuse
from leadline.training.shared import Shared
from leadline.training.step import Accepts, Result, Whole, dropout_seed
from leadline.world import ALONE, World


@dataclass(frozen=True)
class Prepared:
    batch: Any  # as the task made it
    data: Tensor  # its tensors of fixed shape, in pinned memory

    @property
    def count(self) -> int:
        return self.batch.count

    @property
    def tokens(self) -> int:
        return self.batch.tokens


class Graph(Protocol):
    def replay(self) -> None: ...


class _Again:
    """In place of a CUDA graph where there is none, for tests: the same work, done again."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


class GraphStep:
    def __init__(self, config: Config, task: Task[Any, Any], model: Transformer, world: World = ALONE) -> None:
        self.config, self.task, self.model = config, task, model
        self.device = next(model.parameters()).device
        self.accumulates = config.train.micro_batches > world.size
        spared = optim.spared(config.optim, model)
        self.flat, self.runtime = fuse(model, DTYPES[config.train.precision], self.accumulates, spared, world)
        model.use_recompute(config.train.recompute)
        self.world, self.shared = world, Shared(self.flat, world) if world.grouped else None
        self.optimizer = self._optimizer(spared)
        # Of several processes each has only some of the gradients.
        self.pulse = None if self.shared else Pulse(layers_of(model, sublayers(model)))
        self.layers: Sequence[str] = self.pulse.names if self.pulse else ()
        self.accepts: Accepts | None = None
        self.numbers = torch.zeros(32, dtype=torch.uint8, device=self.device)
        self.control = self.numbers[:12].view(torch.float32)  # what FlatAdam reads
        self.divisor = self.numbers[12:16].view(torch.float32)
        self.runtime.seed = self.numbers[16:24].view(torch.int64)
        self.measured = torch.zeros(2, device=self.device)  # loss and gradient norm
        self.batch: Any = None  # on the device, at its fixed place
        self.data = torch.empty(0)
        self.stream: torch.cuda.Stream | None = None  # of everything that is captured
        self.backward: Graph | None = None
        self.update: Graph | None = None

    def _optimizer(self, spared: set[nn.Parameter]) -> torch.optim.Optimizer:
        config, shard = self.config.optim, self.shared.shard if self.shared else None
        if config.name in ("adam", "adamw"):
            return FlatAdam(self.flat, config, shard)
        return shard.optimizer(config, spared) if shard else optim.optimizer(config, self.model)

    def prepare(self, batch: Any) -> Prepared:
        return Prepared(batch, inputs.to_bytes(batch.fixed(), pinned=self.device.type == "cuda"))

    def restored(self) -> None:
        self.flat.refresh()

    def rehearse(self, batch: Any) -> None:
        """Also captures the update once, so that what only fails then fails before anything is written."""
        self._place(self.prepare(batch))
        if self.device.type == "cuda":
            self._graph(self._forward_backward, rehearsal=self._forward_backward)
        else:
            self._forward_backward()
        if isinstance(self.optimizer, FlatAdam):
            self.optimizer.compile()
        self._forget()
        self.batch, self.data = None, torch.empty(0)
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # what fails on the device fails here

    def settle(self) -> None:
        if self.shared:
            self.shared.settle()

    def gathered(self) -> Any:
        return self.shared.shard.gathered(self.optimizer) if self.shared else self.optimizer

    def restore(self, moments: Mapping[str, Tensor]) -> None:
        if self.shared:
            self.shared.shard.restore(self.optimizer, self.model, moments)
        else:
            checkpoint.restore_optimizer(self.model, self.optimizer, moments)

    def __call__(
        self,
        batches: Sequence[Prepared],
        update: int,
        lr: float,
        watchers: Sequence[Watcher] = (),
        whole: Whole | None = None,
    ) -> Result:
        whole = whole or Whole.of(batches)
        if self.shared:
            self.shared.begin()
        control = self.optimizer.control(lr) if isinstance(self.optimizer, FlatAdam) else [lr, 1.0, 1.0]
        if watchers:
            self.settle()
            self._show(batches, update, whole.count, watchers)
        if self.backward is None and batches:
            self._capture(batches[0])
        if not batches:  # the other processes have the last ones of an epoch
            self.flat.gradients.zero_()
            self._send(control, whole.count, 0)
        for number, batch in self._numbered(batches):
            assert self.backward is not None
            self._send(control, whole.count, dropout_seed(self.config.train.seed, update, number))
            self.data.copy_(batch.data, non_blocking=True)
            self.backward.replay()
        if watchers:
            self._show_gradients(watchers)
        # What is captured takes no pulse; around it there is one where the loop reads numbers anyway.
        pulse = self.pulse if update % self.config.train.log_every == 0 else None
        if pulse:
            pulse.forget()
            pulse.before(torch._foreach_norm([self.flat.view(self.flat.gradients, p) for p in pulse.weights]))
        self._update(lr)
        pulsed = pulse.after()[: QUANTITIES.index("outside")] if pulse else None
        if watchers:
            self.settle()
        loss, norm = self.measured.clone().unbind()
        self.measured.zero_()
        return Result(loss, norm, whole.tokens, [watcher.end(lr) for watcher in watchers], pulsed)

    def _numbered(self, batches: Sequence[Prepared]) -> Iterator[tuple[int, Prepared]]:
        """With their numbers among the micro-batches of all processes."""
        return zip(itertools.count(self.world.rank, self.world.size), batches, strict=False)

    def _send(self, control: list[float], count: int, seed: int) -> None:
        host = np.zeros(32, dtype=np.uint8)
        host[:16].view(np.float32)[:] = [*control, count]
        host[16:24].view(np.int64)[:] = seed
        numbers = torch.from_numpy(host)
        self.numbers.copy_(numbers.pin_memory() if self.device.type == "cuda" else numbers, non_blocking=True)

    def _forward_backward(self) -> None:
        loss = self.task.loss(self.model, self.batch, self.divisor)
        loss.backward()
        self.runtime.join()
        self.measured[0] += loss.detach()

    def _update(self, lr: float) -> None:
        """The collectives of several processes are captured too, or stand around what is."""
        around = self.shared if self.shared and not (self.world.nccl and isinstance(self.optimizer, FlatAdam)) else None
        if around:
            around.reduce(self.measured)
        if self.update is not None:
            self.update.replay()
        elif isinstance(self.optimizer, FlatAdam):
            self._captured_update(self.optimizer)
        else:
            self._plain_update(lr)
        if around:
            around.collect()

    def _captured_update(self, optimizer: FlatAdam) -> None:
        within = self.shared if self.world.nccl else None
        if within:
            within.reduce(self.measured)
        optimizer.update(self.control, self.measured[1])
        if within:
            within.collect()
        self.flat.forget_gradients(self.accumulates)

    def _plain_update(self, lr: float) -> None:
        if not self.shared:
            self.measured[1] = torch.linalg.vector_norm(self.flat.gradients)
        if self.config.optim.clip:
            self.flat.gradients *= (self.config.optim.clip / (self.measured[1] + 1e-6)).clamp(max=1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        for piece in self.shared.shard.pieces if self.shared else ():
            piece.own.grad = self.flat.gradients[piece.place]
        self.optimizer.step()
        self.shared.refresh_own() if self.shared else self.flat.refresh()
        self.flat.forget_gradients(self.accumulates)

    def _place(self, batch: Prepared) -> None:
        """The memory that batches are copied to, with this one in it."""
        self.data = torch.empty_like(batch.data, device=self.device)
        self.data.copy_(batch.data)
        self.batch = inputs.views(batch.batch.fixed(), self.data)
        self._send([0.0, 1.0, 1.0], batch.count, 0)

    def _forget(self) -> None:
        self.flat.gradients.zero_()
        self.measured.zero_()

    def _capture(self, batch: Prepared) -> None:
        self._place(batch)
        self.backward = self._graph(self._forward_backward, rehearsal=self._forward_backward)
        if isinstance(self.optimizer, FlatAdam):
            optimizer = self.optimizer
            self.update = self._graph(lambda: self._captured_update(optimizer), rehearsal=optimizer.compile)
        self._forget()

    def _graph(self, work: Callable[[], None], rehearsal: Callable[[], None]) -> Graph:
        """`rehearsal` is done first and uncaptured: kernels are compiled and workspaces allocated."""
        if self.device.type != "cuda":
            return _Again(work)
        # Before what is done aside: the device then never keeps the backward pass waiting for gradients of weights. One
        # stream for all: a weight's node in autograd's graph keeps the stream of its first use for as long as it lives.
        stream = self.stream = self.stream or torch.cuda.Stream(self.device, priority=-1)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            rehearsal()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the capture allocates its own
        graph = torch.cuda.CUDAGraph()
        # thread_local: other threads (input, checkpoints) may use the device meanwhile
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            work()
        return graph

    @torch.no_grad()
    def _show(self, batches: Sequence[Prepared], update: int, count: int, watchers: Sequence[Watcher]) -> None:
        """The plain model's forward pass over the batches of an update, for the hooks of those who watch."""
        try:
            for watcher in watchers:
                watcher.begin(self.model)
            with self.model.using(PLAIN):
                for number, batch in self._numbered(batches):
                    torch.manual_seed(dropout_seed(self.config.train.seed, update, number))
                    with autocast(self.device, self.config.train.precision):
                        self.task.loss(self.model, batch.batch.to(self.device), count)
        finally:
            for watcher in watchers:
                watcher.seen()

    def _show_gradients(self, watchers: Sequence[Watcher]) -> None:
        """Those of all processes, for as long as somebody looks."""
        own = self.flat.gradients.clone() if self.shared else None
        if own is not None:
            self.world.add(self.flat.gradients)
        for watcher in watchers:
            watcher.gradients()
        if own is not None:
            self.flat.gradients.copy_(own)
