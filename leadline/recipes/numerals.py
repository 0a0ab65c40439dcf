"""A translator of numbers, dates and amounts that trains in a minute or two on a CPU, without any data files."""

from __future__ import annotations

from leadline.config import Config, DataConfig, DecodeConfig, ModelConfig, OptimConfig, TrainConfig


def numerals() -> Config:
    """German number words, dates and amounts to English, no data needed: a minute or two on two cores."""
    return Config(
        model=ModelConfig(
            placement="pre_ln",
            encoder_layers=3,
            decoder_layers=3,
            dim=64,
            ffn_dim=128,
            heads=2,
            dropout=0.0,
            max_length=96,
        ),
        data=DataConfig(source="builtin:numerals", vocab_size=1000, size=20000),
        optim=OptimConfig(name="adam", lr=6e-3, schedule="linear", warmup=0),
        train=TrainConfig(updates=400, batch_tokens=1024, label_smoothing=0.0, precision="fp32", eval_every=80),
        decode=DecodeConfig(beam=1),
    )
