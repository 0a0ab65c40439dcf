"""Our encoder-decoder as a folder of CTranslate2, which translates fast on CPUs, in fp32 or with int8 matrices.

Its Transformer is Post-LN or Pre-LN with a norm at the end of each stack, with any table of positions. A factor of the
residual connection is folded into weights as for Marian. The vocabulary is a list of the pieces by number: what is
translated are pieces, which tokenizer.json makes of text.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leadline.data.tokenizer import EOS, SPECIAL
from leadline.errors import UserError
from leadline.exchange import folder as folders
from leadline.exchange import formats, texts, translators
from leadline.exchange.folding import stacks
from leadline.model import Transformer
from leadline.training.trained import Trained

QUANTIZATIONS = ("float32", "int8")


def save(trained: Trained, out: Path, quantization: str = "float32") -> list[str]:
    """Write a folder that ctranslate2.Translator opens; what a user should know about it."""
    formats.choose(trained.model.config, "ctranslate2")
    if importlib.util.find_spec("ctranslate2") is None:
        raise UserError("--to ctranslate2 needs the package ctranslate2: pip install 'leadline[ctranslate2]'")
    folders.require_empty(out)
    spec = specification(translators.as_plain(trained.model))
    tokenizer = trained.tokenizer
    pieces = [tokenizer.piece(number) for number in range(tokenizer.vocab_size)]
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.layer_norm_epsilon = trained.model.config.norm_eps
    starts = translators.starts(tokenizer)
    spec.config.decoder_start_token = pieces[starts[0]] if len(starts) == 1 else None  # else a prefix says it
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(out))
    return texts.save(tokenizer, out, f"$A {SPECIAL[EOS]}", f"$A $B {SPECIAL[EOS]}", [SPECIAL[EOS]], None)


def specification(model: Transformer) -> Any:
    """Of a model that is plain (leadline.exchange.translators), without its vocabulary."""
    from ctranslate2.specs import TransformerSpec, common_spec

    names = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
    config = model.config
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=not isinstance(model.encoder.final, nn.Identity),
        activation=getattr(common_spec.Activation, names[config.activation]),
    )
    for theirs, (embed, stack) in zip((spec.encoder, spec.decoder), stacks(model), strict=True):
        words = theirs.embeddings[0] if isinstance(theirs.embeddings, list) else theirs.embeddings
        words.weight = _numbers(embed.tokens.weight)
        theirs.scale_embeddings = config.embed_scale
        for layer, block in zip(theirs.layer, stack.blocks, strict=True):
            _layer(layer, block)
        if not isinstance(stack.final, nn.Identity):
            _norm(theirs.layer_norm, stack.final)
    tables = [table for _, table in translators.places(model)]
    spec.encoder.position_encodings.encodings, spec.decoder.position_encodings.encodings = map(_numbers, tables)
    spec.decoder.projection.weight = _numbers(model.output.weight)
    if model.head is not None:
        spec.decoder.projection.bias = _numbers(model.head.bias)
    return spec


def _layer(theirs: Any, block: Any) -> None:
    attention: list[tuple[Any, Any, tuple[Any, ...]]] = [
        (theirs.self_attention, block.attn_residual, (block.attn.qkv, block.attn.out))
    ]
    if hasattr(block, "cross"):
        attention.append((theirs.attention, block.cross_residual, (block.cross.q, block.cross.kv, block.cross.out)))
    for spec, connection, matrices in attention:
        _norm(spec.layer_norm, connection.norm)
        for place, matrix in zip(spec.linear, matrices, strict=True):
            _linear(place, matrix)
    _norm(theirs.ffn.layer_norm, block.ffn_residual.norm)
    _linear(theirs.ffn.linear_0, block.ffn.expand)
    _linear(theirs.ffn.linear_1, block.ffn.contract)


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = _numbers(norm.weight), _numbers(norm.bias)


def _linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight, spec.bias = _numbers(linear.weight), _numbers(linear.bias)


def _numbers(tensor: Tensor) -> Any:
    return torch.Tensor.numpy(tensor.detach().contiguous())
