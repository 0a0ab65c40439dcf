"""Fine-tuning of a pre-trained run over a grid of settings, several seeds each, as Xiong et al. 2020 do it on GLUE.

Every run starts from the weights of RUN with a new classifier (and RUN's pooler, if it has one), rises to its rate over
the first tenth of its updates and falls in a straight line to 0. Its score is that of the last epoch on the validation
split. What is finished is not done again; what was stopped goes on. The best run of the best setting keeps its weights.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from leadline import config as configuration
from leadline import recipes, tasks
from leadline.config import Config
from leadline.data.store import Progress, Store, prepare
from leadline.errors import UserError, nearest
from leadline.files import read_json, write_json, written
from leadline.jobs.engine import execute
from leadline.jobs.grid import Grid, Setting, SettingScores
from leadline.jobs.job import Job, OnEvent, tell_stale
from leadline.training import checkpoint
from leadline.training import run as runs
from leadline.training.events import Event

TASKS = ("same_meaning", "mrpc", "rte")
KNOWN_FILES = ("mrpc", "rte")  # tasks whose files lie somewhere
METRICS = ("accuracy", "f1", "matthews")
WARMUP = 0.1  # of the updates
GRID = "the grid decides; use --lr, --epochs, --batch and --seeds"
DECIDED = dict.fromkeys(
    ("optim.lr", "optim.warmup", "train.epochs", "train.updates", "train.batch_sequences", "train.seed"), GRID
) | {
    "train.batch_tokens": "it is made as large as the largest --batch takes; leave it out",
    "model.classes": "there is a class for each label of the data; leave it out",
    "train.start": "the runs start from RUN; name another run instead",
    "train.start_checkpoint": "use --checkpoint",
}

Choices = tuple[list[int], list[float], list[int]]  # batches, rates, epochs
USUAL: Choices = ([32], [5e-5], [3])
# Xiong et al. 2020: batches of 16 and 32, rates from 1e-5 to 1e-4, 3 to 8 epochs.
FULL: Choices = ([16, 32], [1e-5, 2e-5, 3e-5, 5e-5, 1e-4], [3, 5, 8])


@dataclass(frozen=True)
class Tuned:
    """A whole grid."""

    settings: list[SettingScores]
    best: SettingScores
    folder: Path
    run: Path  # the best of the best setting, which has kept its weights
    cut: dict[str, int]  # examples of each split of which the end did not fit


def configure(
    run: Path, task: str, source: str, assignments: Sequence[str], which: str, allow_code: bool = False
) -> Config:
    """What all runs have in common: the model and the text of RUN, the rest of the task's recipe."""
    for assignment in assignments:
        if (key := assignment.partition("=")[0].strip()) in DECIDED:
            raise UserError(f"--set {key}: {DECIDED[key]}")
    known = task.replace("-", "_") in TASKS
    if not known and not Path(task).expanduser().exists():
        raise UserError(f"--task {task!r} is neither a task nor a file or folder: {nearest(task, TASKS)}")
    recipe = recipes.find(task.replace("-", "_") if known else "rte")
    source = source or ("" if known else task)
    before = runs.load_config(run, allow_code)
    if not before.model.encoder_layers or before.model.decoder_layers:
        raise UserError(f"{run} is not an encoder alone, so it cannot be fine-tuned to classify: give a BERT run")
    config = classifier(before, recipe, run / "tokenizer.json", f"table:{source}" if source else "")
    config = config.set(train={"start": str(run), "start_checkpoint": which})
    if not torch.cuda.is_available() or before.train.device == "cpu":
        config = config.set(train={"device": "cpu", "precision": "fp32", "step": "eager"})
    config = configuration.override(config, list(assignments))
    if config.train.eval_every < 0:
        raise UserError("--set train.eval_every=-1: settings are compared by their evaluations; leave it at 0")
    return runs.absolute(config)


def classifier(before: Config, recipe: Config, vocabulary: Path, source: str = "") -> Config:
    """The model and the text of `before` for the task of `recipe`, whose data may lie elsewhere."""
    columns = ("source", "first", "second", "label", "holdout", "size")
    same = {key: getattr(before.train, key) for key in ("device", "precision", "step")}
    return replace(
        recipe,
        model=replace(before.model, head="linear", classes=2),
        data=replace(
            before.data,
            **{key: getattr(recipe.data, key) for key in columns} | ({"source": source} if source else {}),
            vocabulary=str(vocabulary),
        ),
        train=replace(recipe.train, **same),
    )


def fitted(base: Config, store: Store, settings: Sequence[Setting]) -> Config:
    """With a class a label of the data, and room for the largest batch."""
    room = max(setting.batch for setting in settings) * base.model.max_length
    return base.set(model={"classes": len(store.manifest.get("labels", ()))}, train={"batch_tokens": room})


def tuned(base: Config, setting: Setting, store: Store) -> Config:
    rows = store.manifest["splits"]["train"]["rows"]
    updates = setting.epochs * math.ceil(math.ceil(rows / setting.batch) / base.train.accumulate)
    return base.set(
        optim={"lr": setting.lr, "warmup": round(WARMUP * updates)},
        train={"epochs": setting.epochs, "batch_sequences": setting.batch},
    )


def finetune(
    base: Config,
    settings: Sequence[Setting],
    seeds: int,
    at_once: int,
    out: Path,
    metric: str = "accuracy",
    on_event: OnEvent = lambda name, event: None,
    progress: Progress = lambda what, done: None,
) -> Tuned:
    """Train what is not there yet; writes results.csv (a row a run) and table.json (a row a setting)."""
    name, weights = checkpoint.choose(Path(base.train.start), base.train.start_checkpoint)
    store = Store(prepare(base.data, progress=progress))
    for note in store.notes:
        on_event("", Event("message", 0, 0, {}, note))
    base = fitted(base, store, settings).set(train={"start_checkpoint": name})
    task = tasks.find(base.task)(base, store)  # mistakes come to light before anything is trained
    cut = {split: int(task.read(split).facts["cut"]) for split in store.manifest["splits"]}
    start = checkpoint.fingerprint(weights)
    planned = {(s, seed): job(base, s, seed, store, start) for s in settings for seed in range(1, seeds + 1)}
    _require_own(out, base, next(iter(planned.values())))
    tell_stale(list(planned.values()), out / "runs", on_event)
    grid = Grid(planned, out / "runs", metric)
    try:
        grid.train(at_once, on_event, execute)
    finally:  # also of a grid that was stopped: what there is
        _write(out, grid, base)
    return Tuned(grid.table(), grid.scores(grid.best()[0]), out, planned[grid.best()].folder(out / "runs"), cut)


def job(base: Config, setting: Setting, seed: int, store: Store, start: str) -> Job:
    text = f"batch {setting.batch}, lr {setting.lr:g}, {setting.epochs} epochs, seed {seed}"
    config = tuned(base, setting, store).set(train={"seed": seed})
    return Job(text, config, store.manifest["key"], start=start, group="fine-tuning")


def best_in(folder: Path) -> Path:
    """The run that was kept of those in a folder which `finetune` wrote; any other folder as it is."""
    if (folder / "config.toml").exists():
        return folder
    try:
        best = folder / "runs" / Path(read_json(folder / "table.json")["run"]).name
    except (OSError, ValueError, KeyError, TypeError):
        return folder
    return best if best.is_dir() else folder


def _require_own(out: Path, base: Config, job: Job) -> None:
    """Results of another run or of other data are not overwritten; where the same ones lie makes no difference."""
    try:
        told = read_json(out / "table.json")
        same = [
            told[what] == place or told.get(f"{what}_key") == key
            for what, place, key in (("start", base.train.start, job.start), ("data", base.data.source, job.data_key))
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    if not all(same):
        raise UserError(f"{out} holds the results of {told['start']} on {told['data']}: choose another --out")


def _write(out: Path, grid: Grid, base: Config) -> None:
    out.mkdir(parents=True, exist_ok=True)
    kept = [f"valid_{name}" for name in ("nll", *METRICS)]
    with written(out / "results.csv") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["batch", "lr", "epochs", "seed", *kept, "diverged", "seconds"])
        for (setting, seed), result in grid.results().items():
            values = [*(result.get(key, "") for key in kept), bool(result["diverged"]), result["seconds"]]
            writer.writerow([setting.batch, setting.lr, setting.epochs, seed, *values])
    settings = [asdict(each) | {"mean": each.mean, "interval": each.interval} for each in grid.table()]
    job = next(iter(grid.jobs.values()))
    of = {"start": base.train.start, "checkpoint": base.train.start_checkpoint, "data": base.data.source}
    of |= {"start_key": job.start, "data_key": job.data_key}
    run = str(grid.jobs[grid.best()].folder(grid.root)) if grid.results() else None
    write_json(out / "table.json", of | {"metric": grid.metric, "run": run, "settings": settings})
