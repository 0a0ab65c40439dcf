"""WMT14 English-German as in Xiong et al. 2020, section 4.1: Transformer base, joint BPE 37k, 131,072 tokens a batch.

Give the data with `--set data.source=text:FOLDER`, files train/valid/test.en/.de as they are; the paper validates on
newstest2013 and tests on newstest2014. Beam and length penalty are those of Vaswani et al. 2017, whose setup it uses.
"""

from __future__ import annotations

from leadline.config import Config, DataConfig, DecodeConfig, ModelConfig, OptimConfig, TrainConfig


def wmt14_pre_ln() -> Config:
    """Transformer base with Pre-LN and no warm-up (Xiong et al. 2020, WMT14 English-German); for a GPU."""
    return Config(
        model=ModelConfig(placement="pre_ln", encoder_layers=6, decoder_layers=6, dim=512, ffn_dim=2048, heads=8),
        data=DataConfig(source="text:data/wmt14", source_lang="en", target_lang="de", vocab_size=37000),
        # "decayed at the 6-th epoch followed by the inverse square root": five epochs are about 5,000 updates
        optim=OptimConfig(lr=7e-4, schedule="hold_inverse_sqrt", warmup=0, hold=5000),
        train=TrainConfig(epochs=15, batch_tokens=8192, accumulate=16, precision="bf16"),
        decode=DecodeConfig(beam=4, length_penalty=0.6),
    )


def wmt14_post_ln() -> Config:
    """Transformer base with Post-LN and 4,000 updates of warm-up (WMT14 English-German); for a GPU."""
    return wmt14_pre_ln().set(model={"placement": "post_ln"}, optim={"schedule": "inverse_sqrt", "warmup": 4000})
