"""Every figure: its claims name numbers it computes, its runs are shared, and it ends in a page beside the paper."""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path

import pytest

from leadline.reproduce import BASE, FIGURES, SCALES, deepnet, xiong
from leadline.reproduce.figure import Run, by_depth, curves, differences, reproduce, slope
from leadline.reproduce.jobs import Job


def run(label: str, losses: list[float], seed: int = 1, diverged: str = "", **rows: float) -> Run:
    found = [{"update": 10 * (i + 1), "valid_nll": loss, "valid_bleu": 1.0} for i, loss in enumerate(losses)]
    return Run(label, seed, {"diverged": diverged, "updates": 10, "seconds": 1.0}, [*found, {"update": 1, **rows}])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_runs_at_every_scale_and_all_differ(name: str, scale: str) -> None:
    variants = FIGURES[name].variants(scale, BASE(scale))
    keys = {Job(label, config, "data", watch).key for label, (config, watch) in variants.items()}
    assert len(keys) == len(variants) > 1


@pytest.mark.parametrize("name", FIGURES)
def test_without_runs_nothing_is_tested_and_nothing_fails(name: str) -> None:
    figure = FIGURES[name]
    assert all(not values for values in figure.numbers({}).values())
    assert figure.charts({}) is not None


def test_figures_share_the_runs_they_have_in_common() -> None:
    def keys(figure: object) -> set[str]:
        found = figure.variants("small", BASE("small"))  # type: ignore[attr-defined]
        return {Job("", config, "data", watch).key for config, watch in found.values()}

    assert len(keys(xiong.FIG4) & keys(xiong.FIG6)) == 1  # Pre-LN without warm-up
    assert len(keys(xiong.FIG4) & keys(xiong.FIG2)) == 1  # Post-LN with the long warm-up


def test_figure_2_reads_the_gap_that_warmup_closes() -> None:
    labels = {"adam, higher rate, no warm-up": [7.0, 7.5], "adam, higher rate, long warm-up": [5.0, 3.5]}
    numbers = xiong.FIG2.numbers({label: [run(label, losses)] for label, losses in labels.items()})
    assert numbers["none - long, higher"] == [4.0]
    assert numbers["none - long, lower"] == []
    broken = {"adam, higher rate, no warm-up": [run("", [7.0], diverged="nan")]}
    fine = {"adam, higher rate, long warm-up": [run("", [3.0])]}
    assert xiong.FIG2.numbers(broken | fine)["none - long, higher"] == [math.inf]


def test_figure_4_reads_how_much_sooner() -> None:
    pre = [run("", [5.0, 3.0, 2.5, 2.0])]
    post = [run("", [6.0, 5.0, 4.0, 3.0])]
    numbers = xiong.FIG4.numbers({"pre_ln, adam, no warm-up": pre, "post_ln, adam, warm-up": post})
    assert numbers["pre - post"] == [-1.0]
    assert numbers["share"] == [0.5]  # after 20 of 40 updates


def test_figure_3_reads_gradients_by_layer_and_by_depth() -> None:
    def gradients(*values: float) -> dict[str, float]:
        return {f"{xiong.MATRIX}{layer}": value for layer, value in enumerate(values, 1)}

    deep = {depth: gradients(*[1.0] * (depth - 1), 4.0 / depth) for depth in (2, 8)}
    runs = {f"pre_ln {depth}-{depth}": [run("", [5.0], **rows)] for depth, rows in deep.items()}
    numbers = xiong.FIG3.numbers(runs)
    assert numbers["pre_ln slope"] == [pytest.approx(-1)]
    assert numbers["pre_ln last/first"] == [2.0]
    assert "post_ln slope" not in numbers
    assert len(xiong.FIG3.charts(runs)) == 2


def test_slope_and_depths() -> None:
    assert slope([1, 2, 4, 8], [3.0, 6.0, 12.0, 24.0]) == pytest.approx(1)
    runs = {"post_ln 12-12": [run("b", [])], "post_ln 6-6": [run("a", [])], "post_ln_init 6-6": [run("c", [])]}
    assert list(by_depth(runs, "post_ln")) == [6, 12]
    assert differences([1.0, math.inf, math.inf], [0.5, 1.0, math.inf]) == [0.5, math.inf]


def test_a_curve_of_several_seeds_has_a_band() -> None:
    (series,) = curves({"a": [run("a", [3.0, 2.0]), run("a", [5.0, 4.0], seed=2)]}, "valid_nll")
    assert list(series.x) == [10, 20]
    assert list(series.y) == [4.0, 3.0]
    assert (list(series.low), list(series.high)) == ([3.0, 2.0], [5.0, 4.0])


@pytest.mark.slow
def test_a_figure_ends_in_a_page_with_its_claims(tmp_path: Path) -> None:
    """The cheapest: one update of one tiny model."""
    base = BASE("tiny").set(data={"size": 300, "vocab_size": 150}, train={"batch_tokens": 128})
    figure = deepnet.FIG5
    variants = dict(list(figure.variants("tiny", base).items())[:1])
    small = type(figure)(**{**vars(figure), "variants": lambda scale, base: variants})
    judged = reproduce("deepnet-fig5", small, "tiny", base, "data", 1, 2, tmp_path)
    assert [j.verdict for j in judged] == ["not tested at this scale"] * 2  # DeepNorm was left out
    facts = json.loads((tmp_path / "deepnet-fig5.json").read_text())
    assert [claim["claim"] for claim in facts["claims"]] == [claim.text for claim in figure.claims]
    html = (tmp_path / "deepnet-fig5.html").read_text()
    assert escape(figure.title) in html
    assert escape(figure.claims[0].text) in html
    assert "post_ln 2-2" in html
    assert list((tmp_path / "deepnet-fig5").glob("*.png"))
