"""Where a training stands before its next update: at a checkpoint, at another run's weights, at the beginning."""

from __future__ import annotations

from pathlib import Path

from leadline.data.tokenizer import Tokenizer
from leadline.errors import UserError
from leadline.training import checkpoint
from leadline.training import run as runs
from leadline.training.checkpoint import State
from leadline.training.setup import Setup


def restored(setup: Setup) -> State:
    """The last whole checkpoint, or another run's weights, or the beginning."""
    latest = checkpoint.read_latest(setup.folder, lambda message: setup.tell("message", 0, message=message))
    if not latest:
        return begun(setup)
    state, weights, moments = latest
    checkpoint.restore_model(setup.model, weights, str(setup.folder))
    setup.step.restore(moments)
    setup.step.restored()
    return state


def begun(setup: Setup) -> State:
    """The beginning."""
    if setup.config.train.start:
        _start_from(setup, Path(setup.config.train.start), setup.config.train.start_checkpoint)
    return State()


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
