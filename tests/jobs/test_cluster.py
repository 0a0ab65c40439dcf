"""The same runs through a real Ray: what is killed goes on elsewhere, what is stopped saves, what fails is told."""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from leadline.errors import UserError
from leadline.jobs import cluster, worker
from leadline.jobs.engine import execute
from leadline.jobs.job import Job, finished, lay_out
from leadline.reproduce import depths
from leadline.training.events import Event
from leadline.training.run import locked

TRAIN = {"updates": 60, "batch_tokens": 128, "eval_every": 30, "bleu_sentences": 3, "log_every": 1, "save_every": 1}
TINY = depths.iwslt14("tiny").set(
    model={"dim": 16, "ffn_dim": 16, "encoder_layers": 1, "decoder_layers": 1},
    data={"size": 300, "vocab_size": 150},
    train=TRAIN | {"device": "cpu"},
)
# Runs are named after what is killed of them. How many checkpoints they keep makes them differ, but not their results.
KEEP = {"process": 1, "node": 2, "worker": 3}


def job(name: str) -> Job:
    return Job(name, TINY.set(train={"keep": KEEP[name]}), "data")


def test_without_ray_one_sentence_says_how_to_get_it(
    leadline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    answer = leadline("reproduce", "deepnet-fig6", "--on", "ray", "--out", tmp_path / "out")
    assert answer.code == 2
    assert answer.err == "leadline: --on ray needs Ray, which is not installed: pip install 'leadline[ray]'\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("on", ["slurm", "ray:", "ray://", "Ray"])
def test_any_other_place_is_refused(leadline: Callable[..., Any], on: str, tmp_path: Path) -> None:
    answer = leadline("reproduce", "deepnet-fig6", "--on", on, "--out", tmp_path / "out")
    assert answer.code == 2
    assert f"--on cannot be {on!r}: use ray (the cluster of this machine) or ray://HOST:PORT" in answer.err


def test_here_is_the_usual_place_and_finished_runs_need_no_cluster(tmp_path: Path) -> None:
    assert cluster.runner("") is execute
    done = job("process")
    done.folder(tmp_path).mkdir()
    (done.folder(tmp_path) / "result.json").write_text("{}")
    cluster.execute([done], tmp_path, "ray://127.0.0.1:1")


def test_a_job_for_any_node_is_the_same_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    here = Job("one", TINY.set(data={"source": "text:mine"}, train={"device": "cuda:1"}), "data")
    there = cluster._anywhere(here)
    assert there.config.data.source == f"text:{tmp_path / 'mine'}"
    assert there.config.train.device == "cuda"  # the one that Ray shows it
    assert there.key == here.key


def test_a_run_waits_for_the_one_before_it_to_leave_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        stack.enter_context(locked(tmp_path))
        leaves = threading.Timer(0.5, stack.close)
        leaves.start()
        begin = time.monotonic()
        cluster._wait_for_lock(tmp_path)
        assert time.monotonic() - begin >= 0.4
        leaves.join()
    monkeypatch.setattr(cluster, "PATIENCE", 0.1)
    with locked(tmp_path):
        cluster._wait_for_lock(tmp_path)  # the worker then says what is wrong


class Heard(list[tuple[str, Event]]):
    """What a task puts into Ray's queue."""

    put = list.append


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_a_run_of_several_processes_is_the_same_run_and_goes_on_when_one_is_killed(tmp_path: Path) -> None:
    shared = Job("shared", TINY.set(train={"accumulate": 2, "updates": 20, "eval_every": 20}), "data")
    folder, heard, killed = shared.folder(tmp_path), Heard(), threading.Event()

    def kill() -> None:
        while not list((folder / "checkpoints").glob("0*")):
            time.sleep(0.01)
        os.kill(training(folder), signal.SIGKILL)
        killed.set()

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(cluster.Killed):
        cluster._work(shared, tmp_path, heard, 2)
    assert killed.is_set()
    assert cluster._work(shared, tmp_path, heard, 2) == ""
    starts = [event for _, event in heard if event.kind == "start"]
    assert len(starts) == 2, "the other process is not silent"
    assert starts[1].update > 0
    assert outcome(folder) == outcome(train_here(shared, tmp_path / "here"))


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_an_error_of_several_processes_is_told_once(tmp_path: Path) -> None:
    alone = Job("too few batches", TINY, "data")
    assert "2 processes" in cluster._work(alone, tmp_path, Heard(), 2)
    assert len((alone.folder(tmp_path) / "log.txt").read_text().splitlines()) == 1


def test_the_others_do_not_wait_for_what_the_first_makes_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for ten minutes, and would end it with an error."""
    done: list[str] = []
    world = SimpleNamespace(leads=True, leave=lambda: done.append("left"))
    monkeypatch.setattr(worker, "join", lambda: world)
    monkeypatch.setattr(worker, "_finish", lambda *_: done.append("finished"))
    worker.work(lay_out(Job("short", TINY.set(train={"updates": 2, "eval_every": -1}), "data"), tmp_path))
    assert done == ["left", "finished"]


def test_processes_of_a_run_need_a_cluster(leadline: Callable[..., Any], tmp_path: Path) -> None:
    answer = leadline("reproduce", "deepnet-fig6", "--processes", 2, "--out", tmp_path / "out")
    assert answer.code == 2
    assert "--processes needs --on ray" in answer.err


def test_the_room_of_a_node_is_that_of_what_a_run_takes_there() -> None:
    def node(alive: bool = True, **resources: float) -> dict[str, Any]:
        return {"Alive": alive, "Resources": resources}

    nodes = [node(CPU=8.0, GPU=1.0), node(CPU=2.0, GPU=4.0), node(CPU=64.0, GPU=8.0, alive=False)]
    cluster._require_room(nodes, 8, gpus=False)  # on CPUs GPUs are not counted
    cluster._require_room(nodes, 2, gpus=True)
    with pytest.raises(UserError, match="--processes 4: no node of the cluster has CPUs and GPUs for more than 2; ask"):
        cluster._require_room(nodes, 4, gpus=True)  # there are four GPUs, and the run would wait for CPUs for ever


class Nodes:
    """A head without room for trainings, and two nodes with room for one each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "include_log_monitor": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.workers = [self.cluster.add_node(num_cpus=1) for _ in range(2)]
        self.address = self.cluster.address

    def kill(self, raylet: int) -> None:
        (node,) = (node for node in self.workers if node.all_processes["raylet"][0].process.pid == raylet)
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "token")  # nobody else is let in
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_worker_niceness", "0")  # Ray's processes give way to all others: here, to other tests
        pytest.importorskip("ray")
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as where a script starts nodes in the background
        made = Nodes()
        signal.signal(signal.SIGINT, before)
        yield made
        made.cluster.shutdown()


def training(folder: Path) -> int:
    """The process that trains there, or 0."""
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"leadline.jobs.worker" in words and str(folder).encode() in words:
            return int(each.parent.name)
    return 0


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


class Deaths:
    """Kills each run once, when it has saved: its process, the Ray worker above that, or the node above both."""

    def __init__(self, root: Path, nodes: Nodes) -> None:
        self.root, self.nodes = root, nodes
        self.saved: dict[str, int] = {}  # the last checkpoint when it was killed
        self.starts: dict[str, list[int]] = {}  # from which update

    def __call__(self, name: str, event: Event) -> None:
        if event.kind == "start":
            self.starts.setdefault(name, []).append(event.update)
        folder = job(name).folder(self.root)
        saved = sorted((folder / "checkpoints").glob("0*"))
        if name in self.saved or not saved:
            return
        self.saved[name] = int(saved[-1].name)
        process = training(folder)
        assert process, "it was over before it could be killed"
        if name == "process":
            os.kill(process, signal.SIGKILL)
        elif name == "worker":
            os.kill(parent(process), signal.SIGKILL)
        else:
            self.nodes.kill(parent(parent(process)))


@pytest.mark.slow
def test_what_is_killed_goes_on_and_what_fails_is_told(nodes: Nodes, tmp_path: Path) -> None:
    jobs = [job(name) for name in KEEP]
    wrong = Job("wrong", TINY.set(model={"placement": "no.such:Thing"}), "data")
    deaths = Deaths(tmp_path, nodes)
    with pytest.raises(UserError, match=r"1 of 4 runs failed; start again.*wrong: .*no.such:Thing.*log.txt"):
        cluster.execute([*jobs, wrong], tmp_path, nodes.address, deaths)
    assert len((wrong.folder(tmp_path) / "log.txt").read_text().splitlines()) == 1  # it was not tried again
    undisturbed = outcome(train_here(jobs[0], tmp_path / "here"))
    for each in jobs:
        first, second = deaths.starts[each.name]
        assert first == 0
        assert second >= deaths.saved[each.name] > 0, "it began again instead of going on"
        assert outcome(each.folder(tmp_path)) == undisturbed


@pytest.mark.slow
def test_a_run_that_no_node_has_room_for_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--processes 2: no node of the cluster has CPUs for more than 1; ask"):
        cluster.execute([job("process")], tmp_path, nodes.address, processes=2)


@pytest.mark.slow
def test_a_command_that_is_stopped_leaves_saved_trainings(nodes: Nodes, tmp_path: Path) -> None:
    jobs = [job("process"), job("worker")]  # one node is left, so the second waits for room

    def stop(name: str, event: Event) -> None:
        if event.update >= 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cluster.execute(jobs, tmp_path, nodes.address, stop)
    folders = [each.folder(tmp_path) for each in jobs]
    assert not any(training(folder) for folder in folders)
    assert any("SIGTERM after update" in (f / "log.txt").read_text() for f in folders if (f / "log.txt").exists())
    assert not any(finished(each, tmp_path) for each in jobs)


def train_here(what: Job, root: Path) -> Path:
    folder = lay_out(what, root)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as on a node: sums then round alike
    worker.work(folder)
    torch.set_num_threads(threads)
    return folder


def outcome(folder: Path) -> tuple[dict[str, Any], list[tuple[float, float]]]:
    """Its result but for its name, settings, time and commit, and the loss of every update."""
    result = json.loads((folder / "result.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return result | {"name": "", "settings": {}, "seconds": 0, "code": {}}, [
        (row["update"], row["loss"]) for row in rows if "loss" in row
    ]
