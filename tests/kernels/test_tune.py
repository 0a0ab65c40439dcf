"""bench.tune: whatever way a kernel is cut, it computes the same."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from bench import tune


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_every_way_to_cut_a_kernel_computes_the_same() -> None:
    device = torch.device("cpu")
    torch.manual_seed(0)
    operations = tune.operations(tune.SIZES["tiny"], device, torch.float32)
    before = {name: torch.cat([each.flatten() for each in run()]) for name, run in operations.items()}
    tried = 0
    for operation, _, _, cut in tune.ways():
        with cut:
            after = torch.cat([each.flatten() for each in operations[operation]()])
        torch.testing.assert_close(after, before[operation], rtol=1e-4, atol=1e-5)
        tried += 1
    assert tried > 30
