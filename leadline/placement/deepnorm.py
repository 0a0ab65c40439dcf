"""DeepNorm: x <- LN(α·x + f(x)), with v, out and both FFN matrices initialised β times smaller.

Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers" (arXiv 2203.00555), Figure 2. α and β depend
on N encoder and M decoder layers so that the model's update stays bounded at any depth, as far as matrices and steps of
SGD go (docs/theory.md: with Adam the rate must fall with depth). q and k keep gain 1, and biases are not scaled. Nor is
the gate of a gated FFN, which the paper does not have: the product of the other two is then what the paper bounds.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from leadline.placement.base import Placement, Role, Site


def alpha_beta(site: Site) -> tuple[float, float]:
    N, M = site.encoder_layers, site.decoder_layers
    if M == 0:
        return (2 * N) ** 0.25, (8 * N) ** -0.25
    if N == 0:
        return (2 * M) ** 0.25, (8 * M) ** -0.25
    if site.stack == "encoder":
        return 0.81 * (N**4 * M) ** (1 / 16), 0.87 * (N**4 * M) ** (-1 / 16)
    return (3 * M) ** 0.25, (12 * M) ** -0.25


class DeepNorm(Placement):
    """LN(α·x + f(x)), weights × β, with α and β of the numbers of layers."""

    base = "xavier"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.norm()
        self.alpha, self.beta = alpha_beta(site)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm(self.alpha * x + sublayer(x))

    @classmethod
    def gain(cls, role: Role, site: Site) -> float:
        return 1.0 if role in ("q", "k", "ffn_gate", "embed") else alpha_beta(site)[1]

    def describe(self) -> dict[str, float]:
        return {"alpha": self.alpha, "beta": self.beta}
