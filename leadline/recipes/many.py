"""Many languages in one model: OPUS-100 as in DeepNet (Wang et al. 2022, table 7), and a small one of number words.

Give the data with `--set data.source=many:FOLDER`; OPUS-100's own folder is read as it is. The paper trains both
directions of 100 languages with English for 4 epochs in batches of 128 × 4,096 tokens, d 512, FFN 2,048, 8 heads, with
Adam to 5e-4 after a warm-up of 4,000, dropout 0.1. Its tables list no temperature, vocabulary size or beam:
5, 64,000 and 5 are common for such data, and our choice.
"""

from __future__ import annotations

from leadline.config import Config, DataConfig, DecodeConfig, ModelConfig, OptimConfig, TrainConfig
from leadline.recipes.numerals import numerals


def opus100_deepnorm() -> Config:
    """Many languages in one model, 100-100 layers of DeepNorm (Wang et al. 2022, OPUS-100); for a GPU."""
    return Config(
        model=ModelConfig(placement="deepnorm", encoder_layers=100, decoder_layers=100, dim=512, ffn_dim=2048, heads=8),
        data=DataConfig(source="many:data/opus100", vocab_size=64000, temperature=5.0),
        optim=OptimConfig(lr=5e-4, eps=1e-8, schedule="inverse_sqrt", warmup=4000),
        train=TrainConfig(epochs=4, batch_tokens=4096, accumulate=128, precision="bf16", bleu_sentences=1000),
        decode=DecodeConfig(beam=5),
    )


def opus100_pre_ln() -> Config:
    """Many languages in one model, 12 layers of Pre-LN (6-6), DeepNet's baseline on OPUS-100; for a GPU."""
    return opus100_deepnorm().set(model={"placement": "pre_ln", "encoder_layers": 6, "decoder_layers": 6})


def many_small() -> Config:
    """Number words between German, French and English, without data of your own: a minute on two cores."""
    return numerals().set(
        data={
            "directions": ("de-en", "en-de", "en-fr", "fr-en"),
            "temperature": 5.0,
            "vocab_size": 1500,
            "size": 10000,
        },
        train={"updates": 600, "eval_every": 150},
    )
