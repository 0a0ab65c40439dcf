"""Pre-LN: x <- x + f(LN(x)), and one LN after the last layer of each stack.

Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture" (arXiv 2002.04745), Table 1:
gradients of the last layer shrink as 1/sqrt(layers), so it trains without warm-up.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from leadline.placement.base import Placement, Site


class PreLN(Placement):
    """x + f(LN(x)), and one LN after the last layer of each stack."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.norm()

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + sublayer(self.norm(x))

    @classmethod
    def final(cls, site: Site) -> nn.Module:
        return site.norm()
