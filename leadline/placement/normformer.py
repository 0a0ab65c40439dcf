"""NormFormer: Pre-LN with an LN after attention, a learned gain for each head, and an LN after the FFN's activation.

    x <- x + LN(Attention(LN(x)))         the h-th head's output multiplied by γ_h before the projection out
    x <- x + W2·LN(σ(W1·LN(x)))

Shleifer et al. 2021, "NormFormer: Improved Transformer Pretraining with Extra Normalization" (arXiv 2110.09456),
section 2; without the optional residual scaling of small models. The paper has no cross-attention, and the authors'
code in fairseq leaves it as in Pre-LN.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from leadline.placement.base import Role, Site
from leadline.placement.pre_ln import PreLN


class HeadGain(nn.Module):
    """γ_h times what the h-th head says."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(heads))

    def forward(self, x_TD: Tensor) -> Tensor:
        return (x_TD.unflatten(-1, (len(self.gain), -1)) * self.gain[:, None]).flatten(-2)


class NormFormer(PreLN):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.branch_norm = site.norm() if site.kind == "self" else nn.Identity()

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.branch_norm(sublayer(self.norm(x)))

    def inside(self, role: Role, width: int, heads: int) -> nn.Module:
        return {"self": HeadGain(heads), "cross": nn.Identity(), "ffn": self.site.norm(width)}[self.site.kind]
