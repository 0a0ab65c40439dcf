"""The losses of the first ten updates of every task are what they were: see bench/golden.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import golden

STORED = json.loads(golden.STORED.read_text())


@pytest.mark.parametrize("case", golden.CASES)
def test_losses_are_what_they_were(case: str, tmp_path: Path) -> None:
    """If they should differ, raise NUMERICS in leadline/provenance.py and run python -m bench.golden --write."""
    found = golden.measured(case, "eager", tmp_path)["losses"]
    assert len(found) == 10
    assert found == pytest.approx(STORED[f"{case}, eager"], abs=1e-4)
