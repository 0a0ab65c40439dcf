"""Checkpoints: safetensors and JSON, written whole or not at all.

    checkpoints/00000300/model.safetensors
    checkpoints/00000300/optimizer.safetensors     "weight name/state name"
    checkpoints/00000300/state.json                where training stands, which checkpoint is the best, hashes

Nothing about random numbers is stored: data order and dropout are functions of (seed, update).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from leadline.errors import UserError
from leadline.files import read_json, reason, sha256, sha256_of, sync, to_json, write_json


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


def save(run: Path, state: State, model: nn.Module, optimizer: torch.optim.Optimizer, keep: int) -> Path:
    with Writer() as writer:
        writer.save(run, state, model, optimizer, keep)
    return _folder(run, state)


class Writer:
    """Saves while training goes on: `save` copies to host memory and returns, a thread writes.

    A write that fails raises its UserError from the next `save`, from `wait` or at the end of the `with` block.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._model, self._optimizer = _Image(), _Image()

    def save(self, run: Path, state: State, model: nn.Module, optimizer: torch.optim.Optimizer, keep: int) -> None:
        self.wait()  # it reads the memory that is filled here
        self._model.take(model_tensors(model))
        self._optimizer.take(_optimizer_tensors(model, optimizer))
        for device in {p.device for p in model.parameters() if p.is_cuda}:
            torch.cuda.synchronize(device)  # all copies were only queued
        files = {"model.safetensors": self._model, "optimizer.safetensors": self._optimizer}
        self._writing = self._thread.submit(_write, run, replace(state), files, keep)

    def wait(self) -> None:
        """Until the last checkpoint is whole."""
        writing, self._writing = self._writing, None
        if writing:
            writing.result()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(str(failure))  # what stopped the training matters more
        finally:
            self._thread.shutdown()


# What safetensors calls them, in the order in which it lays tensors out.
_DTYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class _Image:
    """A safetensors file in host memory, which is used again as long as names, types and shapes stay the same.

    It is written by one call and hashed by another, and neither holds the GIL. safetensors' `save_file` holds it for
    tens of milliseconds, and hashing in pieces asks for it thousands of times: training would wait, or make this wait.
    """

    def __init__(self) -> None:
        self.head, self.body = b"", torch.empty(0, dtype=torch.uint8)

    def take(self, tensors: dict[str, Tensor]) -> None:
        """Copy tensors to where they lie in the file. Copies from CUDA are only queued: synchronise."""
        order = list(_DTYPES)
        names = sorted(tensors, key=lambda name: (order.index(tensors[name].dtype), name))
        ends = list(accumulate((tensors[name].nbytes for name in names), initial=0))
        header = {
            name: {"dtype": _DTYPES[tensors[name].dtype], "shape": list(tensors[name].shape), "data_offsets": extent}
            for name, extent in zip(names, pairwise(ends), strict=True)
        }
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        head = len(text).to_bytes(8, "little") + text
        if head != self.head:
            # Pinned, because a copy from CUDA to other memory waits for the device each time.
            pinned = any(tensor.is_cuda for tensor in tensors.values())
            self.head, self.body = head, torch.empty(ends[-1], dtype=torch.uint8, pin_memory=pinned)
        for name, (begin, end) in zip(names, pairwise(ends), strict=True):
            tensor = tensors[name]
            place = self.body[begin:end].view(tensor.dtype).view(tensor.shape)
            place.copy_(tensor, non_blocking=tensor.is_cuda)

    def write(self, path: Path) -> str:
        """The SHA-256 of what was written."""
        body = self.body.numpy().data
        with path.open("wb") as file:
            file.write(self.head)
            file.write(body)
        digest = hashlib.sha256(self.head)
        digest.update(body)
        return digest.hexdigest()


def _folder(run: Path, state: State) -> Path:
    return run / "checkpoints" / f"{state.update:08d}"


def _write(run: Path, state: State, files: dict[str, _Image], keep: int) -> None:
    folder = _folder(run, state)
    building = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(building, ignore_errors=True)
    try:
        building.mkdir(parents=True)
        hashes = {name: image.write(building / name) for name, image in files.items()}
        write_json(building / "state.json", asdict(state) | {"sha256": hashes | {"state": _hash(asdict(state))}})
        for path in building.iterdir():
            sync(path)
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
        sync(folder.parent)
    except OSError as error:
        shutil.rmtree(building, ignore_errors=True)
        raise UserError(
            f"checkpoint {folder.name} cannot be written to {run}: {reason(error)}; earlier checkpoints are untouched: "
            f"make room and go on with leadline train --resume {run}"
        ) from error
    _prune(run, state, keep)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every weight once, under the first name it has."""
    return {name: p.detach() for name, p in model.named_parameters()}


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value.detach()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def _hash(state: dict[str, Any]) -> str:
    """Of what the file says, which in an earlier version's has fewer fields."""
    return sha256_of(to_json(state))


def names(run: Path) -> list[str]:
    """Checkpoints, oldest first."""
    folder = run / "checkpoints"
    return sorted(p.name for p in folder.glob("[0-9]*")) if folder.is_dir() else []


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


def _prune(run: Path, newest: State, keep: int) -> None:
    """Later ones than the newest were found damaged: training went on from before them."""
    known = names(run)
    last = [name for name in known if name <= f"{newest.update:08d}"][-keep:]
    kept = {f"{newest.best_update:08d}", *last}
    for name in known:
        if name not in kept:
            shutil.rmtree(run / "checkpoints" / name, ignore_errors=True)


class Damaged(Exception):
    pass


def _read_state(folder: Path) -> tuple[State, dict[str, str]]:
    """What its state.json says, and the hashes of the files beside it."""
    try:
        facts = read_json(folder / "state.json")
        hashes = facts.pop("sha256")
        if hashes.pop("state") == _hash(facts):
            return State(**facts), hashes
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{folder / 'state.json'} is damaged: {error}") from error
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


def restore_part(model: nn.Module, tensors: dict[str, Tensor], where: str, new: set[nn.Parameter]) -> None:
    """Copy weights by name into all but `new`; what the model has no place for is left out."""
    own = dict(model.named_parameters())
    kept = {name: parameter for name, parameter in own.items() if parameter in new}
    found = {name: tensor for name, tensor in tensors.items() if name in own.keys() - kept.keys()}
    restore_model(model, {name: parameter.detach() for name, parameter in kept.items()} | found, where)


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
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
