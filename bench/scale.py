"""How long the first update on a large corpus takes, and how much memory: prepared data of random tokens.

python -m bench.scale [--pairs 5000000 | --tokens 1000000000] [--folder FOLDER]

Pairs of sentences of about 25 tokens (translation), or documents of about 30 sentences (masked LM). The data is written
as a preparation would leave it, into FOLDER if one is named, which keeps it. Then a tiny model trains on it, a process
each: a new run, another with what was verified remembered, a run that goes on, and one that goes on in its second
epoch. Seconds are from the start of the process to the end of its first update. Memory is the most that was resident;
"own" is without pages of files, which the system takes back when it needs them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from leadline import config as configuration
from leadline.config import Config, DataConfig
from leadline.data import manifest
from leadline.data.tokenizer import BERT_SPECIAL, SPECIAL

VOCABULARY = 8000
SHARD = 1 << 24  # tokens, about
SENTENCE = 25  # tokens, about
RUNS = {"new": "a new run", "again": "another", "resume": "goes on", "later": "goes on in its second epoch"}


def lengths(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.clip(np.exp(rng.normal(3.05, 0.6, count)), 1, 200).astype(np.int64)


def write(folder: Path, pairs: int, tokens: int) -> None:
    """The prepared data: `pairs`, or documents of so many `tokens`."""
    folder.mkdir(parents=True)
    rng, kind = np.random.default_rng(0), "documents" if tokens else "pairs"
    special = BERT_SPECIAL if tokens else SPECIAL
    vocabulary = {word: number for number, word in enumerate([*special, *(f"w{i}" for i in range(VOCABULARY))])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": special[3]}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    random = rng.integers(len(special), len(vocabulary), SHARD * 2).astype(np.uint16)  # the same in every shard
    rows = tokens // SENTENCE if tokens else pairs
    splits: dict[str, Any] = {}
    for split, count in {"valid": 2000, "train": rows}.items():
        each = SHARD // SENTENCE // (1 if tokens else 2)
        counts = [min(each, count - begin) for begin in range(0, count, each)]
        facts = [_shard(folder / f"{split}-{n:05d}", rng, random, some, bool(tokens)) for n, some in enumerate(counts)]
        total = np.sum(facts, 0).tolist()
        if tokens:
            names = dict(zip(("documents", "sentences", "tokens"), total, strict=True))
            splits[split] = {**names, "shards": list(range(len(counts))), "empty_left_out": 0}
        else:
            splits[split] = {"rows": count, "shards": len(counts), "tokens": total, "empty_left_out": 0}
    data = configuration.to_dict(DataConfig(source=f"made:{kind}"))
    facts_of = {"key": f"scale {rows}", "data": data, "holds": kind, "splits": splits, "vocab_size": len(vocabulary)}
    manifest.write(folder, facts_of)


def _shard(path: Path, rng: np.random.Generator, random: np.ndarray, rows: int, documents: bool) -> list[int]:
    ends = np.cumsum(lengths(rng, rows if documents else 2 * rows))
    np.save(f"{path}.tokens.npy", np.resize(random, ends[-1]))
    if not documents:
        np.save(f"{path}.ends.npy", ends.reshape(-1, 2))
        sources = int(np.diff(ends, prepend=0)[::2].sum())
        return [sources, int(ends[-1]) - sources]
    last = np.unique(np.append(rng.integers(1, rows + 1, rows // 30), rows))
    np.save(f"{path}.ends.npy", ends.astype(np.uint32))
    np.save(f"{path}.documents.npy", last.astype(np.uint32))
    return [len(last), rows, int(ends[-1])]


def config_of(data: Path, documents: bool) -> Config:
    small = {"dim": 16, "ffn_dim": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 0 if documents else 1}
    config = Config(task="masked_lm" if documents else "translation")
    size = 32768 if documents else 4096  # as in the recipes
    often = {"updates": 2, "epochs": 0, "eval_every": -1, "save_every": 1, "log_every": 1, "batch_tokens": size}
    return config.set(model=small, data={"source": f"prepared:{data}"}, train=often | {"device": "cpu"})


def child(which: str, config: Path, run: Path) -> None:
    """Train until the first update is done, and say when that was."""
    from leadline.training import checkpoint, loop
    from leadline.training import run as runs

    read = checkpoint.read_latest

    def later(*arguments: Any) -> Any:
        latest = read(*arguments)
        assert latest
        latest[0].epoch, latest[0].batch = 1, 3
        return latest

    def tell(event: Any) -> None:
        if event.kind == "update" and event.update == (1 if which in ("new", "again") else 3):
            status = Path("/proc/self/status").read_text().splitlines()
            kib = {line.split(":")[0]: int(line.split()[1]) for line in status if line.startswith(("Rss", "VmHWM"))}
            clock = {"at": time.time(), "cpu": time.process_time()}
            print(json.dumps(clock | {"most": kib["VmHWM"], "own": kib["RssAnon"]}), flush=True)

    if which in ("new", "again"):
        loop.train(configuration.load(config), run, [tell])
        return
    if which == "later":
        checkpoint.read_latest = later  # type: ignore[assignment]
    loop.resume(run, [tell], config=runs.read_config(run)[0].set(train={"updates": 3}))


def measure(folder: Path, documents: bool) -> None:
    (folder / "config.toml").write_text(configuration.to_toml(config_of(folder / "data", documents)))
    there = {"LEADLINE_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(dir=folder) as runs:
        for which, told in RUNS.items():
            run = Path(runs) / ("new" if which == "resume" else "again" if which == "later" else which)
            call = [sys.executable, "-m", "bench.scale", "--child", which, str(folder / "config.toml"), str(run)]
            started = time.time()
            done = subprocess.run(call, env=os.environ | there, stdout=subprocess.PIPE, text=True, check=True)
            measured = json.loads(done.stdout.splitlines()[-1])
            memory = f"{measured['most'] / 2**20:.2f} GiB at most, {measured['own'] / 2**20:.2f} own"
            spent = f"{measured['at'] - started:6.1f} s ({measured['cpu']:.1f} of the CPU)"
            print(f"{told:30} {spent}   {memory}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description="The first update on a large corpus.")
    parser.add_argument("--pairs", type=int, default=5_000_000)
    parser.add_argument("--tokens", type=int, default=0, help="of documents, instead of pairs")
    parser.add_argument("--folder", type=Path, help="where the data is made, or was made before")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child[0], *map(Path, given.child[1:]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).resolve()
        if not (folder / "data").exists():
            write(folder / "data", given.pairs, given.tokens)
            time.sleep(3)  # what has just been written is not trusted to stay as it is
        measure(folder, given.tokens > 0)


if __name__ == "__main__":
    main()
