"""What the fused kernels share: the arithmetic, the seed of dropout, and where gradients of weights go.

A gradient of a weight is written straight into the weight's `.grad`, which must exist: kernels do it as they go,
and autograd carries only the gradients of the stream. Nothing waits for the gradients of weights until the update,
so they are computed on a second stream beside the way back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from leadline.kernels.fused.dropout import Dropout

HELD = 48  # pieces of work on the second stream whose inputs are kept; more cost memory, fewer make it wait


@dataclass
class Runtime:
    dtype: torch.dtype  # of matrix products
    seed: Tensor  # [1] int64, on the device
    accumulate: bool = False  # add to the gradients of matrices; otherwise they are written over
    second: torch.cuda.Stream | None = None
    held: deque[tuple[Any, tuple[Tensor, ...]]] = field(default_factory=deque)

    def dropout(self, p: float, site: int) -> Dropout:
        return Dropout(p, self.seed, site)

    def aside(self, work: Callable[[], None], *inputs: Tensor) -> None:
        """Do `work` on the second stream; its inputs live until the main stream has waited for it."""
        if self.second is None:
            work()
            return
        main = torch.cuda.current_stream()
        self.second.wait_stream(main)
        with torch.cuda.stream(self.second):
            work()
        self.held.append((self.second.record_event(), inputs))
        if len(self.held) > HELD:
            main.wait_event(self.held.popleft()[0])

    def join(self) -> None:
        """The main stream waits for everything that was done aside."""
        if self.second is not None:
            torch.cuda.current_stream().wait_stream(self.second)
            self.held.clear()

    def matrix_gradient(self, weight: nn.Parameter, gradient: Tensor, x: Tensor) -> None:
        """weight.grad (+)= gradientᵀ·x, in float32."""
        out, left = weight.grad, gradient.t()
        assert out is not None
        if gradient.device.type != "cuda" or gradient.dtype == torch.float32:
            product = left.float() @ x.float()
            out.add_(product) if self.accumulate else out.copy_(product)
        elif self.accumulate:
            torch.ops.aten.addmm.dtype_out(out, left, x, torch.float32, out=out)
        else:
            torch.ops.aten.mm.dtype_out(left, x, torch.float32, out=out)

    def vector_gradients(self, partials: Tensor, *gradients: Tensor) -> None:
        """gradients[i] [N] += the sum of `partials` [P, many, N] over P at i, in a fixed order; three at the most."""
        many, _, columns = partials.shape
        given = [*gradients, *gradients[:1] * 2][:3]
        rows = min(256, triton.next_power_of_2(many))
        _add_up[(triton.cdiv(columns, 16), len(gradients))](
            partials, *given, many, columns, partials.stride(0), ROWS=rows, COLUMNS=16, num_warps=4
        )


@triton.jit(do_not_specialize=["many"])
def _add_up(  # type: ignore[no-untyped-def]
    partials, out0, out1, out2, many, columns, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    which = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, many, ROWS):
        row = first + tl.arange(0, ROWS)
        at = row[:, None] * stride + which * columns + column[None, :]
        total += tl.sum(tl.load(partials + at, mask=(row < many)[:, None] & inside[None, :], other=0.0), 0)
    out = out0
    if which == 1:
        out = out1
    if which == 2:
        out = out2
    before = tl.load(out + column, mask=inside, other=0.0)
    tl.store(out + column, before + total, mask=inside)
