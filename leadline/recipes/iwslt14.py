"""IWSLT14 German-English as in Xiong et al. 2020, section 4.1: 6-6, d 512, FFN 1024, 4 heads, joint BPE 10k.

The paper does not say how "no warm-up" decays: Pre-LN divides the rate by 10 at epoch 8 (`step`), Post-LN rises
for 4000 updates and then falls as 1/sqrt (`inverse_sqrt`). Give the data with
`--set data.source=text:FOLDER`, files train/valid/test.de/.en that are Moses-tokenised and lower-cased.
"""

from __future__ import annotations

from leadline.config import Config, DataConfig, DecodeConfig, ModelConfig, OptimConfig, TrainConfig


def iwslt14_pre_ln() -> Config:
    return Config(
        model=ModelConfig(placement="pre_ln", encoder_layers=6, decoder_layers=6, dim=512, ffn_dim=1024, heads=4),
        data=DataConfig(source="text:data/iwslt14", text="tokenized", vocab_size=10000),
        optim=OptimConfig(lr=5e-4, schedule="step", warmup=0, decay_at=(8,), decay_factor=0.1),
        train=TrainConfig(epochs=12, batch_tokens=4096, precision="bf16"),
        decode=DecodeConfig(beam=5, length_penalty=1.2),
    )


WARM = {"lr": 1e-3, "schedule": "inverse_sqrt", "warmup": 4000}


def iwslt14_post_ln() -> Config:
    return iwslt14_pre_ln().set(model={"placement": "post_ln"}, optim=WARM)


def iwslt14_deepnorm() -> Config:
    return iwslt14_pre_ln().set(model={"placement": "deepnorm"}, optim=WARM)
