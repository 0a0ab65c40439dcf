"""Run folders to sections: curves, what differs, and one sentence for a folder that cannot be read."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leadline import config as configuration
from leadline import evaluations
from leadline.config import Config
from leadline.errors import UserError
from leadline.history import History
from leadline.report.page import Chart, Section, Table, Words
from leadline.report.runs import ReportedRun, sections_of
from leadline.tasks import TASKS


def row(update: int, **values: float | None) -> dict[str, Any]:
    return {"update": update, "epoch": 0, **values}


def training(update: int, loss: float | None = 2.0, **more: float | None) -> dict[str, Any]:
    clock = {"tokens_per_second": 1000.0, "seconds": float(update), "wait_seconds": 0.25}
    return row(update, loss=loss, lr=1e-3, grad_norm=0.5, **clock, **more)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """A run folder without its training."""

    def make(name: str, rows: list[dict[str, Any]], **sections: dict[str, Any]) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        config = Config().set(**({"train": {"updates": 20}} | sections))
        (folder / "config.toml").write_text(configuration.to_toml(config), encoding="utf-8")
        facts = {"device": "cpu", "chosen": {"init": "xavier"}, "versions": {"torch": "2.11"}}
        facts |= {"data": {"key": "abc", "sha256": {"x": "y"}}}
        (folder / "run.json").write_text(json.dumps(facts))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
        return folder

    return make


def named(sections: list[Section], title: str) -> Any:
    [found] = [section for section in sections if section.title == title]
    return found


def cells(table: Table, row: int = 0) -> dict[str, object]:
    return dict(zip(table.columns, table.rows[row], strict=True))


ROWS = [training(10, 3.0), row(10, valid_nll=2.5, valid_bleu=12.0), training(20, 2.0), row(20, valid_nll=2.75)]


def test_a_real_run(finished: Path) -> None:
    sections = sections_of([finished])
    titles = ["In short", "Loss", "Learning rate", "Gradient norm", "Speed", "Waiting for the host"]
    assert [section.title for section in sections] == [*titles, "Runs", "Configuration", "Versions, device and data"]
    train, valid = named(sections, "Loss").series
    assert train.x == list(range(1, 21))
    assert valid.x == [10, 20]
    assert (train.style, valid.style) == ("line", "points")
    assert train.group == valid.group == finished.name
    assert cells(named(sections, "Runs"))["ended"] == "complete"
    assert cells(named(sections, "Runs"))["layers"] == "1-1"


def test_the_curves_and_the_numbers(make_run: Callable[..., Path]) -> None:
    sections = sections_of([make_run("a", ROWS, model={"placement": "deepnorm"}, optim={"warmup": 7})])
    assert [series.y for series in named(sections, "Loss").series] == [[3.0, 2.0], [2.5, 2.75]]
    assert named(sections, "Gradient norm").log_y
    assert named(sections, "Validation bleu").series[0].y == [12.0]
    assert cells(named(sections, "Runs")) == {
        "run": "a",
        "placement": "deepnorm",
        "started from": "xavier",
        "layers": "6-6",
        "dim": 512,
        "lr": 5e-4,
        "warm-up": 7,
        "updates": 20,
        "last valid loss": 2.75,
        "best valid loss": 2.5,
        "best at": 10,
        "seconds": 20,
        "waited": 0.5,
        "ended": "complete",
    }
    assert named(sections, "In short").paragraphs == [
        "The lowest validation loss is 2.5 nats a token, of a at update 10."
    ]
    decoder = make_run(
        "lm", [*ROWS, row(20, valid_bits_per_byte=2.0)], model={"encoder_layers": 0, "decoder_layers": 3}
    )
    sections_of_lm = sections_of([decoder])
    assert cells(named(sections_of_lm, "Runs"))["layers"] == "3"
    assert named(sections_of_lm, "Validation bits per byte").series[0].y == [2.0]
    facts = dict(named(sections, "Versions, device and data").rows)
    assert facts == {"device": "cpu", "chosen.init": "xavier", "versions.torch": "2.11", "data.key": "abc"}
    assert ["optim.betas", "[0.9, 0.98]"] in named(sections, "Configuration").rows


def test_what_differs_between_runs(make_run: Callable[..., Path]) -> None:
    runs = [make_run("a", ROWS), make_run("b", ROWS[:1], optim={"lr": 0.001})]
    sections = sections_of(runs)
    assert named(sections, "What differs between the runs").rows == [["optim.lr", "0.0005", "0.001"]]
    assert named(sections, "In short").paragraphs[0].endswith("of a at update 10.")
    assert [series.group for series in named(sections, "Loss").series] == ["a", "a", "b", "b"]
    assert cells(named(sections, "Runs"), 1)["ended"] == "stopped at update 10"
    assert cells(named(sections, "Runs"), 1)["last valid loss"] is None


def test_runs_of_one_configuration_are_said_to_be(make_run: Callable[..., Path]) -> None:
    sections = sections_of([make_run("a", ROWS), make_run("b", ROWS)])
    assert isinstance(named(sections, "What differs between the runs"), Words)


@pytest.mark.parametrize("last", [training(30, None), row(30, valid_nll=None), training(30) | {"grad_norm": None}])
def test_a_run_that_ends_in_nothing_diverged(make_run: Callable[..., Path], last: dict[str, Any]) -> None:
    sections = sections_of([make_run("a", [*ROWS, last])])
    assert cells(named(sections, "Runs"))["ended"] == "diverged"
    assert named(sections, "In short").tone == "bad"


def test_epochs_can_end_a_run_too(make_run: Callable[..., Path]) -> None:
    last = training(30) | {"epoch": 2}
    sections = sections_of([make_run("a", [last], train={"updates": 0, "epochs": 2})])
    assert cells(named(sections, "Runs"))["ended"] == "complete"


def test_layers_are_a_chart_for_each_quantity(make_run: Callable[..., Path]) -> None:
    watched = {f"watch/{what}/layer.{i}": i + 0.5 for what in ("hidden_norm", "grad_norm") for i in range(30)}
    rows = [training(update, 2.0, **watched) for update in (10, 20)]
    one, several = make_run("one", rows), make_run("two", rows)
    hidden = named(sections_of([one]), "Hidden norm by layer")
    assert [series.name for series in hidden.series] == [f"layer.{i}" for i in range(30)]
    assert hidden.series[3].y == [3.5, 3.5]
    chosen = [series.name for series in hidden.series if series.selected]
    assert (len(chosen), chosen[0], chosen[-1]) == (12, "layer.0", "layer.29")
    both = named(sections_of([one, several]), "Grad norm by layer")
    assert both.series[30].name == "two: layer.0"
    assert sum(series.selected for series in both.series) == 12


def test_folders_of_the_same_name_show_where_they_are(make_run: Callable[..., Path]) -> None:
    first, second = make_run("x/run", ROWS), make_run("y/run", ROWS)
    table = named(sections_of([first, second, first]), "Runs")
    assert [cells(table, i)["run"] for i in range(len(table.rows))] == [str(first), str(second)]


def test_a_run_that_goes_on_may_leave_half_a_line(make_run: Callable[..., Path]) -> None:
    folder = make_run("a", ROWS)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"update": 30, "lo')
    assert named(sections_of([folder]), "Loss").series[0].x == [10, 20]


def test_damaged_lines_are_left_out_and_told(make_run: Callable[..., Path]) -> None:
    folder = make_run("a", ROWS)
    (folder / "metrics.jsonl").write_bytes(b"\xff\n" + (folder / "metrics.jsonl").read_bytes())
    sections = sections_of([folder])
    assert named(sections, "Loss").series[0].x == [10, 20]
    assert named(sections, "In short").paragraphs[-1] == "1 damaged lines of a's metrics.jsonl are left out."


def test_only_runs_of_the_same_task_and_data_are_compared(make_run: Callable[..., Path]) -> None:
    one, same = make_run("one", ROWS), make_run("same", ROWS)
    other = make_run("other", [row(10, valid_nll=0.1)])
    text = (other / "config.toml").read_text().replace('task = "translation"', 'task = "classification"')
    (other / "config.toml").write_text(text)
    elsewhere = make_run("elsewhere", ROWS)
    (elsewhere / "run.json").write_text(json.dumps({"data": {"key": "other text"}}))
    sections = sections_of([one, other, same, elsewhere])
    assert "not compared" in named(sections, "In short").paragraphs[0]
    losses = [section for section in sections if section.title == "Loss"]
    drawn = [list(dict.fromkeys(series.group for series in chart.series)) for chart in losses]
    assert drawn == [["one", "same"], ["other"], ["elsewhere"]]
    assert losses[1].y_label == "loss (nats an example)"
    headings = [s.title for s in sections if isinstance(s, Words)][1:]
    assert headings[0] == "Translation: one, same"
    assert "Classification: other" in headings
    lowest = named(sections, headings[0]).paragraphs[0]
    assert lowest.startswith("The lowest validation loss is 2.5 nats a token, of one")
    assert len(named(sections, "Configuration").columns) == 5


@pytest.mark.parametrize("task", TASKS)
def test_a_loss_has_the_unit_of_its_task(task: str) -> None:
    """Which a report knows without loading torch."""
    assert ReportedRun("a", {"task": task}, {}, History([])).unit == f"nats {TASKS[task].unit}"


def test_a_run_without_run_json_is_reported(make_run: Callable[..., Path]) -> None:
    folder = make_run("a", ROWS)
    (folder / "run.json").unlink()
    assert named(sections_of([folder]), "Versions, device and data").rows == []


@pytest.mark.parametrize("damage", ["torn", "changed", "gone"])
def test_a_run_is_reported_with_the_config_it_was_trained_with(damage: str, finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / finished.name)
    path = run / "config.toml"
    changed = path.read_text().replace("seed = 1", "seed = 2")
    path.unlink() if damage == "gone" else path.write_text("[model" if damage == "torn" else changed)
    assert sections_of([run]) == sections_of([finished])


def breaks(name: str, content: bytes | None) -> Callable[[Path], None]:
    def break_it(folder: Path) -> None:
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)

    return break_it


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (breaks("config.toml", None), "is not a run: it has no config.toml"),
        (breaks("config.toml", b"a = ="), "is not a TOML file"),
        (breaks("metrics.jsonl", None), "has no metrics.jsonl"),
        (breaks("metrics.jsonl", b""), "holds no measurement"),
        (breaks("metrics.jsonl", b"[1]\n"), "holds no measurement"),
        (breaks("run.json", b"[]"), "is damaged"),
        (breaks("run.json", b"{"), "run.json is damaged: leadline train --resume .* writes it again"),
    ],
)
def test_a_damaged_run_is_one_sentence(
    make_run: Callable[..., Path], break_it: Callable[[Path], None], says: str
) -> None:
    folder = make_run("a", ROWS)
    break_it(folder)
    with pytest.raises(UserError, match=says) as caught:
        sections_of([folder])
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist: give the folder of a run"):
        sections_of([tmp_path / "missing"])
    with pytest.raises(UserError, match="name one run folder"):
        sections_of([])


def test_every_chart_has_a_series_for_every_run_in_the_same_order(make_run: Callable[..., Path]) -> None:
    sections = sections_of([make_run("a", [row(10, valid_nll=1.0)]), make_run("b", ROWS)])
    charts = [section for section in sections if isinstance(section, Chart)]
    for chart in charts:
        assert list(dict.fromkeys(series.group or series.name for series in chart.series)) == ["a", "b"]


def test_scores_by_direction_are_a_heat_map(make_run: Callable[..., Path]) -> None:
    run = make_run("many", ROWS)
    rows = [
        {"direction": "de-en", "bleu": 30.0, "kind": "to_en"},
        {"direction": "en-de", "bleu": 20.0, "kind": "from_en"},
    ]
    facts = {"split": "test", "bleu": 25.0, "bleu_to_en": 30.0, "off_target": 0.125, "by_direction": rows}
    (run / "evaluations").mkdir()
    (run / "evaluations" / "test.json").write_text(json.dumps(facts))
    (run / "evaluations" / "torn.json").write_text("{")
    heat = named(sections_of([run]), "BLEU by direction, test")
    assert (heat.rows, heat.columns) == (["de", "en"], ["de", "en"])
    assert [heat.values[0][1], heat.values[1][0]] == [30.0, 20.0]
    assert all(math.isnan(heat.values[i][i]) for i in range(2))
    assert heat.caption == (
        "Means: all 25.0, into English 30.0. Off-target (in another language than asked for): 12.5% of the outputs."
    )


def test_a_table_by_direction_that_makes_no_sense_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "evaluations").mkdir()
    row = {"direction": "de-en", "bleu": 3.0, "kind": "to_en"}
    for name, rows in {"test": [row], "odd": [row | {"direction": ["de"]}], "none": [row | {"bleu": None}]}.items():
        (tmp_path / "evaluations" / f"{name}.json").write_text(json.dumps({"by_direction": rows}))
    assert [facts["name"] for facts in evaluations.read(tmp_path)] == ["test"]
