"""DLCL's fast combinations: a stack of them gives what sums over all layers below give, in values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leadline.placement.dlcl import Below, combine, reference

Rows = Sequence[Tensor]


def chain(rows: Rows, x: Tensor, combined: Callable[[Tensor, list[Tensor]], Tensor]) -> list[Tensor]:
    """What each layer of a stack reads, the layers being a tanh, and what comes out of it."""
    terms, found = [x], []
    for row in rows:
        found.append(combined(row, terms))
        terms.append(found[-1].tanh())
    return found


def fast_chain(rows: Rows, x: Tensor) -> list[Tensor]:
    below = Below.nothing(len(rows), x)

    def combined(row: Tensor, terms: list[Tensor]) -> Tensor:
        nonlocal below
        found, below = combine(row, terms[-1], below)
        return found

    return chain(rows, x, combined)


def rows_and_input(layers: int, dtype: torch.dtype) -> tuple[Rows, Tensor]:
    torch.manual_seed(layers)
    rows = [torch.randn(terms, dtype=dtype).requires_grad_() for terms in range(1, layers + 2)]
    return rows, torch.randn(3, 4, dtype=dtype).requires_grad_()


def by_hand(row: Tensor, terms: list[Tensor]) -> Tensor:
    total = torch.zeros_like(terms[0])
    for k in range(len(terms)):
        total = total + row[k] * terms[k]
    return total


LOSSES: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "last": lambda found: found[-1].square().sum(),
    "middle": lambda found: found[len(found) // 2].square().sum(),
    "all": lambda found: torch.stack(found).square().sum(),
}


@pytest.mark.parametrize("layers", [0, 1, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fast_combinations_equal_the_sum_in_values_and_gradients(layers: int, dtype: torch.dtype) -> None:
    """Also where the same graph is gone back through again, from elsewhere or only part of the way."""
    rows, x = rows_and_input(layers, dtype)
    ways = [fast_chain(rows, x), chain(rows, x, reference), chain(rows, x, by_hand)]
    for way in ways[:2]:
        assert_close(way, ways[2])
    for loss in ("last", "middle", "all", "last", "middle"):
        for wanted in ([rows[-1]], [x, *rows]):
            gradients = [
                torch.autograd.grad(LOSSES[loss](way), wanted, retain_graph=True, allow_unused=True) for way in ways
            ]
            for one, two, exact in zip(*gradients, strict=True):
                assert_close(one, exact)
                assert_close(two, exact)


def test_the_fast_combinations_gradients_are_those_of_small_differences() -> None:
    rows, x = rows_and_input(3, torch.float64)
    assert torch.autograd.gradcheck(lambda x, *rows: tuple(fast_chain(rows, x)), (x, *rows))


def test_a_row_may_change_as_soon_as_it_has_its_gradient() -> None:
    """As with an optimizer that steps within the way back."""

    def step(row: Tensor) -> None:
        row.data.sub_(row.grad)

    found = []
    for way in (fast_chain, lambda rows, x: chain(rows, x, by_hand)):
        rows, x = rows_and_input(4, torch.float64)
        for row in rows:
            row.register_post_accumulate_grad_hook(step)
        LOSSES["last"](way(rows, x)).backward()
        found.append([x.grad, *(row.grad for row in rows)])
    assert_close(*found)


def test_what_is_cut_off_is_cut_off_and_no_more() -> None:
    """Where a layer passes no gradient on, higher rows still reach the terms below it."""
    rows, x = rows_and_input(3, torch.float64)
    found = []
    for combined in (fast_chain, lambda rows, x: chain(rows, x, by_hand)):
        out = combined(rows, x)
        out[1].register_hook(torch.zeros_like)
        found.append(torch.autograd.grad(LOSSES["last"](out), [x, *rows]))
    assert_close(*found)


@pytest.mark.parametrize("autocast", [False, True])
def test_fast_combinations_keep_their_terms_precision(autocast: bool) -> None:
    """Of 16-bit terms they are near the sum, and autocast makes no 16-bit terms of others."""
    rows, x = rows_and_input(3, torch.float32)
    given = x if autocast else x.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = fast_chain(rows, given)[-1]
    gradients = torch.autograd.grad(found.float().square().sum(), rows)
    expected = chain(rows, x, by_hand)[-1]
    exact = torch.autograd.grad(expected.square().sum(), rows)
    assert (found.dtype, gradients[0].dtype) == (given.dtype, torch.float32)
    tolerance = 1e-5 if autocast else 0.03
    assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)
    for one, other in zip(gradients, exact, strict=True):
        assert_close(one, other, rtol=tolerance, atol=tolerance * max(1.0, float(other.abs().max())))
