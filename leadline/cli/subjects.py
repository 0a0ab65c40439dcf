"""What can be inspected by name: a recipe or config, a run, a Hugging Face folder, a function that returns a model."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leadline import config as configuration
from leadline import recipes, tasks
from leadline.cli.app import config_of, override_run, tell_of
from leadline.cli.random_data import TOKENS, random_batch
from leadline.config import Config
from leadline.data.store import Progress, Store, prepare
from leadline.diagnose.inspect import BATCHES, batches_of, last_gradient, optimizer_of
from leadline.diagnose.inspection import Inspection
from leadline.diagnose.probe import Subject, in_words
from leadline.errors import UserError, first_line, not_a_run, runs_in
from leadline.exchange import huggingface
from leadline.model.init import base_of
from leadline.model.size import require_depth, require_room, require_room_to_inspect, weights
from leadline.training import checkpoint, optim
from leadline.training import run as runs
from leadline.training.trained import Trained, load

Make = Callable[[int], Subject]  # from a seed


@contextlib.contextmanager
def importing_here() -> Iterator[None]:
    """Within it modules of the current folder can be imported, also late: by a function or as the model runs."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # a module may change the path for itself
            sys.path.remove(here)


def find(
    what: str, lr: float | None, assignments: list[str], progress: Progress | None = None, allow_code: bool = False
) -> tuple[Make, Config | None]:
    """How to make the subject for each seed, and its config if it is one of ours."""
    path = Path(what)
    if path.is_dir() and (path / "config.toml").exists():
        return _of_run(path, lr, assignments, progress, allow_code)
    if path.is_dir() and (path / "config.json").exists():
        _no_settings(what, assignments)
        return (lambda seed: _hugging_face(path, lr or 1e-3, seed)), None
    if path.is_dir() and runs_in(path):
        raise not_a_run(path)
    if path.is_dir():
        raise UserError(f"{what} is neither a run (config.toml) nor a Hugging Face model (config.json)")
    if ":" in what and "/" not in what and path.suffix != ".toml":
        _no_settings(what, assignments)
        return (lambda seed: _factory(what, lr or 1e-3, seed)), None
    if path.suffix == ".py" or (what not in recipes.RECIPES and Path(f"{what}.py").is_file()):
        raise UserError(f"{what} is Python: name the function in it that returns the model, as in {path.stem}:make")
    config = _asked(config_of(what, assignments, allow_code), lr)
    return (lambda seed: of_config(config.set(train={"seed": seed}), progress=progress)), config


def _asked(config: Config, lr: float | None) -> Config:
    return config.set(optim={"lr": lr}) if lr else config


def _no_settings(what: str, assignments: list[str]) -> None:
    if assignments:
        raise UserError(f"--set changes a recipe or a run; {what} has no config of ours")


def of_config(config: Config, trained: Trained | None = None, progress: Progress | None = None) -> Subject:
    """The model, the data and the optimizer a config would train; `trained`: with the weights it already has."""
    tokens = max(min(config.train.batch_tokens, TOKENS), config.model.max_length)
    config = replace(config, train=replace(config.train, batch_tokens=tokens))
    if trained:
        task, model = replace(trained, config=config).task(progress), trained.model
    else:
        store = Store(prepare(config.data, progress=progress or (lambda what, done: None)))
        vocabulary = store.manifest["vocab_size"]
        require_room(config.model, vocabulary)
        require_room_to_inspect("the model", weights(config.model, vocabulary))
        task = tasks.find(config.task)(config, store)
        model = task.build_model()
    model.use_attention("padded")
    device = next(model.parameters()).device
    batches = [task.collate(rows).to(device) for rows in task.epoch(0)[:BATCHES]]
    if not trained:
        model.calibrate(lambda: task.loss(model, batches[0], 1.0))

    def loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
        return task.loss_of_hidden(model, output, batch, batch.count)

    start = base_of(config.model)
    optimizer = optim.optimizer(config.optim, model)
    return Subject(model, batches, loss, optimizer, not trained, task.hidden, config.data.source, start)


def _of_run(
    folder: Path, lr: float | None, assignments: list[str], progress: Progress | None, allow_code: bool
) -> tuple[Make, Config | None]:
    """A run is inspected with the weights of its last checkpoint."""
    tell_of(folder)
    config = runs.load_config(folder, allow_code)
    if not checkpoint.names(folder):
        fresh = _asked(configuration.override(config, assignments), lr)
        return (lambda seed: of_config(fresh.set(train={"seed": seed}), progress=progress)), fresh
    for assignment in assignments:
        if assignment.startswith("model."):
            raise UserError(f"--set {assignment}: the model of {folder} is trained; inspect its config.toml instead")
    config = _asked(override_run(config, folder, assignments), lr)
    return (lambda seed: of_config(config, load(folder, "last", allow_code=allow_code), progress)), config


def _hugging_face(folder: Path, lr: float, seed: int) -> Subject:
    """The architecture a config.json names, with random weights and random tokens."""
    try:
        import transformers
    except ImportError:
        raise UserError(
            "a Hugging Face folder needs the transformers package: pip install leadline[huggingface]"
        ) from None
    transformers.logging.set_verbosity_error()  # its warnings are about training and generating with this config
    path = folder / "config.json"
    kind: Any = getattr(transformers, huggingface.architecture(folder), None)
    try:
        config = transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers has many of its own
        raise UserError(f"{path} cannot be read as a Hugging Face config: {first_line(error)}") from None
    own = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    make = kind if own else partial(transformers.AutoModelForCausalLM.from_config, trust_remote_code=False)
    _require_room(folder, lambda: make(config))
    torch.manual_seed(seed)
    try:
        model: Any = make(config)
        model.train()
        batches = [random_batch(model) for _ in range(BATCHES)]
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    except Exception as error:
        raise UserError(f"{path} does not say which model with a loss to build: {first_line(error)}") from None
    return Subject(model, batches, None, optimizer)


def _require_room(folder: Path, make: Callable[[], nn.Module]) -> None:
    """Before it is built: on the device meta a model of any size takes a second and no memory."""
    for name, value in huggingface.description(folder).items():
        if name.endswith(("layers", "n_layer")) and isinstance(value, int):
            require_depth(f"{folder / 'config.json'}: {name}", value)
    try:
        with torch.device("meta"):
            weights = sum(p.numel() for p in make().parameters())
    except Exception:  # what is wrong is said where it is built
        return
    require_room_to_inspect(str(folder), weights)


def _factory(what: str, lr: float, seed: int) -> Subject:
    """`module:function`, which returns (model, batch), (model, batch, loss) or (model, batch, loss, optimizer)."""
    module_name, _, name = what.partition(":")
    if module_name.endswith(".py"):
        raise UserError(f"{what} names a file: name the module, as in {module_name.removesuffix('.py')}:{name}")
    with in_words(f"{what}: the module cannot be imported"):  # anything may go wrong in a user's file
        module = importlib.import_module(module_name)
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{what}: {module_name} has no function {name!r}")
    torch.manual_seed(seed)
    with in_words(f"{what} failed"):
        returned = function()
    if not isinstance(returned, tuple) or not 2 <= len(returned) <= 4 or not isinstance(returned[0], nn.Module):
        raise UserError(f"{what} must return (model, batch), (model, batch, loss) or (model, batch, loss, optimizer)")
    model, batch, loss, optimizer = (*returned, None, None)[:4]
    return Subject(model, batches_of(batch), loss, optimizer_of(model, optimizer, lr))


def with_depths(inspected: Inspection, config: Config, progress: Progress) -> Inspection:
    """The same config at half, the same and twice the depth: how the last gradient goes with it."""
    records = []
    stacks = (config.model.encoder_layers, config.model.decoder_layers)
    for factor in (0.5, 1, 2):
        layers = [math.ceil(count * factor) for count in stacks]
        progress("measuring other depths", max(layers))
        deep = config.set(model={"encoder_layers": layers[0], "decoder_layers": layers[1]})
        for seed in sorted({r.seed for r in inspected.records}):
            subject = of_config(deep.set(train={"seed": seed}))
            records.append(last_gradient(subject, layers[1] or layers[0], seed))
    return replace(inspected, records=[*inspected.records, *records])
