"""Functions that add among other things (lerp, addcmul, addmm, the sum of a stack): the nodes of what each does."""

from __future__ import annotations

import numbers
from collections.abc import Iterator

from torch import Tensor

from leadline.diagnose.graph import Graph, Node
from leadline.diagnose.operations import Call, alike, size_of

Step = tuple[Node, list[Tensor], list[Tensor]]  # what it makes, and what it adds; both may be left out


def _lerp(call: Call, x: Tensor, at: int, results: list[Tensor], graph: Graph) -> Iterator[Step]:
    """x + w · (y − x)."""
    y = call.operand(call.args[1]) if len(call.args) > 1 else None
    if y is None or y.node is None or not alike(x, y.tensor):
        return
    weight = call.args[2] if len(call.args) > 2 else call.kwargs.get("weight")
    part = float(weight) if isinstance(weight, numbers.Real) else 0.0
    tensor = call.operand(weight)
    node = Node("add", (at, y.node), tuple(results[0].shape), call.module, function=call.name)
    node.factor, node.first = part or 1.0, 1 - part if part else 1.0
    node.learned = ", ".join(tensor.weights) if tensor else ""
    yield node, results, [x, y.tensor]


def _addcmul(call: Call, x: Tensor, at: int, results: list[Tensor], graph: Graph) -> Iterator[Step]:
    """x + value · y · z."""
    factors = [o for o in map(call.operand, call.args[1:3]) if o]
    sources = tuple(o.node for o in factors if o.node is not None)
    if len(call.args) < 3 or not alike(x, results[0]) or not sources:
        return
    shape, value = tuple(results[0].shape), float(call.kwargs.get("value", 1.0))
    constants = [o for o in factors if o.node is None]
    if constants and constants[0].tensor.numel():
        value *= size_of(constants[0].tensor)
    learned = ", ".join(w for o in constants for w in o.weights)
    op = "scale" if len(sources) == 1 else "other"
    product = len(graph.nodes)
    yield Node(op, sources, shape, call.module, factor=value, learned=learned), [], []
    added = call.args[1] * call.args[2] * call.kwargs.get("value", 1.0)
    yield Node("add", (at, product), shape, call.module, function=call.name), results, [x, added]


def _addmm(call: Call, x: Tensor, at: int, results: list[Tensor], graph: Graph) -> Iterator[Step]:
    """x + y @ z."""
    if x.shape != results[0].shape or len(call.streams) < 2:
        return
    factors = [o for o in map(call.operand, call.args[1:3]) if o]
    weights = tuple(dict.fromkeys(w for o in factors for w in o.weights))
    sources = tuple(o.node for o in factors if o.node is not None)
    shape, product = tuple(results[0].shape), len(graph.nodes)
    yield Node("product", sources, shape, call.module, weights, function=call.name), [], []
    yield Node("add", (at, product), shape, call.module, function=call.name), results, [x, results[0] - x]


def _stacked(call: Call, x: Tensor, at: int, results: list[Tensor], graph: Graph) -> Iterator[Step]:
    """torch.stack([x, y]).sum(0) is x + y."""
    stacked = graph.nodes[at]
    dims = call.kwargs.get("dim", call.argument(1, "axis"))
    dim = dims[0] if isinstance(dims, list | tuple) and len(dims) == 1 else dims
    if stacked.function != "stack" or not isinstance(dim, int) or len(stacked.inputs) != x.shape[dim]:
        return
    shape = tuple(results[0].shape)
    if not shape == x.select(dim, 0).shape == graph.nodes[stacked.inputs[0]].shape:
        return
    first, *parts = x.unbind(dim)
    total, before, position = first, stacked.inputs[0], len(graph.nodes)
    for number, (part, source) in enumerate(zip(parts, stacked.inputs[1:], strict=True)):
        added = results if number == len(parts) - 1 else [total + part]
        yield Node("add", (before, source), shape, call.module, function="sum"), added, [total, part]
        total, before = added[0], position + number


SUMS = {"lerp": _lerp, "addcmul": _addcmul, "sum": _stacked} | dict.fromkeys(("addmm", "baddbmm", "addbmm"), _addmm)


def steps_of(call: Call, results: list[Tensor], graph: Graph) -> list[Step]:
    """One operation after another; none: the function is a single one."""
    x = call.operand(call.args[0]) if call.args and call.name in SUMS else None
    return [] if x is None or x.node is None else list(SUMS[call.name](call, x.tensor, x.node, results, graph))
