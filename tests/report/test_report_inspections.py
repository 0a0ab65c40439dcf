"""An inspection as sections of a page: made by hand, without torch, with names and numbers that could break it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from leadline.diagnose.connection import Connection
from leadline.diagnose.faults import Finding
from leadline.diagnose.inspection import Inspection, load
from leadline.diagnose.record import QUANTITIES, Record
from leadline.diagnose.verdict import COLLAPSE_AFTER, STEPS, Verdict
from leadline.errors import UserError
from leadline.report.inspections import sections_of
from leadline.report.page import Chart, Section, Table, Words, render, write

EVIL = "</script><script>alert(1)</script><b>"


def connection(position: int, **changes: Any) -> Connection:
    facts: dict[str, Any] = {
        "add": 10 * position, "skip": 0, "branch": 0, "where": f"layers.{position // 2}",
        "weights": (f"layers.{position}.in", f"layers.{position}.out"), "dim": 16, "norm_nodes": (3,),
        "sublayer": "feed-forward" if position % 2 else "attention",
        "norm_gains": ((3, "norm.weight"),), "before": 0, "within": 0, "after_branch": 0, "after_add": 1, "on_skip": 0,
        "stack": "layers", "position": position, "placement": "Post-LN",
    }  # fmt: skip
    return Connection(**(facts | changes))


def records_of(found: list[Connection], seed: int = 0, rates: tuple[float, ...] = (1e-3, 4e-3)) -> list[Record]:
    records: list[Record] = []
    for c in found:
        at = {"position": c.position, "stack": c.stack, "seed": seed}
        sizes = {"hidden_norm": 6.0, "branch_norm": 4.0, "diversity": 0.9, "norm_input": 1.5, "norm_jacobian": 0.7}
        records += [Record(name, value, c.where, **at) for name, value in sizes.items()]
        for weight in c.weights:
            records.append(Record("grad_norm_of_mean", 2.0 + c.position + seed, weight, **at))
        for rate in rates:
            for step in range(1, STEPS + 1):
                records.append(Record("diversity", 0.5, c.where, step=step, rate=rate, **at))
                records.append(Record("hidden_change", 0.5, c.where, step=step, rate=rate, **at))
    for rate in rates:
        for step in range(1, STEPS + 1):
            whole: dict[str, Any] = {"step": step, "rate": rate, "seed": seed}
            records += [Record(q, 0.25, **whole) for q in ("loss", "output_change", "step_change")]
    return records


def verdict(**changes: Any) -> Verdict:
    facts: dict[str, Any] = {
        "answer": "needs about 50 warm-up updates", "trains": False, "probability": 0.2, "rate": 1e-3, "warmup": 0,
        "highest_rate": 5e-4, "needed_warmup": 50, "where": "layers.0",
        "evidence": ["tokens: become alike"], "remedies": ["warm up", "lower the rate"],
    }  # fmt: skip
    return Verdict(**(facts | changes))


def made(count: int = 6, seeds: int = 1, said: Verdict | None = None, **changes: Any) -> Inspection:
    found = [connection(i, **changes) for i in range(count)]
    records = [r for seed in range(seeds) for r in records_of(found, seed)]
    facts = {"model": "Toy", "weights": 123456, "versions": {"torch": "2.15"}}
    return Inspection("toy", found, [], records, said or verdict(), facts)


def named(sections: list[Section], title: str) -> Any:
    [found] = [section for section in sections if section.title == title]
    return found


def embedded(html: str) -> list[dict[str, Any]]:
    found = re.search('<script type="application/json" id="charts">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


# What is on the page


def test_the_verdict_comes_first_then_why_then_what_to_change() -> None:
    answer, why, change, *rest = sections_of(made())
    assert isinstance(answer, Words)
    assert (answer.title, answer.tone) == ("toy", "bad")
    assert answer.paragraphs[0] == "Needs about 50 warm-up updates."
    assert "the probability of learning is 0.20" in answer.paragraphs[1]
    assert why == Words("Why", ["Tokens: become alike."])
    assert isinstance(change, Words)
    assert list(change.paragraphs) == [
        "1. warm up",
        "2. lower the rate",
        "In the first step the residual stream changes most from layers.0 on.",
    ]
    assert not any(isinstance(section, Words) for section in rest)


def test_a_model_that_trains_has_nothing_to_change() -> None:
    sections = sections_of(made(said=verdict(answer="trains", trains=True, remedies=[])))
    assert sections[0].tone == "good"  # type: ignore[union-attr]
    assert [s.title for s in sections if isinstance(s, Words)] == ["toy", "Why"]


def test_a_fault_in_a_model_that_trains_is_shown_without_an_empty_line() -> None:
    sections = sections_of(made(said=verdict(trains=True, remedies=["fix it"])))
    assert all(p for s in sections if isinstance(s, Words) for p in s.paragraphs)


def test_findings_are_a_table_where_there_are_any() -> None:
    inspection = made()
    assert "Wrongly coded or unusual" not in [section.title for section in sections_of(inspection)]
    finding = Finding("norm_twice", "layers.1", "remove one", places=3)
    table = named(sections_of(dataclasses.replace(inspection, findings=[finding])), "Wrongly coded or unusual")
    assert table.rows == [["fault", "norm twice", "layers.1", 3, "remove one"]]


def test_every_connection_is_a_row() -> None:
    table = named(sections_of(made(skip_scale=2.5)), "Residual connections")
    assert [row[0] for row in table.rows] == [1, 2, 3, 4, 5, 6]
    assert table.rows[0][1:5] == ["layers.0", "attention", "Post-LN", "2.5"]


def test_facts_are_flat_and_quantities_explained() -> None:
    sections = sections_of(made())
    assert ["versions.torch", "2.15"] in named(sections, "Facts").rows
    assert [row[0] for row in named(sections, "Quantities").rows] == list(QUANTITIES)


def test_the_rates_tried_are_two_charts() -> None:
    """One a number: a probability and a length do not share an axis."""
    sections = sections_of(made())
    (chance,) = named(sections, "Whether it learns, by learning rate").series
    (change,) = named(sections, "How far the first step moves the output").series
    assert list(chance.x) == list(change.x) == [1e-3, 4e-3]
    assert all(0 <= y <= 1 for y in chance.y)
    assert change.y == [0.25, 0.25]


@pytest.mark.parametrize(
    ("optimizer", "rate", "said"), [("Adam", 0.1, True), ("Adam", 0.04, False), ("SGD", 0.1, False)]
)
def test_above_the_highest_edge_of_the_fit_a_probability_is_said_to_say_nothing(
    optimizer: str, rate: float, said: bool
) -> None:
    toy = made()
    records = records_of(list(toy.connections), rates=(1e-3, rate))
    sections = sections_of(dataclasses.replace(toy, records=records, facts={**toy.facts, "optimizer": optimizer}))
    caption = named(sections, "Whether it learns, by learning rate").caption
    assert ("Above 0.045 the probability says nothing" in caption) == said


def test_a_rate_at_which_the_loss_rises_again_is_named_beside_its_probability() -> None:
    toy = made()
    caption = "Whether it learns, by learning rate"
    assert "rises again" not in named(sections_of(toy), caption).caption
    risen = dataclasses.replace(toy, facts={**toy.facts, "rises_again": 0.045})
    assert "At 0.045 the loss rises again within 40 steps" in named(sections_of(risen), caption).caption


def test_the_stream_is_shown_over_root_d() -> None:
    measured, lemma = named(sections_of(made()), "Stream, layer by layer").series
    assert measured.y == pytest.approx([6 / 4] * 6)
    assert lemma.y == pytest.approx([math.sqrt(1.5)] * 6)


def test_a_pre_ln_stream_lies_between_the_lemmas_bounds() -> None:
    """With what enters of squared norm d, ‖x_l‖² is (1 + l/2)d to (1 + 3l/2)d: Xiong et al. 2020, Lemma 2."""
    found = [connection(i, placement="Pre-LN", before=1, after_add=0) for i in range(6)]
    records = [
        Record("hidden_norm", math.sqrt(16 * (1 + (i + 1) / 2)), c.where, i, c.stack) for i, c in enumerate(found)
    ]
    records += [Record("branch_norm", math.sqrt(8), c.where, i, c.stack) for i, c in enumerate(found)]
    inspection = Inspection("toy", found, [], records, verdict(), {})
    _, lower, upper = named(sections_of(inspection), "Stream, layer by layer").series
    at_layers = slice(1, None, 2)  # after each feed-forward
    assert lower.y[at_layers] == pytest.approx([math.sqrt(1 + layer / 2) for layer in (1, 2, 3)])
    assert upper.y[at_layers] == pytest.approx([math.sqrt(1 + 3 * layer / 2) for layer in (1, 2, 3)])


def test_gradients_are_shown_over_that_of_the_last_layer() -> None:
    measured, *theory = named(sections_of(made()), "Gradients, layer by layer").series
    assert measured.y == pytest.approx([3 / 7, 5 / 7, 1])
    assert [s.name for s in theory] == ["layers: appendix F", "layers: all factors kept"]
    assert not any(s.group for s in theory)  # each has its own line in the legend
    assert all(s.y[-1] == pytest.approx(1) for s in theory)


def test_diversity_is_shown_before_training_and_at_each_rate() -> None:
    series = named(sections_of(made()), "How different the tokens stay").series
    assert [s.name for s in series] == ["before training", "lr 0.001", "lr 0.004"]
    assert [s.y[0] for s in series] == [0.9, 0.5, 0.5]


def test_depths_are_a_chart_where_several_were_measured() -> None:
    inspection = made()
    assert "Depth" not in [section.title for section in sections_of(inspection)]
    deep = [Record("last_gradient", 1 / layers, "x", layers) for layers in (1, 2, 4)]
    more = dataclasses.replace(inspection, records=[*inspection.records, *deep])
    measured, flat, falling = named(sections_of(more), "Depth").series
    assert (measured.x, measured.y) == ([1, 2, 4], [1.0, 0.5, 0.25])
    assert flat.y == [1.0] * 3
    assert falling.y == pytest.approx([1, math.sqrt(1 / 2), 1 / 2])


def test_several_seeds_are_a_mean_with_a_band() -> None:
    sections = sections_of(made(seeds=2))
    measured = named(sections, "Gradients, layer by layer").series[0]
    assert measured.y == pytest.approx([3.5 / 7.5, 5.5 / 7.5, 1])
    assert measured.low is not None
    assert measured.high is not None
    assert all(low < y < high for low, y, high in zip(measured.low, measured.y, measured.high, strict=True))
    assert named(sections_of(made()), "Gradients, layer by layer").series[0].low is None


# Names


def test_a_name_is_only_ever_text() -> None:
    clean = render("Report", sections_of(made()))
    found = [connection(i, where=EVIL + str(i), stack=EVIL, weights=(EVIL + f"w{i}",)) for i in range(6)]
    said = verdict(answer=EVIL, where=EVIL, evidence=[EVIL], remedies=[EVIL])
    facts = {EVIL: EVIL, "model": EVIL}
    html = render("Report", sections_of(Inspection(EVIL, found, [], records_of(found), said, facts)))
    assert html.count("<script") == clean.count("<script")
    assert html.count("</script") == clean.count("</script")
    assert "<b>" not in html
    assert "&lt;script&gt;alert(1)" in html
    finding = Finding(EVIL, EVIL, EVIL)
    more = render("Report", sections_of(Inspection("toy", found, [finding], [], said, {})))
    assert more.count("<script") == clean.count("<script")


# Numbers that are not finite, and too few of them


def assert_page(inspection: Inspection, tmp_path: Path) -> str:
    """The page and its pictures are written, and hold no NaN."""
    sections = sections_of(inspection)
    html = render("Report", sections)
    assert not re.search(r"\bNaN\b|Infinity", re.sub("<script>.*?</script>", "", html, flags=re.DOTALL))
    embedded(html)
    for section in sections:
        shown = section.paragraphs if isinstance(section, Words) else []
        assert not any(re.search(r"\bnan\b", text, re.IGNORECASE) for text in shown)
    charts = [section for section in sections if isinstance(section, Chart)]
    write("Report", charts[:1], tmp_path / "page.html", tmp_path / "figures")  # a picture takes half a second
    assert len(list((tmp_path / "figures").iterdir())) == 2
    return html


def with_value(inspection: Inspection, quantity: str, value: float) -> Inspection:
    records = [dataclasses.replace(r, value=value) if r.quantity == quantity else r for r in inspection.records]
    return dataclasses.replace(inspection, records=records)


MEASURED = ["hidden_norm", "norm_input", "norm_jacobian", "grad_norm_of_mean", "diversity", "output_change", "loss",
            "step_change", "hidden_change"]  # fmt: skip


@pytest.mark.parametrize("quantity", MEASURED)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_no_nan_on_the_page(quantity: str, value: float) -> None:
    assert_no_nan(sections_of(with_value(made(), quantity, value)))


def assert_no_nan(sections: list[Section]) -> None:
    html = render("Report", sections)
    assert not re.search(r"\bNaN\b|Infinity", re.sub("<script>.*?</script>", "", html, flags=re.DOTALL))
    assert len(embedded(html)) == sum(isinstance(section, Chart) for section in sections) > 0


@pytest.mark.parametrize("quantity", MEASURED)
def test_what_is_not_finite_with_several_seeds(quantity: str) -> None:
    """As where a high rate diverges: --seeds 2 --html."""
    assert_no_nan(sections_of(with_value(made(seeds=2), quantity, math.nan)))


def test_a_pre_ln_branch_that_is_not_finite() -> None:
    inspection = made(placement="Pre-LN", before=1, after_add=0)
    assert_no_nan(sections_of(with_value(inspection, "branch_norm", math.inf)))


def test_everything_not_finite_is_a_page_with_pictures(tmp_path: Path) -> None:
    inspection = made()
    records = [dataclasses.replace(r, value=math.nan) for r in inspection.records]
    assert_page(dataclasses.replace(inspection, records=records), tmp_path)


@pytest.mark.parametrize("placement", ["Post-LN", "Pre-LN", "DeepNorm", "no norm"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_single_layer(placement: str, count: int) -> None:
    html = render("Report", sections_of(made(count, placement=placement)))
    assert len(embedded(html)) == 6


def test_a_single_rate_of_a_single_layer_with_pictures(tmp_path: Path) -> None:
    found = [connection(0)]
    assert_page(Inspection("toy", found, [], records_of(found, rates=(1e-3,)), verdict(), {}), tmp_path)


def test_a_rollout_that_broke_off() -> None:
    inspection = made()
    records = [r for r in inspection.records if not (r.rate == 4e-3 and r.step > 1)]
    sections = sections_of(dataclasses.replace(inspection, records=records))
    assert len(named(sections, "Whether it learns, by learning rate").series[0].x) == 2
    assert "lr 0.004" not in [s.name for s in named(sections, "How different the tokens stay").series]
    assert COLLAPSE_AFTER > 1


def test_no_records_at_all() -> None:
    sections = sections_of(dataclasses.replace(made(), records=[]))
    assert named(sections, "Residual connections").rows
    drawn = [each.style for s in sections if isinstance(s, Chart) for each in s.series if len(each.x)]
    assert drawn == ["dashes"]  # what theory says
    assert len(embedded(render("Report", sections))) == 6


def test_stacks_are_series_of_their_own() -> None:
    found = [connection(i, stack="encoder" if i < 2 else "decoder") for i in range(6)]
    sections = sections_of(Inspection("toy", found, [], records_of(found), verdict(), {}))
    stream = [s.group or s.name for s in named(sections, "Stream, layer by layer").series]
    theory = "Lemma 2 (feed-forward)"
    assert stream == ["encoder", f"encoder: {theory}", "decoder", f"decoder: {theory}"]
    assert [s.name for s in named(sections, "Input of the norms").series] == ["encoder", "decoder"]


# Saved and loaded


def test_what_is_saved_gives_the_same_page(tmp_path: Path) -> None:
    inspection = dataclasses.replace(made(), findings=[Finding("norm_twice", "layers.1", "remove one", "note", 2)])
    inspection.save(tmp_path / "new" / "folder")
    loaded = load(tmp_path / "new" / "folder")
    assert render("Report", sections_of(loaded)) == render("Report", sections_of(inspection))
    assert (loaded.name, loaded.verdict, loaded.facts) == (inspection.name, inspection.verdict, inspection.facts)
    assert (loaded.findings, loaded.records) == (inspection.findings, inspection.records)


def test_connections_are_the_same_after_loading(tmp_path: Path) -> None:
    made().save(tmp_path)
    assert list(load(tmp_path).connections) == list(made().connections)
    assert hash(load(tmp_path).connections[0]) == hash(made().connections[0])


def test_a_folder_without_an_inspection_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not hold an inspection") as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", "null", '{"name": "x"}',
        pytest.param('{"name": "x", "connections": [1], "findings": [], "verdict": {}, "facts": {}}'),
        '{"name": "x", "connections": [{}], "findings": [], "verdict": {}, "facts": {}}',
        '{"name": "x", "connections": [], "findings": [], "verdict": {}, "facts": {}}',
    ],
)  # fmt: skip
def test_a_damaged_inspection_is_one_sentence(text: str, tmp_path: Path) -> None:
    made().save(tmp_path)
    (tmp_path / "inspection.json").write_text(text)
    with pytest.raises(UserError, match="does not hold an inspection") as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_damaged_or_missing_records_are_one_sentence(tmp_path: Path) -> None:
    made().save(tmp_path)
    (tmp_path / "records.jsonl").write_text("{\n")
    with pytest.raises(UserError, match=re.escape("records.jsonl line 1 is not a record")):
        load(tmp_path)
    (tmp_path / "records.jsonl").unlink()
    with pytest.raises(UserError, match="does not hold an inspection"):
        load(tmp_path)


def test_tables_and_charts_are_all_there() -> None:
    kinds = [type(section) for section in sections_of(made())]
    assert kinds.count(Chart) == 6
    assert kinds.count(Table) == 3
