"""What a torch function does to the residual stream, by the function's name and operands: one call, one node.

A norm that is written out ends in a multiplication, x · g(x), which becomes the node of the norm.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from leadline.diagnose.graph import SUBTRACTIONS, Graph, Node

NORM_FUNCTIONS = {"layer_norm", "rms_norm", "native_layer_norm", "group_norm", "normalize"}
ATTENTION_FUNCTIONS = {"scaled_dot_product_attention", "multi_head_attention_forward"}  # (query, key, value, …)
PRODUCTS = {
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "einsum", "bilinear", "conv1d",
    "conv2d", "conv3d", "multi_head_attention_forward", "_grouped_mm", "grouped_mm",
}  # fmt: skip
ADDITIONS = {"add", "add_", "__add__", "__radd__", "__iadd__"}
MULTIPLICATIONS = {"mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"}
DIVISIONS = {"div", "div_", "divide", "__truediv__", "__itruediv__"}
FROM_ONE = {"rsub", "__rsub__"}  # 1 − x
DROPOUTS = {"dropout", "dropout_", "feature_dropout", "alpha_dropout"}
ROOTS = {"sqrt", "sqrt_", "rsqrt", "rsqrt_", "norm", "std", "std_mean", "vector_norm", "linalg_vector_norm", "pow"}
# Properties are torch functions as well, all of the name __get__
PROPERTIES = {getattr(torch.Tensor, name).__get__: "transpose" for name in ("T", "mT", "H", "mH", "real")}
PROPERTIES[getattr(torch.Tensor, "data").__get__] = "detach"  # noqa: B009 (mypy takes it for a tensor)
SAME_VALUES = DROPOUTS | {
    "to", "type", "type_as", "float", "half", "bfloat16", "double", "contiguous", "clone", "view", "reshape", "view_as",
    "reshape_as", "transpose", "permute", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "expand_as", "t",
    "movedim", "swapaxes", "__getitem__", "masked_fill", "masked_fill_", "clamp", "nan_to_num", "requires_grad_",
    "narrow", "roll", "cat", "pad", "index_select", "detach", "nested_tensor", "to_padded_tensor",
}  # fmt: skip


class Operand(NamedTuple):
    tensor: Tensor
    node: int | None  # that made it; None: a constant, or made of weights alone
    weights: tuple[str, ...]  # names of those it is made of


@dataclass
class Call:
    """A torch function, called."""

    name: str
    module: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    operands: list[Operand]

    @property
    def streams(self) -> list[tuple[Tensor, int]]:
        """The operands that some node made."""
        return [(o.tensor, o.node) for o in self.operands if o.node is not None]

    @property
    def constants(self) -> list[Operand]:
        return [o for o in self.operands if o.node is None]

    @property
    def inputs(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(node for _, node in self.streams))

    @property
    def weights(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(w for o in self.operands for w in o.weights))

    def operand(self, value: object) -> Operand | None:
        """An argument as an operand, if it is a tensor."""
        return next((o for o in self.operands if o.tensor is value), None)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        return self.kwargs.get(name, self.args[position] if len(self.args) > position else default)


def node_of(call: Call, result: Tensor, graph: Graph) -> Node:
    """The node of a call that takes something of the stream."""
    name, streams, inputs, weights = call.name, call.streams, call.inputs, call.weights
    node = Node("other", inputs, tuple(result.shape), call.module, weights, function=name)
    values = tuple(dict.fromkeys(index for t, index in streams if t.is_floating_point()))
    if name in ATTENTION_FUNCTIONS:  # without the mask
        node.inputs = tuple(dict.fromkeys(o.node for o in call.operands[:3] if o.node is not None))
    if name in NORM_FUNCTIONS:
        node.op, node.inputs, node.centred = "norm", inputs[:1], name in ("layer_norm", "native_layer_norm")
        node.factor = _norm_size(result) if name == "normalize" else 1.0
        node.axes, node.epsilon = _axes_and_epsilon(call, result.ndim)
    elif (name in PRODUCTS and (weights or len(inputs) > 1)) or name.startswith("fft_"):
        node.op = "product"
    elif name in ADDITIONS | SUBTRACTIONS and len(streams) == 2 and alike(streams[0][0], streams[1][0]):
        sign = float(call.kwargs.get("alpha", 1.0)) * (-1 if name in SUBTRACTIONS else 1)
        node.op, node.inputs, node.factor = "add", (streams[0][1], streams[1][1]), sign
        if streams[0][1] == streams[1][1]:
            node.op, node.inputs, node.factor = "scale", node.inputs[:1], 1 + sign
    elif name in MULTIPLICATIONS | DIVISIONS and len(streams) == 2:
        _multiply_streams(node, streams, result, graph)
    elif name in MULTIPLICATIONS | DIVISIONS and len(streams) == 1:
        _scale(node, call)
    elif name.endswith("_as") and name in SAME_VALUES:
        node.op, node.inputs = "same", inputs[:1]
    elif name in ("where", "__setitem__") and values:  # what was made last
        node.op, node.inputs = "same", (max(values),)
    elif len(values) == 1 and name in ADDITIONS:  # a bias, a constant, a mask
        node.op, node.inputs = "same", values
        _add_constant(node, call)
    elif len(values) == 1 and name in SAME_VALUES:
        node.op, node.inputs = "same", values
        if name in DROPOUTS:
            node.dropped = float(call.kwargs.get("p", call.args[1] if len(call.args) > 1 else 0.5))
    return node


def alike(x: Tensor, y: Tensor) -> bool:
    return x.numel() == y.numel()


def size_of(x: Tensor) -> float:
    """Root mean square."""
    return float(x.detach().float().pow(2).mean().sqrt())


def _norm_size(x: Tensor) -> float:
    """Root mean square of what a norm gives; 1 where it is about 1 or none."""
    size = size_of(x)
    return size if math.isfinite(size) and size > 0 and abs(size - 1) > 0.05 else 1.0


def _axes_and_epsilon(call: Call, ndim: int) -> tuple[tuple[int, ...], float]:
    """Of a function that normalises."""
    if call.name == "normalize":
        dim = call.argument(2, "dim", 1)
        dims = dim if isinstance(dim, list | tuple) else (dim,)
        return tuple(d if d < 0 else d - ndim for d in dims), 0.0
    if call.name == "group_norm":
        return (), 0.0
    shape = call.argument(1, "normalized_shape", (1,))
    epsilon = call.argument(3 if call.name == "rms_norm" else 4, "eps")
    count = len(shape) if isinstance(shape, list | tuple) else 1
    return tuple(range(-count, 0)), float(epsilon) if isinstance(epsilon, numbers.Real) else 0.0


def _add_constant(node: Node, call: Call) -> None:
    """Of x + a number, the number; of x + a constant tensor, how much larger than x that is."""
    node.constant = max([abs(float(a)) for a in call.args if isinstance(a, numbers.Real)], default=0.0)
    stream = call.streams[0][0]
    others = [o.tensor for o in call.constants if o.tensor.is_floating_point()]
    if others and others[0].numel() == 1:
        node.constant = abs(float(others[0]))
    elif others and others[0].shape[-1] == stream.shape[-1] and stream.numel():
        constant, size = size_of(others[0]), size_of(stream)
        node.drowned = constant / size if size and math.isfinite(constant) else 0.0


def _scale(node: Node, call: Call) -> None:
    """α · x."""
    node.op = "scale"
    factors = [float(a) for a in call.args if isinstance(a, numbers.Real)]
    if call.constants:
        constant = call.constants[0].tensor
        node.learned = ", ".join(w for o in call.constants for w in o.weights)
        if not node.learned and constant.numel() > 1:
            node.op = "same"  # a mask
            return
        factors = [size_of(constant) if constant.numel() else 1.0]
    node.factor = math.prod(factors) if call.name in MULTIPLICATIONS else 1 / (math.prod(factors) or 1.0)


def _multiply_streams(node: Node, streams: Sequence[tuple[Tensor, int]], result: Tensor, graph: Graph) -> None:
    """x · g(x) with one g a token, g made of x without a weight: a normalisation written out. Or a gate."""
    (left, a), (right, b) = streams
    value, size = (a, b) if right.numel() < left.numel() else (b, a)
    axes = _reduced(*((left, right) if value == a else (right, left)))
    value, centred = graph.multiple_of(value)
    parts = graph.made_of(size, value) if axes else set()
    if parts and (axes == (-1,) or any(graph.nodes[i].function in ROOTS for i in parts)):
        node.op, node.inputs, node.centred, node.factor = "norm", (value,), bool(centred), _norm_size(result)
        node.axes, node.epsilon = axes, max(graph.nodes[i].constant for i in parts)
        for part in (graph.nodes[i] for i in parts | centred if graph.nodes[i].op == "other"):
            part.op = "part"
    elif alike(left, right):
        _gate(node, a, b, graph)


def _reduced(value: Tensor, size: Tensor) -> tuple[int, ...]:
    """The axes over which there is one size, counted from the last; none: the one is not a size of the other."""
    if value.ndim != size.ndim or not value.ndim:
        return ()
    if any(s not in (v, 1) for v, s in zip(value.shape, size.shape, strict=True)):
        return ()
    return tuple(i for i in range(-value.ndim, 0) if size.shape[i] == 1 and value.shape[i] > 1)


def _gate(node: Node, a: int, b: int, graph: Graph) -> None:
    """h · σ(g): what is let through; a gate made of the value itself is an activation."""
    for value, gate in ((a, b), (b, a)):
        at = gate
        while graph.nodes[at].op in ("same", "scale") or graph.nodes[at].function in SUBTRACTIONS | FROM_ONE:
            at = graph.nodes[at].inputs[0]
        if graph.nodes[at].function.startswith("sigmoid") and not graph.made_of(at, value):
            node.op, node.inputs, node.function = "same", (value, gate), "gate"
            return
