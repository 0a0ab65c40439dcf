"""BERT as in Xiong et al. 2020, section 4.2: 12 layers, d 768, 12 heads, masked-LM loss on documents.

Post-LN warms up for 10,000 updates to 1e-4; Pre-LN starts at 3e-4; both then decay linearly to 0. The rest follows
Devlin et al. 2018. Give the text with `--set data.source=documents:PATH`. The small ones train on a CPU.
`--set model.classes=2` adds next-sentence prediction.
"""

from __future__ import annotations

from leadline.config import Config, DataConfig, ModelConfig, OptimConfig, TrainConfig


def bert_base_pre_ln() -> Config:
    """BERT base, Pre-LN without warm-up (Xiong et al. 2020), on your own documents; for a GPU."""
    return Config(
        task="masked_lm",
        model=ModelConfig(
            placement="pre_ln",
            encoder_layers=12,
            decoder_layers=0,
            dim=768,
            ffn_dim=3072,
            heads=12,
            activation="gelu",
            attention_dropout=0.1,
            positions="learned",
            max_length=512,
            embed_norm=True,
            segments=2,
            head="bert",
        ),
        data=DataConfig(
            source="documents:data/english",
            source_lang="en",
            target_lang="en",
            text="moses_normalize",
            lowercase=True,
            vocab_size=32768,
        ),
        optim=OptimConfig(
            name="adamw", lr=3e-4, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, schedule="linear", warmup=0
        ),
        train=TrainConfig(
            updates=1_000_000,
            batch_tokens=32768,
            accumulate=4,
            label_smoothing=0.0,
            precision="bf16",
            eval_every=5000,
        ),
    )


def bert_base_post_ln() -> Config:
    """BERT base, Post-LN with 10,000 updates of warm-up (Devlin et al. 2018); for a GPU."""
    return bert_base_pre_ln().set(model={"placement": "post_ln"}, optim={"lr": 1e-4, "warmup": 10_000})


def bert_small_pre_ln() -> Config:
    """A small BERT, Pre-LN without warm-up, on Python's documentation: less than two minutes on two cores."""
    small = {"encoder_layers": 3, "dim": 128, "ffn_dim": 512, "heads": 4, "max_length": 128}
    return bert_base_pre_ln().set(
        model=small | {"dropout": 0.0, "attention_dropout": 0.0},
        data={"source": "builtin:python-docs", "text": "raw", "vocab_size": 4000, "valid_every": 20},
        optim={"lr": 3e-3},
        train={"updates": 500, "batch_tokens": 1024, "accumulate": 1, "precision": "fp32", "eval_every": 100},
    )


def bert_small_post_ln() -> Config:
    """The small BERT with Post-LN and warm-up."""
    return bert_small_pre_ln().set(model={"placement": "post_ln"}, optim={"lr": 1e-3, "warmup": 100})
