"""What is measured is what an independent computation gives, and everything is left as it was found."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leadline.diagnose.probe import Subject, diversity, initial, look, relative_change, rollout
from leadline.diagnose.record import QUANTITIES, Record
from leadline.errors import UserError
from leadline.kernels.pack import pack, pack_one
from leadline.model import Transformer

DIM = 16


class Layer(nn.Module):
    """A Post-LN or Pre-LN block that keeps what it adds, so that a test can look."""

    def __init__(self, pre: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.pre = pre
        self.mix, self.up, self.down = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)
        self.first, self.second = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.dropout = nn.Dropout(dropout)
        self.seen: list[tuple[Tensor, Tensor]] = []  # (branch, stream after the addition)

    def join(self, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
        branch = self.dropout(f(norm(x) if self.pre else x))
        y = x + branch
        self.seen.append((branch.detach(), y.detach()))
        return y if self.pre else norm(y)

    def forward(self, x: Tensor) -> Tensor:
        x = self.join(x, self.first, self.mix)
        return self.join(x, self.second, lambda h: self.down(F.relu(self.up(h))))


class Toy(nn.Module):
    def __init__(self, pre: bool = False, layers: int = 2, dropout: float = 0.0, batch_norm: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(pre, dropout) for _ in range(layers))
        self.batch_norm = nn.BatchNorm1d(DIM) if batch_norm else None
        self.final = nn.LayerNorm(DIM) if pre else nn.Identity()
        self.head = nn.Linear(DIM, 5)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=False)
        self.fails_at = 0  # the call of forward that raises

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.fails_at and int(self.calls) >= self.fails_at:
            raise RuntimeError("on purpose")
        if self.batch_norm:
            x = self.batch_norm(x.transpose(1, 2)).transpose(1, 2)
        for layer in self.layers:
            layer.seen = []
            x = layer(x)
        return self.head(self.final(x))


def data(count: int = 1, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(3, 4, DIM, generator=generator) for _ in range(count)]


def loss(output: Tensor, batch: Any) -> Tensor:
    return output.float().pow(2).mean() - output.float().mean()


def toy(batches: int = 1, optimizer: Any = torch.optim.Adam, lr: float = 1e-3, **options: Any) -> Subject:
    torch.manual_seed(1)
    model = Toy(**options)
    return Subject(model, data(batches), loss, optimizer(model.parameters(), lr=lr))


def values(records: list[Record], quantity: str) -> list[float]:
    return [r.value for r in records if r.quantity == quantity]


def norms(x: Tensor) -> float:
    """Mean over tokens."""
    return float(torch.stack([row.double().norm() for row in x.reshape(-1, x.shape[-1])]).mean())


# Streams


@pytest.mark.parametrize("pre", [False, True], ids=["post", "pre"])
def test_streams_and_branches_are_those_of_the_model(pre: bool) -> None:
    subject = toy(pre=pre)
    records = initial(subject)
    subject.model(subject.batches[0])
    seen = [pair for layer in subject.model.layers for pair in layer.seen]  # type: ignore[union-attr]
    assert values(records, "branch_norm") == pytest.approx([norms(branch) for branch, _ in seen], rel=1e-5)
    assert values(records, "hidden_norm") == pytest.approx([norms(stream) for _, stream in seen], rel=1e-5)
    expected = [diversity(stream) for _, stream in seen]
    assert values(records, "diversity") == pytest.approx(expected, rel=1e-5)
    positions = [r.position for r in records if r.quantity == "hidden_norm"]
    assert positions == [0, 1, 2, 3]


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_norms_of_torchs_encoder_are_given_what_its_hooks_see(norm_first: bool) -> None:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(DIM, 2, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, nn.LayerNorm(DIM) if norm_first else None, enable_nested_tensor=False)
    subject = Subject(model, data(), loss, torch.optim.Adam(model.parameters()))
    records = initial(subject)
    seen: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_pre_hook(lambda m, args, name=name: seen.update({name: args[0].detach()}))
    model(subject.batches[0])
    found = {r.where: r.value for r in records if r.quantity == "norm_input"}
    assert set(found) == set(seen)
    assert found == pytest.approx({name: norms(x) / math.sqrt(DIM) for name, x in seen.items()}, rel=1e-5)
    if not norm_first:  # what a norm is given is the stream after the addition
        streams = dict(zip(seen, values(records, "hidden_norm"), strict=True))
        assert streams == pytest.approx({name: norms(x) for name, x in seen.items()}, rel=1e-5)


def test_the_jacobian_of_a_norm_is_what_autograd_says() -> None:
    subject = toy(pre=True, layers=1)
    found = {r.where: r.value for r in initial(subject) if r.quantity == "norm_jacobian"}
    seen: dict[str, Tensor] = {}
    for name, module in subject.model.named_modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_pre_hook(lambda m, args, name=name: seen.update({name: args[0].detach()}))
    subject.model(subject.batches[0])
    for name, x in seen.items():
        module = subject.model.get_submodule(name)
        rows = x.flatten(0, 1)
        jacobians = [torch.autograd.functional.jacobian(module, row) for row in rows]
        expected = torch.stack([torch.linalg.matrix_norm(j, 2) for j in jacobians]).mean()
        assert found[name] == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize("placement", ["post_ln", "pre_ln", "deepnorm"])
def test_streams_of_a_leadline_model(placement: str) -> None:
    model = Transformer(
        30, placement=placement, encoder_layers=1, decoder_layers=1, dim=16, ffn_dim=32, heads=2, dropout=0.0
    )
    packs = tuple(pack_one([np.arange(3, 3 + n) for n in (4, 6)]) for _ in range(2))
    subject = Subject(model, [packs], lambda output, batch: output.pow(2).mean(), torch.optim.Adam(model.parameters()))
    records = initial(subject)
    seen: list[Tensor] = []
    branches: list[Tensor] = []
    for stack in (model.encoder, model.decoder):
        for connection, sublayer in stack.blocks[0].connections():
            if placement == "pre_ln":
                connection.register_forward_hook(lambda m, args, output: seen.append(output.detach()))
            else:
                connection.norm.register_forward_pre_hook(lambda m, args: seen.append(args[0].detach()))
            sublayer.register_forward_hook(lambda m, args, output: branches.append(output.detach()))
    model(*packs)
    assert len(seen) == 5
    assert values(records, "hidden_norm") == pytest.approx([norms(x) for x in seen], rel=1e-5)
    assert values(records, "branch_norm") == pytest.approx([norms(x) for x in branches], rel=1e-5)
    assert {r.stack for r in records if r.quantity == "hidden_norm"} == {"encoder.blocks.0", "decoder.blocks.0"}


def test_every_quantity_measured_is_explained() -> None:
    subject = toy(2)
    measured = {r.quantity for r in [*initial(subject), *rollout(subject, 1e-3, 2)]}
    assert measured <= set(QUANTITIES)


def test_equal_tokens_have_no_diversity_and_independent_ones_have_all() -> None:
    generator = torch.Generator().manual_seed(0)
    token = torch.randn(32, generator=generator)
    assert diversity(token.expand(4, 8, 32)) == pytest.approx(0, abs=1e-6)
    assert diversity(torch.randn(20, 50, 32, generator=generator)) == pytest.approx(1, abs=0.01)
    assert diversity(torch.zeros(2, 3, 4)) == 0
    half = token + token.norm() / math.sqrt(32) * torch.randn(20, 50, 32, generator=generator)
    assert diversity(half) == pytest.approx(math.sqrt(1 / 2), abs=0.02)
    assert diversity(1000 * half) == pytest.approx(diversity(half), rel=1e-4)


def test_relative_change_is_relative_to_the_old() -> None:
    old = torch.tensor([[3.0, 4.0]])
    assert relative_change(old, old) == 0
    assert relative_change(3 * old, old) == pytest.approx(2)
    assert relative_change(old + torch.tensor([[0.0, 5.0]]), old) == pytest.approx(1)


# Gradients


def test_gradients_are_those_of_a_plain_loop_over_the_batches() -> None:
    subject = toy(3)
    records = [r for r in initial(subject) if "grad" in r.quantity or r.quantity == "weight_norm"]
    model = subject.model
    all_of: dict[str, list[Tensor]] = {name: [] for name, _ in model.named_parameters()}
    for batch in subject.batches:
        for (name, _), gradient in zip(
            model.named_parameters(),
            torch.autograd.grad(loss(model(batch), batch), list(model.parameters())),
            strict=True,
        ):
            all_of[name].append(gradient)
    of_mean = {name: float(torch.stack(found).mean(0).norm()) for name, found in all_of.items()}
    mean_of = {name: float(torch.stack([g.norm() for g in found]).mean()) for name, found in all_of.items()}
    found = {q: {r.where: r.value for r in records if r.quantity == q} for q in ("grad_norm_of_mean", "mean_grad_norm")}
    assert found["grad_norm_of_mean"] == pytest.approx(of_mean, rel=1e-4, abs=1e-9)
    assert found["mean_grad_norm"] == pytest.approx(mean_of, rel=1e-4, abs=1e-9)
    assert all(of_mean[name] <= mean_of[name] * (1 + 1e-6) for name in of_mean)
    weights = {r.where: r.value for r in records if r.quantity == "weight_norm"}
    assert weights == pytest.approx({name: float(p.detach().norm()) for name, p in model.named_parameters()}, rel=1e-6)


def test_with_one_batch_both_gradient_norms_are_the_same() -> None:
    records = initial(toy(1))
    assert values(records, "grad_norm_of_mean") == pytest.approx(values(records, "mean_grad_norm"))


def test_a_gradient_stands_at_the_connection_its_weight_belongs_to() -> None:
    records = {r.where: r for r in initial(toy()) if r.quantity == "grad_norm_of_mean"}
    assert records["layers.0.mix.weight"].position == 0
    assert records["layers.0.down.weight"].position == 1
    assert records["layers.1.down.weight"].position == 3
    assert records["head.weight"].position == -1
    assert records["layers.1.up.weight"].stack == "layers"


def test_a_frozen_weight_has_no_records() -> None:
    subject = toy()
    subject.model.layers[0].mix.weight.requires_grad_(False)  # type: ignore[union-attr]
    records = [*initial(subject), *rollout(subject, 1e-3, 1)]
    assert not any(r.where == "layers.0.mix.weight" for r in records)
    assert any(r.where == "layers.0.mix.bias" for r in records)


# Rollouts


def recording_weights(subject: Subject, kept: list[list[Tensor]]) -> Any:
    def note(optimizer: Any, args: Any, kwargs: Any) -> None:
        kept.append([p.detach().clone() for p in subject.model.parameters()])

    return subject.optimizer.register_step_post_hook(note)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "momentum": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9),
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,  # makes its state when it is built
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rollout_is_a_plain_training(name: str) -> None:
    subject = toy(4, OPTIMIZERS[name])
    other = copy.deepcopy(subject.model)
    kept: list[list[Tensor]] = []
    recording_weights(subject, kept)
    records = rollout(subject, 2e-3, 5)

    optimizer = OPTIMIZERS[name](other.parameters(), lr=2e-3)
    shown = subject.batches[-1]
    outputs, losses = [other(shown).detach()], []
    for step in range(5):
        batch = subject.batches[step % 3]  # the last one is only looked at
        optimizer.zero_grad()
        value = loss(other(batch), batch)
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
        outputs.append(other(shown).detach())
        for mine, theirs in zip(kept[step], other.parameters(), strict=True):
            assert torch.equal(mine, theirs)
    assert values(records, "loss") == losses
    changes = [float((o - outputs[0]).norm() / outputs[0].norm()) for o in outputs[1:]]
    steps = [float((b - a).norm() / a.norm()) for a, b in itertools.pairwise(outputs)]
    assert values(records, "output_change") == pytest.approx(changes, rel=1e-5)
    assert values(records, "step_change") == pytest.approx([changes[0], *steps[1:]], rel=1e-5)
    assert {(r.step, r.rate) for r in records} == {(step, 2e-3) for step in range(1, 6)}


def test_an_optimizer_that_cannot_be_stepped_is_one_sentence() -> None:
    with pytest.raises(UserError):
        rollout(toy(2, torch.optim.LBFGS), 1e-3, 2)


def test_the_streams_of_a_rollout_are_those_of_the_trained_model() -> None:
    subject = toy(2)
    start = look(subject, subject.batches[-1])
    kept: list[list[Tensor]] = []
    recording_weights(subject, kept)
    records = rollout(subject, 1e-2, 2)
    other = copy.deepcopy(subject.model)
    for p, value in zip(other.parameters(), kept[-1], strict=True):
        p.data.copy_(value)
    other(subject.batches[-1])
    streams = [stream for layer in other.layers for _, stream in layer.seen]  # type: ignore[union-attr]
    last = [r for r in records if r.step == 2]
    expected = [float((s - f).norm() / f.norm()) for s, f in zip(streams, start.streams, strict=True)]
    assert values(last, "hidden_change") == pytest.approx(expected, rel=1e-4)
    assert values(last, "diversity") == pytest.approx([diversity(s) for s in streams], rel=1e-4)


def test_adams_first_step_moves_every_weight_by_the_rate() -> None:
    subject = toy(2)
    sizes = {name: p.numel() for name, p in subject.model.named_parameters()}
    gradients = {r.where: r.value for r in initial(subject) if r.quantity == "grad_norm_of_mean"}
    found = {r.where: r.value for r in rollout(subject, 1e-3, 3) if r.quantity == "update_norm"}
    assert set(found) == set(sizes)
    for name in ("layers.0.mix.weight", "layers.1.mix.weight", "head.weight", "head.bias", "layers.0.first.weight"):
        assert gradients[name] > 1e-4  # Adam's ε is small against it
        assert found[name] == pytest.approx(1e-3 * math.sqrt(sizes[name]), rel=5e-3)


def test_sgds_first_step_is_the_gradient_times_the_rate() -> None:
    subject = toy(1, torch.optim.SGD)
    gradients = {r.where: r.value for r in initial(subject) if r.quantity == "grad_norm_of_mean"}
    found = {r.where: r.value for r in rollout(subject, 1e-2, 1) if r.quantity == "update_norm"}
    assert found == pytest.approx({name: 1e-2 * g for name, g in gradients.items()}, rel=1e-3, abs=1e-8)


def test_groups_keep_the_ratio_of_their_rates() -> None:
    torch.manual_seed(1)
    model = Toy()
    groups = [{"params": model.layers.parameters(), "lr": 1e-3}, {"params": model.head.parameters(), "lr": 2.5e-4}]
    subject = Subject(model, data(2), loss, torch.optim.Adam(groups, lr=1.0))
    found = {r.where: r.value for r in rollout(subject, 4e-2, 1) if r.quantity == "update_norm"}
    assert found["layers.0.mix.weight"] == pytest.approx(4e-2 * DIM, rel=5e-3)
    assert found["head.weight"] == pytest.approx(1e-2 * math.sqrt(5 * DIM), rel=5e-3)
    assert [group["lr"] for group in subject.optimizer.param_groups] == [1e-3, 2.5e-4]


def test_a_rollout_that_diverges_breaks_off_after_the_step() -> None:
    subject = toy(2, torch.optim.SGD)
    records = rollout(subject, 1e30, 5)
    found = values(records, "loss")
    assert 1 < len(found) < 5
    assert not math.isfinite(found[-1])
    assert all(math.isfinite(value) for value in found[:-1])


def test_a_start_that_is_given_is_what_the_changes_are_from() -> None:
    subject = toy(2)
    start = look(subject, subject.batches[-1])
    assert rollout(subject, 1e-3, 2, start=start) == rollout(subject, 1e-3, 2)


# Everything is left as it was


class Before:
    """Model, gradients, buffers, optimizer and random numbers, bit by bit."""

    def __init__(self, subject: Subject) -> None:
        model, optimizer = subject.model, subject.optimizer
        self.parameters = [p.detach().clone() for p in model.parameters()]
        self.buffers = {name: b.clone() for name, b in model.named_buffers()}
        self.gradients = [None if p.grad is None else (p.grad, p.grad.clone()) for p in model.parameters()]
        self.optimizer = copy.deepcopy(optimizer.state_dict())
        self.modes = [m.training for m in model.modules()]
        self.hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
        self.random = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy())  # type: ignore

    def assert_same(self, subject: Subject) -> None:
        now = Before(subject)
        assert all(map(torch.equal, now.parameters, self.parameters))
        for mine, theirs in zip(now.gradients, self.gradients, strict=True):
            assert (mine is None) == (theirs is None)
            if mine and theirs:
                assert mine[0] is theirs[0]
                assert torch.equal(mine[1], theirs[1])
        assert now.buffers.keys() == self.buffers.keys()
        for name, value in self.buffers.items():
            assert torch.equal(now.buffers[name], value), name
        assert_same_state(now.optimizer, self.optimizer)
        assert (now.modes, now.hooks) == (self.modes, self.hooks)
        assert torch.equal(now.random[0], self.random[0])
        assert now.random[1] == self.random[1]
        assert (now.random[2] == self.random[2]).all()


def assert_same_state(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_same_state(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            assert_same_state(mine, theirs)
    elif isinstance(expected, Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    else:
        assert found == expected


def trained_a_little(subject: Subject) -> None:
    """State in the optimizer, and gradients that someone may want to keep."""
    for batch in subject.batches[:2]:
        loss(subject.model(batch), batch).backward()
        subject.optimizer.step()


LOOKS: dict[str, Callable[[Subject], Any]] = {
    "connections": lambda subject: subject.connections,
    "initial": initial,
    "look": lambda subject: look(subject, subject.batches[-1]),
    "rollout": lambda subject: rollout(subject, 1e-2, 3),
}


@pytest.mark.parametrize("what", LOOKS)
@pytest.mark.parametrize("state", ["fresh", "trained"])
@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_nothing_is_changed(what: str, state: str, name: str) -> None:
    subject = toy(3, OPTIMIZERS[name], dropout=0.1)
    if state == "trained":
        trained_a_little(subject)
    before = Before(subject)
    LOOKS[what](subject)
    before.assert_same(subject)


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("what", LOOKS)
def test_buffers_are_not_changed(what: str, mode: bool) -> None:
    subject = toy(3, batch_norm=True)
    subject.model.train(mode)
    before = Before(subject)
    LOOKS[what](subject)
    before.assert_same(subject)


def test_a_rollout_puts_batch_norms_statistics_back() -> None:
    subject = toy(3, batch_norm=True)
    start = look(subject, subject.batches[-1])
    before = Before(subject)
    rollout(subject, 1e-2, 3, start=start)
    before.assert_same(subject)


def test_a_rollout_puts_buffers_back_that_are_not_saved() -> None:
    subject = toy(2)
    start = look(subject, subject.batches[-1])
    calls = int(subject.model.calls)
    rollout(subject, 1e-2, 2, start=start)
    assert int(subject.model.calls) == calls


@pytest.mark.parametrize("what", LOOKS)
@pytest.mark.parametrize("at", [1, 2, 3, 4, 6])
def test_nothing_is_changed_by_a_failure_in_the_middle(what: str, at: int) -> None:
    subject = toy(3, dropout=0.1)
    trained_a_little(subject)
    calls = int(subject.model.calls)
    subject.model.fails_at = calls + at  # type: ignore[assignment]
    before = Before(subject)
    with contextlib.suppress(UserError):  # some look fewer times
        LOOKS[what](subject)
    before.assert_same(subject)


def test_nothing_is_changed_by_an_interrupt_in_the_middle_of_a_step() -> None:
    subject = toy(3)
    trained_a_little(subject)
    before = Before(subject)
    seen = []

    def stop(optimizer: Any, args: Any, kwargs: Any) -> None:
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt

    subject.optimizer.register_step_post_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        rollout(subject, 1e-2, 3)
    before.assert_same(subject)


def test_a_loss_that_raises_changes_nothing() -> None:
    subject = toy(3)
    trained_a_little(subject)
    before = Before(subject)

    def fails(output: Tensor, batch: Any) -> Tensor:
        raise ZeroDivisionError

    subject.loss = fails
    for what in (initial, LOOKS["rollout"]):
        with pytest.raises(UserError, match="the loss function failed: ZeroDivisionError"):
            what(subject)
        before.assert_same(subject)


def test_gradients_of_weights_the_optimizer_does_not_hold_are_not_changed() -> None:
    torch.manual_seed(1)
    model = Toy()
    subject = Subject(model, data(2), loss, torch.optim.Adam(model.head.parameters()))
    loss(model(subject.batches[0]), None).backward()
    before = Before(subject)
    rollout(subject, 1e-3, 2)
    before.assert_same(subject)


def test_state_in_another_precision_than_its_weight_stays_as_it_is() -> None:
    subject = toy(2)
    subject.model.bfloat16()
    subject.batches = [batch.bfloat16() for batch in subject.batches]
    trained_a_little(subject)
    for state in subject.optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].float() + 1e-4
    before = Before(subject)
    rollout(subject, 1e-3, 1)
    before.assert_same(subject)


def test_a_rate_that_is_a_tensor_stays_one() -> None:
    subject = toy(2, lambda p, lr: torch.optim.Adam(p, lr=torch.tensor(lr)))
    rollout(subject, 1e-2, 1)
    (group,) = subject.optimizer.param_groups
    assert isinstance(group["lr"], Tensor)
    assert float(group["lr"]) == pytest.approx(1e-3)


def test_a_group_someone_holds_is_still_the_optimizers() -> None:
    subject = toy(2)
    group = subject.optimizer.param_groups[0]
    rollout(subject, 1e-2, 1)
    assert subject.optimizer.param_groups[0] is group


def test_earlier_state_does_not_enter_a_rollout() -> None:
    """A rollout asks what the first steps do: the moments of a training begin anew."""
    subject = toy(2)
    fresh = rollout(subject, 1e-3, 3)
    for p in subject.model.parameters():
        subject.optimizer.state[p] = {
            "step": torch.tensor(1000.0), "exp_avg": torch.ones_like(p), "exp_avg_sq": torch.ones_like(p),
        }  # fmt: skip
    assert rollout(subject, 1e-3, 3) == fresh


# Dropout


def test_models_with_dropout_give_the_same_again() -> None:
    first = toy(3, dropout=0.3)
    results = []
    for drawn in (0, 7):
        torch.manual_seed(drawn)
        results.append([*initial(first), *rollout(first, 1e-3, 3)])
    assert results[0] == results[1]
    again = toy(3, dropout=0.3)
    assert [*initial(again), *rollout(again, 1e-3, 3)] == results[0]


def test_a_look_is_without_dropout_and_a_step_is_with_it() -> None:
    subject, without = toy(2, dropout=0.5), toy(2)
    fast = torch.backends.mha.get_fastpath_enabled()
    assert torch.equal(look(subject, subject.batches[0]).output, without.model(without.batches[0]).detach())
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert values(initial(subject), "hidden_norm") == values(initial(without), "hidden_norm")
    assert values(rollout(subject, 1e-3, 1), "loss") != values(rollout(without, 1e-3, 1), "loss")
    assert all(module.training for module in subject.model.modules())


def test_dropout_alone_is_not_taken_for_a_change() -> None:
    subject = toy(2, dropout=0.3)
    assert max(values(rollout(subject, 1e-12, 1), "output_change")) < 1e-5
    a, b = (look(subject, subject.batches[0]) for _ in range(2))
    assert torch.equal(a.output, b.output)


# Models whose operations differ


class Loop(nn.Module):
    """Does more before its layers for a longer batch, like attention in groups of similar lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(pre=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(x.shape[1]):
            x = F.relu(x) - F.relu(-x)
        for layer in self.layers:
            layer.seen = []
            x = layer(x)
        return x


def streams_or_error(subject: Subject, batch: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of (stream read, stream of the model), or nothing where the model is refused."""
    try:
        found = look(subject, batch).streams
    except UserError:
        return
    expected = [stream for layer in subject.model.layers for _, stream in layer.seen]  # type: ignore[union-attr]
    yield from zip(found, expected, strict=True)


def test_a_batch_with_more_operations_is_not_read_wrongly() -> None:
    torch.manual_seed(1)
    model = Loop()
    short, long = torch.randn(2, 3, DIM), torch.randn(2, 5, DIM)
    subject = Subject(model, [short, long], loss, torch.optim.Adam(model.parameters()))
    for read, expected in streams_or_error(subject, long):
        assert read.shape == expected.shape
        assert torch.equal(read, expected)


def test_a_leadline_model_is_read_alike_on_batches_with_other_groups() -> None:
    model = Transformer(
        30, placement="pre_ln", encoder_layers=1, decoder_layers=0, dim=16, ffn_dim=32, heads=2, dropout=0.0
    )
    sequences = [np.arange(3, 3 + n) for n in (4, 20)]
    one, two = (pack(sequences, 24, sizes, 20, 2) for sizes in ([2], [1, 1]))
    subject = Subject(model, [(one,), (two,)], lambda y, batch: y.pow(2).mean(), torch.optim.Adam(model.parameters()))
    for a, b in zip(look(subject, (one,)).streams, look(subject, (two,)).streams, strict=True):
        torch.testing.assert_close(a, b)


def test_the_seed_is_written_into_every_record() -> None:
    subject = toy(2)
    assert {r.seed for r in [*initial(subject, 5), *rollout(subject, 1e-3, 2, seed=5)]} == {5}


def test_the_callers_grad_mode_is_kept() -> None:
    subject = toy(2)
    initial(subject)
    assert torch.is_grad_enabled()
