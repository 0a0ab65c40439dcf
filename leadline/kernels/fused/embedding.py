"""The foot of a stack: dropout(scale·E[token] + P[position]), and its way back into the tables."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from leadline.kernels.fused.dropout import Dropout, keeps, row_keys
from leadline.kernels.fused.runtime import Runtime


@triton.jit(do_not_specialize=["salt", "threshold"])
def _embed(  # type: ignore[no-untyped-def]
    tokens, positions, table, places, out, seed, salt, threshold, drop_scale, scale, D,
    DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < D
    token = tl.load(tokens + row).to(tl.int64)
    position = tl.load(positions + row).to(tl.int64)
    value = scale * tl.load(table + token * D + column, mask=inside, other=0.0)
    value += tl.load(places + position * D + column, mask=inside, other=0.0)
    if DROPS:
        keys = row_keys(seed, salt, tl.zeros((BLOCK,), tl.int32) + row)
        value = tl.where(keeps(keys, column, threshold), value * drop_scale, 0.0)
    tl.store(out + row.to(tl.int64) * D + column, value, mask=inside)


@triton.jit(do_not_specialize=["salt", "threshold"])
def _embed_backward(  # type: ignore[no-untyped-def]
    dx, tokens, positions, d_table, d_places, seed, salt, threshold, drop_scale, scale, D,
    DROPS: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < D
    gradient = tl.load(dx + row.to(tl.int64) * D + column, mask=inside, other=0.0)
    if DROPS:
        keys = row_keys(seed, salt, tl.zeros((BLOCK,), tl.int32) + row)
        gradient = tl.where(keeps(keys, column, threshold), gradient * drop_scale, 0.0)
    token = tl.load(tokens + row).to(tl.int64)
    tl.atomic_add(d_table + token * D + column, gradient * scale, mask=inside)
    if PLACES:
        position = tl.load(positions + row).to(tl.int64)
        tl.atomic_add(d_places + position * D + column, gradient, mask=inside)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx: Any, table: nn.Parameter, places: Tensor, tokens: Tensor, positions: Tensor, scale: float,
        dropout: Dropout, runtime: Runtime,
    ) -> Tensor:  # fmt: skip
        rows, D = len(tokens), table.shape[1]
        out = torch.empty(rows, D, dtype=torch.float32, device=table.device)
        _embed[(rows,)](
            tokens, positions, table, places, out, dropout.seed, dropout.salt, dropout.threshold, dropout.scale, scale,
            D, DROPS=dropout.p > 0, BLOCK=triton.next_power_of_2(D), num_warps=4,
        )  # fmt: skip
        ctx.table, ctx.places, ctx.scale, ctx.dropout, ctx.runtime = table, places, scale, dropout, runtime
        ctx.save_for_backward(tokens, positions)
        return out

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        tokens, positions = ctx.saved_tensors
        dropout, (rows, D) = ctx.dropout, dx.shape
        learned = ctx.places.requires_grad
        dx = dx.contiguous()

        def add_up() -> None:
            _embed_backward[(rows,)](
                dx, tokens, positions, ctx.table.grad, ctx.places.grad if learned else None,
                dropout.seed, dropout.salt, dropout.threshold, dropout.scale, ctx.scale, D,
                DROPS=dropout.p > 0, PLACES=learned, BLOCK=triton.next_power_of_2(D), num_warps=4,
            )  # fmt: skip

        # After the projection onto the vocabulary, which writes over the same gradient where they share a table.
        ctx.runtime.aside(add_up, dx, tokens, positions)
        return (None,) * 7


def embed(
    table: nn.Parameter,
    places: Tensor,
    tokens: Tensor,
    positions: Tensor,
    scale: float,
    dropout: Dropout,
    runtime: Runtime,
) -> Tensor:
    """[T] tokens and positions -> [T, D] in float32. Several tokens add to one row of the table's gradient at once,
    in no fixed order: its last bits may differ from run to run."""
    return _Embed.apply(table, places, tokens, positions, scale, dropout, runtime)


def reference(
    table: Tensor, places: Tensor, tokens: Tensor, positions: Tensor, scale: float, dropout: Dropout
) -> Tensor:
    return dropout.reference(scale * table[tokens] + places[positions])
