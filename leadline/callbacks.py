"""Watch in other people's trainers.

    Trainer(..., callbacks=[leadline.callbacks.transformers("runs/mine", every=50)])
    L.Trainer(..., callbacks=[leadline.callbacks.lightning("runs/mine", every=50)])

Each makes a `leadline.Watch` when training begins and closes it when it ends, however that is.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leadline.diagnose.watch import Watch
from leadline.errors import UserError


def transformers(out: str | Path, every: int = 50) -> Any:
    """A TrainerCallback of Hugging Face's transformers."""
    from transformers import TrainerCallback

    class WatchCallback(TrainerCallback):
        watch: Watch | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.watch = Watch(kwargs["model"], kwargs["optimizer"], out, every=every, update=state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert self.watch is not None
            self.watch.step()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert self.watch is not None
            self.watch.close()

    return WatchCallback()


def lightning(out: str | Path, every: int = 50) -> Any:
    """A Callback of Lightning, of whichever package it is installed as."""
    base = _callback()

    class WatchCallback(base):  # type: ignore[misc, valid-type]
        watch: Watch | None = None
        update = 0

        def on_train_start(self, trainer: Any, module: Any) -> None:
            if len(trainer.optimizers) != 1:
                raise UserError(f"Watch follows one optimizer, and this training has {len(trainer.optimizers)}")
            self.update, self.losses = trainer.global_step, list[Any]()
            called = _called(module)
            self.watch = Watch(called, trainer.optimizers[0], out, every=every, update=self.update)
            attached = self.watch.attached
            if attached and attached.leads and called is module and trainer.model is not module:
                attached.only_follow(
                    "the strategy calls training_step in place of the module, and a look would log too"
                )

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *batch: Any) -> None:
            assert self.watch is not None
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if loss is not None:  # the trainer has divided it by the number of batches of an update
                parts = trainer.accumulate_grad_batches if module.automatic_optimization else 1
                self.losses.append(torch.as_tensor(loss).detach() * parts)
            if trainer.global_step > self.update:  # the last batch of an update
                self.update, losses, self.losses = trainer.global_step, self.losses, []
                self.watch.step(torch.stack(losses).mean() if losses else None)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            self._close()

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            self._close()

        def _close(self) -> None:
            if self.watch:
                self.watch.close()

    return WatchCallback()


def _called(module: nn.Module) -> nn.Module:
    """What training_step calls: the one module inside that has all weights, if there is one; otherwise itself."""
    inside = [child for child in module.children() if any(True for _ in child.parameters())]
    whole = len(inside) == 1 and len(list(inside[0].parameters())) == len(list(module.parameters()))
    return inside[0] if whole and not isinstance(inside[0], nn.ModuleList | nn.ModuleDict) else module


def _callback() -> Any:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise UserError("Lightning is not installed here: pip install lightning")
