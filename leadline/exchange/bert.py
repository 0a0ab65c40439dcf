"""Our encoder and two of Hugging Face's, module by module: BERT is Post-LN, RoBERTa-PreLayerNorm is Pre-LN.

What differs is folded into weights, exactly:

    a run of ours reads √D·E[token], theirs E[token]: E carries √D there, and the head's last norm, before the tied E,
    1/√D. What is imported reads E[token] (model.embed_scale=false), so that it is also trained as theirs is
    LN(s·x + f(x)) (DeepNorm's α, Admin's ω) is Post-LN on s·x: the norm below carries s, f's first matrix 1/s
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
from leadline.errors import UserError
from leadline.exchange.folder import fill
from leadline.model import Transformer
from leadline.model.layers import SelfAttention
from leadline.placement import DeepNorm, Placement, PostLN, PreLN, find
from leadline.placement.admin import Admin, AdminConstant


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


def kind_of(config: ModelConfig) -> Kind:
    """Which of theirs says exactly what this model does; a UserError where none does."""
    placement = find(config.placement)
    post = any(computes_as(placement, known) for known in (PostLN, DeepNorm, Admin, AdminConstant))
    kind = BERT if post else PRE if computes_as(placement, PreLN) else None
    if kind is None:
        raise UserError(
            f"{config.placement} has no counterpart in transformers: what can be exported is post_ln and those that "
            "differ from it by a factor (deepnorm, admin, …), as BERT, and pre_ln, as RoBERTa-PreLayerNorm"
        )
    wrong = {
        "an encoder alone": config.decoder_layers > 0,
        "model.embed_norm=true": not config.embed_norm,
        "model.norm=layer_norm": config.norm != "layer_norm",
        "model.bias=true": not config.bias,
        "model.activation=gelu or relu": config.activation not in ("gelu", "relu"),
        "model.qk_norm=none": config.qk_norm != "none",
        "positions in the embeddings": config.positions == "rotary",
        "model.kv_heads=0 and model.head_dim=0": bool(config.kv_heads or config.head_dim),
        "model.activation=gelu": kind is PRE and config.head == "bert" and config.activation != "gelu",
        "model.embeddings=tied or model.head=bert": has_bare_output(config) and not config.classes,
    }
    if missing := [what for what, lacks in wrong.items() if lacks]:
        raise UserError(f"{kind.prefix} is not this model: it needs {' and '.join(missing)}")
    return kind


def has_bare_output(config: ModelConfig) -> bool:
    """Whether there is an output matrix that none of theirs has: without a transform before it, and not tied."""
    return config.head == "linear" and config.embeddings == "separate"


def computes_as(placement: type[Placement], known: type[Placement]) -> bool:
    """By its equation: a subclass may only differ in how it starts."""
    parts, of_known = (
        (one.forward, one.inside, one.norms, one.opens.__func__, one.final.__func__)  # type: ignore[attr-defined]
        for one in (placement, known)
    )
    return parts == of_known


def architecture(config: ModelConfig, kind: Kind) -> str:
    if config.head == "bert":
        return kind.prefix + ("ForPreTraining" if config.classes and kind is BERT else "ForMaskedLM")
    return kind.prefix + ("ForSequenceClassification" if config.classes else "Model")


def modules(model: Transformer, kind: Kind) -> Iterator[tuple[nn.Module, tuple[str, ...]]]:
    """Each of our modules but the positions, and those of theirs whose rows it holds, one after the other."""
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
    if model.head is not None:
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
        _as_post_ln(model)
    _scale_tokens(model, model.source_embed.scale)
    theirs: dict[str, Tensor] = {}
    for module, names in modules(model, kind):
        for key, parameter in module.named_parameters():
            parts = parameter.chunk(len(names))
            theirs |= {f"{name}.{key}": part.clone() for name, part in zip(names, parts, strict=True)}
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
    used: set[str] = set()

    def take(name: str) -> Tensor:
        if name not in theirs:
            raise UserError(f"the weights have no {name}, which {kind.prefix} needs")
        used.add(name)
        return theirs[name]

    for module, names in modules(model, kind):
        for key, parameter in module.named_parameters():
            fill(parameter, torch.cat([take(f"{name}.{key}") for name in names]), f"{names[0]}.{key}")
    name = f"{kind.body}.embeddings.position_embeddings.weight"
    fill(typing.cast(Any, model.source_embed.positions).weight, take(name)[_first(kind, pad) :], name)
    if model.head is not None:
        name = f"{kind.head}.bias" if is_tied(model) else f"{kind.head}.decoder.bias"  # which their decoder reads
        fill(model.head.bias, take(name), name)
        used.add(f"{kind.head}.bias")
    _scale_tokens(model, 1 / model.source_embed.scale)
    return used


def _first(kind: Kind, pad: int) -> int:
    """The row of the first position."""
    return pad + 1 if kind is PRE else 0


def _scale_tokens(model: Transformer, factor: float) -> None:
    model.source_embed.tokens.weight.mul_(factor)
    if model.head is not None and is_tied(model):
        model.head.norm.weight.div_(factor)
        model.head.norm.bias.div_(factor)


def _as_post_ln(model: Transformer) -> None:
    below, blocks = typing.cast(Any, (model.source_embed.norm, model.encoder.blocks))
    for block in blocks:
        for connection, sublayer in block.connections():
            scale = skip(connection)
            below.weight.mul_(scale)
            below.bias.mul_(scale)
            first = sublayer.qkv if isinstance(sublayer, SelfAttention) else sublayer.expand
            first.weight.div_(scale)
            below = connection.norm


def skip(connection: Placement) -> Tensor | float:
    if isinstance(connection, DeepNorm):
        return connection.alpha
    return connection.omega if isinstance(connection, Admin | AdminConstant) else 1.0
