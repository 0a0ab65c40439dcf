"""Checkpoints are whole or absent, the right ones are kept, and a damaged one is noticed."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from leadline.config import Config
from leadline.errors import UserError
from leadline.trained import load
from leadline.training import checkpoint
from leadline.training.checkpoint import State
from leadline.training.events import Event
from leadline.training.loop import resume, train


def model_after(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def save_each(run: Path, updates: list[int], keep: int = 10, best: tuple[int, ...] = ()) -> None:
    """A checkpoint at each of `updates`, as training would write it; those in `best` had the lowest loss so far."""
    last_best = 0
    for update in updates:
        last_best = update if update in best else last_best
        state = State(update=update, best_update=last_best, best_nll=1 / last_best if last_best else float("inf"))
        checkpoint.save(run, state, *model_after(update), keep)


def files(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run / "checkpoints")) for path in (run / "checkpoints").rglob("*"))


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    model, optimizer = model_after(3)
    state = State(update=3, epoch=1, batch=2, seconds=1.5, tokens=99, best_update=2, best_nll=0.25, stale=1)
    folder = checkpoint.save(tmp_path, state, model, optimizer, keep=1)
    assert folder == tmp_path / "checkpoints" / "00000003"

    found, weights, moments = checkpoint.read(tmp_path, "00000003")
    other, other_optimizer = model_after(0)
    checkpoint.restore_model(other, weights, "here")
    checkpoint.restore_optimizer(other, other_optimizer, moments)

    assert found == state
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    for own, restored in zip(model.parameters(), other.parameters(), strict=True):
        assert optimizer.state[own].keys() == other_optimizer.state[restored].keys()
        assert all(torch.equal(value, other_optimizer.state[restored][k]) for k, value in optimizer.state[own].items())


def test_an_optimizer_without_state_can_be_saved(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    checkpoint.save(tmp_path, State(update=1), model, torch.optim.SGD(model.parameters(), lr=0.1), keep=1)
    assert checkpoint.read(tmp_path, "00000001")[2] == {}


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error: No space left on device")]
)
@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_full_disk_leaves_the_earlier_checkpoints_and_no_debris(
    error: Exception, fails_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_each(tmp_path, [1, 2], best=(2,))
    before, calls = files(tmp_path), []

    def fill_up(tensors: dict[str, torch.Tensor], path: Path) -> None:
        calls.append(path)
        path.write_bytes(b"half a file")
        if len(calls) == fails_at:
            raise error

    monkeypatch.setattr(checkpoint, "save_file", fill_up)
    with pytest.raises(UserError, match=f"00000003 cannot be written to {tmp_path}: the disk is full") as refusal:
        checkpoint.save(tmp_path, State(update=3, best_update=3), *model_after(3), keep=1)

    assert f"leadline train --resume {tmp_path}" in str(refusal.value)
    assert files(tmp_path) == before
    found = checkpoint.read_latest(tmp_path)
    assert found is not None
    assert found[0].update == 2
    assert checkpoint.best(tmp_path) == "00000002"


def test_a_training_on_a_full_disk_stops_with_one_sentence(
    tiny: Config, tmp_path: Path, leadline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_up(tensors: dict[str, torch.Tensor], path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", fill_up)
    with pytest.raises(UserError, match=f"{tmp_path}.*the disk is full"):
        train(tiny.set(train={"updates": 1}), tmp_path / "run")
    answer = leadline("train", "--resume", tmp_path / "run")
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith("leadline: checkpoint 00000001 cannot be written")


def test_what_a_killed_process_left_half_written_is_no_checkpoint(tmp_path: Path) -> None:
    save_each(tmp_path, [1])
    debris = tmp_path / "checkpoints" / ".00000002.tmp"
    debris.mkdir()
    (debris / "model.safetensors").write_bytes(b"half a file")
    assert checkpoint.names(tmp_path) == ["00000001"]
    save_each(tmp_path, [2])
    assert checkpoint.names(tmp_path) == ["00000001", "00000002"]
    assert not debris.exists()


def test_the_recent_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    save_each(tmp_path, [1, 2, 3, 4, 5, 6], keep=2, best=(1, 3))
    assert checkpoint.names(tmp_path) == ["00000003", "00000005", "00000006"]
    assert checkpoint.best(tmp_path) == "00000003"


def test_the_best_counts_as_recent_when_it_is(tmp_path: Path) -> None:
    save_each(tmp_path, [1, 2, 3, 4], keep=2, best=(4,))
    assert checkpoint.names(tmp_path) == ["00000003", "00000004"]


def test_the_best_has_the_lowest_loss(finished: Path) -> None:
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    losses = {row["update"]: row["valid_nll"] for row in rows if "valid_nll" in row}
    best = min(losses, key=lambda update: losses[update])
    assert checkpoint.best(finished) == f"{best:08d}"


def test_there_is_no_best_before_the_first_evaluation(tmp_path: Path) -> None:
    save_each(tmp_path, [1])
    assert checkpoint.best(tmp_path) is None


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def replace(path: Path, old: str, new: str) -> None:
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flip a byte of the weights": lambda folder: flip_a_byte(folder / "model.safetensors"),
    "flip a byte of the optimizer": lambda folder: flip_a_byte(folder / "optimizer.safetensors"),
    "truncate the weights": lambda folder: truncate(folder / "model.safetensors"),
    "truncate the optimizer": lambda folder: truncate(folder / "optimizer.safetensors"),
    "truncate the state": lambda folder: truncate(folder / "state.json"),
    "empty the state": lambda folder: (folder / "state.json").write_text(""),
    "zeros for the state": lambda folder: (folder / "state.json").write_bytes(bytes(200)),
    "delete the weights": lambda folder: (folder / "model.safetensors").unlink(),
    "delete the optimizer": lambda folder: (folder / "optimizer.safetensors").unlink(),
    "delete the state": lambda folder: (folder / "state.json").unlink(),
    "another update": lambda folder: replace(folder / "state.json", '"update": 2', '"update": 3'),
    "another batch": lambda folder: replace(folder / "state.json", '"batch": 0', '"batch": 1'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_with_a_message(damage: str, tmp_path: Path) -> None:
    save_each(tmp_path, [1, 2])
    DAMAGE[damage](tmp_path / "checkpoints" / "00000002")
    said: list[str] = []
    found = checkpoint.read_latest(tmp_path, said.append)
    assert found is not None
    assert found[0].update == 1
    assert torch.equal(found[1]["weight"], model_after(1)[0].weight)
    assert len(said) == 1
    assert "00000002" in said[0]
    assert "damaged" in said[0]


def test_if_all_are_damaged_it_is_an_error(tmp_path: Path) -> None:
    save_each(tmp_path, [1, 2])
    for name in checkpoint.names(tmp_path):
        flip_a_byte(tmp_path / "checkpoints" / name / "model.safetensors")
    with pytest.raises(UserError, match=f"all 2 checkpoints of {tmp_path} are damaged"):
        checkpoint.read_latest(tmp_path)


def test_a_run_without_checkpoints_has_no_latest(tmp_path: Path) -> None:
    assert checkpoint.read_latest(tmp_path) is None


def test_a_resumed_training_tells_of_the_damage_and_mends_it(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    flip_a_byte(run / "checkpoints" / "00000020" / "model.safetensors")
    events: list[Event] = []
    resume(run, [events.append])
    assert any("00000020" in event.message and "damaged" in event.message for event in events)
    assert next(event.update for event in events if event.kind == "start") == 10
    mended, weights = (load_file(r / "checkpoints" / "00000020" / "model.safetensors") for r in (run, finished))
    assert all(torch.equal(mended[name], weights[name]) for name in weights)


def test_a_damaged_checkpoint_never_displaces_a_whole_one(tmp_path: Path) -> None:
    """Having fallen back from 30 to 10, a training that keeps one checkpoint must keep the one it writes at 20."""
    save_each(tmp_path, [10, 30])
    flip_a_byte(tmp_path / "checkpoints" / "00000030" / "model.safetensors")
    found = checkpoint.read_latest(tmp_path)
    assert found is not None
    assert found[0].update == 10
    save_each(tmp_path, [20], keep=1)
    latest = checkpoint.read_latest(tmp_path)
    assert latest is not None
    assert latest[0].update == 20


def test_weights_of_another_shape_are_refused_by_name(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    config = run / "config.toml"
    config.write_text(config.read_text().replace("ffn_dim = 32", "ffn_dim = 64"))
    expected = r"encoder\.blocks\.0\.ffn\.expand\.weight is \(32, 16\), the model needs \(64, 16\)"
    with pytest.raises(UserError, match=expected):
        resume(run)
    with pytest.raises(UserError, match=expected):
        load(run)


def test_another_set_of_weights_is_refused_by_name(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    config = run / "config.toml"
    config.write_text(config.read_text().replace("encoder_layers = 1", "encoder_layers = 2"))
    with pytest.raises(UserError, match=r"encoder\.blocks\.1\..*differ"):
        resume(run)


def test_the_average_is_the_mean_of_the_last_checkpoints(tmp_path: Path) -> None:
    save_each(tmp_path, [1, 5, 9])
    found = checkpoint.average(tmp_path, 2)
    for name, tensor in found.items():
        expected = (model_after(5)[0].state_dict()[name] + model_after(9)[0].state_dict()[name]) / 2
        torch.testing.assert_close(tensor, expected)
        assert tensor.dtype == torch.float32


def test_more_checkpoints_than_there_are_cannot_be_averaged(tmp_path: Path) -> None:
    save_each(tmp_path, [1, 2])
    with pytest.raises(UserError, match="only 2 checkpoints, not 3"):
        checkpoint.average(tmp_path, 3)


def test_a_damaged_checkpoint_cannot_be_averaged(tmp_path: Path) -> None:
    save_each(tmp_path, [1, 2])
    flip_a_byte(tmp_path / "checkpoints" / "00000001" / "model.safetensors")
    with pytest.raises(UserError, match="damaged"):
        checkpoint.average(tmp_path, 2)


def test_load_finds_the_best_the_last_a_number_and_an_average(finished: Path) -> None:
    weights = {
        which: dict(load(finished, which).model.named_parameters()) for which in ("best", "last", "10", "average:2")
    }
    name = "encoder.blocks.0.ffn.expand.weight"
    for which, update in (("last", 20), ("10", 10)):
        expected = load_file(finished / "checkpoints" / f"{update:08d}" / "model.safetensors")[name]
        assert torch.equal(weights[which][name], expected)
    assert load(finished).checkpoint == checkpoint.best(finished)
    assert not torch.equal(weights["10"][name], weights["last"][name])
    torch.testing.assert_close(weights["average:2"][name], (weights["10"][name] + weights["last"][name]) / 2)


@pytest.mark.parametrize("which", ["15", "newest", "average:", "average:x", "average:0", "average:9", "../00000010"])
def test_load_refuses_a_checkpoint_that_does_not_exist(which: str, finished: Path) -> None:
    with pytest.raises(UserError, match="checkpoint"):
        load(finished, which)


def test_load_offers_another_where_the_best_is_damaged(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    best = checkpoint.best(run)
    flip_a_byte(run / "checkpoints" / str(best) / "model.safetensors")
    with pytest.raises(UserError, match=r"damaged.*--checkpoint \(00000010\)"):
        load(run)


def test_a_run_folder_holds_nothing_that_needs_pickle(finished: Path) -> None:
    kinds = {".toml", ".json", ".jsonl", ".safetensors"}
    for path in (path for path in finished.rglob("*") if path.is_file()):
        assert path.suffix in kinds or path.name == ".lock" or ".tfevents." in path.name, path
        assert path.read_bytes()[:1] != b"\x80", f"{path} begins like a pickle"
        assert path.read_bytes()[:2] != b"PK", f"{path} begins like a zipped pickle"


def test_json_files_are_json_that_any_program_reads(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    save_each(tmp_path, [1])  # before the first evaluation, the best loss is infinite
    json.loads((tmp_path / "checkpoints" / "00000001" / "state.json").read_text(), parse_constant=refuse)
