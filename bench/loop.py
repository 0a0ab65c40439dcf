"""A training beside its step alone: what input, logging and everything else of the loop cost.

The training is `leadline.training.loop.train` without evaluations and checkpoints; the first quarter of its updates is
not counted. The step alone then takes the same task's first batches over and over, made and on the device beforehand.

    python -m bench loop --size bert-base --text DOCUMENTS --device cuda --precision bf16
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench import ours
from bench.measure import Row, Setting, Work, compete, wait
from leadline import config as configuration
from leadline import history, recipes
from leadline.config import Config
from leadline.data.store import Store, prepare
from leadline.training import loop
from leadline.training.device import resolved
from leadline.training.setup import set_up

BATCHES = 16  # of the step alone


@dataclass(frozen=True)
class Size:
    name: str
    recipe: str
    updates: int
    settings: str = ""


SIZES = {
    "bert-base": Size("bert-base", "bert_base_pre_ln", 400, "train.accumulate=1 data.text=raw"),
    "bert-base-pairs": Size(
        "bert-base-pairs", "bert_base_pre_ln", 400, "train.accumulate=1 data.text=raw model.classes=2"
    ),
    "bert-8": Size(
        "bert-8",
        "bert_base_pre_ln",
        400,
        "train.accumulate=1 data.text=raw model.encoder_layers=8 model.dim=512 model.ffn_dim=2048 model.heads=8",
    ),
    "lm-small": Size("lm-small", "lm_small_pre_ln", 80),
    "lm-tiny": Size(
        "lm-tiny", "lm_small_pre_ln", 8, "model.decoder_layers=1 model.dim=32 model.ffn_dim=32 data.vocab_size=300"
    ),
}


def config_of(size: Size, setting: Setting, text: Path | None) -> Config:
    given = [*size.settings.split(), f"train.updates={size.updates}", "train.epochs=0", "train.eval_every=-1"]
    given += [f"train.log_every={max(size.updates // 8, 1)}", f"train.device={setting.device}"]
    given += [f"train.precision={setting.precision}"] + [f"data.source=documents:{text}"] * bool(text)
    return resolved(configuration.override(recipes.find(size.recipe), given))


def in_training(config: Config, folder: Path) -> tuple[float, float]:
    """Tokens a second, and the share of the time that the device waited."""
    rows = [row for row in history.read(loop.train(config, folder)).rows if "loss" in row]
    used = list(itertools.pairwise(rows))[len(rows) // 4 :]
    seconds = [after["seconds"] - before["seconds"] for before, after in used]
    tokens = [after["tokens_per_second"] * each for (_, after), each in zip(used, seconds, strict=True)]
    waited = sum(after["wait_seconds"] for _, after in used)
    return sum(tokens) / sum(seconds), waited / sum(seconds)


def alone(config: Config, folder: Path) -> Work:
    setup = set_up(folder, config, Store(prepare(config.data)), [])
    setup.model.train()
    batches = [setup.task.collate(rows) for rows in setup.epoch(0)[:BATCHES]]
    run = ours.one_pass(setup.step, batches, setup.device, setup.config.train.step == "graph")
    return Work(run, sum(batch.tokens for batch in batches), "tokens", len(batches))


def run(size: Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> list[Row]:
    config = config_of(size, setting, arguments.text and arguments.text.absolute())
    silent = dataclasses.replace(setting, keep=lambda rows: None)
    with tempfile.TemporaryDirectory() as folder:
        (step,) = compete({"the step alone": lambda: alone(config, Path(folder) / "alone")}, silent)
        if "seconds" in step:  # of a million tokens, as of the training
            del step["ms_a_step"]
            step["seconds"] = [1e6 / step["tokens_per_second"]]
        speeds: list[tuple[float, float]] = []
        for repeat in range(setting.repeats):
            speeds.append(in_training(config, Path(folder) / str(repeat)))
            tokens, waited = sorted(speeds)[len(speeds) // 2]
            training: Row = {"contestant": "leadline, in a training", "tokens_per_second": tokens, "wait_share": waited}
            setting.keep(rows := [training | {"seconds": [1e6 / each for each, _ in speeds]}, step])
            wait(setting.device)
    return rows
