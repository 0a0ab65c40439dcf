"""From a config to a trained run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from leadline.config import Config
from leadline.data.store import Store, prepare
from leadline.errors import Diverged, Interrupted, UserError
from leadline.files import sha256
from leadline.flight import Flight
from leadline.metrics import Metrics, Unwritten
from leadline.model import init
from leadline.tasks.base import Batch
from leadline.training import checkpoint, choosing, saving
from leadline.training import run as runs
from leadline.training.checkpoint import State
from leadline.training.device import release_memory, resolved, telling_of_memory
from leadline.training.events import OnStep, Watcher
from leadline.training.prefetch import prefetched
from leadline.training.recorder import MOST, Recorder, Spike
from leadline.training.setup import Setup, set_up
from leadline.training.signals import watching_signals
from leadline.training.since import Since
from leadline.training.start import begun, restored
from leadline.training.step import Result, Whole
from leadline.training.waiting import Waiting
from leadline.world import Lost, World, join


def train(config: Config, out: str | Path | None = None, on_step: Sequence[OnStep] = ()) -> Path:
    """Train from the beginning; returns the run folder."""
    folder = Path(out) if out else runs.default_folder(config.model.placement)
    runs.require_new(folder)
    return _run(folder, resolved(runs.absolute(config)), on_step)


def resume(
    folder: str | Path, on_step: Sequence[OnStep] = (), config: Config | None = None, allow_code: bool = False
) -> Path:
    """Go on with a run from its last checkpoint, to the same weights as if it had never stopped.

    `config`, the run's with some of `leadline.config.LATER` changed, trains longer or otherwise from there.
    allow_code: also where the run names a placement of somebody's own, which is imported.
    """
    folder = Path(folder)
    before, note = runs.read_config(folder)
    runs.require_permission(before, folder, allow_code)
    config = runs.keeping_chosen(before, config or before)
    config = resolved(runs.with_vocabulary(runs.absolute(config), folder))
    runs.require_changeable(folder, runs.absolute(before), config)
    return _run(folder, config, on_step, note)


def _run(folder: Path, config: Config, on_step: Sequence[OnStep], note: str = "") -> Path:
    world = join()
    alone_in_it = runs.locked(folder) if world.leads else contextlib.nullcontext()
    with alone_in_it, watching_signals() as signals:
        store = Store(prepare(config.data))
        # Data that came prepared is what its own folder says, whatever the recipe says of it.
        # Where text and vocabulary lie is the run's affair.
        data = replace(store.data, source=config.data.source, vocabulary=config.data.vocabulary)
        config = replace(config, data=data)
        updates = runs.number_of(folder, "updates_per_epoch")
        world.require_alike(runs.own(config, store))
        config, reasons = choosing.chosen(folder, config, store, on_step, world, begun, signals)
        reasons |= runs.reasons_of(folder, config)
        setup = set_up(folder, config, store, on_step, updates, world)
        config = setup.config
        chosen = {"step": config.train.step, "precision": config.train.precision, "attention": setup.attention}
        chosen |= {"init": checkpoint.IMPORTED if checkpoint.is_imported(folder) else init.base_of(config.model)}
        if setup.not_captured:
            chosen["not_captured"] = setup.not_captured
        state = restored(setup)
        if 0 < config.train.updates < state.update:
            raise UserError(f"train.updates={config.train.updates}: {folder} has made {state.update} updates already")
        if len({*world.gather(state.update)}) > 1:
            raise UserError(
                f"the processes of this training read different checkpoints of {folder}: it must be one filesystem, "
                "and the same to all; start again"
            )
        watch = max((getattr(function, "every", 0) for function in on_step if isinstance(function, Watcher)), default=0)
        choices = {"device": str(setup.device), "chosen": chosen, "watch": watch}
        choices |= {"updates_per_epoch": setup.updates_per_epoch, "reasons": reasons}
        if world.leads:
            for message in [note, *runs.describe(folder, config, store, choices, state.update)]:
                if message:
                    setup.tell("message", state.update, message=message)
            state.config = sha256(folder / "config.toml")
        while back := _train(setup, state, signals, reasons):
            del setup
            release_memory()
            setup = set_up(folder, config, store, on_step, updates, world)
            state = _back(setup, state, back)
    return folder


def _back(setup: Setup, before: State, spike: Spike) -> State:
    """The last checkpoint, from which training goes on without the batches of a spike."""
    setup.world.gather(0)  # the process that writes checkpoints has written them
    state = restored(setup)
    state.config, state.spikes = before.config, before.spikes + 1
    state.left_out = [*before.left_out, [spike.epoch, spike.batch]]
    lr = f" at {setup.config.train.spike_lr**state.spikes:g} of the rate" if setup.config.train.spike_lr < 1 else ""
    message = f"{_said(spike)}: back to update {state.update}, without its batch{lr}"
    if setup.world.leads:
        runs.note_spike(setup.folder, spike.facts("rollback", back_to=state.update))
        setup.tell("message", spike.update, message=message)
    return state


def _said(spike: Spike) -> str:
    return f"update {spike.update} is a spike (loss {spike.loss:.4g}, gradient norm {spike.grad_norm:.4g})"


def _train(setup: Setup, state: State, signals: list[int], reasons: dict[str, str]) -> Spike | None:
    """To the end, or to a spike that is to be rolled back."""
    config = setup.config
    weights = sum(p.numel() for p in setup.model.parameters())
    start = f"from the weights of {config.train.start}" if config.train.start else "from the beginning"
    where = f"from update {state.update}" if state.update else start
    why = f" ({setup.not_captured})" if setup.not_captured else ""
    on = f"{setup.device} in {config.train.precision}, step {config.train.step}{why}"
    facts = (
        f"{weights:,} weights on {on}, {setup.updates_per_epoch} update{'s' * (setup.updates_per_epoch != 1)} an epoch"
    )
    chosen = "".join(f"; {key} {why}" for key, why in reasons.items())
    imported = checkpoint.is_imported(setup.folder)
    if imported and not state.update:
        where = "from the imported weights"
    model = config.model.placement if config.train.start or imported else init.start_of(config.model)
    setup.tell("start", state.update, message=f"{model}, {facts}, {where}{chosen}")
    for note in setup.task.notes():
        setup.tell("message", 0, message=note)
    if _is_last(state, config) or _gives_up(state, config):
        longer = "train.updates" if config.train.updates else "train.epochs"
        message = f"this run is complete: nothing is left to train (longer: --set {longer}=…)"
        setup.tell("message", state.update, message=message)
        return None
    metrics = Metrics(setup.folder, state.update) if setup.world.leads else Unwritten()
    if metrics.damaged:
        message = f"{metrics.damaged} lines of metrics.jsonl cannot be read: they are in metrics.damaged.jsonl now"
        setup.tell("message", state.update, message=message)
    elif setup.world.leads and state.metrics not in ("", metrics.digest()):
        message = (
            f"metrics.jsonl is damaged: up to update {state.update} it is not what was written, and some of what was "
            "measured is lost or changed; the training is not"
        )
        setup.tell("message", state.update, message=message)
    recorder = Recorder(Flight(setup.folder, state.update) if setup.world.leads else None, state, setup.step.layers)
    if config.train.on_spike == "skip":
        setup.step.accepts = recorder.accepts
    try:
        with telling_of_memory(config), saving.Writer() as writer:  # what it began is on disk before this ends
            return _updates(setup, state, metrics, recorder, signals, writer)
    except Lost as lost:
        raise Lost(f"{lost}; go on with leadline train --resume {setup.folder}") from None
    finally:
        metrics.close()
        recorder.close()


def _updates(
    setup: Setup,
    state: State,
    metrics: Metrics | Unwritten,
    recorder: Recorder,
    signals: list[int],
    writer: saving.Writer,
) -> Spike | None:
    config, train = setup.config, setup.config.train
    setup.model.train()
    waiting = Waiting(setup.device)
    since = Since(waiting, torch.tensor(state.losses, device=setup.device).unbind())
    watchers = setup.watchers()
    updates = batches_of(setup, state)
    ahead = updates if setup.device.type == "cpu" else prefetched(updates)  # whose step needs its cores itself
    for epoch, begin, used, ends_epoch, rows, batches in ahead:
        lr = rate_of(setup, state, state.update + 1)
        recorder.begin(epoch, begin, rows, lr)
        due = [watcher for watcher in watchers if watcher.due(state.update + 1)]
        whole, stop = _of_all(setup.world, batches, signals)
        waiting.begins()
        result = setup.step(batches, state.update + 1, lr, due, whole)
        waiting.ends()
        state.update += 1
        state.epoch, state.batch = (epoch + 1, 0) if ends_epoch else (epoch, used)
        state.tokens += result.tokens
        since.add(result)
        recorder.add(epoch, begin, result)

        finished = _is_last(state, config)
        due_now = state.update % train.eval_every == 0 if train.eval_every > 0 else ends_epoch
        evaluates = (finished or due_now) and train.eval_every >= 0
        saves = finished or due_now or (train.save_every > 0 and state.update % train.save_every == 0)
        logs = finished or evaluates or state.update % train.log_every == 0
        if signals and not setup.world.grouped:
            stop = signals[0]
        # Elsewhere than on a CPU, looking means waiting for the device, as judging an update before it is taken does.
        reads = logs or saves or stop or setup.device.type == "cpu" or setup.step.accepts is not None
        if reads and (spike := _read(setup, state, metrics, recorder, result, writer)):
            return spike
        for row, alarm in result.watched:
            metrics.write({"update": state.update, **row} | ({"alarm": alarm} if alarm else {}))
            if alarm:
                setup.tell("message", state.update, message=f"update {state.update}: {alarm}")
        if logs:
            row = since.row(state, result, lr)
            metrics.write(row)
            setup.tell("update", state.update, row)
            since = Since(waiting)
        if evaluates or saves or stop:
            setup.step.settle()
        if evaluates:
            _evaluate(setup, state, metrics)
            finished = finished or _gives_up(state, config)
            waiting.interrupted()
            since = Since(waiting)
        if signals and not setup.world.grouped and not recorder.waiting:
            stop = signals[0]  # one that comes from here on is seen after the next update
        if saves or stop:
            state.losses = torch.stack(since.losses).tolist() if since.losses else []
            state.metrics = metrics.digest()
            moments = setup.step.gathered()
            if setup.world.leads:
                writer.save(setup.folder, state, setup.model, moments, train.keep)
            waiting.interrupted()
        if stop:
            writer.wait()  # Interrupted says that everything is saved
            raise Interrupted(stop, setup.folder, state.update)
        if finished:
            return None
    return None


def _read(
    setup: Setup,
    state: State,
    metrics: Metrics | Unwritten,
    recorder: Recorder,
    result: Result,
    writer: saving.Writer,
) -> Spike | None:
    """Look at the numbers that wait on the device, and end what cannot go on; a spike that is to be rolled back."""
    spikes, told = recorder.read()
    for message in told:
        setup.tell("message", state.update, message=message)
    if spikes and setup.config.train.on_spike == "rollback" and state.spikes < MOST:
        writer.wait()
        return spikes[0]
    _met(setup, state, spikes)
    if not math.isfinite(result.loss) or not math.isfinite(result.grad_norm):
        metrics.write({"update": state.update, "loss": float(result.loss), "grad_norm": float(result.grad_norm)})
    if not result.skipped:
        _require_finite(setup, state, result, writer)
    return None


def rate_of(setup: Setup, state: State, update: int) -> float:
    train = setup.config.train
    rolled_back = state.spikes if train.on_spike == "rollback" else 0
    return setup.rate(update) * train.spike_lr**rolled_back


def _of_all(world: World, batches: Sequence[Batch], signals: list[int]) -> tuple[Whole, int]:
    """The update that all processes do together, and a signal that one of them has got."""
    own = Whole.of(batches)
    if not world.grouped:
        return own, 0
    given = world.exchange([own.count, own.tokens, own.batches, signals[0] if signals else 0])
    *sums, numbers = zip(*given, strict=True)
    return Whole(*map(sum, sums)), max(numbers)


def batches_of(setup: Setup, state: State) -> Iterator[tuple[int, int, int, bool, list[np.ndarray], list[Batch]]]:
    """Updates without end: epoch, the first of its batches, used of it then, whether it ends here, the rows of all
    batches, this process's batches."""
    task, world, many = setup.task, setup.world, setup.config.train.micro_batches
    epoch, used, left_out = state.epoch, state.batch, {(at, batch) for at, batch in state.left_out}
    while True:
        plan = setup.epoch(epoch)
        begins = [begin for begin in range(used, len(plan), many) if (epoch, begin) not in left_out]
        for begin in begins:
            chosen = plan[begin : begin + many]
            own = [setup.step.prepare(task.collate(rows, epoch)) for rows in chosen[world.rank :: world.size]]
            yield epoch, begin, begin + len(chosen), begin == begins[-1], list(chosen), own
        epoch, used = epoch + 1, 0


def _is_last(state: State, config: Config) -> bool:
    train = config.train
    return 0 < train.updates <= state.update or 0 < train.epochs <= state.epoch


def _gives_up(state: State, config: Config) -> bool:
    return 0 < config.train.patience <= state.stale


def _met(setup: Setup, state: State, spikes: Sequence[Spike]) -> None:
    """A spike that is not rolled back."""
    asked = setup.config.train.on_spike
    if not spikes or asked == "ignore":
        return
    if asked != "skip" or state.spikes >= MOST:
        many = f" after {state.spikes} others" if state.spikes else ""
        raise Diverged(
            f"{_said(spikes[0])}{many}, and train.on_spike={asked}: leadline explain {setup.folder} says what it was; "
            "try a lower optim.lr, optim.clip or train.on_spike=rollback"
        )
    state.spikes += 1
    if setup.world.leads:
        runs.note_spike(setup.folder, spikes[0].facts("skip"))
        setup.tell("message", state.update, message=f"{_said(spikes[0])}: skipped")


def _require_finite(setup: Setup, state: State, result: Result, writer: saving.Writer) -> None:
    for name, value in (("loss", result.loss), ("gradient norm", result.grad_norm)):
        if not math.isfinite(value):
            with contextlib.suppress(UserError):  # the divergence matters more; a failed write is not among the names
                writer.wait()
            saved = checkpoint.names(setup.folder)
            kept = f"the last checkpoint is {saved[-1]}" if saved else "no checkpoint had been written yet"
            raise Diverged(
                f"the {name} is {float(value)} at update {state.update} with {setup.config.model.placement} at "
                f"lr {setup.config.optim.known_lr:g}: try a lower optim.lr, more optim.warmup or optim.clip ({kept})"
            )


def _evaluate(setup: Setup, state: State, metrics: Metrics | Unwritten) -> None:
    """Validate, and log it."""
    scores = setup.task.evaluate(setup.model, "valid", setup.config.train.bleu_sentences, setup.world)
    better = math.isfinite(scores["nll"]) and (state.best_nll is None or scores["nll"] < state.best_nll)
    state.stale = 0 if better else state.stale + 1
    if better:
        state.best_nll, state.best_update = scores["nll"], state.update
    row = {"update": state.update, "epoch": state.epoch} | {f"valid_{key}": value for key, value in scores.items()}
    metrics.write(row)
    setup.tell("evaluation", state.update, row)
    if _gives_up(state, setup.config) and not _is_last(state, setup.config):
        message = f"no better validation loss in {state.stale} evaluations: stopping early"
        setup.tell("message", state.update, message=message)
