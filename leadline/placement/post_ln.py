"""Post-LN: x <- LN(x + f(x)).

Vaswani et al. 2017, "Attention Is All You Need"; analysed by Xiong et al. 2020 (arXiv 2002.04745), who show
that its gradients near the output are large at initialisation, whatever the depth: it needs warm-up.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from leadline.placement.base import Placement, Site


class PostLN(Placement):
    """LN(x + f(x))."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.norm()

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm(x + sublayer(x))
