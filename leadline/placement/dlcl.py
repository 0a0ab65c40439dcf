"""DLCL: the input of layer l is a learned combination of the normalised outputs of all layers below it.

    x_l = Σ_{k<l} W_{l,k}·LN(y_k),   y_l = PreLNLayer(x_l),   y_0: the embeddings

Wang et al. 2019, "Learning Deep Transformer Models for Machine Translation" (arXiv 1906.01787), section 3. W is lower
triangular, and its rows start as means, 1/l. The stack gives the LN of one more row's combination, of everything. (The
authors' code leaves out the LN of y_0.) Between layers the stream is (the newest LN(y_k), all others), within a layer
(x, all others).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from leadline.kernels.compiling import uncompiled
from leadline.placement.base import Site, tensor
from leadline.placement.pre_ln import PreLN


def reference(weights: Tensor, terms: list[Tensor]) -> Tensor:
    return torch.stack([weight * term for weight, term in zip(weights, terms, strict=True)]).sum(0)


class Below(NamedTuple):
    """The terms t_k = LN(y_k) of one pass through a stack, and what autograd sees of them; each is written once."""

    values: Tensor  # [terms, ...]: side by side, so that a sum over layers is a matrix product that reads each once
    path: Tensor  # as large, of zeros, without memory: its gradient is that of all terms but the newest

    @classmethod
    def nothing(cls, terms: int, like: Tensor) -> Below:
        values = torch.empty(terms, *like.shape, dtype=like.dtype, device=like.device)
        return cls(values, _nowhere(values))


class _Combine(torch.autograd.Function):
    """x_l = Σ_k W_{l,k}·t_k. The gradient of all terms goes back from row to row, and each adds its W_l ⊗ g_l to it.

    What autograd would make of the sum is a gradient of each term from every layer above, depth² tensors to be added.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, newest: Tensor, values: Tensor, path: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weights)
        ctx.values = values  # not saved: rows that this one does not read are yet to be written
        values[len(weights) - 1] = newest
        with torch.autocast(values.device.type, enabled=False):
            x = weights.to(values.dtype) @ values[: len(weights)].flatten(1)
        return x.view_as(newest), _nowhere(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, of_terms: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (weights,), values = ctx.saved_tensors, ctx.values
        row, to_weights = len(weights), None
        if of_terms is None:  # nothing above reads them
            of_terms = torch.zeros_like(values)
        if gradient is not None:
            of_terms[:row].view(row, -1).addr_(weights.to(values.dtype), gradient.flatten())
            dots = values[:row].flatten(1, -2).transpose(0, 1) @ gradient.flatten(0, -2)[..., None]
            to_weights = dots.sum(0)[:, 0].to(weights.dtype)
        return to_weights, of_terms[row - 1], None, of_terms


def _nowhere(values: Tensor) -> Tensor:
    return torch.zeros((), dtype=values.dtype, device=values.device).expand(values.shape)


@uncompiled  # what goes back along `path` has memory, which it would not expect
def combine(weights: Tensor, newest: Tensor, below: Below) -> tuple[Tensor, Below]:
    """x_l, and what is below from here on."""
    x, path = _Combine.apply(weights, newest, *below)
    return x, below._replace(path=path)


class Combination(nn.Module):
    def __init__(self, terms: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.full((terms,), 1 / terms))

    def forward(self, stream: tuple[Tensor, Below]) -> tuple[Tensor, Below]:
        return combine(self.weights, *stream)


class Begin(nn.Module):
    def __init__(self, site: Site) -> None:
        super().__init__()
        self.norm, self.terms = site.norm(), site.layers + 1

    def forward(self, x: Tensor) -> tuple[Tensor, Below]:
        first = self.norm(x)
        return first, Below.nothing(self.terms, first)


class LastCombination(Combination):
    def forward(self, stream: tuple[Tensor, Below]) -> Tensor:  # type: ignore[override]
        return super().forward(stream)[0]


class DLCL(PreLN):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.combine = Combination(site.layer) if site.kind == site.kinds[0] else None
        self.output_norm = site.norm() if site.kind == site.kinds[-1] else None

    def forward(self, x: Any, sublayer: Callable[[Tensor], Tensor]) -> Any:
        x, below = x if self.combine is None else self.combine(x)
        y = x + tensor(sublayer(self.norm(x)))
        return (y if self.output_norm is None else self.output_norm(y)), below

    @classmethod
    def opens(cls, site: Site) -> nn.Module:
        return Begin(site)

    @classmethod
    def final(cls, site: Site) -> nn.Module:
        return nn.Sequential(LastCombination(site.layers + 1), site.norm())

    def stream(self, x: Any) -> Tensor:
        return x[0]
