"""What was computed from files, remembered in the cache folder while they keep their sizes and times.

An entry is a small file, whole or absent, with a checksum of its own: what is damaged is computed anew, and so is what
cannot be written. Files that changed a moment ago are not trusted, because a clock may not tell two changes apart.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from leadline.errors import UserError
from leadline.files import checksum, read_json, write_text

SETTLED = 2.0  # seconds after its last change from which a file is known by its times


def cache_folder() -> Path:
    return Path(os.environ.get("LEADLINE_CACHE", "~/.cache/leadline")).expanduser()


def remembered(what: str, files: Sequence[Path], compute: Callable[[], Any]) -> Any:
    """`compute()`, a JSON value that depends on `what` and on the contents of `files`; OSError if one is missing."""
    names = [what, *(str(path.absolute()) for path in files)]
    place = cache_folder() / ".remembered" / f"{checksum(names)[:32]}.json"
    before = _times(files)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        entry = read_json(place)
        if entry["of"] == [names, before] and entry["checksum"] == checksum([entry["of"], entry["value"]]):
            return entry["value"]
    value = compute()
    newest = max((max(changes) for _, *changes in before), default=0)
    if before == _times(files) and newest < (time.time() - SETTLED) * 1e9:
        entry = {"of": [names, before], "value": value, "checksum": checksum([[names, before], value])}
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_text(place, json.dumps(entry))
    return value


def _times(files: Sequence[Path]) -> list[list[int]]:
    """Size, and when the contents and anything else about it last changed."""
    stats = [path.stat() for path in files]
    for path, s in zip(files, stats, strict=True):
        if stat.S_ISFIFO(s.st_mode):  # whoever opens it waits, perhaps for ever
            raise UserError(f"{path} is a pipe, and data is read more than once: write it to a file")
    return [[s.st_size, s.st_mtime_ns, s.st_ctime_ns] for s in stats]


def fingerprint(start: bytes, files: Sequence[tuple[str, Path]]) -> str:
    """SHA-256 of `start` and then of each file behind its heading."""

    def compute() -> str:
        digest = hashlib.sha256(start)
        for heading, path in files:
            digest.update(heading.encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()

    what = f"fingerprint {start.hex()} {[heading for heading, _ in files]}"
    return str(remembered(what, [path for _, path in files], compute))
