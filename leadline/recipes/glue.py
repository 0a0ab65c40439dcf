"""Fine-tuning as in Xiong et al. 2020, section 4.2, on two tasks of GLUE, and a task that needs no data.

The schedule is Devlin et al. 2018's: AdamW, warm-up over the first tenth of the updates, then linear decay to 0.
`leadline finetune RUN --task mrpc` takes the model and the vocabulary of RUN instead of those here, and tries several
rates, batch sizes and numbers of epochs; `leadline train mrpc` trains from scratch, with a vocabulary that fits so
little text. GLUE's folders and the original files of MRPC are read as they are.
"""

from __future__ import annotations

from dataclasses import replace

from leadline.config import Config
from leadline.recipes.bert import bert_base_pre_ln, bert_small_pre_ln

OPTIM = {"lr": 5e-5, "clip": 1.0, "schedule": "linear", "warmup": 0}
# The most a batch may take: 32 of the longest of BERT's sequences. What is needed is known when the data is.
TRAIN = {"updates": 0, "epochs": 3, "accumulate": 1, "eval_every": 0, "keep": 1}
TRAIN |= {"batch_sequences": 32, "batch_tokens": 32 * 512}


def _classifier(base: Config, **data: str | int) -> Config:
    return replace(base, task="classification").set(
        model={"head": "linear", "classes": 2}, data=data, optim=OPTIM, train=TRAIN
    )


def mrpc() -> Config:
    """MRPC of GLUE: do two sentences mean the same (0, 1)?

    Without a dev file, 408 examples, as many as GLUE's, are held out of train.
    """
    return _classifier(bert_base_pre_ln(), source="table:data/mrpc", holdout=408, vocab_size=10000)


def rte() -> Config:
    """RTE of GLUE: does the second sentence follow from the first (entailment, not_entailment)?"""
    return _classifier(bert_base_pre_ln(), source="table:data/rte", vocab_size=10000)


def same_meaning() -> Config:
    """Do two expressions of a number, a date or an amount mean the same? Small, for a CPU; no data needed."""
    small = _classifier(bert_small_pre_ln(), source="builtin:same-meaning", size=20000, vocab_size=300)
    return small.set(optim={"lr": 1e-3})
