"""The papers' claims: worked by hand, drawn at random, or computed by another road than the formula."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import theory_reference as reference
import torch
import torch.nn.functional as F
from theory_reference import Stack

from leadline.diagnose import theory
from leadline.placement import DeepNorm, Site


def gaussian(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_predictions_load_neither_torch_nor_what_they_judge() -> None:
    program = "import sys, leadline.diagnose.theory; print(sorted(m for m in sys.modules if m.startswith('leadline')),"
    program += " 'torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['leadline', 'leadline.diagnose', 'leadline.diagnose.theory'] False False\n"


# --- Xiong et al. 2020 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_lemma_1_on_gaussian_vectors(sigma: float) -> None:
    """Ten seeds of ten vectors, d = 512: within 3 %."""
    measured = [F.relu(sigma * gaussian(10, 512, seed=seed)).square().sum(1).mean().item() for seed in range(10)]
    assert sum(measured) / 10 == pytest.approx(reference.relu_squared_norm(sigma, 512), rel=0.03)


def test_lemma_2_by_hand() -> None:
    assert theory.post_ln_squared_norm(8) == 12
    assert theory.pre_ln_squared_norm(4, 8) == (24, 56)
    assert theory.pre_ln_squared_norm(0, 8) == (8, 8)  # the input


def test_hidden_norms_are_the_roots_of_lemma_2() -> None:
    low, high = reference.pre_ln_hidden_norm(5, 64)
    assert (low**2, high**2) == pytest.approx(theory.pre_ln_squared_norm(5, 64))


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_the_share_of_a_wide_ffn_is_that_of_a_random_one(ratio: int) -> None:
    """‖ReLU(x W_1) W_2‖²/d of Xavier matrices, ten seeds at d = 256: within 3 %."""
    d, shares = 256, []
    std = (2 / (d + ratio * d)) ** 0.5
    for seed in range(10):
        x = F.layer_norm(gaussian(16, d, seed=seed), (d,))
        w1, w2 = gaussian(d, ratio * d, seed=seed + 100) * std, gaussian(ratio * d, d, seed=seed + 200) * std
        shares.append(((F.relu(x @ w1) @ w2).square().sum(1) / d).mean().item())
    low, _ = reference.pre_ln_hidden_norm(1, d, ratio * d)
    assert low**2 / d - 1 == pytest.approx(sum(shares) / 10, rel=0.03)


@pytest.mark.parametrize("d", [2, 3, 7, 32])
@pytest.mark.parametrize("mean", [0.0, 10.0])
def test_lemma_3_is_autograds_jacobian(d: int, mean: float) -> None:
    for seed in range(10):
        x = mean + gaussian(d, seed=seed)
        expected = torch.autograd.functional.jacobian(lambda v: F.layer_norm(v, (d,), eps=0.0), x)
        found = torch.tensor(reference.norm_jacobian_matrix(x.tolist()), dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        spectral = torch.linalg.matrix_norm(expected, ord=2).item()
        assert reference.norm_jacobian(x.tolist()) == pytest.approx(spectral, rel=1e-6, abs=1e-6)


def test_the_jacobian_forgets_the_mean_and_the_scale() -> None:
    """LN(x + c) = LN(cx) = LN(x), so J sends the constant vector and y to 0; the other d − 2 directions are kept."""
    x = [3.0, -1.0, 4.0, 1.0, -5.0]
    y = [value - 0.4 for value in x]
    matrix, size = reference.norm_jacobian_matrix(x), reference.norm_jacobian(x)
    for row in matrix:
        assert sum(row) == pytest.approx(0, abs=1e-12)
        assert sum(a * b for a, b in zip(row, y, strict=True)) == pytest.approx(0, abs=1e-12)
    assert sum(matrix[i][i] for i in range(5)) == pytest.approx(3 * size)
    assert reference.norm_jacobian([10 * value for value in x]) == pytest.approx(size / 10)


def test_lemma_3_is_about_the_spread_of_x_and_not_its_size() -> None:
    """Equation 29 ends in O(√d/‖x‖): a large mean makes x long and leaves the Jacobian as it was."""
    x = [1.0, -1.0, 2.0, -2.0]
    far = [value + 1000 for value in x]
    assert reference.norm_jacobian(far) == pytest.approx(reference.norm_jacobian(x))
    assert reference.norm_jacobian(far) > 100 * math.sqrt(4) / math.hypot(*far)


def test_definition_1_counts_only_what_lies_above() -> None:
    one_high = [1.0] * 9 + [11.0]  # mean 2; the last is 4.5 means above it
    assert reference.is_bounded(one_high, epsilon=1, delta=0.1)
    assert not reference.is_bounded(one_high, epsilon=1, delta=0.09)
    assert reference.is_bounded(one_high, epsilon=4.5, delta=0.01)
    one_low = [10.0] * 9 + [0.0]  # mean 9; nine lie 1/9 above it
    assert reference.is_bounded(one_low, epsilon=0.12, delta=0.01)
    assert not reference.is_bounded(one_low, epsilon=0.1, delta=0.8)


@pytest.mark.parametrize(("d", "epsilon"), [(20, 0.5), (100, 0.2), (100, 0.5), (512, 0.1)])
def test_the_gaussian_example_is_bounded_as_it_says(d: int, epsilon: float) -> None:
    sample = gaussian(5000, d, seed=1).square().sum(1).tolist()
    assert reference.is_bounded(sample, epsilon, reference.gaussian_delta(d, epsilon))


def test_the_gaussian_delta_by_hand() -> None:
    assert reference.gaussian_delta(32, 0.5) == pytest.approx(1 / math.e)


def test_theorem_1_by_hand() -> None:
    assert reference.last_gradient_probability(0.1, 0.125) == pytest.approx(0.765)
    assert reference.last_gradient_probability(0.9, 0.6) == 0  # says nothing, rather than −0.11
    assert reference.post_ln_last_gradient(55) == pytest.approx(55 * 2.0018, rel=1e-4)  # ln 55 = 4.0073
    one, four = (reference.pre_ln_last_gradient(55, layers) for layers in (1, 4))
    assert (one, four) == pytest.approx((55 * 2.0018, 55 * 1.0009), rel=1e-4)


def test_appendix_f_by_hand() -> None:
    assert theory.post_ln_gradient_profile(5) == pytest.approx([4 / 9, (2 / 3) ** 1.5, 2 / 3, (2 / 3) ** 0.5, 1])
    assert theory.pre_ln_gradient_profile(3) == [1, 1, 1]
    assert [low for low, _ in reference.post_ln_decoder_gradient_profile(3)] == pytest.approx([1 / 2, 0.5**0.5, 1])


def test_all_factors_of_a_layer_multiply_to_the_one_position_profile() -> None:
    """Forward by Lemma 2, backward by equations 57-64, one sublayer at a time: nothing cancelled on paper."""
    layers = 9
    for placement in ("post_ln", "pre_ln"):
        before: list[tuple[float, float]] = []  # ‖·‖²/d at the input of attention and of the FFN
        size = 1.0
        for _ in range(layers):
            middle = 1.0 if placement == "post_ln" else size + 1
            before.append((size, middle))
            size = 1.0 if placement == "post_ln" else middle + 0.5
        squared, found = 1.0, []
        for attention, ffn in reversed(before):
            found.append(
                math.sqrt(squared)
            )  # what reaches x_{l+1} reaches W^{2,l} through a hidden layer of the same size
            if placement == "post_ln":
                squared *= (1 + 0.5) / 1.5  # I + W_2 J W_1, then J_LN(x^{post,5})
                squared *= (1 + 1) / 2  # I + W_V, then J_LN(x^{post,2})
            else:
                squared *= 1 + 0.5 / ffn  # equation 63
                squared *= 1 + 1 / attention  # equation 64
        assert theory.one_position_gradient_profile(placement, layers) == pytest.approx(found[::-1])


# --- Wang et al. 2022 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0, 1000.0])
def test_lemma_4_1_whatever_the_queries_and_keys(scale: float) -> None:
    q, k, v = (gaussian(64, 512, seed=seed) for seed in (1, 2, 3))
    out = (torch.softmax(scale * q @ k.T / 512**0.5, dim=-1) @ v).norm(dim=1)
    values = v.norm(dim=1)
    bound = reference.attention_output(values.tolist())
    assert out.max().item() <= bound * (1 + 1e-12)
    share = (out.mean() / values.mean()).item()
    if scale == 0:  # an equal bound, not an equal size: 64 unrelated values give an eighth
        assert share == pytest.approx(1 / 8, rel=0.1)
    if scale == 1000:  # each attends to one value
        assert share == pytest.approx(1, rel=0.1)
        assert out.max().item() == pytest.approx(bound, rel=0.1)


def test_theorem_4_2_by_hand() -> None:
    """5/2 · 1 + 1/2 · 2"""
    assert reference.update_bound(Stack(v=[3, 1], w=[4, 0], alpha=2, changes=[1, 2])) == pytest.approx(3.5)
    assert reference.update_bound(reference.vanilla([0.1] * 12)) == pytest.approx(12 * math.sqrt(2) * 0.1)


def test_theorem_4_3_by_hand() -> None:
    encoder = Stack(v=[3, 0], w=[4, 1], alpha=5, changes=[1, 5])  # 5/5 · 1 + 1/5 · 5 = 2
    decoder = Stack(v=[1, 2, 0], w=[0, 3, 5], alpha=2, changes=[2, 0, 1])  # 1/2 · 2 + 5/2 · 1 = 3.5; cross 2 · 3/2 = 3
    assert reference.encoder_decoder_update_bound(encoder, decoder) == pytest.approx(3 * 2 + 3.5)
    two = Stack(v=[1, 2, 9, 9, 4, 9], w=[9, 3, 9, 9, 5, 9], alpha=2, changes=[0] * 6)  # (2 · 3 + 4 · 5)/2 = 13
    assert reference.encoder_decoder_update_bound(encoder, two) == pytest.approx(13 * 2)
    plain = reference.encoder_decoder_update_bound(reference.vanilla([1, 1]), reference.vanilla([1, 1, 1]))
    assert plain == pytest.approx(5 * math.sqrt(2))


def sgd_step(sublayers: int, alpha: float, beta: float) -> Stack:
    """A step of rate 1: by section 4.3 the gradient of a sublayer has the size √(v² + w²)/α."""
    return Stack([beta] * sublayers, [beta] * sublayers, alpha, [math.sqrt(2) * beta / alpha] * sublayers)


@pytest.mark.parametrize("layers", [1, 6, 100, 1000])
def test_deepnets_constants_bound_a_step_of_one_stack_at_any_depth(layers: int) -> None:
    for stack, found in (
        ("encoder", theory.deepnet_constants(layers, 0)),
        ("decoder", theory.deepnet_constants(0, layers)),
    ):
        assert set(found) == {f"{stack}_alpha", f"{stack}_beta"}
        step = sgd_step(2 * layers, found[f"{stack}_alpha"], found[f"{stack}_beta"])
        assert reference.update_bound(step) == pytest.approx(1)
    assert reference.update_bound(sgd_step(2 * layers, 1, 1)) == pytest.approx(4 * layers)  # Post-LN


@pytest.mark.parametrize(("N", "M"), [(1, 1), (6, 6), (18, 6), (6, 18), (100, 100), (1000, 10)])
def test_deepnets_constants_bound_a_step_of_both_stacks_at_any_depth(N: int, M: int) -> None:
    """1 in the decoder; 1.01 in the encoder, whose 0.81 and 0.87 are rounded."""
    found = theory.deepnet_constants(N, M)
    encoder = sgd_step(2 * N, found["encoder_alpha"], found["encoder_beta"])
    decoder = sgd_step(3 * M, found["decoder_alpha"], found["decoder_beta"])
    assert reference.encoder_decoder_update_bound(encoder, decoder) == pytest.approx(2.012, abs=0.001)
    still = Stack(encoder.v, encoder.w, encoder.alpha, [0.0] * (2 * N))
    assert reference.encoder_decoder_update_bound(still, decoder) == pytest.approx(1)


# As printed in the paper's table, to three decimals.
@pytest.mark.parametrize(
    ("N", "M", "expected"),
    [
        (6, 6, ["1.418", "0.497", "2.060", "0.343"]),
        (18, 18, ["1.999", "0.353", "2.711", "0.261"]),
        (100, 100, ["3.416", "0.206", "4.162", "0.170"]),
        (500, 500, ["5.648", "0.125", "6.223", "0.114"]),
        (12, 0, ["2.213", "0.319"]),
        (1000, 0, ["6.687", "0.106"]),
    ],
)
def test_deepnets_constants_are_the_papers(N: int, M: int, expected: list[str]) -> None:
    assert [f"{value:.3f}" for value in theory.deepnet_constants(N, M).values()] == expected


@pytest.mark.parametrize(("N", "M"), [(6, 6), (16, 1), (3, 40), (24, 0), (0, 24)])
def test_the_placement_obeys_deepnets_constants(N: int, M: int) -> None:
    for name, value in theory.deepnet_constants(N, M).items():
        stack, constant = name.split("_")
        assert DeepNorm(Site(8, stack, 0, N, M)).describe()[constant] == pytest.approx(value)  # type: ignore[arg-type]


# --- what cannot be answered ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: reference.relu_squared_norm(-1, 8), "sigma is -1"),
        (lambda: theory.post_ln_squared_norm(0), "dim is 0"),
        (lambda: theory.pre_ln_squared_norm(-1, 8), "layer is -1"),
        (lambda: reference.pre_ln_hidden_norm(1, 8, 0), "ffn_dim is 0"),
        (lambda: reference.norm_jacobian([2.0, 2.0, 2.0]), "two different entries"),
        (lambda: reference.norm_jacobian_matrix([]), "two different entries"),
        (lambda: reference.is_bounded([], 0.1, 0.1), "sample"),
        (lambda: reference.is_bounded([1.0, -1.0], 0.1, 0.1), "≥ 0"),
        (lambda: reference.gaussian_delta(8, 1.5), "between 0 and 1"),
        (lambda: reference.last_gradient_probability(-0.1, 0.1), "epsilon is -0.1"),
        (lambda: reference.post_ln_last_gradient(1), "dim is 1"),
        (lambda: reference.pre_ln_last_gradient(8, 0), "layers is 0"),
        (lambda: theory.one_position_gradient_profile("pre_ln", 0), "layers is 0"),
        (lambda: reference.attention_output([]), "at least one"),
        (lambda: Stack([1], [1, 1], 1, [1]), "one a sublayer"),
        (lambda: reference.update_bound(reference.vanilla([1, 1, 1])), "two a layer"),
        (lambda: reference.update_bound(Stack([1, 1], [1, 1], 0, [1, 1])), "alpha is 0"),
        (
            lambda: reference.encoder_decoder_update_bound(reference.vanilla([1, 1]), reference.vanilla([1, 1])),
            "three in the dec",
        ),
        (lambda: theory.deepnet_constants(0, 0), "layers is 0"),
        (lambda: theory.deepnet_constants(-6, 6), "encoder_layers is -6"),
    ],
)
def test_a_question_without_an_answer_is_an_error(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ask()
