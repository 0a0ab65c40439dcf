"""What a Transformer is computed with, operation by operation.

The model is written once (layers, block, transformer) and asks its `ops` for everything that can be computed in more
than one way. `Plain` is torch's: the reference, on any device. leadline.model.fused has the same operations on fused
kernels. `Transformer.use` chooses.

Shapes as in leadline.model.layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.kernels.attention import for_each_head
from leadline.kernels.cross_entropy import cross_entropy
from leadline.kernels.pack import Pack

if TYPE_CHECKING:
    from leadline.model.layers import (
        Attention,
        CrossAttention,
        Embed,
        FeedForward,
        Linear,
        SelfAttention,
        VocabularyHead,
    )
    from leadline.model.transformer import Transformer


class Plain:
    draws = True  # dropout moves torch's random state: what is computed again must have it put back
    compiles = True  # torch.compile may look into blocks

    def enter(self, x: Any) -> Any:
        """The stream as a residual connection is given it."""
        return x

    def leave(self, x: Tensor) -> Tensor:
        """The stream at the top of a stack, as a tensor."""
        return x

    def memory(self, memory_SD: Tensor, recompute: bool) -> Tensor:
        """The encoder's output, as the cross-attentions of a stack read it."""
        return memory_SD

    def linear(self, layer: Linear, x: Tensor) -> Tensor:
        if layer.compute is None or torch.is_grad_enabled():
            return F.linear(x, layer.weight, layer.bias)
        weight, bias = layer.compute
        return F.linear(x.to(weight.dtype), weight, bias)

    def project(self, layer: Attention, linear: Linear, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """q, k and v, or some of them, side by side, as attention sees them."""
        x = linear(x)
        return x if layer.unchanged else layer.prepare(linear, x, positions)

    def self_attention(self, layer: SelfAttention, x_TD: Tensor, pack: Pack) -> Tensor:
        """Softmax(q·kᵀ/√d)·v of every head, side by side."""
        q, k, v = layer.split(layer.qkv, self.project(layer, layer.qkv, x_TD, pack.positions))
        return self._attend(layer, q, k, v, pack, pack, layer.causal)

    def cross_attention(
        self, layer: CrossAttention, x_TD: Tensor, memory: Tensor, pack: Pack, memory_pack: Pack
    ) -> Tensor:
        (q,) = layer.split(layer.q, self.project(layer, layer.q, x_TD))
        k, v = layer.split(layer.kv, self.project(layer, layer.kv, memory))
        return self._attend(layer, q, k, v, pack, memory_pack, False)

    def _attend(
        self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, q_pack: Pack, k_pack: Pack, causal: bool
    ) -> Tensor:
        dropout = layer.attention_dropout if layer.training else 0.0
        k, v = (for_each_head(x, layer.heads, 1) for x in (k, v))
        return layer.kernel(q, k, v, q_pack, k_pack, causal, dropout).flatten(1)

    def expand(self, layer: FeedForward, x_TD: Tensor) -> Tensor:
        """dropout(activation(x·Wᵀ + b))"""
        return layer.activation_dropout(layer.activation(layer.expand(x_TD)))

    def branch(self, layer: Attention | FeedForward, last: Linear, x: Tensor) -> Any:
        """What a sublayer gives to its residual connection: dropout(inside(x)·Wᵀ + b)."""
        return layer.dropout(last(layer.inside(x)))

    def embed(self, foot: Embed, tokens_T: Tensor, positions_T: Tensor, segments_T: Tensor | None) -> Tensor:
        x_TD = foot.scale * foot.tokens(tokens_T)
        if foot.positions is not None:
            x_TD = x_TD + foot.positions(positions_T)
        if foot.segments is not None:  # what does not say is of the first kind
            x_TD = x_TD + foot.segments(torch.zeros_like(tokens_T) if segments_T is None else segments_T)
        return foot.dropout(foot.norm(x_TD))

    def head(self, head: VocabularyHead, x_TD: Tensor) -> Tensor:
        return head.norm(head.activation(head.dense(x_TD)))

    def logits(self, model: Transformer, hidden_TD: Tensor) -> Tensor:
        if model.head is None:
            return F.linear(hidden_TD, model.output.weight)
        return F.linear(model.head(hidden_TD), model.output.weight, model.head.bias)

    def loss(
        self,
        model: Transformer,
        hidden_TD: Tensor,
        labels_T: Tensor,
        smoothing: float,
        ignore: int,
        divisor: Tensor | float,
    ) -> tuple[Tensor, Tensor]:
        smoothed, plain = cross_entropy(self.logits(model, hidden_TD), labels_T, smoothing, ignore)
        return smoothed / divisor, plain / divisor


Operations = Any  # Plain, or leadline.model.fused.Fused, which takes streams where this takes tensors
PLAIN = Plain()
