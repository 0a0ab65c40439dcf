"""Dropout that is quick on a CPU: torch draws a double for every number there, this 16 bits (p to one part in 65,536).

Elsewhere, and where torch.compile looks, it is torch's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p or x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        return _Dropout.apply(x, self.p)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        drawn = words.view(torch.int16)[: x.numel()].view(x.shape)
        # 1 and 0 to multiply with: masked_fill takes several times as long.
        kept = drawn.to(torch.float32).ge_(-(2**15) + round(p * 2**16)).to(x.dtype)
        ctx.save_for_backward(kept)
        ctx.scale = 1 / (1 - p)
        return x.mul(kept).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient.mul(ctx.saved_tensors[0]).mul_(ctx.scale), None
