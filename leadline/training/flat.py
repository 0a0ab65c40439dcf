"""All weights of a model in one vector, and their gradients, moments and 16-bit copies in others.

A parameter's data, its gradient and its state in the optimizer are views of these, under the names they always
have: evaluation, checkpoints and other optimizers see nothing new, and one kernel updates everything.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from leadline.config import OptimConfig
from leadline.kernels.fused.adam import adam
from leadline.kernels.fused.cross_entropy import Projection
from leadline.kernels.fused.runtime import Runtime
from leadline.model import Transformer
from leadline.model.fused import Fused
from leadline.model.layers import CrossAttention, Linear
from leadline.training.shard import Shard, lay_out, padded, room
from leadline.world import ALONE, World


class Flat:
    """Order: matrices whose gradient is written over, other matrices, what is `spared` weight decay, vectors."""

    def __init__(
        self, model: Transformer, dtype: torch.dtype, spared: Set[nn.Parameter] = frozenset(), world: World = ALONE
    ) -> None:
        # Keys and values of all cross-attentions first, side by side: they then are one product of the memory.
        crosses = [module.kv for module in model.modules() if isinstance(module, CrossAttention)]
        others = [module for module in model.modules() if isinstance(module, Linear) and module not in crosses]
        linears = [layer for layer in crosses + others if layer.weight.requires_grad]
        parameters = [p for p in model.parameters() if p.requires_grad]
        biases = [layer.bias for layer in linears if layer.bias is not None]
        own = {id(p) for p in [*(layer.weight for layer in linears), *biases]}
        matrices = [p for p in parameters if p.ndim >= 2 and id(p) not in own]
        parts: list[list[Any]] = [
            [layer.weight for layer in linears],
            [p for p in matrices if p not in spared],
            [p for p in matrices if p in spared],
            biases + [p for p in parameters if p.ndim < 2 and id(p) not in own],
        ]
        device = parameters[0].device
        self.spans, end = lay_out(parts[0])
        self.written = padded(end, world)
        for part in parts[1:]:
            spans, end = lay_out(part, max(end, self.written))
            self.spans |= spans
            if part is parts[1]:
                self.decayed = end
        self.size = self.written + padded(end - self.written, world)
        # What only products read, as 16-bit copies if there are any, and what is also read as it is.
        self.regions = [slice(0, self.written), slice(self.written, self.size)]
        self.weights = torch.zeros(self.size, device=device)
        self.gradients = torch.zeros(self.size, device=device)
        self.copy = None if dtype == torch.float32 else torch.zeros(self.size, dtype=dtype, device=device)
        for p in self.spans:
            view = self.view(self.weights, p)
            view.copy_(p.data)
            p.data = view
            p.grad = self.view(self.gradients, p)
        for layer in linears:
            bias = None if layer.bias is None else self.read_by_products(layer.bias)
            layer.compute = self.read_by_products(layer.weight), bias
        self.memory = self._side_by_side(crosses)
        self.refresh()

    def _side_by_side(self, layers: list[Linear]) -> SimpleNamespace | None:
        """Several layers as one, if nothing lies between their weights."""
        whole = []
        biases = [layer.bias for layer in layers if layer.bias is not None]
        for parameters in ([layer.weight for layer in layers], biases):
            spans = [self.spans[p] for p in parameters]
            if any(a.stop != b.start for a, b in pairwise(spans)):
                return None
            whole += [slice(spans[0].start, spans[-1].stop)] if spans else []
        if not layers:
            return None
        values = self.weights if self.copy is None else self.copy
        inputs = layers[0].in_features
        compute = values[whole[0]].view(-1, inputs), values[whole[1]] if biases else None
        return SimpleNamespace(weight=SimpleNamespace(grad=self.gradients[whole[0]].view(-1, inputs)), compute=compute)

    def view(self, flat: Tensor, parameter: Tensor) -> Tensor:
        return flat[self.spans[parameter]].view(parameter.shape)

    def with_room(self, flat: Tensor, parameter: Tensor) -> Tensor:
        """With the rows of zeros behind it."""
        begin = self.spans[parameter].start
        return flat[begin : begin + room(parameter)].view(-1, *parameter.shape[1:])

    def read_by_products(self, parameter: Tensor) -> Tensor:
        return parameter.data if self.copy is None else self.view(self.copy, parameter)

    def refresh(self) -> None:
        """After the weights were changed by anything but FlatAdam."""
        if self.copy is not None:
            self.copy.copy_(self.weights)

    def forget_gradients(self, accumulate: bool) -> None:
        """Ready for the next update; without accumulation most of them are written over anyway."""
        self.gradients[0 if accumulate else self.written :].zero_()


class FlatAdam(torch.optim.Optimizer):
    """torch.optim.Adam and AdamW on a Flat: the same numbers and the same state, in one kernel."""

    def __init__(self, flat: Flat, config: OptimConfig, shard: Shard | None = None) -> None:
        """Of all weights, or of those in this process's shard."""
        owned = [(piece.own, piece.place) for piece in shard.pieces] if shard else list(flat.spans.items())
        groups = [{"params": [p for p, _ in owned]}]
        _uncompiled(torch.optim.Optimizer.__init__)(self, groups, {"lr": config.lr, "fused": True})
        self.flat, self.config, self.shard = flat, config, shard
        self.count = torch.zeros(())  # updates done; the state of every weight points to it
        self.places = shard.places if shard else [slice(0, flat.size)]
        device = flat.weights.device
        self.moments = [[torch.zeros(s.stop - s.start, device=device) for _ in range(2)] for s in self.places]
        for p, span in owned:
            number = max(i for i, place in enumerate(self.places) if place.start <= span.start)
            begin = span.start - self.places[number].start
            views = [moment[begin : begin + p.numel()].view(p.shape) for moment in self.moments[number]]
            self.state[p] = {"step": self.count, "exp_avg": views[0], "exp_avg_sq": views[1]}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        _uncompiled(torch.optim.Optimizer.add_param_group)(self, param_group)

    def control(self, lr: float) -> list[float]:
        """What the kernel reads from the device at the next update; counts it."""
        self.count += 1
        t, (beta1, beta2) = int(self.count), self.config.betas
        return [lr, 1 / (1 - beta1**t), (1 - beta2**t) ** -0.5]

    def update(self, control: Tensor, norm: Tensor, launch: bool = True) -> None:
        """Writes the gradients' norm; of a shard it must be there already, because it is that of all.

        Can be captured: all that changes from update to update is in `control`.
        """
        flat, config = self.flat, self.config
        for place, (first, second) in zip(self.places, self.moments, strict=True):
            copy = None if flat.copy is None else flat.copy[place]
            decayed = min(max(0, flat.decayed - place.start), place.stop - place.start)
            adam(
                flat.weights[place], flat.gradients[place], first, second, copy, control, norm, betas=config.betas,
                eps=config.eps, weight_decay=config.weight_decay, decoupled=config.name == "adamw", decayed=decayed,
                clip=config.clip, norm_is_known=self.shard is not None, launch=launch,
            )  # fmt: skip

    def compile(self) -> None:
        """So that nothing is compiled while a graph is captured, the same kernel for numbers of the same size."""
        device = self.flat.weights.device
        norm = torch.zeros(2, device=device)[1]  # aligned as the real one is
        self.update(torch.zeros(3, device=device), norm, launch=False)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        device = self.flat.weights.device
        control = torch.tensor(self.control(self.param_groups[0]["lr"]), device=device)
        self.update(control, torch.zeros((), device=device))


def _uncompiled(method: Any) -> Any:
    """A method of torch's optimizers without what keeps torch's compiler out of it, which would first load that."""
    return getattr(method, "__wrapped__", method)


def fuse(
    model: Transformer,
    dtype: torch.dtype,
    accumulate: bool,
    spared: Set[nn.Parameter] = frozenset(),
    world: World = ALONE,
) -> tuple[Flat, Runtime]:
    """Lay the model's weights out flat and let it run on the fused kernels."""
    flat = Flat(model, dtype, spared, world)
    device = flat.weights.device
    second = torch.cuda.Stream(device) if device.type == "cuda" else None
    runtime = Runtime(dtype, torch.zeros(1, dtype=torch.int64, device=device), accumulate, second)
    read, weight, bias = flat.weights if flat.copy is None else flat.copy, model.output.weight, None
    compute_bias = None
    if model.head is not None:
        bias = model.head.bias
        compute_bias = flat.with_room(read, bias)
    sink = SimpleNamespace(grad=flat.with_room(flat.gradients, weight))
    onto = Projection(len(weight), sink, flat.with_room(read, weight), bias, compute_bias)
    model.use(Fused(model, runtime, onto, flat.memory))
    return flat, runtime
