"""What a loop of somebody's own sets rather than learns, noted of every update: mode, dropout, the optimizer's numbers,
which batch it was, and whether gradients began at zero. Rules on it are in `leadline.diagnose.settings`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leadline.diagnose.trace import tensors_in

NUMBERS = ("betas", "momentum", "eps", "weight_decay")  # of an optimizer's groups; the rate has a place of its own
SAMPLE = 1024  # numbers of a batch's tensors that tell it from another


class Beside:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.dropouts = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
        self.hooks: list[Any] = []
        self.stepped = False  # since the last backward pass
        self.incoming: Tensor | None = None
        self.kept: dict[str, Tensor] = {}

    def settings(self) -> dict[str, Any]:
        """At an optimizer step, when the forward pass is over."""
        said: dict[str, Any] = {"training": self.model.training}
        if self.dropouts:
            said["dropout"] = round(sum(m.p for m in self.dropouts) / len(self.dropouts), 6)
        for name in NUMBERS:
            values = [group[name] for group in self.optimizer.param_groups if name in group]
            if values and all(_is_plain(value) for value in values):
                said[name] = sorted(set(values))
        return said

    @torch.no_grad()
    def batch(self, args: Any, kwargs: Any) -> dict[str, Tensor]:
        """One number that is the same for the same batch, and hardly for another."""
        with contextlib.suppress(Exception):  # the training goes on, whatever it is given
            tensors = [t for t in tensors_in([args, kwargs]) if t.numel() > 1]
            return {"given": torch.stack([_mark(t) for t in tensors]).sum()}
        return {}

    # Whether gradients began at zero: what a backward pass adds to them is then all they are.

    def listen(self, weights: Sequence[nn.Parameter]) -> None:
        """Before a step: listens to the gradient of the smallest weight from the next backward pass on."""
        if self.hooks or _processes() > 1:  # which average gradients while they come
            return
        graded = [p for p in weights if p.grad is not None and p.grad.layout == torch.strided]
        if graded:
            p = min(graded, key=lambda p: p.numel())
            self.hooks = [p.register_hook(self._comes), p.register_post_accumulate_grad_hook(self._added)]

    def _comes(self, gradient: Tensor) -> None:
        self.incoming = gradient.detach() if self.stepped else None

    @torch.no_grad()
    def _added(self, p: Tensor) -> None:
        if self.incoming is not None and p.grad is not None:
            self.kept = {"kept": (p.grad - self.incoming).norm() / p.grad.norm().clamp_min(1e-30)}
        self.incoming, self.stepped = None, False

    def taken(self) -> dict[str, Tensor]:
        """The share of the gradient that was there before the first backward pass of an update."""
        kept, self.kept = self.kept, {}
        return kept

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()


def _mark(t: Tensor) -> Tensor:
    few = t.flatten()[:: max(1, t.numel() // SAMPLE) | 1].float()
    return (few * torch.arange(1, len(few) + 1, device=t.device).sqrt()).mean()


def _processes() -> int:
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if there else 1


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float) or (
        isinstance(value, tuple) and all(isinstance(number, int | float) for number in value)
    )
