"""The short form of `python -m bench.faults`: what is broken on purpose gives no wrong result and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_what_breaks_is_told_or_changes_nothing() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("commands are forked")
    call = [sys.executable, "-m", "bench.faults", "--short"]
    done = subprocess.run(call, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("asked for") == 5
