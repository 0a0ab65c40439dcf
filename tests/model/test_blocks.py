"""The options of the block, each with every placement: forward, backward, cached decoding and the fused kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from leadline.config import GenerateConfig, ModelConfig
from leadline.errors import UserError
from leadline.kernels.pack import Pack, pack_one
from leadline.model import Transformer
from leadline.model.decode import Stepper
from leadline.model.generate import Rows
from leadline.model.layers import Rotary
from leadline.model.operations import PLAIN
from leadline.placement import PLACEMENTS

VOCAB, BOS, LONGEST = 11, 1, 5
SOURCES, TARGETS = ([[4, 5, 3], [6, 2]], [[BOS, 3, 5, 8, 9], [BOS, 7, 2, 4, 6]])

OPTIONS: dict[str, dict[str, Any]] = {
    "no biases": {"bias": False},
    "grouped": {"kv_heads": 1},
    "heads as wide as one likes": {"head_dim": 6},
    "a tanh in GELU": {"activation": "gelu_tanh"},
    "SiLU": {"activation": "silu"},
    "a gated FFN": {"activation": "swiglu"},
    "a norm of queries and keys": {"qk_norm": "width"},
    "no norm but a tanh": {"norm": "dyt", "qk_norm": "width"},
    "a norm of each head": {"qk_norm": "head"},
    "rotary positions": {"positions": "rotary", "rotary_theta": 100.0},
}
ALL = {key: value for options in OPTIONS.values() for key, value in options.items()} | {"norm": "rms_norm"}


def build(placement: str = "pre_ln", layers: tuple[int, int] = (1, 1), **options: Any) -> Transformer:
    sizes = {"encoder_layers": layers[0], "decoder_layers": layers[1], "dim": 8, "ffn_dim": 12, "heads": 2}
    model = Transformer(VOCAB, placement=placement, max_length=8, dropout=0.0, **sizes | options)
    with torch.no_grad():
        for parameter in model.parameters():  # gains of 1, biases and branches of 0 would hide mistakes
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    return model.eval()


def packed(rows: list[list[int]]) -> Pack:
    return pack_one([np.array(row) for row in rows])


def sides(model: Transformer) -> dict[str, Pack]:
    source = {"source": packed(SOURCES)} if model.config.encoder_layers else {}
    return source | ({"target": packed(TARGETS)} if model.config.decoder_layers else {})


def finite_backward(model: Transformer) -> None:
    model.logits(model(**sides(model))).log_softmax(-1)[:, 3].sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@torch.inference_mode()
def cached(model: Transformer, read: int = 0) -> Tensor:
    """Logits token by token, [sentences, positions, V]; a decoder alone may have read some tokens at once before."""
    if model.config.encoder_layers:
        step = Stepper(model, packed(SOURCES), 1, LONGEST)
        return torch.stack([step(torch.tensor([row[i] for row in TARGETS])) for i in range(LONGEST)], 1)
    rows = Rows(model, TARGETS, torch.zeros(len(TARGETS), 1), GenerateConfig(tokens=1))
    rows.read = read
    logits, whole = [], model.step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "step", lambda *given: (logits.append(whole(*given)), logits[-1])[1])
        one = rows.plainly(torch.float32)
        for _ in range(read, LONGEST):
            one()
    return torch.stack(logits, 1)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_works_with_every_option(placement: str) -> None:
    for options in (*OPTIONS.values(), ALL):
        for layers in ((1, 1), (0, 2), (2, 0)):
            architecture = ModelConfig(encoder_layers=layers[0], decoder_layers=layers[1]).architecture
            if architecture not in PLACEMENTS[placement].architectures:
                continue
            model = build(placement, layers, **options)
            finite_backward(model)
            if layers[1]:
                with torch.inference_mode():
                    whole = model.logits(model(**sides(model))).view(len(TARGETS), LONGEST, VOCAB)
                for read in (0,) if layers[0] else (0, 3):
                    torch.testing.assert_close(cached(model, read), whole[:, read:], atol=2e-5, rtol=1e-4)


@pytest.mark.usefixtures("interpreted")
def test_fused_kernels_give_the_gradients_of_the_plain_operations() -> None:
    from leadline.training.flat import fuse

    model = build("pre_ln", (1, 2), **ALL).train()
    batch, labels = sides(model), torch.tensor([token for row in TARGETS for token in row])
    loss, _ = model.loss(model(**batch), labels, 0.1, 0, 3.0)
    loss.backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    flat, _ = fuse(model, torch.float32, accumulate=False)
    flat.gradients.zero_()
    again, _ = model.loss(model(**batch), labels, 0.1, 0, 3.0)
    again.backward()
    torch.testing.assert_close(again, loss)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, plain[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.usefixtures("interpreted")
def test_the_search_in_slots_finds_what_the_plain_one_finds() -> None:
    from leadline.model import decode, slots

    model, limits = build(layers=(1, 1), **ALL), torch.tensor([5, 4])
    given = (model, packed(SOURCES), limits, BOS, 2, 2, 0.6)
    with torch.inference_mode():
        fast, slow = (decode._hypotheses(*search(*given), 2) for search in (slots.search, decode.plain_search))
    assert [[h.tokens for h in row] for row in fast] == [[h.tokens for h in row] for row in slow]
    for one, other in zip(fast, slow, strict=True):
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-4)


# Biases


def test_without_biases_no_matrix_and_no_layer_norm_of_a_block_has_one() -> None:
    names = {name for name, _ in build(bias=False).named_parameters() if name.endswith("bias")}
    assert names == set()
    assert len([name for name, _ in build().named_parameters() if name.endswith("bias")]) > 10


# Heads


def test_heads_of_keys_and_values_are_shared_by_groups_of_queries() -> None:
    """Grouped keys are those of a model whose heads repeat them."""
    grouped, full = build(heads=4, kv_heads=2), build(heads=4)
    shared = dict(grouped.named_parameters())
    with torch.no_grad():
        for name, parameter in full.named_parameters():
            value = shared[name]
            if parameter.shape != value.shape:  # q: 8, k and v: 4 each, of heads 2 wide
                repeats = torch.cat([torch.arange(0, n).view(-1, 2).repeat_interleave(2, 0).flatten() for n in (4,)])
                queries = len(value) - 8
                rows = [torch.arange(queries), queries + repeats, queries + 4 + repeats]
                value = value[torch.cat(rows)]
            parameter.copy_(value)
    torch.testing.assert_close(grouped(**sides(grouped)), full(**sides(full)))


# Rotary positions


def test_rotary_positions_follow_the_formula() -> None:
    """By complex numbers: the pair (x_i, x_{i+d/2}) times e^(i·p·θ^(-2i/d))."""
    torch.manual_seed(0)
    x, positions, theta = torch.randn(4, 3, 6), torch.tensor([0, 1, 5, 2]), 50.0
    waves = torch.tensor([theta ** (-2 * i / 6) for i in range(3)])
    turned = torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones(4, 3), positions[:, None] * waves)[:, None]
    found = Rotary(8, 6, theta)(x, positions)
    torch.testing.assert_close(found, torch.cat([turned.real, turned.imag], -1))


def test_rotary_scores_depend_on_the_distance_alone_and_cross_attention_has_none() -> None:
    model = build(positions="rotary", layers=(1, 1))
    assert model.target_embed.positions is None
    block = model.decoder.blocks[0]
    assert block.cross.rotary is None
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 4).unbind()
    scores = [
        (block.attn.rotary(q, torch.tensor([a])) * block.attn.rotary(k, torch.tensor([b]))).sum().item()
        for a, b in ((3, 1), (7, 5), (2, 2))
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    assert scores[0] != pytest.approx(scores[2], abs=1e-3)


# SwiGLU


def test_a_gated_ffn_by_hand_and_its_gate_is_a_role_of_its_own() -> None:
    ffn, x = build(activation="swiglu").encoder.blocks[0].ffn, torch.randn(3, 8)
    (first, gate, gate_bias), (second, value, bias) = ffn.expand.parts()
    assert (first, second) == ("ffn_gate", "ffn_in")
    assert gate.shape == value.shape == (12, 8)
    opened = x @ gate.t() + gate_bias
    inside = opened / (1 + (-opened).exp()) * (x @ value.t() + bias)
    torch.testing.assert_close(ffn(x), inside @ ffn.contract.weight.t() + ffn.contract.bias)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_gate_starts_as_its_placement_says(placement: str) -> None:
    """Those that scale whole layers scale the gate; those that bound a branch's product leave it."""
    sizes = {"encoder_layers": 6, "decoder_layers": 6, "dim": 128, "ffn_dim": 256, "heads": 2, "activation": "swiglu"}
    model = Transformer(VOCAB, placement=placement, **sizes)
    block = model.decoder.blocks[3]
    _, gate, _ = block.ffn.expand.parts()[0]
    scale = {"ds_init": 4**-0.5, "post_ln_init": 1 / 3}.get(placement, 1.0)
    assert gate.std().item() == pytest.approx(scale * (2 / 384) ** 0.5, rel=0.03)


# DyT


def test_dyt_by_hand_and_without_a_bias() -> None:
    for bias in (True, False):
        norm, x = build(norm="dyt", bias=bias).decoder.final, torch.randn(3, 8)
        wanted = norm.weight * torch.tanh(norm.slope * x) + (norm.bias if bias else 0)
        torch.testing.assert_close(norm(x), wanted)
    assert norm.bias is None
    fresh = Transformer(VOCAB, norm="dyt", encoder_layers=0, decoder_layers=1, dim=8, ffn_dim=8, heads=1).decoder.final
    assert fresh.slope.tolist() == [0.5]


# QK-norm


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("kind", ["head", "width"])
def test_queries_and_keys_are_normed_over_a_head_or_over_all(kind: str, norm: str) -> None:
    layer = build(qk_norm=kind, norm=norm, heads=4, kv_heads=2, norm_eps=1e-3).decoder.blocks[0].attn
    x = torch.randn(3, 8)
    found = layer.split(layer.qkv, PLAIN.project(layer, layer.qkv, x))
    for role, part, prepared in zip("qkv", layer.split(layer.qkv, layer.qkv(x)), found, strict=True):
        if role == "v":
            assert torch.equal(part, prepared)
            continue
        rows = part if kind == "head" else part.flatten(1)
        if norm == "layer_norm":
            rows = rows - rows.mean(-1, keepdim=True)
        rows = rows / (rows.square().mean(-1, keepdim=True) + 1e-3).sqrt() * layer.norms[role].weight
        rows = rows + (layer.norms[role].bias if norm == "layer_norm" else 0)
        torch.testing.assert_close(prepared, rows.view_as(prepared))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"heads": 4, "kv_heads": 3}, "model.heads=4 must be a multiple of model.kv_heads=3"),
        ({"kv_heads": -1}, "model.kv_heads must be 0 or more, not -1"),
        ({"head_dim": -2}, "model.head_dim must be 0 or more, not -2"),
        ({"head_dim": 5, "positions": "rotary"}, "rotary positions turn pairs, and a head is 5 wide"),
        ({"activation": "swiglu", "head": "bert"}, "model.head=bert has no gate"),
        ({"rotary_theta": 0.5}, "model.rotary_theta must be a number above 1"),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_one_sentence(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(**wrong)
