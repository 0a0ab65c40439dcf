"""ReZero: x <- x + a·f(x), no norm, with one learned number a for each layer that starts at 0.

Bachlechner et al. 2020, "ReZero is All You Need: Fast Convergence at Large Depth" (arXiv 2003.04887), section 4: the
sublayers of a layer share their a. At initialisation the model is the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from leadline.placement.base import Placement, Site, tensor


class ReZero(Placement):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.a = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.a * tensor(sublayer(x))

    @classmethod
    def tie(cls, layer: Sequence[Self]) -> None:
        for connection in layer[1:]:
            connection.a = layer[0].a
