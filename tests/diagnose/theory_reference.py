"""Claims of both papers that only tests and docs/theory.md check; those the product draws are leadline.diagnose.theory.

Plain arithmetic, in the same terms: d is the width, L the number of layers, counted from 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leadline.diagnose.theory import at_least

Bounds = tuple[float, float]


def relu_squared_norm(sigma: float, dim: int) -> float:
    """E‖ReLU(X)‖² = ½σ²d for X ~ N(0, σ²I). Xiong et al. 2020, Lemma 1."""
    at_least(0, sigma=sigma)
    at_least(1, dim=dim)
    return sigma**2 * dim / 2


def pre_ln_hidden_norm(layer: int, dim: int, ffn_dim: int | None = None) -> Bounds:
    """‖x_l‖ between √((1 + s·l)d) and √((1 + (1+s)l)d), s = ½: the roots of Xiong et al. 2020, Lemma 2.

    They are the roots of expected squares, of an input of squared norm d and two sublayers a layer.

    With an FFN of width r·d, Lemma 1 gives s = 2r/(1+r)² under Xavier initialisation: 4/9 for r = 2, 8/25 for r = 4.
    """
    at_least(0, layer=layer)
    at_least(1, dim=dim, ffn_dim=1 if ffn_dim is None else ffn_dim)
    ratio = 1 if ffn_dim is None else ffn_dim / dim
    ffn = 2 * ratio / (1 + ratio) ** 2
    return math.sqrt((1 + ffn * layer) * dim), math.sqrt((1 + (1 + ffn) * layer) * dim)


def _centred(x: Sequence[float]) -> tuple[list[float], float]:
    """y = x − mean and ‖y‖."""
    mean = math.fsum(x) / len(x) if x else 0.0
    y = [value - mean for value in x]
    norm = math.hypot(*y)
    if norm == 0:
        raise ValueError("x needs two different entries: layer normalisation has no derivative at a constant vector")
    return y, norm


def norm_jacobian(x: Sequence[float]) -> float:
    """‖J_LN(x)‖₂ = √d/‖y‖ with y = x − mean. Xiong et al. 2020, Lemma 3, equations 28-29.

    The paper writes O(√d/‖x‖), which is the same only while the mean of x is small against its spread.
    """
    _, norm = _centred(x)
    # J is a projection onto d−2 directions, scaled; with d = 2 none is left.
    return math.sqrt(len(x)) / norm if len(x) > 2 else 0.0


def norm_jacobian_matrix(x: Sequence[float]) -> list[list[float]]:
    """J_LN(x) = √d/‖y‖ · (I − yᵀy/‖y‖²)(I − 11ᵀ/d). Xiong et al. 2020, Lemma 3, equation 28."""
    y, norm = _centred(x)
    d = len(x)
    scale = math.sqrt(d) / norm
    unit = [value / norm for value in y]
    # y·1 = 0, so the product of the two projections is I − 11ᵀ/d − yᵀy/‖y‖².
    return [[scale * ((i == j) - 1 / d - unit[i] * unit[j]) for j in range(d)] for i in range(d)]


def is_bounded(values: Sequence[float], epsilon: float, delta: float) -> bool:
    """(ε,δ)-bounded: (Z − EZ)/EZ ≤ ε with probability at least 1 − δ. Xiong et al. 2020, Definition 1, on a sample.

    They measure hidden norms to be (0.1, 0.125)-bounded.
    """
    if not values or min(values) < 0 or max(values) == 0:
        raise ValueError("Definition 1 speaks of a variable ≥ 0 with a mean above 0: give a sample of such values")
    mean = math.fsum(values) / len(values)
    return sum((value - mean) / mean > epsilon for value in values) / len(values) <= delta


def gaussian_delta(dim: int, epsilon: float) -> float:
    """‖Y‖² of a standard Gaussian Y in d dimensions is (ε,δ)-bounded with δ = exp(−dε²/8), 0 < ε < 1.

    Xiong et al. 2020, section 3.3 and equation 66.
    """
    at_least(1, dim=dim)
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon is {epsilon}, but the bound holds between 0 and 1")
    return math.exp(-dim * epsilon**2 / 8)


def last_gradient_probability(epsilon: float, delta: float) -> float:
    """Theorem 1 holds with probability at least 0.99 − δ − ε/(0.9 + ε) for (ε,δ)-bounded states. Xiong et al. 2020."""
    at_least(0, epsilon=epsilon, delta=delta)
    return max(0.0, 0.99 - delta - epsilon / (0.9 + epsilon))


def post_ln_last_gradient(dim: int) -> float:
    """‖∂L/∂W^{2,L}‖_F ≤ O(d√ln d) at any depth. Xiong et al. 2020, Theorem 1 (Post-LN).

    True up to a constant, so only ratios count. Loose in the width, where √d is measured.
    """
    at_least(2, dim=dim)
    return dim * math.sqrt(math.log(dim))


def pre_ln_last_gradient(dim: int, layers: int) -> float:
    """‖∂L/∂W^{2,L}‖_F ≤ O(d√(ln d / L)). Xiong et al. 2020, Theorem 1 (Pre-LN). Only ratios count, as above."""
    at_least(2, dim=dim)
    at_least(1, layers=layers)
    return dim * math.sqrt(math.log(dim) / layers)


def post_ln_decoder_gradient_profile(layers: int) -> list[Bounds]:
    """The Post-LN profile with cross-attention: (1/2)^{(L−l)/2} where the memory's positions are alike. Ours too.

    Cross-attention adds to the stream a vector of squared norm up to d that leads no gradient back into it, so its LN
    divides the squared gradient by up to 2, and nothing makes up for it.
    """
    at_least(1, layers=layers)
    return [(0.5 ** ((layers - 1 - layer) / 2), 1.0) for layer in range(layers)]


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


def attention_output(value_norms: Sequence[float]) -> float:
    """‖Attn(Q,K,V)‖ has the bound of ‖V W_V W_O‖, whatever W_Q and W_K. Wang et al. 2022, Lemma 4.1.

    A softmax averages, so no output is longer than the longest of the values (given by their norms).
    It is an equal bound, not an equal size: n unrelated values attended to evenly give 1/√n of it.
    """
    if not value_norms:
        raise ValueError("attention needs at least one value")
    return max(value_norms)


def update_bound(stack: Stack) -> float:
    """‖ΔF‖ ≤ Σ_{i=1}^{2N} √(v_i² + w_i²)/α · ‖θ*_i − θ_i‖. Wang et al. 2022, Theorem 4.2 (one stack of N layers)."""
    if not stack.v or len(stack.v) % 2:
        raise ValueError(f"{len(stack.v)} sublayers: Theorem 4.2 counts two a layer")
    return stack.update()


def encoder_decoder_update_bound(encoder: Stack, decoder: Stack) -> float:
    """‖ΔF‖ ≤ Σ_{j=1}^{M} v_{d,3j−1} w_{d,3j−1}/α_d · Σ_{i=1}^{2N} √(v_e² + w_e²)/α_e · ‖Δθ_e‖
               + Σ_{j=1}^{3M} √(v_d² + w_d²)/α_d · ‖Δθ_d‖.

    Wang et al. 2022, Theorem 4.3. Sublayers 3j−1 of the decoder are its cross-attentions.
    """
    if not encoder.v or len(encoder.v) % 2 or not decoder.v or len(decoder.v) % 3:
        counts = f"{len(encoder.v)} and {len(decoder.v)} sublayers"
        raise ValueError(f"{counts}: Theorem 4.3 counts two a layer in the encoder and three in the decoder")
    through_memory = math.fsum(v * w / decoder.alpha for v, w in zip(decoder.v[1::3], decoder.w[1::3], strict=True))
    return through_memory * encoder.update() + decoder.update()
