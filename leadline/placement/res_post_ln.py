"""Res-Post-LN: x <- x + LN(f(x)), and one LN after the last layer.

Liu et al. 2022, "Swin Transformer V2" (arXiv 2111.09883), section 3.1, as residual post normalisation; the order of the
norms of OLMo 2 (Team OLMo 2024, "2 OLMo 2 Furious", arXiv 2501.00656, section 3), which also has model.qk_norm=width.
What is added to the stream has the same size, whatever entered the sublayer. Equal to transformers' Olmo2.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from leadline.placement.pre_ln import PreLN


class ResPostLN(PreLN):
    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.norm(sublayer(x))
