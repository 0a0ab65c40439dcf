"""DeepNet, Table 1: which placements train at which depth? BLEU of every placement at 6-6, 18-18, 50-50 and 100-100.

The paper trains on WMT-17 English-German for 100k updates; the scales here are smaller, the schedule is the paper's in
kind: Adam (.9, .98), a linear warm-up, then 1/√t, the same for all placements.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leadline.config import Config, DataConfig, DecodeConfig, ModelConfig, OptimConfig, TrainConfig
from leadline.data.store import Progress, Split, Store, prepare
from leadline.data.tokenizer import EOS
from leadline.files import write_json
from leadline.jobs import Execute, Job, Result, execute, finished, tell_stale
from leadline.placement import PLACEMENTS, find

TITLE = "DeepNet Table 1: BLEU by placement and depth"
DEPTHS = (6, 18, 50, 100)
# WMT-17 English-German BLEU as the paper reports it, at DEPTHS; "div" is its word. Those with † are unverified: they
# were recalled, not read in the paper's text.
PAPER = {
    "post_ln": ("28.1†", "div†", "div", "div"),
    "ds_init": ("27.9†", "div†", "div", "div"),
    "admin": ("27.9†", "28.8†", "div", "div"),
    "rezero": ("26.9†", "div", "div†", "div†"),
    "r_fixup": ("27.5†", "28.4†", "27.7†", "div†"),
    "t_fixup": ("27.5†", "28.4†", "27.9†", "div†"),
    "pre_ln": ("27.0†", "28.1†", "28.0†", "27.4"),
    "dlcl": ("27.4†", "28.2†", "div†", "27.5†"),
    "normformer": ("27.0†", "28.3†", "27.8†", "div†"),
    "deepnorm": ("27.8†", "28.8", "29.0", "28.9"),
}


@dataclass(frozen=True)
class Scale:
    depths: tuple[int, ...]
    config: Config


def _tiny() -> Config:
    """Two CPU cores, minutes: that everything runs, not who wins."""
    return Config(
        model=ModelConfig(dim=32, ffn_dim=64, heads=2, dropout=0.0, max_length=64),
        data=DataConfig(source="builtin:numerals", vocab_size=300, size=3000),
        optim=OptimConfig(lr=2e-3, schedule="inverse_sqrt", warmup=10),
        train=TrainConfig(updates=100, batch_tokens=512, eval_every=50, bleu_sentences=20, keep=1),
        decode=DecodeConfig(beam=1),
    )


def _small() -> Config:
    """One GPU, about an hour for the whole ladder on 75,000 pairs."""
    return Config(
        model=ModelConfig(dim=256, ffn_dim=1024, heads=4, dropout=0.1),
        data=DataConfig(source="text:data/iwslt14", text="tokenized", vocab_size=10000),
        optim=OptimConfig(lr=1e-3, schedule="inverse_sqrt", warmup=400),
        train=TrainConfig(
            updates=1500, batch_tokens=4096, precision="bf16", step="graph", eval_every=500, bleu_sentences=1000, keep=1
        ),
        decode=DecodeConfig(beam=5),
    )


def _paper() -> Config:
    return Config(
        model=ModelConfig(dim=512, ffn_dim=2048, heads=8, dropout=0.4),
        data=DataConfig(source="text:data/wmt17", vocab_size=32000),
        optim=OptimConfig(lr=1.5e-3, schedule="inverse_sqrt", warmup=4000, weight_decay=1e-4),
        train=TrainConfig(
            updates=100_000, batch_tokens=4096, accumulate=128, precision="bf16", step="graph", eval_every=5000,
            bleu_sentences=-1, keep=1,
        ),
        decode=DecodeConfig(beam=5),
    )  # fmt: skip


SCALES = {
    "tiny": Scale((2, 6), _tiny()),
    "small": Scale(DEPTHS, _small()),
    "paper": Scale(DEPTHS, _paper()),
}


def jobs(base: Config, data_key: str, depths: Sequence[int], placements: Sequence[str], seeds: int) -> list[Job]:
    """Shallow models first: there is something to see early."""

    def one(placement: str, depth: int, seed: int) -> Job:
        model = {"placement": placement, "encoder_layers": depth, "decoder_layers": depth}
        config = base.set(model=model, train={"seed": seed})
        return Job(f"{placement} {depth}-{depth}, seed {seed}", config, data_key, group="deepnet-depth")

    return [one(p, depth, seed) for depth in depths for p in placements for seed in range(1, seeds + 1)]


def reproduce(
    base: Config,
    depths: Sequence[int],
    placements: Sequence[str],
    seeds: int,
    at_once: int,
    out: Path,
    on_event: Callable[[str, Any], None] = lambda name, event: None,
    progress: Progress = lambda what, done: None,
    execute: Execute = execute,
) -> list[dict[str, Any]]:
    """Train what is not there yet; writes results.csv (a row a run) and table.json (a row a placement).

    Runs are in out/runs, where figures that need the same find them.
    """
    placements = list(placements) or [*PAPER, *(name for name in PLACEMENTS if name not in PAPER)]
    for placement in placements:
        find(placement)  # mistakes come to light before anything is trained
    store = Store(prepare(base.data, progress=progress))
    guess = of_word_counts(store)
    planned = jobs(base, store.manifest["key"], depths, placements, seeds)
    tell_stale(planned, out / "runs", on_event)
    try:
        execute(planned, out / "runs", at_once, on_event)
    finally:  # also of a ladder that was stopped: what there is
        found = [result for job in planned if (result := finished(job, out / "runs"))]
        rows = table(found, placements, depths, guess)
        folder = out / "deepnet-depth"
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "table.json", {"loss_of_word_counts": guess, "rows": rows})
        _write_csv(folder / "results.csv", found)
    return rows


def of_word_counts(store: Store) -> float:
    """The validation loss of a guess that looks at nothing, in nats a token: who ends above it has not learnt."""
    size = store.manifest["vocab_size"]
    train, valid = (_counts(store.split(name), size) for name in ("train", "valid"))
    return float(-np.log((train + 1) / (train + 1).sum()) @ valid / valid.sum())


def _counts(split: Split, size: int) -> np.ndarray:
    """How often each token is to be predicted; </s> once a sentence."""
    counts = np.bincount(split.gather(np.arange(len(split)))[1].tokens, minlength=size).astype(float)
    counts[EOS] += len(split)
    return counts


def _write_csv(path: Path, found: Sequence[Result]) -> None:
    columns = ["placement", "layers", "seed", "updates", "valid_nll", "valid_bleu", "valid_chrf", "diverged", "seconds"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for result in found:
        values = result | {"layers": "-".join(map(str, result["layers"])), "diverged": bool(result["diverged"])}
        writer.writerow([_short(values.get(column, "")) for column in columns])
    path.write_text(text.getvalue(), encoding="utf-8")


def _short(value: Any) -> Any:
    return f"{value:.4f}" if isinstance(value, float) else value


def cell(results: Sequence[Result], guess: float) -> str:
    """What a reader wants of several seeds: BLEU and the loss, or how it failed. `guess`: the loss of word counts."""
    if not results:
        return "–"
    broke = sum(bool(r["diverged"]) for r in results)
    if broke:
        return "diverged" if broke == len(results) else f"{broke} of {len(results)} diverged"
    bleu, nll = (sum(r[key] for r in results) / len(results) for key in ("valid_bleu", "valid_nll"))
    return f"not learnt ({nll:.2f})" if nll >= guess else f"{bleu:.1f} ({nll:.2f})"


def table(
    found: Sequence[Result], placements: Sequence[str], depths: Sequence[int], guess: float
) -> list[dict[str, Any]]:
    """A row a placement: a cell a depth, and the paper's."""
    rows = []
    for placement in placements:
        row: dict[str, Any] = {"placement": placement}
        for depth in depths:
            row[f"{depth}-{depth}"] = cell(
                [r for r in found if r["placement"] == placement and r["layers"] == [depth, depth]], guess
            )
        reported = dict(zip(DEPTHS, PAPER.get(placement, ()), strict=False))
        row |= {f"paper {depth}-{depth}": reported.get(depth, "") for depth in depths}
        rows.append(row)
    return rows
