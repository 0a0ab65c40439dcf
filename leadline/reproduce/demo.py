"""The paper's claim on a laptop: who needs warm-up? Four small trainings on number words, in two minutes or so."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty
from typing import Any

from leadline import machine, recipes
from leadline.config import Config
from leadline.data.store import Progress, prepare
from leadline.errors import Diverged, UserError
from leadline.files import write_json
from leadline.report.figures import write_curves
from leadline.training import run as runs

SENTENCES = [
    "zweihundertdreiundvierzig",
    "fünftausendsiebenhundertneunzehn",
    "Mittwoch, 14. März 2018",
    "36 Kilometer und Frankreich",
    "vor 3 Tagen und 12 Euro",
]
TESTED = 200  # test sentences translated for each run; a quarter of them where it must be quick


@dataclass(frozen=True)
class Result:
    placement: str
    warmup: int
    lr: float
    valid_loss: float  # nats a token, without smoothing
    bleu: float
    exact_match: float
    seconds: float  # of training
    tokens_per_second: float
    diverged: bool
    run: str  # its folder
    translations: list[str]  # of SENTENCES


def configs(quick: bool) -> dict[str, Config]:
    """The four runs by name. Nothing but placement and warm-up differs."""
    base = recipes.numerals().set(optim={"lr": 1e-2}, train={"device": "cpu"})
    if quick:
        base = base.set(data={"size": 8000}, train={"updates": 80, "batch_tokens": 512, "eval_every": 40})
    warmup = 30 if quick else 100

    def variant(placement: str, updates: int) -> Config:
        return base.set(model={"placement": placement}, optim={"warmup": updates})

    return {
        "post_ln, no warm-up": variant("post_ln", 0),
        f"post_ln, warm-up {warmup}": variant("post_ln", warmup),
        "pre_ln, no warm-up": variant("pre_ln", 0),
        f"deepnorm, warm-up {warmup}": variant("deepnorm", warmup),
    }


def demo(
    out: Path,
    quick: bool = False,
    progress: Progress = lambda what, done: None,
    on_event: Callable[[str, Any], None] = lambda name, event: None,
) -> list[Result]:
    """Train the four, write results.json, curves.csv and curves.png; `on_event(name, event)` hears of each step."""
    chosen = configs(quick)
    out.mkdir(parents=True, exist_ok=True)
    results = _train_all(chosen, out, TESTED // 4 if quick else TESTED, progress, on_event)
    rows = {name: runs.read_metrics(Path(r.run)) for name, r in zip(chosen, results, strict=True)}
    title = f"German to English number words at lr {results[0].lr:g}: where the norm sits decides"
    write_curves(rows, out / "curves.png", out / "curves.csv", title)
    write_json(out / "results.json", [asdict(result) for result in results])
    return results


def _train_all(
    chosen: dict[str, Config], out: Path, tested: int, progress: Progress, on_event: Callable[[str, Any], None]
) -> list[Result]:
    """Side by side, in as many processes as there are cores: small models do not fill more than one each."""
    cores = machine.cores()
    workers = min(len(chosen), cores)
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(workers, context) as pool:
        for _ in range(workers):
            pool.submit(_import_torch, cores // workers)  # takes seconds; goes on while the data is prepared
        prepare(next(iter(chosen.values())).data, progress=progress)
        events = manager.Queue()
        futures = [
            pool.submit(_train_one, name, config, out / re.sub("[^a-z0-9_]+", "-", name), tested, events)
            for name, config in chosen.items()
        ]
        try:
            while not all(future.done() for future in futures):
                with contextlib.suppress(Empty):
                    on_event(*events.get(timeout=0.2))
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()  # the trainings save and leave
            raise
        while not events.empty():
            on_event(*events.get())
        return [future.result() for future in futures]


def _import_torch(threads: int) -> None:
    import torch
    import torch._dynamo  # every optimizer loads it, and it takes as long as torch itself

    import leadline.training.trained  # noqa: F401

    torch.set_num_threads(max(1, threads))


def _train_one(name: str, config: Config, folder: Path, tested: int, events: Any) -> Result:
    """In a process of its own: train, or go on where an earlier demo was stopped, and score."""
    from leadline.training.loop import resume, train
    from leadline.training.trained import load

    on_step = [lambda event: events.put((name, event))]
    diverged = False
    try:
        if not runs.is_run(folder):
            train(config, folder, on_step)
        elif runs.load_config(folder) == config:
            resume(folder, on_step)
        else:
            raise UserError(f"{folder} holds another run: choose another --out")
    except Diverged:
        diverged = True
    rows = runs.read_metrics(folder)
    updates = [row for row in rows if "loss" in row]
    evaluations = [row for row in rows if "valid_nll" in row]
    scores, translations = {"bleu": 0.0, "exact_match": 0.0}, [""] * len(SENTENCES)
    if evaluations:
        trained = load(folder, "last", device="cpu")
        scores = trained.task().scores(trained.model, "test", tested)
        translations = trained.translate(SENTENCES)
    return Result(
        placement=config.model.placement,
        warmup=config.optim.warmup,
        lr=config.optim.lr,
        valid_loss=evaluations[-1]["valid_nll"] if evaluations else float("inf"),
        bleu=scores["bleu"],
        exact_match=scores["exact_match"],
        seconds=updates[-1]["seconds"] if updates else 0.0,
        tokens_per_second=sum(r["tokens_per_second"] for r in updates) / max(len(updates), 1),
        diverged=diverged,
        run=str(folder),
        translations=translations,
    )


def best(results: list[Result]) -> Result:
    return min(results, key=lambda result: (result.diverged, result.valid_loss))
