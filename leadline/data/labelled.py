"""Labelled text as tokens, for leadline.tasks.classification. A whole split is held in memory while it is written.

FOLDER/manifest.json          "labels": their names, in order
FOLDER/train-00000.tokens.npy as for pairs; the second side is empty where an example is one text
FOLDER/train-00000.ends.npy
FOLDER/train.labels.npy       [rows] which of the labels
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from leadline.config import DataConfig
from leadline.data.making import Progress
from leadline.data.tables import Example, Examples
from leadline.data.tokenizer import Tokenizer, clean, learn
from leadline.errors import UserError
from leadline.files import Facts


def build(folder: Path, config: DataConfig, source: Examples, progress: Progress) -> Facts:
    """Fill a folder; what the manifest says of it."""
    splits = {}
    for split in source.splits():
        splits[split] = list(source.examples(split))
        progress(f"reading {split}", len(splits[split]))
    labels = _labels(splits["train"], config)
    tokenizer = Tokenizer(learn(_texts(splits["train"], config), config, documents=True), config)
    tokenizer.save(folder)
    facts = {split: _encode(folder, split, examples, labels, tokenizer) for split, examples in splits.items()}
    return {"labels": labels, "vocab_size": tokenizer.vocab_size, "splits": facts, "notes": source.notes()}


def lines(source: Examples) -> Iterator[str]:
    return (text for example in source.examples("train") for text in example[:2])


def _texts(examples: list[Example], config: DataConfig) -> Iterator[str]:
    for example in examples:
        yield from (clean(text, config, config.source_lang) for text in (example.first, example.second) if text)


def _labels(examples: list[Example], config: DataConfig) -> list[str]:
    """Of the training split, numbers in their order and names in theirs."""
    labels = sorted({example.label for example in examples}, key=_order)
    if len(labels) < 2:
        raise UserError(f"all examples of train have the label {labels[0]!r}: is data.label={config.label!r} right?")
    return labels


def _order(label: str) -> tuple[float, str]:
    try:
        number = float(label)
    except ValueError:
        number = math.inf
    return number if math.isfinite(number) else math.inf, label


def _encode(folder: Path, split: str, examples: list[Example], labels: list[str], tokenizer: Tokenizer) -> Facts:
    numbers = {label: number for number, label in enumerate(labels)}
    for example in examples:
        if example.label not in numbers:
            raise UserError(
                f"{example.where}: the label {example.label!r} is not among those of train ({', '.join(labels[:9])})"
            )
    config = tokenizer.config
    sides = [tokenizer.encode(texts, config.source_lang) for texts in ([e[i] for e in examples] for i in (0, 1))]
    both = bool(config.second)
    kept = [(e, a, b) for e, a, b in zip(examples, *sides, strict=True) if a and (b or not both)]
    if not kept:
        raise UserError(f"no example of {split} has text")
    lengths = np.array([(len(a), len(b)) for _, a, b in kept], dtype=np.int64)
    tokens = np.concatenate([np.array(side, dtype=np.uint32) for _, *row in kept for side in row])
    np.save(folder / f"{split}-00000.tokens.npy", tokens)
    np.save(folder / f"{split}-00000.ends.npy", np.cumsum(lengths.reshape(-1)).reshape(-1, 2))
    np.save(folder / f"{split}.labels.npy", np.array([numbers[e.label] for e, _, _ in kept], dtype=np.int64))
    empty = len(examples) - len(kept)
    return {"rows": len(kept), "shards": 1, "tokens": lengths.sum(0).tolist(), "empty_left_out": empty}
