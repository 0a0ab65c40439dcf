"""Admin: x <- LN(ω·x + f(x)), with a learned vector ω for each connection.

Liu et al. 2020, "Understanding the Difficulty of Training Transformers" (arXiv 2004.08249), section 4. One pass over a
batch, from the bottom of a stack to its top, sets every ω to the size the stream would have without norms:

    ω_1 = 1,   ω_{i+1}² = Var[ω_i·x_{i-1}] + Var[f_i(x_{i-1})]

x_{i-1} has variance 1 for i > 1, so ω² adds up the variances of the branches below. The variance is over all tokens and
dimensions, filler included and without dropout. Admin-constant needs no data: one ω for the n connections of a stack,

    ω = √((n+1)/ln(n+1) - 1)

which makes the change of the output O(log n) (the authors' package admin-torch).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from leadline.placement.base import Placement, Site, tensor


def _variance(x: Tensor) -> Tensor:
    return x.float().var(correction=0)


class Admin(Placement):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.norm()
        self.omega = nn.Parameter(torch.ones(site.dim))
        self.below: list[float] | None = None  # while a stack is profiled, shared by it: ω² for the next connection

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        x, branch = tensor(x), tensor(sublayer(x))
        if self.below is not None:
            self.omega.fill_(math.sqrt(self.below[0]))
            self.below[0] = float(_variance(self.omega * x) + _variance(branch))
        return self.norm(self.omega * x + branch)

    @classmethod
    def calibrate(cls, connections: Sequence[Self], forward: Callable[[], object]) -> None:
        below = [1.0]
        for connection in connections:
            connection.below = below
        try:
            forward()
        finally:
            for connection in connections:
                connection.below = None

    def describe(self) -> dict[str, float]:
        return {} if self.omega.is_meta else {"omega": float(self.omega.mean())}


class AdminConstant(Placement):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.norm()
        n = site.connections
        self.omega = math.sqrt((n + 1) / math.log(n + 1) - 1)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm(self.omega * x + sublayer(x))

    def describe(self) -> dict[str, float]:
        return {"omega": self.omega}
