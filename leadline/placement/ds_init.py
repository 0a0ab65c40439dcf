"""DS-Init: x <- LN(x + f(x)), with the weights of layer l scaled by 1/√l.

Zhang et al. 2019, "Improving Deep Transformer with Depth-Scaled Initialization and Merged Attention"
(arXiv 1908.11365), section 4, with its α = 1.
"""

from __future__ import annotations

from leadline.placement.base import Role, Site
from leadline.placement.post_ln import PostLN


class DSInit(PostLN):
    base = "xavier"

    @classmethod
    def gain(cls, role: Role, site: Site) -> float:
        return 1.0 if role == "embed" else site.layer**-0.5
