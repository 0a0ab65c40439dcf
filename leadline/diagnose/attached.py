"""Watch in a loop that is not ours: what it hooks, and when it writes.

The model's call is hooked for looks (`leadline.diagnose.looking`), the optimizer's step for the pulse of every layer
(`leadline.pulse`). Nothing that the training computes with is touched.
"""

from __future__ import annotations

import contextlib
import math
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leadline
from leadline import alarm, flight, pulse
from leadline.diagnose import looking
from leadline.diagnose.beside import Beside
from leadline.errors import UserError, first_line
from leadline.files import reason, write_json
from leadline.history import Row
from leadline.metrics import Metrics
from leadline.pulse import Pulse

WAITS = 10  # updates whose numbers may wait on a device before they are read
FACTS = "watch.json"


class Attached:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, out: Path, every: int, update: int) -> None:
        looking.require_whole(model)
        self.model, self.optimizer, self.every, self.update = model, _innermost(optimizer), every, update
        self.leads = not (torch.distributed.is_available() and torch.distributed.is_initialized()) or (
            torch.distributed.get_rank() == 0
        )
        self.messages: list[str] = []
        self.hooks: list[Any] = []
        if not self.leads:
            return
        if not update and (out / "metrics.jsonl").exists():
            raise UserError(f"{out} holds a run already: choose another folder, or say how far it is with update=…")
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.metrics, self.flight = out, Metrics(out, update), flight.Flight(out, update)
        self.looker, self.seer = looking.Looker(model, self.optimizer), alarm.Seer()
        self.beside = Beside(self.looker.model, self.optimizer)
        self.cannot = ""  # why it does not look into the model
        self.pulse: Pulse | None = None
        self.called = self.inside = self.parts = self.blind = False
        self.looked: looking.Quantities = {}
        self.losses: list[Tensor] = []
        self.waiting: list[tuple[Row, list[Tensor], list[Tensor], dict[str, Tensor]]] = []
        self.lr, self.pulses, self.notes = 0.0, list[Tensor](), dict[str, Tensor]()
        self.settings: Row = {}
        self.started = time.perf_counter()
        self.hooks = [
            model.register_forward_pre_hook(torch.compiler.disable(self._called), with_kwargs=True),
            model.register_forward_hook(torch.compiler.disable(self._returned)),
            self.optimizer.register_step_pre_hook(self._before_step),
            self.optimizer.register_step_post_hook(self._after_step),
        ]
        self._describe()

    # What the loop calls

    def step(self, loss: Tensor | float | None = None) -> None:
        if self.leads:
            with self._writing():
                self._step(loss)

    def _step(self, loss: Tensor | float | None) -> None:
        self.update += 1
        losses = self.losses if loss is None else [torch.as_tensor(loss).detach().float()]
        row: Row = {"update": self.update, "lr": self.lr, **self.settings}
        if self.looker.changed:
            row["changed"], self.looker.changed = self.looker.changed, {}
            self._describe()
        self.waiting.append((row, losses, self.pulses, self.notes | self.beside.taken()))
        looked, self.looked, self.losses, self.pulses, self.notes = self.looked, {}, [], [], {}
        due = self.update % self.every == 0
        if not self.called and due and not self.cannot:
            self.only_follow("the model was not seen to be called: give Watch the module that the loop calls")
        self.called = False
        if due or len(self.waiting) >= WAITS or self._device().type == "cpu":
            self._flush(looked if due else {}, due)

    def close(self) -> None:
        hooks, self.hooks = self.hooks, []
        for hook in hooks:
            hook.remove()
        if hooks:
            self.beside.close()
            with self._writing():
                self._flush({}, False)
            self.metrics.close()
            self.flight.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """What cannot be written ends the watching, and not somebody's training."""
        try:
            yield
        except (UserError, OSError) as error:
            said = str(error) if isinstance(error, UserError) else f"{error.filename}: {reason(error)}"
            self._tell(f"Watch ends at update {self.update}: {said}")
            self.leads, self.waiting = False, []
            self.close()

    # What is hooked

    def _called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.inside or not torch.is_grad_enabled():
            return
        first, self.called = not self.called, True
        self.parts = kwargs.get("num_items_in_batch") is not None  # transformers': each loss is a share of the update's
        if first and not self.blind:
            self.notes = self.beside.batch(args, kwargs)
        if not first or self.cannot or (self.pulse and (self.update + 1) % self.every):
            return
        self.inside = True
        try:
            if self.pulse is None:
                self._find(args, kwargs)
            if (self.update + 1) % self.every == 0:
                self.looked = self.looker.look(args, kwargs)
        except Exception as error:  # the training goes on, whatever it is
            self.only_follow(first_line(error))
        finally:
            self.inside = False

    def _find(self, args: Any, kwargs: Any) -> None:
        connections = self.looker.find(args, kwargs)
        self.pulse = Pulse(layers_of(self.looker.model, self.looker, connections))
        self._describe()

    def _returned(self, module: nn.Module, args: Any, output: Any) -> None:
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if not self.inside and torch.is_grad_enabled() and isinstance(loss, Tensor) and loss.numel() == 1:
            self.losses.append(loss.detach().float().reshape(()))

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        self.lr = float(max(group["lr"] for group in optimizer.param_groups))
        self.settings = {"settings": self.beside.settings()}
        closure = kwargs.get("closure") or next(filter(callable, args[1:]), None)  # the first is the optimizer
        if closure is None:
            self._gradients()
            return None
        seen = False

        def followed(*given: Any, **named: Any) -> Any:
            """The forward and the backward pass are in the step, as Lightning has it."""
            nonlocal seen
            result = closure(*given, **named)
            if not seen:
                self._gradients()
            seen = True
            return result

        replaced = tuple(followed if value is closure else value for value in args)
        return replaced, {key: followed if value is closure else value for key, value in kwargs.items()}

    def _gradients(self) -> None:
        if self.blind:
            return
        try:
            if self.pulse is None:  # the model was not seen yet, or cannot be looked into
                self.pulse = Pulse(pulse.layers_of(self.looker.model, {}))
            gradients = {p: p.grad for p in self.pulse.weights if p.grad is not None}
            found = torch._foreach_norm(list(gradients.values())) if gradients else []
            norms = dict(zip(gradients, found, strict=True))
            self.pulse.before([norms.get(p) for p in self.pulse.weights])
            self.beside.listen(self.pulse.weights)
        except Exception as error:  # as with looks
            self.blind = True
            self._tell(f"Watch cannot follow gradients and updates: {first_line(error)}")

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.pulse and not self.blind:
            self.pulses, self.beside.stepped = [self.pulse.after()], True

    # What is written

    def _flush(self, looked: looking.Quantities, due: bool) -> None:
        """Reads what waits on the device, all at once."""
        waiting, self.waiting = self.waiting, []
        parts = [(*losses, *pulses, *notes.values()) for _, losses, pulses, notes in waiting]
        tensors = [t.flatten().float() for part in parts for t in part]
        keys = [(quantity, name) for quantity, by in looked.items() for name in by]
        tensors += [looked[quantity][name].float().reshape(1) for quantity, name in keys]
        numbers = iter(torch.cat([t.to(self._device()) for t in tensors]).tolist() if tensors else ())
        rows = [
            self._row(row, len(losses), bool(pulses), numbers) | {key: next(numbers) for key in notes}
            for row, losses, pulses, notes in waiting
        ]
        for row in rows:
            self.flight.write(row)
            for message in self.seer.see(row):
                self._tell(f"update {row['update']}: {message}")
        if due and rows:
            values = {f"watch/{quantity}/{name}": next(numbers) for quantity, name in keys}
            self._log(rows, values)

    def _row(self, row: Row, losses: int, pulsed: bool, numbers: Any) -> Row:
        if losses:
            row["loss"] = sum(next(numbers) for _ in range(losses)) / (1 if self.parts else losses)
        if pulsed and self.pulse:
            names = self.pulse.names
            read = [[next(numbers) for _ in names] for _ in flight.QUANTITIES]
            row["grad_norm"] = math.sqrt(sum(value * value for value in read[0]))
            row |= {"layers": names, "pulse": read}
        return row

    def _log(self, rows: list[Row], values: dict[str, float]) -> None:
        """The line of metrics for what has been since the last."""
        last = rows[-1]
        seconds = time.perf_counter() - self.started
        line: Row = {key: last[key] for key in ("update", "loss", "lr", "grad_norm") if key in last}
        grad, update, weight = (alarm.layer_values(last, quantity) for quantity in ("grad", "update", "weight"))
        ratio = {name: update[name] / (size or 1.0) for name, size in weight.items()}
        for quantity, by in {"grad": grad, "update": update, "weight": weight, "ratio": ratio}.items():
            line |= {f"watch/{quantity}/{name}": value for name, value in by.items()}
        self.metrics.write(line | values | {"seconds": seconds})
        for message in self.seer.look(values):
            self._tell(f"update {self.update}: {message}")

    def _describe(self) -> None:
        subject = self.looker.subject
        model = self.looker.model
        found = subject.connections if subject else []
        write_json(
            self.out / FACTS,
            {
                "model": type(model).__name__,
                "weights": sum(p.numel() for p in model.parameters()),
                "optimizer": type(self.optimizer).__name__,
                "watch": self.every,
                "connections": {
                    self.looker.names[c.add]: {"placement": c.placement, "sublayer": c.sublayer} for c in found
                },
                "cannot": self.cannot,
                "versions": {"torch": torch.__version__, "python": platform.python_version(),
                             "leadline": leadline.__version__},
            },
        )  # fmt: skip

    def only_follow(self, why: str) -> None:
        self.cannot = why
        self._tell(f"Watch does not look into the model ({why}); gradients and updates are followed all the same")
        with contextlib.suppress(OSError):  # this may be within the model's call; `step` tells of it
            self._describe()

    def _tell(self, message: str) -> None:
        self.messages.append(message)
        print(f"leadline: {message}", file=sys.stderr)

    def _device(self) -> torch.device:
        return next(self.looker.model.parameters()).device


def layers_of(model: nn.Module, looker: looking.Looker, connections: Any) -> pulse.Layers:
    """The weights of each sublayer: of the modules that hold its matrices."""
    own = dict(model.named_parameters())
    taken: set[str] = set()
    sublayers: pulse.Layers = {}
    for c in connections:
        homes = {w.rpartition(".")[0] for w in c.weights}
        names = [name for name in own if name.rpartition(".")[0] in homes and name not in taken]
        taken.update(names)
        sublayers[looker.names[c.add]] = [own[name] for name in names]
    return pulse.layers_of(model, sublayers)


def _innermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """What takes the step: accelerate wraps it."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer
