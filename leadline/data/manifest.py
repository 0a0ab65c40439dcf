"""The manifest of prepared data: what it says, and whether the files beside it are still what it says.

It holds the SHA-256 of every other file and a checksum of itself, so that no bit changes unnoticed. What was verified
is remembered while the files keep their sizes and times; `leadline data check` reads them all again.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from leadline import machine
from leadline.data.remembered import remembered
from leadline.data.sources import FORMS
from leadline.errors import UserError
from leadline.files import Facts, checksum, read_json, sha256

FORMAT = 1
# What manifests hold; those of earlier versions lack the last six, only those of language models have trigrams and only
# those of many languages have directions.
TYPES: dict[str, type] = {
    "format": int, "key": str, "data": dict, "splits": dict, "vocab_size": int, "sha256": dict,
    "holds": str, "labels": list, "notes": list, "checksum": str, "trigrams": dict, "directions": dict,
}  # fmt: skip
TRIGRAMS = ("nll", "bits_per_byte")
NEEDED = ("format", "key", "data", "splits", "vocab_size", "sha256")


class Damaged(UserError):
    """Prepared data is not what was prepared."""

    def __init__(self, path: Path, why: str) -> None:
        self.what = f"{path} is damaged ({why})"
        super().__init__(f"{self.what}: prepare the data again")


def write(folder: Path, facts: Facts) -> None:
    """Of all the other files that are there; one that an earlier attempt has left is written anew."""
    hashes = {path.name: sha256(path) for path in sorted(folder.iterdir()) if path.name != "manifest.json"}
    manifest = {"format": FORMAT, **facts, "sha256": hashes}
    manifest["checksum"] = checksum(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")


def read(folder: Path) -> Facts:
    path = folder / "manifest.json"
    try:
        manifest = read_json(path)
    except (OSError, ValueError) as error:
        why = "it has no manifest.json" if isinstance(error, FileNotFoundError) else error
        raise UserError(f"{folder} is not prepared data ({why}): make it with leadline data prepare") from None
    if not isinstance(manifest, dict) or not manifest.keys() >= set(NEEDED):
        raise UserError(f"{folder} is not prepared data: make it with leadline data prepare")
    written = {key: value for key, value in manifest.items() if key != "checksum"}
    if "checksum" in manifest and manifest["checksum"] != checksum(written):
        raise Damaged(path, "it is not as it was written")
    if manifest["format"] != FORMAT:
        raise UserError(f"{folder} was prepared by another version of leadline: prepare it again")
    for key, value in manifest.items():
        if key not in TYPES or type(value) is not TYPES[key]:
            raise Damaged(path, f"{key!r} cannot be {str(value)[:40]!r}")
    holds, hashes = manifest.setdefault("holds", "pairs"), manifest["sha256"]
    if holds not in FORMS:
        raise Damaged(path, f"'holds' cannot be {holds!r}")
    if not all(Path(name).name == name and isinstance(value, str) for name, value in hashes.items()):
        raise Damaged(path, "'sha256' does not name files")
    if "trigrams" in manifest and [type(manifest["trigrams"].get(name)) for name in TRIGRAMS] != [float, float]:
        raise Damaged(path, "'trigrams' are not losses")
    for split, counts in manifest["splits"].items():
        if not _are_counts(counts, holds, len(hashes)):
            raise Damaged(path, f"what it says of {split} makes no sense")
    for split, sizes in manifest.get("directions", {}).items():
        if not _divide(sizes, manifest["splits"].get(split)):
            raise Damaged(path, f"what it says of the directions of {split} makes no sense")
    return manifest


def _divide(sizes: Any, counts: Any) -> bool:
    """Whether they are the rows of directions, and together those of the split, where it has tokens."""
    return (
        isinstance(sizes, dict)
        and all(type(rows) is int and rows >= 0 for rows in sizes.values())
        and (counts is None or sum(sizes.values()) == counts["rows"])
    )


def _are_counts(counts: Any, holds: str, files: int) -> bool:
    """Whether they are those of a split."""

    def numbers(values: Any, length: int | None = None) -> bool:
        return (
            isinstance(values, list)
            and all(type(value) is int and value >= 0 for value in values)
            and length in (None, len(values))
        )

    if not isinstance(counts, dict):
        return False
    if holds == "documents":
        plain = [counts.get(name) for name in ("documents", "sentences", "tokens", "empty_left_out")]
        return numbers(plain) and numbers(counts.get("shards"))
    plain = [counts.get(name) for name in ("rows", "shards", "empty_left_out")]
    return numbers(plain) and counts["shards"] <= files and numbers(counts.get("tokens"), 2)


def check(folder: Path, manifest: Facts, again: bool = False) -> None:
    """Compare every file with its hash, or remember that this was done; `again`: read them all."""
    paths = [folder / name for name in manifest["sha256"]]

    def compute() -> dict[str, str]:
        with ThreadPoolExecutor(machine.cores()) as threads:
            return dict(zip(manifest["sha256"], threads.map(sha256, paths), strict=True))

    try:
        hashes = compute() if again else remembered("prepared data", paths, compute)
    except OSError as error:
        raise Damaged(Path(error.filename or folder), error.strerror or str(error)) from None
    for path in paths:
        if hashes[path.name] != manifest["sha256"][path.name]:
            raise Damaged(path, "it is not what was prepared")
