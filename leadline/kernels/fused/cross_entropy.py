"""The projection onto the vocabulary and its label-smoothed cross entropy, without [tokens, vocabulary] in float32.

The logits are in 16 bits and some tokens at a time; each piece is overwritten by its own gradient, from which the
gradients of the hidden states and of the projection follow at once. So the gradient is computed on the way
forward: what comes back from behind the loss must be 1, which is why the loss is divided by `divisor` here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from leadline.kernels.cross_entropy import MULTIPLE
from leadline.kernels.fused.runtime import Runtime

PIECE = 1 << 27  # logits held at once
COLUMNS, WARPS, STAGES = 4096, 8, 1  # of a row, looked at together; and of loading ahead


class Projection(NamedTuple):
    """Onto the vocabulary: a matrix whose gradient goes to `weight.grad`, perhaps a bias; both as products read them.

    There are rows up to a MULTIPLE; those behind the words' are 0, and stay so.
    """

    words: int
    weight: Any
    compute: Tensor
    bias: nn.Parameter | None = None
    compute_bias: Tensor | None = None


def filled(matrix: Tensor) -> Tensor:
    """With rows of zeros up to a MULTIPLE."""
    missing = -len(matrix) % MULTIPLE
    return torch.cat([matrix, matrix.new_zeros(missing, *matrix.shape[1:])]) if missing else matrix


@triton.jit
def _cross_entropy(  # type: ignore[no-untyped-def]
    logits, labels, divisor, smoothed_out, plain_out, multiples, columns, smoothing, ignore,
    GRADIENT: tl.constexpr, COLUMNS: tl.constexpr, MULTIPLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    stride = multiples * MULTIPLE  # so the compiler knows that 16 bytes can be read and written at once
    base = logits + row * stride
    label = tl.load(labels + row)
    highest = tl.full((), float("-inf"), tl.float32)
    mass = tl.zeros((), tl.float32)
    total = tl.zeros((), tl.float32)
    for first in tl.range(0, columns, COLUMNS, num_stages=STAGES):
        column = first + tl.arange(0, COLUMNS)
        inside = column < columns
        value = tl.load(base + column, mask=column < stride, other=0.0).to(tl.float32)
        value = tl.where(inside, value, float("-inf"))
        higher = tl.maximum(highest, tl.max(value, 0))
        mass = mass * tl.exp(highest - higher) + tl.sum(tl.exp(value - higher), 0)
        total += tl.sum(tl.where(inside, value, 0.0), 0)
        highest = higher
    log_mass = highest + tl.log(mass)
    counted = label != ignore
    right = tl.load(base + tl.where(counted, label, 0)).to(tl.float32)
    plain = log_mass - right
    smoothed = (1 - smoothing) * plain + smoothing * (log_mass - total / columns)
    scale = tl.where(counted, 1 / tl.load(divisor), 0.0)
    tl.store(plain_out + row, plain * scale)
    tl.store(smoothed_out + row, smoothed * scale)
    if GRADIENT:
        for first in tl.range(0, stride, COLUMNS, num_stages=STAGES):
            column = first + tl.arange(0, COLUMNS)
            inside = column < columns
            value = tl.load(base + column, mask=column < stride, other=0.0).to(tl.float32)
            wanted = tl.where(column == label, 1 - smoothing, 0.0) + smoothing / columns
            gradient = tl.where(inside, (tl.exp(value - log_mass) - wanted) * scale, 0.0)
            tl.store(base + column, gradient.to(logits.dtype.element_ty), mask=column < stride)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx: Any, hidden: Tensor, onto: Projection, labels: Tensor, smoothing: float, ignore: int, divisor: Tensor,
        learns: bool, runtime: Runtime,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        tokens, compute, columns = len(hidden), onto.compute, len(onto.compute)
        smoothed, plain = torch.empty(2, tokens, dtype=torch.float32, device=hidden.device).unbind()
        d_hidden = torch.empty_like(hidden) if learns else None
        piece = max(1, min(tokens, PIECE // columns))
        for first in range(0, tokens, piece):
            some = hidden[first : first + piece]
            if onto.compute_bias is None:
                logits = torch.mm(some, compute.t())
            else:
                logits = torch.addmm(onto.compute_bias, some, compute.t())
            _cross_entropy[(len(some),)](
                logits, labels[first:], divisor, smoothed[first:], plain[first:], columns // MULTIPLE, onto.words,
                smoothing, ignore, GRADIENT=learns, COLUMNS=min(COLUMNS, triton.next_power_of_2(columns)),
                MULTIPLE=MULTIPLE, STAGES=STAGES, num_warps=WARPS,
            )  # fmt: skip
            if d_hidden is not None:
                torch.mm(logits, compute, out=d_hidden[first : first + piece])
                _projection_gradient(onto, logits, some, runtime, again=first > 0, alone=piece == tokens)
        ctx.save_for_backward(d_hidden)
        loss, plain_loss = smoothed.sum(), plain.sum()
        ctx.mark_non_differentiable(plain_loss)
        return loss, plain_loss

    @staticmethod
    def backward(ctx: Any, one: Tensor, _: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return ctx.saved_tensors[0], *[None] * 7


def _projection_gradient(
    onto: Projection, logits: Tensor, hidden: Tensor, runtime: Runtime, again: bool, alone: bool
) -> None:
    def work() -> None:
        before = runtime.accumulate
        runtime.accumulate = before or again
        runtime.matrix_gradient(onto.weight, logits, hidden)
        runtime.accumulate = before
        if onto.bias is not None:
            assert onto.bias.grad is not None
            onto.bias.grad += logits.sum(0, dtype=torch.float32)[: onto.words]

    if alone:
        runtime.aside(work, logits, hidden)
    else:
        work()  # kept for the second stream, all pieces would live at once


def linear_cross_entropy(
    hidden: Tensor,
    onto: Projection,
    labels: Tensor,
    smoothing: float,
    ignore: int,
    divisor: Tensor,
    runtime: Runtime,
) -> tuple[Tensor, Tensor]:
    """(smoothed, plain) sums over the labels that are not `ignore`, divided by `divisor` [1]; see the reference in
    leadline.kernels.cross_entropy.
    """
    hidden = hidden.to(runtime.dtype).contiguous()
    learns = hidden.requires_grad and torch.is_grad_enabled()
    return _LinearCrossEntropy.apply(hidden, onto, labels, smoothing, ignore, divisor, learns, runtime)
