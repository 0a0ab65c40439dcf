"""All weights of a model in one vector, and their gradients, moments and 16-bit copies in others.

A parameter's data, its gradient and its state in the optimizer are views of these, under the names they always
have: evaluation, checkpoints and other optimizers see nothing new, and one kernel updates everything.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from leadline.config import OptimConfig
from leadline.kernels.fused.adam import adam
from leadline.kernels.fused.runtime import Runtime
from leadline.model import Transformer
from leadline.model.fused import Fused
from leadline.model.layers import CrossAttention, Linear

ALIGN = 64  # elements: every weight begins at a multiple of 128 bytes in 16 bits, as matrix products like it


class Flat:
    """Order: matrices whose gradient is written over, other matrices, vectors."""

    def __init__(self, model: Transformer, dtype: torch.dtype) -> None:
        # Keys and values of all cross-attentions first, side by side: they then are one product of the memory.
        crosses = [module.kv for module in model.modules() if isinstance(module, CrossAttention)]
        others = [module for module in model.modules() if isinstance(module, Linear) and module not in crosses]
        linears = [layer for layer in crosses + others if layer.weight.requires_grad]
        parameters = [p for p in model.parameters() if p.requires_grad]
        own = {id(p) for layer in linears for p in (layer.weight, layer.bias)}
        parts: list[list[Any]] = [
            [layer.weight for layer in linears],
            [p for p in parameters if p.ndim >= 2 and id(p) not in own],
            [layer.bias for layer in linears] + [p for p in parameters if p.ndim < 2 and id(p) not in own],
        ]
        sizes = [sum(-(-p.numel() // ALIGN) * ALIGN for p in part) for part in parts]
        device = parameters[0].device
        self.written, self.matrices, self.size = sizes[0], sizes[0] + sizes[1], sum(sizes)
        self.weights = torch.zeros(self.size, device=device)
        self.gradients = torch.zeros(self.size, device=device)
        self.copy = None if dtype == torch.float32 else torch.zeros(self.size, dtype=dtype, device=device)
        self.spans: dict[Any, slice] = {}
        begin = 0
        for p in (p for part in parts for p in part):
            self.spans[p] = slice(begin, begin + p.numel())
            begin += -(-p.numel() // ALIGN) * ALIGN
            view = self.view(self.weights, p)
            view.copy_(p.data)
            p.data = view
            p.grad = self.view(self.gradients, p)
        for layer in linears:
            layer.compute = self.read_by_products(layer.weight), self.read_by_products(layer.bias)
        self.memory = self._side_by_side(crosses)
        self.refresh()

    def _side_by_side(self, layers: list[Linear]) -> SimpleNamespace | None:
        """Several layers as one, if nothing lies between their weights."""
        found = []
        for parameters in ([layer.weight for layer in layers], [layer.bias for layer in layers]):
            spans = [self.spans[p] for p in parameters]
            if not spans or any(a.stop != b.start for a, b in pairwise(spans)):
                return None
            found.append(slice(spans[0].start, spans[-1].stop))
        values = self.weights if self.copy is None else self.copy
        inputs = layers[0].in_features
        compute = values[found[0]].view(-1, inputs), values[found[1]]
        return SimpleNamespace(weight=SimpleNamespace(grad=self.gradients[found[0]].view(-1, inputs)), compute=compute)

    def view(self, flat: Tensor, parameter: Tensor) -> Tensor:
        return flat[self.spans[parameter]].view(parameter.shape)

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

    def __init__(self, flat: Flat, config: OptimConfig) -> None:
        super().__init__(list(flat.spans), {"lr": config.lr, "fused": True})
        self.flat, self.config = flat, config
        self.count = torch.zeros(())  # updates done; the state of every weight points to it
        self.first, self.second = torch.zeros_like(flat.weights), torch.zeros_like(flat.weights)
        for p in flat.spans:
            moments = {"exp_avg": flat.view(self.first, p), "exp_avg_sq": flat.view(self.second, p)}
            self.state[p] = {"step": self.count, **moments}

    def control(self, lr: float) -> list[float]:
        """What the kernel reads from the device at the next update; counts it."""
        self.count += 1
        t, (beta1, beta2) = int(self.count), self.config.betas
        return [lr, 1 / (1 - beta1**t), (1 - beta2**t) ** -0.5]

    def update(self, control: Tensor, norm: Tensor) -> None:
        """Writes the gradients' norm. Can be captured: all that changes from update to update is in `control`."""
        flat = self.flat
        self._launch(flat.weights, flat.gradients, self.first, self.second, flat.copy, control, norm)

    def _launch(self, *tensors: Any) -> None:
        config = self.config
        adam(
            *tensors, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay,
            decoupled=config.name == "adamw", decayed=self.flat.matrices, clip=config.clip,
        )  # fmt: skip

    def compile(self) -> None:
        """So that nothing is compiled while a graph is captured: the same kernel over no weights at all."""
        flat = self.flat
        nothing = flat.weights[:0]
        copy = None if flat.copy is None else flat.copy[:0]
        norm = torch.zeros(2, device=nothing.device)[1]  # aligned as the real one is
        self._launch(nothing, nothing, nothing, nothing, copy, torch.zeros(3, device=nothing.device), norm)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        device = self.flat.weights.device
        control = torch.tensor(self.control(self.param_groups[0]["lr"]), device=device)
        self.update(control, torch.zeros((), device=device))


def fuse(model: Transformer, dtype: torch.dtype, accumulate: bool) -> tuple[Flat, Runtime]:
    """Lay the model's weights out flat and let it run on the fused kernels."""
    flat = Flat(model, dtype)
    device = flat.weights.device
    second = torch.cuda.Stream(device) if device.type == "cuda" else None
    runtime = Runtime(dtype, torch.zeros(1, dtype=torch.int64, device=device), accumulate, second)
    bias = None if model.head is None else flat.read_by_products(model.head.bias)
    model.use(Fused(model, runtime, flat.read_by_products(model.output.weight), bias, flat.memory))
    return flat, runtime
