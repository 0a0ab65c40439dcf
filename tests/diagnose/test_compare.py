"""The row that `leadline placements --compare` shows of a placement: each number worked out another way."""

from __future__ import annotations

import copy

import pytest
import torch

from leadline import recipes
from leadline.cli import subjects
from leadline.diagnose.compare import Compared, measure
from leadline.diagnose.probe import Subject

RATE = 4e-3


def subject(placement: str, layers: int = 3) -> Subject:
    config = recipes.numerals().set(
        model={"placement": placement, "encoder_layers": 2, "decoder_layers": layers, "dim": 32, "ffn_dim": 64},
        data={"size": 500, "vocab_size": 200},
        optim={"lr": RATE},
    )
    return subjects.of_config(config)


@pytest.mark.parametrize("placement", ["post_ln", "pre_ln", "resi_dual"])
def test_growth_gradients_and_change_are_what_they_are_called(placement: str) -> None:
    found = subject(placement)
    row = measure(found, RATE)
    model = copy.deepcopy(found.model).eval()

    streams = []
    for connection in model.decoder.connections():
        connection.register_forward_hook(lambda module, _, out: streams.append(module.stream(out)))
    with torch.no_grad():
        model(found.batches[0].source, found.batches[0].target)
    sizes = [stream.norm(dim=-1).mean() for stream in streams]
    assert row.growth == pytest.approx(float(sizes[-1] / sizes[0]), rel=1e-5)

    weights = [model.decoder.blocks[i].ffn.contract.weight for i in (0, -1)]
    total = [torch.zeros_like(weight) for weight in weights]
    for batch in found.batches[:2]:
        loss = found.loss(model(batch.source, batch.target), batch)
        total = [t + g for t, g in zip(total, torch.autograd.grad(loss, weights), strict=True)]
    norms = [float(t.norm()) / 2 for t in total]
    assert [row.first_gradient, row.last_gradient] == pytest.approx(norms, rel=1e-3)


def test_change_is_that_of_one_step_of_adam() -> None:
    found = subject("pre_ln")
    row = measure(found, RATE)
    model, (first, *_, shown) = found.model, found.batches
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9)
    with torch.no_grad():
        before = model(shown.source, shown.target)
    found.loss(model(first.source, first.target), first).backward()  # the recipe has no dropout
    optimizer.step()
    with torch.no_grad():
        after = model(shown.source, shown.target)
    assert row.change == pytest.approx(float((after - before).norm() / before.norm()), rel=1e-3)


def test_what_the_papers_say_shows() -> None:
    """Post-LN's gradients are largest at the top (Xiong et al. 2020), and its stream does not grow; Pre-LN's does."""
    post, pre = (measure(subject(name, 6), RATE) for name in ("post_ln", "pre_ln"))
    assert post.last_gradient > 1.5 * post.first_gradient
    assert pre.last_gradient < pre.first_gradient
    assert post.growth == pytest.approx(1, abs=0.01)
    assert pre.growth > 1.5
    assert post.learns < pre.learns


def test_who_needs_warmup() -> None:
    assert Compared("a", 1, 1, 1, 1, learns=0.4).needs_warmup
    assert not Compared("a", 1, 1, 1, 1, learns=0.6).needs_warmup
