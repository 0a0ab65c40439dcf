"""What a model can leave the house as: one table of formats, and what each holds exactly.

A format is chosen by where it goes, by architecture and by placement; then by options. What no format holds exactly is
refused in a sentence that names those that come nearest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from leadline.config import ModelConfig
from leadline.errors import UserError, nearest
from leadline.placement import PLACEMENTS, Architecture, DeepNorm, Placement, PostLN, PreLN, find
from leadline.placement.admin import Admin, AdminConstant
from leadline.placement.res_post_ln import ResPostLN

TARGETS = {"huggingface": "transformers", "ctranslate2": "CTranslate2"}  # --to, and how people call it
# LN(s·x + f(x)): the factor goes into weights (leadline.exchange.folding)
POST = (PostLN, DeepNorm, Admin, AdminConstant)


class Need(NamedTuple):
    says: str
    holds: Callable[[ModelConfig], bool]


@dataclass(frozen=True)
class Format:
    to: str
    name: str  # model_type in config.json
    title: str  # for people
    architecture: Architecture
    placements: tuple[type[Placement], ...]  # by their equation
    needs: tuple[Need, ...]

    @property
    def names(self) -> list[str]:
        """Our placements that it holds."""
        return [name for name, placement in PLACEMENTS.items() if self.holds(placement)]

    def holds(self, placement: type[Placement]) -> bool:
        return any(computes_as(placement, known) for known in self.placements)

    def lacking(self, config: ModelConfig) -> list[str]:
        return [need.says for need in self.needs if not need.holds(config)]


def computes_as(placement: type[Placement], known: type[Placement]) -> bool:
    """By its equation: a subclass may only differ in how it starts."""
    parts, of_known = (
        (one.forward, one.inside, one.norms, one.opens.__func__, one.final.__func__)  # type: ignore[attr-defined]
        for one in (placement, known)
    )
    return parts == of_known


def has_bare_output(config: ModelConfig) -> bool:
    """Whether there is an output matrix that no encoder of theirs has: without a transform before it, and not tied."""
    return config.head == "linear" and config.embeddings == "separate"


def _activation(*names: str) -> Need:
    return Need(f"model.activation={' or '.join(names)}", lambda m: m.activation in names)


LAYER_NORM = Need("model.norm=layer_norm", lambda m: m.norm == "layer_norm")
RMS_NORM = Need("model.norm=rms_norm", lambda m: m.norm == "rms_norm")
USUAL_EPS = Need("model.norm_eps=1e-5", lambda m: m.norm_eps == 1e-5)
BIAS = Need("model.bias=true", lambda m: m.bias)
NO_BIAS = Need("model.bias=false", lambda m: not m.bias)
ADDED_POSITIONS = Need("model.positions=sinusoidal or learned", lambda m: m.positions != "rotary")
ROTARY = Need("model.positions=rotary", lambda m: m.positions == "rotary")
UNGATED = _activation("relu", "gelu", "gelu_tanh", "silu")
EQUAL_HEADS = Need("model.kv_heads=0 and model.head_dim=0", lambda m: m.groups == m.heads and not m.head_dim)
EMBED_NORM = Need("model.embed_norm=true", lambda m: m.embed_norm)
NO_EMBED_NORM = Need("model.embed_norm=false", lambda m: not m.embed_norm)
TIED = Need("model.embeddings=tied", lambda m: m.embeddings == "tied")
NO_CLASSES = Need("neither segments nor classes", lambda m: not (m.segments or m.classes or m.pooler))
PLAIN_HEAD = Need("model.head=linear or bias", lambda m: m.head != "bert")
LINEAR_HEAD = Need("model.head=linear", lambda m: m.head == "linear")


def _qk_norm(name: str) -> Need:
    return Need(f"model.qk_norm={name}", lambda m: m.qk_norm == name)


CLASSIC = (LAYER_NORM, ADDED_POSITIONS, BIAS, _qk_norm("none"), EQUAL_HEADS)
NO_BIAS_ALONE = Need("model.head=linear or bert", lambda m: m.head != "bias")
TWO_CLASSES = Need("model.classes=0 or 2 with model.head=bert", lambda m: m.head != "bert" or m.classes in (0, 2))
ENCODER = (
    EMBED_NORM, NO_BIAS_ALONE, *CLASSIC, UNGATED,
    Need("model.embeddings=tied or model.head=bert", lambda m: bool(m.classes) or not has_bare_output(m)),
)  # fmt: skip
PRE_LN_HEAD = Need("model.activation=gelu", lambda m: m.head != "bert" or m.activation == "gelu")
DECODER = (NO_EMBED_NORM, LINEAR_HEAD, NO_CLASSES)
MODERN = (RMS_NORM, ROTARY, _activation("swiglu"), *DECODER)
TRANSLATOR = (*CLASSIC, UNGATED, NO_EMBED_NORM, PLAIN_HEAD, NO_CLASSES)

FORMATS = [
    Format("huggingface", "marian", "Marian", "encoder-decoder", POST, (*TRANSLATOR, USUAL_EPS)),
    Format("huggingface", "pegasus", "Pegasus", "encoder-decoder", (PreLN,), (*TRANSLATOR, USUAL_EPS, TIED)),
    Format("huggingface", "bert", "BERT", "encoder-only", POST, (*ENCODER, TWO_CLASSES)),
    Format("huggingface", "roberta-prelayernorm", "RoBERTa-PreLayerNorm", "encoder-only", (PreLN,),
           (*ENCODER, PRE_LN_HEAD)),
    Format("huggingface", "gpt2", "GPT-2", "decoder-only", (PreLN,),
           (*CLASSIC, _activation("gelu_tanh", "gelu"), *DECODER)),
    Format("huggingface", "opt", "OPT", "decoder-only", (PreLN, *POST), (*CLASSIC, UNGATED, USUAL_EPS, *DECODER)),
    Format("huggingface", "qwen3", "Qwen3", "decoder-only", (PreLN,), (*MODERN, _qk_norm("head"), NO_BIAS)),
    Format("huggingface", "llama", "Llama", "decoder-only", (PreLN,), (*MODERN, _qk_norm("none"))),
    Format("huggingface", "olmo2", "OLMo 2", "decoder-only", (ResPostLN,),
           (*MODERN, _qk_norm("width"), NO_BIAS, Need("model.head_dim=0", lambda m: not m.head_dim))),
    Format("ctranslate2", "ctranslate2", "CTranslate2", "encoder-decoder", (*POST, PreLN), TRANSLATOR),
]  # fmt: skip


def choose(config: ModelConfig, to: str = "huggingface") -> Format:
    """The format that says exactly what this model computes; a UserError where none does."""
    if to not in TARGETS:
        raise UserError(f"--to cannot be {to!r}: {nearest(to, TARGETS)}")
    rows = [row for row in FORMATS if row.to == to and row.architecture == config.architecture]
    if not rows:
        known = " and ".join(sorted({row.architecture for row in FORMATS if row.to == to}))
        raise UserError(
            f"this model is {config.architecture}, and what can be exported to {TARGETS[to]} is {known}: use --to "
            "huggingface"
        )
    placement = find(config.placement)
    near = [row for row in rows if row.holds(placement)]
    if not near:
        raise UserError(
            f"{config.placement} has no counterpart in {TARGETS[to]}: what can be exported is "
            + "; ".join(f"{', '.join(row.names)} as {row.title}" for row in rows)
        )
    lacking = {row.title: row.lacking(config) for row in near}
    if exact := next((row for row in near if not lacking[row.title]), None):
        return exact
    fewest = min(map(len, lacking.values()))
    wanted = [f"{title} needs {' and '.join(lacks)}" for title, lacks in lacking.items() if len(lacks) == fewest]
    raise UserError(f"{TARGETS[to]} has no format for this model: {'; '.join(wanted)}")


def markdown() -> str:
    """The table, for the guide."""
    rows = [
        f"| {TARGETS[row.to]} | {row.title} | {row.architecture} | {', '.join(f'`{n}`' for n in row.names)} | "
        f"{', '.join(f'`{need.says}`' for need in row.needs)} |"
        for row in FORMATS
    ]
    return "\n".join(["| to | format | model | placements | needs |", "|---|---|---|---|---|", *rows])
