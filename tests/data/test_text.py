"""Lines that are far too long: an error that names them, in little memory, or cut where text may be cut."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from pathlib import Path

import pytest

from leadline.config import DataConfig
from leadline.data.store import prepare
from leadline.data.text import LONGEST, lines_of, lines_ready
from leadline.errors import UserError


def test_a_line_may_have_a_mebibyte_and_not_a_byte_more(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(f"{'x' * LONGEST}\n{'y' * LONGEST}")
    assert [len(line) for line in lines_of(tmp_path / "a")] == [LONGEST, LONGEST]
    (tmp_path / "a").write_text(f"one\n{'x' * (LONGEST + 1)}\nthree")
    lines = lines_of(tmp_path / "a")
    assert next(lines) == "one"
    with pytest.raises(UserError, match=r"a, line 2: longer than 1,048,576 bytes"):
        next(lines)


@pytest.mark.parametrize("kind", ["text", "table"])
def test_a_small_file_that_expands_to_an_enormous_line_takes_little_memory(kind: str, tmp_path: Path) -> None:
    names = [f"{split}.{language}" for split in ("train", "valid") for language in ("de", "en")]
    for name in names if kind == "text" else ["train.tsv", "valid.tsv"]:
        (tmp_path / name).write_text("label\tsentence1\tsentence2\n" * 3)
    packed = tmp_path / ("train.de.gz" if kind == "text" else "train.tsv.gz")
    packed.with_suffix("").unlink()
    packed.write_bytes(gzip.compress(b"label\n" + b"x" * (64 << 20), compresslevel=1))
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=rf"{packed}, line 2: longer than"):
            prepare(DataConfig(source=f"{kind}:{tmp_path}", vocab_size=40), tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_line_on_stdin_that_never_ends_is_refused_before_it_fills_the_memory() -> None:
    class Endless(io.BytesIO):
        given = 0

        def read1(self, size: int | None = -1) -> bytes:
            self.given += 1 << 16
            return b"a\n" + b"x" * 10 if self.given == 1 << 16 else b"x" * (1 << 16)

    stream = Endless()
    lines = lines_ready(stream)
    assert next(lines) == ["a"]
    with pytest.raises(UserError, match=r"stdin, line 2: longer than 1,048,576 bytes"):
        next(lines)
    assert stream.given < 2 * LONGEST
