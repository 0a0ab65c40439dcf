"""bench.tune: whatever way a kernel is cut, it computes the same."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime.errors import OutOfResources

from bench import tune


@pytest.mark.slow
def test_every_way_to_cut_a_kernel_computes_the_same() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    operations = tune.operations(tune.SIZES["tiny"], device, torch.float32)
    before = {name: torch.cat([each.flatten() for each in run()]) for name, run in operations.items()}
    tried = 0
    for operation, _, _, cut in tune.ways():
        with cut:
            try:
                after = torch.cat([each.flatten() for each in operations[operation]()])
            except OutOfResources:  # made for 16 bits
                continue
        torch.testing.assert_close(after, before[operation], rtol=1e-4, atol=1e-5)
        tried += 1
    assert tried > 20
