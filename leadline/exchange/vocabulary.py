"""The vocabulary of a translator that somebody else has saved, with our numbers for padding, start, end and unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leadline.config import DataConfig
from leadline.data.tokenizer import Tokenizer
from leadline.errors import UserError


def read(folder: Path, described: dict[str, Any]) -> tuple[Tokenizer, list[int]]:
    """The tokenizer, and for each of its tokens the row of their embeddings."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise UserError(f"{folder} has no tokenizer.json: save the tokenizer with transformers' save_pretrained")
    tokenizer = Tokenizer.load(path, DataConfig())
    return tokenizer, list(range(tokenizer.vocab_size))
