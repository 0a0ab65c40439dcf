"""The residual connections of any model, found when it is first called and read again at each look.

A look is a forward pass of its own, on some samples of the batch: without gradients and dropout, on the uncompiled
module, and with everything that a forward pass may move put back. The training does not see it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leadline.diagnose.connection import Connection, common
from leadline.diagnose.probe import Subject, quiet
from leadline.diagnose.stream import token_norm
from leadline.diagnose.trace import tensors_in
from leadline.errors import UserError
from leadline.rates import token_diversity

SAMPLES = 4  # of a batch that are looked at
TOKENS = 256  # of the first sequence, whose attention logits are
LOGITS = {"scaled_dot_product_attention", "softmax"}  # the operations that have or make attention logits
SHARDED = ("FullyShardedDataParallel", "DTensor")

Quantities = dict[str, dict[str, Tensor]]  # by quantity and layer


class Looker:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = unwrapped(model), optimizer
        self.subject: Subject | None = None
        self.names: dict[int, str] = {}  # of the connections, by their addition
        self.placements: dict[str, str] = {}
        self.changed: dict[str, str] = {}  # placements that are not what they were

    def find(self, args: Any, kwargs: Any) -> list[Connection]:
        """The connections of the model, from one run on this batch."""
        batch = _some(args, kwargs)
        subject = Subject(self.model, [batch], None, self.optimizer, call=lambda m, given: m(*given[0], **given[1]))
        with apart():
            connections = subject.connections
        subject.batches = []
        self.subject = subject
        self.names = {c.add: name for c, name in zip(connections, names_of(connections), strict=True)}
        placements = {self.names[c.add]: c.placement for c in connections}
        before, self.placements = self.placements, placements
        self.changed = {n: f"{before[n]} and is {p}" for n, p in placements.items() if before.get(n, p) != p}
        return connections

    def look(self, args: Any, kwargs: Any) -> Quantities:
        """What docs/watch.md says of streams, on this batch."""
        if self.subject is None:
            self.find(args, kwargs)
        try:
            return self._read(_some(args, kwargs))
        except UserError:  # it computes something else than before
            self.find(args, kwargs)
            return self._read(_some(args, kwargs))

    def _read(self, batch: Any) -> Quantities:
        assert self.subject is not None
        nodes = self.subject._traced[0].nodes
        attention = {
            c.add: [i for i in range(c.skip + 1, c.branch + 1) if nodes[i].function in LOGITS]
            for c in self.subject.connections
        }
        wanted: dict[int, list[Tensor]] = {
            i: [] for c in self.subject.connections for i in (c.add, *c.norm_nodes, *attention[c.add])
        }
        kinds = {i: nodes[i].function for i in wanted}

        def take(at: int, tensors: list[Tensor]) -> list[Tensor]:
            return _measured(kinds[at] if kinds[at] in LOGITS else nodes[at].op, tensors)

        with apart(), quiet(self.model), self.subject.reading(wanted, take):
            self.subject.run(batch)
        read: Quantities = {}
        for c in self.subject.connections:
            name, (left, right, result, diversity) = self.names[c.add], wanted[c.add]
            branch = right if nodes[c.add].inputs[1] == c.branch else left
            values = {"hidden": result, "branch": branch, "diversity": diversity}
            if c.norm_nodes:
                values["norm_input"], values["norm_output"] = wanted[c.norm_nodes[0]][:2]
            if seen := [wanted[i] for i in attention[c.add]]:
                values["logits"] = torch.stack([logit for logit, _ in seen]).max()
                values["later"] = torch.stack([later for _, later in seen]).max()
            for quantity, value in values.items():
                read.setdefault(quantity, {})[name] = value
        return read


def _measured(kind: str, tensors: list[Tensor]) -> list[Tensor]:
    """What is kept of the operands of an operation and its result."""
    if kind == "add":
        return [*map(token_norm, tensors), token_diversity(tensors[-1])]
    if kind == "norm":
        return [token_norm(x) / math.sqrt(x.shape[-1]) for x in (tensors[0], tensors[-1])]
    if kind == "softmax":
        shares = _of_first(tensors[-1]).float()
        return [tensors[0].float().amax(), shares[..., 0, 1:].sum(-1).amax()]
    q, k, v, output = (_of_first(t)[..., :TOKENS, :].float() for t in (*tensors[:3], tensors[-1]))
    if q.ndim == 3 and q.shape[0] != k.shape[0]:
        k, v = (t.repeat_interleave(q.shape[0] // t.shape[0], 0) for t in (k, v))
    # The first token sees itself alone where attention is causal.
    own, seen = v[..., 0, :], output[..., 0, :]
    later = (seen - own).norm() / own.norm().clamp_min(1e-30)
    return [(q @ k.transpose(-1, -2)).amax() / math.sqrt(q.shape[-1]), later]


def _of_first(t: Tensor) -> Tensor:
    """[heads, tokens, d] of the first sequence."""
    return t.flatten(0, -4)[0] if t.ndim > 3 else t


def unwrapped(model: nn.Module) -> nn.Module:
    """The module that torch.compile and DistributedDataParallel run."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod  # type: ignore[assignment]
        elif isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        else:
            return model


def require_whole(model: nn.Module) -> None:
    kinds = {type(m).__name__ for m in model.modules()} | {type(p).__name__ for p in model.parameters()}
    if kinds.intersection(SHARDED):
        raise UserError("Watch looks at whole weights, and those of this model are sharded over processes")


def names_of(connections: Sequence[Connection]) -> list[str]:
    """What each connection adds, by the module that holds its weights, or by where it adds and the kind of sublayer."""
    homes = [common([w.rpartition(".")[0] for w in c.weights]) for c in connections]
    unclear = [homes.count(h) > 1 or any(o != h and o.startswith(f"{h}.") for o in homes) or not h for h in homes]
    names = [f"{h or c.where}.{c.sublayer}" if u else h for c, h, u in zip(connections, homes, unclear, strict=True)]
    return [name if names.count(name) == 1 else f"{name}.{i}" for i, name in enumerate(names)]


def _some(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The first samples of a batch, where all its tensors are of so many; otherwise all."""
    sizes = {t.shape[0] if t.ndim else 0 for t in tensors_in([args, kwargs])}
    if len(sizes) != 1 or sizes.pop() <= SAMPLES:
        return args, kwargs
    return _first(args), _first(kwargs)


def _first(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value[:SAMPLES]
    if isinstance(value, dict):
        return {key: _first(item) for key, item in value.items()}
    return type(value)(_first(item) for item in value) if type(value) in (list, tuple) else value


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Within it nothing is compiled, and what autocast casts is not kept for the update."""
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        torch.set_autocast_cache_enabled(cached)
