"""What happens to queries, keys and values between their matrix and attention: a norm of each, and rotary positions.

    h = weight·(x - mean)/√(var + ε) + bias     over a head, or over all heads of a role; of an RMS norm the mean is 0
    y = h turned by its position                (leadline.kernels.rotary)

One program does all heads of a role for a token. The backward pass computes the norm again from x. It writes the
gradient of x over that of y, which attention has made for it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from leadline.kernels.fused.residual import Norm, kind
from leadline.kernels.fused.runtime import Runtime
from leadline.kernels.rotary import rotate

PROGRAMS = 528  # on the way back, where there are weights: each sums the gradients of its tokens


class Part(NamedTuple):
    """The columns of a role, and what happens to it."""

    begin: int
    heads: int
    width: int  # of a head
    turns: bool
    norm: Norm | None = None

    @property
    def half(self) -> int:
        return (self.width + 1) // 2

    @property
    def columns(self) -> slice:
        return slice(self.begin, self.begin + self.heads * self.width)


@triton.jit
def _normal(low, high, both_low, both_high, count, eps, CENTRES: tl.constexpr, WHOLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """(x - mean)/√(var + ε) of both halves, and 1/√(var + ε), [heads or 1, 1]."""
    if CENTRES:
        mean = tl.sum(low, 1) + tl.sum(high, 1)
        mean = (tl.sum(mean, 0) + tl.zeros_like(mean) if WHOLE else mean) / count
        low = tl.where(both_low, low - mean[:, None], 0.0)
        high = tl.where(both_high, high - mean[:, None], 0.0)
    square = tl.sum(low * low, 1) + tl.sum(high * high, 1)
    square = (tl.sum(square, 0) + tl.zeros_like(square) if WHOLE else square) / count
    scale = (1 / tl.sqrt(square + eps))[:, None]
    return low * scale, high * scale, scale


@triton.jit
def _prepare(  # type: ignore[no-untyped-def]
    x, out, weight, bias, table, positions, stride, heads, width, half, eps, NORM: tl.constexpr,
    CENTRES: tl.constexpr, HAS_BIAS: tl.constexpr, WHOLE: tl.constexpr, TURNS: tl.constexpr,
    HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head, column = tl.arange(0, HEADS), tl.arange(0, HALF)
    both_low = (head < heads)[:, None] & (column < half)[None, :]
    both_high = (head < heads)[:, None] & (column < width - half)[None, :]
    at = row * stride + head[:, None] * width + column[None, :]
    low = tl.load(x + at, mask=both_low, other=0.0).to(tl.float32)
    high = tl.load(x + at + half, mask=both_high, other=0.0).to(tl.float32)
    if NORM:
        low, high, _ = _normal(low, high, both_low, both_high, heads * width if WHOLE else width, eps, CENTRES, WHOLE)
        of = column[None, :] + (head * width if WHOLE else head * 0)[:, None]
        low *= tl.load(weight + of, mask=both_low, other=0.0)
        high *= tl.load(weight + of + half, mask=both_high, other=0.0)
        if HAS_BIAS:
            low += tl.load(bias + of, mask=both_low, other=0.0)
            high += tl.load(bias + of + half, mask=both_high, other=0.0)
    if TURNS:
        angle = table + tl.load(positions + row).to(tl.int64) * width + column
        cos = tl.load(angle, mask=column < half, other=0.0)[None, :]
        sin = tl.load(angle + half, mask=column < half, other=0.0)[None, :]
        turned = low * cos - high * sin
        high = high * cos + low * sin
        low = turned
    tl.store(out + at, low.to(out.dtype.element_ty), mask=both_low)
    tl.store(out + at + half, high.to(out.dtype.element_ty), mask=both_high)


@triton.jit
def _prepare_backward(  # type: ignore[no-untyped-def]
    x, dy, weight, table, positions, partials, rows, stride, dy_stride, heads, width, half, eps, count,
    NORM: tl.constexpr, CENTRES: tl.constexpr, HAS_BIAS: tl.constexpr, WHOLE: tl.constexpr, TURNS: tl.constexpr,
    HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    head, column = tl.arange(0, HEADS), tl.arange(0, HALF)
    both_low = (head < heads)[:, None] & (column < half)[None, :]
    both_high = (head < heads)[:, None] & (column < width - half)[None, :]
    of = column[None, :] + (head * width if WHOLE else head * 0)[:, None]
    zero = tl.zeros((HEADS, HALF), tl.float32)
    w_low, w_high, b_low, b_high = zero, zero, zero, zero
    for at_row in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.full((), 0, tl.int64) + at_row
        there = dy + row * dy_stride + head[:, None] * width + column[None, :]
        low = tl.load(there, mask=both_low, other=0.0).to(tl.float32)
        high = tl.load(there + half, mask=both_high, other=0.0).to(tl.float32)
        if TURNS:
            angle = table + tl.load(positions + row).to(tl.int64) * width + column
            cos = tl.load(angle, mask=column < half, other=0.0)[None, :]
            sin = tl.load(angle + half, mask=column < half, other=0.0)[None, :]
            turned = low * cos + high * sin
            high = high * cos - low * sin
            low = turned
        if NORM:
            at = x + row * stride + head[:, None] * width + column[None, :]
            x_low = tl.load(at, mask=both_low, other=0.0).to(tl.float32)
            x_high = tl.load(at + half, mask=both_high, other=0.0).to(tl.float32)
            x_low, x_high, scale = _normal(x_low, x_high, both_low, both_high, count, eps, CENTRES, WHOLE)
            w_low += low * x_low
            w_high += high * x_high
            b_low += low
            b_high += high
            low *= tl.load(weight + of, mask=both_low, other=0.0)
            high *= tl.load(weight + of + half, mask=both_high, other=0.0)
            along = tl.sum(low * x_low, 1) + tl.sum(high * x_high, 1)
            along = (tl.sum(along, 0) + tl.zeros_like(along) if WHOLE else along) / count
            change_low, change_high = low - x_low * along[:, None], high - x_high * along[:, None]
            if CENTRES:
                level = tl.sum(low, 1) + tl.sum(high, 1)
                level = (tl.sum(level, 0) + tl.zeros_like(level) if WHOLE else level) / count
                change_low -= level[:, None]
                change_high -= level[:, None]
            low, high = change_low * scale, change_high * scale
        tl.store(there, low.to(dy.dtype.element_ty), mask=both_low)
        tl.store(there + half, high.to(dy.dtype.element_ty), mask=both_high)
    if NORM:
        base = partials + tl.program_id(0) * count * (1 + HAS_BIAS)
        if WHOLE:
            tl.store(base + of, w_low, mask=both_low)
            tl.store(base + of + half, w_high, mask=both_high)
            if HAS_BIAS:
                tl.store(base + count + of, b_low, mask=both_low)
                tl.store(base + count + of + half, b_high, mask=both_high)
        else:
            tl.store(base + column, tl.sum(w_low, 0), mask=column < half)
            tl.store(base + column + half, tl.sum(w_high, 0), mask=column < width - half)
            if HAS_BIAS:
                tl.store(base + count + column, tl.sum(b_low, 0), mask=column < half)
                tl.store(base + count + column + half, tl.sum(b_high, 0), mask=column < width - half)


class _Prepare(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, parts: tuple[Part, ...], table: Tensor | None, positions: Tensor | None, runtime: Runtime
    ) -> Tensor:
        """In the place of x where its values are not needed again."""
        normed = any(part.norm is not None for part in parts)
        out = torch.empty_like(x) if normed else x
        if not normed:
            ctx.mark_dirty(x)
        for part in parts:
            if part.norm is not None or part.turns:
                _prepare[(len(x),)](
                    x[:, part.columns], out[:, part.columns], *_weights(part), table, positions, x.stride(0),
                    part.heads, part.width, part.half, part.norm.eps if part.norm else 0.0, **_constants(part),
                )  # fmt: skip
            elif normed:
                out[:, part.columns] = x[:, part.columns]
        ctx.save_for_backward(x if normed else None, table, positions)
        ctx.parts, ctx.runtime = parts, runtime
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, table, positions = ctx.saved_tensors
        dy = dy.contiguous()
        for part in ctx.parts:
            if part.norm is None and not part.turns:
                continue
            programs = len(dy) if part.norm is None else min(PROGRAMS, len(dy))
            count = 0 if part.norm is None else part.norm.weight.numel()
            has_bias = kind(part.norm)[1] is not None
            partials = torch.empty(programs, 1 + has_bias, count, dtype=torch.float32, device=dy.device)
            _prepare_backward[(programs,)](
                None if x is None else x[:, part.columns], dy[:, part.columns], _weights(part)[0], table, positions,
                partials, len(dy), 0 if x is None else x.stride(0), dy.stride(0), part.heads, part.width,
                part.half, part.norm.eps if part.norm else 0.0, count, **_constants(part),
            )  # fmt: skip
            if part.norm is not None:
                gradients = [weight.grad for weight in _weights(part) if weight is not None]

                def add_up(partials: Tensor = partials, gradients: Any = gradients) -> None:
                    ctx.runtime.vector_gradients(partials, *gradients)

                ctx.runtime.aside(add_up, partials)
        return dy, None, None, None, None


def _weights(part: Part) -> tuple[Any, Any]:
    return (None, None) if part.norm is None else (part.norm.weight, kind(part.norm)[1])


def _constants(part: Part) -> dict[str, Any]:
    centres, bias = kind(part.norm)
    return {
        "NORM": part.norm is not None,
        "CENTRES": centres,
        "HAS_BIAS": bias is not None,
        "WHOLE": part.norm is not None and part.norm.weight.numel() > part.width,
        "TURNS": part.turns,
        "HEADS": triton.next_power_of_2(part.heads),
        "HALF": triton.next_power_of_2(part.half),
        "num_warps": 4 if part.heads * part.width > 1024 else 2,
    }


def prepare(
    x: Tensor, parts: Sequence[Part], table: Tensor | None, positions: Tensor | None, runtime: Runtime
) -> Tensor:
    """x [T, columns], each part of it normed and turned; without a norm, x itself is changed."""
    joined: list[Part] = []
    for part in parts:
        if joined and (joined[-1].norm, joined[-1].turns) == (None, part.turns) and part.norm is None:
            part = joined[-1]._replace(heads=joined.pop().heads + part.heads)
        joined.append(part)
    return _Prepare.apply(x, tuple(joined), table, positions, runtime)


def reference(x: Tensor, parts: Sequence[Part], table: Tensor | None, positions: Tensor | None) -> Tensor:
    done = []
    for part in parts:
        y = x[:, part.columns]
        if part.norm is not None:
            y = part.norm(y.unflatten(-1, (-1, part.norm.weight.numel()))).flatten(1)
        if part.turns:
            assert table is not None
            assert positions is not None
            y = rotate(y.unflatten(-1, (part.heads, part.width)), table, positions).flatten(1)
        done.append(y)
    return torch.cat(done, -1)
