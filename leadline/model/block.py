"""One Transformer layer, and a stack of them. The only caller of a placement; it never mentions norms."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from leadline.config import ModelConfig
from leadline.kernels.pack import Pack
from leadline.model.layers import Attends, CrossAttention, FeedForward, SelfAttention
from leadline.placement import Placement, Site, Stack, find


class Block(nn.Module):
    """Self-attention, cross-attention where there is a memory, feed-forward: each joined by the placement."""

    def __init__(self, config: ModelConfig, stack: Stack, layer: int) -> None:
        super().__init__()
        placement = find(config.placement)
        crosses = stack == "decoder" and config.encoder_layers > 0
        first = layer * (3 if crosses else 2)

        def connection(i: int) -> Placement:
            return placement(Site(config.dim, stack, first + i, config.encoder_layers, config.decoder_layers))

        self.attn_residual = connection(0)
        self.attn = SelfAttention(config, causal=stack == "decoder")
        if crosses:
            self.cross_residual = connection(1)
            self.cross = CrossAttention(config)
        self.ffn_residual = connection(2 if crosses else 1)
        self.ffn = FeedForward(config)

    def forward(
        self, x_TD: Tensor, pack: Pack, memory_SD: Tensor | None = None, memory_pack: Pack | None = None
    ) -> Tensor:
        x_TD = self.attn_residual(x_TD, lambda h: self.attn(h, pack))
        if memory_SD is not None:
            x_TD = self.cross_residual(x_TD, lambda h: self.cross(h, memory_SD, pack, memory_pack))
        return self.ffn_residual(x_TD, self.ffn)

    def step(self, x_ND: Tensor, cache: Attends, memory: Attends | None = None) -> Tensor:
        """The same layer on one new token of each hypothesis."""
        x_ND = self.attn_residual(x_ND, lambda h: self.attn.step(h, cache))
        if memory is not None:
            x_ND = self.cross_residual(x_ND, lambda h: self.cross.step(h, memory))
        return self.ffn_residual(x_ND, self.ffn)

    def connections(self) -> Iterator[tuple[Placement, nn.Module]]:
        """Each residual connection with the sublayer it joins."""
        yield self.attn_residual, self.attn
        if hasattr(self, "cross"):
            yield self.cross_residual, self.cross
        yield self.ffn_residual, self.ffn


class Layers(nn.Module):
    """A stack of blocks and what closes it."""

    def __init__(self, config: ModelConfig, stack: Stack) -> None:
        super().__init__()
        count = config.encoder_layers if stack == "encoder" else config.decoder_layers
        self.blocks = nn.ModuleList(Block(config, stack, layer) for layer in range(count))
        self.recompute = False
        *_, (last, _) = self.blocks[-1].connections()  # type: ignore[operator]
        self.final = find(config.placement).final(last.site)

    def forward(
        self, x_TD: Tensor, pack: Pack, memory_SD: Tensor | None = None, memory_pack: Pack | None = None
    ) -> Tensor:
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                x_TD = checkpoint(block, x_TD, pack, memory_SD, memory_pack, use_reentrant=False)
            else:
                x_TD = block(x_TD, pack, memory_SD, memory_pack)
        return self.final(x_TD)
