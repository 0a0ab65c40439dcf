"""Runs whose neighbours have moved: vocabularies, the runs they start from, configs put back, jobs done again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leadline.config import Config
from leadline.data import making
from leadline.errors import UserError
from leadline.jobs.job import Job, finished, lay_out
from leadline.training import run as runs
from leadline.training.loop import resume, train


@pytest.fixture
def short(tiny: Config) -> Config:
    return tiny.set(train={"updates": 2, "eval_every": -1, "save_every": 1})


def test_a_run_started_from_a_relative_path_goes_on_from_anywhere(
    leadline: Callable[..., Any], short: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(short, "a")
    settings = [word for key in ("train.start=a", "train.updates=1") for word in ("--set", key)]
    begun = leadline("train", "a/config.toml", "--out", "b", *settings)
    assert begun.code == 0, begun.err
    assert runs.load_config(Path("b")).data.vocabulary == str(tmp_path / "a" / "tokenizer.json")
    monkeypatch.chdir("/")
    (tmp_path / "a").rename(tmp_path / "moved")  # the run has a vocabulary of its own
    again = leadline("train", "--resume", tmp_path / "b", "--set", "train.updates=2")
    assert again.code == 0, again.err
    assert runs.load_config(tmp_path / "b").data.vocabulary == str(tmp_path / "b" / "tokenizer.json")


def test_weights_of_another_vocabulary_are_refused(short: Config, tmp_path: Path) -> None:
    train(short, tmp_path / "a")
    other = short.set(data={"seed": 7}, train={"start": str(tmp_path / "a"), "start_checkpoint": "last"})
    with pytest.raises(UserError, match=r"another vocabulary than this data: set data\.vocabulary="):
        train(other, tmp_path / "b")


def test_a_config_put_back_after_a_change_is_not_overridden(short: Config, tmp_path: Path) -> None:
    run = train(short, tmp_path / "run")
    before = (run / "config.toml").read_text(encoding="utf-8")
    resume(run, config=runs.load_config(run).set(train={"updates": 3}))
    (run / "config.toml").write_text(before, encoding="utf-8")
    with pytest.raises(UserError, match=r"is not what the run was trained with: train\.updates 3 → 2"):
        runs.load_config(run)


def test_a_job_that_is_done_again_is_not_finished_until_it_is(short: Config, tmp_path: Path) -> None:
    job = Job("one", short, "data")
    folder = lay_out(job, tmp_path)
    (folder / "result.json").write_text('{"name": "one", "diverged": ""}', encoding="utf-8")
    assert finished(job, tmp_path)
    lay_out(replace(job, keep=("last",)), tmp_path)
    assert not finished(job, tmp_path)


def test_what_was_stopped_is_gone_on_with_and_not_begun_again(tmp_path: Path) -> None:
    seen = []

    def fill(building: Path) -> None:
        seen.append(sorted(path.name for path in building.iterdir()))
        (building / f"shard{len(seen)}").touch()
        raise making.Unfinished("a process has died")

    for _ in range(3):
        with pytest.raises(making.Unfinished):
            making.make(tmp_path / "data", "key", True, lambda: False, fill, lambda what, done: None)
    assert seen == [[], ["shard1"], ["shard1", "shard2"]]
