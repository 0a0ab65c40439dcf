"""The operations of leadline.model.operations on fused kernels: the same numbers, less time.

Weights keep their places; every Linear's `compute` holds what the matrix products read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.errors import UserError
from leadline.kernels.fused.attention import attention
from leadline.kernels.fused.cross_entropy import linear_cross_entropy
from leadline.kernels.fused.dropout import Dropout, dropout
from leadline.kernels.fused.embedding import embed
from leadline.kernels.fused.linear import Shared, expand, linear
from leadline.kernels.fused.residual import add_norm
from leadline.kernels.fused.runtime import Runtime
from leadline.kernels.fused.stream import Branch, Stream
from leadline.kernels.pack import Pack
from leadline.model.block import Block
from leadline.model.layers import CrossAttention, Embed, FeedForward, Linear, SelfAttention, Sinusoids, VocabularyHead

ACTIVATIONS = ("relu", "gelu")
SITES = 9  # places of dropout in a block: for each sublayer inside attention or activation, and at its end


class Fused:
    draws = False  # dropout is a function of its site
    compiles = False

    def __init__(
        self, model: Any, runtime: Runtime, output: Tensor, bias: Tensor | None = None, memory: Any = None
    ) -> None:
        if model.config.activation not in ACTIVATIONS:
            raise UserError(
                f"model.activation={model.config.activation!r} is not known to the fused kernels, which have "
                f"{' and '.join(ACTIVATIONS)}: use train.step=eager or compiled"
            )
        self.runtime = runtime
        self.shared = memory  # the keys and values of all cross-attentions as one layer, where their weights allow it
        self.output = output  # the projection onto the vocabulary, in the arithmetic of matrix products
        self.bias = bias  # what its head adds to every word, in the same
        self.gelu = model.config.activation == "gelu"
        self.sites: dict[nn.Module, int] = {}  # where a module's places of dropout begin
        self.numbers: dict[nn.Module, int] = {}  # of the cross-attentions
        for number, name in enumerate(("source_embed", "target_embed")):
            if hasattr(model, name):
                self.sites[getattr(model, name)] = number
        blocks = [module for module in model.modules() if isinstance(module, Block)]
        for number, block in enumerate(blocks):
            first = 2 + SITES * number
            self.sites |= {block.attn: first, block.ffn: first + 4}
            if hasattr(block, "cross"):
                self.sites[block.cross] = first + 2
                self.numbers[block.cross] = len(self.numbers)

    def enter(self, x: Any) -> Any:
        """A tensor becomes a stream; what a placement has made of it stays."""
        if isinstance(x, Tensor):
            x = Stream(self.runtime, x)
        return x.enter() if isinstance(x, Stream) else x

    def leave(self, x: Any) -> Tensor:
        return _half(x).to(self.runtime.dtype)

    def memory(self, memory_SD: Tensor, recompute: bool) -> Any:
        return memory_SD if self.shared is None or recompute else Shared(memory_SD, self.shared, self.runtime)

    def linear(self, layer: Linear, x: Any) -> Tensor:
        return linear(_half(x), layer, self.runtime, own_bias=True)

    def self_attention(self, layer: SelfAttention, x_TD: Any, pack: Pack) -> Tensor:
        run = self.runtime
        qkv = linear(_half(x_TD), layer.qkv, run, own_bias=False)
        inside = self._drop(layer, layer.attention_dropout, 0)
        return attention(
            qkv, None, pack, pack, layer.heads, layer.causal, run, dropout=inside, biases=(layer.qkv.bias,)
        )

    def cross_attention(
        self, layer: CrossAttention, x_TD: Any, memory: Tensor | Shared, pack: Pack, memory_pack: Pack
    ) -> Tensor:
        run, shared = self.runtime, isinstance(memory, Shared)
        kv = memory if isinstance(memory, Shared) else linear(memory, layer.kv, run, own_bias=False)
        q = linear(_half(x_TD), layer.q, run, own_bias=False)
        inside = self._drop(layer, layer.attention_dropout, 0)
        biases = (layer.q.bias, layer.kv.bias)
        number = self.numbers[layer] if shared else 0
        return attention(
            q, kv, pack, memory_pack, layer.heads, False, run, dropout=inside, biases=biases, number=number
        )

    def expand(self, layer: FeedForward, x_TD: Any) -> Tensor:
        inside = self._drop(layer, layer.activation_dropout.p, 0)
        return expand(_half(x_TD), layer.expand, self.gelu, inside, self.runtime)

    def branch(self, layer: Any, last: Linear, x: Tensor) -> Branch:
        if not isinstance(layer.inside, nn.Identity):
            x = layer.inside(x.float())
        y = linear(x, last, self.runtime, own_bias=False)
        return Branch(self.runtime, y, last.bias, self._drop(layer, layer.dropout.p, 1))

    def embed(self, foot: Embed, tokens: Tensor, positions: Tensor, segments: Tensor | None) -> Tensor:
        places = foot.positions.table if isinstance(foot.positions, Sinusoids) else foot.positions.weight
        how = self._drop(foot, foot.dropout.p, 0)
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

    def head(self, head: VocabularyHead, x_TD: Tensor) -> Tensor:
        none = self.runtime.dropout(0.0, 0)
        x = expand(x_TD, head.dense, self.gelu, none, self.runtime)
        normed = add_norm(x.float(), None, head.norm, self.runtime, dropout=none).h
        assert normed is not None
        return normed

    def logits(self, model: Any, hidden_TD: Tensor) -> Tensor:
        hidden_TD = hidden_TD.to(self.runtime.dtype)
        return F.linear(hidden_TD if model.head is None else model.head(hidden_TD), self.output, self.bias)

    def loss(
        self, model: Any, hidden_TD: Tensor, labels_T: Tensor, smoothing: float, ignore: int, divisor: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        if not isinstance(divisor, Tensor):
            divisor = torch.full((1,), float(divisor), device=hidden_TD.device)
        head, weight = model.head, model.output.weight
        bias = None if self.bias is None else (head.bias, self.bias)
        hidden_TD = hidden_TD if head is None else head(hidden_TD)
        return linear_cross_entropy(
            hidden_TD, weight, self.output, labels_T, smoothing, ignore, divisor, self.runtime, bias
        )

    def _drop(self, layer: nn.Module, p: float, place: int) -> Dropout:
        return self.runtime.dropout(p if layer.training else 0.0, self.sites[layer] + place)


def _half(x: Any) -> Tensor:
    """As matrix products read it."""
    return x.half if isinstance(x, Stream) else x


def _segments(table: Tensor, segments: Tensor) -> Tensor:
    """The rows of a table of few rows, as a product: its gradient is then a product too, summed in a fixed order."""
    kinds = torch.arange(len(table), device=table.device)
    return (segments[:, None] == kinds).to(table.dtype) @ table


@contextlib.contextmanager
def to_infer(model: Any, dtype: torch.dtype) -> Iterator[None]:
    """The model on fused kernels for as long as its weights stay what they are now: they are rounded once."""
    if isinstance(model.ops, Fused):
        yield
        return
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    for layer in linears:
        layer.compute = layer.weight.detach().to(dtype), layer.bias.detach().to(dtype)
    output = model.output.weight.detach()
    bias = None if model.head is None else model.head.bias.detach().to(dtype)
    runtime = Runtime(dtype, torch.zeros(1, dtype=torch.int64, device=output.device))
    try:
        with model.using(Fused(model, runtime, output.to(dtype), bias)):
            yield
    finally:
        for layer in linears:
            layer.compute = None
