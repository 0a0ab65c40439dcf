"""Checkpoints are whole or absent, the right ones are kept, and a damaged one is noticed."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import multiprocessing
import shutil
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from leadline.config import Config
from leadline.errors import UserError
from leadline.files import checksum, sha256, write_json
from leadline.provenance import facts_of
from leadline.training import checkpoint, saving
from leadline.training.checkpoint import State
from leadline.training.events import Event
from leadline.training.loop import resume, train
from leadline.training.trained import load


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
        saving.save(run, state, *model_after(update), keep)


def files(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run / "checkpoints")) for path in (run / "checkpoints").rglob("*"))


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    model, optimizer = model_after(3)
    state = State(update=3, epoch=1, batch=2, seconds=1.5, tokens=99, best_update=2, best_nll=0.25, stale=1)
    folder = saving.save(tmp_path, state, model, optimizer, keep=1)
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
    saving.save(tmp_path, State(update=1), model, torch.optim.SGD(model.parameters(), lr=0.1), keep=1)
    assert checkpoint.read(tmp_path, "00000001")[2] == {}


write_image = saving._Image.write


def full_disk_at(file: str) -> Callable[[saving._Image, Path], str]:
    def write(image: saving._Image, path: Path) -> str:
        if path.name == file:
            path.write_bytes(b"half a file")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_image(image, path)

    return write


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
def test_a_full_disk_leaves_the_earlier_checkpoints_and_no_debris(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_each(tmp_path, [1, 2], best=(2,))
    before = files(tmp_path)
    monkeypatch.setattr(saving._Image, "write", full_disk_at(file))
    with pytest.raises(UserError, match=f"00000003 cannot be written to {tmp_path}: the disk is full") as refusal:
        saving.save(tmp_path, State(update=3, best_update=3), *model_after(3), keep=1)

    assert f"leadline train --resume {tmp_path}" in str(refusal.value)
    assert files(tmp_path) == before
    found = checkpoint.read_latest(tmp_path)
    assert found is not None
    assert found[0].update == 2
    assert checkpoint.best(tmp_path) == "00000002"


def test_a_training_on_a_full_disk_stops_with_one_sentence(
    tiny: Config, tmp_path: Path, leadline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving._Image, "write", full_disk_at("model.safetensors"))
    with pytest.raises(UserError, match=f"{tmp_path}.*the disk is full"):
        train(tiny.set(train={"updates": 1}), tmp_path / "run")
    answer = leadline("train", "--resume", tmp_path / "run")
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith("leadline: checkpoint 00000001 cannot be written")


def contents(run: Path) -> dict[str, bytes]:
    folder = run / "checkpoints"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_training_goes_on_while_the_writer_writes_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = State(update=3, seconds=1.5)
    saving.save(tmp_path / "at once", state, *model_after(3), keep=1)
    go_on = threading.Event()

    def write_when_told(image: saving._Image, path: Path) -> str:
        assert go_on.wait(60)
        return write_image(image, path)

    monkeypatch.setattr(saving._Image, "write", write_when_told)
    model, optimizer = model_after(3)
    with saving.Writer() as writer:
        writer.save(tmp_path / "beside", state, model, optimizer, keep=1)
        assert checkpoint.names(tmp_path / "beside") == []
        optimizer.step()
        state.update, state.seconds = 4, 2.0
        go_on.set()
    assert not torch.equal(model.weight, model_after(3)[0].weight)
    assert contents(tmp_path / "beside") == contents(tmp_path / "at once")
    assert len(contents(tmp_path / "beside")) == 3


def test_each_write_ends_before_the_next_copy_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory is used again, so a copy made during a write would end up in the file."""

    def dawdle(image: saving._Image, path: Path) -> str:
        time.sleep(0.05)
        return write_image(image, path)

    save_each(tmp_path / "at once", [1, 2, 3], keep=2, best=(2,))
    monkeypatch.setattr(saving._Image, "write", dawdle)
    with saving.Writer() as writer:
        for update in (1, 2, 3):
            best = 2 if update > 1 else 0
            state = State(update=update, best_update=best, best_nll=1 / best if best else float("inf"))
            writer.save(tmp_path / "beside", state, *model_after(update), keep=2)
    assert contents(tmp_path / "beside") == contents(tmp_path / "at once")


def test_the_host_memory_is_used_again_until_the_tensors_are_others(tmp_path: Path) -> None:
    with saving.Writer() as writer:
        places = []
        for update, (model, optimizer) in enumerate([model_after(0), model_after(1), model_after(2)]):
            writer.save(tmp_path, State(update=update), model, optimizer, keep=9)
            places.append((writer._model.body.data_ptr(), writer._optimizer.body.data_ptr()))
    assert places[0][0] == places[1][0] == places[2][0]
    assert places[0][1] != places[1][1] == places[2][1]  # Adam has no state before its first step
    assert torch.equal(checkpoint.read(tmp_path, "00000001")[1]["weight"], model_after(1)[0].weight)
    assert [len(checkpoint.read(tmp_path, name)[2]) for name in checkpoint.names(tmp_path)] == [0, 6, 6]


def test_a_failed_write_is_told_at_the_next_save_or_when_asked_or_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = model_after(1)
    with saving.Writer() as writer:
        for tell in (writer.wait, lambda: writer.save(tmp_path, State(update=9), model, optimizer, keep=9)):
            with monkeypatch.context() as patch:
                patch.setattr(saving._Image, "write", full_disk_at("model.safetensors"))
                writer.save(tmp_path, State(update=2), model, optimizer, keep=9)
                with pytest.raises(UserError, match=r"00000002 cannot .* the disk is full"):
                    tell()
            writer.wait()  # told once
        writer.save(tmp_path, State(update=3), model, optimizer, keep=9)
    assert checkpoint.names(tmp_path) == ["00000003"]

    monkeypatch.setattr(saving._Image, "write", full_disk_at("model.safetensors"))
    with pytest.raises(UserError, match="00000004 cannot"), saving.Writer() as writer:
        writer.save(tmp_path, State(update=4), model, optimizer, keep=9)


def save_and_divide_by_zero(run: Path) -> None:
    with saving.Writer() as writer:
        writer.save(run, State(update=1), *model_after(1), keep=1)
        raise ZeroDivisionError


def test_a_failed_write_does_not_hide_why_the_training_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving._Image, "write", full_disk_at("optimizer.safetensors"))
    with pytest.raises(ZeroDivisionError) as ending:
        save_and_divide_by_zero(tmp_path)
    assert "the disk is full" in ending.value.__notes__[0]
    assert files(tmp_path) == []


def test_the_last_checkpoint_is_whole_when_the_training_ends_by_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        save_and_divide_by_zero(tmp_path)
    assert checkpoint.read(tmp_path, "00000001")[0].update == 1


def save_and_hang(run: Path, moment: str, pipe: Connection) -> None:
    """Write checkpoint 1, then 2 up to a moment that does not pass."""
    save_each(run, [1])

    def hang(*arguments: Any) -> None:
        pipe.send("hangs")
        time.sleep(600)

    def hang_in_the_middle(image: saving._Image, path: Path) -> str:
        if path.name == "model.safetensors":
            return write_image(image, path)
        path.write_bytes(image.head + image.body.numpy().tobytes()[:-4])
        hang()
        raise AssertionError

    if moment == "while it writes":
        saving._Image.write = hang_in_the_middle  # type: ignore[method-assign]
    else:
        Path.rename = hang  # type: ignore[assignment, method-assign]
    with saving.Writer() as writer:
        writer.save(run, State(update=2), *model_after(2), keep=1)


@pytest.mark.parametrize("moment", ["while it writes", "before it renames"])
def test_a_kill_during_the_write_leaves_the_earlier_checkpoint(moment: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["leadline.training.loop", "tensorboard.summary.writer", "torch._dynamo"])
    pipe, other_end = context.Pipe()
    process = context.Process(target=save_and_hang, args=(tmp_path, moment, other_end))
    process.start()
    try:
        assert pipe.poll(120)
    finally:
        process.kill()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "checkpoints" / ".00000002.tmp" / "optimizer.safetensors").exists()
    assert checkpoint.names(tmp_path) == ["00000001"]
    assert torch.equal(checkpoint.read(tmp_path, "00000001")[1]["weight"], model_after(1)[0].weight)
    save_each(tmp_path, [2])
    assert not [name for name in files(tmp_path) if name.startswith(".")]


def test_the_files_are_those_that_safetensors_writes(tmp_path: Path) -> None:
    """Also where a tensor is a part of a larger one, transposed, without elements, or of another type."""
    flat = torch.arange(100.0)
    tensors = {f"{kind}/é": torch.tensor([1, 0, 3]).to(kind) for kind in saving._DTYPES}
    tensors |= {"part": flat[3:7], "turned": flat[8:14].view(2, 3).T, "scalar": flat[5], "none": flat[:0].view(0, 4)}
    image = saving._Image()
    image.take(tensors)
    image.take(tensors)
    digest = image.write(tmp_path / "own")
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, tmp_path / "library")
    assert (tmp_path / "own").read_bytes() == (tmp_path / "library").read_bytes()
    assert digest == sha256(tmp_path / "own")


def lay_out_flat(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Let the first moments be views of one tensor, with gaps, and all count their steps in another."""
    begin, flat = 0, torch.full((100,), float("nan"))
    states = [optimizer.state[parameter] for parameter in model.parameters()]
    for state in states:
        size = state["exp_avg"].numel()
        state["exp_avg"] = flat[begin : begin + size].view_as(state["exp_avg"]).copy_(state["exp_avg"])
        state["step"] = states[0]["step"]
        begin += size + 5
    return flat


def test_moments_that_share_one_tensor_are_saved_one_by_one_and_restored_in_place(tmp_path: Path) -> None:
    saving.save(tmp_path / "apart", State(update=2), *model_after(2), keep=1)
    model, optimizer = model_after(2)
    flat = lay_out_flat(model, optimizer)
    saving.save(tmp_path / "together", State(update=2), model, optimizer, keep=1)
    assert contents(tmp_path / "together") == contents(tmp_path / "apart")

    other, other_optimizer = model_after(1)
    restored = lay_out_flat(other, other_optimizer)
    assert not torch.equal(restored.nan_to_num(), flat.nan_to_num())
    checkpoint.restore_optimizer(other, other_optimizer, checkpoint.read(tmp_path / "together", "00000002")[2])
    assert torch.equal(restored.nan_to_num(), flat.nan_to_num())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_is_on_a_cuda_device_is_saved_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4096, 4096, device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    with saving.Writer() as writer:
        for update in (1, 2, 3):
            model(torch.ones(2, 4096, device="cuda")).square().sum().backward()
            optimizer.step()
            before = model.weight.detach().cpu(), optimizer.state[model.weight]["exp_avg"].cpu()
            writer.save(tmp_path, State(update=update), model, optimizer, keep=9)
            with torch.no_grad():
                model.weight.add_(1)
            writer.wait()
            _, weights, moments = checkpoint.read(tmp_path, f"{update:08d}")
            assert torch.equal(weights["weight"], before[0])
            assert torch.equal(moments["weight/exp_avg"], before[1])
            assert moments["weight/step"] == update
        assert writer._model.body.is_pinned()


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


def test_weights_of_another_shape_are_refused_by_name(finished: Path, tiny: Config, tmp_path: Path) -> None:
    config = tiny.set(model={"ffn_dim": 64}, train={"start": str(finished)})
    expected = r"encoder\.blocks\.0\.ffn\.expand\.weight is \(32, 16\), the model needs \(64, 16\)"
    with pytest.raises(UserError, match=expected):
        train(config, tmp_path / "run")


def test_another_set_of_weights_is_refused_by_name(finished: Path, tiny: Config, tmp_path: Path) -> None:
    config = tiny.set(model={"encoder_layers": 2}, train={"start": str(finished)})
    with pytest.raises(UserError, match=r"encoder\.blocks\.1\..*differ"):
        train(config, tmp_path / "run")


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


@pytest.mark.parametrize("damage", ["truncate the state", "delete the state", "another update", "another best"])
def test_where_the_newest_is_damaged_no_other_is_taken_for_the_best(damage: str, tmp_path: Path) -> None:
    """It may be the newest's weights that are the best, and an older one does not know."""
    save_each(tmp_path, [1, 2], best=(1, 2))
    damages = DAMAGE | {"another best": lambda f: replace(f / "state.json", '"best_update": 2', '"best_update": 1')}
    damages[damage](tmp_path / "checkpoints" / "00000002")
    with pytest.raises(UserError, match=r"state\.json is damaged.*which checkpoint is the best.*00000001, 00000002"):
        checkpoint.choose(tmp_path, "best")
    assert checkpoint.choose(tmp_path, "1")[0] == "00000001"


def test_a_state_of_before_with_fewer_fields_is_read(tmp_path: Path) -> None:
    save_each(tmp_path, [1])
    path = tmp_path / "checkpoints" / "00000001" / "state.json"
    facts = json.loads(path.read_text())
    del facts["losses"], facts["config"]
    fields = {key: value for key, value in facts.items() if key != "sha256"}
    facts["sha256"]["state"] = hashlib.sha256(json.dumps(fields).encode()).hexdigest()
    path.write_text(json.dumps(facts))
    assert checkpoint.read(tmp_path, "00000001")[0] == State(update=1)


def test_a_loss_that_was_not_finite_and_was_skipped_is_read_again(tmp_path: Path) -> None:
    saving.save(tmp_path, State(update=2, losses=[1.5, float("nan")]), *model_after(2), keep=1)
    (one, other) = checkpoint.read(tmp_path, "00000002")[0].losses
    assert one == 1.5
    assert math.isnan(other)


def test_what_a_state_lacks_is_said_in_words(tmp_path: Path) -> None:
    save_each(tmp_path, [1])
    (tmp_path / "checkpoints" / "00000001" / "state.json").write_text("{}")
    with pytest.raises(checkpoint.Damaged, match=r"state\.json is damaged: it has no 'sha256'$"):
        checkpoint.read(tmp_path, "00000001")


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
    path = tmp_path / "checkpoints" / "00000001" / "state.json"
    assert json.loads(path.read_text(), parse_constant=refuse)["best_nll"] is None


def test_a_checkpoint_of_another_run_is_not_used(finished: Path, tiny: Config, tmp_path: Path) -> None:
    """Its weights fit, and were translated with and evaluated without a word."""
    other = train(tiny.set(train={"seed": 2}), tmp_path / "other") / "checkpoints" / "00000020"
    run = shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(run / "checkpoints" / "00000020")
    shutil.copytree(other, run / "checkpoints" / "00000020")
    with pytest.raises(UserError, match=r"00000020 is of another run: it was trained with a config that this run"):
        load(run, "last")
    heard: list[str] = []
    latest = checkpoint.read_latest(run, heard.append)
    assert latest
    assert latest[0].update == 10
    assert len(heard) == 1


def test_checkpoints_from_before_a_change_on_the_way_are_the_run_s_own(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    changed = load(run).config.set(optim={"lr": 1e-4}, train={"updates": 22})
    resume(run, config=changed)
    assert {load(run, name).checkpoint for name in ("10", "20", "22")} == {"00000010", "00000020", "00000022"}
    assert len(facts_of(run)["configs"]) == 2


def test_a_run_of_an_earlier_version_does_not_know_its_configs(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    facts = {key: value for key, value in facts_of(run).items() if key not in ("configs", "seal")}
    write_json(run / "run.json", facts | {"seal": checksum(facts)})
    resume(run, config=load(run).config.set(train={"updates": 22}))
    assert "configs" not in facts_of(run)
    assert load(run, "10").checkpoint == "00000010"


def test_a_checkpoint_under_another_s_name_is_damaged_and_a_copy_is_none(finished: Path, tmp_path: Path) -> None:
    """The number was that of the folder, and the weights were those of another."""
    folder = shutil.copytree(finished, tmp_path / "run") / "checkpoints"
    shutil.copytree(folder / "00000020", folder / "00000020.bak")
    assert checkpoint.names(folder.parent) == ["00000010", "00000020"]
    shutil.rmtree(folder / "00000020")
    shutil.copytree(folder / "00000010", folder / "00000020")
    with pytest.raises(UserError, match=r"damaged: it is of update 10: the folder was renamed or copied"):
        load(folder.parent, "20")
    heard: list[str] = []
    latest = checkpoint.read_latest(folder.parent, heard.append)
    assert latest
    assert latest[0].update == 10
    assert len(heard) == 1
