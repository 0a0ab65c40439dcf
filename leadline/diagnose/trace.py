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
from leadline.diagnose.norms import Norm, find_norms
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
FROM_ONE = {"rsub", "__rsub__"}  # 1 − x
DROPOUTS = {"dropout", "dropout_", "feature_dropout", "alpha_dropout"}
ROOTS = {"sqrt", "sqrt_", "rsqrt", "rsqrt_", "norm", "std", "std_mean", "vector_norm", "linalg_vector_norm", "pow"}
# Properties are torch functions as well, all of the name __get__
PROPERTIES = {getattr(torch.Tensor, name).__get__: "transpose" for name in ("T", "mT", "H", "mH", "real")}
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
    first: float = 1.0  # "add": by what the first operand is multiplied
    learned: str = ""  # "scale": the parameter it multiplies by
    function: str = ""
    centred: bool = False  # "norm": the mean is taken off
    axes: tuple[int, ...] = ()  # "norm": over which, counted from the last; none: not known
    epsilon: float = 0.0  # "norm": added to the mean square
    constant: float = 0.0  # a number that is added
    drowned: float = 0.0  # a constant tensor is added: its size over the stream's
    dropped: float = 0.0  # dropout's probability
    graded: bool = True  # gradients were recorded
    requires: bool = False  # a gradient flows into it
    cut: bool = False  # and none flows on to what it is made of


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
        required = any(t.requires_grad for t in given)
        if self.keep and name.endswith("_") and not name.endswith("__"):  # in place: what was given is overwritten
            given = [t.detach().clone() for t in given]
        result = func(*args, **kwargs)
        if not self.paused:
            if name in DROPOUTS and args and result is args[0]:
                result = result.view_as(result)  # a tensor of its own, though nothing is dropped
            count = len(self.graph.nodes)
            self._note(name, before, given, args, kwargs, result)
            for node in self.graph.nodes[count:]:
                _mark(node, required, list(tensors_in(result)))
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
        if self._fused(name, before, operands, args, kwargs, results):
            return
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
            node.axes, node.epsilon = _of_norm(name, args, kwargs, result.ndim)
        elif (name in PRODUCTS and (weights or len(inputs) > 1)) or name.startswith("fft_"):
            node.op = "product"
        elif name in ADDITIONS | SUBTRACTIONS and len(streams) == 2 and _alike(streams):
            sign = float(kwargs.get("alpha", 1.0)) * (-1 if name in SUBTRACTIONS else 1)
            node.op, node.inputs, node.factor = "add", (streams[0][1], streams[1][1]), sign
            if streams[0][1] == streams[1][1]:
                node.op, node.inputs, node.factor = "scale", node.inputs[:1], 1 + sign
        elif name in MULTIPLICATIONS | DIVISIONS:
            self._multiplication(node, name, before, streams, args, result)
        elif name.endswith("_as") and name in SAME_VALUES:
            node.op, node.inputs = "same", inputs[:1]
        elif name in ("where", "__setitem__") and values:  # what was made last
            node.op, node.inputs = "same", (max(values),)
        elif len(values) == 1 and (name in SAME_VALUES or name in ADDITIONS):  # a bias, a constant, a mask
            node.op, node.inputs = "same", values
            if name in ADDITIONS:
                _constant(node, before, args)
            elif name in DROPOUTS:
                node.dropped = float(kwargs.get("p", args[1] if len(args) > 1 else 0.5))
        return node

    def _fused(
        self, name: str, before: list[tuple[Tensor, int | None]], operands: list[Tensor], args: Any, kwargs: Any,
        results: Sequence[Tensor],
    ) -> bool:  # fmt: skip
        """Functions that add among other things: written down as what they do, one after another."""
        index = {id(t): i for t, i in before if i is not None}
        x = args[0] if args and isinstance(args[0], Tensor) else None
        if x is None or id(x) not in index:
            return False
        at, shape, module = index[id(x)], tuple(results[0].shape), self.modules[-1]
        if name == "lerp" and len(args) > 1 and id(args[1]) in index and _alike([(x, 0), (args[1], 0)]):
            weight = args[2] if len(args) > 2 else kwargs.get("weight")
            part = float(weight) if isinstance(weight, numbers.Real) else 0.0
            learned = ", ".join(self.weights_of(weight)) if isinstance(weight, Tensor) else ""
            first = 1 - part if part else 1.0
            node = Node("add", (at, index[id(args[1])]), shape, module, (), part or 1.0, first, learned, name)
            self._added(node, [x, args[1]], results)
            return True
        if name == "addcmul" and len(args) > 2 and _alike([(x, 0), (results[0], 0)]):
            given = [(t, index.get(id(t))) for t in args[1:3]]
            sources = tuple(i for _, i in given if i is not None)
            if not sources:
                return False
            learned = ", ".join(w for t, i in given if i is None for w in self.weights_of(t))
            factor = float(kwargs.get("value", 1.0))
            if len(sources) == 1:
                other = next(t for t, i in given if i is None)
                factor *= float(other.detach().float().pow(2).mean().sqrt()) if other.numel() else 1.0
            product = args[1] * args[2] * kwargs.get("value", 1.0)
            scale = Node("scale" if len(sources) == 1 else "other", sources, shape, module, (), factor, learned=learned)
            at_scale = self._add(scale, [])
            self._added(Node("add", (at, at_scale), shape, module, function=name), [x, product], results)
            return True
        if name in ("addmm", "baddbmm", "addbmm") and x.shape == results[0].shape and len(operands) > 1:
            weights = tuple(dict.fromkeys(w for t in args[1:3] for w in self.weights_of(t)))
            sources = tuple(index[id(t)] for t in args[1:3] if id(t) in index)
            at_product = self._add(Node("product", sources, shape, module, weights, function=name), [])
            self._added(Node("add", (at, at_product), shape, module, function=name), [x, results[0] - x], results)
            return True
        return name == "sum" and self._summed(x, at, args, kwargs, results)

    def _summed(self, x: Tensor, at: int, args: Any, kwargs: Any, results: Sequence[Tensor]) -> bool:
        """torch.stack([x, y]).sum(0) is x + y."""
        stacked = self.graph.nodes[at]
        dims = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
        dim = dims[0] if isinstance(dims, list | tuple) and len(dims) == 1 else dims
        if stacked.function != "stack" or not isinstance(dim, int) or len(stacked.inputs) != x.shape[dim]:
            return False
        if results[0].shape != x.select(dim, 0).shape or self.graph.nodes[stacked.inputs[0]].shape != results[0].shape:
            return False
        parts, total, before = x.unbind(dim), x.select(dim, 0), stacked.inputs[0]
        for number, (part, source) in enumerate(zip(parts[1:], stacked.inputs[1:], strict=True), 2):
            added = total + part
            node = Node("add", (before, source), stacked.shape[1:], self.modules[-1], function="sum")
            node.shape = tuple(results[0].shape)
            self._added(node, [total, part], results if number == len(parts) else [added])
            total, before = added, len(self.graph.nodes) - 1
        return True

    def _added(self, node: Node, operands: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        index = self._add(node, results)
        if self.keep:
            self.keep(index, "add", operands, results[0])

    def _multiplication(self, node: Node, name: str, before: Any, streams: Any, args: Any, result: Tensor) -> None:
        if len(streams) == 2:
            (left, a), (right, b) = streams
            # x · g(x) with one g a token, g made of x without a weight: a normalisation written out
            value, size = (a, b) if right.numel() < left.numel() else (b, a)
            axes = _reduced(*((left, right) if value == a else (right, left)))
            value, centred = _behind(self.graph, value)
            parts = _made_of(self.graph, size, value) if axes else set()
            if axes != (-1,) and not any(self.graph.nodes[i].function in ROOTS for i in parts):
                parts = set()
            if parts:
                node.op, node.inputs, node.centred, node.factor = "norm", (value,), bool(centred), _size(result)
                node.axes, node.epsilon = axes, max(self.graph.nodes[i].constant for i in parts)
                for part in (self.graph.nodes[i] for i in parts | centred if self.graph.nodes[i].op == "other"):
                    part.op = "part"
            elif _alike(streams):
                self._gated(node, a, b)
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

    def _gated(self, node: Node, a: int, b: int) -> None:
        """h · σ(g): what is let through; a gate made of the value itself is an activation."""
        for value, gate in ((a, b), (b, a)):
            at = gate
            while (
                self.graph.nodes[at].op in ("same", "scale") or self.graph.nodes[at].function in SUBTRACTIONS | FROM_ONE
            ):
                at = self.graph.nodes[at].inputs[0]
            if self.graph.nodes[at].function.startswith("sigmoid") and not _made_of(self.graph, at, value):
                node.op, node.inputs, node.function = "same", (value, gate), "gate"
                return


def _mark(node: Node, required: bool, results: Sequence[Tensor]) -> None:
    """Whether gradients flow through it."""
    node.graded = torch.is_grad_enabled()
    node.requires = any(t.requires_grad for t in results)
    node.cut = required and not node.requires and any(t.is_floating_point() for t in results)


def _alike(streams: Sequence[tuple[Tensor, Any]]) -> bool:
    return streams[0][0].numel() == streams[1][0].numel()


def _reduced(value: Tensor, size: Tensor) -> tuple[int, ...]:
    """The axes over which there is one size, counted from the last; none: the one is not a size of the other."""
    if value.ndim != size.ndim or not value.ndim:
        return ()
    if any(s not in (v, 1) for v, s in zip(value.shape, size.shape, strict=True)):
        return ()
    return tuple(i for i in range(-value.ndim, 0) if size.shape[i] == 1 and value.shape[i] > 1)


def _of_norm(name: str, args: Any, kwargs: Any, ndim: int) -> tuple[tuple[int, ...], float]:
    """Axes and ε of a function that normalises."""
    if name == "normalize":
        dim = kwargs.get("dim", args[2] if len(args) > 2 else 1)
        dims = dim if isinstance(dim, list | tuple) else (dim,)
        return tuple(d if d < 0 else d - ndim for d in dims), 0.0
    if name == "group_norm":
        return (), 0.0
    shape = kwargs.get("normalized_shape", args[1] if len(args) > 1 else (1,))
    at = 3 if name == "rms_norm" else 4
    epsilon = kwargs.get("eps", args[at] if len(args) > at else None)
    count = len(shape) if isinstance(shape, list | tuple) else 1
    return tuple(range(-count, 0)), float(epsilon) if isinstance(epsilon, numbers.Real) else 0.0


def _constant(node: Node, before: Sequence[tuple[Tensor, int | None]], args: Any) -> None:
    """Of x + a number, the number; of x + a constant tensor, how much larger than x that is."""
    node.constant = max([abs(float(a)) for a in args if isinstance(a, numbers.Real)], default=0.0)
    stream = next(t for t, index in before if index is not None)
    others = [t for t, index in before if index is None and t.is_floating_point()]
    if others and others[0].numel() == 1:
        node.constant = abs(float(others[0]))
    elif others and others[0].shape[-1] == stream.shape[-1] and stream.numel():
        sizes = [float(t.detach().float().pow(2).mean().sqrt()) for t in (others[0], stream)]
        node.drowned = sizes[0] / sizes[1] if sizes[1] and math.isfinite(sizes[0]) else 0.0


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
    norms: dict[nn.Module, Norm],
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
                    function=type(module).__name__, centred=norms[module].centred, axes=norms[module].axes,
                    epsilon=norms[module].epsilon,
                )  # fmt: skip
                index = recorder._add(node, [output])
                _mark(node, x.requires_grad, [output])
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


def trace(model: nn.Module, run: Callable[[], Any]) -> tuple[Graph, dict[nn.Module, Norm], Any]:
    """The graph of one run of the model, the norms it holds, and what the run returned."""
    norms = find_norms(model, run)
    with recording(model, norms) as recorder, torch.enable_grad():  # to see where they are cut off
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
                values = p.detach().float()
                thirds = values.chunk(3) if p.shape[0] == 3 * p.shape[1] else ()
                parts = tuple(float(third.std(correction=0)) for third in thirds)
                spreads[names[id(p)]] = Size(tuple(p.shape), float(values.std(correction=0)), bias_std, parts)
    return spreads
