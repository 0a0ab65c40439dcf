"""The placement contract: how a sublayer joins the residual stream.

A placement is one residual connection. The block hands it the stream and the sublayer; everything a method
does (where it normalises, how it scales the skip, how it shrinks weights at initialisation) is in its one file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

# "head" is what reads the finished stream: no residual connection, so no placement is asked for its gain.
Role = Literal["q", "k", "v", "out", "ffn_in", "ffn_out", "embed", "head"]
ROLES: tuple[Role, ...] = ("q", "k", "v", "out", "ffn_in", "ffn_out", "embed")

Stack = Literal["encoder", "decoder"]


@dataclass(frozen=True)
class Site:
    """Everything a placement may depend on: which residual connection of which model this is."""

    dim: int
    stack: Stack = "encoder"
    index: int = 0  # of this residual connection in its stack, from 0
    encoder_layers: int = 0  # N in the papers; 0: the model has no encoder
    decoder_layers: int = 0  # M in the papers; 0: the model has no decoder

    def __post_init__(self) -> None:
        if (self.encoder_layers if self.stack == "encoder" else self.decoder_layers) < 1:
            raise ValueError(f"a site in the {self.stack} needs {self.stack}_layers of at least 1")

    def norm(self) -> nn.Module:
        return nn.LayerNorm(self.dim)


class Placement(nn.Module, ABC):
    """One residual connection. Subclasses write `forward`, and `final` or `gain` where they differ.

    `fused` is optional: the equation in terms of fused kernels, where one wants their speed.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site

    @abstractmethod
    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """The stream after the sublayer has joined it."""

    def fused(self, stream: Any, sublayer: Any) -> Any:
        """The same connection on a leadline.kernels.fused.stream.Stream; as here, it is the equation as written."""
        return stream.through(self.forward, sublayer)

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Whoever writes another equation does not inherit a fused form of the old one."""
        super().__init_subclass__(**keywords)
        if "forward" in cls.__dict__ and "fused" not in cls.__dict__:
            cls.fused = Placement.fused  # type: ignore[method-assign]

    @classmethod
    def final(cls, site: Site) -> nn.Module:
        """Closes the stack; the identity unless the stream leaves the last layer unnormalised."""
        return nn.Identity()

    @classmethod
    def gain(cls, role: Role, site: Site) -> float:
        """Factor on the base standard deviation of a weight with this role at this site."""
        return 1.0

    def describe(self) -> dict[str, float]:
        """The constants of this connection, for tables: what the code uses, not what a paper says."""
        return {}
