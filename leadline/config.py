"""What to run: every key is declared once, here, with its default. Nothing else in the package reads options.

How they are read from TOML and from `--set a.b=c`, and written: leadline.options.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from leadline import options
from leadline.errors import UserError
from leadline.options import to_dict
from leadline.options import to_toml as to_toml


def added(default: Any, neutral: Any) -> Any:
    """An option that came later: with `neutral` the result is what it was without the option."""
    return field(default=default, metadata={"neutral": neutral})


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The Transformer. A stack with 0 layers does not exist, so the layer counts also choose the architecture."""

    placement: str = "pre_ln"  # where the norms are, by name (leadline placements) or your.module:YourPlacement
    encoder_layers: int = 6  # 0: no encoder
    decoder_layers: int = 6  # 0: no decoder
    dim: int = 512  # width of the residual stream and the embeddings
    ffn_dim: int = 1024  # width inside the feed-forward layers
    heads: int = 4  # attention heads; they share model.dim
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"  # which norm the placement places
    norm_eps: float = 1e-5  # added to the variance in every norm; BERT's own models have 1e-12
    activation: Literal["relu", "gelu"] = "relu"  # in the feed-forward layers
    dropout: float = 0.1  # on embeddings and on the output of every sublayer
    attention_dropout: float = 0.0  # on the attention weights
    activation_dropout: float = 0.0  # inside the feed-forward layers, after the activation
    # the base initialisation (docs/placements.md); auto: the one the placement's constants are defined on
    init: Literal["auto", "xavier", "fairseq_2019", "fairseq_2020"] = "auto"
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"  # how positions are embedded
    max_length: int = 256  # the longest sequence in tokens; longer ones are counted and left out of training
    # tied: one matrix; output_tied: one a language; separate: three
    embeddings: Literal["tied", "output_tied", "separate"] = "tied"
    embed_norm: bool = False  # a layer norm on the embeddings, as in BERT
    segments: int = 0  # kinds of segment that have an embedding, as BERT's two; 0: none
    head: Literal["linear", "bert"] = "linear"  # bert: BERT's dense layer and norm before the output matrix
    classes: int = 0  # outputs of BERT's pooler on the first token; 0: none
    embed_scale: bool = added(default=True, neutral=True)  # √dim times a token's embedding; BERT's own models: without
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

    source: str = "builtin:numerals"  # builtin:NAME, text:FOLDER, hf:NAME, documents:PATH, table:PATH, prepared:FOLDER
    source_lang: str = "de"  # the language to translate from: the ending of its files
    target_lang: str = "en"  # the language to translate into
    # raw: as it is; moses_normalize: normalise its punctuation; moses: tokenise it too; tokenized: it is already;
    # auto: tokenized or raw, as its first lines look
    text: Literal["raw", "moses_normalize", "moses", "tokenized", "auto"] = "raw"
    lowercase: bool = False  # put all text in lower case first
    # how the vocabulary is learnt; WordPiece is learnt with some chance: a few tokens may differ
    tokenizer: Literal["bpe", "wordpiece"] = "bpe"
    vocab_size: int = 10000  # tokens to learn, of both languages together
    vocabulary: str = ""  # a tokenizer.json to use instead of learning one: vocab_size and tokenizer then mean nothing
    first: str = "sentence1"  # tables: the column of the text
    second: str = "sentence2"  # tables: the column of the text that it is paired with; "": none
    label: str = "label"  # tables: the column to guess
    size: int = 50000  # training pairs to generate, for builtin sources; text is always used whole
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

    name: Literal["adam", "adamw", "sgd", "radam"] = "adam"  # the optimizer
    lr: float = 5e-4  # the highest learning rate of the schedule
    betas: tuple[float, float] = (0.9, 0.98)  # Adam's decay rates of the mean and of the squared gradient
    eps: float = 1e-9  # Adam's: added to the root of the squared gradient
    weight_decay: float = 0.0  # of matrices; decoupled in adamw and radam, added to the gradient in adam and sgd
    momentum: float = 0.0  # sgd only
    clip: float = 0.0  # largest gradient norm; 0: no clipping
    # the learning rate after warm-up
    schedule: Literal["inverse_sqrt", "hold_inverse_sqrt", "linear", "constant", "step", "cosine"] = "hold_inverse_sqrt"
    warmup: int = 1  # updates of linear rise; 0 or 1: none
    hold: int = 4000  # hold_inverse_sqrt: updates at the full rate before the decay
    decay_at: tuple[int, ...] = ()  # step: multiply the rate by decay_factor at each of these
    decay_unit: Literal["epochs", "updates"] = "epochs"  # step: what decay_at counts
    decay_factor: float = 0.1  # step: what the rate is multiplied by
    after_decay: Literal["constant", "inverse_sqrt"] = "constant"  # step: what follows the last decay

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise UserError(f"optim.lr must be a number above 0, not {self.lr}")
        for name in ("warmup", "clip", "weight_decay", "momentum", "eps", "decay_factor"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"optim.{name} must be 0 or more, not {getattr(self, name)}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"optim.betas must each be at least 0 and below 1, not {self.betas}")
        if self.hold < 1:
            raise UserError(f"optim.hold must be at least 1, not {self.hold}")
        if min(self.decay_at, default=1) < 1 or list(self.decay_at) != sorted(set(self.decay_at)):
            raise UserError(f"optim.decay_at must be numbers from 1 on, each above the one before, not {self.decay_at}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long, in what batches and on what machine."""

    updates: int = 0  # stop after this many; 0: epochs decide
    epochs: int = 0  # stop after this many; 0: updates decide
    batch_tokens: int = 4096  # tokens in a packed batch; of the target, where there is one
    batch_sequences: int = 0  # classification: sequences in a batch; batch_tokens is then the most they may take
    accumulate: int = 1  # batches summed into one update
    label_smoothing: float = 0.1  # share of the probability that the target spreads over all tokens
    seed: int = 1  # of the initial weights, the order of the data, dropout and masks
    start: str = ""  # a run whose weights this one starts from
    start_checkpoint: str = "best"  # which of its checkpoints: best, last, average:K or a number
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 on a GPU that has it, else fp32; weights are fp32
    # eager: anywhere; compiled: block by block with torch.compile; graph: captured once, the fastest, CUDA only
    step: Literal["eager", "compiled", "graph"] = "eager"
    recompute: bool = False  # gradient checkpointing by block: less memory, a third more work
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

    beam: int = 5  # hypotheses kept for each sentence; 1: greedy search
    length_penalty: float = 1.0  # scores are divided by length ** length_penalty
    batch_tokens: int = 4096  # source tokens translated at once
    max_ratio: float = 2.0  # a translation is at most this many times its source, plus 20 tokens

    def __post_init__(self) -> None:
        if not 1 <= self.beam <= 1000 or self.batch_tokens < 1:
            raise UserError("decode.beam must be from 1 to 1000, decode.batch_tokens at least 1")
        if not (0 < self.max_ratio <= 1000 and 0 <= self.length_penalty <= 1000):
            raise UserError("decode.max_ratio must be above 0 and at most 1000, decode.length_penalty from 0 to 1000")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run."""

    task: str = "translation"  # what is learnt: translation, masked_lm or classification
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=10))
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    mask: MaskConfig = field(default_factory=MaskConfig)

    def set(self, **sections: dict[str, Any]) -> Config:
        """A copy with some keys changed: `config.set(optim={"lr": 1e-3}, train={"seed": 2})`."""
        return from_dict(options.merge(to_dict(self), sections))


PLACES = ("train.device", "train.start", "train.start_checkpoint")  # options that say where, and not what

# What a run may change when it goes on; with anything else it would be another run (see train.start).
LATER = {
    "data.source",  # these may have moved; that they are the same is checked
    "data.vocabulary",
    *(f"decode.{option.name}" for option in dataclasses.fields(DecodeConfig)),
    *(f"optim.{option.name}" for option in dataclasses.fields(OptimConfig) if option.name != "name"),
    *(f"train.{name}" for name in ("updates", "epochs", "device", "precision", "step", "recompute", "eval_every")),
    *(f"train.{name}" for name in ("bleu_sentences", "patience", "save_every", "keep", "log_every")),
}


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
    return options.from_dict(values, kind, where)


def override(config: Config, assignments: list[str]) -> Config:
    """Apply `--set section.key=value` strings, each read as the kind its key declares."""
    return from_dict(options.assigned(to_dict(config), assignments, Config))


def load(path: Path) -> Config:
    return from_dict(renamed(options.read_toml(path)))


def renamed(values: dict[str, Any]) -> dict[str, Any]:
    """Files of earlier versions: what a key was called, under the name it has now."""
    model = values.get("model")
    if isinstance(model, dict) and (before := model.pop("attention_init", None)):
        model.setdefault("init", {"packed": "fairseq_2019"}.get(before, before))
    return values
