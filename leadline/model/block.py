"""One Transformer layer, and a stack of them. The only caller of a placement; it never mentions norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from leadline.config import ModelConfig
from leadline.kernels.pack import Pack
from leadline.model.layers import Attends, CrossAttention, FeedForward, Rotary, SelfAttention
from leadline.model.operations import PLAIN, Operations
from leadline.placement import Placement, Site, Stack, find


def site_of(config: ModelConfig, stack: Stack, index: int) -> Site:
    layers = (config.encoder_layers, config.decoder_layers)
    return Site(config.dim, stack, index, *layers, config.norm, config.norm_eps, config.bias)


class Block(nn.Module):
    """Self-attention, cross-attention where there is a memory, feed-forward: each joined by the placement."""

    ops: Operations = PLAIN

    def __init__(self, config: ModelConfig, stack: Stack, layer: int, rotary: Rotary | None = None) -> None:
        super().__init__()
        placement = find(config.placement)
        crosses = stack == "decoder" and config.encoder_layers > 0
        first = layer * (3 if crosses else 2)

        def connection(i: int) -> Placement:
            return placement(site_of(config, stack, first + i))

        self.attn_residual = connection(0)
        self.attn = SelfAttention(config, self.attn_residual, stack == "decoder", rotary)
        if crosses:
            self.cross_residual = connection(1)
            self.cross = CrossAttention(config, self.cross_residual)
        self.ffn_residual = connection(2 if crosses else 1)
        self.ffn = FeedForward(config, self.ffn_residual)
        placement.tie([joined for joined, _ in self.connections()])

    def forward(self, x: Any, pack: Pack, memory: Any = None, memory_pack: Pack | None = None) -> Any:
        """The stream x is [T, D], or whatever the placement has made of it."""
        cross = None if memory is None else lambda h: self.cross(h, memory, pack, memory_pack)
        return self._join(x, lambda h: self.attn(h, pack), cross)

    def step(self, x: Any, positions_N: Tensor, cache: Attends, memory: Attends | None = None) -> Any:
        """The same layer on one new token of each hypothesis."""
        cross = None if memory is None else lambda h: self.cross.step(h, memory)
        return self._join(x, lambda h: self.attn.step(h, positions_N, cache), cross)

    def _join(self, x: Any, attend: Callable[[Any], Any], cross: Callable[[Any], Any] | None) -> Any:
        x = self.attn_residual(self.ops.enter(x), attend)
        if cross is not None:
            x = self.cross_residual(self.ops.enter(x), cross)
        return self.ffn_residual(self.ops.enter(x), self.ffn)

    def connections(self) -> Iterator[tuple[Placement, nn.Module]]:
        """Each residual connection with the sublayer it joins."""
        yield self.attn_residual, self.attn
        if hasattr(self, "cross"):
            yield self.cross_residual, self.cross
        yield self.ffn_residual, self.ffn


class Layers(nn.Module):
    """A stack of blocks, and what opens and closes it."""

    ops: Operations = PLAIN

    def __init__(self, config: ModelConfig, stack: Stack) -> None:
        super().__init__()
        count = config.encoder_layers if stack == "encoder" else config.decoder_layers
        rotates = config.positions == "rotary"
        rotary = Rotary(config.max_length, config.head_width, config.rotary_theta) if rotates else None
        self.blocks = nn.ModuleList(Block(config, stack, layer, rotary) for layer in range(count))
        self.recompute = False
        placement, connections = find(config.placement), list(self.connections())
        self.opens = placement.opens(connections[0].site)
        self.final = placement.final(connections[-1].site)

    def forward(
        self, x_TD: Tensor, pack: Pack, memory_SD: Tensor | None = None, memory_pack: Pack | None = None
    ) -> Tensor:
        x = self.opens(x_TD)
        again = self.recompute and torch.is_grad_enabled()
        memory = None if memory_SD is None else self.ops.memory(memory_SD, again)
        how = {"use_reentrant": False, "preserve_rng_state": self.ops.draws}
        for block in self.blocks:
            given = (x, pack, memory, memory_pack)
            run = block if self.ops.compiles else block.forward
            x = checkpoint(run, *given, **how) if again else run(*given)
        return self.close(x)

    def close(self, x: Any) -> Tensor:
        """What leaves the last block, as a tensor."""
        return self.ops.leave(self.final(self.ops.enter(x)))

    def connections(self) -> Iterator[Placement]:
        for block in self.blocks:
            yield from (joined for joined, _ in block.connections())  # type: ignore[operator]


def sublayers(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The weights of every sublayer of a model, by its name."""
    names = {module: name for name, module in model.named_modules()}
    return {names[sublayer]: list(sublayer.parameters()) for _, sublayer in connections(model)}


def connections(model: nn.Module) -> list[tuple[Placement, nn.Module]]:
    """The residual connections of all blocks of a model, each with its sublayer."""
    return [pair for module in model.modules() if isinstance(module, Block) for pair in module.connections()]
