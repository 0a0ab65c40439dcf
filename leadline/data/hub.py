"""Datasets of Hugging Face's `datasets` library: a name on the hub, or a folder that it has saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leadline.errors import UserError, first_line


def load(name: str, needed: Sequence[str] = ("train", "valid")) -> dict[str, Any]:
    """Its splits, `needed` among them, by our names; NAME#SUBSET is one of its subsets."""
    try:
        import datasets
    except ImportError:
        raise UserError("hf: sources need the datasets library: pip install 'leadline[datasets]'") from None
    path, _, subset = name.partition("#")
    try:
        if Path(path).is_dir() and (Path(path) / "dataset_dict.json").exists():
            loaded = datasets.load_from_disk(path)
        else:
            loaded = datasets.load_dataset(path, subset or None)
    except Exception as error:
        raise UserError(f"the Hugging Face dataset {name!r} cannot be loaded: {first_line(error)}") from None
    splits = {"valid" if split == "validation" else split: rows for split, rows in loaded.items()}
    for split in needed:
        if split not in splits:
            raise UserError(f"the dataset {name!r} has no {split} split, only {', '.join(splits)}")
    return splits
