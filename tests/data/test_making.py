"""A folder is made once, whoever else makes it, and whatever a kill has left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leadline.config import DataConfig, to_dict
from leadline.data import making, manifest
from leadline.data.store import Store, prepare
from leadline.errors import UserError

PREPARE = """
import json, os, signal, sys
from leadline.config import DataConfig
from leadline.data import parallel
from leadline.data.store import Store, prepare

def progress(what, done):
    if what == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

parallel.CHUNK = 10
sys.stdin.readline()
print(Store(prepare(DataConfig(**json.loads(sys.argv[1])), progress=progress)).folder)
"""


def started(config: DataConfig, killed_when: str = "never") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PREPARE, json.dumps(to_dict(config)), killed_when]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.name != ".remembered")


def test_processes_that_prepare_the_same_at_once_make_it_once(corpus, fresh_cache: Path) -> None:
    config = corpus(train=300)
    processes = [started(config) for _ in range(3)]
    for process in processes:  # all have loaded what they need
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate()[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(set(answers)) == 1
    assert left(fresh_cache) == [Path(answers[0]).name]


def test_what_a_kill_leaves_is_gone_after_the_next_preparation(corpus, fresh_cache: Path) -> None:
    config = corpus(train=300)
    process = started(config, "encoding train")
    process.communicate("\n")
    assert process.returncode == -signal.SIGKILL
    assert str(process.pid) not in "".join(left(fresh_cache))
    assert len(left(fresh_cache)) == 2  # a lock and a folder
    folder = prepare(config)
    assert left(fresh_cache) == [folder.name]
    assert len(Store(folder).split("train")) == 300


def test_a_lock_whose_file_was_removed_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    lock, times = making.machine.lock, []

    def locked_as_its_owner_removes_it(file, wait: bool) -> bool:
        times.append(file.name)
        if len(times) == 1:
            path.unlink()
        return lock(file, wait)

    monkeypatch.setattr(making.machine, "lock", locked_as_its_owner_removes_it)
    with making._locked(path, lambda what, done: None):
        assert path.exists()
    assert len(times) == 2
    assert not path.exists()


def test_everything_is_on_the_disk_before_the_folder_has_its_name(corpus, tmp_path: Path, monkeypatch) -> None:
    synced: list[tuple[str, bool]] = []
    out = tmp_path / "data"
    monkeypatch.setattr(making, "sync", lambda path: synced.append((path.name, out.exists())))
    prepare(corpus(), out)
    before = {name for name, named in synced if not named}
    assert before >= {path.name for path in out.iterdir()}
    assert any(name.endswith(".unfinished") for name in before)
    assert synced[-1] == (tmp_path.name, True)


def test_unfinished_documents_that_are_damaged_are_made_from_the_beginning(tmp_path: Path, fresh_cache: Path) -> None:
    (tmp_path / "text").write_text("\n\n".join(f"This is {i}. It was {i}." for i in range(40)))
    config = DataConfig(source=f"documents:{tmp_path / 'text'}", vocab_size=40, valid_every=5)
    whole = {path.name: path.read_bytes() for path in prepare(config, tmp_path / "whole").iterdir()}
    key = json.loads(whole["manifest.json"])["key"]
    unfinished = tmp_path / f".again.{key[:16]}.unfinished"
    unfinished.mkdir()
    (unfinished / "tokenizer.json").write_bytes(os.urandom(100))
    (unfinished / "block-00000.json").write_bytes(b"\0" * 50)
    assert {path.name: path.read_bytes() for path in prepare(config, tmp_path / "again").iterdir()} == whole
    assert not unfinished.exists()


def test_a_mistake_in_the_text_leaves_nothing_to_go_on_with(tmp_path: Path, fresh_cache: Path) -> None:
    (tmp_path / "text").write_text("This is one document.")
    said: list[str] = []
    for _ in range(2):
        with pytest.raises(UserError, match="is a single document"):
            prepare(DataConfig(source=f"documents:{tmp_path / 'text'}"), None, lambda what, done: said.append(what))
    assert left(fresh_cache) == []
    assert not [what for what in said if "unfinished" in what]


def test_documents_whose_last_flush_failed_are_gone_on_with(tmp_path: Path, fresh_cache: Path, monkeypatch) -> None:
    """The manifest is there already, and is written again."""
    (tmp_path / "text").write_text("\n\n".join(f"This is {i}. It was {i}." for i in range(40)))
    config = DataConfig(source=f"documents:{tmp_path / 'text'}", vocab_size=40, valid_every=5)

    def fail(path: Path) -> None:
        assert (path if path.is_dir() else path.parent).joinpath("manifest.json").exists()
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(making, "sync", fail)
        with pytest.raises((OSError, UserError)):
            prepare(config, tmp_path / "data")
    manifest.check(tmp_path / "data", Store(prepare(config, tmp_path / "data")).manifest, again=True)
