"""Which modules of a model normalise, by what they do and not by their names; over which axes and with which ε."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leadline.diagnose.stream import Reader, evaluated

NEAR = 0.02  # of the output's size
PARALLEL = 0.999  # cosine between the outputs of a small and a large input
LARGE = 64.0  # times unit size: no ε anybody writes tells there


class Norm(NamedTuple):
    """Of one module."""

    centred: bool  # the mean is taken off
    axes: tuple[int, ...] = ()  # it normalises over, counted from the last, which is -1; none: not known
    epsilon: float = 0.0  # what it adds to the mean square; 0: too little to be seen


@torch.no_grad()
def find_norms(model: nn.Module, run: Callable[[], object]) -> dict[nn.Module, Norm]:
    """Modules whose output does not change when their input is scaled."""
    norms: dict[nn.Module, Norm] = {}
    asked: set[nn.Module] = set()

    def ask(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], output: object) -> None:
        x = next((a for a in args if isinstance(a, Tensor) and a.is_floating_point()), None)
        if any(callable(a) for a in (*args, *kwargs.values()) if not isinstance(a, Tensor)):
            return  # it may run a whole sublayer
        if module in asked or x is None or not isinstance(output, Tensor):
            return
        if output.shape != x.shape or not (x.ndim and x.numel()):
            return
        if any(p.ndim > 1 and p.shape != x.shape[-p.ndim :] for p in module.parameters()):
            return
        asked.add(module)
        wide = x.detach().float()
        wide = wide + torch.linspace(-1, 1, wide.shape[-1], device=wide.device) * (wide.std() + 1)  # far from zero
        forward = lambda value: module.forward(value.to(x.dtype), *args[1:], **kwargs).float()  # noqa: E731
        try:
            with torch.random.fork_rng(devices=[]):
                if norm := _asked(forward, wide):
                    norms[module] = norm
        except Exception:  # not a function of its first argument alone
            return

    with closing(Reader()) as reader, evaluated(model):
        for module in model.modules():
            weights = list(module.parameters())
            if module is not model and len(weights) <= 3:
                reader.after(module, ask)
        run()
    return norms


def _asked(forward: Callable[[Tensor], Tensor], wide: Tensor) -> Norm | None:
    """What a function of x is as a normalisation; None: it is none."""
    other = wide.flip(-1) + 0.3 * wide
    for base in (wide, LARGE / float(wide.std().clamp_min(1e-6)) * wide):
        y = forward(base)
        size = float(y.norm()) or 1.0
        invariant = float((forward(4 * base) - y).norm()) < NEAR * size
        if invariant and NEAR * size < float((forward(other / wide.std() * base.std()) - y).norm()):
            break
    else:
        return None
    if base is not wide and not _bends(forward, wide):
        return None
    centred = float((forward(base + 2 * base.std()) - y).norm()) < NEAR * size
    axes = [axis for axis in range(-wide.ndim, 0) if wide.shape[axis] > 1 and _sees(forward, base, axis, y)]
    return Norm(centred, tuple(axes), _epsilon(forward, wide, tuple(axes), centred))


def _bends(forward: Callable[[Tensor], Tensor], wide: Tensor) -> bool:
    """Whether a small input gives the direction that a large one gives: a norm does, what saturates does not."""
    unit, zero = wide / wide.std(), forward(torch.zeros_like(wide))
    small, large = (forward(unit) - zero).flatten(), (forward(LARGE * unit) - zero).flatten()
    return float(torch.cosine_similarity(small, large, dim=0)) > PARALLEL


def _sees(forward: Callable[[Tensor], Tensor], x: Tensor, axis: int, y: Tensor) -> bool:
    """Whether scaling what lies along an axis unequally changes more than that scale."""
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    ramp = torch.linspace(0.5, 2, x.shape[axis], device=x.device).reshape(shape)
    return float((forward(x * ramp) - y).norm()) > 5 * NEAR * float(y.norm())


def _epsilon(forward: Callable[[Tensor], Tensor], wide: Tensor, axes: tuple[int, ...], centred: bool) -> float:
    """From how much smaller the output of an input of unit size is than that of a large one."""
    unit, zero = wide / wide.std(), forward(torch.zeros_like(wide)).nan_to_num()
    small, large = float((forward(unit) - zero).norm()), float((forward(LARGE * unit) - zero).norm())
    if not axes or not 0 < small < large:
        return 0.0
    moved = unit - unit.mean(axes, keepdim=True) if centred else unit
    return float(moved.pow(2).mean()) * ((large / small) ** 2 - 1)
