"""Attention over packed sequences: a token attends to the tokens of its own sequence only.

    attention(q, k, v, q_pack, k_pack, causal, dropout)      q [T, H, d], k and v [S, H, d] -> [T, H, d]

Three implementations with one signature, tested equal:
    reference  the equation with a dense mask; any device, any dtype, quadratic in the pack
    padded     scaled_dot_product_attention on a padded copy of each group of similar lengths
    flash      variable-length flash attention; CUDA, 16 bits, heads of 8 to 256 in eights, no attention dropout
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.kernels.compiling import uncompiled
from leadline.kernels.pack import Pack

AttentionFunction = Callable[[Tensor, Tensor, Tensor, Pack, Pack, bool, float], Tensor]


def for_each_head(x: Tensor, heads: int, dim: int) -> Tensor:
    """Keys or values of G heads at `dim`, each as often as its group has queries (Ainslie et al. 2023, GQA)."""
    return x if x.shape[dim] == heads else x.repeat_interleave(heads // x.shape[dim], dim)


def reference(
    q: Tensor, k: Tensor, v: Tensor, q_pack: Pack, k_pack: Pack, causal: bool, dropout: float = 0.0
) -> Tensor:
    """softmax(q kᵀ / √d) v over the tokens of the same sequence (not after one's own position, if causal)."""
    allowed = _owner(q_pack)[:, None] == _owner(k_pack)[None, :]
    if causal:
        allowed &= q_pack.positions[:, None] >= k_pack.positions[None, :]
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
    weights = scores.float().masked_fill(~allowed, float("-inf")).softmax(-1)
    weights = torch.nan_to_num(weights).to(v.dtype)  # filler with no keys at all attends to nothing
    return torch.einsum("hqk,khd->qhd", F.dropout(weights, dropout, dropout > 0), v)


def _owner(pack: Pack) -> Tensor:
    """The number of the sequence each token belongs to."""
    tokens = torch.arange(len(pack.tokens), device=pack.starts.device)
    return torch.searchsorted(pack.starts[1:].long(), tokens, right=True)


class _Pad(torch.autograd.Function):
    """Packed -> padded groups; its gradient is the way back."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, slots: Tensor, padded_size: int) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.size = len(packed)
        return packed.new_zeros(padded_size, *packed.shape[1:]).index_copy_(0, slots, packed[: len(slots)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slots,) = ctx.saved_tensors
        return _unpadded(gradient, slots, ctx.size), None, None


class _Unpad(torch.autograd.Function):
    """Padded groups -> packed; its gradient is the way back."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, slots: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.padded_size = len(padded)
        return _unpadded(padded, slots, size)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slots,) = ctx.saved_tensors
        zeros = gradient.new_zeros(ctx.padded_size, *gradient.shape[1:])
        return zeros.index_copy_(0, slots, gradient[: len(slots)]), None, None


def _unpadded(padded: Tensor, slots: Tensor, size: int) -> Tensor:
    if len(slots) == size:
        return padded.index_select(0, slots)
    packed = padded.new_empty(size, *padded.shape[1:])
    packed[: len(slots)] = padded.index_select(0, slots)  # out= would hide from inspect where it is from
    packed[len(slots) :] = 0
    return packed


def pad(packed: Tensor, pack: Pack) -> Tensor:
    """The tokens of all groups, each padded to its longest sequence, one group after the other."""
    if _unbroken(pack, len(packed)):
        return packed
    return _Pad.apply(packed, pack.slots, sum(g.sequences * g.length for g in pack.groups))


def _unbroken(pack: Pack, size: int) -> bool:
    """Whether the padded groups are the pack as it is: no padding and no filler, as in a language model's batches."""
    return len(pack.slots) == size and all(group.full for group in pack.groups)


# Groups differ from batch to batch: they would be compiled again and again, and torch 2.11 loses gradients in what it
# makes of _Pad and _Unpad.
@uncompiled
def padded(q: Tensor, k: Tensor, v: Tensor, q_pack: Pack, k_pack: Pack, causal: bool, dropout: float = 0.0) -> Tensor:
    """Scaled dot-product attention, one call a group."""
    results = []
    groups = zip(_grouped(q, q_pack), _grouped(k, k_pack), _grouped(v, k_pack), k_pack.groups, strict=True)
    for queries, keys, values, group in groups:
        # Causal: the padding lies behind every token, so the causal mask hides it already.
        mask = None if causal or group.full else group.valid[:, None, None, :]
        result = F.scaled_dot_product_attention(queries, keys, values, mask, dropout, is_causal=causal)
        results.append(result.transpose(1, 2).flatten(0, 1))
    if not results:
        return torch.zeros_like(q)
    joined = torch.cat(results) if len(results) > 1 else results[0]
    return joined if _unbroken(q_pack, len(q)) else _Unpad.apply(joined, q_pack.slots, len(q))


def _grouped(x: Tensor, pack: Pack) -> list[Tensor]:
    """[T, H, d] -> a padded [sequences, H, longest, d] for each group."""
    parts = pad(x, pack).split([g.sequences * g.length for g in pack.groups])
    return [
        part.unflatten(0, (g.sequences, g.length)).transpose(1, 2) for part, g in zip(parts, pack.groups, strict=True)
    ]


def flash(q: Tensor, k: Tensor, v: Tensor, q_pack: Pack, k_pack: Pack, causal: bool, dropout: float = 0.0) -> Tensor:
    """PyTorch's variable-length flash attention."""
    if dropout:
        raise ValueError("flash attention has no attention dropout: use 'padded'")
    varlen_attn, causal_argument = _varlen()
    return varlen_attn(
        q, k, v, q_pack.starts, k_pack.starts, q_pack.max_length, k_pack.max_length, **causal_argument(causal)
    )


@functools.cache
def _varlen() -> tuple[Any, Callable[[bool], dict[str, object]]]:
    """PyTorch renamed the argument that makes it causal."""
    from torch.nn.attention.varlen import varlen_attn

    if "window_size" in inspect.signature(varlen_attn).parameters:
        return varlen_attn, lambda causal: {"window_size": (-1, 0) if causal else (-1, -1)}
    return varlen_attn, lambda causal: {"is_causal": causal}


ATTENTION: dict[str, AttentionFunction] = {"reference": reference, "padded": padded, "flash": flash}


def choose(device: torch.device, precision: str, head_width: int, attention_dropout: float) -> str:
    """The fastest implementation that can be used."""
    fits = head_width % 8 == 0 and head_width <= 256
    return "flash" if device.type == "cuda" and precision == "bf16" and fits and not attention_dropout else "padded"
