"""DLCL: the input of layer l is a learned combination of the normalised outputs of all layers below it.

    x_l = Σ_{k<l} W_{l,k}·LN(y_k),   y_l = PreLNLayer(x_l),   y_0: the embeddings

Wang et al. 2019, "Learning Deep Transformer Models for Machine Translation" (arXiv 1906.01787), section 3. W is lower
triangular, and its rows start as means, 1/l. The stack gives the LN of one more row's combination, of everything. (The
authors' code leaves out the LN of y_0.) Between layers the stream is (the newest LN(y_k), all of them), within a layer
(x, all of them).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from leadline.placement.base import Site
from leadline.placement.pre_ln import PreLN


def reference(weights: Tensor, terms: list[Tensor]) -> Tensor:
    return torch.stack([weight * term for weight, term in zip(weights, terms, strict=True)]).sum(0)


class Below:
    """The terms t_k = LN(y_k) of one pass through a stack, and on its way back the gradients g_l of the combinations.

    Each in one piece of memory, so that a sum over layers is one matrix product that reads every term once. The sum
    that autograd would make, a term's gradient from every layer above it, costs depth² additions and as many kernels.
    """

    def __init__(self, terms: int, like: Tensor) -> None:
        self.values = torch.empty(terms, *like.shape, dtype=like.dtype, device=like.device)
        self.rows: dict[int, Tensor] = {}  # W_l of the combinations that have their gradient
        self.gradients: Tensor | None = None


class _Combine(torch.autograd.Function):
    """x_l = Σ_k W_{l,k}·t_k, of which only the newest term comes along a path that autograd sees.

    On the way back every combination above is done before this one is, since its result reaches them only through
    x_l. So the newest term's whole gradient is known here: Σ_{m≥l} W_{m,l-1}·g_m. The older ones get theirs further
    down. (torch.compile leaves out what writes to `below`, and compiles around it.)
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, newest: Tensor, below: Below) -> Tensor:
        ctx.save_for_backward(weights)
        ctx.below = below
        below.values[len(weights) - 1] = newest
        return _weighted(weights, below.values[: len(weights)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (weights,), below = ctx.saved_tensors, ctx.below
        row = len(weights)
        if below.gradients is None:
            below.gradients = torch.empty_like(below.values)
        below.gradients[row - 1], below.rows[row] = gradient, weights
        to_weights = (below.values[:row].flatten(1, -2).transpose(0, 1) @ gradient.flatten(0, -2)[..., None]).sum(0)
        top = max(below.rows)
        column = torch.stack([below.rows[above][row - 1] for above in range(row, top + 1)])
        to_newest = _weighted(column, below.gradients[row - 1 : top])
        if row == 1:
            below.gradients, below.rows = None, {}
        return to_weights[:, 0].to(weights.dtype), to_newest, None


def combine_below(weights: Tensor, newest: Tensor, below: Below) -> Tensor:
    return _Combine.apply(weights, newest, below)


def _weighted(weights: Tensor, terms: Tensor) -> Tensor:
    with torch.autocast(terms.device.type, enabled=False):
        return (weights.to(terms.dtype) @ terms.flatten(1)).view(terms.shape[1:])


class Combination(nn.Module):
    def __init__(self, terms: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.full((terms,), 1 / terms))

    def forward(self, stream: tuple[Tensor, Below]) -> Tensor:
        return combine_below(self.weights, *stream)


class Begin(nn.Module):
    def __init__(self, site: Site) -> None:
        super().__init__()
        self.norm, self.terms = site.norm(), site.layers + 1

    def forward(self, x: Tensor) -> tuple[Tensor, Below]:
        first = self.norm(x)
        return first, Below(self.terms, first)


class DLCL(PreLN):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.combine = Combination(site.layer) if site.kind == site.kinds[0] else None
        self.output_norm = site.norm() if site.kind == site.kinds[-1] else None

    def forward(self, x: Any, sublayer: Callable[[Tensor], Tensor]) -> Any:
        stream, below = x
        if self.combine is not None:
            stream = self.combine(x)
        y = stream + sublayer(self.norm(stream))
        return (y if self.output_norm is None else self.output_norm(y)), below

    @classmethod
    def opens(cls, site: Site) -> nn.Module:
        return Begin(site)

    @classmethod
    def final(cls, site: Site) -> nn.Module:
        return nn.Sequential(Combination(site.layers + 1), site.norm())

    def stream(self, x: Any) -> Tensor:
        return x[0]
