"""Every figure: its claims name numbers it computes, its runs are shared, and it ends in a page beside the paper."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest

from leadline.config import Config
from leadline.errors import UserError
from leadline.history import History
from leadline.jobs.engine import Execute
from leadline.jobs.job import Job, finished
from leadline.provenance import NUMERICS
from leadline.report.heat import Heat
from leadline.report.page import Chart, Table
from leadline.reproduce import FIGURES, SCALES, bert, deepnet, depths, gradients, lm, sensitivity, xiong
from leadline.reproduce.figure import Chosen, Figure, FinishedRun, Variant
from leadline.reproduce.making import plan, reproduce
from leadline.reproduce.reading import by_depth, curves, gaps, shares, slope
from leadline.reproduce.showing import overview
from leadline.training.events import Event


def run(
    label: str, losses: list[float], seed: int = 1, diverged: str = "", per_epoch: int = 1, **rows: float
) -> FinishedRun:
    found = [
        {"update": 10 * (i + 1), "epoch": i // per_epoch + 1, "valid_nll": loss, "valid_bleu": 1.0}
        for i, loss in enumerate(losses)
    ]
    return FinishedRun(
        label, seed, {"diverged": diverged, "updates": 10, "seconds": 1.0}, History([*found, {"update": 1, **rows}])
    )


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_runs_at_every_scale_and_all_differ(
    name: str, scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = FIGURES[name]
    monkeypatch.setattr(bert, "TASKS", dict.fromkeys(SCALES, ()))  # their data would have to be prepared
    variants = figure.variants(scale, figure.base(scale))
    keys = {Job(label, v.config, "data", v.watch, f"{v.start} {v.checkpoint}").key for label, v in variants.items()}
    assert len(keys) == len(variants) > 1


@pytest.mark.parametrize("name", FIGURES)
def test_without_runs_nothing_is_tested_and_nothing_fails(name: str) -> None:
    figure = FIGURES[name]
    assert all(not values for values in figure.numbers({}).values())
    assert figure.charts({}) is not None


@pytest.mark.parametrize("name", FIGURES)
def test_runs_that_diverged_before_anything_was_measured_fail_no_figure(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = FIGURES[name]
    monkeypatch.setattr(bert, "TASKS", dict.fromkeys(SCALES, ()))  # their data would have to be prepared
    labels = figure.variants("tiny", figure.base("tiny"))
    runs = {label: [run(label, [], seed, diverged="the loss is nan") for seed in (1, 2)] for label in labels}
    found = [value for values in figure.numbers(runs).values() for value in values]
    # sensitivity: all bear the same, nothing; deepnet-1000: what diverged has a BLEU of 0
    assert name.endswith("sensitivity") or not any(value for value in found if math.isfinite(value))
    assert figure.charts(runs) is not None


@pytest.mark.parametrize("name", FIGURES)
def test_every_claim_is_about_a_number_of_its_own_that_the_figure_makes(name: str) -> None:
    numbers = [claim.number for claim in FIGURES[name].claims]
    assert len(set(numbers)) == len(numbers)  # by which results are found again
    assert set(numbers) <= FIGURES[name].numbers({}).keys()


def test_figures_share_the_runs_they_have_in_common() -> None:
    def keys(figure: Figure) -> set[str]:
        found = figure.variants("small", figure.base("small"))
        return {Job("", variant.config, "data", variant.watch).key for variant in found.values()}

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
    both = {"adam, higher rate, no warm-up": [run("", [7.0])], "sgd, higher rate, no warm-up": [run("", [8.0])]}
    charts = xiong.FIG2.charts(both)  # loss and BLEU of Adam, then of SGD
    assert [[s.name for s in chart.series] for chart in charts if isinstance(chart, Chart)] == [
        [label] for label in both for _ in range(2)
    ]


def test_figure_4_reads_how_much_sooner() -> None:
    pre = [run("", [5.0, 3.0, 2.5, 2.0])]
    post = [run("", [6.0, 5.0, 4.0, 3.0])]
    numbers = xiong.FIG4.numbers({"pre_ln, adam, no warm-up": pre, "post_ln, adam, warm-up": post})
    assert numbers["pre - post"] == [-1.0]
    assert numbers["share"] == [0.5]  # after 20 of 40 updates


def test_figure_4_of_wmt_compares_at_the_same_rate() -> None:
    runs = {
        "pre_ln, lower rate, no warm-up": [run("", [4.0, 3.0])],
        "post_ln, lower rate, warm-up": [run("", [5.0, 3.5])],
        "pre_ln, higher rate, no warm-up": [run("", [4.0, 2.0])],
        "post_ln, higher rate, warm-up": [run("", [5.0, 4.0])],
    }
    assert xiong.FIG4_WMT.numbers(runs) == {"pre - post": [-0.5, -2.0], "share": [1.0, 0.5]}


def test_figure_3_reads_gradients_by_layer_and_by_depth() -> None:
    def grown(*values: float) -> dict[str, float]:
        return {f"{gradients.MATRIX}{layer}": value for layer, value in enumerate(values, 1)}

    deep = {depth: grown(*[1.0] * (depth - 1), 4.0 / depth) for depth in (2, 8)}
    runs = {f"pre_ln {depth}-{depth}": [run("", [5.0], **rows)] for depth, rows in deep.items()}
    numbers = gradients.FIG3.numbers(runs)
    assert numbers["pre_ln slope"] == [pytest.approx(-1)]
    assert numbers["pre_ln last/first"] == [2.0]
    assert numbers["post_ln slope"] == []
    by_layer, by_depth = gradients.FIG3.charts(runs)
    assert isinstance(by_depth, Chart)
    theory = by_depth.series[1]
    assert list(theory.y) == [2.0, 1.0]  # falls as 1/√depth from the first point
    assert isinstance(by_layer, Chart)
    assert len(by_layer.series) == 1


def test_figure_3_reads_what_warmup_does_to_the_last_gradient() -> None:
    rows = [{"update": 1, f"{gradients.MATRIX}1": 1.0, f"{gradients.MATRIX}2": 4.0}, {"update": 2, "loss": 5.0},
            {"update": 9, f"{gradients.MATRIX}1": 1.0, f"{gradients.MATRIX}2": 2.0}]  # fmt: skip
    warm = FinishedRun(gradients.AFTER, 1, {"diverged": "", "updates": 9, "seconds": 1.0}, History(rows))
    assert gradients.FIG3.numbers({gradients.AFTER: [warm]})["after/before"] == [0.5]


def test_deepnet_figure_3_reads_larger_gradients_and_a_lower_loss() -> None:
    def with_last(value: float) -> list[FinishedRun]:
        return [run("", [], **{f"{gradients.MATRIX}1": 1.0, f"{gradients.MATRIX}2": value})]

    runs = {"post_ln 2-2": with_last(2.0), "post_ln_init 2-2": with_last(6.0), "post_ln 4-4": with_last(1.0),
            "trained: post_ln": [run("", [7.0])], "trained: post_ln_init": [run("", [3.0])]}  # fmt: skip
    numbers = deepnet.FIG3.numbers(runs)
    assert numbers == {"init/post": [3.0], "post - init": [4.0]}


def test_deepnet_figure_5_reads_growth_with_depth_for_each_optimizer() -> None:
    changes = {"post_ln/adam": (1.0, 4.0), "deepnorm/adam": (0.5, 1.0), "post_ln/sgd": (1.0, 2.0),
               "deepnorm/sgd": (0.1, 0.1)}  # fmt: skip
    runs = {
        f"{kind} {depth}-{depth}": [run("", [], **{"watch/change": value})]
        for kind, values in changes.items()
        for depth, value in zip((2, 4), values, strict=True)
    }
    numbers = deepnet.FIG5.numbers(runs)
    assert {key: values[0] for key, values in numbers.items()} == pytest.approx(
        {"post_ln/adam slope": 2, "deepnorm/adam slope": 1, "post_ln/sgd slope": 1, "deepnorm/sgd slope": 0,
         "post_ln - deepnorm": 1, "post_ln/deepnorm": 4}
    )  # fmt: skip
    adam, sgd = deepnet.FIG5.charts(runs)
    assert isinstance(adam, Chart)
    assert isinstance(sgd, Chart)
    assert [list(series.y) for series in adam.series] == [[1.0, 4.0], [0.5, 1.0]]
    assert [list(series.y) for series in sgd.series] == [[1.0, 2.0], [0.1, 0.1]]


def scored(label: str, bleu: float, loss: float = 2.0, seed: int = 1, diverged: str = "") -> FinishedRun:
    result = {"diverged": diverged, "updates": 10, "seconds": 1.0}
    return FinishedRun(label, seed, result, History([{"update": 10, "valid_nll": loss, "valid_bleu": bleu}]))


def test_deepnet_figure_6_sets_bleu_by_depth_beside_the_papers() -> None:
    runs = {
        "deepnorm 10-10": [scored("", 20.0), scored("", 22.0, 3.0, seed=2)],
        "deepnorm 50-50": [scored("", 24.0)],
        "pre_ln 10-10": [scored("", 19.0)],
        "post_ln 50-50": [scored("", 0.5, 7.0)],
        "post_ln 10-10": [scored("", 3.0, diverged="the loss is nan")],
        "deepnorm/fairseq_2020 10-10": [scored("", 18.0)],
    }
    numbers = depths.FIG6.numbers(runs)
    assert numbers["deepnorm middle - shallow"] == [4.0]
    assert numbers["deepnorm - pre_ln, shallow"] == [1.0]
    assert numbers["post_ln, middle"] == [0.5]
    assert numbers["lowest of the others, middle"] == []
    table, chart = depths.FIG6.charts(runs)
    assert isinstance(table, Table)
    assert isinstance(chart, Chart)
    assert table.columns == ["placement", "10-10", "50-50", "paper 10-10", "paper 50-50"]
    assert table.rows == [
        ["deepnorm", "21.0 (2.50, 2 seeds)", "24.0 (2.00)", 29.8, 31.2],
        ["pre_ln", "19.0 (2.00)", "–", 29.6, 26.6],
        ["post_ln", "diverged", "not learnt (7.00)", 4, 0],
        ["deepnorm/fairseq_2020", "18.0 (2.00)", "–", "", ""],
    ]


def test_language_models_are_not_compared_with_a_post_ln_that_has_not_learnt() -> None:
    runs = {lm.PRE: [run("", [6.7, 4.8])], lm.POST: [run("", [7.5, 7.5])], lm.DEEP: [run("", [7.0, 4.5])]}
    stuck, learnt = ({**runs, lm.POST_WARM: [run("", losses)]} for losses in ([7.5, 7.4], [7.5, 5.0]))
    assert lm.WARMUP.numbers(stuck)["pre bare - post warm"] == []
    assert lm.WARMUP.numbers(stuck)["deepnorm - post warm"] == []
    assert lm.WARMUP.numbers(stuck)["post bare - post warm"] == pytest.approx([0.1])
    assert lm.WARMUP.numbers(learnt)["pre bare - post warm"] == pytest.approx([-0.2])
    assert lm.WARMUP.numbers(learnt)["deepnorm - post warm"] == pytest.approx([-0.5])


def test_figures_of_the_second_paper_start_as_it_did() -> None:
    """Baselines as fairseq of 2020, placements with constants of their own from Xavier."""
    for figure in (deepnet.FIG3, deepnet.FIG4, deepnet.FIG5, depths.FIG6, depths.FIG7, depths.THOUSAND):
        for label, variant in figure.variants("small", figure.base("small")).items():
            on_xavier = variant.config.model.placement in ("deepnorm", "ds_init", "t_fixup", "r_fixup")
            wanted = "auto" if on_xavier and not label.startswith(depths.OTHER_BASE) else "fairseq_2020"
            assert variant.config.model.init == wanted, label


def test_some_of_a_figure_s_runs_can_be_chosen() -> None:
    variants = depths.FIG6.variants("small", depths.FIG6.base("small"))
    assert list(Chosen(("rezero", "dlcl"), (50,)).among(variants, "x")) == ["rezero 50-50", "dlcl 50-50"]
    assert Chosen().among(variants, "x") == variants
    with pytest.raises(UserError, match="x has no run that begins with 'rezer0'"):
        Chosen(("rezer0",)).among(variants, "x")
    with pytest.raises(UserError, match="x has no run of 7 layers: it has 10, 30, 50, 100"):
        Chosen((), (7,)).among(variants, "x")
    config = depths.FIG6.base("tiny")
    family = {"parent": Variant(config), "other": Variant(config), "child": Variant(config, start="parent")}
    assert list(Chosen(("child",)).among(family, "x")) == ["parent", "child"]


def test_the_largest_stable_rate_is_one_as_good_as_the_best() -> None:
    losses = {"a": {0.1: 9.0, 0.2: 2.0, 0.4: 2.2, 0.8: 2.5}, "b": {0.1: math.inf, 0.2: math.inf}, "c": {0.1: 8.9}}
    assert sensitivity.largest(losses) == {"a": 0.4, "b": 0.025, "c": 0.025}  # c has learnt nothing
    labels = {"post_ln, no warm-up, 0.1": 9.0, "post_ln, warm-up, 0.1": 4.0, "post_ln, no warm-up, 0.4": 10.0,
              "post_ln, warm-up, 0.4": 2.0, "pre_ln, no warm-up, 0.1": 3.0, "pre_ln, no warm-up, 0.4": 3.0}  # fmt: skip
    runs = {label: [run(label, [loss])] for label, loss in labels.items()}
    assert sensitivity.FIGURE.numbers(runs) == {"pre/post": [4.0], "with/without": [4.0]}
    (heat,) = sensitivity.FIGURE.charts(runs)
    assert isinstance(heat, Heat)
    assert heat.columns == ["0.1", "0.4"]
    assert heat.values == [[9.0, 10.0], [4.0, 2.0], [3.0, 3.0]]
    assert "post_ln, warm-up 0.4" in heat.caption


def test_slope_and_depths() -> None:
    assert slope([1, 2, 4, 8], [3.0, 6.0, 12.0, 24.0]) == pytest.approx(1)
    runs = {"post_ln 12-12": [run("b", [])], "post_ln 6-6": [run("a", [])], "post_ln_init 6-6": [run("c", [])]}
    assert list(by_depth(runs, "post_ln")) == [6, 12]


def test_runs_are_compared_seed_by_seed() -> None:
    """Also where some are missing, as in a command that was stopped."""
    runs = {"a": [run("a", [3.0]), run("a", [7.0], seed=3)], "b": [run("b", [1.0], seed=2), run("b", [2.0], seed=3)]}
    assert gaps(runs, "a", "b") == [5.0]
    assert shares(runs, "b", "a") == [1.0]
    assert gaps(runs, "a", "c") == []
    runs = {f"{kind} {depth}-{depth}": [run("", [], seed=seed, **{"watch/change": float(depth**seed)})
                                       for seed in (1, 2, 3) if (kind, depth, seed) != ("post_ln/adam", 2, 1)]
            for kind in deepnet.FIG5_KINDS for depth in (2, 4)}  # fmt: skip
    numbers = deepnet.FIG5.numbers(runs)
    assert numbers["post_ln/adam slope"] == pytest.approx([2.0, 3.0])
    assert numbers["post_ln - deepnorm"] == pytest.approx([0.0, 0.0])


def test_a_curve_of_several_seeds_has_a_band() -> None:
    (series,) = curves({"a": [run("a", [3.0, 2.0]), run("a", [5.0, 4.0], seed=2)]}, "valid_nll")
    assert list(series.x) == [10, 20]
    assert list(series.y) == [4.0, 3.0]
    assert (list(series.low), list(series.high)) == ([3.0, 2.0], [5.0, 4.0])


@pytest.mark.parametrize(("per_epoch", "axis", "xs"), [(1, "epoch", [1, 2, 3]), (2, "update", [10, 20, 30])])
def test_losses_are_drawn_by_epoch_where_each_evaluation_ends_one(per_epoch: int, axis: str, xs: list[int]) -> None:
    charts = xiong.losses_and_bleu({"a": [run("a", [3.0, 2.0, 1.0], per_epoch=per_epoch)]})
    assert [(chart.x_label, list(chart.series[0].x)) for chart in charts if isinstance(chart, Chart)] == [
        (axis, xs)
    ] * 2


def test_a_figure_ends_in_a_page_with_its_claims(in_process: Execute, tmp_path: Path) -> None:
    """The cheapest: one update of one tiny model."""
    figure = deepnet.FIG5
    base = figure.base("tiny").set(data={"size": 300, "vocab_size": 150}, train={"batch_tokens": 128})
    variants = dict(list(figure.variants("tiny", base).items())[:1])
    small = type(figure)(**{**vars(figure), "variants": lambda scale, base: variants})
    old = tmp_path / "deepnet-fig5" / "02-a-chart-it-had-before.png"
    old.parent.mkdir()
    old.touch()
    judged = reproduce("deepnet-fig5", small, "tiny", base, 1, 2, tmp_path, execute=in_process)
    assert [j.verdict for j in judged] == ["not measured"] * 4  # all but one run were left out
    facts = json.loads((tmp_path / "deepnet-fig5.json").read_text())
    assert [claim["claim"] for claim in facts["claims"]] == [claim.text for claim in figure.claims]
    html = (tmp_path / "deepnet-fig5.html").read_text()
    assert escape(figure.title) in html
    assert escape(figure.claims[0].text) in html
    assert "post_ln/adam 2-2" in html
    assert len(list(old.parent.glob("*.png"))) == 1
    assert not old.exists()
    (told,) = facts["runs"]
    assert (told["label"], told["seed"], told["init"]) == ("post_ln/adam 2-2", 1, "fairseq_2020")
    assert facts["numerics"] == NUMERICS
    # From what it has kept of its runs it is made again, elsewhere and without training anything.
    other = tmp_path / "elsewhere"
    (other / "deepnet-fig5").mkdir(parents=True)
    (other / "deepnet-fig5" / "runs.jsonl").write_bytes((old.parent / "runs.jsonl").read_bytes())
    again = reproduce("deepnet-fig5", small, "tiny", base, 1, 2, other, execute=in_process)
    assert again == judged
    assert not (other / "runs").exists()
    assert json.loads((other / "deepnet-fig5.json").read_text())["runs"] == facts["runs"]
    (other / "deepnet-fig5" / "runs.jsonl").write_text("{")
    with pytest.raises(UserError, match=r"runs.jsonl cannot be read: .*; remove it to train its runs again"):
        reproduce("deepnet-fig5", small, "tiny", base, 1, 2, other, execute=in_process)
    everything = overview(tmp_path, FIGURES).read_text()
    assert escape(figure.title) in everything
    assert "4 claims of 1 figures: 4 not measured" in everything


def test_runs_that_start_from_others_come_after_them_and_nothing_is_done_twice(
    in_process: Execute, masked: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BERT of one layer, and a classifier from the weights it had half-way."""
    figure = bert.FIG5
    base = replace(figure.base("tiny"), model=masked.model, data=masked.data)
    base = base.set(train={"updates": 4, "batch_tokens": 128, "eval_every": 2})
    monkeypatch.setattr(bert, "GENERATED", 150)
    variants = figure.variants("tiny", base)
    half = f"same_meaning after 2 of {bert.PRE}"
    chosen = {label: variants[label] for label in (half, bert.PRE)}
    small = replace(figure, variants=lambda scale, base: chosen)
    begun: list[str] = []

    def heard(name: str, event: Event) -> None:
        if event.kind == "start":
            begun.append(name)

    reproduce("xiong-fig5", small, "tiny", base, 1, 2, tmp_path, heard, execute=in_process)
    assert begun[0] == f"{bert.PRE}, seed 1"
    assert sorted(begun[1:]) == [f"{half}, seed 1", f"{half}, seed 2"]  # two seeds, whatever is asked for
    planned = plan(chosen, 1, tmp_path / "runs")
    result = finished(planned[half, 1], tmp_path / "runs")
    assert result is not None
    assert 0 <= result["valid_accuracy"] <= 1
    assert planned[half, 1].config.train.start_checkpoint == "00000002"
    assert not list((tmp_path / "runs").glob("*/checkpoints"))

    reproduce("xiong-fig5", small, "tiny", base, 1, 2, tmp_path, heard, execute=in_process)
    assert len(begun) == 3


def test_a_run_starts_from_the_same_seed_or_the_first() -> None:
    config = xiong.FIG2.base("tiny").set(data={"size": 300, "vocab_size": 150})
    child = Variant(config, start="parent", checkpoint=20, seeds=3)
    variants = {"child": child, "parent": Variant(config), "other": Variant(config)}
    planned = plan(variants, 2, Path("runs"))
    parents = [("parent", 1), ("other", 1), ("parent", 2), ("other", 2)]
    assert list(planned) == [*parents, ("child", 1), ("child", 2), ("child", 3)]
    starts = [Path(planned["child", seed].config.train.start).name for seed in (1, 2, 3)]
    parents = [planned["parent", seed].folder(Path()).name for seed in (1, 2, 1)]
    assert starts == parents
    assert planned["child", 1].key != planned["child", 3].key


def many(label: str, seed: int, bleu: float, to_en: float, from_en: float) -> FinishedRun:
    row = {"update": 10, "valid_nll": 2.0, "valid_bleu": bleu, "valid_off_target": 0.01}
    row |= {"valid_bleu_to_en": to_en, "valid_bleu_from_en": from_en}
    return FinishedRun(label, seed, {"diverged": "", "updates": 10, "seconds": 1.0}, History([row]))


def test_the_multilingual_figure_reads_gains_and_the_bend_of_the_log_law() -> None:
    scores = {6: (20.0, 24.0, 16.0), 12: (22.0, 25.5, 18.5), 50: (23.0, 26.0, 20.0)}
    runs = {f"deepnorm {d}-{d}": [many(f"deepnorm {d}-{d}", 1, *values)] for d, values in scores.items()}
    runs["pre_ln 6-6"] = [many("pre_ln 6-6", 1, 19.5, 23.0, 16.0)]
    figure = FIGURES["deepnet-multilingual"]
    numbers = figure.numbers(runs)
    assert numbers["gain"] == [3.0]
    assert numbers["gain, X→en"] == [2.0]
    assert numbers["gain, en→X"] == [4.0]
    assert numbers["en→X - X→en"] == [2.0]
    assert numbers["bend"] == [pytest.approx(1 / math.log10(50 / 12) - 2 / math.log10(2))]
    assert numbers["deepnorm - pre_ln, 12"] == [0.5]
    assert numbers["deepnorm - pre_ln, 48"] == []
    _, chart, *_ = figure.charts(runs)
    assert isinstance(chart, Chart)
    assert chart.log_x
    assert list(chart.series[0].x) == [12, 24, 100]  # layers of both stacks, as the paper counts them
    straight = {d: (20 + 5 * math.log10(d / 6), 0.0, 0.0) for d in scores}
    runs = {f"deepnorm {d}-{d}": [many("", 1, *values)] for d, values in straight.items()}
    assert figure.numbers(runs)["bend"] == [pytest.approx(0, abs=1e-9)]


def test_data_of_many_languages_is_for_figures_of_many_languages(leadline, tmp_path: Path) -> None:
    answer = leadline("reproduce", "deepnet-multilingual", "--scale", "small", "--data", f"text:{tmp_path}")
    assert (answer.code, answer.out) == (2, "")
    assert "holds pairs: this needs pairs of many languages" in answer.err
    answer = leadline("reproduce", "xiong-fig4", "--data", f"many:{tmp_path}")
    assert "holds pairs of many languages: this needs pairs" in answer.err
