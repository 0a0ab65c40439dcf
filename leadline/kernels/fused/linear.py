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

TOKENS, COLUMNS, WARPS = 64, 64, 4  # of a program's tile


class Layer(Protocol):
    """A linear layer with its weight and bias (or None) in float32, and in the arithmetic of matrix products."""

    @property
    def weight(self) -> Any: ...
    @property
    def bias(self) -> Any: ...

    compute: Any  # (weight, bias)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer, own_bias: bool, runtime: Runtime) -> Tensor:
        weight, bias = layer.compute
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.own_bias, ctx.runtime = layer, own_bias and bias is not None, runtime
        return _product(x, weight, bias)

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
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, nothing: None) -> tuple[Any, ...]:  # type: ignore[override]
        """Runs when all readers have: autograd counts them, though they hand it nothing."""
        x, weight = ctx.saved_tensors
        # They hold each other: the graph would live until Python looks for cycles.
        shared, ctx.shared = ctx.shared, None
        dy, shared.gradient = shared.gradient, None
        ctx.runtime.aside(lambda: ctx.runtime.matrix_gradient(ctx.layer.weight, dy, x), dy, x)
        return dy @ weight, None, None, None


# By the names of model.activation; those of the kernels' KIND.
ACTIVATIONS: dict[str, Any] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
    "swiglu": lambda z: F.silu(z.chunk(2, -1)[0]) * z.chunk(2, -1)[1],
}


@triton.jit
def _logistic(z):  # type: ignore[no-untyped-def]
    small = tl.exp(-tl.abs(z))
    return tl.where(z >= 0, 1.0, small) / (1 + small)


@triton.jit
def _value(z, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    if KIND == "gelu":
        return 0.5 * z * (1 + tl.erf(z * 0.7071067811865476))
    elif KIND == "gelu_tanh":  # (1 + tanh u)/2 is the logistic function of 2u
        return z * _logistic(1.5957691216057308 * (z + 0.044715 * z * z * z))
    elif KIND == "silu" or KIND == "swiglu":
        return z * _logistic(z)
    else:
        return tl.maximum(z, 0.0)


@triton.jit
def _slope(z, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    if KIND == "gelu":
        return 0.5 * (1 + tl.erf(z * 0.7071067811865476)) + z * 0.3989422804014327 * tl.exp(-0.5 * z * z)
    elif KIND == "gelu_tanh":
        half = _logistic(1.5957691216057308 * (z + 0.044715 * z * z * z))
        return half + z * half * (1 - half) * 1.5957691216057308 * (1 + 0.134145 * z * z)
    else:
        half = _logistic(z)
        return half + z * half * (1 - half)


@triton.jit(do_not_specialize=["salt", "threshold"])
def _activate(  # type: ignore[no-untyped-def]
    z, out, seed, salt, threshold, scale, rows, columns,
    KIND: tl.constexpr, DROPS: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """`columns` are those of the result; where there is a gate, it lies before what it gates."""
    GATED: tl.constexpr = KIND == "swiglu"
    row = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    from_ = at + row.to(tl.int64)[:, None] * columns if GATED else at
    value = _value(tl.load(z + from_, mask=inside, other=0.0).to(tl.float32), KIND)
    if GATED:
        value *= tl.load(z + from_ + columns, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        keys = row_keys(seed, salt, row)
        value = tl.where(keeps(keys[:, None], column[None, :], threshold), value * scale, 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _store_gradient(gradient, dz, at, inside, sums, column, columns):  # type: ignore[no-untyped-def]
    """And the sums of what is stored, which are the gradient of a bias."""
    rounded = gradient.to(dz.dtype.element_ty)
    tl.store(dz + at, rounded, mask=inside)
    tl.store(sums + column, tl.sum(rounded.to(tl.float32), 0), mask=column < columns)


@triton.jit(do_not_specialize=["salt", "threshold"])
def _activate_backward(  # type: ignore[no-untyped-def]
    da, z, dz, partials, seed, salt, threshold, scale, rows, columns,
    KIND: tl.constexpr, DROPS: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    GATED: tl.constexpr = KIND == "swiglu"
    row = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    to = at + row.to(tl.int64)[:, None] * columns if GATED else at
    gradient = tl.load(da + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(z + to, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        keys = row_keys(seed, salt, row)
        gradient = tl.where(keeps(keys[:, None], column[None, :], threshold), gradient * scale, 0.0)
    sums = partials + tl.program_id(0) * columns * (1 + GATED)
    if GATED:
        gated = tl.load(z + to + columns, mask=inside, other=0.0).to(tl.float32)
        passed = gradient * _value(value, KIND)
        _store_gradient(passed, dz, to + columns, inside, sums + columns, column, columns)
        gradient *= gated
    gradient = tl.where(value > 0, gradient, 0.0) if KIND == "relu" else gradient * _slope(value, KIND)
    _store_gradient(gradient, dz, to, inside, sums, column, columns)


class _Expand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer, kind: str, dropout: Dropout, runtime: Runtime) -> Tensor:
        weight, bias = layer.compute
        if kind == "relu" and not dropout.p and bias is not None:  # cuBLAS applies the ReLU as it writes
            z = out = torch._addmm_activation(bias, x, weight.t(), use_gelu=False)  # whose sign is that of z
        else:
            z = _product(x, weight, bias)
            out = z.new_empty(len(z), z.shape[1] // (1 + (kind == "swiglu")))
            _activate[_grid(out)](z, out, *_drawn(dropout), *out.shape, KIND=kind, **_shared(dropout))
        ctx.save_for_backward(x, weight, z)
        ctx.layer, ctx.kind, ctx.dropout, ctx.runtime = layer, kind, dropout, runtime
        return out

    @staticmethod
    def backward(ctx: Any, da: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        x, weight, z = ctx.saved_tensors
        dz = torch.empty_like(z)
        grid = _grid(da)
        partials = torch.empty(grid[0], 1, z.shape[1], dtype=torch.float32, device=z.device)
        _activate_backward[grid](
            da.contiguous(), z, dz, partials, *_drawn(ctx.dropout), *da.shape, KIND=ctx.kind, **_shared(ctx.dropout)
        )

        def gradients() -> None:
            ctx.runtime.matrix_gradient(ctx.layer.weight, dz, x)
            if ctx.layer.bias is not None:
                ctx.runtime.vector_gradients(partials, ctx.layer.bias.grad)

        ctx.runtime.aside(gradients, dz, x, partials)
        return dz @ weight, None, None, None, None


def _grid(out: Tensor) -> tuple[int, int]:
    return triton.cdiv(out.shape[0], TOKENS), triton.cdiv(out.shape[1], COLUMNS)


def _drawn(dropout: Dropout) -> tuple[Any, ...]:
    return dropout.seed, dropout.salt, dropout.threshold, dropout.scale


def _shared(dropout: Dropout) -> dict[str, Any]:
    return {"DROPS": dropout.p > 0, "TOKENS": TOKENS, "COLUMNS": COLUMNS, "num_warps": WARPS}


def expand(x: Tensor, layer: Layer, kind: str, dropout: Dropout, runtime: Runtime) -> Tensor:
    """dropout(activation(x·Wᵀ + b)), the activation one of ACTIVATIONS"""
    return _Expand.apply(x.to(runtime.dtype), layer, kind, dropout, runtime)


def expand_reference(x: Tensor, weight: Tensor, bias: nn.Parameter | None, kind: str, dropout: Dropout) -> Tensor:
    return dropout.reference(ACTIVATIONS[kind](F.linear(x, weight, bias)))
