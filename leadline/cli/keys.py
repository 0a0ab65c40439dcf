"""Every option of a config with its default and meaning, read from where it is declared; what other tools call them."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import io
import textwrap
import tokenize
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from leadline.config import Config
from leadline.options import ELSEWHERE, flat, to_dict


@dataclass(frozen=True)
class Key:
    key: str
    default: object
    choices: tuple[str, ...]  # of a key that takes one of a few words
    meaning: str  # the comment beside its declaration


@functools.cache
def every() -> tuple[Key, ...]:
    config = Config()
    parts = {"": config} | {f"{f.name}.": getattr(config, f.name) for f in dataclasses.fields(config)}
    sections = {prefix: options for prefix, options in parts.items() if dataclasses.is_dataclass(options)}
    return tuple(key for prefix, options in sections.items() for key in _of(prefix, options))


def _of(prefix: str, options: Any) -> Iterator[Key]:
    hints, meanings = typing.get_type_hints(type(options)), comments(type(options))
    for name, hint in hints.items():
        if not dataclasses.is_dataclass(hint):
            choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
            yield Key(prefix + name, getattr(options, name), choices, meanings.get(name, ""))


def comments(declared: type) -> dict[str, str]:
    """The comment of each field of a dataclass: the lines right above it, and what stands behind it."""
    source = textwrap.dedent(inspect.getsource(declared))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    at = {token.start[0]: token for token in tokens if token.type == tokenize.COMMENT}
    alone = {line for line, token in at.items() if token.line.strip().startswith("#")}
    (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    meanings = {}
    for node in body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        first = node.lineno
        while first - 1 in alone:
            first -= 1
        lines = range(first, (node.end_lineno or node.lineno) + 1)
        meanings[node.target.id] = " ".join(at[line].string.lstrip("# ") for line in lines if line in at)
    return meanings


def matching(word: str) -> list[Key]:
    """The keys that have a word in their name, choices or meaning, or that other tools call so."""
    named = ELSEWHERE.get(_plain(word))

    def matches(key: Key) -> bool:
        text = " ".join([key.key, *key.choices, key.meaning]).lower()
        return word.lower() in text or _plain(word) in _plain(text) or key.key == named

    return [key for key in every() if matches(key)]


def instead_of(option: str) -> str:
    """For an option that is ours under another name: a sentence that says how it is written; "" for any other."""
    word = _plain(option.lstrip("-"))
    if word in OPTIONS:
        return f"there is no {option}: write {OPTIONS[word]}"
    keys = [key for key in every() if key.key == ELSEWHERE.get(word) or _plain(key.key.split(".")[-1]) == word]
    ways = " or ".join(f"--set {key.key}=… ({key.meaning})" for key in keys)
    return f"there is no {option}: write {ways}" if keys else ""


def unused(config: Config, asked: Iterable[str]) -> str:
    """Of the keys that were asked for, one that this config does not read, and why; "" if there is none."""
    values = flat(to_dict(config))
    for key in asked:
        for start, (decides, words) in READ_WITH.items():
            if key.startswith(start) and values[decides] not in words:
                return f"{key} means nothing with {decides}={values[decides]}"
    return ""


def _plain(word: str) -> str:
    return word.lower().replace("_", "-").replace(" ", "-")


READ_WITH = {  # keys that begin so are only read where another key has one of these values
    "decode.": ("task", ["translation"]),
    "mask.": ("task", ["masked_lm"]),
    "lm.": ("task", ["causal_lm"]),
    "generate.": ("task", ["causal_lm"]),
    "optim.momentum": ("optim.name", ["sgd"]),
    "optim.betas": ("optim.name", ["adam", "adamw", "radam", "muon"]),
    "optim.hold": ("optim.schedule", ["hold_inverse_sqrt"]),
    "optim.decay_at": ("optim.schedule", ["step"]),
    "optim.decay_factor": ("optim.schedule", ["step"]),
    "model.rotary_theta": ("model.positions", ["rotary"]),
}
OPTIONS = {  # what other tools call our options and arguments
    **dict.fromkeys(("output", "output-dir", "out-dir", "save-dir", "model-dir"), "--out FOLDER"),
    **dict.fromkeys(("config", "config-file", "cfg"), "the config.toml first, as in leadline train config.toml"),
    **dict.fromkeys(
        ("model", "arch", "model-name", "recipe"), "the recipe or run first, as in leadline train numerals"
    ),
    **dict.fromkeys(
        ("data", "dataset", "data-dir", "train-file", "train-data", "input"),
        "--set data.source=text:FOLDER (also many:, documents: or table:)",
    ),
    **dict.fromkeys(("gpus", "num-gpus", "n-gpu", "nproc"), "torchrun --nproc-per-node N -m leadline train …"),
    **dict.fromkeys(("average", "average-checkpoints", "avg"), "--checkpoint average:K"),
}
