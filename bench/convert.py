"""Our models as transformers', with the same weights: what `leadline export` writes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.workload import BOS
from leadline.exchange import decoders, translators
from leadline.model import Transformer


def translator(model: Transformer) -> Any:
    from transformers import AutoModelForSeq2SeqLM

    with tempfile.TemporaryDirectory() as folder:
        translators.write_model(model, Path(folder), translators.NUMBERS | {"decoder_start_token_id": BOS})
        theirs: Any = AutoModelForSeq2SeqLM.from_pretrained(folder)
    theirs.generation_config.forced_eos_token_id = None  # each sentence has a limit of its own
    return theirs.eval()


def decoder(model: Transformer) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = decoders.kind_of(model.config)
    described = decoders.describe(model, kind) | {"bos_token_id": 0, "eos_token_id": 0}
    theirs: Any = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**described), attn_implementation="sdpa", dtype=torch.float32
    )
    missing, unknown = theirs.load_state_dict(decoders.to_theirs(model, kind), strict=False)
    if unknown or set(missing) - {"lm_head.weight"}:
        raise RuntimeError(f"a copy of other weights: {missing} are missing, {unknown} unknown")
    return theirs
