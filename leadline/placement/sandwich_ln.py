"""Sandwich-LN: x <- x + LN(f(LN(x))), and one LN after the last layer. Peri-LN: the same, with an LN on the embeddings.

Ding et al. 2021, "CogView" (arXiv 2105.13290), section 2.4; Kim et al. 2025, "Peri-LN: Revisiting Normalization Layer
in the Transformer Architecture" (arXiv 2502.02732), section 3.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from leadline.placement.base import Placement, Site


class SandwichLN(Placement):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.norm()
        self.branch_norm = site.norm()

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.branch_norm(sublayer(self.norm(x)))

    @classmethod
    def final(cls, site: Site) -> nn.Module:
        return site.norm()


class PeriLN(SandwichLN):
    @classmethod
    def opens(cls, site: Site) -> nn.Module:
        return site.norm()
