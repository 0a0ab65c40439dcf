"""What each option of the model does, and that it does nothing else."""

from __future__ import annotations

import functools
import math
import shutil
import typing
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from leadline.config import ModelConfig
from leadline.errors import UserError
from leadline.kernels.pack import Pack, pack_one
from leadline.model import Transformer, decode, layers
from leadline.model.init import base_of, start_of
from leadline.model.precision import autocast
from leadline.placement import PLACEMENTS
from leadline.training.step import compile_blocks

VOCAB, DIM, FFN, LONGEST = 11, 8, 12, 10
SOURCE = [np.array([3, 1, 4, 1, 5, 9]), np.array([2, 6])]
TARGET = [np.array([5, 3, 5]), np.array([8, 9, 7, 9, 3])]
ARCHITECTURES = {"encoder-only": (2, 0), "decoder-only": (0, 3), "encoder-decoder": (2, 3)}


def build(architecture: str = "encoder-decoder", **options: Any) -> Transformer:
    encoder, decoder = ARCHITECTURES[architecture]
    sizes = {"encoder_layers": encoder, "decoder_layers": decoder, "dim": DIM, "ffn_dim": FFN, "heads": 2}
    return Transformer(VOCAB, **sizes | {"max_length": LONGEST, "dropout": 0.0} | options)


def packs(model: Transformer) -> dict[str, Pack]:
    found = {"source": pack_one(SOURCE)} if model.config.encoder_layers else {}
    return found | ({"target": pack_one(TARGET)} if model.config.decoder_layers else {})


def logits(model: Transformer) -> Tensor:
    return model.logits(model(**packs(model)))


# Activation


def test_a_new_activation_is_one_line_that_all_see_or_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mish, as an option and in the table: training and cached decoding have it, fused kernels say that they do not."""
    assert set(typing.get_args(typing.get_type_hints(ModelConfig)["activation"])) == set(layers.ACTIVATIONS)
    monkeypatch.setitem(ModelConfig.__annotations__, "activation", 'Literal["relu", "mish"]')
    monkeypatch.setitem(layers.ACTIVATIONS, "mish", torch.nn.functional.mish)
    model = build(activation="mish", placement="pre_ln").eval()
    ffn, x = model.decoder.blocks[0].ffn, torch.randn(3, DIM)
    wide = ffn.expand(x)
    torch.testing.assert_close(ffn(x), ffn.contract(torch.nn.functional.mish(wide)))
    with torch.inference_mode():
        whole = model.logits(model(pack_one(SOURCE[:1]), pack_one(TARGET[:1])))
        step = decode.Stepper(model, pack_one(SOURCE[:1]), 1, 3)
        one_by_one = torch.cat([step(torch.from_numpy(TARGET[0][i : i + 1])) for i in range(3)])
    torch.testing.assert_close(one_by_one, whole, atol=1e-5, rtol=1e-4)
    pytest.importorskip("triton")
    from leadline.training.flat import fuse

    with pytest.raises(UserError, match=r"model.activation='mish' is not known to the fused kernels.*train.step=eager"):
        fuse(model, torch.float32, accumulate=False)


# Dropout


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_dropout_is_random_in_training_and_off_otherwise(architecture: str, kind: str) -> None:
    without, model = build(architecture), build(architecture, **{kind: 0.3})
    exact = logits(without.eval())
    assert torch.equal(logits(without.train()), exact)
    assert torch.equal(logits(model.eval()), exact)
    model.train()
    torch.manual_seed(0)
    one, other = logits(model), logits(model)
    torch.manual_seed(0)
    again = logits(model)
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    assert not torch.allclose(one, exact)


# The base initialisation

WIDE = {"dim": 256, "ffn_dim": 512, "heads": 4}


def parameters(**options: Any) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in build(**WIDE, **options).named_parameters()}


def rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def test_fairseq_2019_starts_attention_as_torch_does_and_nothing_else_changes() -> None:
    alone, packed = parameters(init="xavier"), parameters(init="fairseq_2019")
    torch.manual_seed(0)
    wanted = torch.nn.MultiheadAttention(256, 4).in_proj_weight.std().item()
    changed = {name for name, weight in packed.items() if not torch.equal(weight, alone[name])}
    assert len(changed) == 2 * 1 + 3 * 3  # matrices of a layer: qkv; qkv and, of what the encoder says, q and kv
    for name in changed:
        torch.testing.assert_close(packed[name], alone[name] * 0.5**0.5)
        assert packed[name].std().item() == pytest.approx(wanted, rel=0.02)


def test_fairseq_2020_starts_the_rest_as_nn_linear_does() -> None:
    """Weights and biases of the FFN, and the biases of q, k and v; out, embeddings and norms as before."""
    before, found = parameters(init="fairseq_2019"), parameters(init="fairseq_2020")
    torch.manual_seed(0)
    of_torch = {inputs: torch.nn.Linear(inputs, 4096) for inputs in (256, 512)}
    for name, weight in found.items():
        last, kind = name.split(".")[-2:]
        if kind == "bias" and last in ("qkv", "q", "kv", "expand", "contract"):
            wanted = of_torch[512 if last == "contract" else 256].bias
            assert rms(weight) == pytest.approx(rms(wanted), rel=0.2), name
        elif kind == "weight" and last in ("expand", "contract"):
            assert rms(weight) == pytest.approx(rms(of_torch[weight.shape[1]].weight), rel=0.02), name
        else:
            assert torch.equal(weight, before[name]), name


def test_the_base_initialisations_by_hand() -> None:
    """d = 256, FFN = 512: variances of q, k and v, of out, of the FFN's two matrices and of the FFN's first bias."""
    by_hand = {
        "xavier": (2 / 512, 2 / 512, 2 / 768, 2 / 768, 0),
        "fairseq_2019": (2 / 1024, 2 / 512, 2 / 768, 2 / 768, 0),
        "fairseq_2020": (2 / 1024, 2 / 512, 1 / 768, 1 / 1536, 1 / 768),
    }
    for init, wanted in by_hand.items():
        found = parameters(init=init)
        layer = "decoder.blocks.0."
        names = ("attn.qkv.weight", "attn.out.weight", "ffn.expand.weight", "ffn.contract.weight", "ffn.expand.bias")
        measured = [rms(found[layer + name]) ** 2 for name in names]
        assert measured[:4] == pytest.approx(wanted[:4], rel=0.05), init
        assert measured[4] == pytest.approx(wanted[4], rel=0.3), init


def test_each_placement_starts_from_its_own_base_and_another_one_is_said() -> None:
    def model(placement: str, init: str = "auto") -> ModelConfig:
        return ModelConfig(placement=placement, init=init)  # type: ignore[arg-type]

    assert {name for name in PLACEMENTS if base_of(model(name)) == "xavier"} == {
        "deepnorm", "ds_init", "sub_ln", "t_fixup", "r_fixup"
    }  # fmt: skip
    assert {base_of(model(name)) for name in ("post_ln", "pre_ln", "admin", "post_ln_init")} == {"fairseq_2019"}
    assert start_of(model("deepnorm")) == start_of(model("deepnorm", "xavier")) == "deepnorm started from xavier"
    variant = "deepnorm started from fairseq_2020 (a variant: its constants are defined on xavier)"
    assert start_of(model("deepnorm", "fairseq_2020")) == variant
    assert start_of(model("post_ln", "xavier")) == "post_ln started from xavier"


def test_dropout_is_on_the_embeddings_and_on_every_branch() -> None:
    """Dropped entries are zeros, and the others grow."""
    model = build(dropout=0.5).train()
    pack = pack_one(SOURCE)
    x = torch.randn(len(pack.tokens), DIM)
    block = model.decoder.blocks[0]
    for part, arguments in (
        (model.source_embed, (pack.tokens, pack.positions)),
        (model.target_embed, (pack.tokens, pack.positions)),
        (block.attn, (x, pack)),
        (block.cross, (x, x, pack, pack)),
        (block.ffn, (x,)),
    ):
        clean, dropped = part.eval()(*arguments), part.train()(*arguments)
        kept = dropped != 0
        assert 0 < kept.sum() < kept.numel()
        torch.testing.assert_close(dropped[kept], 2 * clean[kept])


@pytest.mark.parametrize("option", [{"dropout": 1.0}, {"attention_dropout": -0.1}, {"activation_dropout": 1.5}])
def test_dropout_outside_its_range_is_an_error(option: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"model.{next(iter(option))}"):
        build(**option)


# Positions and embeddings


@torch.no_grad()
def test_sinusoids_follow_the_formula() -> None:
    """Token p of a sentence gets sin(p / 10000^(2i/D)) in its first half and cos in its second, added to √D·E."""
    model = build(positions="sinusoidal", max_length=300)
    tokens = np.arange(250) % VOCAB
    pack = pack_one([tokens, tokens[:3]], max_length=300)
    found = model.source_embed(pack.tokens, pack.positions)
    for row, p in ((0, 0), (1, 1), (7, 7), (249, 249), (250, 0), (252, 2)):
        waves = [p / 10000 ** (2 * i / DIM) for i in range(DIM // 2)]
        position = [math.sin(w) for w in waves] + [math.cos(w) for w in waves]
        embedding = model.output.weight[p % VOCAB].tolist()
        expected = [math.sqrt(DIM) * e + s for e, s in zip(embedding, position, strict=True)]
        assert found[row].tolist() == pytest.approx(expected, abs=5e-5)


@torch.no_grad()
def test_learned_positions_are_a_row_for_each_position_of_each_stack() -> None:
    model = build(positions="learned")
    pack = pack_one(SOURCE)
    for embed in (model.source_embed, model.target_embed):
        rows = embed.positions.weight
        assert rows.shape == (LONGEST, DIM)
        found = embed(pack.tokens, pack.positions)
        for row, (token, position) in enumerate((t, p) for s in SOURCE for p, t in enumerate(s)):
            torch.testing.assert_close(found[row], math.sqrt(DIM) * embed.tokens.weight[token] + rows[position])
    assert not torch.equal(model.source_embed.positions.weight, model.target_embed.positions.weight)


def test_sinusoids_are_not_trained_and_learned_positions_are() -> None:
    for positions, expected in (("sinusoidal", 0), ("learned", 2)):
        model = build(positions=positions)
        logits(model).square().sum().backward()
        found = [p for name, p in model.named_parameters() if ".positions." in name]
        assert len(found) == expected
        assert all(p.grad[:3].any() and not p.grad[6:].any() for p in found)  # no sentence has 7 tokens


@torch.no_grad()
def test_embed_norm_normalises_the_embeddings() -> None:
    plain, normed = build(), build(embed_norm=True)
    pack = pack_one(SOURCE)
    x = plain.source_embed(pack.tokens, pack.positions)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(normed.source_embed(pack.tokens, pack.positions), expected)


@pytest.mark.parametrize(
    ("embeddings", "same"),
    [("tied", {"source", "target", "output"}), ("output_tied", {"target", "output"}), ("separate", set())],
)
def test_which_embeddings_are_one_tensor(embeddings: str, same: set[str]) -> None:
    model = build(embeddings=embeddings)
    weights = {
        "source": model.source_embed.tokens.weight,
        "target": model.target_embed.tokens.weight,
        "output": model.output.weight,
    }
    for one in weights:
        for other in weights:
            shared = one == other or {one, other} <= same
            assert (weights[one] is weights[other]) == shared
            assert torch.equal(weights[one], weights[other]) == shared


@torch.no_grad()
@pytest.mark.parametrize("embeddings", ["tied", "output_tied", "separate"])
def test_logits_are_products_with_the_output_embedding(embeddings: str) -> None:
    model = build(embeddings=embeddings)
    hidden = torch.randn(3, DIM)
    torch.testing.assert_close(model.logits(hidden), hidden @ model.output.weight.T)


# D = 8, FFN 12, V = 11, pre-LN.
ATTENTION = 4 * (8 * 8 + 8)  # q, k, v, out = 288
FEED_FORWARD = (8 * 12 + 12) + (12 * 8 + 8)  # 212
NORM = 2 * 8
ENCODER = 2 * (ATTENTION + FEED_FORWARD + 2 * NORM) + NORM  # two layers and the final norm = 1080
DECODER_ONLY = 3 * (ATTENTION + FEED_FORWARD + 2 * NORM) + NORM  # three layers = 1612
DECODER = 3 * (2 * ATTENTION + FEED_FORWARD + 3 * NORM) + NORM  # with cross-attention = 2524
MATRIX = 11 * 8  # an embedding = 88


@pytest.mark.parametrize(
    ("architecture", "options", "expected"),
    [
        ("encoder-decoder", {}, ENCODER + DECODER + MATRIX),
        ("encoder-decoder", {"embeddings": "output_tied"}, ENCODER + DECODER + 2 * MATRIX),
        ("encoder-decoder", {"embeddings": "separate"}, ENCODER + DECODER + 3 * MATRIX),
        ("encoder-decoder", {"positions": "learned"}, ENCODER + DECODER + MATRIX + 2 * 10 * 8),
        ("encoder-decoder", {"embed_norm": True}, ENCODER + DECODER + MATRIX + 2 * NORM),
        ("encoder-decoder", {"placement": "post_ln"}, ENCODER + DECODER + MATRIX - 2 * NORM),
        ("encoder-only", {}, ENCODER + MATRIX),
        ("encoder-only", {"embeddings": "output_tied"}, ENCODER + MATRIX),
        ("encoder-only", {"embeddings": "separate"}, ENCODER + 2 * MATRIX),
        ("decoder-only", {}, DECODER_ONLY + MATRIX),
        ("decoder-only", {"embeddings": "output_tied"}, DECODER_ONLY + MATRIX),
        ("decoder-only", {"embeddings": "separate"}, DECODER_ONLY + 2 * MATRIX),
    ],
)
def test_number_of_parameters(architecture: str, options: dict[str, Any], expected: int) -> None:
    assert sum(p.numel() for p in build(architecture, **options).parameters()) == expected


def test_hand_worked_numbers() -> None:
    assert (ATTENTION, FEED_FORWARD, ENCODER, DECODER_ONLY, DECODER) == (288, 212, 1080, 1612, 2524)


# Architectures


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_weight_of_every_architecture_is_trained(architecture: str) -> None:
    model = build(architecture, positions="learned", embed_norm=True, embeddings="separate")
    found = logits(model)
    side = SOURCE if architecture == "encoder-only" else TARGET
    assert found.shape == (sum(map(len, side)), VOCAB)
    found.log_softmax(-1)[:, 3].sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_only_the_decoder_is_causal() -> None:
    """The last token of a sentence is seen from its first in an encoder, and not in a decoder."""
    other = [*SOURCE[:-1], np.array([2, 7])]
    for architecture, seen in (("encoder-only", True), ("decoder-only", False)):
        model = build(architecture)
        side = "source" if architecture == "encoder-only" else "target"
        one, changed = (model(**{side: pack_one(sentences)})[-2] for sentences in (SOURCE, other))
        assert torch.equal(one, changed) != seen


def test_activation_is_relu_or_exact_gelu() -> None:
    x = torch.linspace(-4, 4, 9)
    relu, gelu = (build(activation=name).encoder.blocks[0].ffn.activation(x).tolist() for name in ("relu", "gelu"))
    assert relu == [max(v, 0) for v in x.tolist()]
    assert gelu == pytest.approx([v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in x.tolist()], abs=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"activation": "gleu"}, "did you mean 'gelu'"),
        ({"postions": "learned"}, "did you mean 'positions'"),
        ({"heads": 3}, "model.heads=3"),
        ({"encoder_layers": 0, "decoder_layers": 0}, "model.encoder_layers"),
    ],
)
def test_a_wrong_option_is_an_error_that_says_which(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(**wrong)


# Precision and compilation


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bf16_is_near_fp32_and_its_gradients_are_fp32(architecture: str) -> None:
    model = build(architecture)
    exact = logits(model)
    with autocast(torch.device("cpu"), "bf16"):
        rounded = logits(model)
    assert rounded.dtype == torch.bfloat16
    assert not torch.equal(rounded.float(), exact)
    torch.testing.assert_close(rounded.float(), exact, rtol=0.05, atol=0.05)
    rounded.float().square().sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


def test_fp32_is_left_alone() -> None:
    model = build()
    exact = logits(model)
    with autocast(torch.device("cpu"), "fp32"):
        assert torch.equal(logits(model), exact)


@pytest.mark.slow
def test_compiled_blocks_equal_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a C++ compiler by `aot_eager`: as the default, `inductor`, but that it generates no code."""
    backend = "inductor" if any(map(shutil.which, ("c++", "g++", "clang++"))) else "aot_eager"
    dynamo = pytest.importorskip("torch._dynamo")
    if not dynamo.is_dynamo_supported():
        pytest.skip("torch.compile does not run here")
    model = build(encoder_layers=1, decoder_layers=1)
    exact = logits(model)
    exact.square().sum().backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)

    dynamo.reset()
    dynamo.utils.counters.clear()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    compile_blocks(model)
    found = logits(model)
    assert dynamo.utils.counters["stats"]["unique_graphs"] >= 2
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-5)
    found.square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_model_that_its_user_compiles_whole_has_the_same_gradients() -> None:
    """On torch 2.11 those of the encoder were lost in what it made of the padding around attention."""
    if not pytest.importorskip("torch._dynamo").is_dynamo_supported():
        pytest.skip("torch.compile does not run here")
    model = build(encoder_layers=1, decoder_layers=1)
    found = []
    for run in (model, torch.compile(model, backend="eager")):
        model.zero_grad(set_to_none=True)
        run(**packs(model)).pow(3).sum().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("layers", [(1, 1), (0, 1), (1, 0)])
def test_a_stack_without_its_pack_is_an_error(layers: tuple[int, int]) -> None:
    """One that is alone takes the first pack."""
    model = Transformer(20, encoder_layers=layers[0], decoder_layers=layers[1], dim=8, ffn_dim=8, heads=1).eval()
    pack = pack_one([np.array([4, 5, 6])])
    right = {(1, 1): [(True, True)], (0, 1): [(True, False), (False, True)], (1, 0): [(True, False)]}[layers]
    for source in (True, False):
        for target in (True, False):
            given = {"source": pack if source else None, "target": pack if target else None}
            if (source, target) in right:
                assert torch.equal(model(**given), model(pack, pack) if layers == (1, 1) else model(pack))
            else:
                with pytest.raises(ValueError, match="each stack"):
                    model(**given)
