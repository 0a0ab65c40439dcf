"""Placements against libraries that have them, most by the papers' authors: the same weights, the same numbers.

Ours runs all sentences in one pack, theirs each sentence alone; in float64.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leadline.kernels.pack import pack_one
from leadline.model import Transformer
from leadline.placement import PLACEMENTS, Site

DIM, FFN, HEADS, DEPTH = 16, 32, 4, 3
SOURCE, TARGET = [5, 1, 3], [2, 4, 3]  # tokens of each sentence


def build(placement: str, encoder: int = DEPTH, decoder: int = DEPTH, **options: Any) -> Transformer:
    sizes = {"dim": DIM, "ffn_dim": FFN, "heads": HEADS, "dropout": 0.0, "max_length": 8} | options
    return Transformer(20, placement=placement, encoder_layers=encoder, decoder_layers=decoder, **sizes).double().eval()


@torch.no_grad()
def away(model: nn.Module) -> nn.Module:
    """Every parameter away from where it starts, so that none can be forgotten unseen."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter += torch.randn_like(parameter) * (0.3 if parameter.shape[-1] < 2 or parameter.dim() == 1 else 0.2)
    return model


def draw(lengths: list[int], seed: int = 0) -> Tensor:
    return torch.randn(sum(lengths), DIM, generator=torch.manual_seed(seed), dtype=torch.float64)


@torch.no_grad()
def compare(model: Transformer, encoder: Callable[[Tensor], Tensor], decoder: Callable[..., Tensor]) -> None:
    """Both stacks; theirs take sentences [1, L, D], the decoder with its memory [1, S, D]."""
    source, target = (pack_one([np.ones(n, dtype=np.int64) for n in lengths]) for lengths in (SOURCE, TARGET))
    x, y = draw(SOURCE), draw(TARGET, seed=1)
    memory = model.encoder(x, source)
    close(memory, torch.cat([encoder(one[None])[0] for one in x.split(SOURCE)]))
    pairs = zip(y.split(TARGET), memory.split(SOURCE), strict=True)
    close(model.decoder(y, target, memory, source), torch.cat([decoder(*(t[None] for t in pair))[0] for pair in pairs]))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def same(own: nn.Module, *others: nn.Module) -> None:
    """The weights and biases of theirs become ours, one below the other; where theirs has no bias, ours is zero."""
    own.weight.data.copy_(torch.cat([other.weight for other in others]))
    biases = [other.bias for other in others if other.bias is not None]
    own.bias.data.copy_(torch.cat(biases) if biases else torch.zeros_like(own.bias))


def causal(length: int) -> Tensor:
    return torch.full((length, length), float("-inf"), dtype=torch.float64).triu(1)


# torchscale: Sub-LN


def torchscale(encoder: int, decoder: int, **options: Any) -> tuple[Any, Any]:
    """The stacks of an encoder-decoder, or of one alone, from one seed: biases are drawn too."""
    config = pytest.importorskip("torchscale.architecture.config")
    from torchscale.architecture.decoder import Decoder
    from torchscale.architecture.encoder import Encoder

    sizes = {"embed_dim": DIM, "attention_heads": HEADS, "ffn_embed_dim": FFN}
    both = {f"{stack}_{key}": value for stack in ("encoder", "decoder") for key, value in sizes.items()}
    both |= {"encoder_layers": encoder, "decoder_layers": decoder, "activation_fn": "relu", "no_output_layer": True}
    args = config.EncoderDecoderConfig(**both, **options)
    torch.manual_seed(0)
    wide = bool(encoder and decoder)
    return tuple(
        make(args, is_encoder_decoder=wide).double().eval() if layers else None
        for make, layers in ((Encoder, encoder), (Decoder, decoder))
    )


def from_torchscale(ours: Any, theirs: Any) -> None:
    for block, layer in zip(ours.blocks, theirs.layers, strict=True):
        attention = layer.self_attn
        same(block.attn.qkv, attention.q_proj, attention.k_proj, attention.v_proj)
        same(block.attn.out, attention.out_proj)
        same(block.attn.inside, attention.inner_attn_ln)
        same(block.attn_residual.norm, layer.self_attn_layer_norm)
        if hasattr(block, "cross"):
            attention = layer.encoder_attn
            same(block.cross.q, attention.q_proj)
            same(block.cross.kv, attention.k_proj, attention.v_proj)
            same(block.cross.out, attention.out_proj)
            same(block.cross_residual.norm, layer.encoder_attn_layer_norm)
        same(block.ffn.expand, layer.ffn.fc1)
        same(block.ffn.contract, layer.ffn.fc2)
        same(block.ffn.inside, layer.ffn.ffn_layernorm)
        same(block.ffn_residual.norm, layer.final_layer_norm)
    same(ours.final, theirs.layer_norm)
    assert count(ours) == count(theirs)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_sub_ln_equals_torchscale() -> None:
    encoder, decoder = map(away, torchscale(DEPTH, DEPTH))
    model = build("sub_ln")
    from_torchscale(model.encoder, encoder)
    from_torchscale(model.decoder, decoder)

    def decode(x: Tensor, memory: Tensor) -> Tensor:
        tokens, mask = (torch.zeros(1, h.shape[1], dtype=torch.bool) for h in (x, memory))
        given = {"encoder_out": memory, "encoder_padding_mask": mask}
        return decoder(tokens, encoder_out=given, token_embeddings=x, features_only=True)[0]

    compare(model, lambda x: encoder(None, token_embeddings=x)["encoder_out"], decode)


@pytest.mark.parametrize(("encoder", "decoder"), [(2, 5), (6, 6), (12, 0), (0, 12)])
def test_sub_ln_scales_the_matrices_that_torchscale_scales(encoder: int, decoder: int) -> None:
    """Each of their matrices over the same one without Sub-LN, and ours over Pre-LN's: from one seed, a number."""
    mine, plain = (build(name, encoder, decoder, init="xavier") for name in ("sub_ln", "pre_ln"))
    theirs = zip(torchscale(encoder, decoder), torchscale(encoder, decoder, subln=False), strict=True)
    for stack, (scaled, unscaled) in zip(("encoder", "decoder"), theirs, strict=True):
        if scaled is None:
            continue
        base = dict(unscaled.named_parameters())
        expected = {name: ratio(p, base[name]) for name, p in scaled.named_parameters() if name in base and p.dim() > 1}
        found: dict[str, float] = {}
        pairs = zip(getattr(mine, stack).blocks, getattr(plain, stack).blocks, strict=True)
        for i, (block, start) in enumerate(pairs):
            for theirs_name, own, linear, parts in (
                ("self_attn", "attn", "qkv", ("q_proj", "k_proj", "v_proj")),
                ("self_attn", "attn", "out", ("out_proj",)),
                ("encoder_attn", "cross", "q", ("q_proj",)),
                ("encoder_attn", "cross", "kv", ("k_proj", "v_proj")),
                ("encoder_attn", "cross", "out", ("out_proj",)),
                ("ffn", "ffn", "expand", ("fc1",)),
                ("ffn", "ffn", "contract", ("fc2",)),
            ):
                if hasattr(block, own):
                    weights = (getattr(getattr(b, own), linear).weight.chunk(len(parts)) for b in (block, start))
                    for part, one, other in zip(parts, *weights, strict=True):
                        found[f"layers.{i}.{theirs_name}.{part}.weight"] = ratio(one, other)
        assert found == pytest.approx(expected, rel=1e-5)
        assert len({f"{number:.4f}" for number in found.values()}) == 2  # 1 and γ


def ratio(found: Tensor, base: Tensor) -> float:
    """The number that makes `found` of `base`."""
    number = ((found * base).sum() / base.square().sum()).item()
    close(found, number * base)
    return number


# admin-torch: Admin-constant, and Admin's equation


@pytest.mark.parametrize(("stack", "encoder", "decoder"), [("encoder", 6, 2), ("decoder", 2, 6), ("decoder", 0, 24)])
def test_admin_constant_has_admin_torchs_omega(stack: Any, encoder: int, decoder: int) -> None:
    admin_torch = pytest.importorskip("admin_torch")
    connections = {("encoder", 6): 12, ("decoder", 6): 18, ("decoder", 24): 48}[stack, max(encoder, decoder)]
    omega = PLACEMENTS["admin_constant"](Site(DIM, stack, 0, encoder, decoder)).omega
    assert omega == pytest.approx(admin_torch.calculate_init(connections), rel=1e-12)
    assert omega == pytest.approx(admin_torch.as_module(connections).omega.item(), rel=1e-6)


class WithOmega(nn.Module):
    """A layer as admin-torch's documentation writes it, with torch's attention."""

    def __init__(self, connections: int, crosses: bool, **omega: Any) -> None:
        super().__init__()
        admin_torch = pytest.importorskip("admin_torch")
        names = ("attn", "cross", "ffn") if crosses else ("attn", "ffn")
        self.residual = nn.ModuleDict({name: admin_torch.as_module(connections, **omega) for name in names})
        self.norm = nn.ModuleDict({name: nn.LayerNorm(DIM) for name in names})
        self.attn = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.cross = nn.MultiheadAttention(DIM, HEADS, batch_first=True) if crosses else None
        self.ffn = nn.Sequential(nn.Linear(DIM, FFN), nn.ReLU(), nn.Linear(FFN, DIM))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        mask = None if memory is None else causal(x.shape[1])
        x = self.norm["attn"](self.residual["attn"](x, self.attn(x, x, x, attn_mask=mask)[0]))
        if self.cross is not None:
            x = self.norm["cross"](self.residual["cross"](x, self.cross(x, memory, memory)[0]))
        return self.norm["ffn"](self.residual["ffn"](x, self.ffn(x)))


def from_torch(block: Any, attention: nn.MultiheadAttention, cross: nn.MultiheadAttention | None) -> None:
    block.attn.qkv.weight.data.copy_(attention.in_proj_weight)
    block.attn.qkv.bias.data.copy_(attention.in_proj_bias)
    same(block.attn.out, attention.out_proj)
    if cross is not None:
        for own, part in ((block.cross.q, slice(DIM)), (block.cross.kv, slice(DIM, None))):
            own.weight.data.copy_(cross.in_proj_weight[part])
            own.bias.data.copy_(cross.in_proj_bias[part])
        same(block.cross.out, cross.out_proj)


@pytest.mark.parametrize("name", ["admin", "admin_constant"])
def test_admin_equals_admin_torch(name: str) -> None:
    model = build(name)
    theirs = []
    for stack, connections, crosses in ((model.encoder, 2 * DEPTH, False), (model.decoder, 3 * DEPTH, True)):
        omega = {"as_parameter": True, "embed_dim": DIM} if name == "admin" else {}
        layers = away(nn.ModuleList(WithOmega(connections, crosses, **omega) for _ in stack.blocks).double())
        for block, layer in zip(stack.blocks, layers, strict=True):
            from_torch(block, layer.attn, layer.cross)
            same(block.ffn.expand, layer.ffn[0])
            same(block.ffn.contract, layer.ffn[2])
            for part, norm in layer.norm.items():
                joined = getattr(block, f"{part}_residual")
                same(joined.norm, norm)
                if name == "admin":
                    joined.omega.data.copy_(layer.residual[part].omega)
        assert count(stack) == count(layers)
        theirs.append(layers)
    compare(model, lambda x: through(theirs[0], x), lambda x, memory: through(theirs[1], x, memory))


def through(layers: Any, x: Tensor, *memory: Any, **options: Any) -> Tensor:
    for layer in layers:
        x = layer(x, *memory, **options)
    return x


# rezero: its authors' layers


def test_rezero_equals_its_authors_layers() -> None:
    rezero = pytest.importorskip("rezero.transformer")
    model = build("rezero")
    theirs = []
    for stack, make in ((model.encoder, rezero.RZTXEncoderLayer), (model.decoder, rezero.RZTXDecoderLayer)):
        layers = away(nn.ModuleList(make(DIM, HEADS, FFN, dropout=0.0) for _ in stack.blocks).double())
        for block, layer in zip(stack.blocks, layers, strict=True):
            from_torch(block, layer.self_attn, getattr(layer, "multihead_attn", None))
            same(block.ffn.expand, layer.linear1)
            same(block.ffn.contract, layer.linear2)
            block.attn_residual.a.data.copy_(layer.resweight)
        assert count(stack) == count(layers)
        theirs.append(layers)

    def encode(x: Tensor) -> Tensor:
        return through(theirs[0], x.transpose(0, 1)).transpose(0, 1)

    def decode(x: Tensor, memory: Tensor) -> Tensor:
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
        return through(theirs[1], x, memory, tgt_mask=causal(len(x))).transpose(0, 1)

    compare(model, encode, decode)


# x-transformers: Sandwich-LN, ResiDual, NormFormer


def x_transformers(**options: Any) -> tuple[Any, Any]:
    library = pytest.importorskip("x_transformers")
    sizes = {"dim": DIM, "depth": DEPTH, "heads": HEADS, "attn_dim_head": DIM // HEADS, "ff_mult": FFN / DIM}
    encoder = library.Encoder(**sizes, **options)
    decoder = library.Decoder(**sizes, **options, cross_attend=True)
    return encoder.double().eval(), decoder.double().eval()


def same_norm(own: nn.Module, other: Any) -> None:
    """Theirs has no bias, and may keep its gain less 1."""
    own.weight.data.copy_(other.gamma + float(other.unit_offset))


def from_x_transformers(ours: Any, theirs: Any) -> None:
    sublayers = [pair for block in ours.blocks for pair in block.connections()]
    for (joined, sublayer), (norms, layer, _) in zip(sublayers, theirs.layers, strict=True):
        before, on_branch, after = norms
        same_norm(joined.norm, before if before is not None else after)
        if on_branch is not None:
            same_norm(joined.branch_norm, on_branch)
        if joined.site.kind == "ffn":
            same(sublayer.expand, layer.ff[0][0])
            same(sublayer.contract, layer.ff[-1])
            if isinstance(sublayer.inside, nn.LayerNorm):
                same_norm(sublayer.inside, layer.ff[1])
            continue
        if joined.site.kind == "self":
            same(sublayer.qkv, layer.to_q, layer.to_k, layer.to_v)
        else:
            same(sublayer.q, layer.to_q)
            same(sublayer.kv, layer.to_k, layer.to_v)
        same(sublayer.out, layer.to_out)
        if hasattr(layer, "head_scale_params") and joined.site.kind == "self":
            sublayer.inside.gain.data.copy_(layer.head_scale_params.flatten())
    same_norm(getattr(ours.final, "norm", ours.final), theirs.final_norm)
    own_norms = [module for module in ours.modules() if isinstance(module, nn.LayerNorm)]
    assert len(own_norms) == len([name for name, _ in theirs.named_parameters() if name.endswith("gamma")])


@pytest.mark.parametrize("name", ["sandwich_ln", "resi_dual", "normformer"])
def test_it_equals_x_transformers(name: str) -> None:
    """GELU, and no biases in norms and attention, as there."""
    options = {
        "sandwich_ln": {"sandwich_norm": True},
        "resi_dual": {"resi_dual": True},
        "normformer": {"sandwich_norm": True, "attn_head_scale": True, "ff_post_act_ln": True},
    }
    library = pytest.importorskip("x_transformers").x_transformers
    if name == "resi_dual" and name not in inspect.signature(library.AttentionLayers).parameters:
        pytest.skip("x-transformers 2 has no ResiDual any more")
    theirs = [away(stack) for stack in x_transformers(**options[name])]
    if name == "normformer":  # nothing on cross-attention, and no norm on the branches of the FFN
        for stack in theirs:
            for kind, (norms, layer, _) in zip(stack.layer_types, stack.layers, strict=True):
                norms[1] = norms[1] if kind == "a" else None
                if kind == "c":
                    layer.head_scale_params.data.fill_(1.0)
    model = build(name, activation="gelu")
    from_x_transformers(model.encoder, theirs[0])
    from_x_transformers(model.decoder, theirs[1])
    compare(model, theirs[0], lambda x, memory: theirs[1](x, context=memory))
