"""One training by several processes: the same bits as by one, and no process is left behind."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from bench.faults.process import Ended, call, load
from bench.faults.subjects import Whole, make_text, metrics
from bench.faults.world import Together, together
from leadline import flight, history, world
from leadline.config import Config, TrainConfig, to_toml
from leadline.data.store import Store, prepare
from leadline.errors import UserError
from leadline.files import sha256
from leadline.tasks import Translation
from leadline.training import checkpoint, loop
from leadline.training.loop import resume, train
from leadline.training.run import is_run
from leadline.training.step import make_step
from leadline.world import ALONE, World, join, timeout

pytest.importorskip("triton")
from leadline.training.flat import Flat, FlatAdam
from leadline.training.shared import Shared

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="where a GPU is in use, none can be forked: .ci/gpu hides it"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Once here, and not in every process."""
    load()


@pytest.fixture(scope="module")
def four(tiny: Config) -> Config:
    """Four micro-batches an update, and three in the last of every epoch."""
    optim = {"clip": 0.5, "weight_decay": 0.01}
    how = {"accumulate": 4, "batch_tokens": 512, "updates": 6, "eval_every": 3, "bleu_sentences": 9, "log_every": 1}
    return tiny.set(train=how, model={"dropout": 0.1}, optim=optim)


def files(run: Path, update: int) -> list[str]:
    folder = run / "checkpoints" / f"{update:08d}"
    return [sha256(folder / f"{name}.safetensors") for name in ("model", "optimizer")]


def by(size: int, config: Config, folder: Path, name: str = "") -> Path:
    """The run of so many processes."""
    (folder / "config.toml").write_text(to_toml(config))
    run = folder / f"by{size}{name}"
    ended = together(["train", "config.toml", "--out", run.name], size, folder)
    assert [each.code for each in ended] == [0] * size, [each.err for each in ended]
    assert all(each.err + each.out == "" for each in ended[1:])
    return run


@pytest.fixture(scope="module")
def alone(four: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `four` by one process."""
    return train(four, tmp_path_factory.mktemp("alone") / "run")


@pytest.mark.parametrize("size", [1, 4])
def test_translation_is_the_same_by_any_number_of_processes(
    four: Config, alone: Path, size: int, tmp_path: Path
) -> None:
    run = by(size, four, tmp_path)
    for update in (3, 6):
        assert files(run, update) == files(alone, update)
    assert metrics(run) == metrics(alone)
    assert flight.read(run) == flight.read(alone)  # with the norms of every layer
    assert all("pulse" in row for row in flight.read(run))


@pytest.mark.slow
@pytest.mark.parametrize(
    "optim", [{"name": "adamw"}, {"name": "radam"}, {"name": "sgd", "momentum": 0.9}], ids=lambda optim: optim["name"]
)
def test_every_optimizer_is_sharded_without_a_difference(four: Config, optim: dict[str, Any], tmp_path: Path) -> None:
    config = four.set(optim=optim, train={"updates": 3})
    assert files(by(2, config, tmp_path), 3) == files(train(config, tmp_path / "alone"), 3)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Text for every task, and a cache for what is made of it."""
    folder = tmp_path_factory.mktemp("texts")
    make_text(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEADLINE_CACHE", str(folder / "cache"))
        yield folder


# The others differ from these, or from the translation above, in what one process computes.
@pytest.mark.parametrize("task", ["many", "next_sentence", "causal_lm", "classification"])
def test_every_task_is_the_same_by_two_processes(task: str, texts: Path) -> None:
    """Trained on three micro-batches an update, and evaluated."""
    short = "train.accumulate=3 train.updates=4 train.eval_every=2 train.save_every=0 train.bleu_sentences=9"
    arguments = Whole(task, texts, "", [], short).train
    alone, run = (texts / f"{task}-{name}" for name in ("alone", "by2"))
    one = call(arguments(alone.name), texts)
    assert one.code == 0, one.err
    ended = together(arguments(run.name), 2, texts)
    assert [each.code for each in ended] == [0, 0], [each.err for each in ended]
    assert files(run, 4) == files(alone, 4)
    assert metrics(run) == metrics(alone)
    evaluate = ["evaluate", alone.name, "--json"]
    one, ended = call(evaluate, texts), together(evaluate, 2, texts)
    assert ended[0].out == one.out != ""
    assert ended[1].out + ended[1].err == ""


@pytest.mark.slow
@pytest.mark.usefixtures("captured")
def test_a_captured_step_by_two_processes(tiny: Config, tmp_path: Path) -> None:
    """Each adds up its own micro-batches first, so that losses differ in the last digits. The third update has one."""
    how = {"batch_tokens": 16, "accumulate": 2, "updates": 2, "eval_every": -1, "log_every": 1, "step": "graph"}
    config = tiny.set(model={"max_length": 8}, train=how, optim={"name": "adamw", "clip": 0.1, "lr": 0.01})
    alone, run = train(config, tmp_path / "alone"), by(2, config, tmp_path)
    for own, other in zip(history.read(alone).rows, history.read(run).rows, strict=True):
        assert own["loss"] == pytest.approx(other["loss"], abs=1e-5)
        assert own["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
    weights = [checkpoint.read(each, "00000002") for each in (alone, run)]
    for kind in (1, 2):
        assert weights[0][kind].keys() == weights[1][kind].keys()
        for name, tensor in weights[0][kind].items():
            if "kv.bias" not in name:  # keys' biases have no gradient but rounding, which Adam enlarges
                assert (tensor - weights[1][kind][name]).abs().max() < 2e-3, name


@pytest.fixture
def group() -> Iterator[World]:
    """A group of one process, here."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield World(0, 1, store=store)
    dist.destroy_process_group()


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("optim", [{"name": "adam"}, {"name": "sgd", "momentum": 0.9}], ids=lambda optim: optim["name"])
def test_a_captured_step_in_a_group_of_one(tiny: Config, group: World, optim: dict[str, Any]) -> None:
    """With its collectives captured, where the update is."""
    config = tiny.set(model={"max_length": 8}, train={"batch_tokens": 16, "step": "graph"}, optim=optim)
    weights = []
    for each in (ALONE, replace(group, nccl=True)):
        task = Translation(config, Store(prepare(config.data)))
        model = task.build_model().train()
        step = make_step(config, task, model, each)
        plan = task.epoch(0)
        for update in (1, 2):
            found = step([step.prepare(task.collate(plan[update]))], update, 0.01)
        state = step.gathered().state
        moments = [
            state[p][key] for p in model.parameters() for key in sorted(state[p]) if isinstance(state[p][key], Tensor)
        ]
        weights.append([found.loss, *model.parameters(), *moments])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


@pytest.mark.parametrize("nccl", [False, True])
def test_after_an_error_nothing_waits_for_captured_collectives(nccl: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(code: int) -> None:
        raise KeyboardInterrupt(code)

    monkeypatch.setattr(os, "_exit", at_once)
    monkeypatch.setattr(world, "join", lru_cache(lambda: World(0, 1, nccl=nccl)))
    with pytest.raises(SystemExit, match="3"):
        world.leave_with(3)  # it has met nobody yet
    world.join()
    with pytest.raises(KeyboardInterrupt if nccl else SystemExit, match="3"):
        world.leave_with(3)


@pytest.mark.usefixtures("interpreted")
def test_shards_with_16_bit_copies(tiny: Config, tmp_path: Path) -> None:
    """The copies that products read are whole after every update, the weights when they have settled."""

    def model_and_gradients() -> tuple[Any, list[Tensor]]:
        task = Translation(tiny, Store(prepare(tiny.data)))
        model = task.build_model()
        rng = torch.Generator().manual_seed(0)
        return model, [torch.randn(1 << 17, generator=rng) for _ in range(2)]

    def updated(flat: Flat, adam: FlatAdam, norm: Tensor) -> None:
        adam.update(torch.tensor(adam.control(0.1)), norm)

    def work() -> None:
        world = join()
        model, gradients = model_and_gradients()
        flat, norm = Flat(model, torch.bfloat16, world=world), torch.zeros(2)
        shared = Shared(flat, world)
        shared.begin()
        for p, span in flat.spans.items():
            flat.view(flat.gradients, p).copy_(gradients[world.rank][: span.stop - span.start].view(p.shape))
        shared.reduce(norm)
        updated(flat, FlatAdam(flat, tiny.optim, shared.shard), norm[1])
        shared.collect()
        copies = {name: flat.view(flat.copy, p) for name, p in model.named_parameters()}  # type: ignore[arg-type]
        before = {f"{name} unsettled": p.detach().clone() for name, p in model.named_parameters()}
        shared.settle()
        whole = {f"{name} whole": p.detach() for name, p in model.named_parameters()}
        save_file(copies | before | whole, tmp_path / f"{world.rank}.safetensors")
        os._exit(0)

    assert [ended.code for ended in Together(lambda rank: [], 2, tmp_path, before=work).wait()] == [0, 0]
    model, gradients = model_and_gradients()
    flat = Flat(model, torch.bfloat16)
    for p, span in flat.spans.items():
        both = gradients[0][: span.stop - span.start] + gradients[1][: span.stop - span.start]
        flat.view(flat.gradients, p).copy_(both.view(p.shape))
    updated(flat, FlatAdam(flat, tiny.optim), torch.zeros(()))
    theirs = [load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1)]
    for name, p in model.named_parameters():
        assert torch.equal(theirs[0][name], theirs[1][name])
        torch.testing.assert_close(theirs[0][name].float(), p.detach(), rtol=2**-7, atol=0.0)
        assert all(torch.equal(process[f"{name} whole"], p) for process in theirs)
    assert any(not torch.equal(theirs[0][f"{name} unsettled"], p) for name, p in model.named_parameters())


def train_on(config: Config, folder: Path, run: str = "run") -> list[str]:
    (folder / "config.toml").write_text(to_toml(config))
    return ["train", "config.toml", "--out", run]


def told(ended: list[Ended]) -> list[str]:
    """What all of them have said, but for progress."""
    return [line for each in ended for line in each.err.splitlines() if line.startswith(("leadline:", "Traceback"))]


def forget(run: Path, update: int) -> None:
    """As if it had been killed after that update."""
    for name in checkpoint.names(run):
        if int(name) > update:
            shutil.rmtree(run / "checkpoints" / name)


def test_a_run_goes_on_with_another_number_of_processes(four: Config, alone: Path, tmp_path: Path) -> None:
    """With 4, then 2, then one without torchrun."""
    run, kept = tmp_path / "run", {"save_every": 1, "keep": 9}
    assert [each.code for each in together(train_on(four.set(train=kept), tmp_path), 4, tmp_path)] == [0] * 4
    forget(run, 2)
    assert [each.code for each in together(["train", "--resume", "run"], 2, tmp_path)] == [0] * 2
    forget(run, 4)
    resume(run)
    assert files(run, 6) == files(alone, 6)
    assert metrics(run) == metrics(alone)


def test_a_forked_command_leaves_garbage_of_its_parent_alone(tmp_path: Path) -> None:
    """A store's thread is not in the fork: whoever collects the store there waits for it, or is aborted."""
    gc.disable()
    try:
        cycle: list[object] = [dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)]
        cycle.append(cycle)
        del cycle
        assert call(["--version"], tmp_path, before=lambda: print(gc.collect(), file=sys.stderr)).code == 0
    finally:
        gc.enable()


def until(condition: Callable[[], bool], limit: float = 60.0) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def slowly() -> None:
    """So that something can happen to a training on its way."""
    together_ = loop._of_all

    def later(*given: Any) -> Any:
        time.sleep(0.2)
        return together_(*given)

    loop._of_all = later


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed_ends_the_other_with_a_sentence(
    four: Config, alone: Path, rank: int, tmp_path: Path
) -> None:
    """And when torchrun starts them again, with the same arguments, they go on."""
    arguments, run = train_on(four.set(train={"save_every": 1}), tmp_path), tmp_path / "run"
    both = Together(lambda rank: arguments, 2, tmp_path, before=slowly)
    until(lambda: bool(checkpoint.names(run)))
    both.commands[rank].kill()
    begun = time.monotonic()
    ended = both.wait()
    assert time.monotonic() - begun < 10
    assert ended[1 - rank].code == 2
    (sentence,) = told(ended)
    assert "another process has ended" in sentence
    assert sentence.endswith("go on with leadline train --resume run")
    assert int(checkpoint.names(run)[-1]) < 6
    both.start()
    assert [each.code for each in both.wait()] == [0, 0]
    assert files(run, 6) == files(alone, 6)
    assert metrics(run) == metrics(alone)


def test_a_signal_to_one_process_saves_and_ends_all(four: Config, tmp_path: Path) -> None:
    both = Together(lambda rank: train_on(four, tmp_path), 2, tmp_path, before=slowly)
    until(lambda: (tmp_path / "run" / "metrics.jsonl").exists())
    os.kill(both.commands[1].pid, signal.SIGTERM)
    ended = both.wait()
    assert [each.code for each in ended] == [128 + signal.SIGTERM] * 2
    (sentence,) = told(ended)
    name = checkpoint.names(tmp_path / "run")[-1]
    assert int(name) < 6
    assert sentence == f"leadline: SIGTERM after update {int(name)}: saved; go on with leadline train --resume run"


def test_divergence_is_met_by_all(four: Config, tmp_path: Path) -> None:
    config = four.set(optim={"lr": 1e30, "clip": 0.0, "warmup": 0})
    ended = together(train_on(config, tmp_path), 2, tmp_path)
    assert [each.code for each in ended] == [3, 3]
    (sentence,) = told(ended)
    assert "try a lower optim.lr" in sentence


def test_what_cannot_work_is_one_sentence(four: Config, tmp_path: Path) -> None:
    ended = together(train_on(four.set(train={"accumulate": 1}), tmp_path), 2, tmp_path)
    assert [each.code for each in ended] == [2, 2]
    assert told(ended) == [
        "leadline: 2 processes are too many for 1 batches an update: start fewer, or set train.global_tokens=1024 "
        "(or train.accumulate)"
    ]

    def arguments(rank: int) -> list[str]:
        return [*train_on(four, tmp_path), "--set", f"optim.lr={rank + 1}e-3"]

    ended = Together(arguments, 2, tmp_path).wait()
    assert [each.code for each in ended] == [2, 2]
    assert told(ended) == [
        "leadline: the processes differ: optim.lr is 0.001 in process 0 and 0.002 in process 1; start all with the same"
    ]
    assert not is_run(tmp_path / "run")
    ended = together(["train", "numeral"], 2, tmp_path)
    assert [each.code for each in ended] == [2, 2]
    assert len(told(ended)) == 1
    ended = together(["recipes"], 2, tmp_path)
    assert told(ended) == [
        "leadline: torchrun starts leadline train, evaluate and translate; leadline recipes is one process: start it "
        "without torchrun"
    ]


def test_a_port_that_is_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        about = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        for name, value in about.items():
            monkeypatch.setenv(name, str(value))
        join.cache_clear()
        with pytest.raises(UserError, match=rf"the 2 processes do not meet at localhost:{port}: that port is in use"):
            join()
        join.cache_clear()


def test_a_timeout_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for given in ("soon", "-1", "0", "nan"):
        monkeypatch.setenv("LEADLINE_TIMEOUT", given)
        with pytest.raises(UserError, match=f"LEADLINE_TIMEOUT={given} is not a number of seconds"):
            timeout()
    monkeypatch.delenv("LEADLINE_TIMEOUT")
    assert timeout() == 600


def test_global_tokens_are_whole_batches() -> None:
    assert TrainConfig(updates=1, batch_tokens=512, global_tokens=2048).micro_batches == 4
    assert TrainConfig(updates=1, accumulate=3).micro_batches == 3
    with pytest.raises(UserError, match=r"must be a multiple of train\.batch_tokens=512, such as 1024"):
        TrainConfig(updates=1, batch_tokens=512, global_tokens=1000)
    with pytest.raises(UserError, match="leave accumulate and batch_sequences out"):
        TrainConfig(updates=1, batch_tokens=512, global_tokens=1024, accumulate=2)


@pytest.mark.slow
def test_evaluation_and_translation_are_shared_and_the_same(alone: Path, tmp_path: Path) -> None:
    """By two processes and by one, of a translator; process 1 says nothing."""
    numbers = (alone / "evaluated.txt", ["eins", "", "zwei drei", "neun " * 90, "vier"] * 4)
    numbers[0].write_text("\n".join(numbers[1]) + "\n", encoding="utf-8")
    for arguments in (
        ["evaluate", str(alone), "--split", "valid", "--set", "decode.batch_tokens=300", "--json"],
        ["translate", str(alone), "--input", str(numbers[0]), "--set", "decode.batch_tokens=60"],
    ):
        one = call(arguments, tmp_path)
        ended = together(arguments, 2, tmp_path)
        assert [each.code for each in ended] == [0, 0], [each.err for each in ended]
        assert ended[0].out == one.out != ""
        assert ended[1].out + ended[1].err == ""
    together([*arguments, "--output", "out.txt"], 2, tmp_path)
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == one.out


def test_what_cannot_be_shared_is_one_sentence(alone: Path, tmp_path: Path) -> None:
    def by_rank(arguments: Callable[[int], list[str]]) -> str:
        ended = Together(arguments, 2, tmp_path).wait()
        assert [each.code for each in ended] == [2, 2]
        (sentence,) = told(ended)
        return sentence

    for rank in (0, 1):
        (tmp_path / f"{rank}.txt").write_text(f"eins {rank}\n", encoding="utf-8")
    translate, evaluate = ["translate", str(alone)], ["evaluate", str(alone)]
    assert "give it with --input" in by_rank(lambda rank: translate)
    assert "processes differ: text is" in by_rank(lambda rank: [*translate, "--input", f"{rank}.txt"])
    assert "processes differ: decode.beam is 1 in process 0 and 2 in process 1" in by_rank(
        lambda rank: [*evaluate, "--set", f"decode.beam={rank + 1}"]
    )
    assert "checkpoint is 00000003 in process 0 and 00000006" in by_rank(
        lambda rank: [*evaluate, "--checkpoint", f"{rank * 3 + 3}"]
    )
    assert "nothing does not exist" in by_rank(lambda rank: [["evaluate", "nothing"], evaluate][rank])
    assert "nothing does not exist" in by_rank(lambda rank: [evaluate, ["evaluate", "nothing"]][rank])


def test_items_come_back_in_the_order_they_were_dealt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over batches are added in it; in a short evaluation another order may give the same bits by chance."""
    items = [*"abcdefgh"]
    for size in (1, 2, 3, 5, 9):
        monkeypatch.setattr(World, "gather", lambda self, own, size=size: [items[rank::size] for rank in range(size)])
        assert World(0, size, store=object()).merged(items[::size]) == items
