"""Whole commands: from raw text to a trained model, `leadline train` beside transformers' Trainer (bench.trainer).

Each is a command of its own, as a user starts it, with nothing prepared: imports, learning the vocabulary, encoding,
training, evaluating and saving are in its seconds; translating the test set afterwards is not. They take turns, one
repeat a seed. Trainer is run with its own batches, and with ours (the same rows in each update).

    python -m bench command --size ted --text FOLDER --device cuda --precision bf16 --repeats 3
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench import prepare
from bench.measure import Row, Setting, compare, installed, reason
from leadline import config as configuration
from leadline import recipes
from leadline.config import Config
from leadline.errors import UserError
from leadline.files import read_json


@dataclass(frozen=True)
class Size:
    name: str
    recipe: str
    settings: str  # of the recipe
    target: float  # nats: seconds to a validation loss of so many are told
    pairs: int = 0  # generated
    source: str = ""  # of the data; without it and without pairs, --text says where it is


POST = "model.placement=post_ln optim.lr=5e-3 optim.warmup=100"
TINY = "model.encoder_layers=1 model.decoder_layers=1 model.dim=32 model.ffn_dim=32 data.vocab_size=300"
BERT = "model.placement=post_ln model.embed_scale=false optim.lr=1e-3 optim.warmup=100"
BERT_TINY = "model.encoder_layers=1 model.dim=32 model.ffn_dim=32 train.updates=6 train.eval_every=3"
TEN_THOUSAND = "train.updates=10000 optim.warmup=1000 train.accumulate=1 train.eval_every=1000 model.embed_scale=false"
SIZES = {
    "numerals-tiny": Size("numerals-tiny", "numerals", f"{POST} {TINY} train.updates=8 train.eval_every=4", 5.6, 300),
    "numerals": Size("numerals", "numerals", f"{POST} train.eval_every=50", 1.0, 20_000),
    "ted": Size("ted", "iwslt14_post_ln", "train.epochs=0 train.updates=6000 train.eval_every=500 data.text=raw", 2.2),
    "bert-tiny": Size("bert-tiny", "bert_small_pre_ln", f"{BERT} {BERT_TINY}", 8.0, source="builtin:python-docs"),
    "bert-small": Size("bert-small", "bert_small_pre_ln", BERT, 5.0, source="builtin:python-docs"),
    "bert-base": Size("bert-base", "bert_base_post_ln", f"{TEN_THOUSAND} data.text=raw", 3.0),
}
OURS = "leadline train"
THEIRS = {"transformers Trainer": "own", "transformers Trainer, our batches": "ours"}  # the second for translation


@dataclass
class Result:
    """What a command has left."""

    seconds: float  # of the wall, to the trained model
    nll: float
    reached: float | None  # seconds to the target
    hypotheses: list[str]


def config_of(size: Size, setting: Setting, source: str, languages: tuple[str, str], seed: int) -> Config:
    assignments = [*size.settings.split(), f"data.source={source}", f"train.seed={seed}"]
    assignments += [f"train.precision={setting.precision}", f"train.device={setting.device}"]
    config = configuration.override(recipes.find(size.recipe), assignments)
    if config.task == "translation":
        config = config.set(data={"source_lang": languages[0], "target_lang": languages[1]})
    return config


class Watched(NamedTuple):
    """What a command has told of itself, and what it took."""

    rows: list[tuple[float, dict[str, Any]]]  # of its metrics.jsonl, with the seconds of the wall when each was there
    wall: float
    cpu: float  # of all its processes


def watched(command: list[str], folder: Path, **environment: str) -> Watched:
    """Runs a command and reads the metrics.jsonl of its folder as it grows."""
    metrics, log = folder / "metrics.jsonl", folder.parent / f"{folder.name}.log"
    rows: list[tuple[float, dict[str, Any]]] = []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with log.open("w") as said:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=os.environ | environment)
        ended: int | None = None
        while ended is None:
            ended, now = process.poll(), time.perf_counter() - started
            text = metrics.read_text(encoding="utf-8") if metrics.exists() else ""
            whole = text[: text.rfind("\n") + 1].splitlines()
            rows += [(now, json.loads(line)) for line in whole[len(rows) :]]
            time.sleep(0 if ended is not None else 0.05)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise RuntimeError(f"{' '.join(command[:4])} … failed: {lines[-1] if lines else ended}")
    return Watched(rows, now, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _result(command: list[str], folder: Path, target: float, hypotheses: Callable[[], list[str]]) -> Result:
    with tempfile.TemporaryDirectory() as cache:
        told = watched(command, folder, LEADLINE_CACHE=cache)
    trained = next((seconds for seconds, row in told.rows if row.get("trained")), told.wall)
    losses = [(seconds, row["valid_nll"]) for seconds, row in told.rows if "valid_nll" in row]
    reached = next((seconds for seconds, nll in losses if nll <= target), None)
    return Result(trained, losses[-1][1], reached, hypotheses())


def by_leadline(config: Config, folder: Path, size: Size) -> Result:
    from leadline import load

    given = folder / "leadline.toml"
    given.write_text(configuration.to_toml(config), encoding="utf-8")
    run = folder / "leadline"

    def hypotheses() -> list[str]:
        return load(run, "last").translate(test_lines(config)[0]) if config.task == "translation" else []

    command = [sys.executable, "-m", "leadline", "train", str(given), "--out", str(run)]
    return _result(command, run, size.target, hypotheses)


def by_trainer(config: Config, folder: Path, size: Size, batches: str) -> Result:
    given = folder / f"{batches}.toml"
    given.write_text(configuration.to_toml(config), encoding="utf-8")
    command = [sys.executable, "-m", "bench.trainer", str(given), str(folder / batches), "--batches", batches]
    written = folder / batches / "hypotheses.json"
    return _result(command, folder / batches, size.target, lambda: read_json(written) if written.exists() else [])


def test_lines(config: Config) -> tuple[list[str], list[str]]:
    from leadline.data.sources import open_source

    sources, references = zip(*open_source(config.data).pairs("test"), strict=True)
    return list(sources), list(references)


def paired(hypotheses: dict[str, list[str]], references: list[str]) -> dict[str, dict[str, float]]:
    """BLEU of each, and the p of the paired bootstrap against the first."""
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    test = PairedTest([*hypotheses.items()], {"BLEU": BLEU()}, [references], test_type="bs", n_samples=1000)
    _, scores = test()
    results: list[Any] = scores["BLEU"]  # type: ignore[assignment]
    return {
        name: {"bleu": result.score} | ({} if result.p_value is None else {"bleu_p": result.p_value})
        for name, result in zip(hypotheses, results, strict=True)
    }


def _row(name: str, results: list[Result], target: float) -> Row:
    reached = [result.reached for result in results if result.reached is not None]
    row: Row = {"contestant": name, "wall_seconds": statistics.median(r.seconds for r in results)}
    row |= {"valid_nll": statistics.mean(r.nll for r in results), "valid_nlls": [r.nll for r in results]}
    if len(reached) == len(results):
        row["seconds_to_target"] = statistics.median(reached)
    return row | {"seconds": [r.seconds for r in results]}


def ways_of(size: Size, setting: Setting) -> dict[str, Any]:
    ways: dict[str, Any] = {OURS: by_leadline}
    for name, batches in THEIRS.items():
        if batches == "own" or recipes.find(size.recipe).task == "translation":
            ways[name] = partial(by_trainer, batches=batches)
    return {name: way for name, way in ways.items() if not setting.only or any(part in name for part in setting.only)}


def measured(size: Size, setting: Setting, source: str, languages: tuple[str, str], folder: Path) -> list[Row]:
    ways, failed = ways_of(size, setting), {}
    results: dict[str, list[Result]] = {name: [] for name in ways}
    for seed in range(1, setting.repeats + 1):
        config = config_of(size, setting, source, languages, seed)
        place = folder / str(seed)
        place.mkdir()
        for name, way in ways.items():
            try:
                if name not in failed:
                    results[name].append(way(config, place, size))
            except Exception as error:  # whatever a peer does, the others go on
                failed[name] = reason(error)
            setting.keep(_rows(results, failed, size))
    rows = _rows(results, failed, size)
    done = [row["contestant"] for row in rows if "failed" not in row]
    if config.task == "translation" and done:
        scores = paired({name: results[name][-1].hypotheses for name in done}, test_lines(config)[1])
        rows = [row | scores.get(row["contestant"], {}) for row in rows]
    return rows


def _rows(results: dict[str, list[Result]], failed: dict[str, str], size: Size) -> list[Row]:
    """Of what has been measured so far."""
    rows = [_row(name, done, size.target) for name, done in results.items() if done and name not in failed]
    compare(rows)
    return rows + [{"contestant": name, "failed": why} for name, why in failed.items()]


def run(size: Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> Any:
    if not (installed("transformers") and installed("accelerate")):
        raise UserError("bench command needs transformers and accelerate: pip install transformers accelerate")
    languages = (arguments.languages[0], arguments.languages[1])
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        kind = "text" if recipes.find(size.recipe).task == "translation" else "documents"
        source = f"{kind}:{arguments.text.absolute()}" if arguments.text else size.source
        if not source:
            if not size.pairs:
                raise UserError(f"{size.name} needs --text, the data of {size.recipe}: see leadline recipes")
            (folder / "text").mkdir()
            prepare.generate(folder / "text", prepare.Size("", size.pairs, 0), languages)
            source = f"text:{folder / 'text'}"
        rows = measured(size, setting, source, languages, folder)
    return rows, [f"seconds to {size.target:g} nats are of validation text, from the start of the command"]
