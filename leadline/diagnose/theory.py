"""What the papers say a freshly initialised Transformer should measure: one function a claim.

    Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture" (arXiv 2002.04745)
    Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers" (arXiv 2203.00555)

Plain arithmetic, without torch and without the placements: a prediction shares no code with what it judges.
d is the width, L the number of layers; layers are counted from 0, so x_l is the stream after l layers. Xiong et al.
assume Xavier matrices of d×d, uniform attention and inputs of squared norm d.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["equality", "bounds", "upper_bound", "scaling"]
PlacementName = Literal["post_ln", "pre_ln"]


@dataclass(frozen=True)
class Prediction:
    """A number a claim gives, and the interval it allows. "scaling": true up to a constant, so only ratios count."""

    claim: str
    value: float
    low: float | None
    high: float | None
    kind: Kind
    note: str = ""


def _equality(claim: str, value: float, note: str = "") -> Prediction:
    return Prediction(claim, value, value, value, "equality", note)


def _bounds(claim: str, low: float, high: float, note: str = "") -> Prediction:
    return Prediction(claim, (low + high) / 2, low, high, "bounds", note)


def _upper_bound(claim: str, value: float, note: str = "") -> Prediction:
    return Prediction(claim, value, None, value, "upper_bound", note)


def _scaling(claim: str, value: float, note: str = "") -> Prediction:
    return Prediction(claim, value, None, None, "scaling", note)


def _at_least(least: float, **numbers: float) -> None:
    for name, number in numbers.items():
        if not number >= least:
            raise ValueError(f"{name} is {number}, but must be at least {least}")


def _layer_of(layer: int, layers: int) -> None:
    if not 0 <= layer < layers:
        raise ValueError(f"layer is {layer}, but the layers of a stack of {layers} are 0 to {layers - 1}")


# --- Xiong et al. 2020: the size of the hidden states -----------------------------------------------------------------


def relu_squared_norm(sigma: float, dim: int) -> Prediction:
    """E‖ReLU(X)‖² = ½σ²d for X ~ N(0, σ²I). Xiong et al. 2020, Lemma 1."""
    _at_least(0, sigma=sigma)
    _at_least(1, dim=dim)
    return _equality("Xiong et al. 2020, Lemma 1", sigma**2 * dim / 2)


def post_ln_squared_norm(dim: int) -> Prediction:
    """E‖x_l^{post,5}‖² = 3d/2, the input of a layer's second LN: d from x^{post,3}, d/2 from the FFN.

    Xiong et al. 2020, Lemma 2, equation 13. Exact in every layer, whatever the attention does: x^{post,3} leaves an LN.
    """
    _at_least(1, dim=dim)
    return _equality("Xiong et al. 2020, Lemma 2 (Post-LN)", 1.5 * dim)


def pre_ln_squared_norm(layer: int, dim: int, positions: int | None = None) -> Prediction:
    """(1 + l/2)d ≤ E‖x_l‖² ≤ (1 + 3l/2)d. Xiong et al. 2020, Lemma 2, equations 14-20.

    A layer adds d/2 by its FFN and ‖mean over positions of LN(x)‖² ≤ d by its attention (equation 17). With one
    position that mean is LN(x) itself: then the upper bound is the value.
    """
    _at_least(0, layer=layer)
    _at_least(1, dim=dim, positions=1 if positions is None else positions)
    claim = "Xiong et al. 2020, Lemma 2 (Pre-LN)"
    high = (1 + 1.5 * layer) * dim
    if positions == 1 or layer == 0:
        return _equality(claim, high)
    note = (
        "the lower bound needs positions that average out; a ReLU makes them alike, so x nears a growth of 3d/2 a layer"
    )
    return _bounds(claim, (1 + 0.5 * layer) * dim, high, note)


def pre_ln_hidden_norm(layer: int, dim: int, ffn_dim: int | None = None) -> Prediction:
    """‖x_l‖ between √((1 + s·l)d) and √((1 + (1+s)l)d), s = ½: the roots of Xiong et al. 2020, Lemma 2.

    With an FFN of width r·d, Lemma 1 gives s = 2r/(1+r)² under Xavier initialisation: 4/9 for r = 2, 8/25 for r = 4.
    """
    _at_least(0, layer=layer)
    _at_least(1, dim=dim, ffn_dim=1 if ffn_dim is None else ffn_dim)
    ratio = 1 if ffn_dim is None else ffn_dim / dim
    ffn = 2 * ratio / (1 + ratio) ** 2
    low, high = (math.sqrt((1 + share * layer) * dim) for share in (ffn, 1 + ffn))
    note = "root of an expected square; an input of squared norm d and two sublayers a layer"
    return _bounds("Xiong et al. 2020, Lemma 2 (Pre-LN)", low, high, note)


# --- Xiong et al. 2020: layer normalisation ---------------------------------------------------------------------------


def _centred(x: Sequence[float]) -> tuple[list[float], float]:
    """y = x − mean and ‖y‖."""
    mean = math.fsum(x) / len(x) if x else 0.0
    y = [value - mean for value in x]
    norm = math.hypot(*y)
    if norm == 0:
        raise ValueError("x needs two different entries: layer normalisation has no derivative at a constant vector")
    return y, norm


def norm_jacobian(x: Sequence[float]) -> Prediction:
    """‖J_LN(x)‖₂ = √d/‖y‖ with y = x − mean. Xiong et al. 2020, Lemma 3, equations 28-29.

    The paper writes O(√d/‖x‖), which is the same only while the mean of x is small against its spread.
    """
    _, norm = _centred(x)
    # J is a projection onto d−2 directions, scaled; with d = 2 none is left.
    return _equality("Xiong et al. 2020, Lemma 3", math.sqrt(len(x)) / norm if len(x) > 2 else 0.0)


def norm_jacobian_matrix(x: Sequence[float]) -> list[list[float]]:
    """J_LN(x) = √d/‖y‖ · (I − yᵀy/‖y‖²)(I − 11ᵀ/d). Xiong et al. 2020, Lemma 3, equation 28."""
    y, norm = _centred(x)
    d = len(x)
    scale = math.sqrt(d) / norm
    unit = [value / norm for value in y]
    # y·1 = 0, so the product of the two projections is I − 11ᵀ/d − yᵀy/‖y‖².
    return [[scale * ((i == j) - 1 / d - unit[i] * unit[j]) for j in range(d)] for i in range(d)]


# --- Xiong et al. 2020: concentration and gradients -------------------------------------------------------------------


def is_bounded(values: Sequence[float], epsilon: float, delta: float) -> bool:
    """(ε,δ)-bounded: (Z − EZ)/EZ ≤ ε with probability at least 1 − δ. Xiong et al. 2020, Definition 1, on a sample.

    They measure hidden norms to be (0.1, 0.125)-bounded.
    """
    if not values or min(values) < 0 or max(values) == 0:
        raise ValueError("Definition 1 speaks of a variable ≥ 0 with a mean above 0: give a sample of such values")
    mean = math.fsum(values) / len(values)
    return sum((value - mean) / mean > epsilon for value in values) / len(values) <= delta


def gaussian_delta(dim: int, epsilon: float) -> Prediction:
    """‖Y‖² of a standard Gaussian Y in d dimensions is (ε,δ)-bounded with δ = exp(−dε²/8), 0 < ε < 1.

    Xiong et al. 2020, section 3.3 and equation 66.
    """
    _at_least(1, dim=dim)
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon is {epsilon}, but the bound holds between 0 and 1")
    return _upper_bound("Xiong et al. 2020, Definition 1 (Gaussian)", math.exp(-dim * epsilon**2 / 8))


def last_gradient_probability(epsilon: float, delta: float) -> Prediction:
    """Theorem 1 holds with probability at least 0.99 − δ − ε/(0.9 + ε) for (ε,δ)-bounded states. Xiong et al. 2020."""
    _at_least(0, epsilon=epsilon, delta=delta)
    low = max(0.0, 0.99 - delta - epsilon / (0.9 + epsilon))
    return Prediction("Xiong et al. 2020, Theorem 1 (probability)", low, low, 1.0, "bounds")


def post_ln_last_gradient(dim: int) -> Prediction:
    """‖∂L/∂W^{2,L}‖_F ≤ O(d√ln d) at any depth. Xiong et al. 2020, Theorem 1 (Post-LN)."""
    _at_least(2, dim=dim)
    note = "flat in the depth; loose in the width, where √d is measured"
    return _scaling("Xiong et al. 2020, Theorem 1 (Post-LN)", dim * math.sqrt(math.log(dim)), note)


def pre_ln_last_gradient(dim: int, layers: int) -> Prediction:
    """‖∂L/∂W^{2,L}‖_F ≤ O(d√(ln d / L)). Xiong et al. 2020, Theorem 1 (Pre-LN)."""
    _at_least(2, dim=dim)
    _at_least(1, layers=layers)
    note = "falls with the depth; loose in the width, where √d is measured"
    return _scaling("Xiong et al. 2020, Theorem 1 (Pre-LN)", dim * math.sqrt(math.log(dim) / layers), note)


def post_ln_layer_factor(layer: int, layers: int) -> Prediction:
    """‖∂L/∂W^{2,l}‖ contains (2/3)^{(L−l)/2}: √d/‖x^{post,5}‖ of each layer above. Xiong et al. 2020, appendix F."""
    _layer_of(layer, layers)
    note = (
        "one of four factors a layer; together they fall only where there is cross-attention: see the derived profiles"
    )
    return _scaling("Xiong et al. 2020, appendix F (Post-LN)", (2 / 3) ** ((layers - 1 - layer) / 2), note)


def pre_ln_layer_factor(layer: int, layers: int) -> Prediction:
    """‖∂L/∂W^{2,l}‖ does not depend on l where l is large. Xiong et al. 2020, appendix F, equations 63-64."""
    _layer_of(layer, layers)
    note = "holds for l/L near 1, and grows towards the input: see one_position_gradient_profile"
    return _scaling("Xiong et al. 2020, appendix F (Pre-LN)", 1.0, note)


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
    _at_least(1, layers=layers)
    if placement == "post_ln":
        ratios = [1.0] * layers
    elif placement == "pre_ln":
        ratios = [math.sqrt((1 + 1.5 * layers) / (1 + 1.5 * (layer + 1))) for layer in range(layers)]
    else:
        raise ValueError(f"placement is {placement!r}, but the choices are post_ln and pre_ln")
    return [_equality("derived from Xiong et al. 2020, equations 57-64", ratio) for ratio in ratios]


def post_ln_decoder_gradient_profile(layers: int) -> list[Prediction]:
    """The Post-LN profile with cross-attention: (1/2)^{(L−l)/2} where the memory's positions are alike. Ours too.

    Cross-attention adds to the stream a vector of squared norm up to d that leads no gradient back into it, so its LN
    divides the squared gradient by up to 2, and nothing makes up for it.
    """
    _at_least(1, layers=layers)
    low = [0.5 ** ((layers - 1 - layer) / 2) for layer in range(layers)]
    claim = "derived from Xiong et al. 2020, equation 59, for cross-attention"
    return [Prediction(claim, value, value, 1.0, "bounds") for value in low]


# --- Wang et al. 2022, DeepNet ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """The sublayers of a stack in order: the scales v, w of their two matrices, α, and ‖θ* − θ‖ of each."""

    v: Sequence[float]
    w: Sequence[float]
    alpha: float
    changes: Sequence[float]

    def __post_init__(self) -> None:
        if not len(self.v) == len(self.w) == len(self.changes):
            raise ValueError(f"{len(self.v)} v, {len(self.w)} w and {len(self.changes)} changes: give one a sublayer")
        if not self.alpha > 0:
            raise ValueError(f"alpha is {self.alpha}, but must be above 0")

    def update(self) -> float:
        terms = zip(self.v, self.w, self.changes, strict=True)
        return math.fsum(math.hypot(v, w) / self.alpha * change for v, w, change in terms)


def vanilla(changes: Sequence[float]) -> Stack:
    """Post-LN in the terms of DeepNet's theorems: v = w = α = 1."""
    return Stack([1.0] * len(changes), [1.0] * len(changes), 1.0, changes)


def attention_output(value_norms: Sequence[float]) -> Prediction:
    """‖Attn(Q,K,V)‖ has the bound of ‖V W_V W_O‖, whatever W_Q and W_K. Wang et al. 2022, Lemma 4.1.

    A softmax averages, so no output is longer than the longest of the values (given by their norms).
    """
    if not value_norms:
        raise ValueError("attention needs at least one value")
    note = "an equal bound, not an equal size: n unrelated values attended to evenly give 1/√n of it"
    return _upper_bound("Wang et al. 2022, Lemma 4.1", max(value_norms), note)


def update_bound(stack: Stack) -> Prediction:
    """‖ΔF‖ ≤ Σ_{i=1}^{2N} √(v_i² + w_i²)/α · ‖θ*_i − θ_i‖. Wang et al. 2022, Theorem 4.2 (one stack of N layers)."""
    if not stack.v or len(stack.v) % 2:
        raise ValueError(f"{len(stack.v)} sublayers: Theorem 4.2 counts two a layer")
    return _upper_bound("Wang et al. 2022, Theorem 4.2", stack.update())


def encoder_decoder_update_bound(encoder: Stack, decoder: Stack) -> Prediction:
    """‖ΔF‖ ≤ Σ_{j=1}^{M} v_{d,3j−1} w_{d,3j−1}/α_d · Σ_{i=1}^{2N} √(v_e² + w_e²)/α_e · ‖Δθ_e‖
               + Σ_{j=1}^{3M} √(v_d² + w_d²)/α_d · ‖Δθ_d‖.

    Wang et al. 2022, Theorem 4.3. Sublayers 3j−1 of the decoder are its cross-attentions.
    """
    if not encoder.v or len(encoder.v) % 2 or not decoder.v or len(decoder.v) % 3:
        counts = f"{len(encoder.v)} and {len(decoder.v)} sublayers"
        raise ValueError(f"{counts}: Theorem 4.3 counts two a layer in the encoder and three in the decoder")
    through_memory = math.fsum(v * w / decoder.alpha for v, w in zip(decoder.v[1::3], decoder.w[1::3], strict=True))
    return _upper_bound("Wang et al. 2022, Theorem 4.3", through_memory * encoder.update() + decoder.update())


def deepnet_constants(encoder_layers: int, decoder_layers: int) -> dict[str, Prediction]:
    """α and β of the stacks there are: "encoder_alpha", "encoder_beta", "decoder_alpha", "decoder_beta".

        one stack of N           α = (2N)^¼              β = (8N)^−¼
        encoder of N-M           α = 0.81(N⁴M)^(1/16)    β = 0.87(N⁴M)^(−1/16)
        decoder of N-M           α = (3M)^¼              β = (12M)^−¼

    Wang et al. 2022, Figure 2: the choices that keep Theorems 4.2 and 4.3 at ‖ΔF‖ = Θ(η).
    """
    N, M = encoder_layers, decoder_layers
    _at_least(0, encoder_layers=N, decoder_layers=M)
    _at_least(1, layers=N + M)
    found: dict[str, float] = {}
    if N and M:
        growth = math.exp((4 * math.log(N) + math.log(M)) / 16)
        found = {"encoder_alpha": 0.81 * growth, "encoder_beta": 0.87 / growth}
        found |= {"decoder_alpha": math.sqrt(math.sqrt(3 * M)), "decoder_beta": 1 / math.sqrt(math.sqrt(12 * M))}
    else:
        stack, layers = ("encoder", N) if N else ("decoder", M)
        found[f"{stack}_alpha"] = math.sqrt(math.sqrt(2 * layers))
        found[f"{stack}_beta"] = 1 / math.sqrt(math.sqrt(8 * layers))
    return {name: _equality(f"Wang et al. 2022, Figure 2 ({name})", value) for name, value in found.items()}


def admin_constant(connections: int) -> float:
    """ω = √((n+1)/ln(n+1) − 1): Admin without profiling, for n residual connections in a stack (Liu et al. 2020)."""
    _at_least(1, connections=connections)
    return math.sqrt((connections + 1) / math.log(connections + 1) - 1)
