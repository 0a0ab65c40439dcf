"""Schedules against values worked out by hand, optimizers against torch's own."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

from leadline.config import OptimConfig
from leadline.training import optim

LR = 0.01
TOTAL = 100


def rates(total: int = TOTAL, updates_per_epoch: int = 10, **options: Any) -> list[float]:
    """The rate of updates 1, 2, …, total."""
    function = optim.schedule(OptimConfig(lr=LR, **options), total, updates_per_epoch)
    return [function(t) for t in range(1, total + 1)]


def test_inverse_sqrt_without_warmup_is_lr_over_sqrt_t() -> None:
    for warmup in (0, 1):
        found = rates(schedule="inverse_sqrt", warmup=warmup)
        assert found == pytest.approx([LR / math.sqrt(t) for t in range(1, TOTAL + 1)])
        assert (found[0], found[3], found[99]) == pytest.approx((0.01, 0.005, 0.001))


def test_inverse_sqrt_is_the_formula_of_vaswani() -> None:
    """lr = d^-½ · min(t^-½, t · warmup^-1.5), which peaks at (d · warmup)^-½."""
    d, warmup = 512, 4000
    peak = (d * warmup) ** -0.5
    function = optim.schedule(OptimConfig(lr=peak, schedule="inverse_sqrt", warmup=warmup), 100_000, 1000)
    for t in (1, 2, 1000, 3999, 4000, 4001, 16000, 100_000):
        assert function(t) == pytest.approx(d**-0.5 * min(t**-0.5, t * warmup**-1.5))
    assert function(16000) == pytest.approx(peak / 2)


def test_hold_inverse_sqrt_keeps_the_peak_then_decays() -> None:
    found = rates(schedule="hold_inverse_sqrt", warmup=0, hold=25)
    assert found[:25] == [LR] * 25
    assert found[99] == pytest.approx(LR / 2)  # √(25/100)
    assert found[35] == pytest.approx(LR * 5 / 6)  # √(25/36)


def test_hold_inverse_sqrt_can_rise_first() -> None:
    found = rates(schedule="hold_inverse_sqrt", warmup=10, hold=25)
    assert found[4] == pytest.approx(LR / 2)
    assert found[9:25] == pytest.approx([LR] * 16)


def test_constant_rises_and_stays() -> None:
    assert rates(schedule="constant", warmup=4)[:6] == pytest.approx([LR / 4, LR / 2, LR * 3 / 4, LR, LR, LR])
    assert rates(schedule="constant", warmup=0) == [LR] * TOTAL


def test_linear_starts_at_the_peak_and_ends_one_step_before_zero() -> None:
    assert rates(schedule="linear", warmup=0) == pytest.approx([LR * (101 - t) / 100 for t in range(1, 101)])


def test_linear_falls_in_equal_steps_after_the_warmup() -> None:
    found = rates(schedule="linear", warmup=20)
    assert found[:20] == pytest.approx([LR * t / 20 for t in range(1, 21)])
    falls = [a - b for a, b in zip(found[19:], [*found[20:], 0.0], strict=True)]
    assert falls == pytest.approx([LR / 81] * 81)


def test_cosine_is_half_way_down_in_the_middle() -> None:
    found = rates(total=101, schedule="cosine", warmup=1)  # reaches 0 at 102, so the middle is at 51.5
    assert found[0] == pytest.approx(LR)
    assert (found[50] + found[51]) / 2 == pytest.approx(LR / 2)
    assert found[-1] == pytest.approx(LR * math.sin(math.pi / 202) ** 2)


def test_cosine_rises_first() -> None:
    assert rates(schedule="cosine", warmup=10)[:10] == pytest.approx([LR * t / 10 for t in range(1, 11)])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 10])
def test_linear_and_cosine_reach_almost_zero_and_stay_there(schedule: str, warmup: int) -> None:
    function = optim.schedule(OptimConfig(lr=LR, schedule=schedule, warmup=warmup), TOTAL, 10)  # type: ignore[arg-type]
    assert 0 < function(TOTAL) < 0.02 * LR
    assert function(TOTAL + 1) == pytest.approx(0, abs=1e-12)
    assert function(TOTAL + 50) == pytest.approx(0, abs=1e-12)


def test_step_decays_when_the_named_epoch_begins() -> None:
    found = rates(schedule="step", warmup=0, decay_at=(3, 8), decay_factor=0.1)  # 10 updates an epoch
    assert found == pytest.approx([LR] * 20 + [LR * 0.1] * 50 + [LR * 0.01] * 30)


def test_step_decays_after_the_named_updates() -> None:
    found = rates(schedule="step", warmup=0, decay_at=(30,), decay_unit="updates", decay_factor=0.5)
    assert found == pytest.approx([LR] * 30 + [LR * 0.5] * 70)


def test_step_then_inverse_sqrt_falls_from_the_last_decay() -> None:
    options = {"decay_at": (9, 25), "decay_unit": "updates", "decay_factor": 0.1, "after_decay": "inverse_sqrt"}
    found = rates(schedule="step", warmup=0, **options)
    assert found[:9] == pytest.approx([LR] * 9)
    assert found[9:25] == pytest.approx([LR * 0.1] * 16)
    assert found[25:] == pytest.approx([LR * 0.01 * 5 / math.sqrt(t) for t in range(26, 101)])


def test_step_without_milestones_is_constant() -> None:
    assert rates(schedule="step", warmup=0, after_decay="inverse_sqrt") == [LR] * TOTAL


SMOOTH = ["inverse_sqrt", "hold_inverse_sqrt", "linear", "constant", "cosine"]


@pytest.mark.parametrize("schedule", [*SMOOTH, "step"])
@pytest.mark.parametrize("warmup", [0, 1, 100])
def test_no_schedule_exceeds_its_peak_and_all_reach_it_at_the_end_of_the_warmup(schedule: str, warmup: int) -> None:
    found = rates(total=1000, schedule=schedule, warmup=warmup, hold=300, decay_at=(50,))
    assert max(found) == pytest.approx(LR)
    assert found[max(warmup, 1) - 1] == pytest.approx(LR)
    assert min(found) > 0


@pytest.mark.parametrize("schedule", SMOOTH)
def test_schedules_have_no_jumps(schedule: str) -> None:
    found = rates(total=1000, schedule=schedule, warmup=100, hold=300)
    jumps = [abs(a - b) for a, b in itertools.pairwise(found)]
    assert max(jumps) <= LR / 100 * 1.0001  # the slope of the warm-up, which is the steepest part


TORCH = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "radam": torch.optim.RAdam}


def model_of(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 8) -> None:
    inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
    for _ in range(count):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", TORCH)
def test_an_optimizer_takes_the_steps_of_torchs_own(name: str) -> None:
    config = OptimConfig(name=name, lr=LR, betas=(0.8, 0.95), eps=1e-6, momentum=0.9)  # type: ignore[arg-type]
    own, expected = model_of(), model_of()
    options = {"momentum": 0.9} if name == "sgd" else {"betas": (0.8, 0.95), "eps": 1e-6}
    if name == "adamw":
        options["weight_decay"] = 0.0
    take_steps(own, optim.optimizer(config, own))
    take_steps(expected, TORCH[name](expected.parameters(), lr=LR, **options))
    for before, after, reference in zip(model_of().parameters(), own.parameters(), expected.parameters(), strict=True):
        assert not torch.equal(before, after)
        torch.testing.assert_close(after, reference, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", TORCH)
def test_weight_decay_applies_to_matrices_only(name: str) -> None:
    without, with_decay = model_of(), model_of()
    for model, decay in ((without, 0.0), (with_decay, 0.5)):
        config = OptimConfig(name=name, lr=LR, weight_decay=decay)  # type: ignore[arg-type]
        take_steps(model, optim.optimizer(config, model), 1)
    for plain, decayed in zip(without.parameters(), with_decay.parameters(), strict=True):
        assert torch.equal(plain, decayed) == (plain.ndim < 2)


@pytest.mark.parametrize("name", ["adamw", "radam"])
def test_decoupled_weight_decay_shrinks_weights_and_stays_out_of_the_moments(name: str) -> None:
    """w ← (1 - lr·decay)·w where there is no gradient: of all but SGD and Adam."""
    model = nn.Linear(4, 4)
    before = model.weight.detach().clone()
    config = OptimConfig(name=name, lr=LR, weight_decay=0.5)  # type: ignore[arg-type]
    optimizer = optim.optimizer(config, model)
    (model.weight.sum() * 0).backward()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before * (1 - LR * 0.5))
    assert not optimizer.state[model.weight]["exp_avg"].any()


def test_frozen_weights_are_left_alone() -> None:
    model = model_of()
    model[0].weight.requires_grad_(False)
    optimizer = optim.optimizer(OptimConfig(), model)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()} - {id(model[0].weight)}


def test_without_a_word_the_rate_is_that_of_a_pre_ln_training() -> None:
    """The full rate from the first update on, and slowly less; 1/sqrt from the beginning would hardly learn."""
    rate, peak = optim.schedule(OptimConfig(), 20_000, 100), OptimConfig().lr
    assert [rate(update) for update in (1, 100, 4000)] == [peak] * 3
    assert [rate(update) for update in (16_000, 20_000)] == pytest.approx([peak / 2, peak * 0.2**0.5])
