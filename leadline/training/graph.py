"""A whole update captured once and replayed: the host copies a batch and a few numbers, the device does the rest.

Two CUDA graphs: one of a batch's forward and backward pass, one of the update (gradient norm, clipping, optimizer).
They read the batch, the learning rate, the divisor of the loss and the seed of dropout from fixed places on the
device. For an update that somebody watches, the plain model runs over its batches first, so that hooks see its
tensors; the update itself is the same as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from leadline.config import Config
from leadline.errors import UserError
from leadline.model import Transformer
from leadline.model.operations import PLAIN
from leadline.model.precision import DTYPES, autocast
from leadline.tasks import Task
from leadline.training import inputs, optim
from leadline.training.events import Watcher
from leadline.training.flat import FlatAdam, fuse
from leadline.training.step import Result, dropout_seed


def require_usable(device: torch.device) -> None:
    if device.type != "cuda":
        raise UserError(f"train.step=graph needs a CUDA device, and this is {device}: use train.step=eager or compiled")
    try:
        import triton  # noqa: F401
    except ImportError:
        raise UserError("train.step=graph needs triton, which is not installed: use train.step=eager") from None


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
    def __init__(self, config: Config, task: Task[Any, Any], model: Transformer) -> None:
        self.config, self.task, self.model = config, task, model
        self.device = next(model.parameters()).device
        self.accumulates = config.train.accumulate > 1
        self.flat, self.runtime = fuse(model, DTYPES[config.train.precision], self.accumulates)
        model.use_recompute(config.train.recompute)
        own = config.optim.name in ("adam", "adamw")
        self.optimizer = FlatAdam(self.flat, config.optim) if own else optim.optimizer(config.optim, model)
        self.numbers = torch.zeros(32, dtype=torch.uint8, device=self.device)
        self.control = self.numbers[:12].view(torch.float32)  # what FlatAdam reads
        self.divisor = self.numbers[12:16].view(torch.float32)
        self.runtime.seed = self.numbers[16:24].view(torch.int64)
        self.found = torch.zeros(2, device=self.device)  # loss and gradient norm
        self.batch: Any = None  # on the device, at its fixed place
        self.data = torch.empty(0)
        self.backward: Graph | None = None
        self.update: Graph | None = None

    def prepare(self, batch: Any) -> Prepared:
        return Prepared(batch, inputs.to_bytes(batch.fixed(), pinned=self.device.type == "cuda"))

    def restored(self) -> None:
        self.flat.refresh()

    def __call__(self, batches: Sequence[Prepared], update: int, lr: float, watchers: Sequence[Watcher] = ()) -> Result:
        count = sum(batch.count for batch in batches)
        control = self.optimizer.control(lr) if isinstance(self.optimizer, FlatAdam) else [lr, 1.0, 1.0]
        if watchers:
            self._show(batches, update, count, watchers)
        if self.backward is None:
            self._capture(batches[0])
        assert self.backward is not None
        for number, batch in enumerate(batches):
            self._send(control, count, dropout_seed(self.config.train.seed, update, number))
            self.data.copy_(batch.data, non_blocking=True)
            self.backward.replay()
        for watcher in watchers:
            watcher.gradients()
        self._update(lr)
        loss, norm = self.found.clone().unbind()
        self.found.zero_()
        return Result(loss, norm, sum(batch.tokens for batch in batches), [watcher.end(lr) for watcher in watchers])

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
        self.found[0] += loss.detach()

    def _update(self, lr: float) -> None:
        if self.update is not None:
            self.update.replay()
            return
        if isinstance(self.optimizer, FlatAdam):
            self._captured_update(self.optimizer)
            return
        self.found[1] = torch.linalg.vector_norm(self.flat.gradients)
        if self.config.optim.clip:
            self.flat.gradients *= (self.config.optim.clip / (self.found[1] + 1e-6)).clamp(max=1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.flat.refresh()
        self.flat.forget_gradients(self.accumulates)

    def _captured_update(self, optimizer: FlatAdam) -> None:
        optimizer.update(self.control, self.found[1])
        self.flat.forget_gradients(self.accumulates)

    def _capture(self, batch: Prepared) -> None:
        self.data = torch.empty_like(batch.data, device=self.device)
        self.data.copy_(batch.data)
        self.batch = inputs.views(batch.batch.fixed(), self.data)
        self._send([0.0, 1.0, 1.0], batch.count, 0)
        self.backward = self._graph(self._forward_backward, rehearsal=self._forward_backward)
        if isinstance(self.optimizer, FlatAdam):
            optimizer = self.optimizer
            self.update = self._graph(lambda: self._captured_update(optimizer), rehearsal=optimizer.compile)
        self.flat.gradients.zero_()
        self.found.zero_()

    def _graph(self, work: Callable[[], None], rehearsal: Callable[[], None]) -> Graph:
        """`rehearsal` is done first and uncaptured: kernels are compiled and workspaces allocated."""
        if self.device.type != "cuda":
            return _Again(work)
        # Before what is done aside: the device then never keeps the way back waiting for gradients of weights.
        stream = torch.cuda.Stream(self.device, priority=-1)
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
                for number, batch in enumerate(batches):
                    torch.manual_seed(dropout_seed(self.config.train.seed, update, number))
                    with autocast(self.device, self.config.train.precision):
                        self.task.loss(self.model, batch.batch.to(self.device), count)
        finally:
            for watcher in watchers:
                watcher.seen()
