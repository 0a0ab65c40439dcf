"""leadline.choose: a rate for anybody's model, which is left as it was."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import leadline
from leadline import rates
from leadline.errors import UserError

STEPS = 16


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.norm = nn.BatchNorm1d(16)
        self.out = nn.Linear(16, 12)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.layer(self.embed(tokens))
        return self.out(self.norm(x.flatten(0, 1))).view(*tokens.shape, 12)


def loss(output: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), tokens.flatten())


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "ENOUGH", 140)


def drawn(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 12, (4, 6), generator=generator) for _ in range(count)]


def test_it_chooses_a_rate_that_learns_and_puts_everything_back() -> None:
    torch.manual_seed(0)
    model = Tiny()
    optimizer = torch.optim.Adam(model.parameters(), lr=123.0)
    loss(model(drawn(1)[0]), drawn(1)[0]).backward()
    optimizer.step()
    before = [t.clone() for t in (*model.state_dict().values(), *(p.grad for p in model.parameters()))]
    moments = [v.clone() for state in optimizer.state.values() for v in state.values()]
    state = torch.random.get_rng_state()

    loader = torch.utils.data.DataLoader(drawn(40), batch_size=None, shuffle=True)  # type: ignore[arg-type]
    choice = leadline.choose(model, loader, loss, optimizer, updates=400)

    assert torch.equal(torch.random.get_rng_state(), state)
    after = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert all(
        torch.equal(a, b)
        for a, b in zip((v for s in optimizer.state.values() for v in s.values()), moments, strict=True)
    )
    assert optimizer.param_groups[0]["lr"] == 123.0
    assert model.training
    assert choice.warmup == 40
    assert choice.updates <= 140
    assert choice == leadline.choose(model, loader, loss, optimizer, updates=400)

    ends = {}
    for rate in (choice.rate, rates.ladder("Adam")[0]):
        torch.manual_seed(0)
        model = Tiny()
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        for tokens in drawn(30):
            optimizer.zero_grad()
            last = loss(model(tokens), tokens)
            last.backward()
            optimizer.step()
        ends[rate] = float(last.detach())
    assert min(ends, key=lambda rate: ends[rate]) == choice.rate


def test_all_random_numbers_are_left_as_they_were() -> None:
    """Also those that a loss or a loader draws from Python and NumPy."""

    def noisy(output: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return loss(output, tokens) * (1 + 1e-3 * random.random() + 1e-3 * np.random.rand())

    before = random.getstate(), np.random.get_state()[1].tolist()
    leadline.choose(Tiny(), (batch for batch in drawn(9) if random.random() >= 0), noisy, updates=400)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        raise RuntimeError("on purpose")


def test_what_it_cannot_choose_is_a_sentence() -> None:
    model = Tiny()
    with pytest.raises(UserError, match="give 3 batches or more, not 2"):
        leadline.choose(model, drawn(2), loss, updates=400)
    with pytest.raises(UserError, match="1 or more"):
        leadline.choose(model, drawn(9), loss, updates=0)
    with pytest.raises(UserError, match=r"takes a torch\.nn\.Module, not str"):
        leadline.choose("model", drawn(9), loss, updates=400)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"the backward pass failed: .*on purpose"):
        leadline.choose(model, drawn(9), lambda output, tokens: Fails.apply(loss(output, tokens)), updates=400)
    model.embed.weight.data.fill_(float("nan"))
    with pytest.raises(UserError, match="not finite at any rate"):
        leadline.choose(model, drawn(9), loss, updates=400)
