"""Checkpoints are written while training goes on; what they hold: leadline.training.checkpoint."""

from __future__ import annotations

import hashlib
import json
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace, TracebackType

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from leadline.errors import UserError
from leadline.files import reason, sync, write_json
from leadline.training.checkpoint import State, hash_of, names

Stateful = Optimizer | SimpleNamespace  # anything that has the `state` of an optimizer


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

    def save(self, run: Path, state: State, model: nn.Module, optimizer: Stateful, keep: int) -> None:
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
        write_json(building / "state.json", asdict(state) | {"sha256": hashes | {"state": hash_of(asdict(state))}})
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


def _optimizer_tensors(model: nn.Module, optimizer: Stateful) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value.detach()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def _prune(run: Path, newest: State, keep: int) -> None:
    """Later ones than the newest were found damaged: training went on from before them."""
    known = names(run)
    last = [name for name in known if name <= f"{newest.update:08d}"][-keep:]
    kept = {f"{newest.best_update:08d}", *last}
    for name in known:
        if name not in kept:
            shutil.rmtree(run / "checkpoints" / name, ignore_errors=True)
