"""What a model computes, written down as it runs: a graph of its operations, whatever its classes are called.

Two runs of the model. The first looks at small modules and asks of each whether it is a normalisation by what it does
(its output does not change when its input is scaled); the second notes every operation, with a normalisation as one.
The graph holds no tensors, only what `leadline.diagnose.structure` needs to find the residual connections.
"""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leadline.diagnose.faults import Size
from leadline.diagnose.norms import find_norms
from leadline.diagnose.stream import Reader, evaluated

NORM_FUNCTIONS = {"layer_norm", "rms_norm", "native_layer_norm", "group_norm", "normalize"}
ATTENTION_FUNCTIONS = {"scaled_dot_product_attention", "multi_head_attention_forward"}  # (query, key, value, …)
PRODUCTS = {
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "einsum", "bilinear", "conv1d",
    "conv2d", "conv3d", "multi_head_attention_forward", "_grouped_mm", "grouped_mm",
}  # fmt: skip
ADDITIONS = {"add", "add_", "__add__", "__radd__", "__iadd__"}
MULTIPLICATIONS = {"mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"}
DIVISIONS = {"div", "div_", "divide", "__truediv__", "__itruediv__"}
SUBTRACTIONS = {"sub", "sub_", "subtract", "__sub__", "__isub__"}
# Properties are torch functions as well, all of the name __get__
PROPERTIES = {getattr(torch.Tensor, name).__get__: "transpose" for name in ("T", "mT", "H", "mH")}
PROPERTIES[getattr(torch.Tensor, "data").__get__] = "detach"  # noqa: B009 (mypy takes it for a tensor)
SAME_VALUES = {
    "dropout", "dropout_", "feature_dropout", "alpha_dropout", "to", "type", "type_as", "float", "half", "bfloat16",
    "double", "contiguous", "clone", "view", "reshape", "view_as", "reshape_as", "transpose", "permute", "flatten",
    "unflatten", "squeeze",
    "unsqueeze", "expand", "expand_as", "t", "movedim", "swapaxes", "__getitem__", "masked_fill",
    "masked_fill_", "clamp", "nan_to_num", "requires_grad_", "narrow", "roll", "cat", "pad", "index_select", "detach",
    "nested_tensor", "to_padded_tensor",
}  # fmt: skip


@dataclass
class Node:
    """One operation. Positions of its inputs in the list of nodes, the stream's value first where that matters."""

    op: str  # "input", "embedding", "norm", "add", "scale", "same", "product", "part" (of a norm) or "other"
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    module: str  # the innermost module that was running
    weights: tuple[str, ...] = ()  # names of the parameters it uses
    factor: float = 1.0  # "scale": by what; "add": by what the second operand is multiplied; "norm": to which size
    learned: str = ""  # "scale": the parameter it multiplies by
    function: str = ""
    centred: bool = False  # "norm": the mean is taken off


@dataclass
class Graph:
    nodes: list[Node] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of the parameters
    output: int = -1  # the node of the model's first output, if it is one

    def users(self) -> dict[int, list[int]]:
        users: dict[int, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for source in node.inputs:
                users.setdefault(source, []).append(index)
        return users


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor of what models take and return: tensors, tuples, dictionaries, dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            yield from tensors_in(getattr(value, item.name, None))


class Recorder(TorchFunctionMode):
    """Notes every torch function called, and hands chosen results to `keep`."""

    def __init__(self, names: dict[int, str], keep: Callable[[int, str, Sequence[Tensor], Tensor], None] | None = None):
        super().__init__()
        self.graph, self.names, self.keep = Graph(), names, keep
        self.node_of: dict[int, int] = {}
        self.derived: dict[int, tuple[str, ...]] = {}  # tensors made of parameters alone, such as a transposed weight
        self.alive: list[Any] = []  # an id is only unique among living objects
        self.modules: list[str] = [""]
        self.paused = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = [(t, self.node_of.get(id(t))) for t in tensors_in([args, kwargs])] if not self.paused else []
        name = PROPERTIES.get(func, getattr(func, "__name__", str(func)))
        given = [t for t, index in before if index is not None]
        if self.keep and name.endswith("_") and not name.endswith("__"):  # in place: what was given is overwritten
            given = [t.detach().clone() for t in given]
        result = func(*args, **kwargs)
        if not self.paused:
            self._note(name, before, given, args, kwargs, result)
        return result

    def _note(
        self, name: str, before: list[tuple[Tensor, int | None]], operands: list[Tensor], args: Any, kwargs: Any,
        result: Any,
    ) -> None:  # fmt: skip
        results = list(tensors_in(result))
        if name == "__setitem__" and id(args[0]) not in self.node_of:  # a buffer that is filled with the stream
            results = [args[0]]
        if not results or name in ("__get__", "size", "backward") or name.startswith("new_") or name.endswith("_like"):
            return  # no tensor, or one that takes only its shape from another
        weights = tuple(dict.fromkeys(w for t, _ in before for w in self.weights_of(t)))
        inputs = tuple(dict.fromkeys(index for _, index in before if index is not None))
        if not inputs and weights:
            if name in ("embedding", "embedding_bag"):
                self._add(Node("embedding", (), tuple(results[0].shape), self.modules[-1], weights), results)
            elif not any(t.dtype in (torch.int32, torch.int64) for t, _ in before):
                for t in results:
                    self.derived[id(t)] = weights
                    self.alive.append(t)
            return
        if not inputs and not weights:
            return  # masks, positions: constants
        node = self._node(name, before, inputs, weights, args, kwargs, results[0])
        if node.op == "norm":  # x · g(x): x first
            operands.sort(key=lambda t: -t.numel())
        index = self._add(node, results)
        if self.keep:
            self.keep(index, node.op, operands, results[0])

    def weights_of(self, tensor: Tensor) -> tuple[str, ...]:
        name = self.names.get(id(tensor))
        return (name,) if name else self.derived.get(id(tensor), ())

    def _add(self, node: Node, results: Sequence[Tensor]) -> int:
        self.graph.nodes.append(node)
        index = len(self.graph.nodes) - 1
        for t in results:
            self.node_of[id(t)] = index
            self.alive.append(t)
        return index

    def _node(
        self, name: str, before: list[tuple[Tensor, int | None]], inputs: tuple[int, ...], weights: tuple[str, ...],
        args: Any, kwargs: Any, result: Tensor,
    ) -> Node:  # fmt: skip
        node = Node("other", inputs, tuple(result.shape), self.modules[-1], weights, function=name)
        streams = [(t, index) for t, index in before if index is not None]
        values = tuple(dict.fromkeys(index for t, index in streams if t.is_floating_point()))
        if name in ATTENTION_FUNCTIONS:  # without the mask
            node.inputs = tuple(dict.fromkeys(index for _, index in before[:3] if index is not None))
        if name in NORM_FUNCTIONS:
            node.op, node.inputs, node.centred = "norm", inputs[:1], name in ("layer_norm", "native_layer_norm")
            node.factor = _size(result) if name == "normalize" else 1.0
        elif name in PRODUCTS and (weights or len(inputs) > 1):
            node.op = "product"
        elif name in ADDITIONS and len(streams) == 2 and streams[0][0].numel() == streams[1][0].numel():
            node.op, node.inputs = "add", (streams[0][1], streams[1][1])
            node.factor = float(kwargs.get("alpha", 1.0))
        elif name in MULTIPLICATIONS | DIVISIONS:
            self._multiplication(node, name, before, streams, args, result)
        elif name.endswith("_as") and name in SAME_VALUES:
            node.op, node.inputs = "same", inputs[:1]
        elif name in ("where", "__setitem__") and values:  # what was made last
            node.op, node.inputs = "same", (max(values),)
        elif len(values) == 1 and (name in SAME_VALUES or name in ADDITIONS):  # a bias, a constant, a mask
            node.op, node.inputs = "same", values
        return node

    def _multiplication(self, node: Node, name: str, before: Any, streams: Any, args: Any, result: Tensor) -> None:
        if len(streams) == 2:
            (left, a), (right, b) = streams
            if (
                left.ndim
                and right.ndim
                and left.shape[-1] != right.shape[-1]
                and 1 in (left.shape[-1], right.shape[-1])
            ):
                # x · g(x) with one g a token, g made of x without a weight: a normalisation written out
                value, size = (a, b) if right.shape[-1] == 1 else (b, a)
                value, centred = _behind(self.graph, value)
                parts = _made_of(self.graph, size, value)
                if parts:
                    node.op, node.inputs, node.centred, node.factor = "norm", (value,), bool(centred), _size(result)
                    for part in (self.graph.nodes[i] for i in parts | centred if self.graph.nodes[i].op == "other"):
                        part.op = "part"
            return
        if len(streams) != 1:
            return
        node.op = "scale"
        constants = [t for t, index in before if index is None]
        factors = [float(a) for a in args if isinstance(a, numbers.Real)]
        if constants:
            node.learned = ", ".join(w for t in constants for w in self.weights_of(t))
            size = float(constants[0].detach().float().pow(2).mean().sqrt()) if constants[0].numel() else 1.0
            if not node.learned and constants[0].numel() > 1:
                node.op = "same"  # a mask
                return
            factors = [size]
        node.factor = math.prod(factors) if name in MULTIPLICATIONS else 1 / (math.prod(factors) or 1.0)


def _size(x: Tensor) -> float:
    """Root mean square; 1 where it is about 1 or none."""
    size = float(x.detach().float().pow(2).mean().sqrt())
    return size if math.isfinite(size) and size > 0 and abs(size - 1) > 0.05 else 1.0


def _behind(graph: Graph, index: int) -> tuple[int, set[int]]:
    """What a node is a multiple of; the nodes that took its mean off on the way."""
    centring: set[int] = set()
    while True:
        node = graph.nodes[index]
        subtracts = node.function in SUBTRACTIONS and len(node.inputs) == 2
        mean = _made_of(graph, node.inputs[1], node.inputs[0]) if subtracts else set()
        if mean:
            centring |= {index} | mean
        elif node.op not in ("same", "scale"):
            return index, centring
        index = node.inputs[0]


def _made_of(graph: Graph, index: int, source: int) -> set[int]:
    """The nodes by which a node is made of `source` without a product; empty: it is not."""
    todo, seen, reached = [index], set[int](), False
    while todo:
        at = todo.pop()
        reached = reached or at == source
        if at <= source or at in seen or graph.nodes[at].op == "product" or len(seen) > 50:
            continue
        seen.add(at)
        todo.extend(graph.nodes[at].inputs)
    return seen if reached else set()


@contextlib.contextmanager
def recording(
    model: nn.Module,
    norms: dict[nn.Module, bool],
    keep: Callable[[int, str, Sequence[Tensor], Tensor], None] | None = None,
) -> Iterator[Recorder]:
    """Within it, every operation of the model is written to `recorder.graph`."""
    names = {id(p): name for name, p in model.named_parameters()}
    recorder = Recorder(names, keep)
    recorder.graph.shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    entered: dict[int, Tensor] = {}

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        if recorder.paused == 0:
            recorder.modules.append(module_names[module])
            _inputs(recorder, args, kwargs)
        if module in norms:
            if recorder.paused == 0 and args and isinstance(args[0], Tensor):
                entered[id(module)] = args[0]
            recorder.paused += 1

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if module in norms:
            recorder.paused -= 1
            x = entered.pop(id(module), None)
            if recorder.paused == 0 and x is not None and id(x) in recorder.node_of:
                weights = tuple(recorder.names[id(p)] for p in module.parameters() if id(p) in recorder.names)
                node = Node(
                    "norm", (recorder.node_of[id(x)],), tuple(x.shape), module_names[module], weights,
                    function=type(module).__name__, centred=norms[module],
                )  # fmt: skip
                index = recorder._add(node, [output])
                if keep:
                    recorder.paused += 1  # what it computes is not the model's
                    keep(index, "norm", [x], output)
                    recorder.paused -= 1
        if recorder.paused == 0:
            recorder.modules.pop()

    module_names = {module: name for name, module in model.named_modules()}
    with Reader() as reader:
        for module in model.modules():
            reader.before(module, enter)
            reader.after(module, leave)
        try:
            with evaluated(model), recorder:
                yield recorder
        finally:
            recorder.alive.clear()


def _inputs(recorder: Recorder, args: Any, kwargs: Any) -> None:
    """Floating tensors the model is given are where streams may begin (embeddings, pixels)."""
    if len(recorder.modules) > 2:
        return
    for t in tensors_in([args, kwargs]):
        if t.is_floating_point() and id(t) not in recorder.node_of and id(t) not in recorder.names:
            recorder._add(Node("input", (), tuple(t.shape), ""), [t])


def trace(model: nn.Module, run: Callable[[], Any]) -> tuple[Graph, dict[nn.Module, bool], Any]:
    """The graph of one run of the model, the norms it holds, and what the run returned."""
    norms = find_norms(model, run)
    with recording(model, norms) as recorder:
        result = run()
        for t in tensors_in(result):
            if id(t) in recorder.node_of:
                recorder.graph.output = recorder.node_of[id(t)]
                break
    return recorder.graph, norms, result


def sizes(model: nn.Module) -> dict[str, Size]:
    """How widely each matrix spreads, and the bias of the module it belongs to."""
    spreads: dict[str, Size] = {}
    names = {id(p): name for name, p in model.named_parameters()}
    for module in model.modules():
        bias = getattr(module, "bias", None)
        bias_std = float(bias.detach().float().pow(2).mean().sqrt()) if isinstance(bias, nn.Parameter) else None
        for p in module.parameters(recurse=False):
            if p.ndim == 2 and p.numel():
                spreads[names[id(p)]] = Size(tuple(p.shape), float(p.detach().float().std(correction=0)), bias_std)
    return spreads
