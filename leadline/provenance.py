"""Which code made a result. No torch."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import leadline
from leadline.files import Facts, checksum, read_json

# Raised when the same config on the same data computes something else than before. A result of another number is not
# used again, and a run that goes on from one says so.
#   1  until 2026-11-16
#   2  q, k and v start at 1/√2 of Xavier unless a placement's constants are defined on Xavier; each micro-batch of an
#      update has its own seed of dropout; the captured step adds up the embeddings' gradient in a fixed order
NUMERICS = 2
FORMAT = 2  # of run.json and result.json; 1 had neither config nor code


@functools.cache
def code() -> Facts:
    """The package's version and, where it runs from its repository, the commit and whether files differ from it."""
    facts: Facts = {"version": leadline.__version__}
    # A package that was installed somewhere below another repository is not part of that one.
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is not None:
        facts |= {"commit": _git("rev-parse", "HEAD"), "dirty": bool(_git("status", "--porcelain", "--", "."))}
    return facts


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def stamp() -> Facts:
    """What every run.json and result.json begins with."""
    return {"format": FORMAT, "numerics": NUMERICS, "code": code()}


def facts_of(run: Path) -> Facts:
    """What run.json says, the config among it where it has a seal; nothing where it is missing or damaged."""
    try:
        facts = read_json(run / "run.json")
        seal = facts.get("seal")
        whole = seal is None or seal == checksum({key: value for key, value in facts.items() if key != "seal"})
        if seal is not None and not ({"config_sha256", "replaced_sha256"} <= facts.keys() and facts["config"].keys()):
            return {}
    except (OSError, ValueError, AttributeError, KeyError):
        return {}
    return facts if whole else {}
