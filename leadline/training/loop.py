"""From a config to a trained run."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from leadline import tasks
from leadline.config import Config
from leadline.data.store import Progress, Store, prepare
from leadline.data.tokenizer import Tokenizer
from leadline.errors import Diverged, Interrupted, UserError
from leadline.files import sha256
from leadline.kernels import attention
from leadline.model import Transformer, init
from leadline.model.operations import PLAIN
from leadline.model.precision import autocast
from leadline.training import checkpoint, optim
from leadline.training import run as runs
from leadline.training.checkpoint import State
from leadline.training.device import find_device, require_memory, resolved
from leadline.training.events import Event, Kind, OnStep, Watcher
from leadline.training.metrics import Metrics
from leadline.training.prefetch import prefetched
from leadline.training.step import Result, Step, make_step


def train(
    config: Config, out: str | Path | None = None, on_step: Sequence[OnStep] = (), progress: Progress | None = None
) -> Path:
    """Train from the beginning; returns the run folder."""
    folder = Path(out) if out else runs.default_folder(config.model.placement)
    runs.require_new(folder)
    return _run(folder, resolved(runs.absolute(config)), on_step, progress)


def resume(
    folder: str | Path,
    on_step: Sequence[OnStep] = (),
    progress: Progress | None = None,
    config: Config | None = None,
    allow_code: bool = False,
) -> Path:
    """Go on with a run from its last checkpoint, to the same weights as if it had never stopped.

    `config`, the run's with some of `leadline.config.LATER` changed, trains longer or otherwise from there.
    allow_code: also where the run names a placement of somebody's own, which is imported.
    """
    folder = Path(folder)
    before, note = runs.read_config(folder)
    runs.require_permission(before, folder, allow_code)
    config = resolved(runs.with_vocabulary(runs.absolute(config or before), folder))
    runs.require_changeable(folder, runs.absolute(before), config)
    return _run(folder, config, on_step, progress, note)


def _run(folder: Path, config: Config, on_step: Sequence[OnStep], progress: Progress | None, note: str = "") -> Path:
    with runs.locked(folder), runs.watching_signals() as signals:
        store = Store(prepare(config.data, progress=progress or (lambda what, done: None)))
        # Data that came prepared is what its own folder says, whatever the recipe says of it.
        # Where text and vocabulary lie is the run's affair.
        data = replace(store.data, source=config.data.source, vocabulary=config.data.vocabulary)
        config = replace(config, data=data)
        setup = _set_up(folder, config, store, on_step)  # what cannot work fails here, before anything is written
        chosen = {"step": config.train.step, "precision": config.train.precision, "attention": setup.attention}
        chosen |= {"init": init.base_of(config.model)}
        state = _restore(setup)
        watch = max((getattr(function, "every", 0) for function in on_step if isinstance(function, Watcher)), default=0)
        choices = {"device": str(setup.device), "chosen": chosen, "watch": watch}
        for message in [note, *runs.describe(folder, config, store, choices, state.update)]:
            if message:
                setup.tell("message", state.update, message=message)
        state.config = sha256(folder / "config.toml")
        _train(setup, state, signals)
    return folder


@dataclass(frozen=True)
class Setup:
    """What the parts of one training share."""

    folder: Path
    config: Config
    task: tasks.Task[Any, Any]
    device: torch.device
    model: Transformer
    attention: str  # the kernel chosen
    step: Step
    updates_per_epoch: int
    total: int
    on_step: Sequence[OnStep]

    def tell(self, kind: Kind, update: int, row: dict[str, float] | None = None, message: str = "") -> None:
        for function in self.on_step:
            function(Event(kind, update, self.total, row or {}, message))


def _set_up(folder: Path, config: Config, store: Store, on_step: Sequence[OnStep]) -> Setup:
    device = find_device(config.train.device)
    require_memory(config, store.manifest["vocab_size"], device)
    task = tasks.find(config.task)(config, store)
    model = task.build_model().to(device)
    kernel = attention.choose(device, config.train.precision, config.model.head_width, config.model.attention_dropout)
    model.use_attention(kernel)
    plan = task.epoch(0)
    with autocast(device, config.train.precision):
        model.calibrate(lambda: task.loss(model, task.collate(plan[0]).to(device), 1.0))
    updates_per_epoch = math.ceil(len(plan) / config.train.accumulate)
    limits = [config.train.updates, config.train.epochs * updates_per_epoch]
    total = min(limit for limit in limits if limit)
    step = make_step(config, task, model)
    kernel = kernel if model.ops is PLAIN else "fused"
    return Setup(folder, config, task, device, model, kernel, step, updates_per_epoch, total, on_step)


def _restore(setup: Setup) -> State:
    """The last whole checkpoint, or another run's weights, or the beginning."""
    found = checkpoint.read_latest(setup.folder, lambda message: setup.tell("message", 0, message=message))
    if not found:
        if setup.config.train.start:
            _start_from(setup, Path(setup.config.train.start), setup.config.train.start_checkpoint)
        return State()
    state, weights, moments = found
    checkpoint.restore_model(setup.model, weights, str(setup.folder))
    checkpoint.restore_optimizer(setup.model, setup.step.optimizer, moments)
    setup.step.restored()
    return state


def _start_from(setup: Setup, run: Path, which: str) -> None:
    """The weights of a run, but for what is new in this one."""
    name, weights = checkpoint.choose(run, which)
    before = runs.load_config(run, allow_code=True)  # it is only read: this run's own placement is the one imported
    theirs = Tokenizer.load(run / "tokenizer.json", before.data).bpe.get_vocab()
    if theirs != setup.task.store.tokenizer.bpe.get_vocab():
        raise UserError(
            f"train.start={run} has another vocabulary than this data: set data.vocabulary={run / 'tokenizer.json'}"
        )
    new = setup.task.start_from(setup.model, before, weights)
    checkpoint.restore_part(setup.model, weights, f"checkpoint {name} of {run}", new)
    setup.step.restored()


def _train(setup: Setup, state: State, signals: list[int]) -> None:
    config = setup.config
    weights = sum(p.numel() for p in setup.model.parameters())
    where = f"from update {state.update}" if state.update else "from the beginning"
    on = f"{setup.device} in {config.train.precision}"
    facts = f"{weights:,} weights on {on}, {setup.updates_per_epoch} updates an epoch"
    setup.tell("start", state.update, message=f"{init.start_of(config.model)}, {facts}, {where}")
    if setup.device.type == "cuda" and config.train.step != "graph":
        setup.tell("message", 0, message="on a GPU --set train.step=graph is about ten times faster")
    for note in setup.task.notes():
        setup.tell("message", 0, message=note)
    if _is_last(state, config) or _gives_up(state, config):
        setup.tell("message", state.update, message="this run is complete: nothing is left to train")
        return
    metrics = Metrics(setup.folder, state.update)
    if metrics.damaged:
        message = f"{metrics.damaged} lines of metrics.jsonl cannot be read: they are in metrics.damaged.jsonl now"
        setup.tell("message", state.update, message=message)
    try:
        with checkpoint.Writer() as writer:  # what it began is on disk before this returns or raises
            _updates(setup, state, metrics, signals, writer)
    except torch.cuda.OutOfMemoryError:
        raise UserError(
            f"the GPU has too little memory for batches of {config.train.batch_tokens} tokens: lower "
            "train.batch_tokens (and raise train.accumulate), or set train.recompute=true"
        ) from None
    finally:
        metrics.close()


def _updates(setup: Setup, state: State, metrics: Metrics, signals: list[int], writer: checkpoint.Writer) -> None:
    config, train = setup.config, setup.config.train
    rate = optim.schedule(config.optim, setup.total, setup.updates_per_epoch)
    setup.model.train()
    since = _Since(torch.tensor(state.losses, device=setup.device).unbind())
    on_step: Sequence[Any] = setup.on_step
    watchers = [function for function in on_step if isinstance(function, Watcher)]
    for function in on_step:
        if hasattr(function, "due") and not isinstance(function, Watcher):
            raise UserError(
                f"{type(function).__name__} has 'due' but not all of begin, seen, gradients and end: see "
                "leadline.training.events.Watcher"
            )
    for epoch, used, ends_epoch, batches in prefetched(_batches(setup, state.epoch, state.batch)):
        lr = rate(state.update + 1)
        due = [watcher for watcher in watchers if watcher.due(state.update + 1)]
        result = setup.step(batches, state.update + 1, lr, due)
        state.update += 1
        state.epoch, state.batch = (epoch + 1, 0) if ends_epoch else (epoch, used)
        state.tokens += result.tokens
        since.add(result)

        finished = _is_last(state, config)
        due_now = state.update % train.eval_every == 0 if train.eval_every > 0 else ends_epoch
        evaluates = (finished or due_now) and train.eval_every >= 0
        saves = finished or due_now or (train.save_every > 0 and state.update % train.save_every == 0)
        logs = finished or evaluates or state.update % train.log_every == 0
        if logs or setup.device.type == "cpu":  # elsewhere, looking means waiting for the device
            if not math.isfinite(result.loss) or not math.isfinite(result.grad_norm):
                metrics.write(
                    {"update": state.update, "loss": float(result.loss), "grad_norm": float(result.grad_norm)}
                )
            _require_finite(setup, state, result, writer)
        for row, alarm in result.watched:
            metrics.write({"update": state.update, **row})
            if alarm:
                setup.tell("message", state.update, message=f"update {state.update}: {alarm}")
        if logs:
            row = since.row(state, result, lr)
            metrics.write(row)
            setup.tell("update", state.update, row)
            since = _Since()
        if evaluates:
            row = _evaluate(setup, state)
            metrics.write(row)
            setup.tell("evaluation", state.update, row)
            if _gives_up(state, config) and not finished:
                message = f"no better validation loss in {state.stale} evaluations: stopping early"
                setup.tell("message", state.update, message=message)
                finished = True
            since = _Since()
        stops = bool(signals)  # one that comes from here on is seen after the next update
        if saves or stops:
            _require_finite(setup, state, result, writer)
            state.losses = torch.stack(since.losses).tolist() if since.losses else []
            writer.save(setup.folder, state, setup.model, setup.step.optimizer, train.keep)
        if stops:
            writer.wait()  # Interrupted says that everything is saved
            raise Interrupted(signals[0], setup.folder, state.update)
        if finished:
            return


def _batches(setup: Setup, epoch: int, used: int) -> Iterator[tuple[int, int, bool, list[Any]]]:
    """(epoch, batches used of it, whether it ends here, the batches of one update), without end."""
    task, train = setup.task, setup.config.train
    while True:
        plan = task.epoch(epoch)
        for begin in range(used, len(plan), train.accumulate):
            chosen = plan[begin : begin + train.accumulate]
            end = begin + len(chosen)
            yield epoch, end, end == len(plan), [setup.step.prepare(task.collate(rows, epoch)) for rows in chosen]
        epoch, used = epoch + 1, 0


def _is_last(state: State, config: Config) -> bool:
    train = config.train
    return 0 < train.updates <= state.update or 0 < train.epochs <= state.epoch


def _gives_up(state: State, config: Config) -> bool:
    return 0 < config.train.patience <= state.stale


def _require_finite(setup: Setup, state: State, result: Result, writer: checkpoint.Writer) -> None:
    for name, value in (("loss", result.loss), ("gradient norm", result.grad_norm)):
        if not math.isfinite(value):
            with contextlib.suppress(UserError):  # the divergence matters more; a failed write is not among the names
                writer.wait()
            found = checkpoint.names(setup.folder)
            kept = f"the last checkpoint is {found[-1]}" if found else "no checkpoint had been written yet"
            raise Diverged(
                f"the {name} is {float(value)} at update {state.update} with {setup.config.model.placement} at "
                f"lr {setup.config.optim.lr:g}: try a lower optim.lr, more optim.warmup or optim.clip ({kept})"
            )


def _evaluate(setup: Setup, state: State) -> dict[str, float]:
    """Validate: the row to log."""
    found = setup.task.evaluate(setup.model, "valid", setup.config.train.bleu_sentences)
    better = state.best_nll is None or found["nll"] < state.best_nll
    state.stale = 0 if better else state.stale + 1
    if better:
        state.best_nll, state.best_update = found["nll"], state.update
    return {"update": state.update, "epoch": state.epoch} | {f"valid_{key}": value for key, value in found.items()}


class _Since:
    """Sums since the last line of metrics. Losses stay on the device until they are read."""

    def __init__(self, losses: Iterable[torch.Tensor] = ()) -> None:
        self.started, self.tokens, self.losses = time.perf_counter(), 0, list(losses)

    def add(self, result: Result) -> None:
        self.tokens += result.tokens
        self.losses.append(result.loss)

    def row(self, state: State, result: Result, lr: float) -> dict[str, float]:
        """The line for all updates since; their time counts as training time."""
        loss, grad_norm = (
            float(torch.stack(self.losses).mean()),
            float(result.grad_norm),
        )  # waits for the device
        seconds = time.perf_counter() - self.started
        state.seconds += seconds
        return {
            "update": state.update,
            "epoch": state.epoch,
            "loss": loss,
            "lr": lr,
            "grad_norm": grad_norm,
            "tokens_per_second": self.tokens / max(seconds, 1e-9),
            "seconds": state.seconds,
        }
