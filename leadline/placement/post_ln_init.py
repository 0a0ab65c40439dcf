"""Post-LN-init: x <- LN(x + f(x)), with the weights of layer l of L divided by L - l + 1.

Wang et al. 2022 (arXiv 2203.00555), section 3: Post-LN made to converge by its initialisation alone. Its gradients
near the output are larger than Post-LN's, which shows that exploding updates, not gradients, are the root cause.
"""

from __future__ import annotations

from leadline.placement.base import Role, Site
from leadline.placement.post_ln import PostLN


class PostLNInit(PostLN):
    @classmethod
    def gain(cls, role: Role, site: Site) -> float:
        return 1.0 if role == "embed" else 1 / (site.layers - site.layer + 1)
