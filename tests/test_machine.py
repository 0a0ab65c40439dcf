"""Systems without some of what Linux has: the package loads, counts cores and trains there too."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leadline import machine
from leadline.config import Config, to_toml


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


def test_it_trains_where_nothing_of_linux_is_there(
    tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leadline: Callable[..., Any]
) -> None:
    for name in ("sched_getaffinity", "posix_fadvise", "posix_fallocate"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(machine, "fcntl", None)
    (tmp_path / "tiny.toml").write_text(to_toml(tiny.set(train={"updates": 2})))
    assert leadline("train", tmp_path / "tiny.toml", "--out", tmp_path / "run").code == 0
    assert (tmp_path / "run" / "checkpoints" / "00000002" / "model.safetensors").exists()


def test_only_one_module_asks_for_what_not_every_system_has() -> None:
    """Anywhere else, importing it would fail there."""
    for path in Path(machine.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert path.name == "machine.py" or not re.search(r"import (fcntl|resource|termios|pwd|grp)\b|sched_", text), (
            path
        )
