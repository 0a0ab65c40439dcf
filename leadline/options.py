"""Options declared as frozen dataclasses: read strictly from dicts, TOML and `--set a.b=c`, and written as TOML.

An unknown key or a value of the wrong kind is an error that names the nearest right one.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from leadline.errors import UserError, nearest

Values = dict[str, Any]  # options by name; those of a section are such a dictionary
Declared = TypeVar("Declared")

KINDS: dict[type, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
UNIONS = (typing.Union, types.UnionType)  # of a kind and words, such as a number or "auto"
LARGEST = 2**63  # whole numbers stay below: they become 64-bit integers


def to_dict(values: Any) -> Values:
    return {
        f.name: to_dict(value)
        if dataclasses.is_dataclass(value)
        else list(value)
        if isinstance(value, tuple)
        else value
        for f in dataclasses.fields(values)
        for value in [getattr(values, f.name)]
    }


def flat(values: Values, where: str = "") -> Values:
    """{"optim": {"lr": 1}} -> {"optim.lr": 1}"""
    return {
        key: value
        for name, item in values.items()
        for key, value in (flat(item, f"{where}{name}.") if isinstance(item, dict) else {where + name: item}).items()
    }


def merge(base: Values, changes: Values) -> Values:
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = merge(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
    return merged


def from_dict(values: Values, kind: type[Declared], where: str = "") -> Declared:
    """Strictly: unknown keys and values of the wrong kind raise."""
    hints = typing.get_type_hints(kind)
    known = list(hints)
    arguments = {}
    for key, value in values.items():
        if key not in known:
            meant = "" if where or isinstance(value, dict) else _meant(key, kind)  # without its section
            raise UserError(f"there is no key {where + key!r}: {meant or nearest(key, known)}")
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


def _checked(value: Any, hint: Any, key: str) -> object:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in UNIONS:
        kind, words = args[0], typing.get_args(args[1])
        if isinstance(value, str) and value not in words:
            raise UserError(f"{key} must be {KINDS[kind]} or {' or '.join(words)}, not {value!r}")
        return value if isinstance(value, str) else _checked(value, kind, key)
    if origin is Literal:
        if value not in args:
            raise UserError(f"{key} cannot be {value!r}: {nearest(str(value), args)}")
        return value
    if origin is tuple:
        items = list(value) if isinstance(value, list | tuple) else [value]
        if args[-1] is not Ellipsis and len(items) != len(args):
            raise UserError(f"{key} needs {len(args)} numbers, not {value!r}")
        return tuple(_checked(item, args[0], key) for item in items)
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST:
        value = float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not hint:
        raise UserError(f"{key} must be {KINDS[hint]}, not {value!r}")
    if hint is float and not math.isfinite(value):
        raise UserError(f"{key} must be a finite number, not {value}")
    if hint is int and abs(value) >= LARGEST:
        raise UserError(f"{key} must be below 2^63, about 9e18")
    return value


def assigned(values: Values, assignments: list[str], kind: type) -> Values:
    """`values` with each `section.key=text` applied, read as the kind that its key declares."""
    values = merge(values, {})
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"--set {assignment!r} has no '=': write it as --set optim.lr=1e-3")
        hint = typing.cast(Any, kind)
        names = path.strip().split(".")
        for i, name in enumerate(names):
            hints = typing.get_type_hints(hint) if dataclasses.is_dataclass(hint) else {}
            if name not in hints:
                choices = keys(kind) if i == 0 or not hints else [".".join([*names[:i], k]) for k in hints]
                raise UserError(f"there is no key {path!r}: {_meant(names[-1], kind) or nearest(path, choices)}")
            hint = hints[name]
        change = _parsed(text.strip(), hint)
        for name in reversed(names):
            change = {name: change}
        values = merge(values, change)
    return values


def _meant(word: str, kind: type) -> str:
    """Our key of that last name, whatever its section, or what other tools call so."""
    plain = word.lower().replace("_", "-")
    named = [k for k in keys(kind) if k == ELSEWHERE.get(plain) or k.split(".")[-1].replace("_", "-") == plain]
    return f"did you mean {' or '.join(map(repr, named))}?" if named else ""


def keys(kind: type, where: str = "") -> list[str]:
    """Every key a dataclass declares: "task", "model.dim", …"""
    hints = typing.get_type_hints(kind)
    return [
        key
        for f in dataclasses.fields(kind)
        for key in (
            keys(hints[f.name], f"{where}{f.name}.") if dataclasses.is_dataclass(hints[f.name]) else [where + f.name]
        )
    ]


def _parsed(text: str, hint: Any) -> Any:
    if hint is str or typing.get_origin(hint) is Literal:
        return text
    if typing.get_origin(hint) is tuple:
        return [
            _parsed(item.strip(), typing.get_args(hint)[0]) for item in text.strip("[]()").split(",") if item.strip()
        ]
    if typing.get_origin(hint) in UNIONS:
        hint = typing.get_args(hint)[0]
    if hint is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    for read in (int, float) if hint is int else (float,):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def to_toml(options: object, comments: Mapping[str, str] = types.MappingProxyType({})) -> str:
    """Values are written as JSON, which TOML reads the same, but for one character. `comments`: of keys of sections."""

    def line(key: str, value: object, section: str = "") -> str:
        comment = comments.get(f"{section}.{key}", "")
        said = f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        return f"{said}  # {comment}" if comment else said

    values = to_dict(options)
    lines = [line(key, value) for key, value in values.items() if not isinstance(value, dict)]
    for section, entries in values.items():
        if isinstance(entries, dict):
            lines += ["", f"[{section}]", *(line(key, value, section) for key, value in entries.items())]
    return "\n".join(lines) + "\n"


def read_toml(path: Path) -> Values:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # Windows editors begin a file with a mark
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except RecursionError:
        raise UserError(f"{path} is not a TOML file that can be read: it is nested too deeply") from None
    except ValueError as error:  # TOML's own errors are such, and those of encodings and of huge numbers
        raise UserError(f"{path} is not a TOML file: {error}") from None


ELSEWHERE = {  # what fairseq, transformers, JoeyNMT, OpenNMT and Marian call our keys
    name: key
    for key, names in {
        "optim.lr": "learning-rate",
        "train.batch_tokens": "batch-size bs max-tokens per-device-train-batch-size",
        "train.epochs": "max-epoch max-epochs num-epochs num-train-epochs",
        "train.updates": "steps max-steps max-update train-steps",
        "train.accumulate": "gradient-accumulation-steps update-freq",
        "train.precision": "fp16 bf16",
        "train.device": "gpu",
        "train.patience": "early-stopping",
        "train.eval_every": "eval-steps",
        "train.save_every": "save-steps",
        "train.log_every": "logging-steps",
        "optim.warmup": "warmup-steps warmup-updates",
        "optim.name": "optimizer",
        "optim.schedule": "lr-scheduler lr-scheduler-type",
        "optim.clip": "max-grad-norm clip-norm",
        "model.encoder_layers": "layers num-layers",
        "model.dim": "hidden-size d-model",
        "model.heads": "num-heads",
        "decode.beam": "beam-size num-beams",
        "decode.length_penalty": "lenpen",
        "data.source_lang": "src",
        "data.target_lang": "tgt",
    }.items()
    for name in names.split()
}
