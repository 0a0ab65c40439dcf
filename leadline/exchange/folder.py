"""What a folder of Hugging Face's transformers holds: its description and its weights, as it is named there."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from leadline import config as configuration
from leadline import files
from leadline.config import Config
from leadline.data.tokenizer import Tokenizer
from leadline.errors import UserError
from leadline.model import Transformer
from leadline.training import optim, saving
from leadline.training.checkpoint import State


def architecture(folder: Path) -> str:
    """What a folder says that it is."""
    names = description(folder).get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else "a model"


def description(folder: Path) -> dict[str, Any]:
    """config.json of a model that transformers itself has: code of a folder is never run."""
    path = folder / "config.json"
    described = read_json(path)
    if own := sorted(_own_code(described)):
        raise UserError(f"{path} names code of its own ({', '.join(own)}), which is never run: give a model without it")
    return described


def _own_code(described: Any) -> set[str]:
    """Keys, at any depth, by which a config names code: classes of its folder (auto_map), kernels of a hub."""
    named, left = set[str](), [described]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            named |= {"auto_map", "custom_pipelines"} & value.keys()
            named |= {key for key, item in value.items() if key.endswith("attn_implementation") and "/" in str(item)}
        left += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return named


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = files.read_json(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: give a folder that transformers has saved") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object")
    return value


def weights(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in _files(folder):
        try:
            tensors |= load_file(path)
        except FileNotFoundError:
            raise UserError(f"{path} does not exist: save the model with transformers' save_pretrained") from None
        except SafetensorError as error:
            raise UserError(f"{path} is damaged: {error}") from None
    return tensors


def _files(folder: Path) -> list[Path]:
    """One file, or those that an index names; whatever else lies there is not the model's."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists() or not index.exists():
        return [folder / "model.safetensors"]
    named = read_json(index).get("weight_map")
    names = sorted(set(map(str, named.values()))) if isinstance(named, dict) else []
    if not names or any(Path(name).name != name for name in names):
        raise UserError(f"{index} does not name the files of a model: save it with transformers' save_pretrained")
    return [folder / name for name in names]


def require_empty(out: Path) -> None:
    """Makes the folder to write to."""
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty: choose another folder")
    out.mkdir(parents=True, exist_ok=True)


def write_run(out: Path, tokenizer: Tokenizer, model: Transformer, config: Config) -> None:
    """A run that has not been trained yet, whole or not at all; what a failed one leaves would be in its own way."""
    text, optimizer = configuration.to_toml(config), optim.optimizer(config.optim, model)
    try:
        out.mkdir(parents=True, exist_ok=True)
        files.write_text(out / "tokenizer.json", tokenizer.bpe.to_str(pretty=True))
        saving.save(out, State(config=files.sha256_of(text)), model, optimizer, keep=1)
        files.write_text(out / "config.toml", text)  # the last: with it the folder is a run
    except (OSError, UserError) as error:
        shutil.rmtree(out / "checkpoints", ignore_errors=True)
        with contextlib.suppress(OSError):
            (out / "tokenizer.json").unlink()
        failure = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(failure, OSError):
            raise
        raise UserError(f"the run cannot be written to {out}: {files.reason(failure)}") from None


def fill(parameter: Tensor, value: Tensor, name: str) -> None:
    if parameter.shape != value.shape:
        raise UserError(f"{name} is {tuple(value.shape)}, and config.json makes it {tuple(parameter.shape)}")
    parameter.copy_(value)
