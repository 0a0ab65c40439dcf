"""Recipes and figures mean the same by the name of a placement: where its weights start is the placement's own."""

from __future__ import annotations

import pytest

from leadline import recipes
from leadline.reproduce import FIGURES, SCALES, bert


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
