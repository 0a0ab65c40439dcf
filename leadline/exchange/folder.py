"""Folders of Hugging Face's transformers, read and written: description, weights by name, and the run made of one."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from leadline import config as configuration
from leadline import files
from leadline.config import Config
from leadline.data.tokenizer import TARGET, Tokenizer
from leadline.errors import UserError
from leadline.files import Facts
from leadline.model import Transformer
from leadline.model.layers import Linear
from leadline.training import optim, saving
from leadline.training.checkpoint import State

# Each of our modules, and those of theirs whose rows it holds, one after the other.
Modules = Iterable[tuple[nn.Module, tuple[str, ...]]]


def architecture(folder: Path) -> str:
    """What a folder says that it is."""
    names = description(folder).get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else "a model"


def description(folder: Path) -> Facts:
    """config.json of a model that transformers itself has: code of a folder is never run."""
    path = folder / "config.json"
    described = read_json(path)
    if own := sorted(_own_code(described)):
        raise UserError(f"{path} names code of its own ({', '.join(own)}), which is never run: give a model without it")
    if described.get("quantization_config"):
        raise UserError(
            f"{path} has a quantization_config: its weights are rounded, give the model that they were made of"
        )
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


def by_own_names(described: Facts, names: dict[str, str]) -> Facts:
    """Keys that are other names of keys, by `names`, as those: transformers believes them more than those."""
    said = {own: described[name] for name, own in names.items() if described.get(name) is not None}
    return {key: value for key, value in described.items() if key not in names} | said


def flag(described: Facts, key: str, usual: bool, folder: Path) -> bool:
    value = described.get(key)
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{folder}/config.json: {key} must be true or false, not {value!r}")
    return usual if value is None else value


def require_values(described: Facts, must: Facts, folder: Path) -> None:
    """What only has a counterpart here at one value, where config.json says another."""
    for key, value in must.items():
        if described.get(key) not in (None, value):
            where = f"{folder}/config.json"
            raise UserError(f"{where}: {key}={described[key]!r} has no counterpart here, only {value!r}")


def read_json(path: Path) -> Facts:
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
            pickled = sorted(file.name for file in folder.glob("*.bin"))
            why = f" and {pickled[0]} is a pickle, which can run code and is never opened" if pickled else ""
            raise UserError(
                f"{path} does not exist{why}: save the model with save_pretrained of transformers, as safetensors"
            ) from None
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


def fill(parameter: Tensor, value: Tensor, name: str) -> None:
    if parameter.shape != value.shape:
        raise UserError(f"{name} is {tuple(value.shape)}, and config.json makes it {tuple(parameter.shape)}")
    if not value.isfinite().all():
        raise UserError(f"{name} holds values that are not finite: the file is damaged, or its training diverged")
    parameter.copy_(value)


def _parts(module: nn.Module, names: tuple[str, ...], parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What each of theirs has of a parameter of ours."""
    sizes = module.sizes if isinstance(module, Linear) and len(names) > 1 else [len(parameter)]
    return zip(names, parameter.split(sizes), strict=True)


def collect(modules: Modules, transposed: bool = False) -> dict[str, Tensor]:
    """Their weights by name. `transposed`: their matrices are [inputs, outputs]."""
    return {
        f"{name}.{key}": (part.t() if _turned(module, parameter, transposed) else part).clone().contiguous()
        for module, names in modules
        for key, parameter in module.named_parameters()
        for name, part in _parts(module, names, parameter.detach())
    }


def spread(modules: Modules, theirs: dict[str, Tensor], title: str, transposed: bool = False) -> set[str]:
    """Fill our modules with their weights; the names that were used."""
    used: set[str] = set()
    for module, names in modules:
        for key, parameter in module.named_parameters():
            for name, part in _parts(module, names, parameter.detach()):
                value = taken(theirs, f"{name}.{key}", title, used)
                turned = _turned(module, parameter, transposed) and value.ndim == 2
                fill(part, value.t() if turned else value, f"{name}.{key}")
    return used


def _turned(module: nn.Module, parameter: Tensor, transposed: bool) -> bool:
    return transposed and isinstance(module, Linear) and parameter.ndim == 2


def taken(theirs: dict[str, Tensor], name: str, title: str, used: set[str]) -> Tensor:
    if name not in theirs:
        raise UserError(f"the weights have no {name}, which {title} needs")
    used.add(name)
    return theirs[name]


def save_weights(theirs: dict[str, Tensor], out: Path) -> None:
    path = out / "model.safetensors"
    path.touch()
    mode = path.stat().st_mode  # as any other file has it: safetensors writes one that nobody else may read
    save_file(theirs, path, metadata={"format": "pt"})
    path.chmod(mode)


def cut_vocabulary(theirs: dict[str, Tensor], words: str, others: Iterable[str], size: int, folder: Path) -> list[str]:
    """Some models have more rows than their tokenizer has tokens: no text ever uses those."""
    rows = len(theirs.get(words, ()))
    if rows < size:
        raise UserError(f"the tokenizer of {folder} has {size} tokens, and its model only {rows}")
    for name in (words, *others):
        if name in theirs:
            theirs[name] = theirs[name][:size]
    return [f"{rows - size} rows of the vocabulary have no token and are left out"] if rows > size else []


def require_one(theirs: dict[str, Tensor], names: Iterable[str], folder: Path) -> None:
    """What config.json ties may be in the weights more than once, but not differ: transformers would not tie it."""
    first, *others = [name for name in names if name in theirs] or [""]
    if different := [name for name in others if not theirs[name].equal(theirs[first])]:
        raise UserError(
            f"{folder}/config.json ties {first} and {different[0]}, which differ in the weights: say "
            '"tie_word_embeddings": false there'
        )


def left_out(names: Iterable[str]) -> list[str]:
    """A note on weights that were not used."""
    left = sorted(names)
    return [f"{len(left)} weights have no place in this model and are left out: {', '.join(left[:3])}"] if left else []


def data_of(folder: Path, out: Path, vocab_size: int, **more: Any) -> Facts:
    """The data options of an imported run: it has none, and its vocabulary is that of whatever it is given."""
    given = {"source": f"imported:{folder.absolute()}", "vocab_size": vocab_size}
    return given | {"vocabulary": str((out / "tokenizer.json").absolute())} | more


def make_run(out: Path, config: Config, model: Transformer, tokenizer: Tokenizer) -> None:
    """A run that has not been trained yet, whole or not at all; what a failed one leaves would be in its own way."""
    text, optimizer = configuration.to_toml(config), optim.optimizer(config.optim, model)
    try:
        out.mkdir(parents=True, exist_ok=True)
        tokenizer.save(out)
        saving.save(out, State(config=files.sha256_of(text)), model, optimizer, keep=1)
        files.write_text(out / "config.toml", text)  # the last: with it the folder is a run
    except (OSError, UserError) as error:
        shutil.rmtree(out / "checkpoints", ignore_errors=True)
        for name in ("tokenizer.json", TARGET):
            (out / name).unlink(missing_ok=True)
        failure = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(failure, OSError):
            raise
        raise UserError(f"the run cannot be written to {out}: {files.reason(failure)}") from None
