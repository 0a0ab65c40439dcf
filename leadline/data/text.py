"""Lines of text from files and pipes."""

from __future__ import annotations

import codecs
import functools
import gzip
import lzma
import zlib
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from leadline.errors import UserError

LONGEST = 1 << 20  # bytes of a line


def lines_of(path: Path, cut_at: int = 0) -> Iterator[str]:
    """The lines of a UTF-8 file, plain, .gz or .xz; a damaged one is an error that names the line.

    No line need fit in memory. One of more than LONGEST bytes is an error too; with `cut_at`, one of more than so many
    comes as several, cut between words.
    """
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    number, before, rest = 1, 0, b""  # lines begun, bytes of this one that were given already, bytes waiting
    try:
        with opener(path, "rb") as file:
            for read in iter(functools.partial(file.readline, cut_at if cut_at > 0 else LONGEST + 1), b""):
                line = rest + read
                ended = line.endswith(b"\n")
                if cut_at <= 0 and len(read) > LONGEST and not ended:
                    raise _too_long(str(path), number)
                cut = len(line) if ended or len(line) < cut_at or cut_at <= 0 else _last_cut(line)
                rest = line[cut:]
                begins = number == 1 and before == 0
                yield decoded(
                    line[:cut].removeprefix(codecs.BOM_UTF8) if begins else line[:cut], str(path), number, before
                )
                number, before = (number + 1, 0) if ended else (number, before + cut)
            if rest:
                yield decoded(rest, str(path), number, before)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{path} is damaged after line {number - 1}: {error}") from None


def _too_long(where: str, number: int) -> UserError:
    return UserError(f"{where}, line {number}: longer than {LONGEST:,} bytes: divide it into sentences or remove it")


def _last_cut(line: bytes) -> int:
    """After the last space, or else before the last character."""
    if space := line.rfind(b" ") + 1:
        return space
    return next((i for i in range(len(line) - 1, max(len(line) - 5, 0), -1) if line[i] & 0xC0 != 0x80), len(line))


def decoded(line: bytes, where: str, number: int, before: int = 0) -> str:
    """`before`: bytes of the line that came before these."""
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        place = f"{error.reason} at byte {before + error.start}"
        raise UserError(
            f"{where}, line {number}: not valid UTF-8 ({place}): convert it, for example with iconv -f LATIN1 -t UTF-8"
        ) from None


def lines_ready(stream: BufferedIOBase, most: int = 256) -> Iterator[list[str]]:
    """The lines that have arrived, as soon as there is one: a pipe is answered without waiting for its end.

    No thread reads ahead: one that waits in the stream when the interpreter exits aborts it.
    """
    number, begun = 0, list[bytes]()  # lines given, pieces of the one that has no end yet
    ended, waiting = False, 0  # bytes of that one
    while not ended:
        read = stream.read1(1 << 16)  # what is there, or waits for it
        ended = not read
        first, *others = read.split(b"\n")
        begun.append(first)
        waiting = len(others[-1]) if others else waiting + len(first)
        lines = []
        if others:
            lines, begun = [b"".join(begun), *others[:-1]], [others[-1]]
        elif ended and any(begun):
            lines = [b"".join(begun)]
        elif waiting > LONGEST:
            raise _too_long("stdin", number + 1)
        for start in range(0, len(lines), most):
            chunk = lines[start : start + most]
            if number == 0:
                chunk[0] = chunk[0].removeprefix(codecs.BOM_UTF8)
            yield [decoded(line, "stdin", number + i) for i, line in enumerate(chunk, 1)]
            number += len(chunk)
