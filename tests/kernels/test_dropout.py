"""Dropout on a CPU is dropout: the right share, the right scale, the same mask on the way back."""

from __future__ import annotations

import pytest
import torch

from leadline.kernels.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1000, 101), (7,), (3, 5, 50_000)])
def test_it_keeps_the_right_share_scaled_and_gradients_follow(p: float, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape).abs().add(1).requires_grad_()
    y = Dropout(p)(x)
    kept = y != 0
    if x.numel() > 1000:
        assert abs(kept.float().mean() - (1 - p)) < 5 * (p * (1 - p) / x.numel()) ** 0.5 + 1e-5
    assert torch.allclose(y[kept], x[kept] / (1 - p))
    y.sum().backward()
    assert torch.allclose(x.grad, kept / (1 - p))


def test_masks_are_independent_from_call_to_call_and_from_number_to_number() -> None:
    torch.manual_seed(0)
    masks = torch.stack([Dropout(0.3)(torch.ones(40_000)) != 0 for _ in range(3)]).float()
    pairs = [(masks[0], masks[1]), (masks[0], masks[2]), *((masks[0, k:], masks[0, :-k]) for k in (1, 2, 3, 4, 8))]
    for one, other in pairs:
        assert abs(torch.corrcoef(torch.stack([one, other]))[0, 1]) < 5 / 40_000**0.5


def test_it_is_drawn_by_torchs_seed_and_does_nothing_in_evaluation() -> None:
    x, dropout = torch.ones(100), Dropout(0.5)
    torch.manual_seed(3)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)
    assert dropout.eval()(x) is x
