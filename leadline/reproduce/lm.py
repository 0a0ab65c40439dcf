"""Language models with and without warm-up: what Xiong et al. 2020 show of translators and BERT, of a decoder alone.

Neither paper trains one; Wang et al. 2022 give DeepNorm's constants for it (Figure 2).
"""

from __future__ import annotations

from dataclasses import replace

from leadline import recipes
from leadline.config import Config
from leadline.report.page import Chart, Section
from leadline.reproduce import sensitivity
from leadline.reproduce.claims import Claim, Numbers, big
from leadline.reproduce.figure import Figure, FinishedRun, Runs, Variant, Variants
from leadline.reproduce.reading import curves, gaps, loss_chart, shares

PRE, PRE_WARM = "pre_ln, no warm-up", "pre_ln, warm-up"
LEARNT = 0.5  # nats below the first evaluation
POST, POST_WARM, DEEP = "post_ln, no warm-up", "post_ln, warm-up", "deepnorm, warm-up"


def base(scale: str) -> Config:
    """GPT-2's smallest; small: 12 narrower layers, on one GPU; tiny: Python's documentation on a core."""
    if scale == "tiny":
        small = {"updates": 150, "batch_tokens": 1024, "eval_every": 25, "keep": 1}
        return recipes.lm_small_pre_ln().set(
            model={"decoder_layers": 4, "dim": 64, "ffn_dim": 256, "max_length": 128},
            data={"vocab_size": 1000},
            optim={"lr": 1e-2},
            train=small,
        )
    shared = {"step": "graph", "log_every": 50, "keep": 1}
    if scale == "paper":
        return recipes.gpt2_124m().set(optim={"warmup": 0}, train=shared | {"updates": 20_000})
    return recipes.gpt2_124m().set(
        model={"dim": 512, "ffn_dim": 2048, "heads": 8, "max_length": 512},
        data={"vocab_size": 16384},
        optim={"lr": 1e-3, "warmup": 0},
        train=shared | {"updates": 2000, "accumulate": 1, "eval_every": 100},
    )


def _variants(scale: str, base: Config) -> Variants:
    """The same rate and the same cosine; warm-up is the first tenth of the updates (tiny: of 150 three tenths)."""
    warm = {"warmup": base.train.updates * (3 if scale == "tiny" else 1) // 10}
    post, deep = {"placement": "post_ln"}, {"placement": "deepnorm"}
    return {
        PRE: Variant(base),
        PRE_WARM: Variant(base.set(optim=warm)),
        POST: Variant(base.set(model=post)),
        POST_WARM: Variant(base.set(model=post, optim=warm)),
        DEEP: Variant(base.set(model=deep, optim=warm)),
    }


def _has_learnt(run: FinishedRun) -> bool:
    """More than how often tokens come, which a model has learnt by its first evaluation."""
    return run.last("valid_nll") < run.first("valid_nll") - LEARNT


def _numbers(runs: Runs) -> Numbers:
    """Nothing is compared with a Post-LN that has not learnt."""
    good = {**runs, POST_WARM: [run for run in runs.get(POST_WARM, ()) if _has_learnt(run)]}
    return {
        "post bare - post warm": gaps(runs, POST, POST_WARM),
        "pre bare - post warm": gaps(good, PRE, POST_WARM),
        "share": shares(good, PRE, POST_WARM),
        "pre bare - pre warm": gaps(runs, PRE, PRE_WARM),
        "deepnorm - post warm": gaps(good, DEEP, POST_WARM),
    }


def _charts(runs: Runs) -> list[Section]:
    return [
        loss_chart(runs),
        Chart("Bits per byte", "update", "bits a byte", curves(runs, "valid_bits_per_byte")),
    ]


WARMUP = Figure(
    title="Language models: Post-LN and Pre-LN with and without warm-up, DeepNorm with it",
    paper="not in the papers; Xiong et al. 2020, Figures 2, 4 and 5, of translation and BERT",
    variants=_variants,
    numbers=_numbers,
    charts=_charts,
    claims=(
        Claim(
            "Post-LN ends worse without warm-up than with it, in nats a token",
            "translation: BLEU 8.45 without, about 34 with",
            "post bare - post warm",
            at_least=0.5,
        ),
        Claim(
            "Pre-LN without warm-up ends no worse than Post-LN with it",
            "translation: both about 34 BLEU",
            "pre bare - post warm",
            at_most=0.1,
        ),
        big(
            "it reaches Post-LN's final loss in less of the updates",
            "BERT: 500k updates against 700k: 0.71",
            "share",
            at_most=0.8,
        ),
        Claim(
            "Pre-LN without warm-up ends about where it ends with it",
            "translation: warm-up not needed",
            "pre bare - pre warm",
            at_most=0.1,
        ),
        big(
            "DeepNorm with warm-up ends no worse than Post-LN with it",
            "translation: better, and stable at any depth",
            "deepnorm - post warm",
            at_most=0.1,
        ),
    ),
    base=base,
)

SENSITIVITY = replace(
    sensitivity.FIGURE, title="Language models: the highest learning rate at which each placement trains", base=base
)
