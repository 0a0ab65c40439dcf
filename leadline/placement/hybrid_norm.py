"""HybridNorm: attention normalises q, k and v instead of its input; the FFN is Post-LN with the norm before it.

    y <- x + Attention(x)        q, k and v normalised, head by head
    x <- LN(y) + FFN(LN(y))      and one LN after the last layer

Zhuo et al. 2025, "HybridNorm: Towards Stable and Efficient Transformer Training via Hybrid Normalization" (arXiv
2503.04598), as the authors' code has it; not its variant HybridNorm*, whose first layer is Pre-LN. LN(y) is written as
the end of the connection below. The paper has no cross-attention: here it is like self-attention. model.qk_norm=width
normalises over all heads together.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from leadline.placement.base import Placement, Site


class HybridNorm(Placement):
    norms = ("q", "k", "v")

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.norm() if site.kind == site.kinds[-2] else nn.Identity()

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm(x + sublayer(x))

    @classmethod
    def final(cls, site: Site) -> nn.Module:
        return site.norm()
