"""One update of a run, computed again from the checkpoint before it: the same batch, weights and dropout."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from leadline.data.store import Progress, Store, prepare
from leadline.errors import UserError
from leadline.training import checkpoint, loop
from leadline.training import run as runs
from leadline.training.checkpoint import Damaged, State
from leadline.training.device import resolved
from leadline.training.events import Watcher
from leadline.training.setup import Setup, set_up


def replay(
    folder: Path,
    update: int,
    watcher: Watcher,
    device: str | None = None,
    allow_code: bool = False,
    progress: Progress = lambda what, done: None,
) -> dict[str, Any]:
    """Train from the nearest checkpoint to the update, in memory alone; what the watcher and the step say of it."""
    if update < 1:
        raise UserError(f"updates are counted from 1: there is no update {update}")
    config = runs.load_config(folder, allow_code)
    if device:
        config = config.set(train={"device": device})
    config = resolved(runs.absolute(config))
    setup = set_up(folder, config, Store(prepare(config.data, progress=progress)), [])
    if update > setup.total:
        raise UserError(f"{folder} ends after update {setup.total}: there is no update {update}")
    state = _before(setup, update)
    setup.model.train()
    batches = loop.batches_of(setup, state)
    for number in range(state.update + 1, update + 1):
        progress(f"replaying updates {state.update + 1} to {update}", 1)
        epoch, begin, _, _, rows, own = next(batches)
        lr = loop.rate_of(setup, state, number)
        result = setup.step(own, number, lr, [watcher] if number == update else [])
    facts = {"update": update, "from_checkpoint": state.update, "epoch": epoch, "batch": begin, "lr": lr}
    facts |= {"loss": float(result.loss), "grad_norm": float(result.grad_norm), "tokens": result.tokens}
    ((row, alarm),) = result.watched
    return facts | {"rows": [int(row) for each in rows for row in each]} | row | ({"alarm": alarm} if alarm else {})


def _before(setup: Setup, update: int) -> State:
    """The weights of the newest whole checkpoint before an update, or those of the beginning."""
    earlier = [name for name in checkpoint.names(setup.folder) if int(name) < update]
    for name in reversed(earlier):
        with contextlib.suppress(Damaged):
            state, weights, moments = checkpoint.read(setup.folder, name)
            checkpoint.restore_model(setup.model, weights, str(setup.folder))
            setup.step.restore(moments)
            setup.step.restored()
            return state
    return loop.begun(setup)
