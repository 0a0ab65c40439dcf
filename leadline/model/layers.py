"""The sublayers of a Transformer, on packed sequences.

Shapes: T tokens in a pack, S tokens in the pack of the memory, D model width, H heads of queries and G of keys and
values, each d wide (H·d = D unless model.head_dim says otherwise), E = (H + 2G)·d, N hypotheses that are being decoded,
V vocabulary.
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.config import ModelConfig
from leadline.kernels.attention import ATTENTION, AttentionFunction, for_each_head
from leadline.kernels.dropout import Dropout
from leadline.kernels.pack import Pack
from leadline.kernels.rotary import rotate, rotations
from leadline.model.operations import PLAIN, Operations
from leadline.placement import Placement, Role


class Linear(nn.Linear):
    """One matrix product for several roles: the rows of `weight` belong to them, so many to each."""

    ops: Operations = PLAIN

    def __init__(self, inputs: int, *, bias: bool = True, **outputs: int) -> None:
        """`outputs` of each role, by its name."""
        self.roles, self.sizes = typing.cast(tuple[Role, ...], tuple(outputs)), list(outputs.values())
        self.compute: tuple[Tensor, Tensor | None] | None = None  # weight and bias as matrix products read them
        super().__init__(inputs, sum(self.sizes), bias)

    def reset_parameters(self) -> None:
        """Weights get their values in leadline.model.init, and nowhere else."""

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.linear(self, x)

    def parts(self) -> list[tuple[Role, Tensor, Tensor | None]]:
        """(role, its rows of the weight, its part of the bias)"""
        biases = [None] * len(self.sizes) if self.bias is None else self.bias.split(self.sizes)
        return list(zip(self.roles, self.weight.split(self.sizes), biases, strict=True))


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

    keys: Tensor  # [sentences, G, longest·beams, d], the beams of a position side by side
    values: Tensor
    ancestry: Ancestry

    def attend(self, qkv_NE: Tensor) -> Tensor:
        """Keeps the new keys and values, and attends to each hypothesis's history: [N, E] -> [N, H, d]."""
        sentences, groups, _, width = self.keys.shape
        heads = qkv_NE.view(sentences, -1, qkv_NE.shape[1] // width, width).transpose(1, 2)
        q, k, v = heads.split([heads.shape[1] - 2 * groups, groups, groups], 1)
        end = self.ancestry.length * q.shape[2]
        self.keys[:, :, end - q.shape[2] : end] = k
        self.values[:, :, end - q.shape[2] : end] = v
        keys, values = (for_each_head(x[:, :, :end], q.shape[1], 1) for x in (self.keys, self.values))
        return F.scaled_dot_product_attention(q, keys, values, self.ancestry.mask).transpose(1, 2).flatten(0, 1)


@dataclass
class Memory:
    """Keys and values of the encoder's output, padded: projected once, used at every step."""

    keys: Tensor  # [sentences, G, longest source, d]
    values: Tensor
    mask: Tensor  # [sentences, 1, 1, longest source] bool

    def attend(self, q_ND: Tensor) -> Tensor:
        """The hypotheses of a sentence share its memory: they are queries of one attention."""
        sentences, _, _, width = self.keys.shape
        q = q_ND.view(sentences, -1, q_ND.shape[1] // width, width).transpose(1, 2)
        keys, values = (for_each_head(x, q.shape[1], 1) for x in (self.keys, self.values))
        return F.scaled_dot_product_attention(q, keys, values, self.mask).transpose(1, 2).flatten(0, 1)


class Attends(Protocol):
    """A Cache or a Memory, or what stands in for them: new queries (and keys and values) -> [N, H, d]."""

    def attend(self, x_NE: Tensor, /) -> Tensor: ...


class Attention(nn.Module):
    """What self- and cross-attention share: heads, the norms of q, k and v, the way out, dropout."""

    ops: Operations = PLAIN

    def __init__(self, config: ModelConfig, connection: Placement) -> None:
        super().__init__()
        self.heads, self.groups, self.width = config.heads, config.groups, config.head_width
        self.kernel: AttentionFunction = ATTENTION["padded"]
        self.attention_dropout = config.attention_dropout
        self.inside = connection.inside("out", self.heads * self.width, config.heads)
        self.out = Linear(self.heads * self.width, out=config.dim, bias=config.bias)
        self.dropout = Dropout(config.dropout)
        self.rotary: Rotary | None = None
        normed = dict.fromkeys([*connection.norms, *(("q", "k") if config.qk_norm != "none" else ())])
        together = {"q": self.heads, "k": self.groups, "v": self.groups} if config.qk_norm == "width" else {}
        self.norms = nn.ModuleDict({role: connection.site.norm(self.width * together.get(role, 1)) for role in normed})

    def norm_of(self, role: Role) -> Any:
        return dict(self.norms.items()).get(role)

    @property
    def unchanged(self) -> bool:
        """Whether attention sees q, k and v as their matrices have made them."""
        return not self.norms and self.rotary is None

    def prepare(self, linear: Linear, x_TE: Tensor, positions_T: Tensor | None) -> Tensor:
        """What `linear` has made, as attention sees it."""
        parts = zip(linear.roles, x_TE.split(linear.sizes, -1), strict=True)
        return torch.cat([self._prepared(role, part, positions_T) for role, part in parts], -1)

    def _prepared(self, role: Role, x_TE: Tensor, positions_T: Tensor | None) -> Tensor:
        """Normed; q and k turned by rotary positions."""
        if (norm := self.norm_of(role)) is not None:
            x_TE = norm(x_TE.unflatten(-1, (-1, *norm.normalized_shape))).flatten(-2).to(x_TE.dtype)
        if self.rotary is None or positions_T is None or role == "v":
            return x_TE
        return self.rotary(x_TE.unflatten(-1, (-1, self.width)), positions_T).flatten(-2)

    def split(self, linear: Linear, x: Tensor) -> list[Tensor]:
        """What `linear` has made, [T, …], role by role: [T, H, d] and [T, G, d]."""
        return [part.unflatten(-1, (-1, self.width)) for part in x.split(linear.sizes, -1)]


class SelfAttention(Attention):
    def __init__(self, config: ModelConfig, connection: Placement, causal: bool, rotary: Rotary | None) -> None:
        super().__init__(config, connection)
        self.causal = causal
        of_keys = self.groups * self.width
        self.qkv = Linear(config.dim, q=self.heads * self.width, k=of_keys, v=of_keys, bias=config.bias)
        self.rotary = rotary

    def forward(self, x_TD: Tensor, pack: Pack) -> Tensor:
        return self.ops.branch(self, self.out, self.ops.self_attention(self, x_TD, pack))

    def step(self, x_ND: Tensor, positions_N: Tensor, cache: Attends) -> Tensor:
        """One new token for each hypothesis."""
        qkv_NE = self.ops.project(self, self.qkv, x_ND, positions_N)
        return self.ops.branch(self, self.out, cache.attend(qkv_NE).flatten(1))


class CrossAttention(Attention):
    def __init__(self, config: ModelConfig, connection: Placement) -> None:
        super().__init__(config, connection)
        of_keys = self.groups * self.width
        self.q = Linear(config.dim, q=self.heads * self.width, bias=config.bias)
        self.kv = Linear(config.dim, k=of_keys, v=of_keys, bias=config.bias)

    def forward(self, x_TD: Tensor, memory: Any, pack: Pack, memory_pack: Pack) -> Tensor:
        return self.ops.branch(self, self.out, self.ops.cross_attention(self, x_TD, memory, pack, memory_pack))

    def step(self, x_ND: Tensor, memory: Attends) -> Tensor:
        return self.ops.branch(self, self.out, memory.attend(self.ops.project(self, self.q, x_ND)).flatten(1))

    def read(self, memory_SD: Tensor) -> Tensor:
        """Keys and values of the encoder's output, side by side."""
        return self.ops.project(self, self.kv, memory_SD)


def swiglu(z: Tensor) -> Tensor:
    """SiLU(gate)⊙value, side by side in z (Shazeer 2020, "GLU Variants Improve Transformer", arXiv 2002.05202)."""
    gate, value = z.chunk(2, -1)
    return F.silu(gate) * value


# What model.activation may be; fused kernels raise at one that they do not know.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swiglu": swiglu,
}


class FeedForward(nn.Module):
    ops: Operations = PLAIN

    def __init__(self, config: ModelConfig, connection: Placement) -> None:
        super().__init__()
        gate = {"ffn_gate": config.ffn_dim} if config.activation == "swiglu" else {}
        self.expand = Linear(config.dim, **gate, ffn_in=config.ffn_dim, bias=config.bias)
        self.inside = connection.inside("ffn_out", config.ffn_dim, 1)
        self.contract = Linear(config.ffn_dim, ffn_out=config.dim, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.activation_dropout = Dropout(config.activation_dropout)
        self.dropout = Dropout(config.dropout)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.ops.branch(self, self.contract, self.ops.expand(self, x_TD))


class Embed(nn.Module):
    """Tokens and their positions -> the stream at the foot of a stack: √D·E[token] + P[position] (+ S[segment]).

    Rotary positions are no part of it: P is 0.
    Without model.embed_scale there is no √D: Adam then moves an embedding √D times less at the same rate.
    """

    ops: Operations = PLAIN

    def __init__(self, config: ModelConfig, tokens: Embedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = math.sqrt(config.dim) if config.embed_scale else 1.0
        if config.positions == "learned":
            self.positions: nn.Module | None = Embedding(config.max_length, config.dim)
        else:
            sinusoidal = config.positions == "sinusoidal"
            self.positions = Sinusoids(config.max_length, config.dim) if sinusoidal else None
        self.segments = Embedding(config.segments, config.dim) if config.segments else None
        self.norm = nn.LayerNorm(config.dim, config.norm_eps) if config.embed_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens_T: Tensor, positions_T: Tensor, segments_T: Tensor | None = None) -> Tensor:
        return self.ops.embed(self, tokens_T, positions_T, segments_T)


class VocabularyHead(nn.Module):
    """BERT's way to the vocabulary: LN(activation(x·Wᵀ + b)) before the output matrix, and a bias a word after it."""

    ops: Operations = PLAIN

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.dense = Linear(config.dim, head=config.dim)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = nn.LayerNorm(config.dim, config.norm_eps)
        self.bias = nn.Parameter(torch.empty(vocab_size))

    def forward(self, x_TD: Tensor) -> Tensor:
        return self.ops.head(self, x_TD)


class OutputBias(nn.Module):
    """A number for each word, added to its logit (leadline.model.operations): the hidden states stay as they are."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(vocab_size))

    def forward(self, x_TD: Tensor) -> Tensor:
        return x_TD


HEADS: dict[str, type[VocabularyHead] | type[OutputBias]] = {"bias": OutputBias, "bert": VocabularyHead}


class Classifier(nn.Module):
    """BERT's pooler and the layer that reads it: tanh(x·Wᵀ + b) of a sequence's first token, then a number a class."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Linear(config.dim, head=config.dim)
        self.out = Linear(config.dim, head=config.classes) if config.classes else nn.Identity()
        self.dense.requires_grad_(config.classes > 0)  # where nothing reads it, nothing may change it

    def forward(self, x_SD: Tensor) -> Tensor:
        return self.out(self.dense(x_SD).tanh())


class Rotary(nn.Module):
    """leadline.kernels.rotary, with a table of all positions; the layers of a stack share it."""

    table: Tensor

    def __init__(self, longest: int, width: int, theta: float) -> None:
        super().__init__()
        self.register_buffer("table", rotations(longest, width, theta), persistent=False)

    def forward(self, x_THd: Tensor, positions_T: Tensor) -> Tensor:
        return rotate(x_THd, self.table, positions_T)


class Sinusoids(nn.Module):
    """P[p] = (sin(p·ω_0), …, sin(p·ω_{D/2-1}), cos(p·ω_0), …), ω_i = 10000^(-2i/D) (Vaswani et al. 2017)."""

    table: Tensor

    def __init__(self, longest: int, dim: int) -> None:
        super().__init__()
        angles = torch.arange(longest)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
        self.register_buffer("table", torch.cat([angles.sin(), angles.cos()], dim=1), persistent=False)

    def forward(self, positions_T: Tensor) -> Tensor:
        return self.table[positions_T]
