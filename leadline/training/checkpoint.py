"""Checkpoints: safetensors and JSON, written whole or not at all.

    checkpoints/00000300/model.safetensors
    checkpoints/00000300/optimizer.safetensors     "weight name/state name"
    checkpoints/00000300/state.json                where training stands, which checkpoint is the best, hashes

Nothing about random numbers is stored: data order and dropout are functions of (seed, update).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from leadline.errors import UserError
from leadline.files import sha256, to_json, write_json


@dataclass
class State:
    """Where training stands after `update` updates."""

    update: int = 0
    epoch: int = 0
    batch: int = 0  # batches of this epoch already used
    seconds: float = 0.0
    tokens: int = 0
    best_update: int = 0
    best_nll: float | None = None
    stale: int = 0  # evaluations since the best


def save(run: Path, state: State, model: nn.Module, optimizer: torch.optim.Optimizer, keep: int) -> Path:
    folder = run / "checkpoints" / f"{state.update:08d}"
    building = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(building, ignore_errors=True)
    try:
        building.mkdir(parents=True)
        save_file(model_tensors(model), building / "model.safetensors")
        save_file(_optimizer_tensors(model, optimizer), building / "optimizer.safetensors")
        hashes = {path.name: sha256(path) for path in sorted(building.iterdir())}
        write_json(building / "state.json", asdict(state) | {"sha256": hashes | {"state": _state_hash(state)}})
        for path in building.iterdir():
            _flush(path)
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
        _flush(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(building, ignore_errors=True)
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
        reason = "the disk is full" if full else str(error)
        raise UserError(
            f"checkpoint {folder.name} cannot be written to {run}: {reason}; earlier checkpoints are untouched: "
            f"make room and go on with leadline train --resume {run}"
        ) from error
    _prune(run, folder.name, keep)
    return folder


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every weight once, under the first name it has."""
    return {name: p.detach().contiguous().cpu() for name, p in model.named_parameters()}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value.detach().contiguous().cpu()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def _state_hash(state: State) -> str:
    return hashlib.sha256(to_json(asdict(state)).encode()).hexdigest()


def names(run: Path) -> list[str]:
    """Checkpoints, oldest first."""
    folder = run / "checkpoints"
    return sorted(p.name for p in folder.glob("[0-9]*")) if folder.is_dir() else []


def best(run: Path) -> str | None:
    """The one with the lowest validation loss, as the newest says."""
    known = names(run)
    for name in reversed(known):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads((run / "checkpoints" / name / "state.json").read_text(encoding="utf-8"))
            found = f"{state['best_update']:08d}"
            return found if found in known else None
    return None


def _prune(run: Path, newest: str, keep: int) -> None:
    """Later ones than the newest were found damaged: training went on from before them."""
    known = names(run)
    kept = {best(run), *[name for name in known if name <= newest][-keep:]}
    for name in known:
        if name not in kept:
            shutil.rmtree(run / "checkpoints" / name, ignore_errors=True)


class Damaged(Exception):
    pass


def read(run: Path, name: str) -> tuple[State, dict[str, Tensor], dict[str, Tensor]]:
    """State, weights and optimizer state of a checkpoint; Damaged if a file is not what was written."""
    folder = run / "checkpoints" / name
    try:
        facts = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        hashes = facts.pop("sha256")
        state = State(**facts)
        if hashes.pop("state") != _state_hash(state):
            raise Damaged(f"{folder / 'state.json'} is damaged")
        for file, expected in hashes.items():
            if sha256(folder / file) != expected:
                raise Damaged(f"{folder / file} is damaged")
        files = [load_file(folder / f"{kind}.safetensors") for kind in ("model", "optimizer")]
        return state, files[0], files[1]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise Damaged(f"{folder} is damaged: {error}") from error


def read_latest(
    run: Path, warn: Any = lambda message: None
) -> tuple[State, dict[str, Tensor], dict[str, Tensor]] | None:
    """The newest checkpoint that is whole; falls back to the one before, and says so."""
    found = names(run)
    for name in reversed(found):
        try:
            return read(run, name)
        except Damaged as error:
            warn(f"{error}; falling back to the checkpoint before it")
    if found:
        raise UserError(f"all {len(found)} checkpoints of {run} are damaged: train again in another folder")
    return None


def restore_model(model: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Copy weights by name; a different shape or set of weights is an error that says which."""
    own = dict(model.named_parameters())
    if missing := sorted(own.keys() ^ tensors.keys()):
        raise UserError(f"{where} does not fit this model: {missing[0]!r} and {len(missing) - 1} more weights differ")
    with torch.no_grad():
        for name, parameter in own.items():
            if parameter.shape != tensors[name].shape:
                shapes = f"{tuple(tensors[name].shape)}, the model needs {tuple(parameter.shape)}"
                raise UserError(f"{where} does not fit this model: {name} is {shapes}")
            parameter.copy_(tensors[name])


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    own = dict(model.named_parameters())
    fused = bool(optimizer.param_groups[0].get("fused"))
    for full_name, value in tensors.items():
        name, _, key = full_name.rpartition("/")
        parameter = own[name]
        # Adam counts its steps on the CPU unless it is fused
        device = parameter.device if key != "step" or fused else torch.device("cpu")
        optimizer.state[parameter][key] = value.to(device)


def average(run: Path, count: int) -> dict[str, Tensor]:
    """The mean of the weights of the last `count` checkpoints, in float64."""
    chosen = names(run)[-count:]
    if len(chosen) < count:
        raise UserError(f"{run} has only {len(chosen)} checkpoints, not {count}: raise train.keep or average fewer")
    total: dict[str, Tensor] = {}
    for name in chosen:
        try:
            tensors = read(run, name)[1]
        except Damaged as error:
            raise UserError(f"{error}: it cannot be averaged") from None
        for key, tensor in tensors.items():
            total[key] = total[key] + tensor.double() if key in total else tensor.double()
    return {key: (tensor / count).float() for key, tensor in total.items()}
