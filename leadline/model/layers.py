"""The sublayers of a Transformer, on packed sequences.

Shapes: T tokens in a pack, S tokens in the pack of the memory, D model width, H heads, d = D / H,
N hypotheses that are being decoded, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.config import ModelConfig
from leadline.kernels.attention import ATTENTION, AttentionFunction
from leadline.kernels.dropout import Dropout
from leadline.kernels.pack import Pack
from leadline.model.operations import PLAIN
from leadline.placement import Role

Inside = Callable[[Role, int, int], nn.Module]  # see Placement.inside


class Linear(nn.Linear):
    """One matrix product for several roles: the rows of `weight` belong to `roles` in equal parts."""

    ops: Any = PLAIN

    def __init__(self, inputs: int, outputs: int, *roles: Role) -> None:
        self.roles = roles
        self.compute: tuple[Tensor, Tensor] | None = None  # weight and bias as matrix products read them
        super().__init__(inputs, outputs * len(roles))

    def reset_parameters(self) -> None:
        """Weights get their values in leadline.model.init, and nowhere else."""

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.linear(self, x)

    def parts(self) -> list[tuple[Role, Tensor, Tensor]]:
        """(role, its rows of the weight, its part of the bias)"""
        many = len(self.roles)
        return list(zip(self.roles, self.weight.chunk(many), self.bias.chunk(many), strict=True))


class Embedding(nn.Embedding):
    role: Role = "embed"

    def reset_parameters(self) -> None:
        """See Linear."""


@dataclass
class Ancestry:
    """Which beam's keys and values belong to whose history: hypotheses change places, keys and values stay."""

    beam: Tensor  # [sentences, beams, longest] int64: the beam that held the history's token at each position
    length: int = 0
    mask: Tensor | None = None  # [sentences, 1, beams, length·beams] bool: what a hypothesis may see

    def grow(self) -> None:
        """Every hypothesis gets a token in its own place."""
        own = torch.arange(self.beam.shape[1], device=self.beam.device)
        self.beam[:, :, self.length] = own
        self.length += 1
        self.mask = (self.beam[:, :, : self.length, None] == own).flatten(2)[:, None]


@dataclass
class Cache:
    """What one decoder layer remembers while it decodes: keys and values of all tokens so far."""

    keys: Tensor  # [sentences, H, longest·beams, d], the beams of a position side by side
    values: Tensor
    ancestry: Ancestry

    def attend(self, qkv_NE: Tensor) -> Tensor:
        """Keeps the new keys and values, and attends to each hypothesis's history: [N, 3·H·d] -> [N, H, d]."""
        sentences, heads, _, width = self.keys.shape
        q, k, v = qkv_NE.view(sentences, -1, 3, heads, width).permute(2, 0, 3, 1, 4)
        end = self.ancestry.length * q.shape[2]
        self.keys[:, :, end - q.shape[2] : end] = k
        self.values[:, :, end - q.shape[2] : end] = v
        keys, values = self.keys[:, :, :end], self.values[:, :, :end]
        return F.scaled_dot_product_attention(q, keys, values, self.ancestry.mask).transpose(1, 2).flatten(0, 1)


@dataclass
class Memory:
    """Keys and values of the encoder's output, padded: projected once, used at every step."""

    keys: Tensor  # [sentences, H, longest source, d]
    values: Tensor
    mask: Tensor  # [sentences, 1, 1, longest source] bool

    def attend(self, q_ND: Tensor) -> Tensor:
        """The hypotheses of a sentence share its memory: they are queries of one attention."""
        sentences, heads, _, width = self.keys.shape
        q = q_ND.view(sentences, -1, heads, width).transpose(1, 2)
        return F.scaled_dot_product_attention(q, self.keys, self.values, self.mask).transpose(1, 2).flatten(0, 1)


class Attends(Protocol):
    """A Cache or a Memory, or what stands in for them: new queries (and keys and values) -> [N, H, d]."""

    def attend(self, x_NE: Tensor, /) -> Tensor: ...


class Attention(nn.Module):
    """What self- and cross-attention share: heads, the way out, dropout."""

    ops: Any = PLAIN

    def __init__(self, config: ModelConfig, inside: Inside) -> None:
        super().__init__()
        self.heads = config.heads
        self.kernel: AttentionFunction = ATTENTION["padded"]
        self.attention_dropout = config.attention_dropout
        self.inside = inside("out", config.dim, config.heads)
        self.out = Linear(config.dim, config.dim, "out")
        self.dropout = Dropout(config.dropout)

    def split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """[T, parts·D] -> parts tensors [T, H, d]"""
        return x.view(len(x), parts, self.heads, -1).unbind(1)


class SelfAttention(Attention):
    def __init__(self, config: ModelConfig, inside: Inside, causal: bool) -> None:
        super().__init__(config, inside)
        self.causal = causal
        self.qkv = Linear(config.dim, config.dim, "q", "k", "v")

    def forward(self, x_TD: Tensor, pack: Pack) -> Tensor:
        return self.ops.branch(self, self.out, self.ops.self_attention(self, x_TD, pack))

    def step(self, x_ND: Tensor, cache: Attends) -> Tensor:
        """One new token for each hypothesis."""
        return self.ops.branch(self, self.out, cache.attend(self.qkv(x_ND)).flatten(1))


class CrossAttention(Attention):
    def __init__(self, config: ModelConfig, inside: Inside) -> None:
        super().__init__(config, inside)
        self.q = Linear(config.dim, config.dim, "q")
        self.kv = Linear(config.dim, config.dim, "k", "v")

    def forward(self, x_TD: Tensor, memory: Any, pack: Pack, memory_pack: Pack) -> Tensor:
        return self.ops.branch(self, self.out, self.ops.cross_attention(self, x_TD, memory, pack, memory_pack))

    def step(self, x_ND: Tensor, memory: Attends) -> Tensor:
        return self.ops.branch(self, self.out, memory.attend(self.q(x_ND)).flatten(1))


# What model.activation may be; fused kernels know some of them, and raise at the others.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class FeedForward(nn.Module):
    ops: Any = PLAIN

    def __init__(self, config: ModelConfig, inside: Inside) -> None:
        super().__init__()
        self.expand = Linear(config.dim, config.ffn_dim, "ffn_in")
        self.inside = inside("ffn_out", config.ffn_dim, 1)
        self.contract = Linear(config.ffn_dim, config.dim, "ffn_out")
        self.activation = ACTIVATIONS[config.activation]
        self.activation_dropout = Dropout(config.activation_dropout)
        self.dropout = Dropout(config.dropout)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.ops.branch(self, self.contract, self.ops.expand(self, x_TD))


class Embed(nn.Module):
    """Tokens and their positions -> the stream at the foot of a stack: √D·E[token] + P[position] (+ S[segment]).

    Without model.embed_scale there is no √D: Adam then moves an embedding √D times less at the same rate.
    """

    ops: Any = PLAIN

    def __init__(self, config: ModelConfig, tokens: Embedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = math.sqrt(config.dim) if config.embed_scale else 1.0
        if config.positions == "learned":
            self.positions: nn.Module = Embedding(config.max_length, config.dim)
        else:
            self.positions = Sinusoids(config.max_length, config.dim)
        self.segments = Embedding(config.segments, config.dim) if config.segments else None
        self.norm = nn.LayerNorm(config.dim, config.norm_eps) if config.embed_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens_T: Tensor, positions_T: Tensor, segments_T: Tensor | None = None) -> Tensor:
        return self.ops.embed(self, tokens_T, positions_T, segments_T)


class VocabularyHead(nn.Module):
    """BERT's way to the vocabulary: LN(activation(x·Wᵀ + b)) before the output matrix, and a bias a word after it."""

    ops: Any = PLAIN

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.dense = Linear(config.dim, config.dim, "head")
        self.activation = ACTIVATIONS[config.activation]
        self.norm = nn.LayerNorm(config.dim, config.norm_eps)
        self.bias = nn.Parameter(torch.empty(vocab_size))

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.ops.head(self, x_TD)


class Classifier(nn.Module):
    """BERT's pooler and the layer that reads it: tanh(x·Wᵀ + b) of a sequence's first token, then a number a class."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Linear(config.dim, config.dim, "head")
        self.out = Linear(config.dim, config.classes, "head") if config.classes else nn.Identity()
        self.dense.requires_grad_(config.classes > 0)  # where nothing reads it, nothing may change it

    def forward(self, x_SD: Tensor) -> Tensor:
        return self.out(self.dense(x_SD).tanh())


class Sinusoids(nn.Module):
    """P[p] = (sin(p·ω_0), …, sin(p·ω_{D/2-1}), cos(p·ω_0), …), ω_i = 10000^(-2i/D) (Vaswani et al. 2017)."""

    table: Tensor

    def __init__(self, longest: int, dim: int) -> None:
        super().__init__()
        angles = torch.arange(longest)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
        self.register_buffer("table", torch.cat([angles.sin(), angles.cos()], dim=1), persistent=False)

    def forward(self, positions_T: Tensor) -> Tensor:
        return self.table[positions_T]
