"""Our encoder-decoder and two of Hugging Face's, module by module: Marian is Post-LN, Pegasus is Pre-LN.

Both add sinusoids laid out as ours, Pegasus ends each stack with a norm. LN(s·x + f(x)) (DeepNorm's α, Admin's ω) is
Post-LN on s·x (leadline.exchange.folding); s differs between the stacks, so embeddings that were one matrix are three
then. Their position tables are written out, and are the run's own to the bit.
"""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leadline import config as configuration
from leadline.config import Config, DataConfig, ModelConfig, TrainConfig
from leadline.data.directions import targets
from leadline.data.tokenizer import BOS, EOS, PAD, SPECIAL, TARGET, Tokenizer, tag
from leadline.errors import UserError
from leadline.exchange import folder as folders
from leadline.exchange import formats, searches, texts, vocabulary
from leadline.exchange.decoder_kinds import ACTIVATIONS, activation
from leadline.exchange.folding import Scale, as_post_ln, scales_embeddings, stacks
from leadline.files import Facts, write_json
from leadline.model import Transformer
from leadline.model.layers import Embed, Sinusoids
from leadline.placement import PreLN, find
from leadline.training.trained import Trained


class Kind(NamedTuple):
    architecture: str
    final: bool  # a norm closes each stack


KINDS = {"marian": Kind("MarianMTModel", final=False), "pegasus": Kind("PegasusForConditionalGeneration", final=True)}

# Their key, ours, and what theirs is where config.json does not say.
KEYS: dict[str, tuple[str, Any]] = {
    "d_model": ("dim", 1024),
    "encoder_layers": ("encoder_layers", 12),
    "decoder_layers": ("decoder_layers", 12),
    "encoder_attention_heads": ("heads", 16),
    "decoder_attention_heads": ("heads", 16),
    "encoder_ffn_dim": ("ffn_dim", 4096),
    "decoder_ffn_dim": ("ffn_dim", 4096),
    "max_position_embeddings": ("max_length", 1024),
    "activation_function": ("activation", "gelu"),
    "dropout": ("dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.0),
    "activation_dropout": ("activation_dropout", 0.0),
    "scale_embedding": ("embed_scale", False),
}
NAMES = {  # of theirs that are other names of theirs
    "hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads", "num_hidden_layers": "encoder_layers"
}  # fmt: skip
WORDS = [
    f"{name}.weight" for name in ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
]
CLOSE = 1e-4  # sinusoids that were computed otherwise differ by less
NEVER = -1e4  # the logit of what must not be written: finite, so that label smoothing does not drown in it

NUMBERS = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "forced_eos_token_id": EOS}
OWN = "leadline"  # a key of config.json that transformers leaves alone, with what it has no key for:
KEPT = ("source_lang", "target_lang", "text", "lowercase", "directions", "tag")


def modules(model: Transformer) -> Iterator[tuple[nn.Module, tuple[str, ...]]]:
    """All but the positions."""
    embeddings = model.config.embeddings
    yield model.source_embed.tokens, ("model.shared" if embeddings == "tied" else "model.encoder.embed_tokens",)
    if embeddings != "tied":
        yield model.target_embed.tokens, ("model.decoder.embed_tokens",)
    if embeddings == "separate":
        yield model.output, ("lm_head",)
    for name, stack in (("model.encoder", model.encoder), ("model.decoder", model.decoder)):
        for number, block in enumerate(typing.cast(Any, stack.blocks)):
            yield from _layer(block, f"{name}.layers.{number}")
        if not isinstance(stack.final, nn.Identity):
            yield stack.final, (f"{name}.layer_norm",)


def _layer(block: Any, layer: str) -> Iterator[tuple[nn.Module, tuple[str, ...]]]:
    yield block.attn.qkv, tuple(f"{layer}.self_attn.{part}_proj" for part in "qkv")
    yield block.attn.out, (f"{layer}.self_attn.out_proj",)
    yield block.attn_residual.norm, (f"{layer}.self_attn_layer_norm",)
    if hasattr(block, "cross"):
        yield block.cross.q, (f"{layer}.encoder_attn.q_proj",)
        yield block.cross.kv, tuple(f"{layer}.encoder_attn.{part}_proj" for part in "kv")
        yield block.cross.out, (f"{layer}.encoder_attn.out_proj",)
        yield block.cross_residual.norm, (f"{layer}.encoder_attn_layer_norm",)
    yield block.ffn.expand, (f"{layer}.fc1",)
    yield block.ffn.contract, (f"{layer}.fc2",)
    yield block.ffn_residual.norm, (f"{layer}.final_layer_norm",)


def places(model: Transformer) -> Iterator[tuple[str, Tensor]]:
    """Their name of each stack's positions, and ours: all rows of a table."""
    for name, (embed, _) in zip(("encoder", "decoder"), stacks(model), strict=True):
        table = typing.cast(Any, embed.positions)(torch.arange(model.config.max_length))
        yield f"model.{name}.embed_positions.weight", table.detach().clone()


@torch.no_grad()
def as_plain(model: Transformer) -> Transformer:
    """A copy on the CPU whose connections are LN(x + f(x)) or x + f(LN(x)); it may have more matrices."""
    model = copy.deepcopy(model).cpu().float()
    if not formats.computes_as(find(model.config.placement), PreLN):
        if scales_embeddings(model):
            _untie(model)
        as_post_ln(model, _scale_tokens)
    return model


def _scale_tokens(embed: Embed, scale: Scale) -> None:
    embed.tokens.weight.mul_(scale)


def _untie(model: Transformer) -> None:
    model.source_embed.tokens = copy.deepcopy(model.source_embed.tokens)
    model.target_embed.tokens = copy.deepcopy(model.target_embed.tokens)
    model.config = dataclasses.replace(model.config, embeddings="separate")


def to_theirs(model: Transformer) -> dict[str, Tensor]:
    """Their weights by name, of a model that is plain."""
    bias = torch.zeros(model.vocab_size) if model.head is None else model.head.bias.detach().clone()
    return folders.collect(modules(model)) | dict(places(model)) | {"final_logits_bias": bias[None]}


def save(trained: Trained, out: Path) -> list[str]:
    """Write a folder that AutoModelForSeq2SeqLM and AutoTokenizer open; what a user should know about it."""
    config, tokenizer, data = trained.model.config, trained.tokenizer, trained.tokenizer.config
    own = {"placement": config.placement, "data": {key: getattr(data, key) for key in KEPT}}
    name = write_model(trained.model, out, _numbers(tokenizer) | {OWN: own})
    write_json(out / "generation_config.json", _generation(trained))
    settings = {
        "model_max_length": config.max_length,
        "model_input_names": ["input_ids", "attention_mask"],
        "split_special_tokens": not tags_in_source(trained),  # else "<s>" in somebody's text is text, as it is here
        **dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True)),
    }
    notes = texts.save(tokenizer, out, f"$A {SPECIAL[EOS]}", f"$A $B {SPECIAL[EOS]}", [SPECIAL[EOS]], settings)
    if tokenizer.target is not None:
        notes.append(f"its tokenizer.json splits sources; to train there, split targets with the run's {TARGET}")
    if name == "marian" and (config.positions == "learned" or scales_embeddings(trained.model)):
        notes.append(
            "Marian's save_pretrained leaves position tables out, and these are not plain sinusoids: set "
            "model._keys_to_ignore_on_save = None before it"
        )
    return notes


def write_model(model: Transformer, out: Path, more: Facts) -> str:
    """Weights and config.json, with `more` in it; which of KINDS it is."""
    config = model.config
    name = formats.choose(config).name
    folders.require_empty(out)
    plain = as_plain(model)
    folders.save_weights(to_theirs(plain), out)
    described = {theirs: getattr(config, ours) for theirs, (ours, _) in KEYS.items()} | {
        "architectures": [KINDS[name].architecture],
        "model_type": name,
        "is_encoder_decoder": True,
        "vocab_size": model.vocab_size,
        "decoder_vocab_size": model.vocab_size,
        "activation_function": ACTIVATIONS[config.activation],
        "share_encoder_decoder_embeddings": plain.config.embeddings == "tied",
        "tie_word_embeddings": plain.config.embeddings != "separate",
    }
    write_json(out / "config.json", described | more)
    return name


def tags_in_source(trained: Trained) -> bool:
    """Whether a user writes the tag of a language before the text."""
    return bool(trained.tokenizer.config.directions) and trained.tokenizer.config.tag == "source"


def starts(tokenizer: Tokenizer) -> list[int]:
    """What a target may begin with."""
    data = tokenizer.config
    if not data.directions or data.tag == "source":
        return [BOS]
    return [tokenizer.special(tag(language)) for language in targets(data.directions)]


def _numbers(tokenizer: Tokenizer) -> Facts:
    return NUMBERS | {"decoder_start_token_id": starts(tokenizer)[0]}


def _generation(trained: Trained) -> Facts:
    """How ours searches. Where several tokens may begin a target, none is given: the user says which."""
    decode = trained.config.decode
    numbers: Facts = _numbers(trained.tokenizer)
    if len(starts(trained.tokenizer)) > 1:
        numbers |= {"bos_token_id": None, "decoder_start_token_id": None}
    search: Facts = {"num_beams": decode.beam, "max_new_tokens": trained.model.config.max_length}
    if decode.beam > 1:
        search |= {"early_stopping": True, "length_penalty": decode.length_penalty}
    return search | numbers


def load(folder: Path, described: Facts, out: Path) -> list[str]:
    """Make the run `out` of a folder; what was left out."""
    kind = KINDS[described["model_type"]]
    theirs = {name: tensor.float() for name, tensor in folders.weights(folder).items()}
    tokenizer, rows = vocabulary.read(folder, described)
    own, shape = _section(described, OWN), _model(folders.by_own_names(described, NAMES), theirs, kind, folder)
    _name_embeddings(theirs, shape.embeddings, folder)
    notes = _choose_rows(theirs, rows, folder)
    config = Config(
        model=dataclasses.replace(shape, head="bias" if theirs["final_logits_bias"].any() else "linear"),
        data=_data(own, folder, out, tokenizer.vocab_size),
        train=TrainConfig(updates=1, precision="fp32"),
        decode=searches.decode(folder, described),
    )
    model = Transformer(tokenizer.vocab_size, **configuration.to_dict(config.model))
    used = from_theirs(model, theirs, kind)
    folders.make_run(out, config, model, tokenizer)
    notes += searches.notes(folder, described, rows[PAD])
    if languages := vocabulary.tags(tokenizer.piece(number) for number in range(tokenizer.vocab_size)):
        more = f" and {len(languages) - 8} more" if len(languages) > 8 else ""
        notes.append(f"a text may begin with the tag of a language to write: {' '.join(languages[:8])}{more}")
    if (before := own.get("placement", config.model.placement)) != config.model.placement:
        now = config.model.placement
        notes.append(f"it was trained as {before}, whose factors are in the weights now, and goes on as {now}")
    return notes + folders.left_out(name for name in theirs if name not in used)


@torch.no_grad()
def from_theirs(model: Transformer, theirs: dict[str, Tensor], kind: Kind) -> set[str]:
    """Fill a new model with their weights; the names that were used or need not be."""
    used = folders.spread(modules(model), theirs, kind.architecture)
    if model.head is not None:
        folders.fill(model.head.bias, theirs["final_logits_bias"], "final_logits_bias")
    for name, table in places(model):
        if model.config.positions == "learned":
            embed = model.source_embed if "encoder" in name else model.target_embed
            folders.fill(
                typing.cast(Any, embed.positions).weight, folders.taken(theirs, name, kind.architecture, used), name
            )
        elif name in theirs and theirs[name].shape != table.shape:
            raise UserError(f"{name} is {tuple(theirs[name].shape)}, and config.json makes it {tuple(table.shape)}")
    return used | {name for name, _ in places(model)} | {"final_logits_bias"}


def _name_embeddings(theirs: dict[str, Tensor], embeddings: str, folder: Path) -> None:
    """By the names of `modules`, whichever of those that share a matrix the file has."""
    if embeddings != "separate":
        folders.require_one(theirs, WORDS if embeddings == "tied" else WORDS[2:], folder)
    found = {name: theirs.pop(name, None) for name in WORDS}

    def one_of(*places: int) -> Tensor:
        for place in places:
            if (matrix := found[WORDS[place]]) is not None:
                return matrix
        raise UserError(f"the weights of {folder} have no {WORDS[places[0]]}: save the model with save_pretrained")

    if embeddings == "tied":
        theirs[WORDS[0]] = one_of(0, 1, 2, 3)
    elif embeddings == "output_tied":
        theirs[WORDS[1]], theirs[WORDS[2]] = one_of(1), one_of(2, 3)
    else:
        theirs[WORDS[1]], theirs[WORDS[2]], theirs[WORDS[3]] = one_of(1, 0), one_of(2, 0), one_of(3)


def _choose_rows(theirs: dict[str, Tensor], rows: list[int], folder: Path) -> list[str]:
    """The rows of our tokens, in our order; a note on those of no token."""
    if "final_logits_bias" in theirs:
        theirs["final_logits_bias"] = theirs["final_logits_bias"].flatten()
    else:
        theirs["final_logits_bias"] = torch.zeros(max(len(theirs.get(name, ())) for name in WORDS))
    tables = [name for name in (*WORDS, "final_logits_bias") if name in theirs]
    has = min(len(theirs[name]) for name in tables)
    if has <= max(rows):
        raise UserError(f"the tokenizer of {folder} has {1 + max(rows)} tokens, and its model only {has}")
    for name in tables:
        theirs[name] = theirs[name][rows]
    if rows[PAD] == rows[BOS]:  # theirs begins with padding, and never writes it
        theirs["final_logits_bias"][[PAD, BOS]] = NEVER
    spare = has - len({*rows})
    return [f"{spare} rows of the vocabulary have no token and are left out"] if spare else []


def _model(described: Facts, theirs: dict[str, Tensor], kind: Kind, folder: Path) -> ModelConfig:
    where = f"{folder}/config.json"
    values: Facts = {}
    for key, (ours, usual) in KEYS.items():
        value = described.get(key)
        value = usual if value is None else value
        if values.setdefault(ours, value) != value:
            raise UserError(f"{where}: {key}={value} has no counterpart here, only {values[ours]}, that of the encoder")
    must: Facts = {
        "normalize_before": kind.final,
        "add_final_layer_norm": kind.final,
        "normalize_embedding": False,
        "layernorm_embedding": False,  # as old files call it
        "do_blenderbot_90_layernorm": False,
        "is_causal": True,
        "decoder_vocab_size": described.get("vocab_size"),
    }
    folders.require_values(described, must, folder)
    flags = ("share_encoder_decoder_embeddings", "tie_word_embeddings")
    shares, ties = (folders.flag(described, key, True, folder) for key in flags)
    values |= {
        "placement": "pre_ln" if kind.final else "post_ln",
        "activation": activation(values["activation"], "activation_function", folder),
        "embeddings": ("tied" if shares else "output_tied") if ties else "separate",
    }
    config = configuration.from_dict(values, ModelConfig, f"{where}: model.")
    sinusoids = Sinusoids(config.max_length, config.dim).table
    tables = [table for name, table in theirs.items() if name.endswith("embed_positions.weight")]
    if any(table.shape == sinusoids.shape and (table - sinusoids).abs().max() > CLOSE for table in tables):
        return dataclasses.replace(config, positions="learned")
    return config


def _data(own: Facts, folder: Path, out: Path, size: int) -> DataConfig:
    """Languages and text as an export of ours says, or as OPUS-MT's tokenizer does."""
    path = folder / "tokenizer_config.json"
    settings = folders.read_json(path) if path.exists() else {}
    languages = {key: settings[key] for key in ("source_lang", "target_lang") if isinstance(settings.get(key), str)}
    if len(languages) == 2 and len({*languages.values()}) == 1:  # sources are told from targets by their language
        languages = {"source_lang": "source", "target_lang": "target"}
    kept = _section(own, "data") or languages
    values = {key: value for key, value in kept.items() if key in KEPT} | folders.data_of(folder, out, size)
    return configuration.from_dict(values, DataConfig, f"{folder}/config.json: data.")


def _section(values: Facts, key: str) -> Facts:
    section = values.get(key)
    return section if isinstance(section, dict) else {}
