"""The residual stream on fused kernels: it answers a placement's equation, and computes only when somebody looks.

    x + sublayer(norm(x))             norm(x) joins what waits in x and normalises, in one kernel
    norm(α * x + sublayer(x))         α, dropout, sum and norm in one kernel

A stream knows a factor, a sum with a branch or a tensor, and being normalised. Asked for anything else it raises and
says how to look at it as a tensor.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeGuard

import torch
from torch import Tensor, nn

from leadline.errors import UserError
from leadline.kernels import norm as norms
from leadline.kernels.fused.dropout import Dropout, dropout
from leadline.kernels.fused.residual import Norm, add_norm
from leadline.kernels.fused.runtime import Runtime


def fits(norm: nn.Module) -> TypeGuard[Norm]:
    """Whether the kernel computes this norm."""
    return type(norm) in (nn.LayerNorm, norms.LayerNorm, nn.RMSNorm, norms.RMSNorm) and norm.weight is not None


class _Lazy:
    """What is not a tensor yet."""

    @classmethod
    def _cannot(cls, what: str) -> NoReturn:
        raise UserError(
            f"{what} is nothing that a {cls.__name__.lower()} knows on fused kernels: a placement's equation that asks "
            "for it must look at a tensor, with leadline.placement.tensor(…), which leaves tensors as they are"
        )

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        cls._cannot(getattr(function, "__name__", str(function)))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._cannot(f"'{name}'")


def _unknown(name: str) -> Any:
    def raises(self: _Lazy, *_: Any) -> NoReturn:
        self._cannot(name)

    return raises


UNKNOWN = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "matmul", "rmatmul", "pow", "rpow", "neg",
    "abs", "len", "iter", "getitem",
)  # fmt: skip
for _name in UNKNOWN:
    setattr(_Lazy, f"__{_name}__", _unknown(_name))


class Branch(_Lazy):
    """A sublayer's output that has not joined the stream: before its dropout, its bias waiting for its gradient."""

    def __init__(self, runtime: Runtime, y: Tensor, bias: nn.Parameter | None, how: Dropout) -> None:
        self.runtime, self.y, self.bias, self.dropout = runtime, y, bias, how

    @property
    def tensor(self) -> Tensor:
        y = self.y if self.bias is None else _BiasGradient.apply(self.y, self.bias, self.runtime)
        return dropout(y, self.dropout).float()

    def normed_by(self, norm: nn.Module) -> Tensor:
        return norm(self.tensor)


class _BiasGradient(torch.autograd.Function):
    """Nothing; its gradient is also added up for the bias."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, bias: nn.Parameter, runtime: Runtime) -> Tensor:
        ctx.bias, ctx.runtime = bias, runtime
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        bias = ctx.bias

        def add_up() -> None:
            bias.grad += dy.sum(0, dtype=torch.float32)

        ctx.runtime.aside(add_up, dy)
        return dy, None, None


class Stream(_Lazy):
    """scale·x + dropout(y), of which y may be missing."""

    def __init__(
        self,
        runtime: Runtime,
        x: Tensor,
        waiting: Branch | None = None,
        scale: float = 1.0,
        rounded: Tensor | None = None,
        entering: bool = False,
    ) -> None:
        self.runtime = runtime
        self.x = x  # [T, D] float32
        self.waiting, self.scale = waiting, scale
        self.rounded = rounded  # the whole as matrix products read it, where a norm has written it already
        self.entering = entering  # it is what a residual connection was given

    def enter(self) -> Stream:
        """For a residual connection: what the norm makes of it goes to a sublayer, and it stays the stream."""
        return Stream(self.runtime, self.x, self.waiting, self.scale, self.rounded, entering=True)

    def __add__(self, other: Any) -> Stream:
        if isinstance(other, Branch) and self.waiting is None:
            return Stream(self.runtime, self.x, other, self.scale)
        if isinstance(other, Branch):
            return Stream(self.runtime, self.tensor, other)
        if isinstance(other, Tensor):
            return Stream(self.runtime, self.tensor + other)
        self._cannot(f"adding {type(other).__name__}")

    def __rmul__(self, factor: Any) -> Stream:
        if not isinstance(factor, int | float):
            self._cannot(f"multiplying by {type(factor).__name__}")
        return Stream(self.runtime, self.tensor, scale=float(factor))

    def normed_by(self, norm: nn.Module) -> Any:
        """Of what enters a connection, the norm as matrix products read it; otherwise a new stream."""
        if not fits(norm):
            normed = norm(self.tensor)
            return normed.to(self.runtime.dtype) if self.entering else Stream(self.runtime, normed)
        joined = self._join(norm, wide=not self.entering)
        if self.entering:
            self._settle(joined.s)
            return joined.h
        return Stream(self.runtime, joined.wide, rounded=joined.h)

    @property
    def tensor(self) -> Tensor:
        """In float32."""
        if self.waiting is not None or self.scale != 1:
            self._settle(self._join(None).s)
        return self.x

    @property
    def half(self) -> Tensor:
        """As matrix products read it."""
        if self.rounded is None:
            self.rounded = self.tensor.to(self.runtime.dtype)
        return self.rounded

    def _join(self, norm: Norm | None, wide: bool = False) -> Any:
        y, bias, how = None, None, self.runtime.dropout(0.0, 0)
        if self.waiting is not None:
            y, bias, how = self.waiting.y, self.waiting.bias, self.waiting.dropout
        return add_norm(self.x, y, norm, self.runtime, y_bias=bias, alpha=self.scale, dropout=how, wide=wide)

    def _settle(self, whole: Tensor) -> None:
        """What was computed once is not computed again."""
        self.x, self.waiting, self.scale = whole, None, 1.0
