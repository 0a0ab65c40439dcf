"""What recipes and figures start with: the docs say which of their results come from which start."""

from __future__ import annotations

import pytest

from leadline import recipes
from leadline.reproduce import FIGURES


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_only_post_ln_for_translation_starts_packed(name: str) -> None:
    packed = recipes.find(name).model.attention_init == "packed"
    assert packed == (name in ("iwslt14_post_ln", "wmt14_post_ln"))


@pytest.mark.parametrize("name", FIGURES)
def test_figures_start_as_the_equations_say(name: str) -> None:
    figure = FIGURES[name]
    variants = figure.variants("small", figure.base("small"))
    assert {variant.config.model.attention_init for variant in variants.values()} == {"xavier"}
