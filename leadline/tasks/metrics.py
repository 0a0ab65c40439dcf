"""BLEU and chrF as everyone else computes them: sacreBLEU, with its signature."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

from leadline.data.tokenizer import Tokenizer, clean


def corpus_scores(outputs: Sequence[str], references: Sequence[str], tokenizer: Tokenizer) -> dict[str, Any]:
    """Scores of a model's outputs (as it wrote them, before detokenisation) against the sentences of the data.

    `bleu` and `chrf` compare detokenised text, so that they mean the same for every tokenizer. Where the data
    is tokenised, `bleu_tokenized` compares the tokens, as papers of the time did.
    """
    from sacrebleu.metrics import BLEU, CHRF

    config = tokenizer.config
    # References that are files of tokenised text must become sentences again too.
    written = [tokenizer.detokenize(line) for line in outputs]
    expected = [tokenizer.detokenize(line) for line in references] if config.text == "tokenized" else list(references)
    bleu, chrf = BLEU(lowercase=config.lowercase), CHRF(lowercase=config.lowercase)
    scores: dict[str, Any] = {
        "bleu": bleu.corpus_score(written, [expected]).score,
        "chrf": chrf.corpus_score(written, [expected]).score,
        "exact_match": sum(_same(*pair, config.lowercase) for pair in zip(written, expected, strict=True))
        / len(written),
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }
    if config.text != "raw":
        tokens = [clean(line, config, config.target_lang) for line in references]
        tokenized = BLEU(tokenize="none", force=True)
        scores["bleu_tokenized"] = tokenized.corpus_score(list(outputs), [tokens]).score
        scores["bleu_tokenized_signature"] = str(tokenized.get_signature())
    return scores


def _same(written: str, expected: str, lowercase: bool) -> bool:
    expected = " ".join(unicodedata.normalize("NFC", expected).split())
    return " ".join(written.split()) == (expected.lower() if lowercase else expected)
