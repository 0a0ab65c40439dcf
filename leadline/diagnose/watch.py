"""The probe while training goes on: what every layer does, every few updates, and an alarm.

    leadline.train(config, on_step=[leadline.Watch(every=50)])              our own loop

    watch = leadline.Watch(model, optimizer, "runs/mine", every=50)         anybody's
    ...
    watch.step(loss)                                                        after optimizer.step()

The numbers go to metrics.jsonl and TensorBoard as watch/QUANTITY/LAYER (docs/watch.md says what each is). The alarm on
the *update*, per unit of the learning rate, comes before the loss grows, and the gradient norm after.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from leadline import pulse
from leadline.alarm import FAR, Seer
from leadline.diagnose.attached import Attached
from leadline.diagnose.stream import Reader, connections_of, token_norm
from leadline.errors import UserError
from leadline.model.block import connections, sublayers
from leadline.model.layers import Attention
from leadline.rates import token_diversity

REMEMBERED = 20  # looks that "usual" is the median of
ENOUGH = 5  # looks before the first alarm
NORMAL = 0.67  # spreads from the median that half of all values lie within


class Watch:
    """Given a model: watches it in anybody's loop. Without: an on_step function of `leadline.train`.

    optimizer   what steps the model's weights; its step is hooked, and may be taken by a GradScaler
    out         the folder to write; `leadline report` and `leadline explain` read it
    every       updates between looks into the model; norms by layer are kept of every update
    update      updates that were done before: a training that goes on in the same folder says so
    alarm       times its usual size at which a layer's update is told of, if it is beyond its usual spread as well
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        out: str | Path | None = None,
        *,
        every: int = 50,
        alarm: float = 2.0,
        update: int = 0,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1 or not alarm > 1:  # also where it is NaN
            raise UserError("Watch(every, alarm): every must be at least 1 and alarm above 1")
        self.every, self.alarm = every, alarm
        self.usual: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self.alarmed: set[str] = set()
        self.groups: pulse.Layers = {}
        self.reader, self.seer = Reader(), Seer()
        self.streams: dict[str, dict[str, Tensor]] = {}
        self.compiled = False
        self.swapped: list[tuple[Attention, Any]] = []
        self.norms: list[Tensor] = []
        self.before_step: list[Tensor] = []
        self.attached: Attached | None = None
        if model is not None or optimizer is not None or out is not None:
            if not isinstance(model, nn.Module) or not isinstance(optimizer, torch.optim.Optimizer) or out is None:
                raise UserError(
                    "Watch(model, optimizer, folder) watches a loop of yours and needs all three; Watch(every=50) is "
                    "an on_step function of leadline.train"
                )
            self.attached = Attached(model, optimizer, Path(out), every, update)

    # In anybody's loop.

    def step(self, loss: Tensor | float | None = None) -> None:
        """After optimizer.step(): the update is over. `loss` may be left out where the model's output has one."""
        self._attached().step(loss)

    def close(self) -> None:
        """Write what is left and leave the model as it was."""
        if self.attached:
            self.attached.close()

    def __enter__(self) -> Self:
        self._attached()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attached(self) -> Attached:
        if self.attached is None:
            raise UserError("this Watch has no model: make it with Watch(model, optimizer, folder)")
        return self.attached

    # In ours: leadline.training.events.Watcher.

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
            self.seer = Seer()
        self.groups, self.streams = groups, {}
        self.compiled = any(module._compiled_call_impl is not None for module in model.modules())
        for (name, connection), (_, sublayer) in zip(connections_of(model).items(), connections(model), strict=True):
            self._listen(name, connection, sublayer)

    def _listen(self, name: str, connection: Any, sublayer: nn.Module) -> None:
        note = self._note

        def stream(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            note("hidden", name, token_norm(module.stream(output)))
            note("diversity", name, token_diversity(module.stream(output)))

        def branch(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            note("branch", name, token_norm(output))

        def norm(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            root = math.sqrt(output.shape[-1])
            note("norm_input", name, token_norm(args[0]) / root)
            note("norm_output", name, token_norm(output) / root)

        self.reader.after(connection, stream)
        self.reader.after(sublayer, branch)
        if isinstance(module := getattr(connection, "norm", None), nn.Module):
            self.reader.after(module, norm)
        if isinstance(sublayer, Attention) and not self.compiled:  # a swapped kernel would be compiled anew each time
            self.swapped.append((sublayer, sublayer.kernel))
            sublayer.kernel = _measuring(sublayer.kernel, lambda value: note("logits", name, value))

    def _note(self, quantity: str, name: str, value: Tensor) -> None:
        self.streams.setdefault(quantity, {})[name] = value

    def seen(self) -> None:
        self.reader.close()
        for layer, kernel in self.swapped:
            layer.kernel = kernel
        self.swapped.clear()

    def gradients(self) -> None:
        """After the backward pass."""
        weights = [p.detach() for group in self.groups.values() for p in group]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for g in self.groups.values() for p in g]
        self.norms = [*self._by_group(gradients), *self._by_group(weights)]
        self.before_step = [p.clone() for p in weights]

    def _by_group(self, tensors: list[Tensor]) -> list[Tensor]:
        each = iter(tensors)
        return [_norm([next(each) for _ in group]) for group in self.groups.values()]

    def end(self, lr: float) -> tuple[dict[str, float], str]:
        """After the optimizer's step: the row to log, and an alarm or nothing."""
        weights = [p.detach() for group in self.groups.values() for p in group]
        updates = self._by_group([p - before for p, before in zip(weights, self.before_step, strict=True)])
        self.before_step = []
        streams = [(f"watch/{quantity}/{n}", v) for quantity, by in self.streams.items() for n, v in by.items()]
        keys = [f"watch/{quantity}/{name}" for quantity in ("grad", "weight", "update") for name in self.groups]
        keys += [key for key, _ in streams]
        read = torch.stack(
            [*self.norms, *updates, *(value for _, value in streams)]
        ).tolist()  # one wait for the device
        row = dict(zip(keys, read, strict=True))
        row |= {f"watch/ratio/{n}": row[f"watch/update/{n}"] / (row[f"watch/weight/{n}"] or 1.0) for n in self.groups}
        changes = {name: row[f"watch/update/{name}"] / max(lr, 1e-30) for name in self.groups}
        return row, "; ".join(filter(None, [self._alarm(changes), *self.seer.look(row)]))

    def _alarm(self, changes: dict[str, float]) -> str:
        excess: dict[str, float] = {}
        for name, value in changes.items():
            usual = self.usual[name]
            middle = statistics.median(usual) if len(usual) >= ENOUGH else 0.0
            if middle and value > self.alarm * middle:  # a layer that stood still has no usual size
                apart = statistics.median(abs(math.log(max(v, 1e-30) / middle)) for v in usual)
                if math.log(value / middle) > FAR * apart / NORMAL:
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


def _measuring(kernel: Any, note: Callable[[Tensor], None]) -> Any:
    """The same attention; the largest logit of the first sequence is noted."""

    def attend(q: Tensor, k: Tensor, v: Tensor, q_pack: Any, k_pack: Any, *more: Any) -> Tensor:
        rows, columns = int(q_pack.starts[1]), int(k_pack.starts[1])
        logits = torch.einsum("qhd,khd->hqk", q.detach()[:rows].float(), k.detach()[:columns].float())
        note(logits.amax() / math.sqrt(q.shape[-1]))
        return kernel(q, k, v, q_pack, k_pack, *more)

    return attend


def groups_of(model: nn.Module) -> pulse.Layers:
    """The weights of every sublayer of our model, and the rest."""
    return pulse.layers_of(model, sublayers(model))
