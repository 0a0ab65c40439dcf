"""T-Fixup: x <- x + f(x), no norm and no warm-up: the initialisation alone keeps the update bounded.

Huang et al. 2020, "Improving Transformer Optimization Through Better Initialization" (ICML 2020), section 3. Xavier for
all matrices; then v, out and both FFN matrices are scaled by 0.67·N^-¼ in the encoder and (9M)^-¼ in the decoder, and
the embeddings, N(0, 1/D), by (9N)^-¼. q and k are left as they are.

The authors' code also multiplies v by √2, because its base (fairseq) draws q, k and v with gain 1/√2. Ours draws v with
gain 1, so the factor is there already. Theirs leaves q and k at 1/√2, the paper's text at 1; so do we.
The paper has no encoder-only or decoder-only models and no gated FFN; the gate is left as it is, like q and k.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from leadline.placement.base import Placement, Role, Site


class TFixup(Placement):
    architectures = ("encoder-decoder",)
    base = "xavier"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + sublayer(x)

    @classmethod
    def gain(cls, role: Role, site: Site) -> float:
        if role in ("q", "k", "ffn_gate"):
            return 1.0
        if role == "embed":
            return (9 * site.encoder_layers) ** -0.25
        return 0.67 * site.encoder_layers**-0.25 if site.stack == "encoder" else (9 * site.decoder_layers) ** -0.25
