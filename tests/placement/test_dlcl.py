"""DLCL's fast combinations: a stack of them gives what sums over all layers below give, in values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leadline.placement.dlcl import Below, combine_below, reference

Rows = Sequence[Tensor]


def chain(rows: Rows, x: Tensor, combine: Callable[[Tensor, list[Tensor]], Tensor]) -> Tensor:
    """A stack of layers that are each a tanh of what has been combined."""
    terms = [x]
    for row in rows[:-1]:
        terms.append(combine(row, terms).tanh())
    return combine(rows[-1], terms)


def fast_chain(rows: Rows, x: Tensor) -> Tensor:
    below = Below(len(rows), x)
    return chain(rows, x, lambda row, terms: combine_below(row, terms[-1], below))


def rows_and_input(layers: int, dtype: torch.dtype) -> tuple[Rows, Tensor]:
    torch.manual_seed(layers)
    rows = [torch.randn(terms, dtype=dtype).requires_grad_() for terms in range(1, layers + 2)]
    return rows, torch.randn(3, 4, dtype=dtype).requires_grad_()


def by_hand(row: Tensor, terms: list[Tensor]) -> Tensor:
    total = torch.zeros_like(terms[0])
    for k in range(len(terms)):
        total = total + row[k] * terms[k]
    return total


@pytest.mark.parametrize("layers", [0, 1, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fast_combinations_equal_the_sum_in_values_and_gradients(layers: int, dtype: torch.dtype) -> None:
    rows, x = rows_and_input(layers, dtype)
    ways = [fast_chain(rows, x), chain(rows, x, reference), chain(rows, x, by_hand)]
    gradients = [torch.autograd.grad(way.square().sum(), [x, *rows], retain_graph=True) for way in ways]
    again = torch.autograd.grad(ways[0].square().sum(), [x, *rows])
    for way, gradient in zip([*ways[:2], ways[0]], [*gradients[:2], again], strict=True):
        assert_close(way, ways[2])
        for one, other in zip(gradient, gradients[2], strict=True):
            assert_close(one, other)


def test_the_fast_combinations_gradients_are_those_of_small_differences() -> None:
    rows, x = rows_and_input(3, torch.float64)
    assert torch.autograd.gradcheck(lambda x, *rows: fast_chain(rows, x), (x, *rows))


@pytest.mark.parametrize("autocast", [False, True])
def test_fast_combinations_keep_their_terms_precision(autocast: bool) -> None:
    """Of 16-bit terms they are near the sum, and autocast makes no 16-bit terms of others."""
    rows, x = rows_and_input(3, torch.float32)
    given = x if autocast else x.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = fast_chain(rows, given)
    gradients = torch.autograd.grad(found.float().square().sum(), rows)
    expected = chain(rows, x, by_hand)
    exact = torch.autograd.grad(expected.square().sum(), rows)
    assert (found.dtype, gradients[0].dtype) == (given.dtype, torch.float32)
    tolerance = 1e-5 if autocast else 0.03
    assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)
    for one, other in zip(gradients, exact, strict=True):
        assert_close(one, other, rtol=tolerance, atol=tolerance * max(1.0, float(other.abs().max())))
