"""The paper's claim on a laptop: who needs warm-up? Four small trainings on number words, in two minutes or so."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leadline import history, machine, recipes
from leadline.config import Config
from leadline.data.store import Progress, Store, prepare
from leadline.files import write_json
from leadline.jobs.engine import Pool
from leadline.jobs.job import LAST, Job, OnEvent, finished
from leadline.report.figures import write_curves

SENTENCES = [
    "zweihundertdreiundvierzig",
    "fünftausendsiebenhundertneunzehn",
    "Mittwoch, 14. März 2018",
    "36 Kilometer und Frankreich",
    "vor 3 Tagen und 12 Euro",
]
TESTED = 200  # test sentences translated for each run; a quarter of them where it must be quick


@dataclass(frozen=True)
class Outcome:
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
    on_event: OnEvent = lambda name, event: None,
) -> list[Outcome]:
    """Train the four, write results.json, curves.csv and curves.png; `on_event(name, event)` hears of each step."""
    chosen = configs(quick)
    out.mkdir(parents=True, exist_ok=True)
    # Side by side, in as many processes as there are cores: small models do not fill more than one each.
    with Pool(min(len(chosen), machine.cores())).warm() as pool:
        key = Store(prepare(next(iter(chosen.values())).data, progress=progress)).manifest["key"]
        asked: Any = {"keep": (LAST,), "score": TESTED // 4 if quick else TESTED, "samples": tuple(SENTENCES)}
        jobs = [
            Job(name, config, key, place=re.sub("[^a-z0-9_]+", "-", name), **asked) for name, config in chosen.items()
        ]
        pool.run(jobs, out, on_event)
    results = [_outcome(job, out) for job in jobs]
    rows = {job.name: history.read(job.folder(out)).rows for job in jobs}
    title = f"German to English number words at lr {results[0].lr:g}: where the norm sits decides"
    write_curves(rows, out / "curves.png", out / "curves.csv", title)
    write_json(out / "results.json", [asdict(result) for result in results])
    return results


def _outcome(job: Job, out: Path) -> Outcome:
    result, config = finished(job, out), job.config
    assert result is not None, f"{job.name} has ended without a result"
    speeds = history.read(job.folder(out)).points("tokens_per_second")[1]
    return Outcome(
        placement=config.model.placement,
        warmup=config.optim.known_warmup,
        lr=config.optim.known_lr,
        valid_loss=result.get("valid_nll", float("inf")),
        bleu=result.get("test_bleu", 0.0),
        exact_match=result.get("test_exact_match", 0.0),
        seconds=result["seconds"],
        tokens_per_second=sum(speeds) / max(len(speeds), 1),
        diverged=bool(result["diverged"]),
        run=str(job.folder(out)),
        translations=result.get("translations", [""] * len(SENTENCES)),
    )


def best(results: list[Outcome]) -> Outcome:
    return min(results, key=lambda result: (result.diverged, result.valid_loss))
