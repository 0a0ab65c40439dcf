"""Muon for the matrices of the blocks, AdamW for all else: embeddings, output, heads, norms and biases.

    B ← μ·B + (1 - μ)·G
    W ← (1 - lr·decay)·W - lr·0.2·√max(rows, columns)·O(μ·B + (1 - μ)·G)

O replaces the singular values of a matrix by about 1, with five Newton-Schulz iterations (Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon). The factor gives steps the size that AdamW's usually have, so that both have
one learning rate (Liu et al. 2025, arXiv 2502.16982). torch.optim.Muon with adjust_lr_fn="match_rms_adamw" is the same,
but takes q, k and v, or a gate and what it gates, for one matrix where they are computed by one product.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Set
from typing import Any

import torch
from torch import Tensor, nn

from leadline.config import OptimConfig
from leadline.model.block import Block
from leadline.model.layers import Linear

MOMENTUM = 0.95
SHARE = 0.2  # the root mean square of AdamW's steps, in learning rates
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
EPS = 1e-7


class Muon(torch.optim.Optimizer):
    def __init__(
        self,
        config: OptimConfig,
        model: nn.Module,
        spared: Set[nn.Parameter],
        adamw: Callable[[OptimConfig, list[nn.Parameter], list[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        """`adamw` makes one, of what decays and what is `spared`."""
        linears = [m for block in model.modules() if isinstance(block, Block) for m in block.modules()]
        sizes = {m.weight: m.sizes for m in linears if isinstance(m, Linear) and m.weight.requires_grad}
        super().__init__([{"params": [*sizes], "lr": config.known_lr, "weight_decay": config.weight_decay}], {})
        others = [p for p in model.parameters() if p.requires_grad and p not in sizes]
        decayed = [p for p in others if p not in spared]
        self.sizes = sizes  # rows of each role's own matrix
        self.adamw = adamw(dataclasses.replace(config, name="adamw"), decayed, [p for p in others if p in spared])
        self.param_groups = [*self.adamw.param_groups, *self.param_groups]
        self.state = self.adamw.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.adamw.step()
        lr, decay = self.param_groups[-1]["lr"], self.param_groups[-1]["weight_decay"]
        for p, rows in self.sizes.items():
            if p.grad is None:
                continue
            state = self.state[p]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(p)
            momentum = state["momentum_buffer"].lerp_(p.grad, 1 - MOMENTUM)
            p.mul_(1 - lr * decay)
            for matrix, ahead in zip(p.split(rows), p.grad.lerp(momentum, MOMENTUM).split(rows), strict=True):
                matrix.add_(orthogonal(ahead), alpha=-lr * SHARE * max(matrix.shape) ** 0.5)


def orthogonal(g: Tensor) -> Tensor:
    """With its singular vectors, and singular values of about 1; in 16 bits, which is enough for that."""
    a, b, c = COEFFICIENTS
    x = (g if g.shape[0] <= g.shape[1] else g.T).to(torch.bfloat16)
    x = x / x.norm().clamp(min=EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if g.shape[0] <= g.shape[1] else x.T
