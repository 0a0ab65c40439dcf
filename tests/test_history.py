"""What a run has measured is read in one place, which survives damage."""

from __future__ import annotations

import math
from pathlib import Path

from leadline import history
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
