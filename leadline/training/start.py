"""Where a training starts: at a checkpoint, at the weights of the run that `train.start` names, at the beginning."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from torch import Tensor

from leadline import config as configuration
from leadline.config import Config
from leadline.data.tokenizer import Tokenizer
from leadline.errors import UserError
from leadline.training import checkpoint
from leadline.training import run as runs
from leadline.training.checkpoint import State
from leadline.training.setup import Setup

# What a run that starts from another's weights decides for itself; the rest of the model is in the weights.
OWN = ("dropout", "attention_dropout", "activation_dropout", "init")
HEADS = ("head", "classes")  # these too, where it learns another task
ENCODERS = {"masked_lm", "classification"}  # tasks that can: their models differ in heads alone


def adopt(config: Config, asked: Set[str], allow_code: bool) -> Config:
    """With model and vocabulary of the run that `train.start` names; keys that were `asked` for must not contradict."""
    start = Path(config.train.start).expanduser()
    before = runs.load_config(start, allow_code)
    if config.task != before.task and not {config.task, before.task} <= ENCODERS:
        raise UserError(f"train.start={start} was trained for {before.task}: {config.task} cannot start from its model")
    asked = asked if config.data.vocabulary else asked - {"data.vocabulary"}
    own = OWN + (HEADS if config.task != before.task else ()) + ("max_length",) * ("model.max_length" in asked)
    model = {key: value for key, value in configuration.to_dict(before.model).items() if key not in own}
    for key, value in model.items():
        given = getattr(config.model, key)
        if f"model.{key}" in asked and given != value:
            raise UserError(f"model.{key}={given} contradicts train.start={start}, which has {value}: leave it out")
    data = {key: getattr(before.data, key) for key in ("tokenizer", "vocab_size", "text", "lowercase")}
    size, learnt = config.data.vocab_size, before.data.vocab_size
    if "data.vocab_size" in asked and "data.vocabulary" not in asked and size != learnt:
        raise UserError(f"data.vocab_size={size} contradicts train.start={start}, which has {learnt}: leave it out")
    data |= {"vocabulary": str(start / "tokenizer.json")}
    return config.set(model=model, data={key: value for key, value in data.items() if f"data.{key}" not in asked})


def restored(setup: Setup) -> State:
    """The last whole checkpoint, or another run's weights, or the beginning."""
    latest = checkpoint.read_latest(setup.folder, lambda message: setup.tell("message", 0, message=message))
    return taken_up(setup, *latest) if latest else begun(setup)


def taken_up(setup: Setup, state: State, weights: dict[str, Tensor], moments: dict[str, Tensor]) -> State:
    """A checkpoint."""
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
