"""CompleteP's scaling with depth: x <- x + (2/L)·f(LN(x)) in a stack of L layers, and one LN at the end.

Dey et al. 2025, "Don't be lazy: CompleteP enables compute-efficient deep transformers" (arXiv 2505.01618), with α = 1
and a base depth of 2 layers, as in nanoGPT-mup. It is meant to let learning rates carry over from one depth to another,
so none is scaled with depth. Its scaling with width (rates and weight decay by matrix) is not here, nor that of Adam's
ε, which it divides by L/2 (optim.eps). The paper has one stack; here each stack counts its own layers.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from leadline.placement.base import Site, tensor
from leadline.placement.pre_ln import PreLN

BASE_LAYERS = 2


class CompleteP(PreLN):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.scale = BASE_LAYERS / site.layers

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.scale * tensor(sublayer(self.norm(x)))

    def describe(self) -> dict[str, float]:
        return {"branch": self.scale}
