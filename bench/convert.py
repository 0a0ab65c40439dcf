"""Our weights in a Hugging Face model that computes the same: Marian for Post-LN and DeepNorm, M2M100 for Pre-LN.

A decoder alone becomes what leadline.exchange makes of it: GPT-2, Llama, ….

DeepNorm's LN(α·x + f(x)) is LN(x + f(x)/α): Post-LN with the last matrix of each sublayer divided by α.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bench.peers import bart_like
from bench.workload import PAD, Size
from leadline.errors import UserError
from leadline.exchange import decoders
from leadline.model import Transformer


@torch.no_grad()
def to_huggingface(model: Transformer) -> Any:
    from transformers import M2M100Config, M2M100ForConditionalGeneration, MarianConfig, MarianMTModel

    config = model.config
    if (
        config.embeddings != "tied"
        or config.positions != "sinusoidal"
        or config.embed_norm
        or config.activation_dropout
    ):
        raise UserError(
            "only a model with tied embeddings and sinusoids, without embed_norm, has a twin in transformers"
        )
    size = Size(
        "", config.encoder_layers, config.dim, config.ffn_dim, config.heads, model.vocab_size, 0, 0, config.placement
    )
    options = bart_like(size) | {
        "decoder_layers": config.decoder_layers,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_function": config.activation,
        "max_position_embeddings": config.max_length,
    }
    if config.placement == "pre_ln":
        theirs: Any = M2M100ForConditionalGeneration(M2M100Config(**options, encoder_layerdrop=0, decoder_layerdrop=0))
    elif config.placement in ("post_ln", "deepnorm"):
        theirs = MarianMTModel(MarianConfig(**options))
    else:
        raise UserError(f"placement {config.placement!r} has no twin in transformers")
    theirs.model.shared.weight.copy_(model.output.weight)
    table = model.target_embed.positions.table  # type: ignore[union-attr]
    for own, stack in ((model.encoder, theirs.model.encoder), (model.decoder, theirs.model.decoder)):
        if config.placement == "pre_ln":
            stack.embed_positions.weights[PAD + 1 : PAD + 1 + len(table)] = table  # type: ignore[arg-type]
            _copy(stack.layer_norm, own.final)
        for block, layer in zip(own.blocks, stack.layers, strict=True):
            _block(layer, block)
    return theirs.eval()


def decoder(model: Transformer) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = decoders.kind_of(model.config)
    described = decoders.describe(model, kind) | {"bos_token_id": 0, "eos_token_id": 0}
    theirs: Any = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**described), attn_implementation="sdpa", dtype=torch.float32
    )
    missing, unknown = theirs.load_state_dict(decoders.to_theirs(model, kind), strict=False)
    if unknown or set(missing) - {"lm_head.weight"}:
        raise RuntimeError(f"a copy of other weights: {missing} are missing, {unknown} unknown")
    return theirs


def _block(layer: Any, block: Any) -> None:
    _attention(layer.self_attn, block.attn, block.attn_residual)
    _copy(layer.self_attn_layer_norm, block.attn_residual.norm)
    if hasattr(block, "cross"):
        _attention(layer.encoder_attn, block.cross, block.cross_residual)
        _copy(layer.encoder_attn_layer_norm, block.cross_residual.norm)
    _copy(layer.fc1, block.ffn.expand)
    _copy(layer.fc2, block.ffn.contract, scale=_scale(block.ffn_residual))
    _copy(layer.final_layer_norm, block.ffn_residual.norm)


def _scale(connection: Any) -> float:
    return 1 / getattr(connection, "alpha", 1.0)


def _attention(theirs: Any, own: Any, connection: Any) -> None:
    if hasattr(own, "qkv"):
        for part, linear in enumerate((theirs.q_proj, theirs.k_proj, theirs.v_proj)):
            _copy(linear, own.qkv, part, 3)
    else:
        _copy(theirs.q_proj, own.q)
        _copy(theirs.k_proj, own.kv, 0, 2)
        _copy(theirs.v_proj, own.kv, 1, 2)
    _copy(theirs.out_proj, own.out, scale=_scale(connection))


def _copy(to: Any, of: nn.Module, part: int = 0, parts: int = 1, scale: float = 1.0) -> None:
    """One of the equal `parts` of the rows of `of`."""
    to.weight.copy_(of.weight.chunk(parts)[part] * scale)  # type: ignore[operator]
    to.bias.copy_(of.bias.chunk(parts)[part] * scale)  # type: ignore[operator]
