"""Matrix products whose weights' gradients go straight where the optimizer reads them (see runtime)."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

from leadline.kernels.fused.dropout import Dropout, keeps, row_keys
from leadline.kernels.fused.runtime import Runtime

TOKENS, COLUMNS = 64, 64  # of a program's tile


class Layer(Protocol):
    """A linear layer with its weight and bias in float32, and in the arithmetic of matrix products."""

    @property
    def weight(self) -> Any: ...
    @property
    def bias(self) -> Any: ...

    compute: Any  # (weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer, own_bias: bool, runtime: Runtime) -> Tensor:
        weight, bias = layer.compute
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.own_bias, ctx.runtime = layer, own_bias, runtime
        return torch.addmm(bias, x, weight.t())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        dy = dy.contiguous()

        def gradients() -> None:
            ctx.runtime.matrix_gradient(ctx.layer.weight, dy, x)
            if ctx.own_bias:
                ctx.layer.bias.grad += dy.sum(0, dtype=torch.float32)

        ctx.runtime.aside(gradients, dy, x)
        return dy @ weight, None, None, None


def linear(x: Tensor, layer: Layer, runtime: Runtime, own_bias: bool) -> Tensor:
    """x·Wᵀ + b. Where not `own_bias`, whoever computes the gradient of the result adds it up for the bias."""
    return _Linear.apply(x.to(runtime.dtype), layer, own_bias, runtime)


class Shared:
    """One product for many readers: each reads its own columns, and on the way back writes their gradient here.

    Their gradients then need no adding up, and one product takes them back to what they all read.
    """

    def __init__(self, x: Tensor, layer: Layer, runtime: Runtime) -> None:
        self.gradient: Tensor | None = None
        self.product: Tensor = _Shared.apply(x.to(runtime.dtype), layer, self, runtime)

    def gradient_place(self) -> Tensor:
        if self.gradient is None:
            self.gradient = torch.empty_like(self.product)
        return self.gradient


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer, shared: Shared, runtime: Runtime) -> Tensor:
        weight, bias = layer.compute
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.shared, ctx.runtime = layer, shared, runtime
        ctx.set_materialize_grads(False)
        return torch.addmm(bias, x, weight.t())

    @staticmethod
    def backward(ctx: Any, nothing: None) -> tuple[Any, ...]:  # type: ignore[override]
        """Runs when all readers have: autograd counts them, though they hand it nothing."""
        x, weight = ctx.saved_tensors
        dy, ctx.shared.gradient = ctx.shared.gradient, None
        ctx.runtime.aside(lambda: ctx.runtime.matrix_gradient(ctx.layer.weight, dy, x), dy, x)
        return dy @ weight, None, None, None


@triton.jit
def _gelu(z):  # type: ignore[no-untyped-def]
    return 0.5 * z * (1 + tl.erf(z * 0.7071067811865476))


@triton.jit
def _gelu_slope(z):  # type: ignore[no-untyped-def]
    return 0.5 * (1 + tl.erf(z * 0.7071067811865476)) + z * 0.3989422804014327 * tl.exp(-0.5 * z * z)


@triton.jit(do_not_specialize=["salt", "threshold"])
def _activate(  # type: ignore[no-untyped-def]
    z, out, seed, salt, threshold, scale, rows, columns,
    GELU: tl.constexpr, DROPS: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    value = tl.load(z + at, mask=inside, other=0.0).to(tl.float32)
    value = _gelu(value) if GELU else tl.maximum(value, 0.0)
    if DROPS:
        keys = row_keys(seed, salt, row)
        value = tl.where(keeps(keys[:, None], column[None, :], threshold), value * scale, 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["salt", "threshold"])
def _activate_backward(  # type: ignore[no-untyped-def]
    da, z, dz, partials, seed, salt, threshold, scale, rows, columns,
    GELU: tl.constexpr, DROPS: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    gradient = tl.load(da + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(z + at, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        keys = row_keys(seed, salt, row)
        gradient = tl.where(keeps(keys[:, None], column[None, :], threshold), gradient * scale, 0.0)
    gradient = gradient * _gelu_slope(value) if GELU else tl.where(value > 0, gradient, 0.0)
    rounded = gradient.to(dz.dtype.element_ty)
    tl.store(dz + at, rounded, mask=inside)
    sums = tl.sum(rounded.to(tl.float32), 0)
    tl.store(partials + tl.program_id(0) * columns + column, sums, mask=column < columns)


class _Expand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer, gelu: bool, dropout: Dropout, runtime: Runtime) -> Tensor:
        weight, bias = layer.compute
        fits_epilogue = not gelu and not dropout.p  # cuBLAS applies the ReLU as it writes
        if fits_epilogue:
            z = out = torch._addmm_activation(bias, x, weight.t(), use_gelu=False)  # whose sign is that of z
        else:
            z = torch.addmm(bias, x, weight.t())
            out = torch.empty_like(z)
            _activate[_grid(z)](z, out, *_drawn(dropout), *z.shape, GELU=gelu, **_shared(dropout))
        ctx.save_for_backward(x, weight, z)
        ctx.layer, ctx.gelu, ctx.dropout, ctx.runtime = layer, gelu, dropout, runtime
        return out

    @staticmethod
    def backward(ctx: Any, da: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, weight, z = ctx.saved_tensors
        dz = torch.empty_like(z)
        grid = _grid(z)
        partials = torch.empty(grid[0], 1, z.shape[1], dtype=torch.float32, device=z.device)
        _activate_backward[grid](
            da.contiguous(), z, dz, partials, *_drawn(ctx.dropout), *z.shape, GELU=ctx.gelu, **_shared(ctx.dropout)
        )

        def gradients() -> None:
            ctx.runtime.matrix_gradient(ctx.layer.weight, dz, x)
            ctx.runtime.vector_gradients(partials, ctx.layer.bias.grad)

        ctx.runtime.aside(gradients, dz, x, partials)
        return dz @ weight, None, None, None, None


def _grid(z: Tensor) -> tuple[int, int]:
    return triton.cdiv(z.shape[0], TOKENS), triton.cdiv(z.shape[1], COLUMNS)


def _drawn(dropout: Dropout) -> tuple[Any, ...]:
    return dropout.seed, dropout.salt, dropout.threshold, dropout.scale


def _shared(dropout: Dropout) -> dict[str, Any]:
    return {"DROPS": dropout.p > 0, "TOKENS": TOKENS, "COLUMNS": COLUMNS, "num_warps": 4}


def expand(x: Tensor, layer: Layer, gelu: bool, dropout: Dropout, runtime: Runtime) -> Tensor:
    """dropout(activation(x·Wᵀ + b))"""
    return _Expand.apply(x.to(runtime.dtype), layer, gelu, dropout, runtime)


def expand_reference(x: Tensor, weight: Tensor, bias: nn.Parameter, gelu: bool, dropout: Dropout) -> Tensor:
    z = F.linear(x, weight, bias)
    return dropout.reference(F.gelu(z) if gelu else F.relu(z))
