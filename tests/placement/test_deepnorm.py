"""DeepNorm's constants and where they go; a placement by itself, and one that somebody else wrote."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leadline.errors import UserError
from leadline.kernels.pack import pack_one
from leadline.model import Transformer
from leadline.placement import PLACEMENTS, ROLES, DeepNorm, Placement, PostLN, Site, find

TINY = {"encoder_layers": 2, "decoder_layers": 2, "dim": 16, "ffn_dim": 32, "heads": 2, "max_length": 8}


# As printed in the paper's table, to three decimals.
@pytest.mark.parametrize(
    ("stack", "N", "M", "alpha", "beta"),
    [
        ("encoder", 6, 6, "1.418", "0.497"),
        ("decoder", 6, 6, "2.060", "0.343"),
        ("encoder", 18, 18, "1.999", "0.353"),
        ("decoder", 18, 18, "2.711", "0.261"),
        ("encoder", 100, 100, "3.416", "0.206"),
        ("decoder", 100, 100, "4.162", "0.170"),
        ("encoder", 500, 500, "5.648", "0.125"),
        ("decoder", 500, 500, "6.223", "0.114"),
        ("encoder", 12, 0, "2.213", "0.319"),
        ("encoder", 1000, 0, "6.687", "0.106"),
        ("decoder", 0, 12, "2.213", "0.319"),  # decoder-only: the formulas of encoder-only
        ("decoder", 0, 1000, "6.687", "0.106"),
    ],
)
def test_alpha_and_beta_are_the_papers(stack: str, N: int, M: int, alpha: str, beta: str) -> None:
    site = Site(8, stack, 0, N, M)
    assert {name: f"{value:.3f}" for name, value in DeepNorm(site).describe().items()} == {"alpha": alpha, "beta": beta}
    for role in ROLES:
        expected = "1.000" if role in ("q", "k", "ffn_gate", "embed") else beta  # the paper has no gate
        assert f"{DeepNorm.gain(role, site):.3f}" == expected, role


def test_an_encoder_of_another_depth_than_its_decoder() -> None:
    """16-1: (16⁴·1)^(1/16) = 2 in the encoder; the decoder sees M = 1 only."""
    encoder, decoder = (DeepNorm(Site(8, stack, 0, 16, 1)) for stack in ("encoder", "decoder"))
    assert (encoder.alpha, encoder.beta) == pytest.approx((0.81 * 2, 0.87 / 2))
    assert (decoder.alpha**4, decoder.beta**-4) == pytest.approx((3, 12))


def test_alpha_is_on_the_skip_and_not_on_the_branch() -> None:
    connection = DeepNorm(Site(8, encoder_layers=8))  # α = 2
    connection.norm = nn.Identity()
    x, branch = torch.randn(5, 8), torch.randn(5, 8)
    seen: list[Tensor] = []
    torch.testing.assert_close(connection(x, lambda h: (seen.append(h), branch)[1]), 2 * x + branch)
    assert torch.equal(seen[0], x)


def test_beta_shrinks_v_out_and_ffn_and_nothing_else() -> None:
    """From the same seed, each weight is Post-LN's times 1 or the β of its stack."""
    deep, plain = (Transformer(20, seed=3, placement=name, init="xavier", **TINY) for name in ("deepnorm", "post_ln"))
    beta = {"encoder": 0.87 * 2 ** (-5 / 16), "decoder": 24**-0.25}
    rows = {"qkv.weight": (1, 1, "β"), "cross.q.weight": (1,), "kv.weight": (1, "β")}
    rows |= dict.fromkeys(("out.weight", "expand.weight", "contract.weight"), ("β",))
    for (name, found), base in zip(deep.named_parameters(), plain.parameters(), strict=True):
        parts = next((r for end, r in rows.items() if name.endswith(end)), (1,))
        factors = torch.tensor([beta[name.split(".")[0]] if part == "β" else 1.0 for part in parts])
        expected = base * factors.repeat_interleave(len(base) // len(parts)).view(-1, *[1] * (base.dim() - 1))
        torch.testing.assert_close(found, expected, msg=name)
        assert not name.endswith("bias") or not found.any()


def without_eps(module: nn.Module) -> None:
    for norm in module.modules():
        if isinstance(norm, nn.LayerNorm):
            norm.eps = 0.0


def test_scaling_the_skip_up_is_scaling_the_branch_down() -> None:
    """LN(αx + f(x)) = LN(x + f(x)/α), exactly where ε = 0."""
    deep, post = (kind(Site(16, encoder_layers=6)).double() for kind in (DeepNorm, PostLN))
    nn.init.normal_(deep.norm.weight)
    nn.init.normal_(deep.norm.bias)
    post.load_state_dict(deep.state_dict())
    f = nn.Linear(16, 16).double()
    x = torch.randn(7, 16, dtype=torch.float64)
    for connection in (deep, post):
        without_eps(connection)
    torch.testing.assert_close(deep(x, f), post(x, lambda h: f(h) / deep.alpha), rtol=1e-10, atol=1e-10)
    assert not torch.allclose(deep(x, f), post(x, f))


@torch.no_grad()
def test_a_deepnorm_model_is_a_post_ln_model_with_alpha_folded_in() -> None:
    deep, post = (Transformer(20, placement=name, **TINY).double().eval() for name in ("deepnorm", "post_ln"))
    for parameter in deep.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    post.load_state_dict(deep.state_dict())
    source, target = pack_one([np.arange(1, 6), np.arange(8, 11)]), pack_one([np.arange(3, 5), np.arange(2, 9)])
    for model in (deep, post):
        without_eps(model)
    assert not torch.allclose(post(source, target), deep(source, target), atol=1e-3)
    for stack, alpha in ((post.encoder, 0.81 * 2 ** (5 / 16)), (post.decoder, 6**0.25)):
        for name, parameter in stack.named_parameters():
            if ".out." in name or ".contract." in name:
                parameter /= alpha
    torch.testing.assert_close(post(source, target), deep(source, target), rtol=1e-9, atol=1e-9)


class SomebodyElses(nn.Module):
    """A network of another library that joins its own sublayers, of one layer, with one of our placements."""

    def __init__(self, placement: type[Placement]) -> None:
        super().__init__()
        first, last = (Site(dim=8, index=i, encoder_layers=1, decoder_layers=1) for i in (0, 1))
        self.mix, self.ffn = (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(2))
        self.opens, self.final = placement.opens(first), placement.final(last)
        self.mix_residual, self.ffn_residual = placement(first), placement(last)
        placement.tie([self.mix_residual, self.ffn_residual])

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix_residual(self.opens(x), self.mix)
        return self.final(self.ffn_residual(x, self.ffn))


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_placement_alone_trains_in_another_module(name: str) -> None:
    torch.manual_seed(0)
    module = SomebodyElses(PLACEMENTS[name])
    x, wanted = torch.randn(32, 8), torch.randn(32, 8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    losses = []
    for _ in range(3):  # branches that start at zero get their gradients in the second
        losses.append((module(x) - wanted).square().mean())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[0] > losses[1] > losses[2]
    assert all(not torch.equal(p, before[name]) for name, p in module.named_parameters())


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_site_in_a_stack_that_does_not_exist_is_an_error(stack: str) -> None:
    with pytest.raises(ValueError, match=f"{stack}_layers"):
        Site(8, stack)


class Halved(Placement):
    """x <- x + f(x)/2, with v starting three times as large."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + sublayer(x) / 2

    @classmethod
    def gain(cls, role: str, site: Site) -> float:
        return 3.0 if role == "v" else 1.0


NOT_A_PLACEMENT = 3


def test_a_placement_from_a_module_is_used_by_the_model() -> None:
    mine = Transformer(20, placement=f"{__name__}:Halved", **TINY).eval()
    plain = Transformer(20, placement="post_ln", **TINY)
    block = mine.encoder.blocks[0]
    assert type(block.attn_residual) is find(f"{__name__}:Halved")
    qkv, plain_qkv = block.attn.qkv.weight, plain.encoder.blocks[0].attn.qkv.weight
    torch.testing.assert_close(qkv, torch.cat([plain_qkv[:32], 3 * plain_qkv[32:]]))
    x = torch.randn(4, 16)
    pack = pack_one([np.arange(1, 5)])
    middle = x + block.attn(x, pack) / 2
    torch.testing.assert_close(block(x, pack), middle + block.ffn(middle) / 2)


@pytest.mark.parametrize(
    ("wrong", "right"), [("deep_norm", "deepnorm"), ("postln", "post_ln"), ("Pre-LN", "pre_ln"), ("pre_ln ", "pre_ln")]
)
def test_a_wrong_name_is_an_error_that_names_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(UserError, match=f"did you mean '{right}'"):
        find(wrong)
    with pytest.raises(UserError, match=f"did you mean '{right}'"):
        Transformer(20, placement=wrong, **TINY)


def test_a_name_near_nothing_is_an_error_that_lists_the_choices() -> None:
    with pytest.raises(UserError, match="post_ln, pre_ln, deepnorm"):
        find("zzzzzz")


@pytest.mark.parametrize(
    "path",
    [
        "no.such.module:Class",
        f"{__name__}:NoSuchClass",
        f"{__name__}:NOT_A_PLACEMENT",
        "torch.nn:LayerNorm",
        f"{__name__}:",
        ":Halved",
        ".relative:Halved",
    ],
)
def test_a_path_that_leads_to_no_placement_is_an_error(path: str) -> None:
    with pytest.raises(UserError, match="placement"):
        find(path)


def test_a_placement_without_forward_says_so() -> None:
    with pytest.raises(TypeError, match="forward"):
        Placement(Site(8, encoder_layers=1))  # type: ignore[abstract]
