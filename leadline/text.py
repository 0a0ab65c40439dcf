"""Lines of text from files and pipes."""

from __future__ import annotations

import codecs
import gzip
import lzma
import queue
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from leadline.errors import UserError


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, plain, .gz or .xz; a damaged one is an error that names the line."""
    opener: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    number = 0
    try:
        with opener(path, "rb") as file:
            for line in file:
                number += 1
                yield decoded(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, str(path), number)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{path} is damaged after line {number}: {error}") from None


def decoded(line: bytes, where: str, number: int) -> str:
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}, line {number}: not valid UTF-8 ({error.reason} at byte {error.start})") from None


def lines_ready(stream: IO[bytes], most: int = 256) -> Iterator[list[str]]:
    """The lines that have arrived, as soon as there is one: a pipe is answered without waiting for its end."""
    arrived: queue.Queue[bytes | None] = queue.Queue(4 * most)

    def read() -> None:
        for line in iter(stream.readline, b""):
            arrived.put(line)
        arrived.put(None)

    threading.Thread(target=read, daemon=True).start()
    number, ended = 0, False
    while not ended:
        chunk: list[str] = []
        item = arrived.get()
        while item is not None:
            number += 1
            chunk.append(decoded(item, "stdin", number))
            if len(chunk) == most or arrived.empty():
                break
            item = arrived.get()
        ended = item is None
        if chunk:
            yield chunk
