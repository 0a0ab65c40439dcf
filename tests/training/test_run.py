"""A run folder is what it was, or says what differs: nothing torn, flipped or edited goes on silently."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leadline import history
from leadline.config import Config, load, to_dict
from leadline.errors import UserError
from leadline.metrics import Metrics
from leadline.training import checkpoint
from leadline.training import run as runs
from leadline.training.events import Event
from leadline.training.loop import resume, train
from leadline.training.trained import load as load_trained


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run that may be damaged."""
    return shutil.copytree(finished, tmp_path / "run")


def flipped(content: bytes, place: int, bit: int = 0) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    return bytes(changed)


def edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def messages(folder: Path, **options: Any) -> list[str]:
    heard: list[Event] = []
    resume(folder, [heard.append], **options)
    return [event.message for event in heard if event.kind == "message"]


def test_a_folder_with_something_else_is_neither_adopted_nor_changed(run: Path, tiny: Config) -> None:
    """Checkpoints without a config were taken for this run's own: it was complete, with the weights of another."""
    for name in ("config.toml", "run.json"):
        (run / name).unlink()
    before = sorted(run.rglob("*"))
    with pytest.raises(UserError, match=r"is not empty and not a run: it has checkpoints; choose another --out"):
        train(tiny.set(train={"seed": 7}), run)
    assert sorted(run.rglob("*")) == before


def test_what_jobs_lay_out_is_no_obstacle(tiny: Config, tmp_path: Path) -> None:
    for name in (*runs.LAID_OUT, ".run.json.tmp"):
        (tmp_path / name).write_text("")
    runs.require_new(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UserError, match=r"it has notes\.txt"):
        runs.require_new(tmp_path)


def test_no_flip_of_a_bit_and_no_cut_gives_another_config(run: Path, tiny: Config) -> None:
    path = run / "config.toml"
    content = path.read_bytes()
    said: list[str] = []
    damaged = [flipped(content, place, place % 7) for place in range(0, len(content), 11)]
    damaged += [content[:place] for place in range(0, len(content), 150)]
    for each in damaged:
        path.write_bytes(each)
        try:
            assert runs.load_config(run) == tiny
        except UserError as error:
            said.append(str(error))
    assert len(said) > 5
    assert all("is not what the run was trained with: " in words for words in said)


@pytest.mark.parametrize("damage", ["cut", "delete"])
def test_a_torn_config_is_restored_from_run_json_and_said(damage: str, run: Path) -> None:
    path = run / "config.toml"
    content = path.read_bytes()
    path.write_bytes(content[:300]) if damage == "cut" else path.unlink()
    said = messages(run)[0]
    assert str(path) in said
    assert "restored from run.json" in said
    assert path.read_bytes() == content
    assert messages(run) == ["this run is complete: nothing is left to train (longer: --set train.updates=…)"]


@pytest.mark.parametrize("command", [["evaluate", "--split", "valid"], ["translate"]])
def test_commands_that_use_a_torn_config_say_so(command: list[str], run: Path, leadline: Callable[..., Any]) -> None:
    (run / "config.toml").write_text("[model")
    answer = leadline(command[0], run, *command[1:], stdin=b"eins\n")
    assert answer.code == 0
    assert f"{run / 'config.toml'} is not a TOML file" in answer.err
    assert "it is restored from run.json" in answer.err
    assert "restored" not in answer.out


def test_a_config_changed_by_hand_is_named_key_by_key(run: Path) -> None:
    edit(run / "config.toml", "log_every = 1", "log_every = 2")
    with pytest.raises(UserError, match=r"train\.log_every 1 → 2; delete it .* --set train\.log_every=2$"):
        resume(run)
    edit(run / "config.toml", "heads = 2", "heads = 4")  # of the same shapes: it would translate otherwise
    with pytest.raises(UserError, match=r"model\.heads 2 → 4, train\.log_every 1 → 2; delete it to go on as before$"):
        load_trained(run)
    (run / "config.toml").unlink()
    assert load_trained(run).config.model.heads == 2


def test_of_many_changes_the_first_are_named(run: Path) -> None:
    (run / "config.toml").write_text("")
    with pytest.raises(UserError, match=r"trained with: ([^,]+, ){4}[^,]+ and \d+ more; delete it to go on as before$"):
        resume(run)


def test_a_comment_in_the_config_changes_nothing(run: Path, tiny: Config) -> None:
    path = run / "config.toml"
    path.write_text("# mine\n" + path.read_text())
    resume(run)
    assert path.read_text().startswith("# mine\n")
    assert runs.load_config(run) == tiny


def test_a_damaged_run_json_is_said_and_written_again(run: Path, tiny: Config) -> None:
    path = run / "run.json"
    content = path.read_bytes()
    for place in range(0, len(content), 61):
        path.write_bytes(flipped(content, place))
        assert runs.load_config(run) == tiny
    assert "run.json is damaged: training writes it again" in messages(run)[0]
    assert json.loads(path.read_text())["config"] == json.loads(content)["config"]


def test_without_run_json_the_checkpoint_knows_its_config(run: Path) -> None:
    (run / "run.json").unlink()
    assert runs.load_config(run).train.seed == 1
    edit(run / "config.toml", "seed = 1", "seed = 2")
    with pytest.raises(UserError, match="is not what the last checkpoint was trained with"):
        resume(run)


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"\xff{}", b"[]"])
def test_where_both_are_damaged_it_is_one_sentence(content: bytes, run: Path) -> None:
    (run / "config.toml").write_bytes(b"[model")
    (run / "run.json").write_bytes(content)
    with pytest.raises(UserError, match=r"config\.toml is not a TOML file.*run\.json cannot restore it"):
        resume(run)


def test_a_run_killed_while_it_was_described_goes_on(tiny: Config, tmp_path: Path, monkeypatch: Any) -> None:
    def killed(path: Path, text: str) -> None:
        raise KeyboardInterrupt

    folder, config = tmp_path / "run", tiny.set(train={"updates": 2, "eval_every": 2})
    with monkeypatch.context() as patch:
        patch.setattr(runs, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            train(config, folder)
    assert not (folder / "config.toml").exists()
    resume(folder)
    longer = config.set(train={"updates": 3})
    with monkeypatch.context() as patch:
        patch.setattr(runs, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            resume(folder, config=longer)
    assert load(folder / "config.toml") == config
    resume(folder)
    assert load(folder / "config.toml") == longer
    assert checkpoint.names(folder)[-1] == "00000003"


def test_a_damaged_vocabulary_is_not_translated_with(run: Path) -> None:
    path = run / "tokenizer.json"
    path.write_bytes(flipped(path.read_bytes(), 5000))
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged: leadline train --resume"):
        load_trained(run)
    resume(run)
    load_trained(run)


def test_every_checkpoint_and_run_json_hold_the_hash_of_the_config(finished: Path, tiny: Config) -> None:
    facts = json.loads((finished / "run.json").read_text())
    assert facts["config"] == to_dict(tiny)
    states = [checkpoint.read(finished, name)[0] for name in checkpoint.names(finished)]
    assert {state.config for state in states} == {facts["config_sha256"]}


def test_lines_of_metrics_that_cannot_be_read_are_kept_aside_and_counted(
    run: Path, leadline: Callable[..., Any]
) -> None:
    path = run / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[2], lines[4] = b"\xff" + lines[2], lines[4].replace(b'"update"', b'"updade"')
    path.write_bytes(b"\n".join(lines) + b'{"upd')
    shutil.rmtree(run / "checkpoints" / "00000020")
    assert len(history.read(run).rows) == 20
    answer = leadline("train", "--resume", run)
    assert answer.code == 0
    assert "2 lines of metrics.jsonl cannot be read: they are in metrics.damaged.jsonl now" in answer.err
    assert (run / "metrics.damaged.jsonl").read_bytes() == lines[2] + b"\n" + lines[4] + b"\n"
    assert len(history.read(run).rows) == 20


@pytest.mark.parametrize("how", ["a digit", "a line", "all"])
def test_metrics_that_are_not_what_was_written_are_told(run: Path, how: str) -> None:
    path, before = run / "metrics.jsonl", (run / "metrics.jsonl").read_bytes()
    shutil.rmtree(run / "checkpoints" / "00000020")
    assert not any("metrics" in message for message in messages(run))  # nothing has happened to them
    shutil.rmtree(run / "checkpoints" / "00000020")
    place = before.index(b'"loss": ') + len(b'"loss": ')
    path.write_bytes({"a digit": flipped(before, place), "a line": before.partition(b"\n")[2]}.get(how, b""))
    if how == "all":
        path.unlink()
    (told,) = [message for message in messages(run) if "metrics" in message]
    assert told.startswith("metrics.jsonl is damaged: up to update 10 it is not what was written")
    assert messages(run)[-1].startswith("this run is complete: nothing is left to train")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
@pytest.mark.parametrize("which", ["file", "board"])
def test_a_full_disk_is_called_so_also_by_tensorboard(which: str, tmp_path: Path) -> None:
    metrics, full = Metrics(tmp_path, 0), Path("/dev/full")
    if which == "file":
        metrics.file.close()
        metrics.file = full.open("w", buffering=1)
    else:
        assert metrics.board is not None
        metrics.board.file.close()
        metrics.board.records._writer = metrics.board.file = full.open("wb")
    with pytest.raises(UserError, match=rf"the metrics of {tmp_path} cannot be written: the disk is full; go on with"):
        metrics.write({"update": 1, "loss": 0.5})
    metrics.close()
