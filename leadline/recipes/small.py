"""A translator of your own text on a laptop: 3-3 layers, d 128, one vocabulary of 4,000 tokens.

With a GPU, train `iwslt14_pre_ln`. This one learns from tens of thousands of sentences in minutes on two cores, enough
to see whether data and command are right.
"""

from __future__ import annotations

from leadline.config import Config, DataConfig, ModelConfig, OptimConfig, TrainConfig


def small_pre_ln() -> Config:
    """Translation with Pre-LN and no warm-up, small enough for two CPU cores: a first model for your own text."""
    return Config(
        model=ModelConfig(placement="pre_ln", encoder_layers=3, decoder_layers=3, dim=128, ffn_dim=512, heads=4),
        data=DataConfig(source="text:data", text="auto", vocab_size=4000),
        optim=OptimConfig(lr=2e-3, schedule="linear", warmup=0),
        train=TrainConfig(updates=2000, batch_tokens=1024, eval_every=500, precision="fp32", log_every=50),
    )
