"""Small corpora on disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from leadline.config import DataConfig

GERMAN = ["der", "Hund", "die", "Katze", "läuft", "schläft", "grün", "Straße", "und", "nicht,", "Äpfel!"]
ENGLISH = ["the", "dog", "cat", "runs", "sleeps", "green", "street", "and", "not,", "apples!", "isn't"]

Write = Callable[..., Path]


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where prepared data goes: a folder of the test's own."""
    monkeypatch.setenv("LEADLINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write({"train.de": ["ein Satz", …]}): a folder of text files; bytes are written as they are."""

    def _write(files: dict[str, list[str] | bytes], folder: str = "text") -> Path:
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        for name, content in files.items():
            data = content if isinstance(content, bytes) else "".join(f"{line}\n" for line in content).encode()
            (path / name).write_bytes(data)
        return path

    return _write


@pytest.fixture
def corpus(write: Write) -> Callable[..., DataConfig]:
    """corpus(train=50): random sentences in a text folder, every pair with its number, and the config to read it."""

    def _corpus(train: int = 50, valid: int = 5, test: int = 5, folder: str = "text", **changes) -> DataConfig:
        rng = random.Random(0)
        files: dict[str, list[str] | bytes] = {}
        for split, size in (("train", train), ("valid", valid), ("test", test)):
            for language, words in (("de", GERMAN), ("en", ENGLISH)):
                lines = (" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(size))
                files[f"{split}.{language}"] = [f"{line} {number}" for number, line in enumerate(lines)]
        return DataConfig(**{"source": f"text:{write(files, folder)}", "vocab_size": 80} | changes)

    return _corpus
