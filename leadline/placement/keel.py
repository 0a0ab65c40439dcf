"""Keel: x <- LN(α·x + f(LN(x))), α the number of sublayers of the stack; the first layer is Pre-LN.

Chen and Wei 2026, "Post-LayerNorm Is Back: Stable, Expressive, and Deep" (arXiv 2601.19895). The paper's own code
was not found. Three other implementations agree on the equation, on α = 2L and on a first layer without α; one has an
LN after that layer's FFN, two have none, and neither does this one. The paper has only decoders; here each stack
counts its own sublayers.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from leadline.placement.base import Placement, Site


class Keel(Placement):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.norm()
        self.alpha = 1.0 if site.layer == 1 else float(site.connections)
        self.outer_norm = nn.Identity() if site.layer == 1 else site.norm()

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        branch = sublayer(self.norm(x))
        return self.outer_norm(self.alpha * x + branch)

    @classmethod
    def final(cls, site: Site) -> nn.Module:
        return site.norm() if site.layers == 1 else nn.Identity()

    def describe(self) -> dict[str, float]:
        return {"alpha": self.alpha}
