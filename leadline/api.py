"""Training from Python, with the progress that the command shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from leadline.cli.app import open_store
from leadline.cli.terminal import TrainingView
from leadline.config import Config
from leadline.errors import UserError
from leadline.training import loop
from leadline.training import run as runs
from leadline.training.events import OnStep


def train(config: Config, out: str | Path | None = None, on_step: Sequence[OnStep] = (), progress: bool = True) -> Path:
    """Train from the beginning; returns the run folder.

    Each function of `on_step` is called with a `leadline.training.events.Event` for every line of metrics, evaluation
    and message. Progress goes to stderr; `progress=False` is silent.
    """
    if not isinstance(config, Config):
        raise UserError(f"train takes a Config, such as leadline.recipes.numerals(), not {config!r}")
    if out:
        runs.require_new(Path(out))
    return _shown(lambda functions: loop.train(config, out, functions), config, on_step, progress)


def resume(
    folder: str | Path,
    on_step: Sequence[OnStep] = (),
    progress: bool = True,
    config: Config | None = None,
    allow_code: bool = False,
) -> Path:
    """Go on with a run from its last checkpoint, to the same weights as if it had never stopped.

    `config`, the run's with some of `leadline.config.LATER` changed, trains longer or otherwise from there.
    allow_code: also where the run names a placement of somebody's own, which is imported.
    """
    used = config or runs.load_config(Path(folder), allow_code)
    return _shown(lambda functions: loop.resume(folder, functions, config, allow_code), used, on_step, progress)


def _shown(run: Callable[[Sequence[OnStep]], Path], config: Config, on_step: Sequence[OnStep], progress: bool) -> Path:
    if not progress:
        return run(on_step)
    open_store(config)  # before the bar of the training
    with TrainingView() as view:
        return run([view, *on_step])
