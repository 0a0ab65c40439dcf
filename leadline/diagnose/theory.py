"""What the papers say a freshly initialised Transformer should measure, as far as verdict, advice and pages use it.

    Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture" (arXiv 2002.04745)
    Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers" (arXiv 2203.00555)

Plain arithmetic, without torch and without the placements: a prediction shares no code with what it judges.
d is the width, L the number of layers; layers are counted from 0, so x_l is the stream after l layers. Xiong et al.
assume Xavier matrices of d×d, uniform attention and inputs of squared norm d. The papers' other claims are checked in
tests/diagnose/theory_reference.py.
"""

from __future__ import annotations

import math
from typing import Literal

PlacementName = Literal["post_ln", "pre_ln"]


def at_least(least: float, **numbers: float) -> None:
    for name, number in numbers.items():
        if not number >= least:
            raise ValueError(f"{name} is {number}, but must be at least {least}")


# --- Xiong et al. 2020: the size of the hidden states -----------------------------------------------------------------


def post_ln_squared_norm(dim: int) -> float:
    """E‖x_l^{post,5}‖² = 3d/2, the input of a layer's second LN: d from x^{post,3}, d/2 from the FFN.

    Xiong et al. 2020, Lemma 2, equation 13. Exact in every layer, whatever the attention does: x^{post,3} leaves an LN.
    """
    at_least(1, dim=dim)
    return 1.5 * dim


def pre_ln_squared_norm(layer: int, dim: int) -> tuple[float, float]:
    """(1 + l/2)d ≤ E‖x_l‖² ≤ (1 + 3l/2)d. Xiong et al. 2020, Lemma 2, equations 14-20.

    A layer adds d/2 by its FFN and ‖mean over positions of LN(x)‖² ≤ d by its attention (equation 17). With one
    position that mean is LN(x) itself: then the upper bound is the value. The lower one needs positions that average
    out; a ReLU makes them alike, so x nears a growth of 3d/2 a layer.
    """
    at_least(0, layer=layer)
    at_least(1, dim=dim)
    return (1 + 0.5 * layer) * dim, (1 + 1.5 * layer) * dim


# --- Xiong et al. 2020: gradients -------------------------------------------------------------------------------------


def post_ln_gradient_profile(layers: int) -> list[float]:
    """‖∂L/∂W^{2,l}‖ over that of the last layer, from the input to the output: (2/3)^{(L−l)/2}, √d/‖x^{post,5}‖ of each
    layer above. Xiong et al. 2020, appendix F.

    It is one of four factors a layer; together they fall only where there is cross-attention (docs/theory.md).
    """
    return [(2 / 3) ** ((layers - 1 - layer) / 2) for layer in range(layers)]


def pre_ln_gradient_profile(layers: int) -> list[float]:
    """The same of Pre-LN: it does not depend on l where l is near L. Xiong et al. 2020, appendix F, equations 63-64."""
    return [1.0] * layers


def one_position_gradient_profile(placement: PlacementName, layers: int) -> list[float]:
    """The same profile with every factor of equations 57-64 kept; ours, not the paper's. One position, d → ∞.

    Post-LN: a layer multiplies the squared gradient by 2/3 · (1 + 1/2) in its FFN and 1/2 · (1 + 1) in its attention.
    Pre-LN: 1 + (1/2)d/‖x^{pre,3}‖² and 1 + d/‖x^{pre}‖² make gradient² · ‖x‖² the same in every layer, which with
    Lemma 2 is √((1 + 3L/2) / (1 + 3(l+1)/2)): near 1 where l is near L, and growing towards the input.
    """
    at_least(1, layers=layers)
    if placement == "post_ln":
        return [1.0] * layers
    return [math.sqrt((1 + 1.5 * layers) / (1 + 1.5 * (layer + 1))) for layer in range(layers)]


# --- Wang et al. 2022, DeepNet ----------------------------------------------------------------------------------------


def deepnet_constants(encoder_layers: int, decoder_layers: int) -> dict[str, float]:
    """α and β of the stacks there are: "encoder_alpha", "encoder_beta", "decoder_alpha", "decoder_beta".

        one stack of N           α = (2N)^¼              β = (8N)^−¼
        encoder of N-M           α = 0.81(N⁴M)^(1/16)    β = 0.87(N⁴M)^(−1/16)
        decoder of N-M           α = (3M)^¼              β = (12M)^−¼

    Wang et al. 2022, Figure 2: the choices that keep Theorems 4.2 and 4.3 at ‖ΔF‖ = Θ(η).
    """
    N, M = encoder_layers, decoder_layers
    at_least(0, encoder_layers=N, decoder_layers=M)
    at_least(1, layers=N + M)
    if N and M:
        growth = math.exp((4 * math.log(N) + math.log(M)) / 16)
        return {
            "encoder_alpha": 0.81 * growth,
            "encoder_beta": 0.87 / growth,
            "decoder_alpha": math.sqrt(math.sqrt(3 * M)),
            "decoder_beta": 1 / math.sqrt(math.sqrt(12 * M)),
        }
    stack, layers = ("encoder", N) if N else ("decoder", M)
    return {f"{stack}_alpha": math.sqrt(math.sqrt(2 * layers)), f"{stack}_beta": 1 / math.sqrt(math.sqrt(8 * layers))}


def admin_constant(connections: int) -> float:
    """ω = √((n+1)/ln(n+1) − 1): Admin without profiling, for n residual connections in a stack (Liu et al. 2020)."""
    at_least(1, connections=connections)
    return math.sqrt((connections + 1) / math.log(connections + 1) - 1)
