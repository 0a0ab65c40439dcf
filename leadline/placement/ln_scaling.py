"""LN-Scaling: x <- x + f(LN(x)/√l) in layer l, and one LN after the last layer.

Sun et al. 2025, "The Curse of Depth in Large Language Models" (arXiv 2502.05795), section 4: Pre-LN whose variance
does not grow exponentially with depth. The paper has one stack; here each stack counts its own layers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leadline.placement.base import Site
from leadline.placement.pre_ln import PreLN


class LNScaling(PreLN):
    scale: Tensor

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        # A tensor, so that blocks which differ in nothing else are compiled once.
        self.register_buffer("scale", torch.tensor(site.layer**-0.5), persistent=False)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + sublayer(self.norm(x) * self.scale)

    def describe(self) -> dict[str, float]:
        return {"scale": self.site.layer**-0.5}
