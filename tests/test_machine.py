"""Systems without some of what Linux has: the package loads, counts cores and trains there too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leadline import machine
from leadline.config import Config, to_toml

WITHOUT = """
import os, sys
for name in ("sched_getaffinity", "posix_fadvise", "posix_fallocate"):
    delattr(os, name)
sys.modules["fcntl"] = sys.modules["resource"] = None
from leadline import cli
sys.argv = ["leadline", *sys.argv[1:]]
cli.main()
"""


def test_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= machine.cores() <= (os.cpu_count() or 1)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert machine.cores() == os.cpu_count()
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.cores() == 1


def test_a_lock_is_held_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "lock").open("w") as one, (tmp_path / "lock").open("w") as other:
        assert machine.lock(one, wait=False)
        assert not machine.lock(other, wait=False)
        monkeypatch.setattr(machine, "fcntl", None)
        assert machine.lock(other, wait=False)


@pytest.mark.slow
def test_it_trains_where_nothing_of_linux_is_there(tiny: Config, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(to_toml(tiny.set(train={"updates": 2})))
    words = ["train", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "checkpoints" / "00000002" / "model.safetensors").exists()
