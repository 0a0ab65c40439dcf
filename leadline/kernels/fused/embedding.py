"""The foot of a stack: dropout(scale·E[token] + P[position]), P if there is one, and the backward pass into the tables.

Many tokens add to one row of a table's gradient. Sorted by row, those of one row lie side by side, and one program adds
them up in a fixed order: the same batch gives the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from leadline.kernels.fused.dropout import Dropout, keeps, row_keys
from leadline.kernels.fused.runtime import Runtime

COLUMNS = 128  # of a program that adds up rows
AT_ONCE = 32  # rows it reads at a time


@triton.jit(do_not_specialize=["salt", "threshold"])
def _embed(  # type: ignore[no-untyped-def]
    tokens, positions, table, places, out, seed, salt, threshold, drop_scale, scale, D,
    PLACES: tl.constexpr, DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < D
    token = tl.load(tokens + row).to(tl.int64)
    value = scale * tl.load(table + token * D + column, mask=inside, other=0.0)
    if PLACES:
        position = tl.load(positions + row).to(tl.int64)
        value += tl.load(places + position * D + column, mask=inside, other=0.0)
    if DROPS:
        keys = row_keys(seed, salt, tl.zeros((BLOCK,), tl.int32) + row)
        value = tl.where(keeps(keys, column, threshold), value * drop_scale, 0.0)
    tl.store(out + row.to(tl.int64) * D + column, value, mask=inside)


@triton.jit(do_not_specialize=["salt", "threshold"])
def _add_up(  # type: ignore[no-untyped-def]
    dx, entries, order, ends, gradient, seed, salt, threshold, drop_scale, scale, D,
    DROPS: tl.constexpr, AT_ONCE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """gradient[e] += scale · the rows of dx whose entry is e.

    `entries` are sorted, `order` says which row each is of, and `ends` where its equals end. The program of the first
    row of an entry adds them all up; the others have nothing to do.
    """
    first = tl.program_id(0)
    entry = tl.load(entries + first)
    if (first == 0) | (tl.load(entries + tl.maximum(first - 1, 0)) != entry):
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < D
        end = tl.load(ends + first).to(tl.int32)
        total = tl.zeros((COLUMNS,), tl.float32)
        for begin in range(first, end, AT_ONCE):
            at = begin + tl.arange(0, AT_ONCE)
            same = at < end
            row = tl.load(order + at, mask=same, other=0)
            values = tl.load(dx + row[:, None] * D + column[None, :], mask=same[:, None] & inside[None, :], other=0.0)
            if DROPS:
                keys = row_keys(seed, salt, row)
                values = tl.where(keeps(keys[:, None], column[None, :], threshold), values * drop_scale, 0.0)
            total += tl.sum(values, 0)
        out = gradient + entry * D + column
        tl.store(out, tl.load(out, mask=inside, other=0.0) + scale * total, mask=inside)


def _sorted(entries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The entries in order, the row each is of, and for each where its equals end."""
    entries, order = entries.sort(stable=True)
    return entries, order, torch.searchsorted(entries, entries, right=True)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx: Any, table: nn.Parameter, places: Tensor | None, tokens: Tensor, positions: Tensor, scale: float,
        dropout: Dropout, runtime: Runtime, learns: bool,
    ) -> Tensor:  # fmt: skip
        rows, D = len(tokens), table.shape[1]
        out = torch.empty(rows, D, dtype=torch.float32, device=table.device)
        _embed[(rows,)](
            tokens, positions, table, places, out, dropout.seed, dropout.salt, dropout.threshold, dropout.scale, scale,
            D, PLACES=places is not None, DROPS=dropout.p > 0, BLOCK=triton.next_power_of_2(D), num_warps=4,
        )  # fmt: skip
        ctx.dropout, ctx.runtime = dropout, runtime
        both = [(table, tokens, scale), (places, positions, 1.0)]
        given = [one for one in both if one[0] is not None and one[0].requires_grad]
        ctx.tables = [(parameter, scale) for parameter, _, scale in given]
        ctx.sorted = []  # of each table, by the time the backward pass comes
        if learns:

            def sort() -> None:
                ctx.sorted += [_sorted(entries) for _, entries, _ in given]

            runtime.aside(sort, tokens, positions)
        return out

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        dropout, (rows, D) = ctx.dropout, dx.shape
        dx = dx.contiguous()

        def add_up() -> None:
            for (parameter, scale), places in zip(ctx.tables, ctx.sorted, strict=True):
                _add_up[(rows, triton.cdiv(D, COLUMNS))](
                    dx, *places, parameter.grad, dropout.seed, dropout.salt, dropout.threshold, dropout.scale, scale, D,
                    DROPS=dropout.p > 0, AT_ONCE=AT_ONCE, COLUMNS=COLUMNS, num_warps=4,
                )  # fmt: skip

        # After the projection onto the vocabulary, which writes over the same gradient where they share a table.
        ctx.runtime.aside(add_up, dx)
        return (None,) * 8


def embed(
    table: nn.Parameter,
    places: Tensor | None,
    tokens: Tensor,
    positions: Tensor,
    scale: float,
    dropout: Dropout,
    runtime: Runtime,
) -> Tensor:
    """[T] tokens and positions -> [T, D] in float32."""
    learns = torch.is_grad_enabled()  # in the function itself it never is
    tokens, positions = tokens.contiguous(), positions.contiguous()
    return _Embed.apply(table, places, tokens, positions, scale, dropout, runtime, learns)


def reference(
    table: Tensor, places: Tensor | None, tokens: Tensor, positions: Tensor, scale: float, dropout: Dropout
) -> Tensor:
    return dropout.reference(scale * table[tokens] + (0 if places is None else places[positions]))
