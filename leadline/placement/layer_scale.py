"""LayerScale: x <- x + λ⊙f(LN(x)), with a learned vector λ for each connection that starts small; one LN at the end.

Touvron et al. 2021, "Going deeper with Image Transformers" (CaiT, arXiv 2103.17239), section 2: λ starts at 0.1 up to
18 layers, at 1e-5 up to 24, at 1e-6 above. The paper has one stack; here each stack counts its own layers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from leadline.placement.base import Site, tensor
from leadline.placement.pre_ln import PreLN


def start(layers: int) -> float:
    return 0.1 if layers <= 18 else 1e-5 if layers <= 24 else 1e-6


class LayerScale(PreLN):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.scale = nn.Parameter(torch.full((site.dim,), start(site.layers)))

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.scale * tensor(sublayer(self.norm(x)))

    def describe(self) -> dict[str, float]:
        return {"lambda": start(self.site.layers)}
