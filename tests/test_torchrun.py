"""torchrun itself: what it starts trains as one process does. On a GPU: captured, through NCCL and through the host."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from leadline import history

pytestmark = pytest.mark.slow
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MODEL = ("encoder_layers=1", "decoder_layers=1", "dim=64", "ffn_dim=64", "heads=2", "dropout=0.1")
UPDATES = 20


def command(folder: Path, name: str, device: str, precision: str, updates: int = UPDATES) -> list[str]:
    train = ("accumulate=2", "batch_tokens=512", "log_every=1", "eval_every=-1", f"device={device}")
    train += (f"updates={updates}", f"step={'graph' if device == 'cuda' else 'eager'}", f"precision={precision}")
    words = [f"model.{setting}" for setting in MODEL] + [f"train.{setting}" for setting in train]
    words += ["data.size=2000", "data.vocab_size=300"]
    options = [word for setting in words for word in ("--set", setting)]
    return ["-m", "leadline", "train", "numerals", "--out", str(folder / name), *options]


def environment(folder: Path, **more: str) -> dict[str, str]:
    own = {"OMP_NUM_THREADS": "1", "LEADLINE_CACHE": str(folder / "cache"), "LEADLINE_TIMEOUT": "100"}
    return os.environ | own | more


def trained(folder: Path, name: str, device: str, precision: str, starter: list[str]) -> Path:
    call = [*starter, *command(folder, name, device, precision)]
    ended = subprocess.run(call, env=environment(folder), capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    return folder / name


@pytest.mark.parametrize(
    ("device", "precision", "processes"),
    [
        ("cpu", "fp32", 2),
        pytest.param("cuda", "bf16", 1, marks=NEEDS_GPU),
        pytest.param("cuda", "fp32", 2, marks=NEEDS_GPU),  # bf16 would enlarge what another order of sums changes
    ],
    ids=["gloo on CPUs", "NCCL", "two on a GPU"],
)
def test_torchrun_trains_as_one_process_does(device: str, precision: str, processes: int, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    alone = trained(tmp_path, "alone", device, precision, [sys.executable])
    shared = trained(tmp_path, "shared", device, precision, torchrun)
    losses = [history.read(run).points("loss")[1] for run in (alone, shared)]
    assert len(losses[0]) == UPDATES
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    if device == "cpu" or processes == 1:  # otherwise each process adds up its own batches first
        first, second = (load_file(run / f"checkpoints/{UPDATES:08d}/model.safetensors") for run in (alone, shared))
        assert all(torch.equal(first[name], second[name]) for name in first)


@NEEDS_GPU
def test_one_that_is_stopped_does_not_wait_for_what_it_has_captured(tmp_path: Path) -> None:
    """NCCL does, when it ends, for the graphs that hold its collectives."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    told = environment(
        tmp_path,
        RANK="0",
        WORLD_SIZE="1",
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
    )
    call = [sys.executable, *command(tmp_path, "run", "cuda", "bf16", updates=1_000_000)]
    process = subprocess.Popen(call, env=told, stderr=subprocess.PIPE, text=True)
    try:
        metrics, ends = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 150
        while not (metrics.exists() and metrics.read_text().count("loss") > 9) and process.poll() is None:
            assert time.monotonic() < ends
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=40)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "--resume" in said
