"""A run leaves the house: the model in somebody's format, its tokenizer, and a card that says what it is."""

from __future__ import annotations

from pathlib import Path

from leadline.errors import UserError, nearest
from leadline.exchange import card, ctranslate2, formats, huggingface
from leadline.training.run import labels_of
from leadline.training.trained import Trained


def export(
    run: Path, trained: Trained, out: Path, to: str = "huggingface", quantization: str = "float32"
) -> tuple[str, list[str]]:
    """What it is called there, and what a user should know about it."""
    exact = formats.choose(trained.model.config, to)
    if quantization not in ctranslate2.QUANTIZATIONS:
        raise UserError(
            f"--quantization cannot be {quantization!r}: {nearest(quantization, ctranslate2.QUANTIZATIONS)}"
        )
    if to == "huggingface":
        if quantization != "float32":
            raise UserError("--quantization is for --to ctranslate2: transformers reads this folder in any precision")
        notes = huggingface.save(trained, out, labels_of(run))
        title = huggingface.architecture(out)
    else:
        notes = ctranslate2.save(trained, out, quantization)
        title = exact.title if quantization == "float32" else f"{exact.title} with {quantization} matrices"
    card.write(run, trained, out, to, title, notes)
    return title, notes
