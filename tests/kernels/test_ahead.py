"""Kernels compile for GPUs that are not here, and fit in their shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

# Compute capability -> bytes of shared memory that a block may take (CUDA programming guide).
LIMITS = {"80": 163 << 10, "86": 99 << 10, "89": 99 << 10, "90": 227 << 10, "100": 227 << 10, "120": 99 << 10}


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["90"])
def test_every_kernel_of_an_update_compiles(capability: str, cache: Path) -> None:
    program = Path(__file__).with_name("ahead.py")
    done = subprocess.run([sys.executable, program, capability], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])[capability]
    assert {
        "_embed",
        "_add_norm",
        "_attend",
        "_attend_backward",
        "_cross_entropy",
        "_adam",
        "_activate",
    } <= found.keys()
    assert max(found.values()) <= LIMITS[capability], found
