"""Where a training is computed."""

from __future__ import annotations

import torch

from leadline import machine
from leadline.config import Config
from leadline.errors import UserError
from leadline.model.size import require_room_to_train


def find_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
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


def require_memory(config: Config, vocabulary: int, device: torch.device) -> None:
    """What certainly does not fit is refused before it is built."""
    cuda = device.type == "cuda"
    available = torch.cuda.get_device_properties(device).total_memory if cuda else machine.memory()
    require_room_to_train(config, vocabulary, available, f"the GPU {device}" if cuda else "this machine")
