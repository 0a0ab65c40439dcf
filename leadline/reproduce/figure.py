"""A figure of a paper, as data: the runs it needs, what is read from them, what the paper claims, and the charts.

A run is known by its label ("post_ln, warm-up 500") and its seed; figures that ask for the same config share it.
`making` makes the runs, `reading` has what figures read from them, `showing` the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from leadline import recipes
from leadline.config import Config
from leadline.errors import UserError, nearest
from leadline.files import Facts
from leadline.history import History
from leadline.report.page import Section
from leadline.reproduce.claims import Claim, Numbers


@dataclass(frozen=True)
class Variant:
    """A run to be made, once a seed."""

    config: Config
    watch: int = 0  # every how many updates it is looked into; 0: not
    start: str = ""  # the label of the run whose weights it starts from,
    checkpoint: int = 0  # as they are after so many updates
    seeds: int = 0  # at least so many, whatever is asked for
    once: bool = False  # one seed is enough: no claim depends on it


Variants = dict[str, Variant]  # by label


@dataclass(frozen=True)
class FinishedRun:
    label: str
    seed: int
    result: Facts
    history: History

    def first(self, key: str) -> float:
        """NaN where it was never measured."""
        return self.history.first(key)

    def last(self, key: str) -> float:
        """NaN where it was never measured; a loss that diverged is infinite."""
        return math.inf if key == "valid_nll" and self.result["diverged"] else self.history.last(key)


Runs = Mapping[str, Sequence[FinishedRun]]  # by label, one a seed


def translation(scale: str) -> Config:
    """The IWSLT14 model of section 4.1; tiny: number words in a minute on a core."""
    if scale == "tiny":
        small = {"updates": 120, "batch_tokens": 512, "eval_every": 20, "bleu_sentences": 40, "keep": 1}
        return recipes.numerals().set(data={"size": 8000, "vocab_size": 500}, train=small)
    return recipes.iwslt14_pre_ln().set(
        train={
            "epochs": 12 if scale == "small" else 15,
            "step": "graph",
            "log_every": 50,
            "bleu_sentences": 1000 if scale == "small" else -1,
            "keep": 1,
        }
    )


@dataclass(frozen=True)
class Figure:
    title: str
    paper: str  # where it is
    variants: Callable[[str, Config], Variants]  # of a scale, from its base
    numbers: Callable[[Runs], Numbers]
    charts: Callable[[Runs], list[Section]]
    claims: tuple[Claim, ...]
    seeds: int = 1  # at least, for its claims
    base: Callable[[str], Config] = translation  # what its runs vary, at a scale


@dataclass(frozen=True)
class Chosen:
    """Some of a figure's runs."""

    only: tuple[str, ...] = ()  # labels that begin so
    depths: tuple[int, ...] = ()  # layers of each stack

    def among(self, variants: Variants, name: str) -> Variants:
        """Those chosen, and those they start from."""
        for prefix in self.only:
            if not any(label.startswith(prefix) for label in variants):
                raise UserError(f"{name} has no run that begins with {prefix!r}: {nearest(prefix, variants)}")
        there = sorted({_depth(variant) for variant in variants.values()})
        for depth in self.depths:
            if depth not in there:
                raise UserError(f"{name} has no run of {depth} layers: it has {', '.join(map(str, there))}")
        asked = {
            label: variant
            for label, variant in variants.items()
            if (not self.only or label.startswith(self.only)) and (not self.depths or _depth(variant) in self.depths)
        }
        needed = {variant.start for variant in asked.values()} - {""}
        return {label: variant for label, variant in variants.items() if label in asked or label in needed}


def _depth(variant: Variant) -> int:
    return variant.config.model.encoder_layers or variant.config.model.decoder_layers


ALL = Chosen()
