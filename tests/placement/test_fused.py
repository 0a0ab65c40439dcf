"""Every placement on the fused stream gives what its equation gives, in values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from leadline.errors import UserError
from leadline.kernels.fused import stream as stream_module
from leadline.kernels.fused.residual import add_norm
from leadline.kernels.fused.runtime import Runtime
from leadline.kernels.fused.stream import Branch, Stream
from leadline.placement import PLACEMENTS, Placement, Site, tensor
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
        return (x, x + self.below[0]) if name in ("ResiDual", "SiameseNorm") else x

    def plain(self, x: Tensor) -> Tensor:
        stream = self.opened(x)
        for connection, matrix in zip(self.connections, self.matrices, strict=True):
            stream = connection(stream, lambda h, matrix=matrix: h @ matrix)
        return self.final(stream)

    def fused(self, x: Tensor, runtime: Runtime) -> Tensor:
        def entered(x: Any) -> Any:
            x = Stream(runtime, x) if isinstance(x, Tensor) else x
            return x.enter() if isinstance(x, Stream) else x

        stream = self.opened(x)
        for connection, matrix in zip(self.connections, self.matrices, strict=True):

            def sublayer(h: Any, matrix: Tensor = matrix) -> Branch:
                half = h.half if isinstance(h, Stream) else h
                return Branch(runtime, half @ matrix, None, runtime.dropout(0.0, 0))

            stream = connection(entered(stream), sublayer)
        return tensor(self.final(entered(stream)))


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


# Kernels that sum, drop and normalise in a layer of three connections: one each, and one for a norm at the end of the
# stack. Those that look at tensors leave some of it to torch.
KERNELS = {
    **dict.fromkeys(("post_ln", "deepnorm", "post_ln_init", "ds_init", "admin_constant"), 3),
    **dict.fromkeys(("pre_ln", "sub_ln", "ln_scaling", "mix_ln", "normformer"), 3 + 1),
    "b2t": 4,  # the sum with what entered the layer is torch's
    "t_fixup": 3,
    **dict.fromkeys(("sandwich_ln", "peri_ln", "layer_scale", "complete_p"), 3 + 1),
    "res_post_ln": 1,  # the norms of branches are torch's
    "hybrid_norm": 3,
    "keel": 6,  # two norms each
    **dict.fromkeys(("admin", "rezero", "r_fixup", "resi_dual", "dlcl", "siamese_norm"), 0),
}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_connection_stays_as_fused_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    monkeypatch.setattr(stream_module, "add_norm", lambda *a, **k: (launched.append("kernel"), add_norm(*a, **k))[1])
    layer = Layer(name, "layer_norm")
    with torch.no_grad():
        layer.fused(torch.randn(TOKENS, DIM), Runtime(torch.float32, torch.zeros(1, dtype=torch.int64)))
    assert len(launched) == KERNELS[name]


class Careless(Placement):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.gate = nn.Parameter(torch.ones(site.dim))

    def forward(self, x: Any, sublayer: Any) -> Any:
        return x + self.gate * sublayer(x)


@pytest.mark.usefixtures("interpreted")
def test_what_the_stream_does_not_know_says_how_to_look_at_it() -> None:
    runtime = Runtime(torch.float32, torch.zeros(1, dtype=torch.int64))
    x = Stream(runtime, torch.randn(TOKENS, DIM), entering=True)

    def sublayer(h: Any) -> Branch:
        return Branch(runtime, torch.randn(TOKENS, DIM), None, runtime.dropout(0.0, 0))

    careless = Careless(Site(DIM, encoder_layers=1))
    for asked in (
        lambda: careless(x, sublayer),
        lambda: torch.relu(x),
        lambda: torch.cat([torch.ones(1, DIM), x]),
        lambda: torch.add(input=x, other=1),
        lambda: x**2,
        lambda: torch.ones(1) + x,
        lambda: x.mean(),
        lambda: x + "nothing",
        lambda: torch.ones(1) * x,
        lambda: sublayer(x) + x,
        lambda: nn.functional.layer_norm(x, (DIM,)),
    ):
        with pytest.raises(UserError, match=r"must look at a tensor, with leadline.placement.tensor"):
            asked()
    assert torch.equal(tensor(x + torch.ones(1)), tensor(x) + 1)
