"""Measures a model where it stands: its streams, norms and gradients, and what the first optimizer steps do to it.

    subject = Subject(model, batches, loss, optimizer)
    subject.connections                 what residual connections it has
    initial(subject)                    records at step 0
    rollout(subject, rate, steps)       records of the first steps at a rate; the model is left as it was

A look at the model is one forward pass in which every residual connection is read; statistics are in float32.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from leadline.diagnose import faults, structure, trace
from leadline.diagnose.connection import Connection
from leadline.diagnose.norms import Norm
from leadline.diagnose.record import Record
from leadline.diagnose.state import buffers_kept, restored, seeded
from leadline.diagnose.stream import evaluated, token_norm
from leadline.errors import Unfit, UserError, first_line
from leadline.files import Facts
from leadline.rates import diversity

Loss = Callable[[Any, Any], Tensor]  # of the model's output and the batch


@dataclass
class Subject:
    """A model, what to run it on, and what would train it."""

    model: nn.Module
    batches: Sequence[Any]
    loss: Loss | None
    optimizer: torch.optim.Optimizer
    initial: bool = True  # the weights are as they were drawn
    call: Callable[[Any, Any], Any] | None = None  # how the model is run on a batch, where that is special
    data: str = ""  # where the batches come from, if that is one of our sources
    start: str = ""  # the base initialisation of the weights, if it is one of ours

    def __post_init__(self) -> None:
        self.model = getattr(self.model, "_orig_mod", self.model)  # of torch.compile: the model itself

    def run(self, batch: Any) -> Any:
        try:
            with _eager(), in_words(f"{type(self.model).__name__} cannot be run on this batch"):
                if self.call:
                    return self.call(self.model, batch)
                if isinstance(batch, Mapping):
                    return self.model(**batch)
                if isinstance(batch, list | tuple):
                    return self.model(*batch)
                return self.model(batch)
        except UserError as error:
            if isinstance(batch, list) and isinstance(error.__cause__, TypeError):
                raise UserError(f"{error}; a list is the model's arguments: give several batches as iter(…)") from None
            raise

    def loss_of(self, output: Any, batch: Any) -> Tensor:
        if self.loss is None:
            value = own_loss(output)
        else:
            with _eager(), in_words("the loss function failed"):
                value = self.loss(output, batch)
        if value is None and self.loss is None:
            raise UserError(
                "the model gives no loss for this batch: put the labels into the batch, or pass "
                "loss=function(output, batch)"
            )
        if not isinstance(value, Tensor) or value.ndim or not value.is_floating_point():
            raise UserError("the loss must be one number: a tensor without dimensions")
        if torch.is_grad_enabled() and not value.requires_grad:
            raise UserError("the loss does not depend on any weight that can be trained: unfreeze some of them")
        return value

    def backward(self, batch: Any, seed: int = 0) -> Tensor:
        """The loss on a batch, behind its gradients."""
        with seeded(seed, self.model):
            loss = self.loss_of(self.run(batch), batch)
            with in_words("the backward pass failed"):
                loss.backward()
        return loss.detach()

    @cached_property
    def _traced(self) -> tuple[trace.Graph, dict[nn.Module, Norm]]:
        with quiet(self.model):
            return trace.trace(self.model, lambda: self.run(self.batches[0]))

    @cached_property
    def connections(self) -> list[Connection]:
        connections = structure.connections(self._traced[0])
        if not connections:
            raise Unfit(
                f"no residual connection was found in {type(self.model).__name__}: there is nothing to inspect in a "
                f"model that is not built of x + f(x)"
            )
        return connections

    @cached_property
    def findings(self) -> list[faults.Finding]:
        return faults.findings(self.connections, trace.sizes(self.model), self.initial)

    @contextlib.contextmanager
    def reading(
        self,
        wanted: dict[int, list[Tensor]],
        take: Callable[[int, list[Tensor]], list[Tensor]] = lambda at, tensors: [t.float() for t in tensors],
    ) -> Iterator[None]:
        """Within it, the operands and the result of each wanted node are put into `wanted`, or what `take` makes of
        them."""

        # A node is found again as the n-th of its kind in its module: how much else is computed may differ by batch.
        nodes, counts = self._traced[0].nodes, Counter[tuple[str, str]]()
        places: dict[tuple[str, str, int], int] = {}
        for index, node in enumerate(nodes):
            counts[node.module, node.op] += 1
            places[node.module, node.op, counts[node.module, node.op]] = index
        seen = Counter[tuple[str, str]]()

        def keep(index: int, op: str, operands: Sequence[Tensor], result: Tensor) -> None:
            module = recorder.graph.nodes[index].module
            seen[module, op] += 1
            at = places.get((module, op, seen[module, op]), -1)
            if at in wanted:
                wanted[at] = take(at, [t.detach() for t in (*operands, result)])

        with trace.recording(self.model, self._traced[1], keep) as recorder:
            yield
        for index in wanted:
            kind = nodes[index].module, nodes[index].op
            if len(wanted[index]) < 2 or seen[kind] != counts[kind]:
                raise UserError(
                    "the model does not compute the same operations each time, so its layers cannot be followed"
                )


def output_of(value: Any) -> Tensor | None:
    """What the model is for: the first tensor it returns that has more than one number a sample.

    None: it returns its loss alone, and the last stream stands in.
    """
    tensors = list(trace.tensors_in(value))
    for t in tensors:
        if t.is_floating_point() and t.ndim >= 2:
            return t
    if len(tensors) == 1 and tensors[0].is_floating_point():
        return None
    raise UserError(
        "the model returns no floating tensor with at least two dimensions, so its change cannot be measured"
    )


@contextlib.contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Without dropout, whose noise would make tokens look different that are not; modes and buffers are put back."""
    with evaluated(model), seeded(0, model), buffers_kept(model), torch.no_grad():
        yield


@contextlib.contextmanager
def in_words(what: str) -> Iterator[None]:
    """Whatever somebody else's code raises within becomes one sentence that begins with `what`."""
    try:
        yield
    except (UserError, MemoryError, torch.OutOfMemoryError):  # they have sentences of their own
        raise
    except Exception as error:
        raise UserError(f"{what}: {first_line(error)}") from error


def _eager() -> contextlib.AbstractContextManager[Any]:
    """What is compiled runs as it is written, or its operations could not be seen; dynamo is slow to load."""
    loaded = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if loaded else contextlib.nullcontext()


def own_loss(output: Any) -> Any:
    """The loss among what a model returns: what is called so, the first of several values or the only number."""
    if isinstance(output, Mapping):
        named = output.get("loss")
    else:
        named = None if isinstance(output, Tensor) else getattr(output, "loss", None)
    if named is not None:
        return named
    first = next(iter(output), None) if isinstance(output, tuple | list) else output
    if _is_number(first):
        return first
    numbers = [t for t in trace.tensors_in(output) if _is_number(t)]
    return numbers[0] if len(numbers) == 1 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point()


def relative_change(new: Tensor, old: Tensor) -> float:
    return float((new - old).norm() / old.norm().clamp_min(1e-30))


@dataclass
class Look:
    """The streams after every connection, the model's output and its loss, on one batch without dropout."""

    streams: list[Tensor]
    output: Tensor
    loss: float


def look(subject: Subject, batch: Any) -> Look:
    wanted: dict[int, list[Tensor]] = {c.add: [] for c in subject.connections}
    with quiet(subject.model):
        with subject.reading(wanted):
            result = subject.run(batch)
        loss, output = float(subject.loss_of(result, batch)), output_of(result)
    streams = [wanted[c.add][-1] for c in subject.connections]
    return Look(streams, streams[-1] if output is None else output.detach().float(), loss)


def loss_at(subject: Subject, batch: Any) -> float:
    """Without dropout, where the model stands."""
    with quiet(subject.model):
        return float(subject.loss_of(subject.run(batch), batch))


def at_start(subject: Subject, start: Look, seed: int = 0) -> list[Record]:
    """What a rollout is compared with: how different the tokens are, and the loss."""
    records = [
        Record("diversity", diversity(stream), c.where, c.position, c.stack, seed=seed)
        for c, stream in zip(subject.connections, start.streams, strict=True)
    ]
    return [*records, Record("shown_loss", start.loss, seed=seed)]


def initial(subject: Subject, seed: int = 0, most: int | None = None) -> list[Record]:
    """At every connection: stream, branch, norm inputs and Jacobians; of every weight: its norm and its gradient."""
    return _streams(subject, seed) + gradients(subject, seed, most)


def _streams(subject: Subject, seed: int) -> list[Record]:
    nodes = subject._traced[0].nodes
    connections = subject.connections
    wanted: dict[int, list[Tensor]] = {i: [] for c in connections for i in (c.add, *c.norm_nodes)}
    with quiet(subject.model), subject.reading(wanted):
        subject.run(subject.batches[0])
    records: list[Record] = []
    for c in connections:
        at = c.place | {"seed": seed}
        left, right, result = wanted[c.add]
        branch = right if nodes[c.add].inputs[1] == c.branch else left
        records += [
            Record("hidden_norm", float(token_norm(result)), c.where, **at),
            Record("branch_norm", float(token_norm(branch)), c.where, **at),
            Record("diversity", diversity(result), c.where, **at),
        ]
        for node in c.norm_nodes:
            x = wanted[node][0]
            size = (x - x.mean(-1, keepdim=True) if nodes[node].centred else x).flatten(0, -2).norm(dim=-1)
            root = math.sqrt(x.shape[-1])
            where = nodes[node].module
            records.append(Record("norm_input", float(token_norm(x)) / root, where, **at))
            records.append(Record("norm_jacobian", float((root / size.clamp_min(1e-12)).mean()), where, **at))
    return records


def gradients(subject: Subject, seed: int, most: int | None = None) -> list[Record]:
    """Backward over every batch, or the first few, without a step."""
    batches = subject.batches[:most]
    weights = {name: p for name, p in subject.model.named_parameters() if p.requires_grad}
    sums: dict[str, Tensor] = {}
    norms: dict[str, float] = dict.fromkeys(weights, 0.0)
    with restored(subject.model, subject.optimizer):
        for batch in batches:
            for p in weights.values():
                p.grad = None
            subject.backward(batch)
            for name, p in weights.items():
                if p.grad is not None:
                    gradient = p.grad.detach().float()
                    sums[name] = sums[name] + gradient if name in sums else gradient.clone()
                    norms[name] += float(gradient.norm())
    count = len(batches)
    places, records = {w: c.place for c in reversed(subject.connections) for w in c.weights}, []
    for name, p in weights.items():
        at = places.get(name, {}) | {"seed": seed}
        records.append(Record("weight_norm", float(p.detach().float().norm()), name, **at))
        if name in sums:
            records.append(Record("grad_norm_of_mean", float(sums[name].norm()) / count, name, **at))
            records.append(Record("mean_grad_norm", norms[name] / count, name, **at))
    return records


def take_step(optimizer: torch.optim.Optimizer) -> None:
    name = type(optimizer).__name__
    try:
        with in_words(f"a step of {name} failed"):
            optimizer.step()
    except UserError as error:
        if isinstance(error.__cause__, TypeError):  # LBFGS and its like take a closure
            raise UserError(f"{name} cannot be stepped alone: inspect with one that can, such as Adam or SGD") from None
        raise


def training(subject: Subject, rate: float, steps: int) -> Iterator[float]:
    """Train at a constant rate on all batches but the last, or on the only one: the loss of each step, behind it.

    It ends with a loss that is not finite. The caller puts the model back.
    """
    optimizer, batches = subject.optimizer, subject.batches[:-1] or subject.batches
    largest = max(group["lr"] for group in optimizer.param_groups) or 1.0
    rates = [float(group["lr"]) / float(largest) * rate for group in optimizer.param_groups]
    for step in range(1, steps + 1):
        for p in subject.model.parameters():
            if p.requires_grad:
                p.grad = None
        loss = float(subject.backward(batches[(step - 1) % len(batches)], step))
        for group, value in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = value
        take_step(optimizer)
        yield loss
        if not math.isfinite(loss):
            return


def rollout(
    subject: Subject, rate: float, steps: int, seed: int = 0, start: Look | None = None, on_step: Any = lambda: None
) -> list[Record]:
    """The first steps of training at a constant rate, from where the model stands.

    After each step, on the last batch (which is not trained on where there are several): how far the output and every
    stream have moved since the start, how far in this step, how different the tokens still are, and the loss.
    """
    shown = subject.batches[-1]
    start = start or look(subject, shown)
    records: list[Record] = []
    connections = subject.connections
    weights = [(name, p) for name, p in subject.model.named_parameters() if p.requires_grad]
    before, places = start, {w: c.place for c in reversed(connections) for w in c.weights}
    with restored(subject.model, subject.optimizer) as first_weights:
        for step, loss in enumerate(training(subject, rate, steps), start=1):
            whole: Facts = {"step": step, "seed": seed, "rate": rate}
            for name, p in weights if step == 1 else ():
                moved = float((p.detach().float() - first_weights[p].float()).norm())
                records.append(Record("update_norm", moved, name, **places.get(name, {}), **whole))
            after = look(subject, shown)
            records += [
                Record("loss", loss, **whole),
                Record("shown_loss", after.loss, **whole),
                Record("output_change", relative_change(after.output, start.output), **whole),
                Record("step_change", relative_change(after.output, before.output), **whole),
            ]
            for c, stream, first in zip(connections, after.streams, start.streams, strict=True):
                at = {"where": c.where, **c.place, **whole}
                records.append(Record("hidden_change", relative_change(stream, first), **at))
                records.append(Record("diversity", diversity(stream), **at))
            before = after
            on_step()
    return records
