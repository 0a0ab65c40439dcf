"""Whole models against Hugging Face's, with the same weights: BERT for the encoder, Marian for both stacks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leadline.kernels.pack import Pack, pack
from leadline.model import Transformer

transformers = pytest.importorskip("transformers")

VOCAB, DIM, FFN, HEADS, LAYERS, LONGEST = 29, 16, 32, 4, 3, 12
SOURCE, TARGET = [5, 1, 12, 3], [4, 7, 1, 6]  # tokens of each sentence
PAD = 0


def sentences(lengths: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(len(lengths) + lengths[0])
    return [rng.integers(1, VOCAB, n) for n in lengths]


def packed(tokens: list[np.ndarray]) -> Pack:
    """Two groups, and filler behind them."""
    return pack(tokens, sum(map(len, tokens)) + 4, [2, 2], LONGEST, len(tokens) + 1, PAD)


def padded(tokens: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """[B, L] tokens and the mask that is 1 where there is one."""
    rows = [torch.from_numpy(t) for t in tokens]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    return ids, (ids != PAD).long()


@torch.no_grad()
def randomise(module: nn.Module) -> None:
    """Every trained parameter away from where it starts, so that no bias or norm can be forgotten unseen."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        if parameter.requires_grad:
            noise = torch.randn_like(parameter)
            parameter.copy_(noise * DIM**-0.5 if parameter.dim() > 1 else 0.5 + 0.3 * noise)


@torch.no_grad()
def copy(own: nn.Module, *others: nn.Module) -> None:
    """The rows of `own` are those of `others`, one below the other."""
    own.weight.copy_(torch.cat([other.weight for other in others]))
    own.bias.copy_(torch.cat([other.bias for other in others]))


def test_encoder_equals_bert() -> None:
    theirs = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=VOCAB,
            hidden_size=DIM,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=FFN,
            max_position_embeddings=LONGEST,
            layer_norm_eps=1e-5,
        ),
        add_pooling_layer=False,
    ).eval()
    randomise(theirs)
    ours = Transformer(
        VOCAB,
        placement="post_ln",
        encoder_layers=LAYERS,
        decoder_layers=0,
        dim=DIM,
        ffn_dim=FFN,
        heads=HEADS,
        activation="gelu",
        positions="learned",
        max_length=LONGEST,
        embed_norm=True,
    ).eval()
    with torch.no_grad():
        embeddings = theirs.embeddings
        ours.source_embed.tokens.weight.copy_(embeddings.word_embeddings.weight / math.sqrt(DIM))
        first_type = embeddings.token_type_embeddings.weight[0]
        ours.source_embed.positions.weight.copy_(embeddings.position_embeddings.weight + first_type)
    copy(ours.source_embed.norm, embeddings.LayerNorm)
    for block, layer in zip(ours.encoder.blocks, theirs.encoder.layer, strict=True):
        attention = layer.attention
        copy(block.attn.qkv, attention.self.query, attention.self.key, attention.self.value)
        copy(block.attn.out, attention.output.dense)
        copy(block.attn_residual.norm, attention.output.LayerNorm)
        copy(block.ffn.expand, layer.intermediate.dense)
        copy(block.ffn.contract, layer.output.dense)
        copy(block.ffn_residual.norm, layer.output.LayerNorm)

    tokens = sentences(SOURCE)
    ids, mask = padded(tokens)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask).last_hidden_state[mask.bool()]
        found = ours(packed(tokens))[: sum(SOURCE)]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def copy_marian_attention(own: nn.Module, other: nn.Module) -> None:
    if hasattr(own, "qkv"):
        copy(own.qkv, other.q_proj, other.k_proj, other.v_proj)
    else:
        copy(own.q, other.q_proj)
        copy(own.kv, other.k_proj, other.v_proj)
    copy(own.out, other.out_proj)


def test_encoder_decoder_equals_marian() -> None:
    theirs = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=VOCAB,
            d_model=DIM,
            encoder_layers=LAYERS,
            decoder_layers=LAYERS - 1,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=FFN,
            decoder_ffn_dim=FFN,
            max_position_embeddings=LONGEST,
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=PAD,
            decoder_start_token_id=PAD,
        )
    ).eval()
    randomise(theirs)
    ours = Transformer(
        VOCAB,
        placement="post_ln",
        encoder_layers=LAYERS,
        decoder_layers=LAYERS - 1,
        dim=DIM,
        ffn_dim=FFN,
        heads=HEADS,
        activation="relu",
        positions="sinusoidal",
        max_length=LONGEST,
        embeddings="tied",
    ).eval()
    with torch.no_grad():
        ours.output.weight.copy_(theirs.model.shared.weight)
    for own_stack, stack in ((ours.encoder, theirs.model.encoder), (ours.decoder, theirs.model.decoder)):
        for block, layer in zip(own_stack.blocks, stack.layers, strict=True):
            copy_marian_attention(block.attn, layer.self_attn)
            copy(block.attn_residual.norm, layer.self_attn_layer_norm)
            if own_stack is ours.decoder:
                copy_marian_attention(block.cross, layer.encoder_attn)
                copy(block.cross_residual.norm, layer.encoder_attn_layer_norm)
            copy(block.ffn.expand, layer.fc1)
            copy(block.ffn.contract, layer.fc2)
            copy(block.ffn_residual.norm, layer.final_layer_norm)

    source, target = sentences(SOURCE), sentences(TARGET)
    ids, mask = padded(source)
    target_ids, target_mask = padded(target)
    with torch.no_grad():
        expected = theirs(
            input_ids=ids, attention_mask=mask, decoder_input_ids=target_ids, decoder_attention_mask=target_mask
        ).logits[target_mask.bool()]
        found = ours.logits(ours(packed(source), packed(target)))[: sum(TARGET)]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
