"""Where a training is computed."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import torch

from leadline import machine, world
from leadline.config import Config
from leadline.errors import UserError
from leadline.model.size import require_room_to_train


def find_device(name: str) -> torch.device:
    """The device of that name; of torchrun's processes on one machine each has a GPU of its own while there are any."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and world.started() and torch.cuda.is_available():
        name = f"cuda:{world.local_rank() % torch.cuda.device_count()}"
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):  # never tried on
            raise RuntimeError
    except RuntimeError:
        raise UserError(f"train.device={name!r} is not a device: use auto, cpu, cuda or cuda:1") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"train.device={name!r}: this machine has no CUDA device: use auto or cpu")
    if device.type == "cuda" and device.index is not None:
        if device.index >= torch.cuda.device_count():
            raise UserError(f"train.device={name!r}: this machine has {torch.cuda.device_count()} CUDA devices")
        torch.cuda.set_device(device)  # Triton and CUDA graphs work on the current one
    return device


def resolved(config: Config) -> Config:
    """With the precision that suits its device, where the config leaves that open."""
    if config.train.precision != "auto":
        return config
    device = find_device(config.train.device)
    fast = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return config.set(train={"precision": "bf16" if fast else "fp32"})


def require_memory(config: Config, vocabulary: int, device: torch.device, processes: int = 1) -> None:
    """What certainly does not fit is refused before it is built."""
    cuda = device.type == "cuda"
    available = torch.cuda.get_device_properties(device).total_memory if cuda else machine.memory()
    require_room_to_train(config, vocabulary, available, f"the GPU {device}" if cuda else "this machine", processes)


def release_memory() -> None:
    """Of what is no longer used: a model on fused kernels and its operations hold each other."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def telling_of_memory(config: Config) -> Iterator[None]:
    """What turns out not to fit on the GPU is a sentence."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise UserError(
            f"the GPU has too little memory for batches of {config.train.batch_tokens} tokens: lower "
            "train.batch_tokens (and raise train.accumulate), or set train.recompute=true"
        ) from None
