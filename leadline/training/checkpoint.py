"""Checkpoints: safetensors and JSON, written whole or not at all.

    checkpoints/00000300/model.safetensors
    checkpoints/00000300/optimizer.safetensors     "weight name/state name"
    checkpoints/00000300/state.json                where training stands, which checkpoint is the best, hashes

Nothing about random numbers is stored: data order and dropout are functions of (seed, update).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from leadline.errors import UserError
from leadline.files import Facts, read_json, sha256, sha256_of, to_json
from leadline.provenance import facts_of

NAME = re.compile("[0-9]{8,}")
IMPORTED = "imported"  # what run.json calls the initial weights of such a run


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
    losses: list[float] = field(default_factory=list)  # of the updates since the last line of metrics
    config: str = ""  # the SHA-256 of the config.toml it was trained with
    usual: dict[str, list[float]] = field(default_factory=dict)  # of loss and gradient norm: see leadline.usual
    left_out: list[list[int]] = field(default_factory=list)  # epoch and first batch of updates that were rolled back
    spikes: int = 0  # updates that were skipped or rolled back
    metrics: str = ""  # that of metrics.jsonl up to here; "": not known


def hash_of(state: Facts) -> str:
    """Of what the file says, which in an earlier version's has fewer fields."""
    return sha256_of(to_json(state))


def names(run: Path) -> list[str]:
    """Checkpoints, oldest first; what else lies there, such as a copy 00000300.bak, is none."""
    folder = run / "checkpoints"
    return sorted(p.name for p in folder.glob("[0-9]*") if NAME.fullmatch(p.name)) if folder.is_dir() else []


def is_imported(run: Path) -> bool:
    """Whether its first weights came from elsewhere, as those of leadline import."""
    return f"{0:08d}" in names(run) or facts_of(run).get("chosen", {}).get("init") == IMPORTED


def best(run: Path) -> str | None:
    """The one with the lowest validation loss, as the newest says; no other is taken where that is damaged."""
    known = names(run)
    if not known:
        return None
    try:
        name = f"{_read_state(run / 'checkpoints' / known[-1])[0].best_update:08d}"
    except Damaged as error:
        raise UserError(
            f"{error}, and it says which checkpoint is the best: choose one with --checkpoint ({', '.join(known)}), or "
            f"mend it with leadline train --resume {run}"
        ) from None
    return name if name in known else None


class Damaged(Exception):
    pass


def _read_state(folder: Path) -> tuple[State, dict[str, str]]:
    """What its state.json says, and the hashes of the files beside it."""
    try:
        facts = read_json(folder / "state.json")
        hashes = facts.pop("sha256")
        if hashes.pop("state") == hash_of(facts):
            state = State(**facts)
            state.losses = [math.nan if loss is None else loss for loss in state.losses]  # JSON has no NaN
            if folder.name != f"{state.update:08d}":
                raise ValueError(f"it is of update {state.update}: the folder was renamed or copied")
            configs = facts_of(folder.parent.parent).get("configs")  # not there: a run of an earlier version
            if configs and state.config and state.config not in configs:
                raise Damaged(f"{folder} is of another run: it was trained with a config that this run never had")
            return state, hashes
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise Damaged(f"{folder / 'state.json'} is damaged: {why}") from error
    raise Damaged(f"{folder / 'state.json'} is damaged")


def read(run: Path, name: str) -> tuple[State, dict[str, Tensor], dict[str, Tensor]]:
    """State, weights and optimizer state of a checkpoint; Damaged if a file is not what was written."""
    folder = run / "checkpoints" / name
    state, hashes = _read_state(folder)
    try:
        for file, expected in hashes.items():
            if sha256(folder / file) != expected:
                raise Damaged(f"{folder / file} is damaged")
        files = [load_file(folder / f"{kind}.safetensors") for kind in ("model", "optimizer")]
        return state, files[0], files[1]
    except (OSError, ValueError, AttributeError, SafetensorError) as error:
        raise Damaged(f"{folder} is damaged: {error}") from error


def newest_config(run: Path) -> str:
    """The SHA-256 of the config.toml that the newest checkpoint was trained with; "" where none says."""
    for name in reversed(names(run)):
        with contextlib.suppress(Damaged):
            return _read_state(run / "checkpoints" / name)[0].config
    return ""


def read_latest(
    run: Path, warn: Callable[[str], None] = lambda message: None
) -> tuple[State, dict[str, Tensor], dict[str, Tensor]] | None:
    """The newest checkpoint that is whole; falls back to the one before, and says so."""
    known = names(run)
    for name in reversed(known):
        try:
            return read(run, name)
        except Damaged as error:
            warn(f"{error}; falling back to the checkpoint before it")
    if known:
        raise UserError(f"all {len(known)} checkpoints of {run} are damaged: train again in another folder")
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


def restore_part(model: nn.Module, tensors: dict[str, Tensor], where: str, new: set[nn.Parameter]) -> None:
    """Copy weights by name into all but `new`; what the model has no place for is left out."""
    own = dict(model.named_parameters())
    kept = {name: parameter for name, parameter in own.items() if parameter in new}
    taken = {name: tensor for name, tensor in tensors.items() if name in own.keys() - kept.keys()}
    restore_model(model, {name: parameter.detach() for name, parameter in kept.items()} | taken, where)


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    own = dict(model.named_parameters())
    fused = bool(optimizer.param_groups[0].get("fused"))
    for full_name, value in tensors.items():
        name, _, key = full_name.rpartition("/")
        parameter = own[name]
        # Adam counts its steps on the CPU unless it is fused
        device = parameter.device if key != "step" or fused else torch.device("cpu")
        if key in optimizer.state[parameter]:  # a view of something larger, perhaps
            optimizer.state[parameter][key].copy_(value)
        else:
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


def fingerprint(weights: dict[str, Tensor]) -> str:
    """Changes when a weight does."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name} {tuple(weights[name].shape)} ".encode())
        digest.update(weights[name].contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def choose(run: Path, which: str) -> tuple[str, dict[str, Tensor]]:
    """The weights of `which`: best, last, average:K, or the number of a checkpoint; and its name."""
    known = names(run)
    if not known and (run / "result.json").exists():
        again = f"leadline train {run / 'config.toml'} --out FOLDER"
        raise UserError(
            f"{run} is one of many runs, whose weights were not kept: train it in a folder of its own: {again}"
        )
    if not known:
        raise UserError(f"{run} has no checkpoint yet: train it with leadline train --resume {run}")
    if which.startswith("average:"):
        count = which.removeprefix("average:")
        if not count.isdigit() or int(count) < 1:
            raise UserError(f"checkpoint {which!r}: write average:K with a number of checkpoints, such as average:5")
        return which, average(run, int(count))
    best_or_last = (best(run) if which == "best" else None) or known[-1]
    name = best_or_last if which in ("best", "last") else which.zfill(8)
    if name not in known:
        raise UserError(f"{run} has no checkpoint {which!r}: it has best, last, average:K and {', '.join(known)}")
    try:
        return name, read(run, name)[1]
    except Damaged as error:
        raise UserError(
            f"{error}: choose another with --checkpoint ({', '.join(n for n in known if n != name)})"
        ) from None
