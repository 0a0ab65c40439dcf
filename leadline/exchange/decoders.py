"""Our decoder alone and five of Hugging Face's, module by module: GPT-2, OPT, Llama, Qwen3 and OLMo 2.

What differs is folded into weights, exactly:

    a run of ours reads √D·E[token], theirs E[token]: E carries √D there, and the last norm, before a tied E, 1/√D
    LN(s·x + f(x)) (DeepNorm's α, Admin's ω) is Post-LN on s·x (leadline.exchange.folding)

Neither way needs transformers to be installed, and nothing is pickled.
"""

from __future__ import annotations

import copy
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leadline import config as configuration
from leadline.config import Config, DataConfig, ModelConfig, TrainConfig
from leadline.data.tokenizer import Tokenizer
from leadline.errors import UserError
from leadline.exchange import folder as folders
from leadline.exchange import formats
from leadline.exchange.decoder_kinds import ACTIVATIONS, GPT2, KINDS, LLAMA, OPT, QWEN3, Kind, activation
from leadline.exchange.folding import as_post_ln
from leadline.files import Facts, write_json
from leadline.model import Transformer
from leadline.training.trained import Trained


def kind_of(config: ModelConfig) -> Kind:
    """Which of theirs says exactly what this model does; a UserError where none does."""
    return KINDS[formats.choose(config).name]


def modules(model: Transformer, kind: Kind) -> Iterator[tuple[nn.Module, tuple[str, ...]]]:
    """All but the positions."""
    yield model.target_embed.tokens, (f"{kind.body}.{kind.tokens}",)
    for number, block in enumerate(typing.cast(Any, model.decoder.blocks)):
        layer = f"{kind.body}.{kind.layers}.{number}"
        yield block.attn.qkv, tuple(f"{layer}.{name}" for name in kind.qkv)
        yield block.attn.out, (f"{layer}.{kind.out}",)
        for role, norm in block.attn.norms.items():
            yield norm, (f"{layer}.{kind.qk_norm.format(role)}",)
        yield block.attn_residual.norm, (f"{layer}.{kind.attention_norm}",)
        yield block.ffn.expand, tuple(f"{layer}.{name}" for name in kind.expand)
        yield block.ffn.contract, (f"{layer}.{kind.contract}",)
        yield block.ffn_residual.norm, (f"{layer}.{kind.ffn_norm}",)
    if not isinstance(model.decoder.final, nn.Identity):
        yield model.decoder.final, (f"{kind.body}.{kind.final}",)
    if not is_tied(model):
        yield model.output, ("lm_head",)


def is_tied(model: Transformer) -> bool:
    return model.output is model.target_embed.tokens


@torch.no_grad()
def to_theirs(model: Transformer, kind: Kind) -> dict[str, Tensor]:
    """Their weights by name. The model stays as it is."""
    model = copy.deepcopy(model).cpu().float()
    _scale_tokens(model, model.target_embed.scale)
    if kind is OPT and isinstance(model.decoder.final, nn.Identity):
        as_post_ln(model, lambda embed, scale: _scale_tokens(model, scale))
    theirs = folders.collect(modules(model, kind), kind.transposed)
    if kind.places:
        places = typing.cast(Any, model.target_embed.positions)(torch.arange(model.config.max_length))
        theirs[f"{kind.body}.{kind.places}.weight"] = torch.cat([torch.zeros(kind.first, places.shape[1]), places])
    return theirs


@torch.no_grad()
def from_theirs(model: Transformer, kind: Kind, theirs: dict[str, Tensor]) -> set[str]:
    """Fill a new model with their weights; the names that were used."""
    used = folders.spread(modules(model, kind), theirs, kind.architecture, kind.transposed)
    if kind.places:
        name = f"{kind.body}.{kind.places}.weight"
        places = folders.taken(theirs, name, kind.architecture, used)[kind.first :]
        folders.fill(typing.cast(Any, model.target_embed.positions).weight, places, name)
    return used


def _scale_tokens(model: Transformer, factor: Tensor | float) -> None:
    """The embeddings of the tokens; where the output matrix is the same, the norm below it takes the factor back."""
    model.target_embed.tokens.weight.mul_(factor)
    if is_tied(model):
        blocks = typing.cast(Any, model.decoder.blocks)
        final = model.decoder.final
        last = blocks[-1].ffn_residual.norm if isinstance(final, nn.Identity) else final
        for parameter in last.parameters():
            parameter.div_(factor)


def save(trained: Trained, out: Path) -> list[str]:
    """Write a folder that AutoModelForCausalLM and AutoTokenizer open."""
    model, tokenizer = trained.model, trained.tokenizer
    kind, end = kind_of(model.config), tokenizer.end_of_text
    folders.require_empty(out)
    folders.save_weights(to_theirs(model, kind), out)
    write_json(out / "config.json", describe(model, kind) | {"bos_token_id": end, "eos_token_id": end})
    draw = trained.config.generate
    drawn = {"do_sample": True, "temperature": draw.temperature, "top_k": draw.top_k, "top_p": draw.top_p}
    length = min(model.config.max_length, draw.tokens)
    search = {"max_length": length, "bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    write_json(out / "generation_config.json", search | (drawn if draw.temperature else {}))
    tokenizer.bpe.save(str(out / "tokenizer.json"))
    text = tokenizer.piece(end)
    write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": model.config.max_length,
            **dict.fromkeys(("bos_token", "eos_token"), text),
        },
    )
    return [f"a document begins with {text} here: put it before a prompt there too"]


def describe(model: Transformer, kind: Kind) -> Facts:
    """Their config.json, but for which token ends a text."""
    config = model.config
    described = {theirs: getattr(config, ours) for theirs, (ours, _) in kind.keys.items()} | {
        **kind.must,
        "architectures": [kind.architecture],
        "model_type": next(name for name, each in KINDS.items() if each is kind),
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": is_tied(model),
        "pad_token_id": None,
    }
    if kind.places:
        described["activation_function"] = ACTIVATIONS[config.activation]
    else:
        described |= {"num_key_value_heads": config.groups, "head_dim": config.head_width}
        described |= {"attention_bias": config.bias, "rope_theta": config.rotary_theta}
        described["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rotary_theta}
    if kind is LLAMA:
        described["mlp_bias"] = config.bias
    if kind is GPT2:
        described |= {"n_inner": config.ffn_dim, "embd_pdrop": config.dropout}
    if kind is OPT:
        described |= {
            "do_layer_norm_before": not isinstance(model.decoder.final, nn.Identity),
            "word_embed_proj_dim": config.dim,
        }
    return described


def load(folder: Path, described: Facts, out: Path) -> list[str]:
    """Make the run `out` of a folder; what was left out."""
    kind = KINDS[described["model_type"]]
    tokenizer = _tokenizer(folder)
    theirs = _weights(folder, kind)
    size = tokenizer.vocab_size
    words = [f"{kind.body}.{kind.tokens}.weight", "lm_head.weight"]
    notes = folders.cut_vocabulary(theirs, words[0], words[1:], size, folder)
    shape = _model(folders.by_own_names(described, kind.names), kind, folder)
    if shape.embeddings == "tied":
        folders.require_one(theirs, words, folder)
    config = Config(
        task="causal_lm",
        model=shape,
        data=DataConfig(**folders.data_of(folder, out, size, source_lang="en", target_lang="en", tokenizer="byte_bpe")),
        train=TrainConfig(updates=1, precision="fp32", label_smoothing=0.0),
    )
    model = Transformer(size, **configuration.to_dict(config.model))
    used = from_theirs(model, kind, theirs)
    folders.make_run(out, config, model, tokenizer)
    masks = ("attn.bias", "attn.masked_bias", "inv_freq")  # of old files
    left = (name for name in theirs if name not in used and name != "lm_head.weight" and not name.endswith(masks))
    return notes + folders.left_out(left)


def _model(described: Facts, kind: Kind, folder: Path) -> ModelConfig:
    def given(key: str, usual: Any) -> Any:
        value = described.get(key)
        return usual if value is None else value

    def number(key: str, usual: int) -> int:
        value = given(key, usual)
        if type(value) is not int or value < 0:
            raise UserError(f"{where}: {key} must be a whole number, not {value!r}")
        return value

    where = f"{folder}/config.json"
    must = kind.must | {"is_causal": True}
    for key, (_, usual) in kind.keys.items():
        if type(usual) is int:
            number(key, usual)
    values = {ours: given(key, usual) for key, (ours, usual) in kind.keys.items()} | kind.fixed
    if kind is GPT2:
        values["ffn_dim"] = number("n_inner", 4 * values["dim"])
    if kind is OPT:
        values["placement"] = "pre_ln" if given("do_layer_norm_before", True) else "post_ln"
        must["word_embed_proj_dim"] = values["dim"]
    if not kind.places:
        values["rotary_theta"] = _rotary_theta(described, where)
        layers = given("layer_types", [])
        if not isinstance(layers, list) or any(layer != "full_attention" for layer in layers):
            raise UserError(f"{where}: layer_types has no counterpart here, only full_attention in every layer")
        heads, width = values["heads"], number("head_dim", 128 if kind is QWEN3 else 0)
        groups = number("num_key_value_heads", heads)
        values |= {"kv_heads": 0 if groups == heads else groups}
        values |= {"head_dim": 0 if width * heads in (0, values["dim"]) else width}
    if kind is LLAMA:
        values["bias"] = given("attention_bias", False)
        must["mlp_bias"] = values["bias"]
    folders.require_values(described, must, folder)
    if kind.places:
        values["activation"] = activation(values["activation"], "activation_function", folder)
    tied = folders.flag(described, "tie_word_embeddings", bool(kind.places), folder)
    values |= {"encoder_layers": 0, "embed_scale": False, "embeddings": "tied" if tied else "separate"}
    return configuration.from_dict(values, ModelConfig, f"{where}: model.")


def _rotary_theta(described: Facts, where: str) -> Any:
    key = "rope_scaling" if described.get("rope_scaling") else "rope_parameters"  # transformers believes the first
    rope = described.get(key) or {}
    if not isinstance(rope, dict):
        raise UserError(f"{where}: {key} must be an object, not {rope!r}")
    usual = {"rope_theta": 10000.0, "partial_rotary_factor": None}
    said = usual | {name: described[name] for name in usual if described.get(name) is not None} | rope
    plain = said.get("rope_type", said.get("type", "default")) == "default"
    if not plain or said["partial_rotary_factor"] not in (None, 1) or any(isinstance(x, dict) for x in rope.values()):
        told = rope or {"partial_rotary_factor": said["partial_rotary_factor"]}
        raise UserError(f"{where}: rotary positions that are scaled have no counterpart here, and {key} is {told}")
    theta = said["rope_theta"]
    return float(theta) if type(theta) is int else theta


def _weights(folder: Path, kind: Kind) -> dict[str, Tensor]:
    """By the names that a model with a head has."""
    first = kind.body.partition(".")[0]
    tensors = folders.weights(folder)
    bare = not any(name.startswith(f"{first}.") for name in tensors)
    return {f"{first}.{name}" if bare and name != "lm_head.weight" else name: x.float() for name, x in tensors.items()}


def _tokenizer(folder: Path) -> Tokenizer:
    if not (folder / "tokenizer.json").exists():
        raise UserError(f"{folder} has no tokenizer.json: save the tokenizer with transformers' save_pretrained")
    tokenizer = Tokenizer.load(folder / "tokenizer.json", DataConfig())
    _ = tokenizer.end_of_text  # refuses what is not byte-level
    return tokenizer
