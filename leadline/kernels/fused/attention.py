"""Attention over packed sequences in tiles of the pack itself, whatever the sequences' lengths.

A tile of consecutive queries needs consecutive keys: from the first key of its first sequence to the last of its
last. A query i of sequence s attends to the keys [k_starts[s], k_starts[s+1]), up to its own position where
causal; a key j gets gradients from the queries [q_starts[s], q_starts[s+1]), from its own position on.
Short sequences so share a tile, and nothing is launched for empty ones.

On the way back some programs take a tile of queries (dq), the others a tile of keys (dk and dv), in one launch.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from leadline.kernels.fused.dropout import Dropout, keeps, row_keys
from leadline.kernels.fused.linear import Shared
from leadline.kernels.fused.runtime import Runtime
from leadline.kernels.pack import Pack

LOG2E = math.log2(math.e)


class Tiles(NamedTuple):
    """Rows of a tile that stays, and of those that pass by."""

    stay: int
    passing: int
    warps: int
    stages: int


def _forward_tiles(width: int, bytes_each: int) -> Tiles:
    """Smaller for wide heads and float32, whose tiles would not fit in a multiprocessor's shared memory."""
    row = triton.next_power_of_2(width) * bytes_each
    if row > 256:
        return Tiles(32, 32, 4, 1) if row > 512 else Tiles(64, 32, 4, 2 if bytes_each == 2 else 1)
    return Tiles(64, 64, 4, 2) if width > 64 else Tiles(64, 64, 4, 3)


def _backward_tiles(width: int, bytes_each: int, drops: bool) -> Tiles:
    """Dropout needs the registers that prefetching would take."""
    row = triton.next_power_of_2(width) * bytes_each
    if row > 256:
        return Tiles(16, 16, 4, 1) if row > 512 else Tiles(32, 32, 4, 1)
    return Tiles(64, 32, 4, 1 if width > 64 or drops else 2)


@triton.jit
def _keys_of(row, rows, owner, q_starts, k_starts, CAUSAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """The keys [low, high) that each query attends to."""
    here = row < rows
    sequence = tl.load(owner + row, mask=here, other=0)
    low = tl.load(k_starts + sequence, mask=here, other=2147483647)
    high = tl.load(k_starts + sequence + 1, mask=here, other=0)
    if CAUSAL:
        high = tl.minimum(high, low + row - tl.load(q_starts + sequence, mask=here, other=0) + 1)
    return low, tl.where(here, high, 0)


@triton.jit
def _queries_of(row, rows, owner, q_starts, k_starts, CAUSAL: tl.constexpr):  # type: ignore[no-untyped-def]
    """The queries [low, high) that attend to each key."""
    here = row < rows
    sequence = tl.load(owner + row, mask=here, other=0)
    low = tl.load(q_starts + sequence, mask=here, other=2147483647)
    high = tl.load(q_starts + sequence + 1, mask=here, other=0)
    if CAUSAL:
        low = tl.where(here, low + row - tl.load(k_starts + sequence, mask=here, other=0), low)
    return low, high


@triton.jit
def _tile(base, row, here, stride, width, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.arange(0, WIDTH)
    at = row.to(tl.int64)[:, None] * stride + column[None, :]
    return tl.load(base + at, mask=here[:, None] & (column < width)[None, :], other=0.0)


@triton.jit(do_not_specialize=["salt", "threshold"])
def _attend(  # type: ignore[no-untyped-def]
    q, k, v, out, lse, q_owner, q_starts, k_starts, seed, salt, threshold, drop_scale, scale,
    q_stride, kv_stride, rows, keys, width, H, GROUP: tl.constexpr,
    CAUSAL: tl.constexpr, DROPS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    row = tl.program_id(0) * M + tl.arange(0, M)
    here = row < rows
    low, high = _keys_of(row, rows, q_owner, q_starts, k_starts, CAUSAL)
    queries = _tile(q + head * width, row, here, q_stride, width, WIDTH)
    total = tl.zeros((M, WIDTH), tl.float32)
    highest = tl.full((M,), float("-inf"), tl.float32)
    mass = tl.zeros((M,), tl.float32)
    if DROPS:
        drop_keys = row_keys(seed, salt, row * H + head)
    for first in range(tl.min(low), tl.max(high), N):
        key = first + tl.arange(0, N)
        there = key < keys
        some_keys = _tile(k + head // GROUP * width, key, there, kv_stride, width, WIDTH)
        scores = tl.dot(queries, tl.trans(some_keys), input_precision=PRECISION) * scale
        seen = (key[None, :] >= low[:, None]) & (key[None, :] < high[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)  # a query that has seen no key yet
        weights = tl.exp2(scores - level[:, None])
        shrink = tl.exp2(highest - level)
        mass = mass * shrink + tl.sum(weights, 1)
        if DROPS:
            weights = tl.where(keeps(drop_keys[:, None], key[None, :], threshold), weights * drop_scale, 0.0)
        values = _tile(v + head // GROUP * width, key, there, kv_stride, width, WIDTH)
        total = total * shrink[:, None]
        total = tl.dot(weights.to(values.dtype), values, total, input_precision=PRECISION)
        highest = higher
    empty = mass == 0.0  # filler without keys
    total = total / tl.where(empty, 1.0, mass)[:, None]
    column = tl.arange(0, WIDTH)
    at = row.to(tl.int64)[:, None] * (H * width) + head * width + column[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=here[:, None] & (column < width)[None, :])
    tl.store(lse + head * rows + row, tl.where(empty, 0.0, highest + tl.log2(tl.where(empty, 1.0, mass))), mask=here)


@triton.jit
def _delta(out, dout, deltas, rows, width, H, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Σ out·dout of each query and head: what the softmax takes off every gradient of its weights."""
    head = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < rows
    o = _tile(out + head * width, row, here, H * width, width, WIDTH).to(tl.float32)
    do = _tile(dout + head * width, row, here, H * width, width, WIDTH).to(tl.float32)
    tl.store(deltas + head * rows + row, tl.sum(o * do, 1), mask=here)


@triton.jit
def _load_both(first, second, at, mask):  # type: ignore[no-untyped-def]
    return tl.load(first + at, mask=mask, other=0.0), tl.load(second + at, mask=mask, other=0.0)


@triton.jit
def _store_summed(places, total, sums, here, wide):  # type: ignore[no-untyped-def]
    """A tile of a gradient, and the sums of what is stored, which are the gradient of a bias."""
    rounded = total.to(places.dtype.element_ty)
    tl.store(places, rounded, mask=here[:, None] & wide[None, :])
    tl.store(sums, tl.sum(rounded.to(tl.float32), 0), mask=wide)


@triton.jit(do_not_specialize=["salt", "threshold"])
def _attend_backward(  # type: ignore[no-untyped-def]
    q, k, v, lse, deltas, dout, dq, dk, dv, q_sums, kv_sums, q_owner, k_owner, q_starts, k_starts,
    seed, salt, threshold, drop_scale, scale, plain_scale, q_stride, kv_stride, q_sums_stride, kv_sums_stride,
    rows, keys, width, H, query_tiles, GROUP: tl.constexpr, CAUSAL: tl.constexpr, DROPS: tl.constexpr,
    STAY: tl.constexpr, PASS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, WIDTH)
    wide = column < width
    o_stride = H * width
    if tile < query_tiles:
        row = tile * STAY + tl.arange(0, STAY)
        here = row < rows
        low, high = _keys_of(row, rows, q_owner, q_starts, k_starts, CAUSAL)
        queries = _tile(q + head * width, row, here, q_stride, width, WIDTH)
        do = _tile(dout + head * width, row, here, o_stride, width, WIDTH)
        level, delta = _load_both(lse, deltas, head * rows + row, here)
        total = tl.zeros((STAY, WIDTH), tl.float32)
        if DROPS:
            drop_keys = row_keys(seed, salt, row * H + head)
        for first in range(tl.min(low), tl.max(high), PASS):
            key = first + tl.arange(0, PASS)
            there = key < keys
            some_keys = _tile(k + head // GROUP * width, key, there, kv_stride, width, WIDTH)
            values = _tile(v + head // GROUP * width, key, there, kv_stride, width, WIDTH)
            scores = tl.dot(queries, tl.trans(some_keys), input_precision=PRECISION) * scale
            seen = (key[None, :] >= low[:, None]) & (key[None, :] < high[:, None])
            weights = tl.where(seen, tl.exp2(scores - level[:, None]), 0.0)
            dweights = tl.dot(do, tl.trans(values), input_precision=PRECISION)
            if DROPS:
                dweights = tl.where(keeps(drop_keys[:, None], key[None, :], threshold), dweights * drop_scale, 0.0)
            dscores = weights * (dweights - delta[:, None])
            total = tl.dot(dscores.to(some_keys.dtype), some_keys, total, input_precision=PRECISION)
        at = row.to(tl.int64)[:, None] * q_stride + head * width + column[None, :]
        base = q_sums + tile * q_sums_stride + head * width + column
        _store_summed(dq + at, total * plain_scale, base, here, wide)
    elif head % GROUP == 0:  # keys and values are those of GROUP heads from this one on
        group = head // GROUP
        tile = tile - query_tiles
        row = tile * STAY + tl.arange(0, STAY)
        here = row < keys
        low, high = _queries_of(row, keys, k_owner, q_starts, k_starts, CAUSAL)
        some_keys = _tile(k + group * width, row, here, kv_stride, width, WIDTH)
        values = _tile(v + group * width, row, here, kv_stride, width, WIDTH)
        total_k = tl.zeros((STAY, WIDTH), tl.float32)
        total_v = tl.zeros((STAY, WIDTH), tl.float32)
        for member in range(0, GROUP):
            for first in range(tl.min(low), tl.max(high), PASS):
                query = first + tl.arange(0, PASS)
                there = query < rows
                queries = _tile(q + (head + member) * width, query, there, q_stride, width, WIDTH)
                do = _tile(dout + (head + member) * width, query, there, o_stride, width, WIDTH)
                level, delta = _load_both(lse, deltas, (head + member) * rows + query, there)
                scores = tl.dot(some_keys, tl.trans(queries), input_precision=PRECISION) * scale
                seen = (query[None, :] >= low[:, None]) & (query[None, :] < high[:, None])
                weights = tl.where(seen, tl.exp2(scores - level[None, :]), 0.0)
                dweights = tl.dot(values, tl.trans(do), input_precision=PRECISION)
                kept = weights
                if DROPS:
                    drop_keys = row_keys(seed, salt, query * H + head + member)
                    keep = keeps(drop_keys[None, :], row[:, None], threshold)
                    kept = tl.where(keep, weights * drop_scale, 0.0)
                    dweights = tl.where(keep, dweights * drop_scale, 0.0)
                total_v = tl.dot(kept.to(do.dtype), do, total_v, input_precision=PRECISION)
                dscores = weights * (dweights - delta[None, :])
                total_k = tl.dot(dscores.to(queries.dtype), queries, total_k, input_precision=PRECISION)
        at = row.to(tl.int64)[:, None] * kv_stride + group * width + column[None, :]
        base = kv_sums + tile * kv_sums_stride + group * width + column
        _store_summed(dk + at, total_k * plain_scale, base, here, wide)
        _store_summed(dv + at, total_v, base + H // GROUP * width, here, wide)


class Heads(NamedTuple):
    """How many heads queries have, and keys and values, and how wide each is."""

    queries: int
    groups: int
    width: int

    def views(self, first: Tensor, second: Tensor | None, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v side by side in the first, or q there and k and v side by side in part `number` of the second."""
        q, kv = self.queries * self.width, self.groups * self.width
        if second is None:
            return first[:, :q], first[:, q : q + kv], first[:, q + kv :]
        begin = 2 * kv * number
        return first, second[:, begin : begin + kv], second[:, begin + kv : begin + 2 * kv]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx: Any, first: Tensor, second: Tensor | None, q_pack: Pack, k_pack: Pack, heads: Heads, causal: bool,
        dropout: Dropout, biases: tuple[nn.Parameter | None, ...], shared: Shared | None, number: int, runtime: Runtime,
    ) -> Tensor:  # fmt: skip
        H, G, width = heads
        q, k, v = heads.views(first, second, number)
        rows, keys = len(q), len(k)
        out = torch.empty(rows, H * width, dtype=q.dtype, device=q.device)
        lse = torch.empty(H, rows, dtype=torch.float32, device=q.device)
        tiles = _forward_tiles(width, q.element_size())
        _attend[(triton.cdiv(rows, tiles.stay), H)](
            q, k, v, out, lse, q_pack.owner, q_pack.starts, k_pack.starts,
            dropout.seed, dropout.salt, dropout.threshold, dropout.scale, LOG2E / math.sqrt(width),
            q.stride(0), k.stride(0), rows, keys, width, H, H // G,
            CAUSAL=causal, DROPS=dropout.p > 0, M=tiles.stay, N=tiles.passing,
            WIDTH=max(16, triton.next_power_of_2(width)), PRECISION=_precision(q.dtype),
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
        ctx.save_for_backward(first, second, out, lse)
        ctx.packs, ctx.heads, ctx.causal, ctx.dropout = (q_pack, k_pack), heads, causal, dropout
        ctx.biases, ctx.shared, ctx.number, ctx.runtime = biases, shared, number, runtime
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        first, second, out, lse = ctx.saved_tensors
        (H, G, width), dropout, runtime = ctx.heads, ctx.dropout, ctx.runtime
        q_pack, k_pack = ctx.packs
        q, k, v = ctx.heads.views(first, second, ctx.number)
        d_first = torch.empty_like(first)
        d_second = ctx.shared.gradient_place() if ctx.shared else None if second is None else torch.empty_like(second)
        dq, dk, dv = ctx.heads.views(d_first, d_second, ctx.number)
        rows, keys = len(q), len(k)
        tiles = _backward_tiles(width, q.element_size(), dropout.p > 0)
        query_tiles, key_tiles = triton.cdiv(rows, tiles.stay), triton.cdiv(keys, tiles.stay)
        sums = [
            torch.empty(tiles_of, 1, columns, dtype=torch.float32, device=q.device)
            for tiles_of, columns in (
                [(query_tiles, first.shape[1])]
                if second is None
                else [(query_tiles, H * width), (key_tiles, 2 * G * width)]
            )
        ]
        q_sums, kv_sums = (sums[0], sums[0][:, :, H * width :]) if second is None else sums
        dout, deltas, padded = dout.contiguous(), torch.empty_like(lse), max(16, triton.next_power_of_2(width))
        _delta[(triton.cdiv(rows, 32), H)](out, dout, deltas, rows, width, H, ROWS=32, WIDTH=padded, num_warps=4)
        _attend_backward[(query_tiles + key_tiles, H)](
            q, k, v, lse, deltas, dout, dq, dk, dv, q_sums, kv_sums,
            q_pack.owner, k_pack.owner, q_pack.starts, k_pack.starts,
            dropout.seed, dropout.salt, dropout.threshold, dropout.scale,
            LOG2E / math.sqrt(width), 1 / math.sqrt(width),
            q.stride(0), k.stride(0), q_sums.stride(0), kv_sums.stride(0), rows, keys, width, H, query_tiles, H // G,
            CAUSAL=ctx.causal, DROPS=dropout.p > 0, STAY=tiles.stay, PASS=tiles.passing,
            WIDTH=padded, PRECISION=_precision(q.dtype), num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
        if any(bias is not None for bias in ctx.biases):

            def add_up() -> None:
                for bias, sum_of in zip(ctx.biases, sums, strict=True):
                    if bias is not None:
                        runtime.vector_gradients(sum_of, bias.grad)

            runtime.aside(add_up, *sums)
        return d_first, None if ctx.shared else d_second, *[None] * 9


def _precision(dtype: torch.dtype) -> str:
    # float32 in three passes of the matrix units: as exact as float32, and compiled in seconds; 16 bits ignore it
    return "tf32x3" if dtype == torch.float32 else "tf32"


def attention(
    first: Tensor,
    second: Tensor | Shared | None,
    q_pack: Pack,
    k_pack: Pack,
    heads: Heads,
    causal: bool,
    runtime: Runtime,
    *,
    dropout: Dropout,
    biases: tuple[nn.Parameter | None, ...] = (),
    number: int = 0,
) -> Tensor:
    """Out of q, k and v side by side [T, E], or q [T, H·d] and k, v side by side [S, 2·G·d] -> [T, H·d].

    The second may be shared with other attentions: this one then reads its part `number`. The biases of the matrix
    products that made them (one or two) get their gradients here.
    """
    shared = second if isinstance(second, Shared) else None
    tensor = second.product if isinstance(second, Shared) else second
    return _Attention.apply(first, tensor, q_pack, k_pack, heads, causal, dropout, biases, shared, number, runtime)
