"""A Transformer on the fused kernels: the same weights and equations as leadline.model.transformer, less time.

`Fused(model, runtime)` becomes `model.fused`; the model then runs on it. Weights keep their places; every Linear's
`compute` holds what the matrix products read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from leadline.kernels.fused.attention import attention
from leadline.kernels.fused.cross_entropy import linear_cross_entropy
from leadline.kernels.fused.dropout import Dropout, dropout
from leadline.kernels.fused.embedding import embed
from leadline.kernels.fused.linear import Shared, expand, linear
from leadline.kernels.fused.residual import add_norm
from leadline.kernels.fused.runtime import Runtime
from leadline.kernels.fused.stream import Branch, Stream
from leadline.kernels.pack import Pack
from leadline.model.block import Block, Layers
from leadline.model.layers import CrossAttention, Embed, FeedForward, Linear, SelfAttention, Sinusoids

SITES = 9  # places of dropout in a block: for each sublayer inside attention or activation, and at its end


class Fused:
    def __init__(
        self, model: Any, runtime: Runtime, output: Tensor, bias: Tensor | None = None, memory: Any = None
    ) -> None:
        self.model, self.runtime = model, runtime
        self.memory = memory  # the keys and values of all cross-attentions as one layer, where their weights allow it
        self.output = output  # the projection onto the vocabulary, in the arithmetic of matrix products
        self.bias = bias  # what its head adds to every word, in the same
        self.recompute = False  # keep only what enters each block, and compute the rest again on the way back
        blocks = [module for module in model.modules() if isinstance(module, Block)]
        self.sites = {block: 2 + SITES * number for number, block in enumerate(blocks)}

    def encode(self, source: Pack) -> Tensor:
        return self._stack(self.model.source_embed, self.model.encoder, source, 0)

    def decode(self, target: Pack, memory: Tensor | None, source: Pack | None) -> Tensor:
        return self._stack(self.model.target_embed, self.model.decoder, target, 1, memory, source)

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.nn.functional.linear(self._head(hidden.to(self.runtime.dtype)), self.output, self.bias)

    def classify(self, picked: Tensor) -> Tensor:
        classifier = self.model.classifier
        pooled = linear(picked, classifier.dense, self.runtime, own_bias=True).tanh()
        return linear(pooled, classifier.out, self.runtime, own_bias=True)

    def _head(self, hidden: Tensor) -> Tensor:
        head = self.model.head
        if head is None:
            return hidden
        none = self.runtime.dropout(0.0, 0)
        x = expand(hidden, head.dense, _is_gelu(head), none, self.runtime)
        normed = add_norm(x.float(), None, head.norm, self.runtime, dropout=none).h
        assert normed is not None
        return normed

    def step(self, tokens_N: Tensor, positions_N: Tensor, layers: Sequence[tuple[Block, Any, Any]]) -> Tensor:
        """Logits of the token that follows each hypothesis; a block's keys and values come with it (see Block.step)."""
        none = self.runtime.dropout(0.0, 0)
        foot = self.model.target_embed
        stream = self._foot(self.model.decoder, self._embed(foot, tokens_N, positions_N, 1))
        for block, cache, memory in layers:
            parts = [lambda h, block=block, cache=cache: block.attn.step(h, cache)]
            if memory is not None:
                parts.append(lambda h, block=block, memory=memory: block.cross.step(h, memory))
            parts.append(block.ffn)
            for (connection, _), part in zip(block.connections(), parts, strict=True):
                branch = lambda h, part=part: Branch(self.runtime, part(_half(h)), None, none)  # noqa: E731
                stream = connection(self._enter(stream), branch)
        return self.logits(self._top(self.model.decoder, stream))

    def loss(
        self, hidden: Tensor, labels: Tensor, smoothing: float, ignore: int, divisor: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        if not isinstance(divisor, Tensor):
            divisor = torch.full((1,), float(divisor), device=hidden.device)
        head, weight = self.model.head, self.model.output.weight
        bias = None if self.bias is None else (head.bias, self.bias)
        return linear_cross_entropy(
            self._head(hidden), weight, self.output, labels, smoothing, ignore, divisor, self.runtime, bias
        )

    def _stack(
        self,
        foot: Embed,
        layers: Layers,
        pack: Pack,
        site: int,
        memory: Tensor | None = None,
        source: Pack | None = None,
    ) -> Tensor:
        stream = self._foot(layers, self._embed(foot, pack.tokens, pack.positions, site, pack.segments))
        again = self.recompute and torch.is_grad_enabled()
        seen = Shared(memory, self.memory, self.runtime) if memory is not None and self.memory and not again else memory
        for number, block in enumerate(layers.blocks):
            if again:
                # Dropout is a function of its site: there is no random state to put back.
                stream = checkpoint(
                    self._block,
                    block,
                    number,
                    stream,
                    pack,
                    seen,
                    source,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
            else:
                stream = self._block(block, number, stream, pack, seen, source)  # type: ignore[arg-type]
        return self._top(layers, stream)

    def _foot(self, layers: Layers, x: Tensor) -> Any:
        return self._enter(layers.opens(x))

    def _enter(self, x: Any) -> Any:
        """What a residual connection is given: a stream, or what its placement has made of it."""
        if isinstance(x, Tensor):
            x = Stream(self.runtime, x)
        return x.enter() if isinstance(x, Stream) else x

    def _top(self, layers: Layers, stream: Any) -> Tensor:
        return _half(layers.final(self._enter(stream))).to(self.runtime.dtype)

    def _block(
        self, block: Block, number: int, stream: Any, pack: Pack, memory: Tensor | Shared | None, source: Pack | None
    ) -> Any:
        site = self.sites[block]

        def attend(h: Any) -> Branch:
            return self._self_attention(block.attn, _half(h), pack, site)

        def cross(h: Any) -> Branch:
            assert memory is not None
            assert source is not None
            seen = (
                memory if isinstance(memory, Shared) else linear(memory, block.cross.kv, self.runtime, own_bias=False)
            )
            return self._cross_attention(block.cross, _half(h), seen, number, pack, source, site + 2)

        def feed(h: Any) -> Branch:
            return self._feed_forward(block.ffn, _half(h), site + 4)

        stream = block.attn_residual(self._enter(stream), attend)
        if memory is not None:
            stream = block.cross_residual(self._enter(stream), cross)
        return block.ffn_residual(self._enter(stream), feed)

    def _self_attention(self, layer: SelfAttention, h: Tensor, pack: Pack, site: int) -> Branch:
        run = self.runtime
        qkv = linear(h, layer.qkv, run, own_bias=False)
        inside = self._drop(layer, layer.attention_dropout, site)
        heads = attention(
            qkv, None, pack, pack, layer.heads, layer.causal, run, dropout=inside, biases=(layer.qkv.bias,)
        )
        return self._branch(layer, layer.out, heads, site + 1)

    def _cross_attention(
        self,
        layer: CrossAttention,
        h: Tensor,
        kv: Tensor | Shared,
        number: int,
        pack: Pack,
        source: Pack,
        site: int,
    ) -> Branch:
        run = self.runtime
        q = linear(h, layer.q, run, own_bias=False)
        inside = self._drop(layer, layer.attention_dropout, site)
        biases = (layer.q.bias, layer.kv.bias)
        number = number if isinstance(kv, Shared) else 0
        heads = attention(q, kv, pack, source, layer.heads, False, run, dropout=inside, biases=biases, number=number)
        return self._branch(layer, layer.out, heads, site + 1)

    def _feed_forward(self, layer: FeedForward, h: Tensor, site: int) -> Branch:
        inside = self._drop(layer, layer.activation_dropout.p, site)
        wide = expand(h, layer.expand, _is_gelu(layer), inside, self.runtime)
        return self._branch(layer, layer.contract, wide, site + 1)

    def _branch(self, layer: Any, last: Any, x: Tensor, site: int) -> Branch:
        if not isinstance(layer.inside, nn.Identity):
            x = layer.inside(x.float())
        y = linear(x, last, self.runtime, own_bias=False)
        return Branch(self.runtime, y, last.bias, self._drop(layer, layer.dropout.p, site))

    def _embed(
        self, foot: Embed, tokens: Tensor, positions: Tensor, site: int, segments: Tensor | None = None
    ) -> Tensor:
        places = foot.positions.table if isinstance(foot.positions, Sinusoids) else foot.positions.weight
        how = self._drop(foot, foot.dropout.p, site)
        plain = isinstance(foot.norm, nn.Identity) and foot.segments is None
        first = how if plain else self.runtime.dropout(0.0, 0)
        x = embed(foot.tokens.weight, places, tokens, positions, foot.scale, first, self.runtime)  # type: ignore[arg-type]
        if plain:
            return x
        if foot.segments is not None:
            x = x + _segments(foot.segments.weight, torch.zeros_like(tokens) if segments is None else segments)
        if isinstance(foot.norm, nn.Identity):
            return dropout(x, how)
        normed = add_norm(x, None, foot.norm, self.runtime, dropout=first, wide=True).wide  # type: ignore[arg-type]
        assert normed is not None
        return dropout(normed, how)

    def _drop(self, layer: nn.Module, p: float, site: int) -> Dropout:
        return self.runtime.dropout(p if layer.training else 0.0, site)


def _half(x: Any) -> Tensor:
    """As matrix products read it."""
    return x.half if isinstance(x, Stream) else x


def _is_gelu(layer: Any) -> bool:
    return layer.activation is not torch.nn.functional.relu


def _segments(table: Tensor, segments: Tensor) -> Tensor:
    """The rows of a table of few rows, as a product: its gradient is then a product too, summed in a fixed order."""
    kinds = torch.arange(len(table), device=table.device)
    return (segments[:, None] == kinds).to(table.dtype) @ table


@contextlib.contextmanager
def to_infer(model: Any, dtype: torch.dtype) -> Iterator[Fused]:
    """The model on fused kernels for as long as its weights stay what they are now: they are rounded once."""
    if model.fused is not None:
        yield model.fused
        return
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    for layer in linears:
        layer.compute = layer.weight.detach().to(dtype), layer.bias.detach().to(dtype)
    output = model.output.weight.detach()
    bias = None if model.head is None else model.head.bias.detach().to(dtype)
    runtime = Runtime(dtype, torch.zeros(1, dtype=torch.int64, device=output.device))
    model.fused = Fused(model, runtime, output.to(dtype), bias)
    try:
        yield model.fused
    finally:
        model.fused = None
        for layer in linears:
            layer.compute = None
