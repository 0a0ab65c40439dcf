"""A tiny corpus, prepared once, and a tiny model for it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from leadline.config import Config, DataConfig, DecodeConfig, ModelConfig, TrainConfig
from leadline.data.store import Store, prepare

WORDS = {
    "de": ["der", "Hund", "die", "Katze", "läuft", "schläft", "grüne", "Straße", "und", "nicht,", "Äpfel!"],
    "en": ["the", "dog", "cat", "runs", "sleeps", "green", "street", "and", "not,", "apples!", "isn't"],
}
SIZES = {"train": 60, "valid": 12, "test": 6}
MAX_LENGTH = 24  # some sentences of the corpus are longer


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("text"), random.Random(0)
    for split, size in SIZES.items():
        lengths = [rng.randint(1, 14) for _ in range(size)]
        for language, words in WORDS.items():
            lines = [" ".join(rng.choices(words, k=max(1, n + rng.randint(-1, 1)))) for n in lengths]
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def config(text_folder: Path) -> Config:
    return Config(
        model=ModelConfig(
            encoder_layers=2,
            decoder_layers=2,
            dim=16,
            ffn_dim=32,
            heads=2,
            dropout=0.2,
            max_length=MAX_LENGTH,
            embeddings="separate",
        ),
        data=DataConfig(source=f"text:{text_folder}", vocab_size=85),
        train=TrainConfig(epochs=1, batch_tokens=64, label_smoothing=0.1),
        decode=DecodeConfig(beam=2, batch_tokens=60),
    )


@pytest.fixture(scope="session")
def store(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(prepare(config.data, tmp_path_factory.mktemp("prepared") / "data"))
