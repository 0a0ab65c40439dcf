"""A trained BERT fine-tuned on MRPC and RTE: by `leadline import` and `finetune`, and by a plain loop on transformers.

    python -m bench.minilm MODEL_FOLDER --mrpc FOLDER --rte FOLDER --seeds 3 --out FILE.json

Both have the same model folder, pairs, splits, batch, rate, schedule, optimizer, clipping and epochs. What is each
library's own: the classifier's start (Xavier here, N(0, 0.02²) there), dropout on what the pooler makes (there only),
which pairs meet in a batch (here 32 or, where they are long, a few less), and what is drawn. Before anything is
trained, hidden states and pooler are compared. --updates compares instead the losses of the first updates without
dropout, from one classifier and on the same batches. What is finished under --work is not done again, so the command
can be stopped and started again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.config import Config
from leadline.data.sources import open_source
from leadline.data.store import Store, prepare
from leadline.exchange import huggingface
from leadline.files import write_json
from leadline.jobs import finetune as tuning
from leadline.jobs.interval import mean_and_interval
from leadline.jobs.job import finished
from leadline.provenance import stamp
from leadline.tasks import Classification, agreement
from leadline.training import checkpoint, optim
from leadline.training.run import load_config
from leadline.training.step import EagerStep
from leadline.training.trained import load

BATCH, RATE = 32, 5e-5
PIECES = 4  # of similar length in which a batch goes through transformers: the same gradient with less padding
LENGTH = 128  # tokens of a pair; the longer text loses first
KINDS = ("leadline", "transformers")
METRICS = ("accuracy", "f1", "nll")
Row = dict[str, Any]


class Pairs(NamedTuple):
    """A split as transformers reads it."""

    inputs: list[dict[str, list[int]]]
    labels: list[int]


Ready = tuple[Config, Store, dict[str, Pairs]]  # what the trainings of a task need


def configure(run: Path, task: str, folder: Path) -> tuple[Config, Store]:
    config = tuning.configure(run, task, str(folder), [f"model.max_length={LENGTH}", "train.device=cpu"], "last")
    store = Store(prepare(config.data))
    return tuning.fitted(config, store, [tuning.Setting(BATCH, RATE, 1)]), store


def tokenised(model: Path, config: Config, store: Store, split: str) -> Pairs:
    """The same text by transformers' own tokenizer; differences from ours are an error."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    examples = list(open_source(config.data).examples(split))
    encoded = tokenizer([e.first for e in examples], [e.second for e in examples], truncation=True, max_length=LENGTH)
    names = ("input_ids", "token_type_ids")
    inputs = [dict(zip(names, row, strict=True)) for row in zip(*(encoded[name] for name in names), strict=True)]
    task = Classification(config, store)
    ours = task.read(split)
    alone = [task.pack(ours, np.array([row]), task.shape, 0, 0) for row in range(len(ours.labels))]
    tokens = [batch.source.tokens[: batch.tokens].tolist() for batch in alone]
    different = sum(own != row["input_ids"] for own, row in zip(tokens, inputs, strict=False))
    if different or len(tokens) != len(inputs):
        raise AssertionError(f"{different} of {len(inputs)} pairs of {split} are other tokens")
    return Pairs(inputs, [store.manifest["labels"].index(example.label) for example in examples])


def padded(pairs: Pairs, rows: Sequence[int]) -> tuple[dict[str, Tensor], Tensor]:
    chosen = [pairs.inputs[row] for row in rows]
    longest = max(len(each["input_ids"]) for each in chosen)
    batch = {
        name: torch.tensor([each[name] + [0] * (longest - len(each[name])) for each in chosen]) for name in chosen[0]
    }
    lengths = torch.tensor([len(each["input_ids"]) for each in chosen])
    mask = (torch.arange(longest) < lengths[:, None]).long()
    return batch | {"attention_mask": mask}, torch.tensor([pairs.labels[row] for row in rows])


def batches(rows: np.ndarray, size: int) -> Iterator[list[int]]:
    for begin in range(0, len(rows), size):
        yield rows[begin : begin + size].tolist()


def parity(model: Path, run: Path, config: Config, store: Store, pairs: Pairs, count: int = 16) -> Row:
    """The largest differences between the imported encoder and transformers' on a few pairs."""
    from transformers import AutoModel

    theirs: Any = AutoModel.from_pretrained(model).eval()
    ours: Any = load(run, which="last", device="cpu").model
    task = Classification(config, store)
    examples = task.read("valid")
    order = np.argsort(examples.lengths[:count, 0], kind="stable")
    inputs, _ = padded(pairs, order.tolist())
    packed = task.pack(examples, order, task.shape, 0, 0)
    with torch.inference_mode():
        expected = theirs(**inputs)
        hidden = ours(packed.source)
        pooled = ours.classifier(hidden[packed.firsts[:count]])
    off = (hidden[: packed.tokens] - expected.last_hidden_state[inputs["attention_mask"].bool()]).abs().max()
    return {
        "pairs": count,
        "hidden": float(off),
        "largest hidden": float(expected.last_hidden_state.abs().max()),
        "pooler": float((pooled - expected.pooler_output).abs().max()),
    }


def first_updates(model: Path, config: Config, store: Store, pairs: Pairs, count: int = 20, size: int = 8) -> Row:
    """The losses of both without dropout, on the same short batches and from the same classifier."""
    from transformers import AutoModelForSequenceClassification

    config = config.set(model={"dropout": 0.0, "attention_dropout": 0.0})
    task = Classification(config, store)
    lengths = task.train.lengths[:, 0]
    short = np.random.default_rng(0).permutation(np.argsort(lengths, kind="stable")[: count * size])
    plan = [rows[np.argsort(lengths[rows], kind="stable")] for rows in np.split(short, count)]

    ours: Any = task.build_model()
    run = Path(config.train.start)
    name, weights = checkpoint.choose(run, config.train.start_checkpoint)
    new = task.start_from(ours, load_config(run), weights)
    checkpoint.restore_part(ours, weights, name, new)
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    theirs: Any = AutoModelForSequenceClassification.from_pretrained(model, num_labels=2, **off).train()
    theirs.classifier.load_state_dict(ours.classifier.out.state_dict())
    step = EagerStep(config, task, ours.train())
    optimizer = optim.optimizer(config.optim, theirs)

    losses: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for update, rows in enumerate(plan, 1):
        losses["leadline"].append(float(step([task.collate(rows)], update, RATE).loss))
        inputs, labels = padded(pairs, rows.tolist())
        loss = F.cross_entropy(theirs(**inputs).logits, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), config.optim.clip)
        optimizer.step()
        optimizer.zero_grad()
        losses["transformers"].append(float(loss.detach()))
    return losses | {"largest difference": max(abs(a - b) for a, b in zip(*losses.values(), strict=True))}


def leadline(config: Config, setting: tuning.Setting, seed: int, out: Path) -> None:
    """As `leadline finetune` does it, up to this seed."""
    tuning.finetune(config, [setting], seed, 1, out)


def leadline_result(config: Config, store: Store, setting: tuning.Setting, seed: int, out: Path) -> Row | None:
    weights = checkpoint.choose(Path(config.train.start), config.train.start_checkpoint)[1]
    job = tuning.job(config, setting, seed, store, checkpoint.fingerprint(weights))
    if (result := finished(job, out / "runs")) is None:
        return None
    scores = {name: result[f"valid_{name}"] for name in METRICS}
    return scores | {"updates": result["updates"], "seconds": round(result["seconds"])}


def transformers(model: Path, config: Config, setting: tuning.Setting, train: Pairs, valid: Pairs, seed: int) -> Row:
    from transformers import AutoModelForSequenceClassification, set_seed

    set_seed(seed)
    theirs: Any = AutoModelForSequenceClassification.from_pretrained(model, num_labels=2).train()
    optimizer = optim.optimizer(config.optim, theirs)  # torch's AdamW; biases and norms are not decayed
    total = setting.epochs * -(-len(train.labels) // setting.batch)
    warmup = round(tuning.WARMUP * total)
    update, began = 0, time.perf_counter()
    for epoch in range(setting.epochs):
        order = np.random.default_rng((seed, epoch)).permutation(len(train.labels))
        for rows in batches(order, setting.batch):
            update += 1
            rows.sort(key=lambda row: len(train.inputs[row]["input_ids"]))
            for piece in batches(np.array(rows), -(-len(rows) // PIECES)):
                inputs, labels = padded(train, piece)
                (F.cross_entropy(theirs(**inputs).logits, labels, reduction="sum") / len(rows)).backward()
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), config.optim.clip)
            for group in optimizer.param_groups:
                group["lr"] = optim.linear(update, setting.lr, warmup, total)
            optimizer.step()
            optimizer.zero_grad()
            if update % 20 == 0:
                print(f"update {update} of {total}, {(time.perf_counter() - began) / update:.2f} s each", flush=True)
    seconds = time.perf_counter() - began
    return evaluate(theirs, valid) | {"updates": update, "seconds": round(seconds)}


@torch.inference_mode()
def evaluate(theirs: Any, pairs: Pairs) -> Row:
    theirs.eval()
    nll, counts = 0.0, np.zeros((2, 2), dtype=np.int64)
    for rows in batches(np.argsort([len(each["input_ids"]) for each in pairs.inputs]), BATCH):
        inputs, labels = padded(pairs, rows)
        logits = theirs(**inputs).logits
        nll += float(F.cross_entropy(logits, labels, reduction="sum"))
        np.add.at(counts, (labels.numpy(), logits.argmax(-1).numpy()), 1)
    scores = agreement.scores(counts)
    return {"accuracy": scores["accuracy"], "f1": scores["f1"], "nll": nll / len(pairs.labels)}


def summary(rows: Sequence[Row]) -> list[Row]:
    """Mean and half of its 95 % interval of each kind, and of the difference seed by seed."""
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        for metric in METRICS:
            by = {k: {r["seed"]: r[metric] for r in rows if (r["task"], r["kind"]) == (task, k)} for k in KINDS}
            both = sorted(by[KINDS[0]].keys() & by[KINDS[1]].keys())
            columns = {kind: [by[kind][seed] for seed in both] for kind in KINDS}
            columns["difference"] = [a - b for a, b in zip(*columns.values(), strict=True)]
            means = {name: mean_and_interval(values) for name, values in columns.items()}
            lines.append({"task": task, "metric": metric, "seeds": both} | means)
    return lines


def own_file(work: Path, task: str, setting: tuning.Setting, seed: int) -> Path:
    return work / task / f"transformers-{setting.epochs}-{seed}.json"


def collected(ready: dict[str, Ready], work: Path, setting: tuning.Setting, seeds: int) -> list[Row]:
    """What is finished."""
    rows = []
    for task, kind, seed in product(ready, KINDS, range(1, seeds + 1)):
        config, store, _ = ready[task]
        own = own_file(work, task, setting, seed)
        if kind == "leadline":
            row = leadline_result(config, store, setting, seed, work / task)
        else:
            row = json.loads(own.read_text(encoding="utf-8")) if own.exists() else None
        if row:
            rows.append({"task": task, "kind": kind, "seed": seed} | row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a folder that transformers opens")
    parser.add_argument("--rte", type=Path, required=True)
    parser.add_argument("--mrpc", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--updates", action="store_true", help="only compare the first updates on MRPC")
    parser.add_argument("--only", choices=KINDS, help="train with this one; another command may do the other")
    parser.add_argument("--work", type=Path, default=Path("runs/minilm"), help="what is finished there is used")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    setting = tuning.Setting(BATCH, RATE, options.epochs)
    run = (options.work / "imported").absolute()
    if not run.exists():
        huggingface.load(options.model, run)
    ready: dict[str, Ready] = {}
    parities = {}
    for task in ("rte", "mrpc"):
        config, store = configure(run, task, getattr(options, task))
        pairs = {split: tokenised(options.model, config, store, split) for split in ("train", "valid")}
        ready[task] = config, store, pairs
        parities[task] = parity(options.model, run, config, store, pairs["valid"])
        print(task, parities[task], flush=True)
    if options.updates:
        config, store, pairs = ready["mrpc"]
        write_json(options.out, stamp() | {"updates": first_updates(options.model, config, store, pairs["train"])})
        return
    facts = stamp() | {"setting": asdict(setting) | {"length": LENGTH}, "parity": parities}
    for seed, task, kind in product(range(1, options.seeds + 1), ready, [options.only] if options.only else KINDS):
        config, store, pairs = ready[task]
        own = own_file(options.work, task, setting, seed)
        if kind == "leadline":
            leadline(config, setting, seed, options.work / task)
        elif not own.exists():
            own.parent.mkdir(exist_ok=True)
            write_json(own, transformers(options.model, config, setting, pairs["train"], pairs["valid"], seed))
        rows = collected(ready, options.work, setting, options.seeds)
        write_json(options.out, facts | {"rows": rows, "summary": summary(rows)})
        print(f"{task}, seed {seed}, {kind}: done", flush=True)


if __name__ == "__main__":
    main()
