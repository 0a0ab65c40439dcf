"""SiameseNorm: a Post-LN stream x and a Pre-LN stream y that share their sublayers.

    x <- LN(x),   o = f(LN(x + LN(y))),   x <- x + o/√(2l),   y <- y + o     in layer l, both from the embeddings
    the stack gives LN(LN(x) + LN(y))

Li et al. 2026, "SiameseNorm: Breaking the Barrier to Reconciling Pre/Post-Norm" (arXiv 2602.08064). The equation is
that of the authors' code for DeiT; the text of the paper was not at hand, and notes on it leave out the factor 1/√(2l),
the LN of the sum and the last one. Their language model normalises q, k and v instead of attention's input, as
HybridNorm does. The stream is (x, y).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from leadline.placement.base import Placement, Site, tensor
from leadline.placement.resi_dual import Begin, Dual


class End(nn.Module):
    def __init__(self, site: Site) -> None:
        super().__init__()
        self.post_norm, self.pre_norm, self.norm = site.norm(), site.norm(), site.norm()

    def forward(self, both: Dual) -> Tensor:
        x, y = both
        return self.norm(self.post_norm(x) + self.pre_norm(y))


class SiameseNorm(Placement):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.post_norm, self.pre_norm, self.norm = site.norm(), site.norm(), site.norm()
        self.scale = (2 * site.layer) ** -0.5

    def forward(self, both: Dual, sublayer: Callable[[Tensor], Tensor]) -> Dual:  # type: ignore[override]
        x, y = self.post_norm(both[0]), both[1]
        branch = tensor(sublayer(self.norm(x + self.pre_norm(y))))
        return x + self.scale * branch, y + branch

    @classmethod
    def opens(cls, site: Site) -> nn.Module:
        return Begin()

    @classmethod
    def final(cls, site: Site) -> nn.Module:
        return End(site)

    def stream(self, both: Dual) -> Tensor:
        return both[0]

    def describe(self) -> dict[str, float]:
        return {"scale": self.scale}
