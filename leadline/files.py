"""Files that are whole or absent."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

Facts = dict[str, Any]  # what a JSON object says, by name


def to_json(value: object, indent: int | None = None) -> str:
    """What any program reads as JSON: numbers that are not finite become null."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_json(text: str | bytes) -> Any:
    """Raises ValueError at whatever is not JSON, is nested too deeply, or holds text that cannot be written again."""
    try:
        value = json.loads(text)
        if (b"\\u" if isinstance(text, bytes) else "\\u") in text:  # type: ignore[operator]
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it holds half of a character (a lone surrogate)") from None
    return value


def read_json(path: Path) -> Any:
    """Raises OSError where it is not there and ValueError where it is not JSON."""
    return parse_json(path.read_bytes())


def facts_in(path: Path) -> Facts | None:
    """A JSON object, or nothing where it is not there or damaged."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


@contextlib.contextmanager
def written(path: Path) -> Iterator[TextIO]:
    """A text file that takes the place of `path` when all of it is on the disk; until then `path` is as it was."""
    if path.exists() and not path.is_file():  # /dev/stdout, a named pipe
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    target = path.resolve()  # what a link leads to
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")  # another process may write the same file
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        sync(target.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def write_text(path: Path, text: str) -> None:
    """Atomically: a reader sees the old file or the new one, also after the power has failed."""
    with written(path) as file:
        file.write(text)


def write_json(path: Path, value: object) -> None:
    write_text(path, to_json(value, indent=1))


def write_csv(path: Path, columns: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # there, a folder cannot be opened
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def reason(error: OSError) -> str:
    """Why a file cannot be read or written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "the disk is full" if full else error.strerror or str(error)


def checksum(value: object) -> str:
    """SHA-256 of a JSON value, whatever the order of its keys."""
    return sha256_of(json.dumps(value, sort_keys=True))
