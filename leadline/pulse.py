"""The pulse of a training: of every update and every layer, the norms that cost next to nothing to know.

grad      norm of the gradient, before clipping
update    norm of the change of the weights, estimated from a few thousand numbers of each layer
weight    norm of the weights, estimated from the same numbers
outside   change of those numbers since the last optimizer step, over their norm: 0 where only the optimizer writes

pulse.before(norms)     the gradients are there; their norms, one a weight
optimizer.step()
pulse.after()           [4, layers], still on the device
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from leadline.flight import EMBEDDINGS, NORMS

SAMPLE = 2048  # numbers of a weight that are looked at
SAMPLED = 2  # weights of a layer that are

Layers = dict[str, list[nn.Parameter]]


def layers_of(model: nn.Module, sublayers: Mapping[str, Sequence[nn.Parameter]]) -> Layers:
    """The weights that are trained, each in one layer: the sublayers, then matrices and vectors of the rest."""
    inside = {id(p) for weights in sublayers.values() for p in weights}
    rest = [p for p in model.parameters() if id(p) not in inside]
    groups = {name: list(weights) for name, weights in sublayers.items()}
    groups[EMBEDDINGS] = [p for p in rest if p.ndim > 1]
    groups[NORMS] = [p for p in rest if p.ndim <= 1]
    trained = {name: [p for p in group if p.requires_grad] for name, group in groups.items()}
    return {name: group for name, group in trained.items() if group}


class Pulse:
    """Looks at the weights before and after each optimizer step, and changes nothing."""

    def __init__(self, layers: Mapping[str, Sequence[nn.Parameter]]) -> None:
        self.names = list(layers)
        self.weights = [p for group in layers.values() for p in group]
        self.device = self.weights[0].device
        self.alike = len({(p.device, p.dtype) for p in self.weights}) == 1
        self.owner = self._indices([i for i, group in enumerate(layers.values()) for _ in group])
        sampled = [(i, p) for i, group in enumerate(layers.values()) for p in _largest(group)]
        self.sampled = [p for _, p in sampled]
        self.places = [0] * len(sampled)  # where each weight lies: somebody may move it
        self.views: list[Tensor] = []
        self.counts = [len(_view(p)) for p in self.sampled]
        self.of_weight = self._indices([i for i, _ in sampled])
        sizes = [p.numel() / count for p, count in zip(self.sampled, self.counts, strict=True)]
        self.sizes = torch.tensor(sizes, device=self.device)
        # A single row may be written to, which a sample would miss.
        self.tables = [p for p in layers.get(EMBEDDINGS, ()) if p.ndim == 2]
        self.grad = self.before_step = torch.zeros(len(self.names), device=self.device)
        self.outside = self.size = self.grad
        self.last: Tensor | None = None
        self.last_tables: Tensor | None = None

    def _indices(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    @torch.no_grad()
    def before(self, norms: Sequence[Tensor | None]) -> None:
        """`norms`: of the gradient of each weight, in the order of the layers; None where it has no gradient."""
        zero = torch.zeros((), dtype=self.weights[0].dtype, device=self.device)
        each = self._together([zero if norm is None else norm for norm in norms])
        self.grad = self._add_up(each.square(), self.owner).sqrt()
        self.before_step = self._sample()
        self.outside = torch.zeros_like(self.grad)
        if self.last is not None:
            self.outside = self._norms(self.before_step - self.last) / self.size.clamp_min(1e-30)
        if self.tables:
            at, sizes = self.names.index(EMBEDDINGS), self._table_norms()
            if self.last_tables is not None:
                moved = ((sizes - self.last_tables).abs() / self.last_tables.clamp_min(1e-30)).max()
                self.outside[at] = torch.maximum(self.outside[at], moved)

    def forget(self) -> None:
        """Steps have been taken that it did not see: what they have changed is nobody else's."""
        self.last = self.last_tables = None

    @torch.no_grad()
    def after(self) -> Tensor:
        """The four quantities, as QUANTITIES names them, of each layer."""
        self.last = self._sample()
        if self.tables:
            self.last_tables = self._table_norms()
        changed, self.size = self._norms(self.last - self.before_step), self._norms(self.last)
        return torch.stack([self.grad, changed, self.size, self.outside])

    def _sample(self) -> Tensor:
        places = [p.data_ptr() for p in self.sampled]
        if places != self.places:
            self.places, self.views = places, [_view(p) for p in self.sampled]
        if self.alike:
            return torch.cat(self.views).float()
        return torch.cat([view.to(self.device, torch.float32) for view in self.views])

    def _norms(self, numbers: Tensor) -> Tensor:
        """Of each layer, as if all its numbers were like those of the sample."""
        of_weights = torch.stack(torch._foreach_norm(numbers.split(self.counts)))
        return self._add_up(of_weights.square() * self.sizes, self.of_weight).sqrt()

    def _add_up(self, values: Tensor, owner: Tensor) -> Tensor:
        return torch.zeros(len(self.names), device=self.device).index_add_(0, owner, values)

    def _table_norms(self) -> Tensor:
        return self._together(torch._foreach_norm([p.detach() for p in self.tables]))

    def _together(self, numbers: Sequence[Tensor]) -> Tensor:
        if self.alike:
            return torch.stack(list(numbers)).float()
        return torch.stack([number.to(self.device, torch.float32) for number in numbers])


def _largest(group: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    return sorted((p for p in group if p.is_contiguous()), key=lambda p: -p.numel())[:SAMPLED]


def _view(p: nn.Parameter) -> Tensor:
    """Evenly spaced numbers of a weight, in its own memory; the odd step goes through all columns."""
    return p.detach().view(-1)[:: max(1, p.numel() // SAMPLE) | 1]
