"""The placement contract: how a sublayer joins the residual stream.

A placement is one residual connection. The block passes it the stream and the sublayer. Everything a method
does (where it normalises, how it scales the skip, how it shrinks weights at initialisation) is in its one file.
The stream is a tensor [T, D] unless a placement makes more of it: `opens` may turn the embeddings into anything, its
connections pass that on from one to the next, and `final` turns it back into a tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

from torch import Tensor, nn

from leadline.errors import UserError
from leadline.kernels.norm import DyT, LayerNorm, Lazy, RMSNorm

# "head" is what reads the finished stream: no residual connection, so no placement is asked for its gain.
Role = Literal["q", "k", "v", "out", "ffn_in", "ffn_gate", "ffn_out", "embed", "head"]
ROLES: tuple[Role, ...] = tuple(role for role in get_args(Role) if role != "head")

Stack = Literal["encoder", "decoder"]
SublayerKind = Literal["self", "cross", "ffn"]
Architecture = Literal["encoder-only", "decoder-only", "encoder-decoder"]
NormName = Literal["layer_norm", "rms_norm", "dyt"]
Base = Literal["xavier", "fairseq_2019", "fairseq_2020"]  # what weights start as before gains: leadline.model.init


@dataclass(frozen=True)
class Site:
    """Everything a placement may depend on: which residual connection of which model this is."""

    dim: int
    stack: Stack = "encoder"
    index: int = 0  # of this residual connection in its stack, from 0
    encoder_layers: int = 0  # N in the papers; 0: the model has no encoder
    decoder_layers: int = 0  # M in the papers; 0: the model has no decoder
    norm_name: NormName = "layer_norm"
    norm_eps: float = 1e-5
    norm_bias: bool = True  # of layer norms and DyT; an RMS norm has none

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"a site in the {self.stack} needs {self.stack}_layers of at least 1")

    @property
    def architecture(self) -> Architecture:
        if self.encoder_layers and self.decoder_layers:
            return "encoder-decoder"
        return "encoder-only" if self.encoder_layers else "decoder-only"

    @property
    def layers(self) -> int:
        """Of this stack."""
        return self.encoder_layers if self.stack == "encoder" else self.decoder_layers

    @property
    def kinds(self) -> tuple[SublayerKind, ...]:
        """The sublayers of one layer of this stack."""
        return ("self", "cross", "ffn") if self.stack == "decoder" and self.encoder_layers else ("self", "ffn")

    @property
    def kind(self) -> SublayerKind:
        """The sublayer that this connection joins."""
        return self.kinds[self.index % len(self.kinds)]

    @property
    def layer(self) -> int:
        """l in the papers: 1 for the layer that reads the embeddings."""
        return self.index // len(self.kinds) + 1

    @property
    def connections(self) -> int:
        """Residual connections of this stack."""
        return self.layers * len(self.kinds)

    def norm(self, width: int | None = None) -> nn.Module:
        """A new norm, of the stream unless another width is given."""
        width = width or self.dim
        if self.norm_name == "rms_norm":
            return RMSNorm(width, eps=self.norm_eps)
        if self.norm_name == "dyt":
            return DyT(width, self.norm_bias)
        return LayerNorm(width, eps=self.norm_eps, bias=self.norm_bias)


def tensor(x: Tensor | Lazy) -> Tensor:
    """A stream or a branch as a tensor; a tensor as it is."""
    return x if isinstance(x, Tensor) else x.tensor


class Placement(nn.Module, ABC):
    """One residual connection. Subclasses write `forward`, and the others where they differ.

    On fused kernels the equation is given a stream that knows a number times it, a sum with a branch or a tensor, and
    being normalised by a norm of `Site.norm`. An equation that asks for more writes `tensor(…)` around what it asks.
    """

    architectures: ClassVar[tuple[Architecture, ...]] = get_args(Architecture)  # those the paper defines
    base: ClassVar[Base | None] = None  # the base initialisation its gains are defined on; None: any
    norms: ClassVar[tuple[Role, ...]] = ()  # of q, k and v, those that attention norms before it compares them

    def __init__(self, site: Site) -> None:
        super().__init__()
        if site.architecture not in self.architectures:
            raise UserError(
                f"{type(self).__name__} is defined for {' and '.join(self.architectures)} models, and this one is "
                f"{site.architecture}: choose another model.placement"
            )
        self.site = site

    @abstractmethod
    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """The stream after the sublayer has joined it."""

    @classmethod
    def opens(cls, site: Site) -> nn.Module:
        """What the embeddings pass through on their way into the stack of `site`, its first connection."""
        return nn.Identity()

    @classmethod
    def final(cls, site: Site) -> nn.Module:
        """Closes the stack of `site`, its last connection: the identity, unless it leaves the stream unnormalised."""
        return nn.Identity()

    def inside(self, role: Role, width: int, heads: int) -> nn.Module:
        """What the input of the sublayer's matrix "out" or "ffn_out" passes through; `heads` lie side by side in it."""
        return nn.Identity()

    @classmethod
    def tie(cls, layer: Sequence[Self]) -> None:
        """Lets the connections of one layer share what they share."""

    @classmethod
    def gain(cls, role: Role, site: Site) -> float:
        """Factor on the base standard deviation of a weight with this role at this site."""
        return 1.0

    @classmethod
    def calibrate(cls, connections: Sequence[Self], forward: Callable[[], object]) -> None:
        """Before training, once a stack: sets what depends on data; `forward` runs the model on a batch."""

    def stream(self, x: Any) -> Tensor:
        """Of what `forward` returns, the tensor to look at: what this connection has made."""
        return x

    def describe(self) -> dict[str, float]:
        """The constants of this connection, for tables: what the code uses, not what a paper says."""
        return {}
