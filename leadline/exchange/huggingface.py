"""Folders of Hugging Face's transformers: config.json, model.safetensors and a tokenizer, without a pickle.

`save` writes one that `AutoModel….from_pretrained` and `AutoTokenizer.from_pretrained` open; `load` makes a run of one,
to train further or to export again. Neither needs transformers to be installed.
"""

from __future__ import annotations

from pathlib import Path

from leadline.errors import UserError
from leadline.exchange import bert, decoders, encoders, translators
from leadline.exchange.decoder_kinds import KINDS as DECODERS
from leadline.exchange.folder import architecture as architecture
from leadline.exchange.folder import description
from leadline.training import run as runs
from leadline.training.trained import Trained


def save(trained: Trained, out: Path, labels: list[str] | None = None) -> list[str]:
    """Write a folder; what a user should know about it."""
    kind = trained.model.config.architecture
    if kind == "encoder-decoder":
        return translators.save(trained, out)
    return decoders.save(trained, out) if kind == "decoder-only" else encoders.save(trained, out, labels)


def load(folder: Path, out: Path) -> list[str]:
    """Make the run `out` of a folder; what was left out."""
    runs.require_new(out)
    described = description(folder)
    readers = dict.fromkeys(bert.KINDS, encoders) | dict.fromkeys(DECODERS, decoders)
    readers |= dict.fromkeys(translators.KINDS, translators)
    name = described.get("model_type")
    if not isinstance(name, str) or name not in readers:
        raise UserError(f"{folder}/config.json is of the type {name!r}: what can be imported is {', '.join(readers)}")
    return readers[name].load(folder, described, out)


def next_command(folder: Path, run: Path) -> str:
    """What to do with the run that was made of a folder."""
    name = description(folder).get("model_type")
    if name in translators.KINDS:
        return f"echo … | leadline translate {run}"
    return f"leadline finetune {run} --task FILE" if name in bert.KINDS else f"leadline generate {run} TEXT"
