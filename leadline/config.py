"""What to run: every key is declared once, here, with its default. Nothing else in the package reads options.

How they are read from TOML and from `--set a.b=c`, and written: leadline.options.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from leadline import options
from leadline.errors import UserError
from leadline.options import Values, from_dict, to_dict
from leadline.options import to_toml as to_toml

LANGUAGE = r"[A-Za-z]{2,3}(?:_[A-Za-z0-9]+)*"
DIRECTION = re.compile(rf"both|(?:X|{LANGUAGE})-(?:X|{LANGUAGE})")


def added(default: Any, neutral: object) -> Any:
    """An option that came later: with `neutral` the result is what it was without the option."""
    return field(default=default, metadata={"neutral": neutral})


def _require(where: str, options: object, names: str, holds: Callable[[Any], bool], said: str) -> None:
    for name in names.split():
        if not holds(value := getattr(options, name)):
            raise UserError(f"{where}.{name} must be {said}, not {value}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The Transformer. A stack with 0 layers does not exist, so the layer counts also choose the architecture."""

    placement: str = "pre_ln"  # where the norms are: a name (leadline placements) or your.module:YourPlacement
    encoder_layers: int = 6  # layers of the encoder; 0: no encoder
    decoder_layers: int = 6  # layers of the decoder; 0: no decoder
    dim: int = 512  # width of the residual stream and the embeddings
    ffn_dim: int = 1024  # width inside the feed-forward layers
    heads: int = 4  # attention heads; each is model.dim / heads wide unless model.head_dim is set
    # the kind of norm; dyt: Dynamic Tanh in place of a norm
    norm: Literal["layer_norm", "rms_norm", "dyt"] = "layer_norm"
    norm_eps: float = 1e-5  # added to the variance in every norm; the original BERT has 1e-12
    # of the feed-forward layers; gelu_tanh: as in GPT-2; silu: as in OPUS-MT; swiglu: SiLU(x·Wgᵀ)⊙x·Wᵀ, with a third
    # matrix, as wide as model.ffn_dim
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu"] = "relu"
    dropout: float = 0.1  # on embeddings and on the output of every sublayer
    attention_dropout: float = 0.0  # on the attention weights
    activation_dropout: float = 0.0  # inside the feed-forward layers, after the activation
    # the base initialisation (docs/placements.md); auto: the one on which the placement's constants are defined
    init: Literal["auto", "xavier", "fairseq_2019", "fairseq_2020"] = "auto"
    # sinusoidal and learned are added to the embeddings; rotary rotates queries and keys of self-attention
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    max_length: int = 256  # longest sequence in tokens; longer ones are left out of training and counted
    # tied: one matrix for all; output_tied: one per language; separate: three
    embeddings: Literal["tied", "output_tied", "separate"] = "tied"
    embed_norm: bool = False  # a layer norm on the embeddings, as in BERT
    segments: int = 0  # number of segment embeddings, such as BERT's 2; 0: none
    # the output layer; bias: with an output bias, as in OPUS-MT; bert: after BERT's dense layer and norm
    head: Literal["linear", "bias", "bert"] = "linear"
    classes: int = 0  # classes predicted from the first token by BERT's pooler; 0: none
    embed_scale: bool = added(default=True, neutral=True)  # multiply embeddings by √dim; the original BERT does not
    pooler: bool = added(default=False, neutral=False)  # include BERT's pooler even where nothing reads it
    kv_heads: int = added(default=0, neutral=0)  # heads of keys and values (grouped-query); 0: model.heads
    head_dim: int = added(default=0, neutral=0)  # width of a head; 0: model.dim / model.heads
    rotary_theta: float = added(default=10000.0, neutral=10000.0)  # rotary: the longest wavelength is about 2π·this
    # normalise queries and keys, over each head (Qwen3) or over all heads together (OLMo 2)
    qk_norm: Literal["none", "head", "width"] = added(default="none", neutral="none")
    bias: bool = added(default=True, neutral=True)  # whether matrices and layer norms of the blocks have biases

    def __post_init__(self) -> None:
        if self.encoder_layers < 0 or self.decoder_layers < 0 or self.encoder_layers + self.decoder_layers == 0:
            raise UserError("model.encoder_layers and model.decoder_layers must be 0 or more, and not both 0")
        _require("model", self, "dim ffn_dim heads max_length", lambda n: n >= 1, "at least 1")
        _require("model", self, "segments classes kv_heads head_dim", lambda n: n >= 0, "0 or more")
        _require("model", self, "norm_eps", lambda x: 0 < x < 1, "above 0 and below 1")
        _require("model", self, "rotary_theta", lambda x: 1 < x < math.inf, "a number above 1")
        shares = "dropout attention_dropout activation_dropout"
        _require("model", self, shares, lambda p: 0 <= p < 1, "at least 0 and below 1")
        if self.dim % 2 or (self.dim % self.heads and not self.head_dim):
            raise UserError(f"model.dim={self.dim} must be even and a multiple of model.heads={self.heads}")
        if self.heads % self.groups:
            raise UserError(f"model.heads={self.heads} must be a multiple of model.kv_heads={self.kv_heads}")
        if self.positions == "rotary" and (width := self.head_width) % 2:
            raise UserError(f"rotary positions turn pairs, and a head is {width} wide: make model.head_dim even")
        if self.head == "bert" and self.activation == "swiglu":
            raise UserError("model.head=bert has no gate: choose another model.activation than swiglu")

    @property
    def architecture(self) -> str:
        if self.encoder_layers and self.decoder_layers:
            return "encoder-decoder"
        return "encoder-only" if self.encoder_layers else "decoder-only"

    @property
    def head_width(self) -> int:
        return self.head_dim or self.dim // self.heads

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The corpus: where it comes from and how it becomes tokens."""

    # builtin:NAME, text:FOLDER, many:FOLDER, hf:NAME, documents:PATH, hf-documents:NAME, table:PATH, prepared:FOLDER
    source: str = "builtin:numerals"
    source_lang: str = "de"  # the language to translate from: the ending of its files
    target_lang: str = "en"  # the language to translate into
    # raw: use text as it is; moses_normalize: normalise punctuation with Moses; moses: also tokenise; tokenized: it
    # already is; auto: tokenized or raw, judged by the first lines
    text: Literal["raw", "moses_normalize", "moses", "tokenized", "auto"] = "raw"
    lowercase: bool = False  # lower-case all text first
    # how the vocabulary is learnt; wordpiece is not fully deterministic: a few tokens may differ; byte_bpe: byte-level,
    # for language models: any text can be encoded and decoded without loss
    tokenizer: Literal["bpe", "wordpiece", "byte_bpe"] = "bpe"
    vocab_size: int = 10000  # size of the vocabulary, shared by all languages
    vocabulary: str = ""  # a tokenizer.json to use instead; vocab_size and tokenizer are then ignored
    first: str = "sentence1"  # tables: the column of the text
    second: str = "sentence2"  # tables: the column of the second text of a pair; "": no pairs
    label: str = "label"  # tables: the column to predict
    size: int = 50000  # training pairs to generate, for builtin sources; text is always used in full
    holdout: int = 0  # pairs taken from train for valid, and as many for test, if the folder has none
    valid_every: int = 200  # documents: one in this many is for validation
    seed: int = 0  # seed for what is generated or held out
    # many languages: the directions to train: de-en (from de into en), X-en (all into en), en-X, both (all), or several
    directions: tuple[str, ...] = added(default=(), neutral=())
    temperature: float = added(default=1.0, neutral=1.0)  # directions are sampled in proportion to size^(1/this)
    # many languages: where the tag for the target language goes: first in the source, or in the target in place of <s>
    tag: Literal["source", "target"] = added(default="source", neutral="source")

    def __post_init__(self) -> None:
        _require("data", self, "vocab_size", lambda n: 8 <= n <= 1_000_000, "from 8 to 1,000,000")
        _require("data", self, "size", lambda n: 1 <= n <= 10_000_000, "from 1 to 10,000,000")
        _require("data", self, "holdout seed", lambda n: n >= 0, "0 or more")
        _require("data", self, "valid_every", lambda n: n >= 2, "at least 2")
        _require("data", self, "temperature", lambda t: t >= 1, "1 (as the data is) or more")
        for name in ("source", "source_lang", "target_lang", "vocabulary"):
            if "\0" in getattr(self, name):
                raise UserError(f"data.{name}={getattr(self, name)!r} cannot contain a NUL character")
        for name in ("source_lang", "target_lang"):
            if "/" in getattr(self, name):
                raise UserError(f"data.{name}={getattr(self, name)!r} is not a language: give a code such as de")
        for direction in self.directions:
            if not DIRECTION.fullmatch(direction):
                raise UserError(
                    f"data.directions: {direction!r} is not a direction: write de-en for German into English, X-en for "
                    "all languages into English, en-X for English into all, or both"
                )


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer and its learning rate; each schedule is a function in leadline.training.optim."""

    name: Literal["adam", "adamw", "sgd", "radam", "muon"] = "adam"  # muon: for the blocks
    # the peak learning rate; auto: chosen before training by short trainings at several rates
    lr: float | Literal["auto"] = 5e-4
    betas: tuple[float, float] = (0.9, 0.98)  # Adam's decay rates of the mean gradient and of the squared gradient
    eps: float = 1e-9  # Adam's ε: added to the root of the mean squared gradient
    weight_decay: float = 0.0  # on matrices; added to the gradient in adam and sgd, decoupled in the others
    decay_embeddings: bool = added(default=True, neutral=True)  # false: no weight decay on embeddings
    momentum: float = 0.0  # of sgd
    clip: float = 0.0  # largest gradient norm; 0: no clipping
    # how the learning rate falls after warm-up
    schedule: Literal["inverse_sqrt", "hold_inverse_sqrt", "linear", "constant", "step", "cosine"] = "hold_inverse_sqrt"
    warmup: int | Literal["auto"] = 1  # updates of linear warm-up; 0 or 1: none; auto: a tenth of all, at most 4,000
    hold: int = 4000  # hold_inverse_sqrt: updates at the full rate before the decay
    decay_at: tuple[int, ...] = ()  # step: when to multiply the rate by decay_factor
    decay_unit: Literal["epochs", "updates"] = "epochs"  # step: the unit of decay_at
    decay_factor: float = 0.1  # step: what the rate is multiplied by
    after_decay: Literal["constant", "inverse_sqrt"] = "constant"  # step: the schedule after the last decay

    def __post_init__(self) -> None:
        _require("optim", self, "lr", lambda x: x == "auto" or 0 < x < math.inf, "a number above 0")
        _require("optim", self, "warmup", lambda n: n == "auto" or n >= 0, "0 or more")
        _require("optim", self, "clip weight_decay momentum decay_factor", lambda x: 0 <= x < math.inf, "0 or more")
        _require("optim", self, "eps", lambda x: 0 < x < math.inf, "above 0, or Adam divides 0 by 0")
        _require("optim", self, "hold", lambda n: n >= 1, "at least 1")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"optim.betas must each be at least 0 and below 1, not {self.betas}")
        if min(self.decay_at, default=1) < 1 or list(self.decay_at) != sorted(set(self.decay_at)):
            raise UserError(f"optim.decay_at must be numbers from 1 on, each above the one before, not {self.decay_at}")

    @property
    def known_lr(self) -> float:
        if self.lr == "auto":
            raise UserError("optim.lr=auto is chosen when a training begins: give a number here")
        return self.lr

    @property
    def known_warmup(self) -> int:
        if self.warmup == "auto":
            raise UserError("optim.warmup=auto is chosen when a training begins: give a number here")
        return self.warmup


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long, in what batches and on what machine."""

    updates: int = 0  # stop after this many updates; 0: train.epochs decides
    epochs: int = 0  # stop after this many epochs; 0: train.updates decides
    batch_tokens: int = 4096  # tokens in a packed batch; target tokens, where there is a target
    batch_sequences: int = 0  # classification: sequences in a batch; batch_tokens is then only an upper limit
    accumulate: int = 1  # gradient accumulation: batches per update, over all processes
    label_smoothing: float = 0.1  # share of the target's probability that is spread over all tokens
    seed: int = 1  # seed for initial weights, data order, dropout and masks
    start: str = ""  # start from the weights of this run
    start_checkpoint: str = "best"  # the checkpoint of train.start: best, last, average:K or a number
    device: str = "auto"  # auto, cpu, cuda or cuda:1
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 on a GPU that has it, else fp32; weights are fp32
    # graph: captured once and replayed, the fastest, CUDA only; eager: anywhere; compiled: torch.compile, block by
    # block; auto: graph in bf16 on an NVIDIA GPU where it can be used, else eager
    step: Literal["auto", "eager", "compiled", "graph"] = "auto"
    recompute: bool = False  # gradient checkpointing, block by block: less memory, a third more work
    eval_every: int = 0  # updates between evaluations; 0: after every epoch; -1: never
    bleu_sentences: int = 0  # validation sentences translated at each evaluation; 0: none; -1: all
    patience: int = 0  # stop after this many evaluations without a better validation loss; 0: never
    save_every: int = 0  # updates between checkpoints; 0: only at evaluations
    keep: int = 3  # recent checkpoints to keep, in addition to the best
    log_every: int = 10  # updates between lines of metrics.jsonl
    # when loss or gradient norm is far above usual: ignore: only a value that is not finite stops the training; stop;
    # skip: leave the weights as they are; rollback: return to the last checkpoint and leave the batch out
    on_spike: Literal["ignore", "stop", "skip", "rollback"] = added(default="ignore", neutral="ignore")
    spike_lr: float = added(default=1.0, neutral=1.0)  # each rollback multiplies the learning rate by this
    # tokens per update, a multiple of batch_tokens: another way to set accumulate; 0: train.accumulate decides
    global_tokens: int = added(default=0, neutral=0)

    def __post_init__(self) -> None:
        if self.updates < 0 or self.epochs < 0 or self.updates + self.epochs == 0:
            raise UserError(
                f"train.updates={self.updates} and train.epochs={self.epochs}: one must be above 0, or training would "
                "never stop, and neither below 0"
            )
        _require("train", self, "batch_tokens accumulate keep log_every", lambda n: n >= 1, "at least 1")
        _require("train", self, "batch_sequences seed patience save_every", lambda n: n >= 0, "0 or more")
        _require("train", self, "eval_every bleu_sentences", lambda n: n >= -1, "-1 or more")
        _require("train", self, "spike_lr", lambda x: 0 < x <= 1, "above 0 and at most 1")
        _require("train", self, "label_smoothing", lambda x: 0 <= x < 1, "at least 0 and below 1")
        if self.global_tokens and (self.accumulate > 1 or self.batch_sequences):
            raise UserError("train.global_tokens says how large an update is: leave accumulate and batch_sequences out")
        if self.global_tokens < 0 or self.global_tokens % self.batch_tokens:
            near = max(1, round(self.global_tokens / self.batch_tokens)) * self.batch_tokens
            raise UserError(
                f"train.global_tokens={self.global_tokens} must be a multiple of train.batch_tokens="
                f"{self.batch_tokens}, such as {near}"
            )
        if self.patience and self.eval_every < 0:
            raise UserError("train.patience counts evaluations, and train.eval_every=-1 makes none: set either to 0")

    @property
    def micro_batches(self) -> int:
        """Batches of one update, by all processes together."""
        return self.global_tokens // self.batch_tokens or self.accumulate


@dataclass(frozen=True, kw_only=True)
class MaskConfig:
    """What a masked language model has to predict."""

    share: float = 0.15  # share of the tokens that the model has to predict
    whole_words: bool = False  # mask all pieces of a word or none

    def __post_init__(self) -> None:
        _require("mask", self, "share", lambda x: 0 < x < 1, "above 0 and below 1")


@dataclass(frozen=True, kw_only=True)
class LMConfig:
    """What a language model is trained on."""

    # let a sequence continue into the next document; otherwise no token attends to another document
    across_documents: bool = added(default=False, neutral=False)


@dataclass(frozen=True, kw_only=True)
class GenerateConfig:
    """How a language model continues a prompt."""

    tokens: int = added(default=256, neutral=256)  # new tokens at most; model.max_length is a limit too
    temperature: float = added(default=1.0, neutral=1.0)  # divides the logits; 0: always the most likely token
    top_k: int = added(default=0, neutral=0)  # sample from this many of the likeliest tokens; 0: from all
    top_p: float = added(default=1.0, neutral=1.0)  # sample from the likeliest tokens that reach this probability
    seed: int = added(default=1, neutral=1)  # seed for sampling; the same prompt gives the same text

    def __post_init__(self) -> None:
        _require("generate", self, "tokens", lambda n: n >= 1, "at least 1")
        _require("generate", self, "top_k seed", lambda n: n >= 0, "0 or more")
        _require("generate", self, "temperature", lambda t: 0 <= t <= 100, "from 0 to 100")
        _require("generate", self, "top_p", lambda p: 0 < p <= 1, "above 0 and at most 1")


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """How translations are decoded."""

    beam: int = 5  # hypotheses kept for each sentence; 1: greedy search
    length_penalty: float = 1.0  # scores are divided by length ** length_penalty
    batch_tokens: int = 4096  # source tokens translated at a time
    max_ratio: float = 2.0  # a translation is at most this many times its source, plus 20 tokens

    def __post_init__(self) -> None:
        _require("decode", self, "beam", lambda n: 1 <= n <= 1000, "from 1 to 1000")
        _require("decode", self, "batch_tokens", lambda n: n >= 1, "at least 1")
        _require("decode", self, "max_ratio", lambda x: 0 < x <= 1000, "above 0 and at most 1000")
        _require("decode", self, "length_penalty", lambda x: 0 <= x <= 1000, "from 0 to 1000")


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run."""

    task: str = "translation"  # translation, causal_lm, masked_lm or classification
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=10))
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    mask: MaskConfig = field(default_factory=MaskConfig)
    lm: LMConfig = field(default_factory=LMConfig)
    generate: GenerateConfig = field(default_factory=GenerateConfig)

    def set(self, **sections: Values) -> Config:
        """A copy with some keys changed: `config.set(optim={"lr": 1e-3}, train={"seed": 2})`."""
        return from_dict(options.merge(to_dict(self), sections), Config)


PLACES = ("train.device", "train.start", "train.start_checkpoint")  # options that say where, and not what

# What a run may change when it goes on; with anything else it would be another run (see train.start).
LATER = {
    "data.source",  # these may have moved; that they are the same is checked
    "data.vocabulary",
    *(f"decode.{option.name}" for option in dataclasses.fields(DecodeConfig)),
    *(f"generate.{option.name}" for option in dataclasses.fields(GenerateConfig)),
    *(f"optim.{option.name}" for option in dataclasses.fields(OptimConfig) if option.name != "name"),
    *(f"train.{name}" for name in ("updates", "epochs", "device", "precision", "step", "recompute", "eval_every")),
    *(f"train.{name}" for name in ("bleu_sentences", "patience", "save_every", "keep", "log_every")),
    *(f"train.{name}" for name in ("on_spike", "spike_lr")),
}


def settings(config: Config) -> Values:
    """Every option that says what is computed, such as "optim.lr", whether it is at its default or not.

    An option added later is declared with `added`, and left out where it changes nothing: what was computed before it
    existed is still the same. A default that changes is another value here.
    """
    if config.train.step == "auto" and config.train.precision == "fp32":  # which is the eager step on every machine
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, step="eager"))
    return {
        f"{section.name}.{option}": value
        for section in dataclasses.fields(config)
        if dataclasses.is_dataclass(getattr(config, section.name)) and section.name != "data"
        for option, value in without_neutral(getattr(config, section.name)).items()
        if f"{section.name}.{option}" not in PLACES
    }


def without_neutral(section: Any) -> Values:
    """A section as a dictionary, without options added later that change nothing."""
    plain = {f.name: f.metadata["neutral"] for f in dataclasses.fields(section) if "neutral" in f.metadata}
    neutral = {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}
    return {name: value for name, value in to_dict(section).items() if name not in neutral or value != neutral[name]}


def override(config: Config, assignments: list[str]) -> Config:
    """Apply `--set section.key=value` strings, each read as the kind its key declares."""
    return from_dict(options.assigned(to_dict(config), assignments, Config), Config)


def load(path: Path) -> Config:
    values = renamed(options.read_toml(path))
    try:
        return from_dict(values, Config)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def renamed(values: Values) -> Values:
    """Files of earlier versions: what a key was called, under the name it has now."""
    model = values.get("model")
    if isinstance(model, dict) and (before := model.pop("attention_init", None)):
        model.setdefault("init", {"packed": "fairseq_2019"}.get(before, before))
    return values
