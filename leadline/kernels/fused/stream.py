"""The residual stream on fused kernels: a sublayer's output joins it only when somebody looks.

A placement writes its equation with `normed`, `plus` and `joined`; the sum, its dropout and the norm that follows
are then one kernel, also where they belong to different residual connections (Pre-LN's sum and the next LN).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from torch import Tensor, nn

from leadline.kernels.fused.dropout import Dropout, dropout
from leadline.kernels.fused.residual import add_norm
from leadline.kernels.fused.runtime import Runtime


@dataclass(frozen=True)
class Branch:
    """A sublayer's output before its dropout, and the bias that waits for its gradient."""

    y: Tensor
    bias: nn.Parameter | None
    dropout: Dropout


class Sublayer(Protocol):
    def __call__(self, h: Tensor, own_bias: bool = False) -> Branch: ...


def _fits(norm: nn.Module) -> TypeGuard[nn.LayerNorm]:
    """Whether the kernel computes this norm."""
    return type(norm) is nn.LayerNorm and norm.bias is not None


@dataclass(frozen=True)
class Stream:
    runtime: Runtime
    x: Any  # [T, D] float32, or what a placement has made of it
    waiting: Branch | None = None
    rounded: Tensor | None = None  # x as matrix products read it, where a norm has written it already

    def plus(self, branch: Branch) -> Stream:
        """x + dropout(y)"""
        return Stream(self.runtime, self.sum(), branch)

    def normed(self, norm: nn.Module) -> tuple[Stream, Tensor]:
        """The stream with nothing waiting, and LN of it."""
        if not _fits(norm):
            x = self.sum()
            return Stream(self.runtime, x), norm(x).to(self.runtime.dtype)
        y, bias, how = self._waiting()
        joined = add_norm(self.x, y, norm, self.runtime, y_bias=bias, dropout=how)
        assert joined.h is not None
        return Stream(self.runtime, joined.s), joined.h

    def joined(self, branch: Branch, norm: nn.Module, alpha: float = 1.0) -> Stream:
        """LN(α·x + dropout(y))"""
        given: dict[str, Any] = {"y_bias": branch.bias, "alpha": alpha, "dropout": branch.dropout}
        if not _fits(norm):
            return Stream(self.runtime, norm(add_norm(self.sum(), branch.y, None, self.runtime, **given).s))
        found = add_norm(self.sum(), branch.y, norm, self.runtime, **given, wide=True)
        assert found.h is not None
        assert found.wide is not None
        return Stream(self.runtime, found.wide, rounded=found.h)

    def through(self, equation: Callable[[Any, Callable[[Tensor], Tensor]], Any], sublayer: Sublayer) -> Stream:
        """Any residual connection as it is written, on plain float32 tensors."""

        def plain(h: Tensor) -> Tensor:
            branch = sublayer(h, own_bias=True)
            return dropout(branch.y, branch.dropout).float()

        return Stream(self.runtime, equation(self.sum(), plain))

    @property
    def half(self) -> Tensor:
        """The stream as matrix products read it."""
        return self.sum().to(self.runtime.dtype) if self.rounded is None else self.rounded

    def sum(self) -> Any:
        """The stream itself, in float32."""
        if self.waiting is None:
            return self.x
        y, bias, how = self._waiting()
        return add_norm(self.x, y, None, self.runtime, y_bias=bias, dropout=how).s

    def _waiting(self) -> tuple[Tensor | None, nn.Parameter | None, Dropout]:
        if self.waiting is None:
            return None, None, self.runtime.dropout(0.0, 0)
        return self.waiting.y, self.waiting.bias, self.waiting.dropout
