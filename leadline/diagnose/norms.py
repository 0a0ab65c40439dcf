"""Which modules of a model normalise, by what they do and not by what they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leadline.diagnose.stream import Reader, evaluated


@torch.no_grad()
def find_norms(model: nn.Module, run: Callable[[], Any]) -> dict[nn.Module, bool]:
    """Modules whose output does not change when their input is scaled; True: nor when a constant is added."""
    norms: dict[nn.Module, bool] = {}
    asked: set[nn.Module] = set()

    def ask(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        x = next((a for a in args if isinstance(a, Tensor) and a.is_floating_point()), None)
        if any(callable(a) for a in (*args, *kwargs.values()) if not isinstance(a, Tensor)):
            return  # it may run a whole sublayer
        if (
            module in asked
            or x is None
            or not isinstance(output, Tensor)
            or output.shape != x.shape
            or not (x.ndim and x.numel())
        ):
            return
        asked.add(module)
        wide = x.detach().float()
        wide = wide + torch.linspace(-1, 1, wide.shape[-1], device=wide.device) * (wide.std() + 1)  # far from zero
        forward = lambda value: module.forward(value.to(x.dtype), *args[1:], **kwargs).float()  # noqa: E731
        try:
            with torch.random.fork_rng(devices=[]):
                y = forward(wide)
                scaled, shifted, other = forward(4 * wide), forward(wide + 2), forward(wide.flip(-1) + 0.3 * wide)
        except Exception:  # not a function of its first argument alone
            return
        size = float(y.norm()) or 1.0
        if float((scaled - y).norm()) < 0.02 * size < float((other - y).norm()):
            norms[module] = float((shifted - y).norm()) < 0.02 * size

    with Reader() as reader, evaluated(model):
        for module in model.modules():
            weights = list(module.parameters())
            if module is not model and len(weights) <= 3 and all(p.ndim <= 1 for p in weights):
                reader.after(module, ask)
        run()
    outer = {m for m in norms for child in m.modules() if child is not m and child in norms}
    return {m: centred for m, centred in norms.items() if m not in outer} | {m: norms[m] for m in outer}
