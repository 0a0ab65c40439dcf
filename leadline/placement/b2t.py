"""B2T: Post-LN, with the layer's input added again before the layer's last LN.

    x' <- LN(x + f_1(x)),  …,  x <- LN(x' + f_n(x') + x_in)         x_in: what entered the layer

Takase et al. 2022, "B2T Connection: Serving Stability and Performance in Deep Transformers" (arXiv 2206.00330),
section 4: the input of a layer bypasses all its LNs but the last. Within a layer the stream is (x, x_in). The authors'
code also multiplies a layer's initial weights by layers^-½, which is not part of the equation and not done here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from leadline.placement.base import Placement, Site, tensor


class B2T(Placement):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.norm()
        self.first, self.last = site.kind == site.kinds[0], site.kind == site.kinds[-1]

    def forward(self, x: Any, sublayer: Callable[[Tensor], Tensor]) -> Any:
        x, entered = (x, x) if self.first else x
        if self.last:
            return self.norm(x + sublayer(x) + tensor(entered))
        return self.norm(x + sublayer(x)), entered

    def stream(self, x: Any) -> Tensor:
        return x if self.last else x[0]
