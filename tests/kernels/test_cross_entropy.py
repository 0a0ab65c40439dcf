"""Label-smoothed cross entropy against PyTorch's and against the formula."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.kernels.cross_entropy import cross_entropy, reference

V, IGNORE = 7, 0


def draw(kind: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Logits [T, V] and labels [T], two of which are ignored."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(9, V)).to(kind).requires_grad_()
    return logits, torch.tensor([3, 1, IGNORE, 6, 2, 2, IGNORE, 5, 4])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("ignore", [IGNORE, -100])
def test_equals_torch_in_value_and_gradient(smoothing: float, ignore: int) -> None:
    logits, labels = draw()
    found, _ = cross_entropy(logits, labels, smoothing, ignore)
    expected = F.cross_entropy(logits, labels, ignore_index=ignore, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, logits), torch.autograd.grad(expected, logits))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_equals_its_reference(smoothing: float, kind: torch.dtype) -> None:
    logits, labels = draw(kind)
    found, expected = (way(logits, labels, smoothing, IGNORE) for way in (cross_entropy, reference))
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(sums[0] / 3, logits) for sums in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_equals_the_formula(smoothing: float) -> None:
    """Each counted position adds Σ_v target(v)·(-log p(v)), with ε/V on every word and 1-ε more on the label."""
    logits, labels = draw()
    smoothed = plain = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        if label != IGNORE:
            total = sum(math.exp(x) for x in row)
            for v, x in enumerate(row):
                surprise = -math.log(math.exp(x) / total)
                smoothed += (smoothing / V + (1 - smoothing) * (v == label)) * surprise
                plain += (v == label) * surprise
    found = cross_entropy(logits, labels, smoothing, IGNORE)
    assert (found[0].item(), found[1].item()) == pytest.approx((smoothed, plain), rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_ignored_positions_add_nothing_and_get_no_gradient(smoothing: float) -> None:
    logits, labels = draw()
    sums = cross_entropy(logits, labels, smoothing, IGNORE)
    counted = labels != IGNORE
    for found, expected in zip(sums, cross_entropy(logits[counted], labels[counted], smoothing, IGNORE), strict=True):
        torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(sums[0], logits)
    assert not gradient[~counted].any()
    assert gradient[counted].any(-1).all()


def test_nothing_but_ignored_positions_is_zero() -> None:
    logits, labels = draw()
    smoothed, plain = cross_entropy(logits, torch.full_like(labels, IGNORE), 0.1, IGNORE)
    assert (smoothed.item(), plain.item()) == (0, 0)
    assert not torch.autograd.grad(smoothed, logits)[0].any()


def test_gradient_is_probability_minus_smoothed_label() -> None:
    logits, labels = draw()
    smoothed, _ = cross_entropy(logits, labels, 0.1, IGNORE)
    expected = logits.softmax(-1) - (0.9 * F.one_hot(labels, V) + 0.1 / V)
    expected = expected * (labels != IGNORE)[:, None]
    torch.testing.assert_close(torch.autograd.grad(smoothed, logits)[0], expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_plain_sum_is_not_smoothed_and_carries_no_gradient(smoothing: float) -> None:
    logits, labels = draw()
    _, plain = cross_entropy(logits, labels, smoothing, IGNORE)
    assert not plain.requires_grad
    torch.testing.assert_close(plain, F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum").detach())


def test_sums_of_16_bit_logits_are_taken_in_32_bits() -> None:
    logits, labels = draw(torch.bfloat16)
    found = cross_entropy(logits, labels, 0.1, IGNORE)
    exact = cross_entropy(logits.detach().float(), labels, 0.1, IGNORE)
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_huge_logits_stay_finite(size: float) -> None:
    logits = torch.tensor([[size, 0.0, -size]], requires_grad=True)
    smoothed, _ = cross_entropy(logits, torch.tensor([1]), 0.1, -1)
    assert torch.autograd.grad(smoothed, logits)[0].isfinite().all()
    # p is 1 at one end: -log p is 0, 1e4 and 2e4, so 0.9·1e4 + 0.1·mean
    assert smoothed.item() == pytest.approx(1e4)
