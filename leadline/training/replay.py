"""One update of a run, computed again from the checkpoint before it: the same batch, weights and dropout.

So are the updates between the two: with the config that the run had then, without what it skipped, and as it went on
after a rollback. A spike that was rolled back is itself computed again where its number is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from leadline.config import Config
from leadline.data.store import Progress, Store, prepare
from leadline.errors import UserError
from leadline.files import Facts
from leadline.options import Values
from leadline.provenance import facts_of
from leadline.training import checkpoint, loop
from leadline.training import run as runs
from leadline.training.checkpoint import Damaged, State
from leadline.training.device import resolved
from leadline.training.events import Watcher
from leadline.training.setup import Setup, set_up
from leadline.training.start import begun, taken_up

# Of the keys that may change on the way, those that an update depends on; beside all of the optimizer.
COMPUTES = {f"train.{name}" for name in ("updates", "epochs", "precision", "step", "recompute", "on_spike", "spike_lr")}


def replay(
    folder: Path,
    update: int,
    watcher: Watcher,
    device: str | None = None,
    allow_code: bool = False,
    progress: Progress = lambda what, done: None,
) -> Facts:
    """Train from the nearest checkpoint to the update, in memory alone; what the watcher and the step say of it."""
    if update < 1:
        raise UserError(f"updates are counted from 1: there is no update {update}")
    facts = facts_of(folder)
    changes = [
        change for change in facts.get("changes", []) if change["key"].startswith("optim.") or change["key"] in COMPUTES
    ]
    config = _as_at(update, runs.load_config(folder, allow_code), changes)
    if device:
        config = config.set(train={"device": device})
    config = resolved(runs.absolute(config))
    setup = set_up(folder, config, Store(prepare(config.data, progress=progress)), [])
    if update > setup.total:
        raise UserError(f"{folder} ends after update {setup.total}: there is no update {update}")
    state = _before(setup, update)
    if between := [change for change in changes if state.update < change["update"] < update]:
        raise UserError(
            f"update {update} cannot be computed again: there is no checkpoint between it and update "
            f"{between[-1]['update']}, from which on {between[-1]['key']} is another"
        )
    spikes = facts.get("spikes", [])
    _without_rolled_back(state, spikes, update)
    skipped = {spike["update"] for spike in spikes if spike["did"] == "skip"}
    setup.model.train()
    batches = loop.batches_of(setup, state)
    for number in range(state.update + 1, update + 1):
        progress(f"replaying updates {state.update + 1} to {update}", 1)
        epoch, begin, _, _, rows, own = next(batches)
        lr = loop.rate_of(setup, state, number)
        setup.step.accepts = (lambda loss, grad_norm: False) if number in skipped else None
        result = setup.step(own, number, lr, [watcher] if number == update else [])
    said: Facts = {"update": update, "from_checkpoint": state.update, "epoch": epoch, "batch": begin, "lr": lr}
    said |= {"loss": float(result.loss), "grad_norm": float(result.grad_norm), "tokens": result.tokens}
    ((row, alarm),) = result.watched
    return said | {"rows": [int(row) for each in rows for row in each]} | row | ({"alarm": alarm} if alarm else {})


def _as_at(update: int, config: Config, changes: Sequence[Facts]) -> Config:
    """The config with which an update was computed."""
    before: dict[str, Values] = {"optim": {}, "train": {}}
    for change in reversed(changes):
        if change["update"] >= update:
            section, _, key = change["key"].partition(".")
            before[section][key] = change["before"]
    return config.set(**before)


def _without_rolled_back(state: State, spikes: Sequence[Facts], update: int) -> None:
    """What a checkpoint does not say: which rollbacks led back to it, up to one of the update itself."""
    for spike in spikes:
        place = [spike["epoch"], spike["batch"]]
        if spike["did"] != "rollback" or spike["back_to"] != state.update or place in state.left_out:
            continue
        if spike["update"] == update:
            return
        state.spikes += 1
        state.left_out.append(place)


def _before(setup: Setup, update: int) -> State:
    """The weights of the newest whole checkpoint before an update, or those of the beginning."""
    earlier = [name for name in checkpoint.names(setup.folder) if int(name) < update]
    for name in reversed(earlier):
        with contextlib.suppress(Damaged):
            return taken_up(setup, *checkpoint.read(setup.folder, name))
    return begun(setup)
