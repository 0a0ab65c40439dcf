"""Sub-LN: x <- x + W_out·LN(f(LN(x))): Pre-LN, with an LN before the last matrix of self-attention and of the FFN.

Wang et al. 2022, "Foundation Transformers" (Magneto, arXiv 2210.06423), section 2. v, out and both FFN matrices have
their Xavier gain multiplied by γ:

    encoder-only, decoder-only    √ln(2N), √ln(2M)
    encoder-decoder               √(ln(3M)·ln(2N)/3) in the encoder, √ln(3M) in the decoder

Cross-attention is plain Pre-LN with gain 1, as in the authors' torchscale. The gate of a gated FFN, which the paper
does not have, keeps gain 1.
"""

from __future__ import annotations

import math

from torch import nn

from leadline.placement.base import Role, Site
from leadline.placement.pre_ln import PreLN


def gamma(site: Site) -> float:
    N, M = site.encoder_layers, site.decoder_layers
    if site.architecture != "encoder-decoder":
        return math.sqrt(math.log(2 * (N or M)))
    if site.stack == "encoder":
        return math.sqrt(math.log(3 * M) * math.log(2 * N) / 3)
    return math.sqrt(math.log(3 * M))


class SubLN(PreLN):
    base = "xavier"

    def inside(self, role: Role, width: int, heads: int) -> nn.Module:
        return nn.Identity() if self.site.kind == "cross" else self.site.norm(width)

    @classmethod
    def gain(cls, role: Role, site: Site) -> float:
        return 1.0 if role in ("q", "k", "ffn_gate", "embed") or site.kind == "cross" else gamma(site)

    def describe(self) -> dict[str, float]:
        return {"gamma": gamma(self.site)}
