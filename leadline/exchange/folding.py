"""LN(s·x + f(x)) (DeepNorm's α, Admin's ω) as Post-LN, exactly: Post-LN on s·x.

The norm below carries s, or the embeddings where there is none below, and f's first matrix 1/s.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leadline.model import Transformer
from leadline.model.layers import CrossAttention, Embed, SelfAttention
from leadline.placement import DeepNorm, Placement
from leadline.placement.admin import Admin, AdminConstant

Scale = Tensor | float


def skip(connection: Placement) -> Scale:
    """s"""
    if isinstance(connection, DeepNorm):
        return connection.alpha
    return connection.omega if isinstance(connection, Admin | AdminConstant) else 1.0


def stacks(model: Transformer) -> list[tuple[Embed, Any]]:
    """Those that the model has, each with its embeddings."""
    both = [("source_embed", "encoder"), ("target_embed", "decoder")]
    return [(getattr(model, embed), getattr(model, stack)) for embed, stack in both if hasattr(model, stack)]


def scales_embeddings(model: Transformer) -> bool:
    """Whether a stack without a norm at its foot begins with a factor."""
    firsts = [next(iter(stack.connections())) for embed, stack in stacks(model) if isinstance(embed.norm, nn.Identity)]
    return any(not isinstance(s := skip(first), float) or s != 1 for first in firsts)


@torch.no_grad()
def as_post_ln(model: Transformer, scale_tokens: Callable[[Embed, Scale], None]) -> None:
    """In place. `scale_tokens` multiplies the embeddings of tokens, whatever else reads them."""
    for embed, stack in stacks(model):
        below: Any = None if isinstance(embed.norm, nn.Identity) else embed.norm
        for block in stack.blocks:
            for connection, sublayer in block.connections():
                scale = skip(connection)
                if below is None:
                    scale_tokens(embed, scale)
                    places = typing.cast(Any, embed.positions)
                    (places.weight if hasattr(places, "weight") else places.table).mul_(scale)
                else:
                    for parameter in below.parameters():
                        parameter.mul_(scale)
                first(sublayer).weight.div_(scale)
                below = connection.norm


def first(sublayer: nn.Module) -> nn.Linear:
    """The matrix that reads the stream."""
    if isinstance(sublayer, SelfAttention):
        return sublayer.qkv
    return sublayer.q if isinstance(sublayer, CrossAttention) else typing.cast(Any, sublayer).expand
