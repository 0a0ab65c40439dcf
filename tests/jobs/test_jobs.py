"""Many trainings: finished ones are skipped, killed ones go on, equal ones are shared, failed ones are told."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from leadline import config as configuration
from leadline import history, machine, provenance
from leadline.config import Config, ModelConfig, OptimConfig
from leadline.errors import UserError
from leadline.jobs import engine, worker
from leadline.jobs import job as jobs
from leadline.jobs.engine import execute
from leadline.jobs.job import Job, finished
from leadline.provenance import FORMAT, NUMERICS
from leadline.reproduce import depths
from leadline.training.events import Event
from leadline.training.run import locked

TINY = depths.iwslt14("tiny").set(
    model={"dim": 16, "ffn_dim": 16, "encoder_layers": 1, "decoder_layers": 1},
    data={"size": 300, "vocab_size": 150},
    train={"updates": 6, "batch_tokens": 128, "eval_every": 3, "bleu_sentences": 3, "log_every": 1, "device": "cpu"},
)


def job(name: str = "one", **train: int) -> Job:
    return Job(name, TINY.set(train=train), "data")


def test_a_key_is_of_what_matters() -> None:
    assert job().key == job("another name").key
    assert job().key == Job("one", TINY.set(train={"device": "cpu"}), "data").key
    assert job().key == Job("one", TINY.set(data={"source": "text:somewhere"}), "data").key  # the data is its key
    others = [job(seed=2), Job("one", TINY, "other data"), Job("one", TINY.set(optim={"lr": 0.5}), "data")]
    assert len({job().key, *(other.key for other in others)}) == 4


def test_what_keys_cover_changes_only_on_purpose() -> None:
    """If this fails, results that were computed before are not found any more.

    For a new option: declare it with `added`. For a default that changes: it is meant, so write the new number here.
    """
    assert Job("one", Config(), "data").key == "21b0406ae435ea1e"
    before = Config().set(optim={"schedule": "inverse_sqrt"}, train={"precision": "fp32"})  # other defaults
    assert Job("one", before, "data").key == "94c90853364d23ce"
    assert Job("one", before.set(train={"step": "eager"}), "data").key == "94c90853364d23ce"  # auto in fp32 is that
    assert Job("one", Config().set(train={"step": "eager"}), "data").key == "6ed035c5d754c191"


def test_a_new_option_where_it_changes_nothing_changes_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Later(ModelConfig):
        rotary: bool = configuration.added(default=True, neutral=False)

    @dataclass(frozen=True, kw_only=True)
    class LaterConfig(Config):
        model: Later = field(default_factory=Later)

    before = Job("one", Config(), "data").key
    assert Job("one", LaterConfig(model=Later(rotary=False)), "data").key == before
    assert Job("one", LaterConfig(), "data").key != before


def test_a_default_that_changes_changes_the_key_of_those_who_have_it() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Other(OptimConfig):
        lr: float = 7e-4

    @dataclass(frozen=True, kw_only=True)
    class OtherConfig(Config):
        optim: Other = field(default_factory=Other)

    assert Job("one", OtherConfig(), "data").key != Job("one", Config(), "data").key
    assert Job("one", OtherConfig(optim=Other(lr=5e-4)), "data").key == Job("one", Config(), "data").key


def test_results_of_other_code_or_settings_are_named_and_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replace(job(), group="figure")
    worker.work(jobs.lay_out(one, tmp_path))
    result = finished(one, tmp_path)
    assert result is not None
    assert (result["format"], result["numerics"]) == (FORMAT, NUMERICS)
    assert result["code"] == provenance.code()
    assert result["settings"]["optim.lr"] == TINY.optim.lr
    assert result["init"] == "fairseq_2019"
    assert not list(jobs.stale([one], tmp_path))
    heard: list[tuple[str, str]] = []

    def told(which: Job) -> str:
        heard.clear()
        jobs.tell_stale([which], tmp_path, lambda name, event: heard.append((name, event.message)))
        assert finished(which, tmp_path) is None
        ((name, words),) = heard
        assert name == which.name
        return words

    assert told(replace(job(seed=2), group="figure")).endswith("is not used: train.seed was 1 and is 2")
    assert told(replace(one, data_key="other")).endswith("is not used: it is of other data")
    assert told(replace(one, start="other")).endswith("is not used: it started from other weights")
    assert told(replace(one, watch=5)).endswith("it was watched every 0 updates, and this one is every 5")
    assert not list(jobs.stale([replace(job(seed=2), group="another figure")], tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "NUMERICS", NUMERICS + 1)
        assert told(one).endswith(f"it was computed by numerics {NUMERICS}, and this is {NUMERICS + 1}")
    (one.folder(tmp_path) / "result.json").rename(tmp_path / "kept.json")
    old = tmp_path / "post_ln-0123456789abcdef"  # of before results knew any of this
    old.mkdir()
    (old / "result.json").write_text('{"name": "one", "diverged": ""}')
    assert told(one).endswith(f"it was computed by numerics 1, and this is {NUMERICS}")


def test_divergence_is_a_result_and_a_mistake_is_told(tmp_path: Path) -> None:
    wild = Job("wild", TINY.set(optim={"lr": 1e30, "warmup": 0}), "data")
    wrong = Job("wrong", TINY.set(model={"placement": "no.such:Thing"}), "data")
    with pytest.raises(UserError, match=r"1 of 2 runs failed.*wrong: .*no.such:Thing"):
        execute([wild, wrong], tmp_path, 2)
    result = finished(wild, tmp_path)
    assert result is not None
    assert "try a lower optim.lr" in result["diverged"]
    assert finished(wrong, tmp_path) is None


def test_a_watched_run_that_was_killed_begins_again(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if event.update == 4:
            raise RuntimeError("on purpose")

    watched = Job("one", TINY, "data", watch=3)
    with pytest.raises(RuntimeError, match="on purpose"):
        worker.work(jobs.lay_out(watched, tmp_path), stop)
    folder = jobs.lay_out(watched, tmp_path)
    worker.work(folder)
    assert [row["update"] for row in history.read(folder).rows if "watch/drift" in row] == [1, 3, 6]
    assert (finished(watched, tmp_path) or {})["updates"] == 6


class Fake:
    """A process that does every job at once."""

    made: ClassVar[list[Fake]] = []

    def __init__(self, threads: int, heard: queue.Queue[Any]) -> None:
        self.job: Job | None = None
        self.threads, self.heard, self.folders = threads, heard, list[Path]()
        self.process, self.status = self, 0
        Fake.made.append(self)

    def begin(self, job: Job, folder: Path) -> None:
        self.job = job
        self.folders.append(folder)
        self.heard.put((self, Event("start", 0, 6, {})))
        if job.name == "wrong":
            self.status = 1
            self.heard.put((self, engine.LEFT))
            return
        (folder / "result.json").write_text('{"diverged": ""}')
        self.heard.put((self, engine.DONE))

    def terminate(self) -> None: ...
    def close(self) -> int:
        return self.status


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[Fake]:
    monkeypatch.setattr(engine, "Worker", Fake)
    monkeypatch.setattr(machine, "cores", lambda: 8)
    monkeypatch.setattr(Fake, "made", [])
    return Fake.made


def test_processes_do_one_job_after_another_and_one_that_dies_is_replaced(fake: list[Fake], tmp_path: Path) -> None:
    wanted = [job("a"), Job("wrong", TINY, "other"), job("c", seed=3), job("d", seed=4)]
    heard: list[str] = []
    ended: list[str] = []
    with pytest.raises(UserError, match=r"1 of 4 runs failed; .*; wrong: it was killed \(.*log.txt\)"):
        execute(wanted, tmp_path, 2, lambda name, event: heard.append(name), lambda job: ended.append(job.name))
    assert sorted(heard) == ["a", "c", "d", "wrong"]
    assert sorted(ended) == ["a", "c", "d"]
    assert len(fake) == 3
    with pytest.raises(UserError, match="1 of 4 runs failed"):
        execute(wanted, tmp_path, 2)
    assert sum(len(each.folders) for each in fake) == 5  # what is finished is not done again


def test_threads_depend_on_the_machine_and_on_how_many_run_at_once_only(fake: list[Fake], tmp_path: Path) -> None:
    """Sums are rounded otherwise with another number: a run that goes on keeps its own."""

    def threads(which: Job) -> int:
        return json.loads((which.folder(tmp_path) / "job.json").read_text())["threads"]

    alone, others = job(seed=9), [job(seed=seed) for seed in range(3)]
    execute([alone], tmp_path, 2)
    execute(others, tmp_path, 2)
    assert {threads(each) for each in [alone, *others]} == {4}
    (alone.folder(tmp_path) / "result.json").unlink()
    (alone.folder(tmp_path) / "config.toml").touch()  # it had begun
    execute([alone], tmp_path, 8)
    assert threads(alone) == 4


def test_a_folder_with_a_name_of_its_own_holds_one_run(fake: list[Fake], tmp_path: Path) -> None:
    one = replace(job(), place="here")
    execute([one], tmp_path)
    assert finished(one, tmp_path) is not None
    other = replace(one, config=TINY.set(train={"seed": 2}))
    assert finished(other, tmp_path) is None
    (tmp_path / "here" / "config.toml").touch()
    with pytest.raises(UserError, match="here holds another run: choose another folder with --out"):
        execute([other], tmp_path)


def test_a_run_whose_checkpoint_is_needed_and_gone_is_not_finished(tmp_path: Path) -> None:
    folder = job().folder(tmp_path)
    folder.mkdir()
    (folder / "result.json").write_text('{"diverged": ""}')
    needed = replace(job(), keep=("00000003",))
    assert needed.folder(tmp_path) == folder
    assert finished(job(), tmp_path) is not None
    assert finished(needed, tmp_path) is None
    (folder / "checkpoints" / "00000003").mkdir(parents=True)
    assert finished(needed, tmp_path) is not None
    (folder / "result.json").write_text('{"diverged": "the loss is nan"}')
    assert finished(replace(job(), keep=("00000006",)), tmp_path) is not None  # it will never have it


def test_a_finished_run_keeps_the_checkpoints_it_should(tmp_path: Path) -> None:
    for keep, left in {(): [], ("last",): ["00000006"], ("00000003",): ["00000003"]}.items():
        for name in ("00000003", "00000006"):
            (tmp_path / "checkpoints" / name).mkdir(parents=True, exist_ok=True)
        worker._keep(tmp_path, keep)
        assert sorted(path.name for path in tmp_path.glob("checkpoints/*")) == left


@pytest.mark.slow
def test_a_killed_command_leaves_no_process_and_ends_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = job(updates=40, save_every=1, eval_every=20)
    monkeypatch.setattr(machine, "cores", lambda: 1)  # so many threads each run gets: sums then round alike
    reference = jobs.lay_out(whole, tmp_path / "whole")
    worker.work(reference)
    program = (
        "import sys, pathlib; from leadline import config, machine; from leadline.jobs import engine, job\n"
        "machine.cores = lambda: 1\n"
        "toml, root = map(pathlib.Path, sys.argv[1:])\n"
        "engine.execute([job.Job('one', config.load(toml), 'data')], root)"
    )
    arguments = [str(reference / "job.toml"), str(tmp_path / "killed")]
    command = subprocess.Popen([sys.executable, "-c", program, *arguments])
    folder = whole.folder(tmp_path / "killed")
    deadline = time.monotonic() + 300
    while not (folder / "checkpoints").exists() or not list((folder / "checkpoints").glob("0*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    command.send_signal(signal.SIGKILL)
    command.wait()
    while True:
        try:
            with locked(folder):
                break
        except UserError:
            assert time.monotonic() < deadline, "the training outlived its command"
            time.sleep(0.1)
    assert finished(whole, tmp_path / "killed") is None, "it was over before it could be killed"
    worker.work(jobs.lay_out(whole, tmp_path / "killed"))
    results = [finished(whole, tmp_path / name) for name in ("whole", "killed")]
    for result in results:
        assert result is not None
        del result["seconds"]
    assert results[0] == results[1]
