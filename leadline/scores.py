"""BLEU and chrF as everyone else computes them: sacreBLEU, with its signatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leadline.errors import UserError


def bleu_and_chrf(
    written: Sequence[str], expected: Sequence[str], lowercase: bool = False, language: str = ""
) -> dict[str, Any]:
    """Scores of lines against one reference each; zh, ja and ko have tokenizers of their own in sacreBLEU."""
    from sacrebleu.metrics import BLEU, CHRF

    try:
        bleu, chrf = BLEU(lowercase=lowercase, trg_lang=language), CHRF(lowercase=lowercase)
    except (ImportError, RuntimeError):
        raise UserError(
            f"sacreBLEU has no tokenizer for {language} here: install it with pip install 'sacrebleu[{language}]'"
        ) from None
    return {
        "bleu": bleu.corpus_score(written, [expected]).score,
        "chrf": chrf.corpus_score(written, [expected]).score,
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }
