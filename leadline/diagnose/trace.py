"""What a model computes, written down as it runs: a graph of its operations, whatever its classes are called.

Two runs of the model. The first looks at small modules and asks of each whether it is a normalisation by what it does
(its output does not change when its input is scaled); the second notes every operation, with a normalisation as one.
The graph holds no tensors, only what `leadline.diagnose.structure` needs to find the residual connections.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leadline.diagnose import sums
from leadline.diagnose.deepnorm import Size
from leadline.diagnose.graph import Graph, Node
from leadline.diagnose.norms import Norm, find_norms
from leadline.diagnose.operations import DROPOUTS, PROPERTIES, Call, Operand, node_of, size_of
from leadline.diagnose.stream import Reader, evaluated

Keep = Callable[[int, str, Sequence[Tensor], Tensor], None]  # given node, its op, its operands and its result


def tensors_in(value: object) -> Iterator[Tensor]:
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
    """Notes every torch function called, and hands its operands and result to `keep`."""

    def __init__(self, model: nn.Module, keep: Keep | None = None):
        super().__init__()
        self.graph, self.keep = Graph(), keep
        self.graph.shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        self.names = {id(p): name for name, p in model.named_parameters()}
        self.node_of: dict[int, int] = {}
        self.derived: dict[int, tuple[str, ...]] = {}  # tensors made of parameters alone, such as a transposed weight
        self.alive: list[Tensor] = []  # an id is only unique among living objects
        self.modules: list[str] = [""]
        self.paused = 0

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        name = PROPERTIES.get(func, getattr(func, "__name__", str(func)))
        operands = [Operand(t, self.node_of.get(id(t)), self._weights_of(t)) for t in tensors_in([args, kwargs])]
        call = Call(name, self.modules[-1], args, kwargs, operands)
        streams = [t for t, _ in call.streams]
        required = any(t.requires_grad for t in streams)
        if self.keep and name.endswith("_") and not name.endswith("__"):  # in place: what was given is overwritten
            streams = [t.detach().clone() for t in streams]
        result = func(*args, **kwargs)
        if name in DROPOUTS and args and result is args[0]:
            result = result.view_as(result)  # a tensor of its own, though nothing is dropped
        count = len(self.graph.nodes)
        self._note(call, streams, result)
        for node in self.graph.nodes[count:]:
            _mark(node, required, list(tensors_in(result)))
        return result

    def _note(self, call: Call, streams: list[Tensor], result: object) -> None:
        name, results = call.name, list(tensors_in(result))
        if name == "__setitem__" and id(call.args[0]) not in self.node_of:  # a buffer that is filled with the stream
            results = [call.args[0]]
        if not results or name in ("__get__", "size", "backward") or name.startswith("new_") or name.endswith("_like"):
            return  # no tensor, or one that takes only its shape from another
        if call.inputs:
            steps = sums.steps_of(call, results, self.graph)
            if not steps:
                node = node_of(call, results[0], self.graph)
                if node.op == "norm":  # x · g(x): x first
                    streams.sort(key=lambda t: -t.numel())
                steps = [(node, results, streams)]
            for step in steps:
                self.add(*step)
        elif call.weights and name in ("embedding", "embedding_bag"):
            self.add(Node("embedding", (), tuple(results[0].shape), call.module, call.weights), results)
        elif call.weights and not any(o.tensor.dtype in (torch.int32, torch.int64) for o in call.operands):
            self.derived.update({id(t): call.weights for t in results})
            self.alive += results

    def _weights_of(self, tensor: Tensor) -> tuple[str, ...]:
        name = self.names.get(id(tensor))
        return (name,) if name else self.derived.get(id(tensor), ())

    def add(self, node: Node, results: Sequence[Tensor], operands: Sequence[Tensor] = ()) -> None:
        """A node that makes `results`, made of `operands`."""
        self.node_of.update({id(t): len(self.graph.nodes) for t in results})
        self.alive += results
        self.graph.nodes.append(node)
        if self.keep and operands:
            self.paused += 1  # what it computes is not the model's
            self.keep(len(self.graph.nodes) - 1, node.op, operands, results[0])
            self.paused -= 1

    def enter(self, module: str, args: object, kwargs: object) -> None:
        self.modules.append(module)
        if len(self.modules) > 2:
            return
        for t in tensors_in([args, kwargs]):  # what the model is given is where streams may begin (embeddings, pixels)
            if t.is_floating_point() and id(t) not in self.node_of and id(t) not in self.names:
                self.add(Node("input", (), tuple(t.shape), ""), [t])

    def normalised(self, name: str, module: nn.Module, norm: Norm, x: Tensor, output: Tensor) -> None:
        """A whole module as one node."""
        weights = tuple(self.names[id(p)] for p in module.parameters() if id(p) in self.names)
        node = Node("norm", (self.node_of[id(x)],), tuple(x.shape), name, weights, function=type(module).__name__)
        node.centred, node.axes, node.epsilon = norm
        _mark(node, x.requires_grad, [output])
        self.add(node, [output], [x])


def _mark(node: Node, required: bool, results: Sequence[Tensor]) -> None:
    """Whether gradients flow through it."""
    node.graded = torch.is_grad_enabled()
    node.requires = any(t.requires_grad for t in results)
    node.cut = required and not node.requires and any(t.is_floating_point() for t in results)


@contextlib.contextmanager
def recording(model: nn.Module, norms: dict[nn.Module, Norm], keep: Keep | None = None) -> Iterator[Recorder]:
    """Within it, every operation of the model is written to `recorder.graph`."""
    recorder = Recorder(model, keep)
    names = {module: name for name, module in model.named_modules()}
    entered: dict[int, Tensor] = {}

    def enter(module: nn.Module, args: Sequence[object], kwargs: object) -> None:
        if recorder.paused == 0:
            recorder.enter(names[module], args, kwargs)
        if module in norms:
            if recorder.paused == 0 and args and isinstance(args[0], Tensor):
                entered[id(module)] = args[0]
            recorder.paused += 1

    def leave(module: nn.Module, args: object, kwargs: object, output: Tensor) -> None:
        if module in norms:
            recorder.paused -= 1
            x = entered.pop(id(module), None)
            if recorder.paused == 0 and x is not None and id(x) in recorder.node_of:
                recorder.normalised(names[module], module, norms[module], x, output)
        if recorder.paused == 0:
            recorder.modules.pop()

    with contextlib.closing(Reader()) as reader:
        for module in model.modules():
            reader.before(module, enter)
            reader.after(module, leave)
        try:
            with evaluated(model), recorder:
                yield recorder
        finally:
            recorder.alive.clear()


def trace(model: nn.Module, run: Callable[[], object]) -> tuple[Graph, dict[nn.Module, Norm]]:
    """The graph of one run of the model, and the norms it holds."""
    norms = find_norms(model, run)
    with recording(model, norms) as recorder, torch.enable_grad():  # to see where they are cut off
        made = (recorder.node_of[id(t)] for t in tensors_in(run()) if id(t) in recorder.node_of)
        recorder.graph.output = next(made, -1)
    return recorder.graph, norms


def sizes(model: nn.Module) -> dict[str, Size]:
    """How widely each matrix spreads, and the bias of the module it belongs to."""
    spreads: dict[str, Size] = {}
    names = {id(p): name for name, p in model.named_parameters()}
    for module in model.modules():
        bias = getattr(module, "bias", None)
        bias_std = size_of(bias) if isinstance(bias, nn.Parameter) else None
        for p in module.parameters(recurse=False):
            if p.ndim == 2 and p.numel():
                values = p.detach().float()
                thirds = values.chunk(3) if p.shape[0] == 3 * p.shape[1] else ()
                parts = tuple(float(third.std(correction=0)) for third in thirds)
                spreads[names[id(p)]] = Size(tuple(p.shape), float(values.std(correction=0)), bias_std, parts)
    return spreads
