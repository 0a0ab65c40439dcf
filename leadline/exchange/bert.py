"""Our encoder and two of Hugging Face's, module by module: BERT is Post-LN, RoBERTa-PreLayerNorm is Pre-LN.

What differs is folded into weights, exactly:

    a run of ours reads √D·E[token], theirs E[token]: E carries √D there, and the head's last norm, before the tied E,
    1/√D. What is imported reads E[token] (model.embed_scale=false), so that it is also trained as theirs is
    LN(s·x + f(x)) (DeepNorm's α, Admin's ω) is Post-LN on s·x (leadline.exchange.folding)
    RoBERTa counts positions from pad + 1: its table has so many rows more
"""

from __future__ import annotations

import copy
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leadline.config import ModelConfig
from leadline.exchange import folder as folders
from leadline.exchange.folding import as_post_ln
from leadline.model import Transformer
from leadline.model.layers import VocabularyHead


class Kind(NamedTuple):
    """One of their architectures. Names are those of its modules."""

    model_type: str  # in config.json
    prefix: str  # of its classes
    body: str
    attention_norm: str  # in a layer
    ffn_norm: str
    head: str
    head_dense: str
    head_norm: str
    pooler: str


BERT = Kind(
    model_type="bert",
    prefix="Bert",
    body="bert",
    attention_norm="attention.output.LayerNorm",
    ffn_norm="output.LayerNorm",
    head="cls.predictions",
    head_dense="transform.dense",
    head_norm="transform.LayerNorm",
    pooler="bert.pooler.dense",
)
PRE = Kind(
    model_type="roberta-prelayernorm",
    prefix="RobertaPreLayerNorm",
    body="roberta_prelayernorm",
    attention_norm="attention.LayerNorm",
    ffn_norm="intermediate.LayerNorm",
    head="lm_head",
    head_dense="dense",
    head_norm="layer_norm",
    pooler="classifier.dense",
)
KINDS = {kind.model_type: kind for kind in (BERT, PRE)}

# Their key, ours, and what theirs is where config.json does not say.
KEYS: dict[str, tuple[str, Any]] = {
    "hidden_size": ("dim", 768),
    "num_hidden_layers": ("encoder_layers", 12),
    "num_attention_heads": ("heads", 12),
    "intermediate_size": ("ffn_dim", 3072),
    "hidden_act": ("activation", "gelu"),
    "hidden_dropout_prob": ("dropout", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    "layer_norm_eps": ("norm_eps", 1e-12),
}
FIXED = {
    "decoder_layers": 0, "positions": "learned", "embed_norm": True, "embed_scale": False, "norm": "layer_norm"
}  # fmt: skip


def architecture(config: ModelConfig, kind: Kind) -> str:
    if config.head == "bert":
        return kind.prefix + ("ForPreTraining" if config.classes and kind is BERT else "ForMaskedLM")
    return kind.prefix + ("ForSequenceClassification" if config.classes else "Model")


def modules(model: Transformer, kind: Kind) -> Iterator[tuple[nn.Module, tuple[str, ...]]]:
    """All but the positions."""
    body, blocks = kind.body, typing.cast(Any, model.encoder.blocks)
    yield model.source_embed.tokens, (f"{body}.embeddings.word_embeddings",)
    if model.source_embed.segments is not None:
        yield model.source_embed.segments, (f"{body}.embeddings.token_type_embeddings",)
    yield model.source_embed.norm, (f"{body}.embeddings.LayerNorm",)
    for number, block in enumerate(blocks):
        layer = f"{body}.encoder.layer.{number}"
        yield block.attn.qkv, tuple(f"{layer}.attention.self.{part}" for part in ("query", "key", "value"))
        yield block.attn.out, (f"{layer}.attention.output.dense",)
        yield block.attn_residual.norm, (f"{layer}.{kind.attention_norm}",)
        yield block.ffn.expand, (f"{layer}.intermediate.dense",)
        yield block.ffn.contract, (f"{layer}.output.dense",)
        yield block.ffn_residual.norm, (f"{layer}.{kind.ffn_norm}",)
    if kind is PRE:
        yield model.encoder.final, (f"{body}.LayerNorm",)
    if isinstance(model.head, VocabularyHead):
        yield model.head.dense, (f"{kind.head}.{kind.head_dense}",)
        yield model.head.norm, (f"{kind.head}.{kind.head_norm}",)
        if not is_tied(model):
            yield model.output, (f"{kind.head}.decoder",)
    if model.classifier is not None and not model.config.classes:
        if kind is BERT and model.head is None:
            yield model.classifier.dense, (kind.pooler,)
    elif model.classifier is not None and (model.head is None or kind is BERT):
        yield model.classifier.dense, (kind.pooler,)
        yield model.classifier.out, (classifier_name(kind, model.head is not None),)


def classifier_name(kind: Kind, head: bool) -> str:
    """The last matrix of their classifier, which is that of next sentences where there is a `head` for words."""
    if head:
        return "cls.seq_relationship"
    return "classifier" if kind is BERT else "classifier.out_proj"


def is_tied(model: Transformer) -> bool:
    return model.output is model.source_embed.tokens


@torch.no_grad()
def to_theirs(model: Transformer, kind: Kind, pad: int) -> dict[str, Tensor]:
    """Their weights by name. The model stays as it is."""
    model = copy.deepcopy(model).cpu().float()
    if kind is BERT:
        as_post_ln(model, lambda embed, scale: None)  # the norm at the foot carries the first factor
    _scale_tokens(model, model.source_embed.scale)
    theirs = folders.collect(modules(model, kind))
    embeddings = f"{kind.body}.embeddings"
    table = typing.cast(Any, model.source_embed.positions)
    places = table(torch.arange(model.config.max_length))  # also of sinusoids
    theirs[f"{embeddings}.position_embeddings.weight"] = torch.cat(
        [torch.zeros(_first(kind, pad), places.shape[1]), places]
    )
    if not model.config.segments:
        theirs[f"{embeddings}.token_type_embeddings.weight"] = torch.zeros(1, model.config.dim)
    if model.head is not None:
        theirs[f"{kind.head}.bias"] = model.head.bias.clone()
        if not is_tied(model):
            theirs[f"{kind.head}.decoder.bias"] = model.head.bias.clone()
    return theirs


@torch.no_grad()
def from_theirs(model: Transformer, kind: Kind, pad: int, theirs: dict[str, Tensor]) -> set[str]:
    """Fill a new model with their weights; the names that were used."""
    used = folders.spread(modules(model, kind), theirs, kind.prefix)
    name = f"{kind.body}.embeddings.position_embeddings.weight"
    places = folders.taken(theirs, name, kind.prefix, used)[_first(kind, pad) :]
    folders.fill(typing.cast(Any, model.source_embed.positions).weight, places, name)
    if model.head is not None:
        name = f"{kind.head}.bias" if is_tied(model) else f"{kind.head}.decoder.bias"  # which their decoder reads
        folders.fill(model.head.bias, folders.taken(theirs, name, kind.prefix, used), name)
        used.add(f"{kind.head}.bias")
    _scale_tokens(model, 1 / model.source_embed.scale)
    return used


def _first(kind: Kind, pad: int) -> int:
    """The row of the first position."""
    return pad + 1 if kind is PRE else 0


def _scale_tokens(model: Transformer, factor: float) -> None:
    model.source_embed.tokens.weight.mul_(factor)
    if isinstance(model.head, VocabularyHead) and is_tied(model):
        model.head.norm.weight.div_(factor)
        model.head.norm.bias.div_(factor)
