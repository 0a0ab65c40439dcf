"""Residual connection, dropout and layer norm or RMS norm in one pass over the stream.

    s = α·x + dropout(y)      h = LN(s) = weight·(s - mean)/√(var + ε) + bias; of an RMS norm the mean is taken as 0

x and s are float32, y and h in the arithmetic of matrix products. The bias of the matrix product that made y gets
its gradient here too: it is the sum of y's gradient over the tokens, which is at hand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

from leadline.kernels.fused.dropout import Dropout, keeps, row_keys
from leadline.kernels.fused.runtime import Runtime

Norm = nn.LayerNorm | nn.RMSNorm


class Launch(NamedTuple):
    """How the work is cut."""

    rows: int  # tokens that a program looks at together
    warps: int
    programs: int = 0  # 0: as many as the tokens need
    stages: int = 1  # of loading ahead, where a program does one after the other


def _forward_launch(D: int) -> Launch:
    return Launch(4, 4)


def _backward_launch(D: int) -> Launch:
    """Four programs for each multiprocessor of a large GPU; each sums the gradients of its tokens."""
    return Launch(1 if D <= 512 else 2, 4, 528)


class Joined(NamedTuple):
    s: Tensor
    h: Tensor | None  # in the arithmetic of matrix products
    wide: Tensor | None  # h in float32, where it is the stream itself


def reference(
    x: Tensor, y: Tensor | None, norm: Norm | None, alpha: float, dropout: Dropout, dtype: torch.dtype
) -> Joined:
    s = alpha * x if y is None else alpha * x + dropout.reference(y.float())
    if norm is None:
        return Joined(s, None, None)
    if isinstance(norm, nn.RMSNorm):
        wide = F.rms_norm(s, norm.normalized_shape, norm.weight, norm.eps)
    else:
        wide = F.layer_norm(s, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
    return Joined(s, wide.to(dtype), wide)


@triton.jit(do_not_specialize=["salt", "threshold"])
def _add_norm(  # type: ignore[no-untyped-def]
    x, y, weight, bias, s_out, h_out, wide_out, mean_out, rstd_out, seed, salt, threshold, scale, alpha, eps,
    rows, D, HAS_Y: tl.constexpr, DROPS: tl.constexpr, NORM: tl.constexpr, CENTRES: tl.constexpr,
    HAS_BIAS: tl.constexpr, WIDE: tl.constexpr, STORES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    here = row < rows
    inside = here[:, None] & (column < D)[None, :]
    at = row.to(tl.int64)[:, None] * D + column[None, :]
    s = alpha * tl.load(x + at, mask=inside, other=0.0)
    if HAS_Y:
        branch = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        if DROPS:
            keys = row_keys(seed, salt, row)
            branch = tl.where(keeps(keys[:, None], column[None, :], threshold), branch * scale, 0.0)
        s += branch
    if STORES:
        tl.store(s_out + at, s, mask=inside)
    if NORM:
        mean = tl.sum(s, 1) / D if CENTRES else tl.zeros((ROWS,), tl.float32)
        centred = tl.where(inside, s - mean[:, None], 0.0)
        rstd = 1 / tl.sqrt(tl.sum(centred * centred, 1) / D + eps)
        w = tl.load(weight + column, mask=column < D, other=0.0)
        h = centred * rstd[:, None] * w[None, :]
        if HAS_BIAS:
            h += tl.load(bias + column, mask=column < D, other=0.0)[None, :]
        tl.store(h_out + at, h.to(h_out.dtype.element_ty), mask=inside)
        if WIDE:
            tl.store(wide_out + at, h, mask=inside)
        if CENTRES:
            tl.store(mean_out + row, mean, mask=here)
        tl.store(rstd_out + row, rstd, mask=here)


@triton.jit(do_not_specialize=["salt", "threshold"])
def _add_norm_backward(  # type: ignore[no-untyped-def]
    ds, dh, dwide, s, weight, mean, rstd, dx_out, dy_out, partials, seed, salt, threshold, scale, alpha, rows, D,
    HAS_DS: tl.constexpr, HAS_DH: tl.constexpr, HAS_DWIDE: tl.constexpr, HAS_Y: tl.constexpr, DROPS: tl.constexpr,
    NORM: tl.constexpr, CENTRES: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    w = tl.load(weight + column, mask=column < D, other=0.0) if NORM else tl.zeros((BLOCK,), tl.float32)
    d_weight = tl.zeros((BLOCK,), tl.float32)
    d_bias = tl.zeros((BLOCK,), tl.float32)
    d_branch = tl.zeros((BLOCK,), tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        here = row < rows
        inside = here[:, None] & (column < D)[None, :]
        at = row.to(tl.int64)[:, None] * D + column[None, :]
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        if HAS_DS:
            total += tl.load(ds + at, mask=inside, other=0.0)
        if NORM:
            g = tl.zeros((ROWS, BLOCK), tl.float32)
            if HAS_DH:
                g += tl.load(dh + at, mask=inside, other=0.0).to(tl.float32)
            if HAS_DWIDE:
                g += tl.load(dwide + at, mask=inside, other=0.0)
            middle = tl.load(mean + row, mask=here, other=0.0) if CENTRES else tl.zeros((ROWS,), tl.float32)
            r = tl.load(rstd + row, mask=here, other=0.0)
            stream = tl.load(s + at, mask=inside, other=0.0)
            xhat = tl.where(inside, (stream - middle[:, None]) * r[:, None], 0.0)
            d_weight += tl.sum(g * xhat, 0)
            d_bias += tl.sum(g, 0)
            g = g * w[None, :]
            along = tl.sum(g * xhat, 1) / D
            change = g - xhat * along[:, None]
            if CENTRES:
                change -= (tl.sum(g, 1) / D)[:, None]
            total += change * r[:, None]
        tl.store(dx_out + at, alpha * total, mask=inside)
        if HAS_Y:
            dy = tl.where(inside, total, 0.0)
            if DROPS:
                keys = row_keys(seed, salt, row)
                dy = tl.where(keeps(keys[:, None], column[None, :], threshold), dy * scale, 0.0)
            rounded = dy.to(dy_out.dtype.element_ty)
            d_branch += tl.sum(rounded.to(tl.float32), 0)
            tl.store(dy_out + at, rounded, mask=inside)
    base = partials + tl.program_id(0) * 3 * D + column
    if NORM:
        tl.store(base, d_weight, mask=column < D)
        base += D
    if HAS_BIAS:
        tl.store(base, d_bias, mask=column < D)
        base += D
    if HAS_Y:
        tl.store(base, d_branch, mask=column < D)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx: Any,
        x: Tensor,
        y: Tensor | None,
        norm,
        y_bias,
        alpha: float,
        dropout: Dropout,
        wide: bool,
        runtime: Runtime,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        rows, D = x.shape
        s = x if y is None and alpha == 1 else torch.empty_like(x)
        stores = s is not x
        h = torch.empty(rows, D, dtype=runtime.dtype, device=x.device) if norm else None
        wide_h = torch.empty_like(x) if norm and wide else None
        centres, norm_bias = kind(norm)
        mean, rstd = x.new_empty(2, rows).unbind() if norm else (None, None)
        launch = _forward_launch(D)
        _add_norm[(triton.cdiv(rows, launch.rows),)](
            x, y, norm.weight if norm else None, norm_bias, s, h, wide_h, mean, rstd,
            dropout.seed, dropout.salt, dropout.threshold, dropout.scale, alpha, norm.eps if norm else 0.0, rows, D,
            HAS_Y=y is not None, DROPS=dropout.p > 0, NORM=norm is not None, CENTRES=centres,
            HAS_BIAS=norm_bias is not None, WIDE=wide_h is not None, STORES=stores, ROWS=launch.rows,
            BLOCK=triton.next_power_of_2(D), num_warps=launch.warps,
        )  # fmt: skip
        ctx.save_for_backward(s if norm else None, mean, rstd)
        ctx.norm, ctx.y_bias, ctx.alpha, ctx.dropout, ctx.runtime = norm, y_bias, alpha, dropout, runtime
        ctx.y_dtype = None if y is None else y.dtype
        ctx.set_materialize_grads(False)
        return s.view_as(s) if s is x else s, h, wide_h

    @staticmethod
    def backward(ctx: Any, ds: Tensor | None, dh: Tensor | None, dwide: Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        s, mean, rstd = ctx.saved_tensors
        ds, dh, dwide = (None if g is None else g.contiguous() for g in (ds, dh, dwide))
        given = next(g for g in (ds, dh, dwide) if g is not None)
        rows, D = given.shape
        norm, dropout, runtime = ctx.norm, ctx.dropout, ctx.runtime
        centres, norm_bias = kind(norm)
        dx = torch.empty(rows, D, dtype=torch.float32, device=given.device)
        dy = None if ctx.y_dtype is None else torch.empty(rows, D, dtype=ctx.y_dtype, device=given.device)
        launch = _backward_launch(D)
        programs = min(launch.programs, triton.cdiv(rows, launch.rows))
        partials = torch.empty(programs, 3, D, dtype=torch.float32, device=given.device)
        _add_norm_backward[(programs,)](
            ds, dh, dwide, s, norm.weight if norm else None, mean, rstd, dx, dy, partials,
            dropout.seed, dropout.salt, dropout.threshold, dropout.scale, ctx.alpha, rows, D,
            HAS_DS=ds is not None, HAS_DH=dh is not None, HAS_DWIDE=dwide is not None, HAS_Y=dy is not None,
            DROPS=dropout.p > 0, NORM=norm is not None, CENTRES=centres, HAS_BIAS=norm_bias is not None,
            ROWS=launch.rows, BLOCK=triton.next_power_of_2(D), STAGES=launch.stages, num_warps=launch.warps,
        )  # fmt: skip

        def vectors() -> None:
            of_norm = (norm.weight, norm_bias) if norm is not None else ()
            learned = [p.grad for p in (*of_norm, ctx.y_bias if dy is not None else None) if p is not None]
            if learned:
                runtime.vector_gradients(partials, *learned)

        runtime.aside(vectors, partials)
        return dx, dy, None, None, None, None, None, None


def kind(norm: Norm | None) -> tuple[bool, nn.Parameter | None]:
    """Whether it takes off the mean, and its bias."""
    return isinstance(norm, nn.LayerNorm), norm.bias if isinstance(norm, nn.LayerNorm) else None


def add_norm(
    x: Tensor,
    y: Tensor | None,
    norm: Norm | None,
    runtime: Runtime,
    *,
    y_bias: nn.Parameter | None = None,
    alpha: float = 1.0,
    dropout: Dropout,
    wide: bool = False,
) -> Joined:
    """s and LN(s); without a norm only s."""
    return Joined(*_AddNorm.apply(x, y, norm, y_bias, alpha, dropout, wide, runtime))
