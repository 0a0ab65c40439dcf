"""Our decoder alone and five of Hugging Face's, module by module: GPT-2, OPT, Llama, Qwen3 and OLMo 2.

What differs is folded into weights, exactly:

    a run of ours reads √D·E[token], theirs E[token]: E carries √D there, and the last norm, before a tied E, 1/√D
    LN(s·x + f(x)) (DeepNorm's α, Admin's ω) is Post-LN on s·x: the norm below (or the embeddings) carries s, f's first
    matrix 1/s

Neither way needs transformers to be installed, and nothing is pickled.
"""

from __future__ import annotations

import copy
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from leadline import config as configuration
from leadline.config import Config, DataConfig, ModelConfig, TrainConfig
from leadline.data.tokenizer import Tokenizer
from leadline.errors import UserError
from leadline.exchange import folder as folders
from leadline.exchange.bert import computes_as, skip
from leadline.exchange.decoder_kinds import ACTIVATIONS, GPT2, KINDS, LLAMA, OLMO2, OPT, QWEN3, Kind
from leadline.files import write_json
from leadline.model import Transformer
from leadline.model.layers import Linear, SelfAttention
from leadline.placement import DeepNorm, PostLN, PreLN, find
from leadline.placement.admin import Admin, AdminConstant
from leadline.placement.res_post_ln import ResPostLN
from leadline.training.trained import Trained


def kind_of(config: ModelConfig) -> Kind:
    """Which of theirs says exactly what this model does; a UserError where none does."""
    placement, rms = find(config.placement), config.norm == "rms_norm"
    if any(computes_as(placement, known) for known in (PostLN, DeepNorm, Admin, AdminConstant)):
        kind = OPT
    elif computes_as(placement, ResPostLN):
        kind = OLMO2
    elif computes_as(placement, PreLN):
        kind = (QWEN3 if config.qk_norm == "head" else LLAMA) if rms else OPT if config.activation == "relu" else GPT2
    else:
        raise UserError(
            f"{config.placement} has no counterpart in transformers: what can be exported is pre_ln (as GPT-2, OPT, "
            "Llama or Qwen3), post_ln and those that differ from it by a factor (deepnorm, admin, …, as OPT), and "
            "res_post_ln (as OLMo 2)"
        )
    modern = not kind.places
    wrong = {
        f"model.norm={(norm := 'rms_norm' if modern else 'layer_norm')}": config.norm != norm,
        f"{'rotary' if modern else 'learned or sinusoidal'} positions": (config.positions == "rotary") != modern,
        f"{'model.activation=swiglu' if modern else 'an ungated FFN'}": (config.activation == "swiglu") != modern,
        f"model.bias={'true' if not modern else 'false'}": kind is not LLAMA and config.bias == modern,
        f"model.qk_norm={kind.fixed.get('qk_norm', 'none')}": config.qk_norm != kind.fixed.get("qk_norm", "none"),
        "model.norm_eps=1e-5": kind is OPT and config.norm_eps != 1e-5,
        "model.kv_heads=0 and model.head_dim=0": not modern and (config.groups, config.head_dim) != (config.heads, 0),
        "model.head_dim=0": kind is OLMO2 and config.head_dim != 0,
        "model.embed_norm=false": config.embed_norm,
        "model.head=linear and neither segments nor classes": config.head != "linear"
        or bool(config.segments or config.classes or config.pooler),
    }
    if missing := [what for what, lacks in wrong.items() if lacks]:
        raise UserError(f"{kind.architecture} is not this model: it needs {' and '.join(missing)}")
    return kind


def modules(model: Transformer, kind: Kind) -> Iterator[tuple[nn.Module, tuple[str, ...]]]:
    """Each of our modules but the positions, and those of theirs whose rows it holds, one after the other."""
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


def _sizes(module: nn.Module, names: tuple[str, ...], rows: int) -> list[int]:
    return module.sizes if isinstance(module, Linear) and len(names) > 1 else [rows]


@torch.no_grad()
def to_theirs(model: Transformer, kind: Kind) -> dict[str, Tensor]:
    """Their weights by name. The model stays as it is."""
    model = copy.deepcopy(model).cpu().float()
    _scale_tokens(model, model.target_embed.scale)
    if kind is OPT and isinstance(model.decoder.final, nn.Identity):
        _as_post_ln(model)
    theirs: dict[str, Tensor] = {}
    for module, names in modules(model, kind):
        for key, parameter in module.named_parameters():
            turned = kind.transposed and isinstance(module, Linear) and parameter.ndim == 2
            parts = parameter.split(_sizes(module, names, len(parameter)))
            for name, part in zip(names, parts, strict=True):
                theirs[f"{name}.{key}"] = (part.t() if turned else part).clone().contiguous()
    if kind.places:
        places = typing.cast(Any, model.target_embed.positions)(torch.arange(model.config.max_length))
        theirs[f"{kind.body}.{kind.places}.weight"] = torch.cat([torch.zeros(kind.first, places.shape[1]), places])
    return theirs


@torch.no_grad()
def from_theirs(model: Transformer, kind: Kind, theirs: dict[str, Tensor]) -> set[str]:
    """Fill a new model with their weights; the names that were used."""
    used: set[str] = set()

    def take(name: str) -> Tensor:
        if name not in theirs:
            raise UserError(f"the weights have no {name}, which {kind.architecture} needs")
        used.add(name)
        return theirs[name]

    for module, names in modules(model, kind):
        for key, parameter in module.named_parameters():
            turned = kind.transposed and isinstance(module, Linear) and parameter.ndim == 2
            for name, part in zip(names, parameter.split(_sizes(module, names, len(parameter))), strict=True):
                value = take(f"{name}.{key}")
                folders.fill(part, value.t() if turned and value.ndim == 2 else value, f"{name}.{key}")
    if kind.places:
        name = f"{kind.body}.{kind.places}.weight"
        folders.fill(typing.cast(Any, model.target_embed.positions).weight, take(name)[kind.first :], name)
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


def _as_post_ln(model: Transformer) -> None:
    below: Any = None
    for block in typing.cast(Any, model.decoder.blocks):
        for connection, sublayer in block.connections():
            scale = skip(connection)
            if below is None:
                _scale_tokens(model, scale)
                places = typing.cast(Any, model.target_embed.positions)
                (places.weight if hasattr(places, "weight") else places.table).mul_(scale)
            else:
                for parameter in below.parameters():
                    parameter.mul_(scale)
            first = sublayer.qkv if isinstance(sublayer, SelfAttention) else sublayer.expand
            first.weight.div_(scale)
            below = connection.norm


def save(trained: Trained, out: Path) -> list[str]:
    """Write a folder that AutoModelForCausalLM and AutoTokenizer open."""
    model, config, tokenizer = trained.model, trained.model.config, trained.tokenizer
    kind, end = kind_of(config), tokenizer.end_of_text
    folders.require_empty(out)
    save_file(to_theirs(model, kind), out / "model.safetensors", metadata={"format": "pt"})
    described = {theirs: getattr(config, ours) for theirs, (ours, _) in kind.keys.items()} | {
        **kind.must,
        "architectures": [kind.architecture],
        "model_type": next(name for name, each in KINDS.items() if each is kind),
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": is_tied(model),
        "bos_token_id": end,
        "eos_token_id": end,
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
    write_json(out / "config.json", described)
    tokenizer.bpe.save(str(out / "tokenizer.json"))
    text = tokenizer.piece(end)
    write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.max_length,
            **dict.fromkeys(("bos_token", "eos_token"), text),
        },
    )
    return [f"a document begins with {text} here: put it before a prompt there too"]


def load(folder: Path, described: dict[str, Any], out: Path) -> list[str]:
    """Make the run `out` of a folder; what was left out."""
    kind = KINDS[described["model_type"]]
    tokenizer = _tokenizer(folder)
    theirs = _weights(folder, kind)
    size = tokenizer.vocab_size
    notes = _cut_vocabulary(theirs, kind, size, folder)
    config = Config(
        task="causal_lm",
        model=_model(described, kind, folder),
        data=DataConfig(
            source=f"imported:{folder.absolute()}",
            source_lang="en",
            target_lang="en",
            tokenizer="byte_bpe",
            vocab_size=size,
            vocabulary=str((out / "tokenizer.json").absolute()),  # of whatever data it is given
        ),
        train=TrainConfig(updates=1, precision="fp32", label_smoothing=0.0),
    )
    model = Transformer(size, **configuration.to_dict(config.model))
    used = from_theirs(model, kind, theirs)
    folders.write_run(out, tokenizer, model, config)
    masks = ("attn.bias", "attn.masked_bias", "inv_freq")  # of old files
    left = sorted(name for name in theirs if name not in used and name != "lm_head.weight" and not name.endswith(masks))
    if left:
        notes.append(f"{len(left)} weights have no place in this model and are left out: {', '.join(left[:3])}")
    return notes


def _model(described: dict[str, Any], kind: Kind, folder: Path) -> ModelConfig:
    def given(key: str, usual: Any) -> Any:
        value = described.get(key)
        return usual if value is None else value

    def number(key: str, usual: int) -> int:
        value = given(key, usual)
        if type(value) is not int or value < 0:
            raise UserError(f"{where}: {key} must be a whole number, not {value!r}")
        return value

    where = f"{folder}/config.json"
    must = dict(kind.must)
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
        rope = given("rope_parameters", given("rope_scaling", {}))
        rope = rope if isinstance(rope, dict) else {}
        if rope.get("rope_type", rope.get("type", "default")) != "default" or rope.get("partial_rotary_factor", 1) != 1:
            raise UserError(f"{where}: rotary positions that are scaled have no counterpart here")
        theta = rope.get("rope_theta", given("rope_theta", 10000.0))
        values["rotary_theta"] = float(theta) if type(theta) is int else theta
        heads, width = values["heads"], number("head_dim", 128 if kind is QWEN3 else 0)
        groups = number("num_key_value_heads", heads)
        values |= {"kv_heads": 0 if groups == heads else groups}
        values |= {"head_dim": 0 if width * heads in (0, values["dim"]) else width}
    if kind is LLAMA:
        values["bias"] = given("attention_bias", False)
        must["mlp_bias"] = values["bias"]
    for key, value in must.items():
        if given(key, value) != value:
            raise UserError(f"{where}: {key}={described[key]!r} has no counterpart here, only {value!r}")
    if kind.places:
        known = {"gelu_pytorch_tanh": "gelu_tanh"} | {theirs: ours for ours, theirs in ACTIVATIONS.items()}
        if not isinstance(values["activation"], str) or values["activation"] not in known:
            raise UserError(f"{where}: activation_function={values['activation']!r} has no counterpart here")
        values["activation"] = known[values["activation"]]
    tied = given("tie_word_embeddings", bool(kind.places))
    values |= {"encoder_layers": 0, "embed_scale": False, "embeddings": "tied" if tied else "separate"}
    return configuration.from_dict(values, ModelConfig, f"{where}: model.")


def _weights(folder: Path, kind: Kind) -> dict[str, Tensor]:
    """By the names that a model with a head has."""
    first = kind.body.partition(".")[0]
    tensors = folders.weights(folder)
    bare = not any(name.startswith(f"{first}.") for name in tensors)
    return {f"{first}.{name}" if bare and name != "lm_head.weight" else name: x.float() for name, x in tensors.items()}


def _cut_vocabulary(theirs: dict[str, Tensor], kind: Kind, size: int, folder: Path) -> list[str]:
    """Some models have more rows than their tokenizer has tokens: no text ever uses those."""
    words = f"{kind.body}.{kind.tokens}.weight"
    rows = len(theirs.get(words, ()))
    if rows < size:
        raise UserError(f"the tokenizer of {folder} has {size} tokens, and its model only {rows}")
    for name in (words, "lm_head.weight"):
        if name in theirs:
            theirs[name] = theirs[name][:size]
    return [f"{rows - size} rows of the vocabulary have no token and are left out"] if rows > size else []


def _tokenizer(folder: Path) -> Tokenizer:
    if not (folder / "tokenizer.json").exists():
        raise UserError(f"{folder} has no tokenizer.json: save the tokenizer with transformers' save_pretrained")
    tokenizer = Tokenizer.load(folder / "tokenizer.json", DataConfig())
    tokenizer.bpe.no_padding()
    tokenizer.bpe.no_truncation()
    _ = tokenizer.end_of_text  # refuses what is not byte-level
    return tokenizer
