"""What to run: frozen dataclasses, one TOML file, and one strict override for `--set a.b=c`.

Every key is declared once, here, with its default; an unknown key or a value of the wrong kind is an error
that names the nearest right one. Nothing else in the package reads options from anywhere.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from leadline.errors import UserError, nearest


def added(default: Any, neutral: Any) -> Any:
    """An option that came later: with `neutral` the result is what it was without the option."""
    return field(default=default, metadata={"neutral": neutral})


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The Transformer. A stack with 0 layers does not exist, so the layer counts also choose the architecture."""

    placement: str = "pre_ln"
    encoder_layers: int = 6
    decoder_layers: int = 6
    dim: int = 512
    ffn_dim: int = 1024
    heads: int = 4
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"  # which norm the placement places
    norm_eps: float = 1e-5  # added to the variance in every norm; BERT's own models have 1e-12
    activation: Literal["relu", "gelu"] = "relu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    # the base initialisation, see leadline.model.init; auto: the one the placement's constants are defined on
    init: Literal["auto", "xavier", "fairseq_2019", "fairseq_2020"] = "auto"
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_length: int = 256  # the longest sequence in tokens; longer ones are counted and left out of training
    embeddings: Literal["tied", "output_tied", "separate"] = "tied"  # one matrix; one a language; three
    embed_norm: bool = False  # a layer norm on the embeddings, as in BERT
    segments: int = 0  # kinds of segment that have an embedding, as BERT's two; 0: none
    head: Literal["linear", "bert"] = "linear"  # before the output matrix: nothing; BERT's dense layer and norm
    classes: int = 0  # outputs of BERT's pooler on the first token; 0: none
    pooler: bool = added(default=False, neutral=False)  # BERT's pooler, also where nothing reads it yet

    def __post_init__(self) -> None:
        if self.encoder_layers < 0 or self.decoder_layers < 0 or self.encoder_layers + self.decoder_layers == 0:
            raise UserError("model.encoder_layers and model.decoder_layers must be 0 or more, and not both 0")
        if min(self.dim, self.ffn_dim, self.heads, self.max_length) < 1:
            raise UserError("model.dim, model.ffn_dim, model.heads and model.max_length must be at least 1")
        if not 0 < self.norm_eps < 1:
            raise UserError(f"model.norm_eps must be above 0 and below 1, not {self.norm_eps}")
        if min(self.segments, self.classes) < 0:
            raise UserError("model.segments and model.classes must be 0 or more")
        if self.dim % self.heads or self.dim % 2:
            raise UserError(f"model.dim={self.dim} must be even and a multiple of model.heads={self.heads}")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"model.{name} must be at least 0 and below 1, not {getattr(self, name)}")

    @property
    def architecture(self) -> str:
        if self.encoder_layers and self.decoder_layers:
            return "encoder-decoder"
        return "encoder-only" if self.encoder_layers else "decoder-only"

    @property
    def head_width(self) -> int:
        return self.dim // self.heads


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The corpus: where it comes from and how it becomes tokens."""

    source: str = "builtin:numerals"  # its kinds: leadline.data.sources
    source_lang: str = "de"
    target_lang: str = "en"
    # as it is; normalise its punctuation with Moses; tokenise it with Moses too; it is tokenised
    text: Literal["raw", "moses_normalize", "moses", "tokenized"] = "raw"
    lowercase: bool = False
    tokenizer: Literal["bpe", "wordpiece"] = "bpe"  # WordPiece is learnt with some chance: a few tokens may differ
    vocab_size: int = 10000
    vocabulary: str = ""  # a tokenizer.json to use instead of learning one: vocab_size and tokenizer then mean nothing
    first: str = "sentence1"  # tables: the column of the text
    second: str = "sentence2"  # tables: the column of the text that it is paired with; "": none
    label: str = "label"  # tables: the column to guess
    size: int = 50000  # training pairs to generate, for builtin sources
    holdout: int = 0  # pairs taken out of train for each of valid and test, where a folder has none
    valid_every: int = 200  # documents: one in so many is for validation
    seed: int = 0  # of what is generated or held out

    def __post_init__(self) -> None:
        if self.vocab_size < 8 or self.size < 1 or self.holdout < 0:
            raise UserError("data.vocab_size must be at least 8, data.size 1 and data.holdout 0")
        for name, most in (("vocab_size", 1_000_000), ("size", 10_000_000)):
            if getattr(self, name) > most:
                raise UserError(f"data.{name} can be {most:,} at most, not {getattr(self, name):,}")
        if self.valid_every < 2:
            raise UserError(f"data.valid_every must be at least 2, not {self.valid_every}")
        if self.seed < 0:
            raise UserError(f"data.seed must be 0 or more, not {self.seed}")
        for name in ("source", "source_lang", "target_lang", "vocabulary"):
            if "\0" in getattr(self, name):
                raise UserError(f"data.{name}={getattr(self, name)!r} cannot contain a NUL character")
        for name in ("source_lang", "target_lang"):
            if "/" in getattr(self, name):
                raise UserError(f"data.{name}={getattr(self, name)!r} is not a language: give a code such as de")


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer and its learning rate; each schedule is a function in leadline.training.optim."""

    name: Literal["adam", "adamw", "sgd", "radam"] = "adam"
    lr: float = 5e-4
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    weight_decay: float = 0.0
    momentum: float = 0.0  # sgd only
    clip: float = 0.0  # largest gradient norm; 0: no clipping
    schedule: Literal["inverse_sqrt", "hold_inverse_sqrt", "linear", "constant", "step", "cosine"] = "inverse_sqrt"
    warmup: int = 1  # updates of linear rise; 0 or 1: none
    hold: int = 4000  # hold_inverse_sqrt: updates at the full rate before the decay
    decay_at: tuple[int, ...] = ()  # step: multiply the rate by decay_factor at each of these
    decay_unit: Literal["epochs", "updates"] = "epochs"
    decay_factor: float = 0.1
    after_decay: Literal["constant", "inverse_sqrt"] = "constant"  # step: what follows the last decay

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise UserError(f"optim.lr must be a number above 0, not {self.lr}")
        for name in ("warmup", "clip", "weight_decay", "momentum", "eps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"optim.{name} must be 0 or more, not {getattr(self, name)}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"optim.betas must each be at least 0 and below 1, not {self.betas}")
        if self.hold < 1:
            raise UserError(f"optim.hold must be at least 1, not {self.hold}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long, in what batches and on what machine."""

    updates: int = 0  # stop after this many; 0: epochs decide
    epochs: int = 0  # stop after this many; 0: updates decide
    batch_tokens: int = 4096  # tokens in a packed batch; of the target, where there is one
    batch_sequences: int = 0  # classification: sequences in a batch; batch_tokens is then the most they may take
    accumulate: int = 1  # batches summed into one update
    label_smoothing: float = 0.1
    seed: int = 1
    start: str = ""  # a run whose weights this one starts from
    start_checkpoint: str = "best"  # which of its checkpoints: best, last, average:K or a number
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    precision: Literal["fp32", "bf16"] = "fp32"
    step: Literal["eager", "compiled", "graph"] = "eager"  # graph: the whole update captured once; CUDA only
    recompute: bool = False  # keep only what enters each block for the way back: less memory, a third more work
    eval_every: int = 0  # updates between evaluations; 0: after every epoch; -1: never
    bleu_sentences: int = 0  # validation sentences translated at each evaluation; 0: none; -1: all
    patience: int = 0  # stop after this many evaluations without a better validation loss; 0: never
    save_every: int = 0  # updates between checkpoints; 0: at evaluations only
    keep: int = 3  # recent checkpoints kept beside the best
    log_every: int = 10  # updates between lines of metrics.jsonl

    def __post_init__(self) -> None:
        if self.updates < 0 or self.epochs < 0 or self.updates + self.epochs == 0:
            raise UserError("set train.updates or train.epochs: both are 0, so training would never stop")
        if min(self.batch_tokens, self.accumulate, self.keep, self.log_every) < 1:
            raise UserError("train.batch_tokens, accumulate, keep and log_every must be at least 1")
        if self.batch_sequences < 0:
            raise UserError(f"train.batch_sequences must be 0 or more, not {self.batch_sequences}")
        if self.seed < 0:
            raise UserError(f"train.seed must be 0 or more, not {self.seed}")
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"train.label_smoothing must be at least 0 and below 1, not {self.label_smoothing}")
        if min(self.patience, self.save_every) < 0 or min(self.eval_every, self.bleu_sentences) < -1:
            raise UserError("train.patience and save_every must be 0 or more, eval_every and bleu_sentences -1 or more")
        if self.patience and self.eval_every < 0:
            raise UserError("train.patience counts evaluations, and train.eval_every=-1 makes none: set either to 0")


@dataclass(frozen=True, kw_only=True)
class MaskConfig:
    """What a masked language model has to guess."""

    share: float = 0.15  # of the tokens
    whole_words: bool = False  # a word is masked with all its pieces or not at all

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UserError(f"mask.share must be above 0 and below 1, not {self.share}")


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """How translations are searched for."""

    beam: int = 5
    length_penalty: float = 1.0  # scores are divided by length ** length_penalty
    batch_tokens: int = 4096  # source tokens translated at once
    max_ratio: float = 2.0  # a translation is at most this many times its source, plus 20 tokens

    def __post_init__(self) -> None:
        if self.beam < 1 or self.batch_tokens < 1 or self.max_ratio <= 0:
            raise UserError("decode.beam and decode.batch_tokens must be at least 1, decode.max_ratio above 0")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run."""

    task: str = "translation"
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=10))
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    mask: MaskConfig = field(default_factory=MaskConfig)

    def set(self, **sections: dict[str, Any]) -> Config:
        """A copy with some keys changed: `config.set(optim={"lr": 1e-3}, train={"seed": 2})`."""
        return from_dict(_merge(to_dict(self), sections))


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = _merge(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
    return merged


def to_dict(config: Any) -> dict[str, Any]:
    return {
        f.name: to_dict(value)
        if dataclasses.is_dataclass(value)
        else list(value)
        if isinstance(value, tuple)
        else value
        for f in dataclasses.fields(config)
        for value in [getattr(config, f.name)]
    }


PLACES = ("train.device", "train.start", "train.start_checkpoint")  # options that say where, and not what


def settings(config: Config) -> dict[str, Any]:
    """Every option that says what is computed, such as "optim.lr", whether it is at its default or not.

    An option added later is declared with `added`, and left out where it changes nothing: what was computed before it
    existed is still the same. A default that changes is another value here.
    """
    return {
        f"{section.name}.{option.name}": value
        for section in dataclasses.fields(config)
        if dataclasses.is_dataclass(getattr(config, section.name)) and section.name != "data"
        for option in dataclasses.fields(getattr(config, section.name))
        for value in [getattr(getattr(config, section.name), option.name)]
        if not ("neutral" in option.metadata and value == option.metadata["neutral"])
        and f"{section.name}.{option.name}" not in PLACES
    }


def from_dict(values: dict[str, Any], kind: type = Config, where: str = "") -> Any:
    """Strictly: unknown keys and values of the wrong kind raise."""
    hints = typing.get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind)]
    arguments = {}
    for key, value in values.items():
        if key not in known:
            raise UserError(f"there is no key {where + key!r}: {nearest(key, known)}")
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, dict):
                raise UserError(
                    f"{where + key} is a section, not a value: set one of its keys, such as {where + key}."
                    f"{dataclasses.fields(hints[key])[0].name}"
                )
            arguments[key] = from_dict(value, hints[key], f"{where}{key}.")
        else:
            arguments[key] = _checked(value, hints[key], where + key)
    return kind(**arguments)


def _checked(value: Any, hint: Any, key: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value not in args:
            raise UserError(f"{key} cannot be {value!r}: {nearest(str(value), args)}")
        return value
    if origin is tuple:
        items = list(value) if isinstance(value, list | tuple) else [value]
        if args[-1] is not Ellipsis and len(items) != len(args):
            raise UserError(f"{key} needs {len(args)} numbers, not {value!r}")
        return tuple(_checked(item, args[0], key) for item in items)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not hint:
        raise UserError(f"{key} must be {_KINDS[hint]}, not {value!r}")
    return value


_KINDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def override(config: Config, assignments: list[str]) -> Config:
    """Apply `--set section.key=value` strings, each read as the kind its key declares."""
    values = to_dict(config)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"--set {assignment!r} has no '=': write it as --set optim.lr=1e-3")
        section, hint = values, typing.cast(Any, Config)
        *parents, key = path.strip().split(".")
        for i, name in enumerate([*parents, key]):
            hints = typing.get_type_hints(hint) if dataclasses.is_dataclass(hint) else {}
            if name not in hints:
                choices = _all_keys() if i == 0 or not hints else [".".join([*parents[:i], k]) for k in hints]
                raise UserError(f"there is no key {path!r}: {nearest(path, choices)}")
            hint = hints[name]
            if i < len(parents):
                section = section[name]
        section[key] = _parsed(text.strip(), hint)
    return from_dict(values)


def _all_keys() -> list[str]:
    return [
        f"{s}.{k}" if isinstance(v, dict) else s
        for s, v in to_dict(Config()).items()
        for k in (v if isinstance(v, dict) else [""])
    ]


def _parsed(text: str, hint: Any) -> Any:
    if hint is str or typing.get_origin(hint) is Literal:
        return text
    if typing.get_origin(hint) is tuple:
        return [
            _parsed(item.strip(), typing.get_args(hint)[0]) for item in text.strip("[]()").split(",") if item.strip()
        ]
    if hint is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return float(text) if hint is float else int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def to_toml(config: Config) -> str:
    """Values are written as JSON, which TOML reads the same, but for one character."""

    def line(key: str, value: Any) -> str:
        return f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")

    values = to_dict(config)
    lines = [line(key, value) for key, value in values.items() if not isinstance(value, dict)]
    for section, entries in values.items():
        if isinstance(entries, dict):
            lines += ["", f"[{section}]", *(line(key, value) for key, value in entries.items())]
    return "\n".join(lines) + "\n"


def load(path: Path) -> Config:
    try:
        return from_dict(_renamed(tomllib.loads(path.read_text(encoding="utf-8"))))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a TOML file: {error}") from None


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    """Files of earlier versions: what a key was called, under the name it has now."""
    model = values.get("model")
    if isinstance(model, dict) and (before := model.pop("attention_init", None)):
        model.setdefault("init", {"packed": "fairseq_2019"}.get(before, before))
    return values
