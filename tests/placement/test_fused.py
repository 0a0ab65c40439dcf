"""Every placement on the fused stream gives what its equation gives, in values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from leadline.kernels.fused.runtime import Runtime
from leadline.kernels.fused.stream import Branch, Stream
from leadline.placement import PLACEMENTS, Site
from leadline.placement.dlcl import Below

TOKENS, DIM = 5, 16


class Layer(nn.Module):
    """The last decoder layer of two, its sublayers matrices."""

    def __init__(self, name: str, norm: Any) -> None:
        super().__init__()
        placement = PLACEMENTS[name]
        self.sites = [Site(DIM, "decoder", i, 4, 4, norm) for i in (9, 10, 11)]
        self.connections = nn.ModuleList(placement(site) for site in self.sites)
        placement.tie(list(self.connections))
        self.matrices = nn.ParameterList(torch.randn(DIM, DIM) / 4 for _ in self.sites)
        self.final = placement.final(self.sites[-1])
        self.register_buffer("below", torch.randn(4, TOKENS, DIM))

    def opened(self, x: Tensor) -> Any:
        """What stands at the foot of this layer."""
        name = type(self.connections[0]).__name__
        if name == "DLCL":
            below = Below.nothing(5, x)
            below.values[:3] = self.below[:3]
            return x, below
        return (x, x + self.below[0]) if name == "ResiDual" else x

    def plain(self, x: Tensor) -> Tensor:
        stream = self.opened(x)
        for connection, matrix in zip(self.connections, self.matrices, strict=True):
            stream = connection(stream, lambda h, matrix=matrix: h @ matrix)
        return self.final(stream)

    def fused(self, x: Tensor, runtime: Runtime) -> Tensor:
        stream = Stream(runtime, self.opened(x))
        for connection, matrix in zip(self.connections, self.matrices, strict=True):

            def sublayer(h: Tensor, own_bias: bool = False, matrix: Tensor = matrix) -> Branch:
                return Branch(h @ matrix, None, runtime.dropout(0.0, 0))

            stream = connection.fused(stream, sublayer)
        return self.final(stream.sum())


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("name", PLACEMENTS)
def test_the_fused_stream_gives_what_the_equation_gives(name: str, norm: str) -> None:
    torch.manual_seed(0)
    layer = Layer(name, norm)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.1 * torch.randn_like(parameter)  # gains of 1 and scalars of 0 would hide mistakes
    runtime = Runtime(torch.float32, torch.zeros(1, dtype=torch.int64))
    x, wanted = torch.randn(TOKENS, DIM), torch.randn(TOKENS, DIM)
    found = []
    for way in (layer.plain, lambda h: layer.fused(h, runtime)):
        for parameter in layer.parameters():
            parameter.grad = torch.zeros_like(parameter)  # kernels write into it
        given = x.clone().requires_grad_()
        out = way(given)
        (out * wanted).sum().backward()
        found.append([out, given.grad, *(p.grad for p in layer.parameters())])
    for plain, fused in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)
