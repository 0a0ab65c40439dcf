"""Dropout whose mask is a function of (seed, site, row, column): nothing is stored, and the way back draws it again.

    keep[r, c]  <=>  draw(key(r) + c·C) >= p·2³²,   key(r) = mix(seed + mix(salt(site) + mix(r)))

All on 32 bits. `mix` is the finaliser of MurmurHash3; `draw` is one shift and one product of it, which is enough for
a key that is mixed already, and attention draws once for every pair of tokens. A site is a place in the model where
dropout happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Dropout:
    """What a kernel needs to draw a mask. p = 0: none."""

    p: float
    seed: Tensor  # [1] int64 on the device: a captured step reads what the host has put there
    site: int = 0

    @property
    def salt(self) -> int:
        return (self.site * 0x9E3779B1) & 0x7FFFFFFF

    @property
    def threshold(self) -> int:
        return round(self.p * 2**31)  # half of what is compared with, so that it is an int32 in every language

    @property
    def scale(self) -> float:
        return 1 / (1 - self.p)

    def keeps(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The reference: rows [R] and columns [C] -> bool [R, C]."""
        keys = _mix(self.seed.long() + _mix(self.salt + _mix(rows.long())))
        return _draw(keys[:, None] + columns.long()[None, :] * 0x85EBCA77) >= 2 * self.threshold

    def reference(self, x: Tensor) -> Tensor:
        rows, columns = (torch.arange(n, device=x.device) for n in x.shape)
        return torch.where(self.keeps(rows, columns), x * self.scale, 0) if self.p else x


def _mix(x: Tensor) -> Tensor:
    x = x & _MASK
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK
    return x ^ (x >> 16)


def _draw(x: Tensor) -> Tensor:
    x = x & _MASK
    return ((x ^ (x >> 15)) * 0x2C1B3C6D) & _MASK


@triton.jit
def mix(x):  # type: ignore[no-untyped-def]
    x = (x ^ (x >> 16)) * tl.full((), 0x85EBCA6B, tl.uint32)
    x = (x ^ (x >> 13)) * tl.full((), 0xC2B2AE35, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def row_keys(seed, salt, rows):  # type: ignore[no-untyped-def]
    start = tl.load(seed).to(tl.uint32)
    return mix(mix(mix(rows.to(tl.uint32)) + salt.to(tl.uint32)) + start)


@triton.jit
def keeps(keys, columns, threshold):  # type: ignore[no-untyped-def]
    """keys and columns broadcast against each other."""
    x = keys + columns.to(tl.uint32) * tl.full((), 0x85EBCA77, tl.uint32)
    drawn = (x ^ (x >> 15)) * tl.full((), 0x2C1B3C6D, tl.uint32)
    return drawn >= (threshold.to(tl.uint32) << 1)


@triton.jit(do_not_specialize=["salt", "threshold"])
def _dropout(x, out, seed, salt, threshold, scale, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    keys = row_keys(seed, salt, tl.zeros((BLOCK,), tl.int32) + row)
    at = row.to(tl.int64) * columns + column
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(keeps(keys, column, threshold), value * scale, 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, how: Dropout) -> Tensor:
        ctx.how = how
        return _apply(x, how)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _apply(gradient.contiguous(), ctx.how), None


def _apply(x: Tensor, how: Dropout) -> Tensor:
    out = torch.empty_like(x)
    rows, columns = x.shape
    block = min(1024, triton.next_power_of_2(columns))
    _dropout[(rows, triton.cdiv(columns, block))](
        x, out, how.seed, how.salt, how.threshold, how.scale, columns, BLOCK=block
    )
    return out


def dropout(x: Tensor, how: Dropout) -> Tensor:
    """x [rows, columns] with the mask drawn for it."""
    return _Apply.apply(x.contiguous(), how) if how.p else x
