"""Rotary positions: what a query and a key say to each other depends on how far apart they are, and on nothing else.

    (x_i, x_{i+d/2}) <- (x_i·cos a - x_{i+d/2}·sin a, x_{i+d/2}·cos a + x_i·sin a),   a = p·θ^(-2i/d),   i < d/2

Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding" (arXiv 2104.09864), section 3.2, with
the pairs half a head apart, as GPT-NeoX, Llama and all of transformers have them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotations(longest: int, width: int, theta: float) -> Tensor:
    """[longest, 2, width/2]: cos a and sin a of each position."""
    angles = torch.arange(longest)[:, None] * (1.0 / theta ** (torch.arange(0, width, 2) / width))  # as transformers
    return torch.stack([angles.cos(), angles.sin()], 1)


def rotate(x_THd: Tensor, table: Tensor, positions_T: Tensor) -> Tensor:
    """Every head of every token, turned by its position."""
    cos, sin = table[positions_T][:, :, None].unbind(1)  # [T, 1, d/2]
    one, other = x_THd.float().chunk(2, -1)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1).to(x_THd.dtype)
