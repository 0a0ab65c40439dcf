"""ResiDual: a Post-LN stream x, and a second stream r that sums the branches and is normalised once, at the end.

    x <- LN(x + f(x)),   r <- r + f(x),   both from the embeddings;   the stack gives x + LN(r)

Xie et al. 2023, "ResiDual: Transformer with Dual Residual Connections" (arXiv 2304.14802), section 3. The
stream is (x, r).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from leadline.placement.base import Placement, Site, tensor

Dual = tuple[Tensor, Tensor]


class Begin(nn.Module):
    def forward(self, x: Tensor) -> Dual:
        return x, x


class End(nn.Module):
    def __init__(self, site: Site) -> None:
        super().__init__()
        self.norm = site.norm()

    def forward(self, both: Dual) -> Tensor:
        x, r = both
        return x + self.norm(r)


class ResiDual(Placement):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.norm()

    def forward(self, both: Dual, sublayer: Callable[[Tensor], Tensor]) -> Dual:  # type: ignore[override]
        x, r = both
        branch = tensor(sublayer(x))
        return self.norm(x + branch), r + branch

    @classmethod
    def opens(cls, site: Site) -> nn.Module:
        return Begin()

    @classmethod
    def final(cls, site: Site) -> nn.Module:
        return End(site)

    def stream(self, both: Dual) -> Tensor:
        return both[0]
