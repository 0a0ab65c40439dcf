"""How commands end: signals, readers that leave, a machine without room; nothing is lost and nothing is a traceback."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leadline.data.text import lines_ready

Leadline = Callable[..., Any]

# `leadline translate` with a translator that needs no torch.
ECHO = """
import sys
from leadline import cli

class Translator:
    split_up = 0
    def translate(self, lines): return [line.upper() for line in lines]

class Trained:
    def translator(self, world): return Translator()

cli.trainings.load_run = lambda *_: Trained()
sys.argv = ["leadline", "translate", "run"]
cli.main()
"""


@pytest.fixture
def echo() -> Iterator[subprocess.Popen[bytes]]:
    """A `leadline translate` that has answered one line and waits for the next."""
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", ECHO], bufsize=0, **pipes) as process:
        try:
            assert process.stdin
            assert process.stdout
            process.stdin.write("eins\nzwölf".encode())
            assert process.stdout.readline() == b"EINS\n"
            yield process
        finally:
            process.kill()


def test_ctrl_c_while_translate_waits_for_a_line(echo: subprocess.Popen[bytes]) -> None:
    echo.send_signal(signal.SIGINT)
    assert echo.stderr
    assert (echo.wait(30), echo.stderr.read()) == (130, b"leadline: stopped\n")


def test_translate_leaves_quietly_when_its_reader_has_left(echo: subprocess.Popen[bytes]) -> None:
    assert echo.stdin
    assert echo.stdout
    assert echo.stderr
    echo.stdout.close()
    echo.stdin.write(b"\n")  # stdin stays open
    assert (echo.wait(30), echo.stderr.read()) == (1, b"")


def test_ctrl_c_while_the_command_loads() -> None:
    loading = """
import sys

class Interrupted:
    def find_spec(self, name, *_):
        if name == "leadline.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from leadline.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", loading], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "leadline: stopped\n")


def test_lines_come_as_they_arrive_and_whole() -> None:
    class Pipe:
        def __init__(self, *reads: bytes) -> None:
            self.reads = [*reads, b""]

        def read1(self, most: int) -> bytes:
            return self.reads.pop(0)

    def arrived(*reads: bytes) -> list[list[str]]:
        return list(lines_ready(Pipe(*reads), most=2))  # type: ignore[arg-type]

    assert arrived(b"a\nb", b"c\n", b"\xc3", b"\xa9\r\n") == [["a"], ["bc"], ["é"]]
    assert arrived(b"a\nb\nc\nd") == [["a", "b"], ["c"], ["d"]]
    assert arrived(b"\n\n") == [["", ""]]
    assert arrived(b"\xef\xbb", b"\xbfa\n\xef\xbb\xbfb\n") == [["a", "\ufeffb"]]  # the mark of a file is no text
    assert arrived() == []


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "stopped"),
        (MemoryError(), 2, "this machine is out of memory: try"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), 2, "this machine is out of memory"),
        (RecursionError(), 2, "nested too deeply"),
        (OSError(errno.ENOSPC, "No space left on device", "a/file"), 2, "a/file: the disk is full"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "the disk is full"),
        (OSError(errno.EIO, "Input/output error", "a/file"), 2, "a/file: Input/output error"),
    ],
    ids=repr,
)
def test_what_the_machine_does_not_have_is_one_sentence(
    error: BaseException, code: int, said: str, leadline: Leadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("leadline.data.store.prepare", fail)
    answer = leadline("data", "prepare", "numerals")
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.startswith("leadline: ")
    assert answer.err.count("\n") == 1
    assert said in answer.err


def test_a_mistake_in_the_code_keeps_its_traceback(leadline: Leadline, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr("leadline.data.store.prepare", fail)
    with pytest.raises(KeyError, match="a mistake"):
        leadline("data", "prepare", "numerals")


# Files are whole or as they were


def test_translate_leaves_an_older_output_alone_until_the_new_one_is_whole(
    leadline: Leadline, finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.txt"
    out.write_text("before\n")
    assert leadline("translate", finished, "-o", out, stdin=b"eins\n\xff\n").code == 2
    assert out.read_text() == "before\n"
    assert leadline("translate", finished, "-o", out, stdin=b"eins\nzwei\n").code == 0
    assert len(out.read_text().splitlines()) == 2
    assert list(tmp_path.iterdir()) == [out]


def test_translate_writes_into_what_is_no_file_and_through_links(
    leadline: Leadline, finished: Path, tmp_path: Path
) -> None:
    assert leadline("translate", finished, "-o", "/dev/null", stdin=b"eins\n").code == 0
    assert not Path("/dev/null").is_file()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert leadline("translate", finished, "-o", tmp_path / "link", stdin=b"eins\n").code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text().endswith("\n")


@pytest.mark.parametrize("command", ["train numerals --out", "data prepare numerals --out", "report", "evaluate"])
def test_an_empty_path_is_not_the_current_folder(
    command: str, leadline: Leadline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "--out" if "--out" in command else "an argument"
    answer = leadline(*command.split(), "")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"leadline: {name} is empty: ")
    if name == "--out":
        assert leadline(*f"{command}=".split()).err == answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named_by_the_file_that_was_asked_for(
    leadline: Leadline, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("leadline.files.os.fsync", full)
    answer = leadline("translate", finished, "-o", tmp_path / "out.txt", stdin=b"eins\n")
    assert (answer.code, answer.err) == (2, f"leadline: {tmp_path / 'out.txt'}: the disk is full\n")
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_cannot_be_written_or_read_is_one_sentence(
    leadline: Leadline, finished: Path, tmp_path: Path
) -> None:
    odd = shutil.copytree(finished, os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    answer = leadline("report", odd, "--out", tmp_path / "page.html")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("leadline: a name that is not UTF-8 cannot be written: rename what is called ")
    assert "\\udcff" in answer.err
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    answer = leadline("report", tmp_path / "loop")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert str(tmp_path / "loop") in answer.err
