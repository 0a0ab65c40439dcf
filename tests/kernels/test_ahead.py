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


def compiled(cache: Path, capability: str, *cases: str) -> dict[str, tuple[int, int]]:
    """Of each kernel: bytes of shared memory, and how many instructions read or write two bytes of global memory."""
    call = [sys.executable, Path(__file__).with_name("ahead.py"), capability, "--cases", *cases]
    env = os.environ | {"TRITON_CACHE_DIR": str(cache / "triton")}  # what is found there is not compiled again
    done = subprocess.run(call, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])[capability]


@pytest.mark.slow
def test_every_kernel_of_an_update_compiles(cache: Path) -> None:
    """Those of the search: tests/kernels/test_fused_search.py."""
    kernels = compiled(cache, "90", "translation", "translation, modern block")
    update = ("embedding._embed", "residual._add_norm", "attention._attend_backward", "cross_entropy._cross_entropy")
    assert {*update, "adam._adam", "heads._prepare_backward"} <= kernels.keys()
    assert max(shared for shared, _ in kernels.values()) <= LIMITS["90"], kernels


@pytest.mark.slow
def test_odd_sizes_are_read_and_written_as_widely_as_even_ones(cache: Path) -> None:
    """Two bytes at a time, a row of logits took several times as long as it takes to move."""
    narrow = {name: count for name, (_, count) in compiled(cache, "90", "like Llama").items()}
    assert narrow == {
        "cross_entropy._cross_entropy": 1,  # the label's logit
        "heads._prepare": 0,
        "heads._prepare_backward": 0,
    }


@pytest.mark.slow
def test_attention_fits_where_least_does(cache: Path) -> None:
    """It alone takes much shared memory; 86 and 89 take what 120 does, and have the same limit.

    Every kernel for all of LIMITS takes minutes: python tests/kernels/ahead.py 80 86 89 90 100 120
    """
    kernels = compiled(cache, "120", "attention")
    assert kernels.keys() == {f"attention.{name}" for name in ("_attend", "_delta", "_attend_backward")}
    assert 16 << 10 < max(shared for shared, _ in kernels.values()) <= LIMITS["120"], kernels
