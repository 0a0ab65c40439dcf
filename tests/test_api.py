"""leadline.train shows what the command shows, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import leadline
from leadline.config import Config
from leadline.training.events import Event


def test_training_shows_its_progress_unless_told_not_to(
    tiny: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[Event] = []
    run = leadline.train(tiny.set(train={"updates": 2}), tmp_path / "shown", on_step=[events.append])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "update 2/2  valid" in shown.err
    assert [event.update for event in events if event.kind == "evaluation"] == [2]

    assert leadline.resume(run) == run
    assert "this run is complete" in capsys.readouterr().err

    leadline.train(tiny.set(train={"updates": 1}), tmp_path / "silent", progress=False)
    leadline.resume(tmp_path / "silent", progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_folder_that_holds_a_run_is_refused_before_data_is_prepared(
    tiny: Config, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leadline.api.open_store", None)
    with pytest.raises(leadline.UserError, match="holds a run already"):
        leadline.train(tiny, finished)


def test_the_name_of_a_recipe_is_no_config() -> None:
    with pytest.raises(leadline.UserError, match=r"takes a Config, such as leadline\.recipes\.numerals\(\), not"):
        leadline.train("numerals")  # type: ignore[arg-type]
