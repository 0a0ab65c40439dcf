"""What running and training a model moves besides its output, and how it is put back: state and random numbers."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Undo = Callable[[], object]


@contextlib.contextmanager
def seeded(seed: int = 0, model: nn.Module | None = None) -> Iterator[None]:
    """What is drawn within is the same every time, and the caller's random numbers are left as they were."""
    with random_kept(model.modules() if model else ()):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        yield


@contextlib.contextmanager
def random_kept(holders: Iterable[object] = ()) -> Iterator[None]:
    """Nothing drawn within is missing afterwards: torch's, Python's, NumPy's numbers, and of generators they hold."""
    undo = [_random_of(value) for holder in holders for value in vars(holder).values()]
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            for put_back in undo:
                put_back()


def _random_of(value: object) -> Undo:
    """What puts a generator back to where it stands; of anything else, nothing."""
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, np.random.Generator):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random):
        return partial(value.setstate, value.getstate())
    return lambda: None


def sources_of(batches: object) -> list[object]:
    """Of a DataLoader, everything that may hold a generator."""
    if not isinstance(batches, torch.utils.data.DataLoader):
        return []
    parts = [batches, batches.sampler, batches.batch_sampler, getattr(batches.batch_sampler, "sampler", None)]
    return [part for part in (*parts, batches.dataset) if hasattr(part, "__dict__")]


@contextlib.contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Buffers written, replaced or registered within are afterwards as they were."""
    held = [(m, dict(m._buffers), set(m._non_persistent_buffers_set)) for m in model.modules()]
    values = _values(model.buffers())
    try:
        yield
    finally:
        for module, buffers, transient in held:
            _refill(module._buffers, buffers)
            module._non_persistent_buffers_set.clear()
            module._non_persistent_buffers_set.update(transient)
        _put_back(values)


@contextlib.contextmanager
def restored(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[dict[Tensor, Tensor]]:
    """Whatever happens within, weights, buffers, gradients and optimizer are afterwards as they were.

    Within, what each weight was is at hand.
    """
    held = [(m, dict(m._parameters)) for m in model.modules()]
    values = _values(model.parameters())
    gradients = [(p, p.grad) for p in model.parameters()]
    state, groups = dict(optimizer.state), [dict(group) for group in optimizer.param_groups]
    optimizer.state.clear()  # what it held is not touched by the steps
    if isinstance(optimizer, torch.optim.Adagrad):  # makes its state when it is made, and needs it
        optimizer.state.update({p: copy.deepcopy(held) for p, held in state.items()})
    for p, _ in gradients:
        p.grad = None
    try:
        with buffers_kept(model):
            yield dict(values)
    finally:
        for module, parameters in held:
            _refill(module._parameters, parameters)
        _put_back(values)
        for p, gradient in gradients:
            p.grad = gradient
        _refill(optimizer.state, state)
        for group, old in zip(optimizer.param_groups, groups, strict=True):
            _refill(group, old)


def _values(tensors: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(t, t.detach().clone()) for t in tensors]


def _put_back(values: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for tensor, value in values:
            if tensor.shape == value.shape and tensor.dtype == value.dtype:
                tensor.copy_(value)
            else:
                tensor.data = value


def _refill(holder: Any, contents: dict[Any, Any]) -> None:
    holder.clear()
    holder.update(contents)
