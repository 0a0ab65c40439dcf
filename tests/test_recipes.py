"""Recipes and figures mean the same by the name of a placement: where its weights start is the placement's own."""

from __future__ import annotations

import pytest

from leadline import recipes
from leadline.reproduce import FIGURES, SCALES, bert
from leadline.training import optim


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_recipes_leave_the_start_to_the_placement(name: str) -> None:
    assert recipes.find(name).model.init == "auto"


@pytest.mark.parametrize("name", [name for name in FIGURES if name.startswith("xiong")])
def test_so_do_the_figures_of_the_first_paper(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert, "TASKS", dict.fromkeys(SCALES, ()))  # their data would have to be prepared
    figure = FIGURES[name]
    for scale in ("tiny", "small"):
        variants = figure.variants(scale, figure.base(scale))
        assert {variant.config.model.init for variant in variants.values()} == {"auto"}


def test_the_recipe_of_xiong_s_first_footnote() -> None:
    """35.5 test BLEU: 7.5e-4 up to update 8,000, then 1/sqrt; dropout 0.3 and 0.1; 8,192 tokens a batch."""
    usual, tuned = recipes.iwslt14_pre_ln(), recipes.iwslt14_pre_ln_tuned()
    rate = optim.schedule(tuned.optim, total=40_000, updates_per_epoch=480)
    assert [rate(update) for update in (1, 8000, 32_000)] == pytest.approx([7.5e-4, 7.5e-4, 3.75e-4])
    assert (tuned.model.dropout, tuned.model.attention_dropout) == (0.3, 0.1)
    assert tuned.train.batch_tokens * tuned.train.accumulate == 8192
    assert tuned.set(model={"dropout": 0.1, "attention_dropout": 0.0}).model == usual.model
    assert (tuned.data, tuned.decode) == (usual.data, usual.decode)
