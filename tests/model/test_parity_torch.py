"""Our layers on a pack against torch.nn's on padded sentences: the same weights, the same numbers.

Shapes: T tokens in a pack, B sentences, L the longest of them, D model width.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leadline.config import ModelConfig
from leadline.kernels.pack import Pack, pack
from leadline.model.block import Block, Layers

DIM, FFN, HEADS = 16, 32, 4
SOURCE, TARGET = [5, 1, 9, 3], [4, 7, 1, 6]  # tokens of each sentence
NORM_FIRST = {"post_ln": False, "pre_ln": True}

every_variant = pytest.mark.parametrize(
    ("placement", "activation"), [(p, a) for p in NORM_FIRST for a in ("relu", "gelu")]
)


def config(placement: str, activation: str = "relu", layers: int = 1) -> ModelConfig:
    return ModelConfig(
        placement=placement,
        encoder_layers=layers,
        decoder_layers=layers,
        dim=DIM,
        ffn_dim=FFN,
        heads=HEADS,
        activation=activation,
        dropout=0.0,
    )


def pack_of(lengths: list[int]) -> Pack:
    """Three groups, and filler behind them."""
    sequences = [np.ones(n, dtype=np.int64) for n in lengths]
    return pack(sequences, sum(lengths) + 5, [1, 2, 1], max_length=9, max_sequences=len(lengths) + 1)


def padded(x_TD: Tensor, lengths: list[int]) -> Tensor:
    """[T, D] -> [B, L, D]"""
    return nn.utils.rnn.pad_sequence(list(x_TD[: sum(lengths)].split(lengths)), batch_first=True)


def padding(lengths: list[int]) -> Tensor:
    """[B, L], True where there is no token, as torch.nn wants it."""
    return torch.arange(max(lengths))[None, :] >= torch.tensor(lengths)[:, None]


def causal_mask(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def torch_arguments(placement: str, activation: str) -> dict:
    return {
        "d_model": DIM,
        "nhead": HEADS,
        "dim_feedforward": FFN,
        "dropout": 0.0,
        "activation": activation,
        "norm_first": NORM_FIRST[placement],
        "batch_first": True,
    }


@torch.no_grad()
def randomise(module: nn.Module) -> None:
    """Every parameter away from where it starts, so that no bias or norm can be forgotten unseen."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        noise = torch.randn_like(parameter)
        parameter.copy_(noise * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1 + 0.3 * noise)


def layer_pairs(ours: Block, theirs: nn.Module) -> list[tuple[tuple[Tensor, ...], Tensor]]:
    """(our parameters, theirs that holds them one below the other), for every parameter."""

    def pairs(weight: Tensor, bias: Tensor, *own: nn.Module) -> list[tuple[tuple[Tensor, ...], Tensor]]:
        return [(tuple(m.weight for m in own), weight), (tuple(m.bias for m in own), bias)]

    def same(own: nn.Module, other: nn.Module) -> list[tuple[tuple[Tensor, ...], Tensor]]:
        return pairs(other.weight, other.bias, own)

    attention = theirs.self_attn
    found = pairs(attention.in_proj_weight, attention.in_proj_bias, ours.attn.qkv)
    found += same(ours.attn.out, attention.out_proj) + same(ours.attn_residual.norm, theirs.norm1)
    if isinstance(theirs, nn.TransformerDecoderLayer):
        attention = theirs.multihead_attn
        found += pairs(attention.in_proj_weight, attention.in_proj_bias, ours.cross.q, ours.cross.kv)
        found += same(ours.cross.out, attention.out_proj) + same(ours.cross_residual.norm, theirs.norm2)
    found += same(ours.ffn.expand, theirs.linear1) + same(ours.ffn.contract, theirs.linear2)
    found += same(ours.ffn_residual.norm, theirs.norm3 if hasattr(theirs, "norm3") else theirs.norm2)
    assert sum(len(own) for own, _ in found) == len(list(ours.parameters()))
    assert len(found) == len(list(theirs.parameters()))
    return found


@torch.no_grad()
def copy_layer(ours: Block, theirs: nn.Module) -> None:
    for own, other in layer_pairs(ours, theirs):
        for parameter, part in zip(own, other.split([len(p) for p in own]), strict=True):
            parameter.copy_(part)


def compare_weight_gradients(ours: Block, theirs: nn.Module) -> None:
    for own, other in layer_pairs(ours, theirs):
        close(torch.cat([parameter.grad for parameter in own]), other.grad)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def compare(ours: Tensor, theirs_BLD: Tensor, lengths: list[int], inputs: list[Tensor]) -> None:
    """Outputs agree; then the gradients of both start from the same random direction and agree at `inputs`."""
    real = ours[: sum(lengths)]
    theirs = theirs_BLD[~padding(lengths)]
    close(real, theirs)
    direction = torch.randn(real.shape, generator=torch.Generator().manual_seed(1)) / len(real)
    found = torch.autograd.grad((real * direction).sum(), inputs, retain_graph=True)
    expected = torch.autograd.grad((theirs * direction).sum(), inputs, retain_graph=True)
    for one, other in zip(found, expected, strict=True):
        assert one.abs().max() > 1e-3
        close(one, other)
    (real * direction).sum().backward(retain_graph=True)
    (theirs * direction).sum().backward()


@every_variant
def test_encoder_block_equals_torch_in_values_and_gradients(placement: str, activation: str) -> None:
    theirs = nn.TransformerEncoderLayer(**torch_arguments(placement, activation))
    randomise(theirs)
    ours = Block(config(placement, activation), "encoder", 0)
    copy_layer(ours, theirs)
    x = torch.randn(sum(SOURCE) + 5, DIM, requires_grad=True)

    out = ours(x, pack_of(SOURCE))
    compare(out, theirs(padded(x, SOURCE), src_key_padding_mask=padding(SOURCE)), SOURCE, [x])
    compare_weight_gradients(ours, theirs)


@every_variant
def test_decoder_block_equals_torch_in_values_and_gradients(placement: str, activation: str) -> None:
    theirs = nn.TransformerDecoderLayer(**torch_arguments(placement, activation))
    randomise(theirs)
    ours = Block(config(placement, activation), "decoder", 0)
    copy_layer(ours, theirs)
    x = torch.randn(sum(TARGET) + 5, DIM, requires_grad=True)
    memory = torch.randn(sum(SOURCE) + 5, DIM, requires_grad=True)

    out = ours(x, pack_of(TARGET), memory, pack_of(SOURCE))
    expected = theirs(
        padded(x, TARGET),
        padded(memory, SOURCE),
        tgt_mask=causal_mask(max(TARGET)),
        tgt_key_padding_mask=padding(TARGET),
        memory_key_padding_mask=padding(SOURCE),
    )
    compare(out, expected, TARGET, [x, memory])
    compare_weight_gradients(ours, theirs)


@pytest.mark.parametrize("placement", NORM_FIRST)
def test_each_sentence_of_a_pack_equals_torch_on_the_sentence_alone(placement: str) -> None:
    theirs = nn.TransformerDecoderLayer(**torch_arguments(placement, "relu"))
    randomise(theirs)
    ours = Block(config(placement), "decoder", 0)
    copy_layer(ours, theirs)
    x, memory = torch.randn(sum(TARGET) + 5, DIM), torch.randn(sum(SOURCE) + 5, DIM)

    out = ours(x, pack_of(TARGET), memory, pack_of(SOURCE))
    parts = (tensor[: sum(n)].split(n) for tensor, n in ((out, TARGET), (x, TARGET), (memory, SOURCE)))
    for own, x_one, memory_one in zip(*parts, strict=True):
        alone = theirs(x_one[None], memory_one[None], tgt_mask=causal_mask(len(x_one)))
        close(own, alone[0])


@pytest.mark.parametrize("placement", NORM_FIRST)
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_stack_of_three_with_its_final_norm_equals_torch(placement: str, stack: str) -> None:
    final = nn.LayerNorm(DIM) if placement == "pre_ln" else None
    if stack == "encoder":
        layer = nn.TransformerEncoderLayer(**torch_arguments(placement, "relu"))
        theirs: nn.Module = nn.TransformerEncoder(layer, 3, final, enable_nested_tensor=False)
    else:
        theirs = nn.TransformerDecoder(nn.TransformerDecoderLayer(**torch_arguments(placement, "relu")), 3, final)
    randomise(theirs)
    ours = Layers(config(placement, layers=3), stack)
    for block, layer in zip(ours.blocks, theirs.layers, strict=True):
        copy_layer(block, layer)
    if final is not None:
        ours.final.load_state_dict(final.state_dict())
    x = torch.randn(sum(TARGET) + 5, DIM, requires_grad=True)
    memory = torch.randn(sum(SOURCE) + 5, DIM, requires_grad=True)

    if stack == "encoder":
        expected = theirs(padded(x, TARGET), src_key_padding_mask=padding(TARGET))
        compare(ours(x, pack_of(TARGET)), expected, TARGET, [x])
    else:
        expected = theirs(
            padded(x, TARGET),
            padded(memory, SOURCE),
            tgt_mask=causal_mask(max(TARGET)),
            tgt_key_padding_mask=padding(TARGET),
            memory_key_padding_mask=padding(SOURCE),
        )
        compare(ours(x, pack_of(TARGET), memory, pack_of(SOURCE)), expected, TARGET, [x, memory])
    for block, layer in zip(ours.blocks, theirs.layers, strict=True):
        compare_weight_gradients(block, layer)
    if final is not None:
        close(ours.final.weight.grad, final.weight.grad)
        close(ours.final.bias.grad, final.bias.grad)
