"""Layer norm, RMS norm and DyT of a tensor, and of a stream on fused kernels, which does the first two at once."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn


class Lazy(Protocol):
    """A stream or a branch on fused kernels."""

    @property
    def tensor(self) -> Tensor: ...

    def normed_by(self, norm: nn.Module) -> Tensor: ...


class LayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor | Lazy) -> Tensor:
        return super().forward(x) if isinstance(x, Tensor) else x.normed_by(self)


class RMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor | Lazy) -> Tensor:
        return super().forward(x) if isinstance(x, Tensor) else x.normed_by(self)


class DyT(nn.Module):
    """Dynamic Tanh, in place of a norm: γ⊙tanh(a·x) + b, with a learned number a that starts at 0.5.

    Zhu et al. 2025, "Transformers without Normalization" (arXiv 2503.10622), section 4. For large language models the
    paper starts a elsewhere, by width.
    """

    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__()
        self.normalized_shape = (width,)
        self.slope = nn.Parameter(torch.full((1,), 0.5))
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor | Lazy) -> Tensor:
        if not isinstance(x, Tensor):
            return x.normed_by(self)
        y = self.weight * torch.tanh(self.slope * x)
        return y if self.bias is None else y + self.bias
