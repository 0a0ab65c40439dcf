"""The probe while training goes on: per-layer gradient, update and stream norms every few updates, and an alarm.

    leadline.train(config, on_step=[leadline.Watch(every=50)])

The numbers go to metrics.jsonl and TensorBoard as watch/grad/…, watch/update/… and watch/hidden/…, one a sublayer. The
alarm is on the *update*, per unit of the learning rate: it grows before the loss does, the gradient norm after.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from typing import Any

import torch
from torch import Tensor, nn

from leadline.diagnose.stream import Norms, Reader, connections_of
from leadline.errors import UserError

REMEMBERED = 20  # looks that "usual" is the median of
ENOUGH = 5  # looks before the first alarm


class Watch:
    """An on_step function that also reads the model: see leadline.training.events.Watcher."""

    def __init__(self, every: int = 50, alarm: float = 2.0) -> None:
        if every < 1 or not alarm > 1:  # also where it is not a number
            raise UserError("Watch(every, alarm): every must be at least 1 and alarm above 1")
        self.every, self.alarm = every, alarm
        self.usual: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self.alarmed: set[str] = set()
        self.groups: dict[str, list[nn.Parameter]] = {}
        self.reader = Reader()
        self.streams: Norms = {}
        self.gradient_norms: list[Tensor] = []
        self.before_step: list[Tensor] = []

    def __call__(self, event: Any) -> None:
        """Events say nothing it needs."""

    def due(self, update: int) -> bool:
        return update % self.every == 0

    def begin(self, model: nn.Module) -> None:
        """Before the forward pass: listen to every residual connection."""
        groups = groups_of(model)
        if [id(p) for group in groups.values() for p in group] != [id(p) for g in self.groups.values() for p in g]:
            self.usual.clear()  # another model
            self.alarmed.clear()
        self.groups, self.streams = groups, self.reader.streams(model)

    def seen(self) -> None:
        self.reader.close()

    def gradients(self) -> None:
        """After the backward pass."""
        self.gradient_norms = [
            _norm([torch.zeros_like(p) if p.grad is None else p.grad for p in group]) for group in self.groups.values()
        ]
        self.before_step = [p.detach().clone() for group in self.groups.values() for p in group]

    def end(self, lr: float) -> tuple[dict[str, float], str]:
        """After the optimizer's step: the row to log, and an alarm or nothing."""
        moved = iter(self.before_step)
        updates = [_norm([p.detach() - next(moved) for p in group]) for group in self.groups.values()]
        self.before_step = []
        hidden = {name: norms[-1] for name, norms in self.streams.items()}
        read = torch.stack([*self.gradient_norms, *updates, *hidden.values()]).tolist()  # one wait for the device
        count = len(self.groups)
        row = {f"watch/grad/{name}": value for name, value in zip(self.groups, read, strict=False)}
        changes = dict(zip(self.groups, read[count:], strict=False))
        row |= {f"watch/update/{name}": value for name, value in changes.items()}
        row |= {f"watch/hidden/{name}": value for name, value in zip(hidden, read[2 * count :], strict=True)}
        return row, self._alarm({name: value / max(lr, 1e-30) for name, value in changes.items()})

    def _alarm(self, changes: dict[str, float]) -> str:
        excess: dict[str, float] = {}
        for name, value in changes.items():
            usual = self.usual[name]
            middle = statistics.median(usual) if len(usual) >= ENOUGH else 0.0
            if middle and value > self.alarm * middle:  # a layer that stood still has no usual size
                excess[name] = value / middle
            usual.append(value)
        new = {name: times for name, times in excess.items() if name not in self.alarmed}
        self.alarmed = set(excess)
        if not new:
            return ""
        first = max(new, key=lambda name: new[name])
        others = f", {len(new) - 1} more layers with it" if len(new) > 1 else ""
        return (
            f"the update of {first} is {new[first]:.1f} times its usual size{others}: the loss may jump next; "
            f"if it does, lower optim.lr or set optim.clip"
        )


def _norm(tensors: list[Tensor]) -> Tensor:
    return torch.stack([norm.float() for norm in torch._foreach_norm(tensors)]).norm()


def groups_of(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The weights of every sublayer, and the rest."""
    modules = dict(model.named_modules())
    groups = {name: list(modules[name].parameters()) for name in connections_of(model)}
    inside = {id(p) for group in groups.values() for p in group}
    rest = [p for p in model.parameters() if id(p) not in inside]
    groups["embeddings and norms"] = rest
    trained = {name: [p for p in group if p.requires_grad] for name, group in groups.items()}
    return {name: group for name, group in trained.items() if group}
