"""Whatever an inspection meets, everything is afterwards as it was, bit by bit, and what went wrong is one sentence."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leadline
from leadline.errors import UserError

DIM, VOCAB = 16, 20


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        raise KeyError("labels")


class Restless(nn.Module):
    """Draws from every generator there is, and writes, replaces and registers buffers as it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(VOCAB, DIM), nn.Dropout(0.1)
        self.up, self.down, self.norm = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM), nn.LayerNorm(DIM)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(3), persistent=False)
        self.generator, self.numpy, self.python = torch.Generator(), np.random.default_rng(3), random.Random(3)
        self.legacy = np.random.RandomState(3)
        self.fails, self.forwards, self.to_raise = 0, 0, None  # at which call

    def forward(self, ids: Tensor) -> Any:
        self.forwards += 1
        if self.forwards == self.fails:
            raise self.to_raise
        self.calls += 1
        with torch.no_grad():
            self.norm.weight.mul_(1.01)  # a weight that is written as the model runs
        self.replaced = torch.ones(5)
        self.register_buffer("cache", torch.ones(2))
        noise = random.random() + np.random.rand() + self.python.random() + self.numpy.random() + self.legacy.rand()
        x = self.embed(ids) + 1e-3 * noise + 1e-3 * torch.randn(DIM, generator=self.generator)
        x = x + self.drop(self.down(F.relu(self.up(self.norm(x)))))
        return x @ self.embed.weight.T


def loss(output: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(output.flatten(0, -2), batch[0].flatten()) + 1e-3 * random.random()


@dataclass
class Scene:
    model: Restless
    batch: Any
    loss: Any
    optimizer: torch.optim.Optimizer


def scene() -> Scene:
    """A model in the middle of a training: gradients, moments, a loader with a generator of its own."""
    torch.manual_seed(1)
    model = Restless()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    ids = torch.randint(0, VOCAB, (24, 5))
    loader = DataLoader(TensorDataset(ids), 4, shuffle=True, generator=torch.Generator().manual_seed(5))
    loss(model(ids), [ids]).backward()
    optimizer.step()
    return Scene(model, loader, loss, optimizer)


def states(scene: Scene) -> dict[str, Any]:
    model = scene.model
    legacy: Any = np.random.get_state()
    return {
        "weights": {name: (p, p.detach().clone()) for name, p in model.named_parameters()},
        "buffers": {name: (b, b.clone()) for name, b in model.named_buffers()},
        "saved": list(model.state_dict()),
        "gradients": {name: (p.grad, p.grad.clone()) for name, p in model.named_parameters() if p.grad is not None},
        "optimizer": copy.deepcopy(scene.optimizer.state_dict()),
        "modes": [m.training for m in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": legacy[1].copy(),
        "the model's": (model.generator.get_state(), model.numpy.bit_generator.state, model.python.getstate()),
        "the model's old one": model.legacy.get_state()[1].copy(),
        "the loader's": scene.batch.generator.get_state() if isinstance(scene.batch, DataLoader) else None,
    }


def same(now: Any, before: Any) -> bool:
    if isinstance(before, dict):
        return now.keys() == before.keys() and all(same(now[key], before[key]) for key in before)
    if isinstance(before, list | tuple):
        return len(now) == len(before) and all(map(same, now, before))
    if isinstance(before, nn.Parameter):
        return now is before  # the same object, not only the same numbers
    if isinstance(before, Tensor):
        return now.dtype == before.dtype and torch.equal(now.nan_to_num(7.0), before.nan_to_num(7.0))
    if isinstance(before, np.ndarray):
        return np.array_equal(now, before)
    return bool(now == before)


def forward_raises(at: int, error: BaseException) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        scene.model.forwards, scene.model.fails, scene.model.to_raise = 0, at, error

    return change


def loss_is(function: Any) -> Callable[[Scene], None]:
    return lambda scene: setattr(scene, "loss", function)


def batch_is(make: Callable[[Scene], Any]) -> Callable[[Scene], None]:
    return lambda scene: setattr(scene, "batch", make(scene))


def step_raises(scene: Scene) -> None:
    def fail(*given: Any) -> None:
        raise RuntimeError("no room for the moments")

    scene.optimizer.register_step_post_hook(fail)


def weight(scene: Scene, value: float) -> None:
    with torch.no_grad():
        scene.model.up.weight[0, 0] = value


def batches_that_end_badly(scene: Scene) -> Any:
    yield [torch.zeros(4, 5, dtype=torch.long)]
    raise OSError("the disk is full")


def ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


FAILURES: dict[str, tuple[Callable[[Scene], Any], str]] = {
    "none": (lambda scene: None, ""),
    "forward at once": (forward_raises(1, ZeroDivisionError()), "Restless cannot be run on this batch: ZeroDivision"),
    "forward in the reading": (forward_raises(3, KeyError("x")), "Restless cannot be run on this batch: KeyError: 'x'"),
    "forward in a step": (forward_raises(9, AttributeError("no such thing here")), "no such thing here"),
    "Ctrl-C in a step": (forward_raises(9, KeyboardInterrupt()), ""),
    "loss": (loss_is(lambda output, batch: 1 / 0), "the loss function failed: division by zero"),
    "loss in half": (loss_is(lambda output, batch: output.sum() / 0), "the loss is "),
    "loss of nothing": (loss_is(lambda output, batch: None), "the loss must be one number"),
    "backward": (
        loss_is(lambda output, batch: Raises.apply(output).mean()),
        "the backward pass failed: KeyError: 'labels'",
    ),
    "step": (step_raises, "a step of Adam failed: no room for the moments"),
    "weights of NaN": (lambda scene: weight(scene, float("nan")), "up.weight holds values that are not finite"),
    "an infinite weight": (lambda scene: weight(scene, float("inf")), "up.weight holds values that are not finite"),
    "float16": (lambda scene: scene.model.half(), "is float16, in which Adam's eps is 0"),
    "a batch of nothing": (batch_is(lambda scene: [ids(0, 5)]), "batch 0 is empty: it has a tensor of shape (0, 5)"),
    "no tokens": (batch_is(lambda scene: iter([[ids(2, 5)], [ids(2, 0)]])), "batch 1 is empty"),
    "batches that end badly": (batch_is(batches_that_end_badly), "no batch could be read: the disk is full"),
    "ids too large": (batch_is(lambda scene: [ids(2, 5) + VOCAB]), "Restless cannot be run on this batch"),
    "an infinite rate": (lambda scene: scene.optimizer.param_groups[0].update(lr=float("inf")), "learning rate is inf"),
    "a rate beyond floats": (lambda scene: scene.optimizer.param_groups[0].update(lr=1e300), "learning rate is 1e+300"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_everything_is_afterwards_as_it_was(failure: str) -> None:
    change, sentence = FAILURES[failure]
    seen = scene()
    change(seen)
    before = states(seen)
    raised: BaseException | None = None
    try:
        leadline.inspect(seen.model, seen.batch, seen.loss, seen.optimizer)
    except (UserError, KeyboardInterrupt) as error:
        raised = error
    assert isinstance(raised, {"none": type(None), "Ctrl-C in a step": KeyboardInterrupt}.get(failure, UserError))
    assert sentence in str(raised)
    assert "\n" not in str(raised)
    now = states(seen)
    assert [what for what in before if not same(now[what], before[what])] == []
