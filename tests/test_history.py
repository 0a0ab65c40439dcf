"""What a run has measured is read in one place, which survives damage."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from leadline import flight, history
from leadline.diagnose.explain import explain
from leadline.history import History


def test_damaged_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    lines = [b'{"update": 1, "loss": 2.0}', b"\xff\xfe{", b"[1]", b'{"loss": 1}', b"[" * 100_000, b'{"update": 2}']
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([*lines, b'{"upda']))
    measured = history.read(tmp_path)
    assert measured.rows == [{"update": 1, "loss": 2.0}, {"update": 2}]
    assert measured.damaged == 4  # half a last line is of a run that was killed, or is writing


def test_a_run_that_has_measured_nothing(tmp_path: Path) -> None:
    assert history.read(tmp_path) == History([])
    assert math.isnan(History([]).last("loss"))


def test_what_was_not_finite_is_a_gap_in_a_curve() -> None:
    measured = History([{"update": 1, "loss": 3.0, "epoch": 1}, {"update": 2, "loss": None, "epoch": 1}, {"update": 3}])
    assert measured.curve("loss") == ([1, 2], [3.0, None])
    assert measured.points("loss", "epoch") == ([1], [3.0])
    assert measured.first("loss") == measured.last("loss") == 3.0


@pytest.mark.parametrize(
    "row",
    [
        '{"update": true}', '{"update": 1.5}', '{"update": -1}', '{"update": 1e400}', f'{{"update": {10**400}}}',
        '{"update": null}', '{"update": 1, "loss": "2"}', '{"update": 1, "loss": [2.0]}',
        f'{{"update": 1, "loss": {10**400}}}', '{"update": 1, "alarm": 3}', '{"update": 1, "layers": 3}',
        '{"update": 1, "layers": [1]}', '{"update": 1, "pulse": 3}', '{"update": 1, "pulse": [3.0]}',
        '{"update": 1, "pulse": [["x"]]}', '{"update": 1, "rows": [null]}', '{"update": 1, "changed": ["x"]}',
        '{"update": 1, "settings": {"eps": "x"}}', '{"update": 1, "settings": [0.1]}',
        '{"update": 1, "alarm": "\\ud800"}', '{"update": 1, "\\udfff": 1.0}',
    ],
)  # fmt: skip
def test_a_line_with_a_value_of_another_kind_is_damaged(row: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{row}\n{{"update": 2, "loss": null}}\n')
    assert history.read(tmp_path) == History([{"update": 2, "loss": None}], damaged=1)


def test_what_was_not_finite_is_in_the_flight_recorder_of_a_run_that_goes_on(tmp_path: Path) -> None:
    """As where train.on_spike=skip left out an update, or in a loop that Watch follows."""
    first = flight.Flight(tmp_path)
    first.write({"update": 1, "loss": math.nan, "layers": ["a"], "pulse": [[math.nan], [1.0], [2.0], [0.0]]})
    first.close()
    flight.Flight(tmp_path, update=1).close()
    row = {"update": 1, "loss": None, "layers": ["a"], "pulse": [[None], [1.0], [2.0], [0.0]]}
    assert flight.read(tmp_path) == [row]


@pytest.mark.parametrize("changed", ['"layers": ["a"]', '"layers": ["a", "b"], "pulse": [[1.0]]', '"pulse": [[]]'])
def test_layers_that_do_not_belong_to_a_pulse_are_left_out(changed: str, tmp_path: Path) -> None:
    rows = f'{{"update": 1, "loss": 2.0, "layers": ["a"], "pulse": [[1.0]]}}\n{{"update": 1, {changed}}}\n'
    (tmp_path / "flight.jsonl").write_text(rows)
    assert explain(tmp_path).facts["last"] == 1


def test_losses_of_any_size_are_explained() -> None:
    rows = [{"update": n, "loss": 1e-300 if n < 40 else 1e300, "grad_norm": 1e-300 if n < 40 else 1.0, "lr": 1e-3}
            for n in range(1, 80)]  # fmt: skip
    assert explain(rows).verdict == "fault"
