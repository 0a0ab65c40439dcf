"""Language models: GPT-2's smallest, a Llama of its size, and small ones that train on a CPU.

GPT-2 is Radford et al. 2019 with the training that is usual now (Brown et al. 2020, appendix B): AdamW with β2 0.95,
warm-up and half a cosine, gradients clipped at 1, weight decay on matrices but not embeddings, no dropout. Give the
text with `--set data.source=documents:PATH`; the vocabulary is learnt from it. Weights are initialised as the placement
says (docs/placements.md), not with GPT-2's 0.02.
"""

from __future__ import annotations

from leadline.config import Config, DataConfig, ModelConfig, OptimConfig, TrainConfig


def gpt2_124m() -> Config:
    """GPT-2's smallest model, 12 layers of Pre-LN with warm-up, on your own documents; for a GPU."""
    return Config(
        task="causal_lm",
        model=ModelConfig(
            placement="pre_ln",
            encoder_layers=0,
            decoder_layers=12,
            dim=768,
            ffn_dim=3072,
            heads=12,
            activation="gelu_tanh",
            dropout=0.0,
            positions="learned",
            max_length=1024,
            embed_scale=False,
        ),
        data=DataConfig(
            source="documents:data/english", source_lang="en", target_lang="en", tokenizer="byte_bpe", vocab_size=50257
        ),
        optim=OptimConfig(
            name="adamw",
            lr=6e-4,
            betas=(0.9, 0.95),
            eps=1e-8,
            weight_decay=0.1,
            decay_embeddings=False,
            clip=1.0,
            schedule="cosine",
            warmup=2000,
        ),
        train=TrainConfig(
            updates=100_000,
            batch_tokens=32768,
            accumulate=16,
            label_smoothing=0.0,
            precision="bf16",
            eval_every=1000,
        ),
    )


def llama_124m() -> Config:
    """Llama's block at GPT-2's size: RMSNorm, rotary positions, SwiGLU, no biases; on your documents, for a GPU."""
    modern = {"norm": "rms_norm", "norm_eps": 1e-6, "positions": "rotary", "activation": "swiglu", "bias": False}
    return gpt2_124m().set(model=modern | {"ffn_dim": 2048})


def lm_small_pre_ln() -> Config:
    """A small language model, Pre-LN without warm-up, on Python's documentation: less than two minutes on two cores."""
    small = {"decoder_layers": 3, "dim": 128, "ffn_dim": 512, "heads": 4, "max_length": 256}
    return gpt2_124m().set(
        model=small | {"embed_scale": True},  # so few updates move embeddings too little without it
        data={"source": "builtin:python-docs", "vocab_size": 2000, "valid_every": 20},
        optim={"lr": 3e-3, "warmup": 0},
        train={"updates": 1200, "batch_tokens": 1024, "accumulate": 1, "precision": "fp32", "eval_every": 200},
    )


def lm_small_post_ln() -> Config:
    """The small language model with Post-LN and warm-up."""
    return lm_small_pre_ln().set(model={"placement": "post_ln"}, optim={"lr": 1e-3, "warmup": 100})
