"""The operations of leadline.model.operations on fused kernels: the same numbers, less time.

Weights keep their places; every Linear's `compute` holds what the matrix products read.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.errors import UserError
from leadline.kernels.fused.attention import Heads, attention
from leadline.kernels.fused.cross_entropy import Projection, filled, linear_cross_entropy
from leadline.kernels.fused.dropout import Dropout, dropout
from leadline.kernels.fused.embedding import embed
from leadline.kernels.fused.heads import Part, prepare
from leadline.kernels.fused.linear import ACTIVATIONS, Shared, expand, linear
from leadline.kernels.fused.residual import add_norm
from leadline.kernels.fused.runtime import Runtime
from leadline.kernels.fused.stream import Branch, Stream, fits
from leadline.kernels.pack import Pack
from leadline.model.block import Block
from leadline.model.layers import (
    Attention,
    CrossAttention,
    Embed,
    FeedForward,
    Linear,
    SelfAttention,
    Sinusoids,
    VocabularyHead,
)

if TYPE_CHECKING:
    from leadline.model.transformer import Transformer

SITES = 9  # places of dropout in a block: for each sublayer inside attention or activation, and at its end


class Fused:
    draws = False  # dropout is a function of its site
    compiles = False

    def __init__(self, model: Transformer, runtime: Runtime, onto: Projection, memory: Any = None) -> None:
        if model.config.activation not in ACTIVATIONS:
            raise UserError(
                f"model.activation={model.config.activation!r} is not known to the fused kernels, which have "
                f"{' and '.join(ACTIVATIONS)}: use train.step=eager or compiled"
            )
        self.runtime = runtime
        # The keys and values of all cross-attentions as one layer, where nothing happens to them on their way.
        crosses = [module for module in model.modules() if isinstance(module, CrossAttention)]
        self.shared = memory if all(layer.unchanged for layer in crosses) else None
        self.onto = onto
        self.activation = model.config.activation
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

    def leave(self, x: Tensor | Stream) -> Tensor:
        return _half(x).to(self.runtime.dtype)

    def memory(self, memory_SD: Tensor, recompute: bool) -> Tensor | Shared:
        return memory_SD if self.shared is None or recompute else Shared(memory_SD, self.shared, self.runtime)

    def linear(self, layer: Linear, x: Tensor | Stream) -> Tensor:
        return linear(_half(x), layer, self.runtime, own_bias=True)

    def project(self, layer: Attention, matrix: Linear, x: Tensor | Stream, positions: Tensor | None = None) -> Tensor:
        """Where nothing happens to it before attention, that one adds up the gradient of the bias."""
        y = linear(_half(x), matrix, self.runtime, own_bias=not layer.unchanged)
        if layer.unchanged:
            return y
        table = None if layer.rotary is None else layer.rotary.table
        if not all(fits(norm) for norm in layer.norms.values()):  # DyT
            return layer.prepare(matrix, y, positions)
        return prepare(y, _parts(layer, matrix), table, positions, self.runtime)

    def self_attention(self, layer: SelfAttention, x_TD: Tensor | Stream, pack: Pack) -> Tensor:
        qkv = self.project(layer, layer.qkv, x_TD, pack.positions)
        inside = self._drop(layer, layer.attention_dropout, 0)
        biases = (layer.qkv.bias,) if layer.unchanged else ()
        return attention(
            qkv, None, pack, pack, _heads(layer), layer.causal, self.runtime, dropout=inside, biases=biases
        )

    def cross_attention(
        self, layer: CrossAttention, x_TD: Tensor | Stream, memory: Tensor | Shared, pack: Pack, memory_pack: Pack
    ) -> Tensor:
        shared = isinstance(memory, Shared)
        kv = memory if isinstance(memory, Shared) else self.project(layer, layer.kv, memory)
        q = self.project(layer, layer.q, x_TD)
        inside = self._drop(layer, layer.attention_dropout, 0)
        biases = (layer.q.bias, layer.kv.bias) if layer.unchanged else ()
        number = self.numbers[layer] if shared else 0
        return attention(
            q, kv, pack, memory_pack, _heads(layer), False, self.runtime, dropout=inside, biases=biases, number=number
        )

    def expand(self, layer: FeedForward, x_TD: Tensor | Stream) -> Tensor:
        inside = self._drop(layer, layer.activation_dropout.p, 0)
        return expand(_half(x_TD), layer.expand, self.activation, inside, self.runtime)

    def branch(self, layer: Attention | FeedForward, last: Linear, x: Tensor) -> Branch:
        if not isinstance(layer.inside, nn.Identity):
            x = layer.inside(x.float())
        y = linear(x, last, self.runtime, own_bias=False)
        return Branch(self.runtime, y, last.bias, self._drop(layer, layer.dropout.p, 1))

    def embed(self, foot: Embed, tokens: Tensor, positions: Tensor, segments: Tensor | None) -> Tensor:
        places = getattr(foot.positions, "table" if isinstance(foot.positions, Sinusoids) else "weight", None)
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
        x = expand(x_TD, head.dense, self.activation, none, self.runtime)
        normed = add_norm(x.float(), None, head.norm, self.runtime, dropout=none).h
        assert normed is not None
        return normed

    def logits(self, model: Transformer, hidden_TD: Tensor) -> Tensor:
        hidden_TD = hidden_TD.to(self.runtime.dtype)
        hidden_TD = hidden_TD if model.head is None else model.head(hidden_TD)
        return F.linear(hidden_TD, self.onto.compute, self.onto.compute_bias)[:, : self.onto.words]

    def loss(
        self,
        model: Transformer,
        hidden_TD: Tensor,
        labels_T: Tensor,
        smoothing: float,
        ignore: int,
        divisor: Tensor | float,
    ) -> tuple[Tensor, Tensor]:
        if not isinstance(divisor, Tensor):
            divisor = torch.full((1,), float(divisor), device=hidden_TD.device)
        hidden_TD = hidden_TD if model.head is None else model.head(hidden_TD)
        return linear_cross_entropy(hidden_TD, self.onto, labels_T, smoothing, ignore, divisor, self.runtime)

    def _drop(self, layer: nn.Module, p: float, place: int) -> Dropout:
        return self.runtime.dropout(p if layer.training else 0.0, self.sites[layer] + place)


def _heads(layer: Attention) -> Heads:
    return Heads(layer.heads, layer.groups, layer.width)


def _parts(layer: Attention, matrix: Linear) -> list[Part]:
    begins = [0, *itertools.accumulate(matrix.sizes)]
    return [
        Part(begin, size // layer.width, layer.width, layer.rotary is not None and role != "v", layer.norm_of(role))
        for role, begin, size in zip(matrix.roles, begins, matrix.sizes, strict=False)
    ]


def _half(x: Tensor | Stream) -> Tensor:
    """As matrix products read it."""
    return x.half if isinstance(x, Stream) else x


def _segments(table: Tensor, segments: Tensor) -> Tensor:
    """The rows of a table of few rows, as a product: its gradient is then a product too, summed in a fixed order."""
    kinds = torch.arange(len(table), device=table.device)
    return (segments[:, None] == kinds).to(table.dtype) @ table


@contextlib.contextmanager
def to_infer(model: Transformer, dtype: torch.dtype) -> Iterator[None]:
    """The model on fused kernels for as long as its weights stay what they are now: they are rounded once."""
    if isinstance(model.ops, Fused):
        yield
        return
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    for layer in linears:
        own = None if layer.bias is None else layer.bias.detach().to(dtype)
        layer.compute = layer.weight.detach().to(dtype), own
    output = model.output.weight.detach()
    bias = None if model.head is None else filled(model.head.bias.detach().to(dtype))
    onto = Projection(len(output), None, filled(output.to(dtype)), compute_bias=bias)
    runtime = Runtime(dtype, torch.zeros(1, dtype=torch.int64, device=output.device))
    try:
        with model.using(Fused(model, runtime, onto)):
            yield
    finally:
        for layer in linears:
            layer.compute = None
