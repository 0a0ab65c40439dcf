"""What was computed from files is remembered while they stay as they are, and never when it is in doubt."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from leadline.data import remembered
from leadline.data.remembered import fingerprint
from leadline.errors import UserError


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text("one")
    return tmp_path / "text"


@pytest.fixture
def ask(fresh_cache: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Whether it was computed to answer this time; files count as settled at once."""
    monkeypatch.setattr(remembered, "SETTLED", -60)

    def _ask() -> bool:
        computed: list[bool] = []
        answer = remembered.remembered("hash", [text], lambda: computed.append(True) or text.read_text())
        assert answer == text.read_text()
        return bool(computed)

    return _ask


def test_it_is_computed_once(ask: Callable[[], bool]) -> None:
    assert [ask(), ask(), ask()] == [True, False, False]


def test_another_size_or_time_is_computed_anew(ask: Callable[[], bool], text: Path) -> None:
    ask()
    text.write_text("two")
    assert ask()
    text.write_text("three")
    assert ask()


def test_a_file_that_changed_a_moment_ago_is_not_trusted(ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "SETTLED", 60)
    assert [ask(), ask()] == [True, True]


def test_a_damaged_memory_is_computed_anew(ask: Callable[[], bool], fresh_cache: Path) -> None:
    ask()
    (entry,) = (fresh_cache / ".remembered").iterdir()
    whole = entry.read_bytes()
    for damaged in (b"", b"{", b"[]", b"null", b"[" * 5000, whole.replace(b"one", b"two"), whole[:-9], b"\xff"):
        entry.write_bytes(damaged)
        assert ask()
        assert not ask()


def test_a_cache_that_cannot_be_written_only_costs_time(ask: Callable[[], bool], fresh_cache: Path) -> None:
    fresh_cache.write_text("a file where the folder should be")
    assert [ask(), ask()] == [True, True]


def test_a_fingerprint_is_of_headings_and_contents(ask, text: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").write_text("one")
    (tmp_path / "other").write_text("two")
    first = fingerprint(b"", [("train ", text)])
    assert fingerprint(b"", [("train ", tmp_path / "copy")]) == first == fingerprint(b"", [("train ", text)])
    others = [(b"x", "train ", text), (b"", "valid ", text), (b"", "train ", tmp_path / "other")]
    assert len({first, *(fingerprint(start, [(heading, path)]) for start, heading, path in others)}) == 4


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is a pipe, and data is read more than once: write it to a file"):
        remembered.remembered("length", [tmp_path / "pipe"], lambda: 1)
