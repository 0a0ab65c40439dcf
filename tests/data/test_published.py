"""Published line counts: which data is meant to be a published corpus, and what is said of its size."""

from __future__ import annotations

from typing import Any

import pytest

from leadline import recipes
from leadline.config import DataConfig
from leadline.data.published import IWSLT14, MRPC, RTE, WMT14, Corpus, compared, corpus_of
from leadline.data.store import Store, prepare

TOKENIZED: dict[str, Any] = {"text": "tokenized", "vocab_size": 10000}
MEANT: list[tuple[DataConfig, Corpus]] = [
    (DataConfig(source="text:some/folder", **TOKENIZED), IWSLT14),
    (DataConfig(source="text:x/iwslt14.tokenized.de-en", vocab_size=8000), IWSLT14),
    (DataConfig(source="text:x/iwslt14.tokenized.de-en", source_lang="en", target_lang="de"), IWSLT14),
    (DataConfig(source="text:wmt14_en_de", source_lang="en", target_lang="de"), WMT14),
    (DataConfig(source="text:wmt14_en_de", **TOKENIZED), WMT14),
    (DataConfig(source="table:glue_data/MRPC"), MRPC),
    (DataConfig(source="table:glue_data/RTE/"), RTE),
]
OWN = [
    DataConfig(source="text:my/folder", vocab_size=10000),  # as in the README: an IWSLT14 recipe, raw text
    DataConfig(source="text:my/folder", text="tokenized", vocab_size=8000),
    DataConfig(source="text:my/folder", source_lang="en", target_lang="de", **TOKENIZED),
    DataConfig(source="text:my/folder", source_lang="fr", **TOKENIZED),
    DataConfig(source="text:iwslt14.tokenized.es-en", source_lang="es", **TOKENIZED),
    DataConfig(source="text:my/folder", source_lang="en", target_lang="de", vocab_size=37000),
    DataConfig(source="hf:wmt14", **TOKENIZED),
    DataConfig(source="builtin:numerals", **TOKENIZED),
    DataConfig(source="documents:wmt14"),
    DataConfig(source="table:my/reviews.tsv"),
    DataConfig(source="table:my/rte-of-my-own"),
]


@pytest.mark.parametrize(("data", "corpus"), MEANT)
def test_the_folder_or_the_options_say_what_is_meant(data: DataConfig, corpus: Corpus) -> None:
    assert corpus_of(data) == corpus


@pytest.mark.parametrize("data", OWN)
def test_nothing_is_said_of_people_s_own_text(data: DataConfig) -> None:
    assert compared(data, counts(train=5, valid=5, test=5)) == []


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_every_recipe_for_a_published_corpus_is_known(name: str) -> None:
    corpora = {"iwslt14": IWSLT14, "wmt14": WMT14, "mrpc": MRPC, "rte": RTE}
    data = recipes.find(name).data
    assert corpus_of(data) == corpora.get(name.split("_")[0])
    if name.startswith("iwslt14"):
        tokenised = {"source": "text:elsewhere", "text": "tokenized"}  # as such text makes it
        assert data.text == "auto"
        assert corpus_of(recipes.find(name).set(data=tokenised).data) == IWSLT14


def counts(**lines: int) -> dict[str, Any]:
    """As in a manifest; one line of each split was left out as empty, and still is a line."""
    return {split: {"rows": count - 1, "empty_left_out": 1} for split, count in lines.items()}


def test_fewer_lines_are_said_with_what_follows() -> None:
    (said,) = compared(MEANT[0][0], counts(train=75658, valid=7283, test=6750))
    assert said == (
        "train has 75,658 pairs; fairseq's IWSLT14 has 160,239: BLEU is not comparable with published figures"
    )


def test_of_another_test_set_only_its_figures_are_not_comparable() -> None:
    (said,) = compared(MEANT[0][0], counts(train=160239, valid=7283, test=1000))
    assert said.endswith("IWSLT14 has 6,750: BLEU on test is not comparable with published figures")


@pytest.mark.parametrize("lines", [{"train": 160239, "valid": 7283, "test": 6750}, {"train": 160239, "valid": 7283}])
def test_equal_counts_are_said_to_be_the_published_ones(lines: dict[str, int]) -> None:
    (said,) = compared(MEANT[0][0], counts(**lines))
    assert said.startswith("the line counts are those published for fairseq's IWSLT14: train 160,239, valid 7,283")
    assert ("test 6,750" in said) == ("test" in lines)


@pytest.mark.parametrize(("test", "published"), [(3003, True), (2737, True), (3004, False)])
def test_both_versions_of_newstest2014_are_published_and_any_training_text(test: int, published: bool) -> None:
    (said,) = compared(MEANT[3][0], counts(train=4_468_840, valid=3000, test=test))
    assert said.startswith("the line counts are those published") == published
    assert ("test has 3,004 pairs; WMT14" in said and "has 3,003 or 2,737: BLEU on test" in said) != published


def test_prepared_data_still_knows_what_it_is(corpus, tmp_path) -> None:
    folder = prepare(corpus(folder="iwslt14", vocab_size=80), tmp_path / "tokens")
    store = Store(prepare(DataConfig(source=f"prepared:{folder}")))
    (said,) = store.notes
    assert said.startswith("train has 50 pairs and valid has 5 pairs and test has 5 pairs; fairseq's IWSLT14 has")
    assert Store(prepare(corpus(folder="mine"), tmp_path / "own")).notes == []
