"""Scores: sacreBLEU's own, on the text a person would read."""

from __future__ import annotations

import pytest
from sacrebleu.metrics import BLEU, CHRF
from tokenizers import Tokenizer as BPE
from tokenizers import models

from leadline.config import DataConfig
from leadline.data.tokenizer import Tokenizer, clean
from leadline.scores import tokenizer_for
from leadline.tasks.metrics import corpus_scores

REFERENCES = [
    "The cat sat on the mat, didn't it?",
    "Two hundred and forty-three people (or so) came.",
    'She said: "It costs 3.5% more" & left.',
]
OUTPUTS = [
    "The cat sat on a mat, didn't it?",
    "Two hundred and forty people came here.",
    'She said: "It costs 3.5% more" & left.',
]


def tokenizer(**changes) -> Tokenizer:
    return Tokenizer(BPE(models.BPE()), DataConfig(**changes))


def as_written(lines: list[str], **changes) -> list[str]:
    """As a model trained on such data writes them."""
    return [clean(line, DataConfig(**changes), "en") for line in lines]


def tokenised(lines: list[str]) -> list[str]:
    return as_written(lines, text="moses")


KINDS = [{"text": text, "lowercase": low} for text in ("raw", "moses", "tokenized") for low in (False, True)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_perfect_output_has_perfect_scores(kind: dict) -> None:
    references = tokenised(REFERENCES) if kind["text"] == "tokenized" else REFERENCES
    scores = corpus_scores(as_written(references, **kind), references, tokenizer(**kind), "en")
    assert scores["bleu"] == pytest.approx(100)
    assert scores["chrf"] == pytest.approx(100)
    assert scores["exact_match"] == 1
    assert scores.get("bleu_tokenized", 100) == pytest.approx(100)
    assert ("bleu_tokenized" in scores) == (kind["text"] != "raw")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_scores_equal_sacrebleu_on_detokenised_text(kind: dict) -> None:
    references = tokenised(REFERENCES) if kind["text"] == "tokenized" else REFERENCES
    outputs = tokenised(OUTPUTS) if kind["text"] == "tokenized" else OUTPUTS
    scores = corpus_scores(as_written(outputs, **kind), references, tokenizer(**kind), "en")
    assert 10 < scores["bleu"] < 90
    assert scores["bleu"] == BLEU(lowercase=kind["lowercase"]).corpus_score(OUTPUTS, [REFERENCES]).score
    assert scores["chrf"] == CHRF(lowercase=kind["lowercase"]).corpus_score(OUTPUTS, [REFERENCES]).score
    assert scores["exact_match"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("text", ["moses", "tokenized"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_tokenised_bleu_compares_the_tokens(text: str, lowercase: bool) -> None:
    kind = {"text": text, "lowercase": lowercase}
    outputs, references = tokenised(OUTPUTS), tokenised(REFERENCES)
    scores = corpus_scores(
        [line.lower() if lowercase else line for line in outputs],
        references if text == "tokenized" else REFERENCES,
        tokenizer(**kind),
        "en",
    )
    expected = BLEU(tokenize="none", lowercase=lowercase, force=True).corpus_score(outputs, [references]).score
    assert scores["bleu_tokenized"] == pytest.approx(expected)
    assert scores["bleu_tokenized"] != pytest.approx(scores["bleu"])
    assert "tok:none" in scores["bleu_tokenized_signature"]


def test_signatures_are_sacrebleus() -> None:
    scores = corpus_scores(OUTPUTS, REFERENCES, tokenizer(), "en")
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        metric.corpus_score(OUTPUTS, [REFERENCES])
        assert scores[f"{name}_signature"] == str(metric.get_signature())
        assert "version:" in scores[f"{name}_signature"]
    assert "case:mixed" in scores["bleu_signature"]
    lowercase = corpus_scores(as_written(OUTPUTS, lowercase=True), REFERENCES, tokenizer(lowercase=True), "en")
    assert "case:lc" in lowercase["bleu_signature"]


def test_case_counts_unless_the_data_is_lowercase() -> None:
    lowercase = [line.lower() for line in REFERENCES]
    scores = corpus_scores(lowercase, REFERENCES, tokenizer(), "en")
    assert scores["bleu"] < 95
    assert scores["exact_match"] == 0
    scores = corpus_scores(lowercase, REFERENCES, tokenizer(lowercase=True), "en")
    assert scores["bleu"] == pytest.approx(100)
    assert scores["exact_match"] == 1


def test_an_exact_match_disregards_spaces_only() -> None:
    outputs = ["a  b ", "a b.", "c"]
    assert corpus_scores(outputs, [" a b", "a b", "d"], tokenizer(), "en")["exact_match"] == pytest.approx(1 / 3)


def test_the_language_chooses_how_words_are_told_apart() -> None:
    lines, other = ["今天天气很好。"], ["今天天气不好。"]
    scores = corpus_scores(other, lines, tokenizer(), "zh")
    assert "tok:zh" in scores["bleu_signature"]
    assert scores["bleu"] == BLEU(tokenize="zh").corpus_score(other, [lines]).score > 10
    assert "tok:13a" in corpus_scores(other, lines, tokenizer(), "de")["bleu_signature"]


@pytest.mark.parametrize(
    ("language", "name"),
    [("zh_TW", "zh"), ("zho_Hans", "zh"), ("cmn", "zh"), ("th", "char"), ("de", "13a"), ("", "13a")],
)
def test_codes_of_languages(language: str, name: str) -> None:
    assert tokenizer_for(language) == (name, "")
