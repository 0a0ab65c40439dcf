"""Segments and BERT's two heads: Hugging Face's equations, Xavier at the start, the same on fused kernels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from leadline.kernels.pack import pack_flat
from leadline.model import Transformer
from leadline.model.init import weights
from leadline.model.layers import Linear
from leadline.placement import PLACEMENTS

VOCAB, DIM = 29, 16
MODEL = {
    "encoder_layers": 2, "decoder_layers": 0, "dim": DIM, "ffn_dim": 32, "heads": 4, "activation": "gelu",
    "positions": "learned", "max_length": 12, "embed_norm": True, "segments": 2, "head": "bert", "classes": 2,
}  # fmt: skip


def copy(own: nn.Module, *others: nn.Module) -> None:
    with torch.no_grad():
        own.weight.copy_(torch.cat([other.weight for other in others]))
        own.bias.copy_(torch.cat([other.bias for other in others]))


def test_words_and_next_sentences_are_scored_as_by_bert_for_pre_training() -> None:
    transformers = pytest.importorskip("transformers")
    described = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=DIM, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
        max_position_embeddings=12, layer_norm_eps=1e-5,
    )  # fmt: skip
    theirs = transformers.BertForPreTraining(described).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * (DIM**-0.5 if parameter.dim() > 1 else 0.5) + 0.1)
    ours = Transformer(VOCAB, placement="post_ln", **MODEL).eval()
    feet, heads = theirs.bert.embeddings, theirs.cls.predictions
    with torch.no_grad():
        # E is √D times smaller at the foot, so the head's norm gives √D times more to the tied output matrix
        ours.source_embed.tokens.weight.copy_(feet.word_embeddings.weight / math.sqrt(DIM))
        ours.source_embed.positions.weight.copy_(feet.position_embeddings.weight)
        ours.source_embed.segments.weight.copy_(feet.token_type_embeddings.weight)
        copy(ours.source_embed.norm, feet.LayerNorm)
        for block, layer in zip(ours.encoder.blocks, theirs.bert.encoder.layer, strict=True):
            attention = layer.attention
            copy(block.attn.qkv, attention.self.query, attention.self.key, attention.self.value)
            copy(block.attn.out, attention.output.dense)
            copy(block.attn_residual.norm, attention.output.LayerNorm)
            copy(block.ffn.expand, layer.intermediate.dense)
            copy(block.ffn.contract, layer.output.dense)
            copy(block.ffn_residual.norm, layer.output.LayerNorm)
        copy(ours.head.dense, heads.transform.dense)
        copy(ours.head.norm, heads.transform.LayerNorm)
        ours.head.norm.weight.mul_(math.sqrt(DIM))
        ours.head.norm.bias.mul_(math.sqrt(DIM))
        ours.head.bias.copy_(heads.bias)
        copy(ours.classifier.dense, theirs.bert.pooler.dense)
        copy(ours.classifier.out, theirs.cls.seq_relationship)
    rng = np.random.default_rng(0)
    lengths = np.array([5, 9])
    tokens, segments = rng.integers(0, VOCAB, 14), rng.integers(0, 2, 14)
    source = pack_flat(tokens, lengths, 16, [2], 12, 4, 0, segments)
    with torch.no_grad():
        hidden = ours(source)
        words, follows = ours.logits(hidden), ours.classify(hidden, torch.tensor([0, 5]))
        for number, part in enumerate((slice(0, 5), slice(5, 14))):
            ids, kinds = torch.from_numpy(tokens[part])[None], torch.from_numpy(segments[part])[None]
            expected = theirs(input_ids=ids, token_type_ids=kinds)
            assert torch.allclose(words[part], expected.prediction_logits[0], atol=1e-5)
            assert torch.allclose(follows[number], expected.seq_relationship_logits[0], atol=1e-5)
    assert words.std() > 0.5


@pytest.mark.parametrize("placement", [name for name, p in PLACEMENTS.items() if "encoder-only" in p.architectures])
def test_heads_start_at_xavier_whatever_the_placement_and_nothing_else_changes(placement: str) -> None:
    options = MODEL | {"dim": 64, "placement": placement}
    model = Transformer(VOCAB, **options)
    for head, outputs in ((model.head.dense, 64), (model.classifier.dense, 64), (model.classifier.out, 2)):
        expected = math.sqrt(2 / (64 + outputs))
        assert float(head.weight.detach().std()) == pytest.approx(expected, rel=5 / (2 * 64 * outputs) ** 0.5)
        assert not head.bias.any()
    assert not model.head.bias.any()
    plain = Transformer(VOCAB, **options | {"head": "linear", "classes": 0})
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name
    drawn = {
        id(weight.tensor) if weight.tensor.ndim < 2 else weight.tensor.data_ptr()
        for weight in weights(model, model.config)
    }
    assert {m.weight.data_ptr() for m in model.modules() if isinstance(m, Linear)} <= drawn


def test_a_token_without_a_segment_is_of_the_first() -> None:
    model = Transformer(VOCAB, **MODEL).eval()
    tokens, lengths = np.arange(1, 8), np.array([7])
    packs = [pack_flat(tokens, lengths, 7, [1], 12, 1, 0, s) for s in (None, np.zeros(7, int), np.ones(7, int))]
    none, first, second = (model(p) for p in packs)
    assert torch.equal(none, first)
    assert not torch.allclose(none, second, atol=1e-2)


def test_classifying_without_a_classifier_says_so() -> None:
    model = Transformer(VOCAB, **MODEL | {"classes": 0})
    with pytest.raises(ValueError, match="no classifier"):
        model.classify(torch.zeros(3, DIM), torch.tensor([0]))
