"""A thousand layers on a CPU at small width: what they cost as depth grows, and who learns there.

Cost: a DeepNorm model is built and initialised, takes one update and is saved, each depth in a process of its own, so
that its peak memory is its own. N-0 is an encoder alone. Learning: DeepNorm and Post-LN of the deepest size train side
by side on the alphabet, said from any letter on, beside the loss of a model that knows only how often each token comes.
All letters are equally often, so that counts are worth nothing and what is learnt has come through all the layers: on
text, 200 updates of so deep a model go into how often each word comes. Rate and warm-up were chosen for DeepNorm.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from bench.measure import Row, Setting
from bench.workload import PAD, make_pool
from bench.workload import Size as Workload
from leadline import config as configuration
from leadline import history, recipes
from leadline.config import Config
from leadline.data.parallel import Split
from leadline.data.store import Store, prepare
from leadline.data.tokenizer import EOS
from leadline.jobs.engine import execute
from leadline.jobs.job import Job
from leadline.model import Transformer
from leadline.tasks.translation import collate
from leadline.training import saving
from leadline.training.checkpoint import State
from leadline.training.step import make_step


@dataclass(frozen=True)
class Size:
    name: str
    depths: tuple[tuple[int, int], ...]
    updates: int
    dim: int = 16
    ffn_dim: int = 32
    tokens: int = 256


SIZES = {
    "depth": Size("depth", ((125, 125), (250, 250), (500, 500), (500, 0), (1000, 0)), 200),
    "depth-tiny": Size("depth-tiny", ((2, 2), (4, 0)), 4),
}


class _Task:
    """As much of a task as a step needs, with a decoder or without."""

    def loss(self, model: Transformer, batch: Any, divisor: float = 1.0) -> torch.Tensor:
        if model.config.decoder_layers:
            return model.loss(model(batch.source, batch.target), batch.labels, 0.1, PAD, divisor)[0]
        logits = model.logits(model(batch.source))
        return F.cross_entropy(logits, batch.source.tokens, reduction="sum") / divisor


def cost(size: Size, encoder: int, decoder: int) -> Row:
    """In a process of its own."""
    model = {"placement": "deepnorm", "encoder_layers": encoder, "decoder_layers": decoder, "heads": 2}
    model |= {"dim": size.dim, "ffn_dim": size.ffn_dim}
    config = Config().set(model=model, train={"precision": "fp32"})
    pool = make_pool(Workload("", 0, size.dim, size.ffn_dim, 2, 300, size.tokens, 1))
    before = _peak()
    began = time.perf_counter()
    built = Transformer(300, **configuration.to_dict(config.model))
    seconds = [time.perf_counter() - began]
    step = make_step(config, _Task(), built)  # type: ignore[arg-type]
    batch = collate(*pool.sides(pool.packs[0]), pool.shape, config.model.max_length)
    for _ in range(2):  # the first also loads code
        began = time.perf_counter()
        step([batch], 1, 1e-4)
        taken = time.perf_counter() - began
    seconds.append(taken)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        saving.save(Path(folder), State(update=1), built, step.optimizer, keep=1)
        seconds.append(time.perf_counter() - began)
    timed = dict(zip(("build_seconds", "step_seconds", "save_seconds"), seconds, strict=True))
    weights = sum(p.numel() for p in built.parameters())
    layers = f"{encoder}-{decoder}"
    return {"contestant": "deepnorm", "layers": layers, "parameters": weights, **timed, "grown_gib": _peak() - before}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def write_alphabets(folder: Path) -> None:
    """Lines of sixteen letters, each the next of the one before; source and target are the same."""
    letters, rng = "abcdefghijklmnop", Random(1)
    for split, lines in (("train", 4000), ("valid", 200), ("test", 200)):
        starts = [rng.randrange(len(letters)) for _ in range(lines)]
        text = "".join(" ".join(letters[start:] + letters[:start]) + "\n" for start in starts)
        for language in ("de", "en"):
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


def learning(size: Size, out: Path) -> tuple[list[Row], list[str]]:
    layers = next(encoder for encoder, decoder in reversed(size.depths) if decoder)
    (out / "text").mkdir()
    write_alphabets(out / "text")
    train = {"updates": size.updates, "batch_tokens": 2 * size.tokens, "eval_every": size.updates, "bleu_sentences": 0}
    base = recipes.numerals().set(
        model={"encoder_layers": layers, "decoder_layers": layers, "dim": size.dim, "ffn_dim": size.ffn_dim},
        data={"source": f"text:{out / 'text'}", "vocab_size": 37},
        optim={"lr": 1e-3, "schedule": "constant", "warmup": size.updates // 10},
        train=train | {"device": "cpu"},
    )
    store = Store(prepare(base.data))
    jobs = [
        Job(f"{name} {layers}-{layers}", base.set(model={"placement": name}), store.manifest["key"])
        for name in ("deepnorm", "post_ln")
    ]
    execute(jobs, out, 2, lambda name, event: print(name, event.update, event.row.get("loss", ""), flush=True))
    rows = []
    for job in jobs:
        losses = [row["loss"] for row in history.read(job.folder(out)).rows if "loss" in row]
        valid = [row["valid_nll"] for row in history.read(job.folder(out)).rows if "valid_nll" in row]
        names = {"contestant": job.config.model.placement, "layers": f"{layers}-{layers}"}
        rows.append(names | {"first_loss": losses[0], "last_loss": losses[-1], "valid_loss": valid[-1]})
    return rows, [f"{size.updates} updates; a guess by how often each token comes has {of_word_counts(store):.2f}"]


def run(size: Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    for depth in size.depths:
        command = [sys.executable, "-m", "bench.depth", size.name, *map(str, depth)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
        setting.keep(rows)
    with tempfile.TemporaryDirectory() as folder:
        learnt, notes = learning(size, Path(folder))
    return rows + learnt, notes


if __name__ == "__main__":
    print(json.dumps(cost(SIZES[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3]))))


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
