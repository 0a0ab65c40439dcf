"""Mix-LN: the first quarter of the layers is Post-LN, the rest Pre-LN, and one LN follows the last layer.

Li et al. 2024, "Mix-LN: Unleashing the Power of Deeper Layers by Combining Pre-LN and Post-LN" (arXiv 2412.13795),
section 3, with its share of ¼, rounded down. The paper has one stack; here each stack has its own first quarter.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from leadline.placement.base import Placement, Site
from leadline.placement.post_ln import PostLN
from leadline.placement.pre_ln import PreLN


class MixLN(Placement):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.inner = PostLN(site) if site.layer <= site.layers // 4 else PreLN(site)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.inner(x, sublayer)

    @classmethod
    def final(cls, site: Site) -> nn.Module:
        return site.norm()
