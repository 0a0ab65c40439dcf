"""torchrun itself: what it starts trains as one process does. On a GPU: captured, through NCCL and through the host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from leadline import history

pytestmark = pytest.mark.slow
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MODEL = ("encoder_layers=1", "decoder_layers=1", "dim=64", "ffn_dim=64", "heads=2", "dropout=0.1")
UPDATES = 20


def trained(folder: Path, name: str, device: str, precision: str, starter: list[str]) -> Path:
    train = ("updates=20", "accumulate=2", "batch_tokens=512", "log_every=1", "eval_every=-1", f"device={device}")
    how = (f"step={'graph' if device == 'cuda' else 'eager'}", f"precision={precision}")
    words = [f"model.{setting}" for setting in MODEL] + [f"train.{setting}" for setting in (*train, *how)]
    words += ["data.size=2000", "data.vocab_size=300"]
    command = [*starter, "-m", "leadline", "train", "numerals", "--out", name]
    command += [word for setting in words for word in ("--set", setting)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "LEADLINE_CACHE": str(folder / "cache")}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
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
