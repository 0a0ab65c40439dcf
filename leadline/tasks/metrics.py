"""Scores of a model's translations."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from leadline.data.tokenizer import Tokenizer, clean
from leadline.files import Facts
from leadline.scores import bleu_and_chrf


def corpus_scores(outputs: Sequence[str], references: Sequence[str], tokenizer: Tokenizer, language: str) -> Facts:
    """Scores of a model's outputs (as it wrote them, before detokenisation) against the sentences of the data.

    The language that they are in chooses how BLEU tells words apart (leadline.scores).
    `bleu` and `chrf` compare detokenised text, so that they mean the same for every tokenizer. Where the data
    is tokenised, `bleu_tokenized` compares the tokens, as papers of the time did.
    """
    from sacrebleu.metrics import BLEU

    config = tokenizer.config
    # References that are files of tokenised text must become sentences again too.
    written = [tokenizer.detokenize(line) for line in outputs]
    expected = [tokenizer.detokenize(line) for line in references] if config.text == "tokenized" else list(references)
    scores = bleu_and_chrf(written, expected, config.lowercase, language)
    same = sum(_same(*pair, config.lowercase) for pair in zip(written, expected, strict=True))
    scores["exact_match"] = same / len(written)
    if config.text != "raw":
        tokens = [clean(line, config, language) for line in references]
        tokenized = BLEU(tokenize="none", force=True)
        scores["bleu_tokenized"] = tokenized.corpus_score(list(outputs), [tokens]).score
        scores["bleu_tokenized_signature"] = str(tokenized.get_signature())
    return scores


def _same(written: str, expected: str, lowercase: bool) -> bool:
    expected = " ".join(unicodedata.normalize("NFC", expected).split())
    return " ".join(written.split()) == (expected.lower() if lowercase else expected)
