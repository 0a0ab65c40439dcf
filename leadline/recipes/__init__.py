"""Recipes: functions that return a complete Config. `leadline train NAME` runs one, `--set` changes it."""

from __future__ import annotations

from collections.abc import Callable

from leadline.config import Config
from leadline.errors import UserError, nearest
from leadline.recipes.bert import bert_base_post_ln, bert_base_pre_ln, bert_small_post_ln, bert_small_pre_ln
from leadline.recipes.glue import mrpc, rte, same_meaning
from leadline.recipes.iwslt14 import iwslt14_deepnorm, iwslt14_post_ln, iwslt14_pre_ln, iwslt14_pre_ln_tuned
from leadline.recipes.lm import gpt2_124m, llama_124m, lm_small_post_ln, lm_small_pre_ln
from leadline.recipes.many import many_small, opus100_deepnorm, opus100_pre_ln
from leadline.recipes.numerals import numerals
from leadline.recipes.small import small_pre_ln
from leadline.recipes.wmt14 import wmt14_post_ln, wmt14_pre_ln

RECIPES: dict[str, Callable[[], Config]] = {
    recipe.__name__: recipe
    for recipe in (
        numerals,
        small_pre_ln,
        iwslt14_pre_ln,
        iwslt14_pre_ln_tuned,
        iwslt14_post_ln,
        iwslt14_deepnorm,
        wmt14_pre_ln,
        wmt14_post_ln,
        many_small,
        opus100_pre_ln,
        opus100_deepnorm,
        bert_base_pre_ln,
        bert_base_post_ln,
        bert_small_pre_ln,
        bert_small_post_ln,
        gpt2_124m,
        llama_124m,
        lm_small_pre_ln,
        lm_small_post_ln,
        mrpc,
        rte,
        same_meaning,
    )
}


def find(name: str) -> Config:
    if name not in RECIPES:
        raise UserError(f"there is no recipe {name!r}, nor a file or folder of that name: {nearest(name, RECIPES)}")
    return RECIPES[name]()


__all__ = [
    "RECIPES",
    "bert_base_post_ln",
    "bert_base_pre_ln",
    "bert_small_post_ln",
    "bert_small_pre_ln",
    "find",
    "gpt2_124m",
    "iwslt14_deepnorm",
    "iwslt14_post_ln",
    "iwslt14_pre_ln",
    "iwslt14_pre_ln_tuned",
    "llama_124m",
    "lm_small_post_ln",
    "lm_small_pre_ln",
    "many_small",
    "mrpc",
    "numerals",
    "opus100_deepnorm",
    "opus100_pre_ln",
    "rte",
    "same_meaning",
    "small_pre_ln",
    "wmt14_post_ln",
    "wmt14_pre_ln",
]
