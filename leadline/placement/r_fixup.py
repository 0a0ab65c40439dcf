"""R-Fixup: x <- x + s·f(x + b) + c, no norm, with learned numbers s, b and c for each connection.

Zhang et al. 2019, "Fixup Initialization: Residual Learning Without Normalization" (arXiv 1901.09321), whose rule
DeepNet compares with as R-Fixup: with L residual connections in the model (2N + 3M), a branch of m matrices scales them
by L^(-1/(2m-2)): the first matrix of the FFN (m = 2) by L^-½, the four of attention (m = 4) by L^-1/6. The last matrix
of the FFN starts at 0, and the gate of a gated FFN at Xavier: the matrices before the last then still have the product
that the rule asks for. s starts at 1, b and c at 0. Fixup's scalar biases inside the branch are the matrices' own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from leadline.placement.base import Placement, Role, Site, tensor


def connections_of_model(site: Site) -> int:
    N, M = site.encoder_layers, site.decoder_layers
    return 2 * N + (3 if N else 2) * M


class RFixup(Placement):
    base = "xavier"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.scale = nn.Parameter(torch.ones(1))
        self.shift_in = nn.Parameter(torch.zeros(1))
        self.shift_out = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.scale * tensor(sublayer(x + self.shift_in)) + self.shift_out

    @classmethod
    def gain(cls, role: Role, site: Site) -> float:
        if role in ("embed", "ffn_gate"):
            return 1.0
        if role == "ffn_out":
            return 0.0
        return connections_of_model(site) ** (-1 / 2 if role == "ffn_in" else -1 / 6)
