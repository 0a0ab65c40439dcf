"""DLCL: the input of layer l is a learned combination of the normalised outputs of all layers below it.

    x_l = Σ_{k<l} W_{l,k}·LN(y_k),   y_l = PreLNLayer(x_l),   y_0: the embeddings

Wang et al. 2019, "Learning Deep Transformer Models for Machine Translation" (arXiv 1906.01787), section 3. W is lower
triangular, and its rows start as means, 1/l. The stack gives the LN of one more row's combination, of everything. (The
authors' code leaves out the LN of y_0.) Between layers the stream is the tuple of all LN(y_k), within a layer (x, that
tuple).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leadline.placement.base import Site
from leadline.placement.pre_ln import PreLN


def reference(weights: Tensor, terms: tuple[Tensor, ...]) -> Tensor:
    return torch.stack([weight * term for weight, term in zip(weights, terms, strict=True)]).sum(0)


class _Combine(torch.autograd.Function):
    """The same; keeps no copy of the terms for the way back, so that memory stays linear in depth."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, *terms: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *terms)
        return (weights.to(terms[0].dtype) @ torch.stack(terms).flatten(1)).view_as(terms[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        weights, *terms = ctx.saved_tensors
        to_weights = (torch.stack(terms).flatten(1) @ gradient.flatten()).to(weights.dtype)
        return to_weights, *(weights.to(gradient.dtype).view(-1, *[1] * gradient.ndim) * gradient).unbind()


class Combination(nn.Module):
    def __init__(self, terms: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.full((terms,), 1 / terms))

    def forward(self, terms: tuple[Tensor, ...]) -> Tensor:
        return _Combine.apply(self.weights, *terms)


class Begin(nn.Module):
    def __init__(self, site: Site) -> None:
        super().__init__()
        self.norm = site.norm()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.norm(x),)


class DLCL(PreLN):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.combine = Combination(site.layer) if site.kind == site.kinds[0] else None
        self.output_norm = site.norm() if site.kind == site.kinds[-1] else None

    def forward(self, x: Any, sublayer: Callable[[Tensor], Tensor]) -> Any:
        below: tuple[Tensor, ...]
        x, below = (self.combine(x), x) if self.combine is not None else x
        y = x + sublayer(self.norm(x))
        return (y, below) if self.output_norm is None else (*below, self.output_norm(y))

    @classmethod
    def opens(cls, site: Site) -> nn.Module:
        return Begin(site)

    @classmethod
    def final(cls, site: Site) -> nn.Module:
        return nn.Sequential(Combination(site.layers + 1), site.norm())

    def stream(self, x: Any) -> Tensor:
        return x[0] if self.output_norm is None else x[-1]
