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
from dataclasses import dataclass
from typing import Literal

ClaimKind = Literal["equality", "bounds", "upper_bound", "scaling"]
PlacementName = Literal["post_ln", "pre_ln"]


@dataclass(frozen=True)
class Prediction:
    """A number a claim gives, and the interval it allows. "scaling": true up to a constant, so only ratios count."""

    claim: str
    value: float
    low: float | None
    high: float | None
    kind: ClaimKind
    note: str = ""


def equality(claim: str, value: float) -> Prediction:
    return Prediction(claim, value, value, value, "equality")


def bounds(claim: str, low: float, high: float, note: str) -> Prediction:
    return Prediction(claim, (low + high) / 2, low, high, "bounds", note)


def scaling(claim: str, value: float, note: str) -> Prediction:
    return Prediction(claim, value, None, None, "scaling", note)


def at_least(least: float, **numbers: float) -> None:
    for name, number in numbers.items():
        if not number >= least:
            raise ValueError(f"{name} is {number}, but must be at least {least}")


def _layer_of(layer: int, layers: int) -> None:
    if not 0 <= layer < layers:
        raise ValueError(f"layer is {layer}, but the layers of a stack of {layers} are 0 to {layers - 1}")


# --- Xiong et al. 2020: the size of the hidden states -----------------------------------------------------------------


def post_ln_squared_norm(dim: int) -> Prediction:
    """E‖x_l^{post,5}‖² = 3d/2, the input of a layer's second LN: d from x^{post,3}, d/2 from the FFN.

    Xiong et al. 2020, Lemma 2, equation 13. Exact in every layer, whatever the attention does: x^{post,3} leaves an LN.
    """
    at_least(1, dim=dim)
    return equality("Xiong et al. 2020, Lemma 2 (Post-LN)", 1.5 * dim)


def pre_ln_squared_norm(layer: int, dim: int, positions: int | None = None) -> Prediction:
    """(1 + l/2)d ≤ E‖x_l‖² ≤ (1 + 3l/2)d. Xiong et al. 2020, Lemma 2, equations 14-20.

    A layer adds d/2 by its FFN and ‖mean over positions of LN(x)‖² ≤ d by its attention (equation 17). With one
    position that mean is LN(x) itself: then the upper bound is the value.
    """
    at_least(0, layer=layer)
    at_least(1, dim=dim, positions=1 if positions is None else positions)
    claim = "Xiong et al. 2020, Lemma 2 (Pre-LN)"
    high = (1 + 1.5 * layer) * dim
    if positions == 1 or layer == 0:
        return equality(claim, high)
    note = (
        "the lower bound needs positions that average out; a ReLU makes them alike, so x nears a growth of 3d/2 a layer"
    )
    return bounds(claim, (1 + 0.5 * layer) * dim, high, note)


# --- Xiong et al. 2020: gradients -------------------------------------------------------------------------------------


def post_ln_layer_factor(layer: int, layers: int) -> Prediction:
    """‖∂L/∂W^{2,l}‖ contains (2/3)^{(L−l)/2}: √d/‖x^{post,5}‖ of each layer above. Xiong et al. 2020, appendix F."""
    _layer_of(layer, layers)
    note = (
        "one of four factors a layer; together they fall only where there is cross-attention: see the derived profiles"
    )
    return scaling("Xiong et al. 2020, appendix F (Post-LN)", (2 / 3) ** ((layers - 1 - layer) / 2), note)


def pre_ln_layer_factor(layer: int, layers: int) -> Prediction:
    """‖∂L/∂W^{2,l}‖ does not depend on l where l is large. Xiong et al. 2020, appendix F, equations 63-64."""
    _layer_of(layer, layers)
    note = "holds for l/L near 1, and grows towards the input: see one_position_gradient_profile"
    return scaling("Xiong et al. 2020, appendix F (Pre-LN)", 1.0, note)


def post_ln_gradient_profile(layers: int) -> list[Prediction]:
    """‖∂L/∂W^{2,l}‖ over that of the last layer, from the input to the output. Xiong et al. 2020, appendix F."""
    return [post_ln_layer_factor(layer, layers) for layer in range(layers)]


def pre_ln_gradient_profile(layers: int) -> list[Prediction]:
    """‖∂L/∂W^{2,l}‖ over that of the last layer, from the input to the output. Xiong et al. 2020, appendix F."""
    return [pre_ln_layer_factor(layer, layers) for layer in range(layers)]


def one_position_gradient_profile(placement: PlacementName, layers: int) -> list[Prediction]:
    """The same profile with every factor of equations 57-64 kept; ours, not the paper's. One position, d → ∞.

    Post-LN: a layer multiplies the squared gradient by 2/3 · (1 + 1/2) in its FFN and 1/2 · (1 + 1) in its attention.
    Pre-LN: 1 + (1/2)d/‖x^{pre,3}‖² and 1 + d/‖x^{pre}‖² make gradient² · ‖x‖² the same in every layer, which with
    Lemma 2 is √((1 + 3L/2) / (1 + 3(l+1)/2)): near 1 where l is near L, and growing towards the input.
    """
    at_least(1, layers=layers)
    if placement == "post_ln":
        ratios = [1.0] * layers
    elif placement == "pre_ln":
        ratios = [math.sqrt((1 + 1.5 * layers) / (1 + 1.5 * (layer + 1))) for layer in range(layers)]
    else:
        raise ValueError(f"placement is {placement!r}, but the choices are post_ln and pre_ln")
    return [equality("derived from Xiong et al. 2020, equations 57-64", ratio) for ratio in ratios]


# --- Wang et al. 2022, DeepNet ----------------------------------------------------------------------------------------


def deepnet_constants(encoder_layers: int, decoder_layers: int) -> dict[str, Prediction]:
    """α and β of the stacks there are: "encoder_alpha", "encoder_beta", "decoder_alpha", "decoder_beta".

        one stack of N           α = (2N)^¼              β = (8N)^−¼
        encoder of N-M           α = 0.81(N⁴M)^(1/16)    β = 0.87(N⁴M)^(−1/16)
        decoder of N-M           α = (3M)^¼              β = (12M)^−¼

    Wang et al. 2022, Figure 2: the choices that keep Theorems 4.2 and 4.3 at ‖ΔF‖ = Θ(η).
    """
    N, M = encoder_layers, decoder_layers
    at_least(0, encoder_layers=N, decoder_layers=M)
    at_least(1, layers=N + M)
    constants: dict[str, float] = {}
    if N and M:
        growth = math.exp((4 * math.log(N) + math.log(M)) / 16)
        constants = {"encoder_alpha": 0.81 * growth, "encoder_beta": 0.87 / growth}
        constants |= {"decoder_alpha": math.sqrt(math.sqrt(3 * M)), "decoder_beta": 1 / math.sqrt(math.sqrt(12 * M))}
    else:
        stack, layers = ("encoder", N) if N else ("decoder", M)
        constants[f"{stack}_alpha"] = math.sqrt(math.sqrt(2 * layers))
        constants[f"{stack}_beta"] = 1 / math.sqrt(math.sqrt(8 * layers))
    return {name: equality(f"Wang et al. 2022, Figure 2 ({name})", value) for name, value in constants.items()}


def admin_constant(connections: int) -> float:
    """ω = √((n+1)/ln(n+1) − 1): Admin without profiling, for n residual connections in a stack (Liu et al. 2020)."""
    at_least(1, connections=connections)
    return math.sqrt((connections + 1) / math.log(connections + 1) - 1)
