"""The captured step: the same updates as the eager one."""

from __future__ import annotations

import functools
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from leadline import history
from leadline.config import Config
from leadline.data import batching
from leadline.data.store import Store, prepare
from leadline.diagnose.watch import Watch
from leadline.errors import UserError
from leadline.kernels.fused import adam
from leadline.model.operations import Plain
from leadline.tasks import Translation
from leadline.training import checkpoint, graph, inputs, saving
from leadline.training.checkpoint import State
from leadline.training.loop import train
from leadline.training.step import Step, dropout_seed, make_step

pytestmark = pytest.mark.usefixtures("captured")


@pytest.fixture
def config(tiny: Config) -> Config:
    return tiny.set(
        model={"dropout": 0.0, "max_length": 8},
        train={"batch_tokens": 16, "updates": 4, "eval_every": 2, "step": "graph"},
        optim={"lr": 0.01},
    )


def steps(config: Config) -> tuple[Step, list[Any], Any]:
    """The step, the batches of its first updates, and the model."""
    task = Translation(config, Store(prepare(config.data)))
    model = task.build_model().train()
    step = make_step(config, task, model)
    plan = batching.epoch_plan(task.train.lengths, task.shape, 1, 0)
    return step, [step.prepare(task.collate(rows)) for rows in plan[:6]], model


def trained(config: Config, updates: int = 2, each: int = 1, watch: Any = None) -> tuple[list[float], dict[str, Any]]:
    step, batches, model = steps(config)
    losses = []
    for update in range(updates):
        some = batches[update * each : (update + 1) * each]
        losses.append(float(step(some, update + 1, 0.01, [watch] if watch and watch.due(update + 1) else []).loss))
    return losses, {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], tolerance: float) -> None:
    for name, weight in one.items():
        if not name.endswith("kv.bias"):  # keys' biases have no gradient but rounding, which Adam enlarges
            assert (weight - other[name]).abs().max() < tolerance, name


@pytest.mark.parametrize(
    ("placement", "norm"),
    [
        ("post_ln", "layer_norm"),
        ("deepnorm", "rms_norm"),
        ("dlcl", "layer_norm"),  # its stream is more than a tensor
    ],
)
def test_graph_and_eager_have_the_same_losses_and_weights(config: Config, placement: str, norm: str) -> None:
    config = config.set(model={"placement": placement, "norm": norm})
    losses, weights = trained(config)
    plain_losses, plain_weights = trained(config.set(train={"step": "eager"}))
    assert losses == pytest.approx(plain_losses, abs=1e-5)
    assert_close(weights, plain_weights, 2e-3)


def test_words_that_are_no_multiple_of_8_are_filled_up_and_what_fills_them_stays_0(config: Config) -> None:
    config = config.set(model={"head": "bias"}, data={"vocab_size": 203}, optim={"name": "adamw", "weight_decay": 0.1})
    step, batches, model = steps(config)
    losses = [float(step([batch], number, 0.01).loss) for number, batch in enumerate(batches[:2], 1)]
    onto = model.ops.onto
    assert (onto.words, onto.compute.shape, onto.compute_bias.shape) == (203, (208, 16), (208,))
    assert not onto.compute[203:].any()
    assert not onto.compute_bias[203:].any()
    hidden = torch.randn(5, 16)
    assert torch.allclose(model.logits(hidden), Plain().logits(model, hidden), atol=1e-5)
    plain_losses, plain_weights = trained(config.set(train={"step": "eager"}))
    assert losses == pytest.approx(plain_losses, abs=1e-5)
    assert_close({name: p.detach() for name, p in model.named_parameters()}, plain_weights, 2e-3)


def test_in_bf16_the_loss_and_the_norms_of_layers_are_about_those_of_the_eager_step(config: Config) -> None:
    config = config.set(train={"precision": "bf16", "log_every": 1}, data={"vocab_size": 203})
    results = []
    for way in ("graph", "eager"):
        step, batches, _ = steps(config.set(train={"step": way}))
        results.append(step(batches[:1], 1, 0.01))
    found, expected = results
    assert float(found.loss) == pytest.approx(float(expected.loss), rel=5e-3)
    assert found.pulse is not None
    assert expected.pulse is not None
    assert found.pulse[0].tolist() == pytest.approx(expected.pulse[0].tolist(), rel=0.05)


class Hashed(Plain):
    """torch's operations with the dropout of the fused kernels, drawn for the same places."""

    def __init__(self, fused: Any) -> None:
        self.drop = fused._drop

    def branch(self, layer: Any, last: Any, x: Tensor) -> Tensor:
        return self.drop(layer, layer.dropout.p, 1).reference(last(layer.inside(x)))

    def expand(self, layer: Any, x_TD: Tensor) -> Tensor:
        how = self.drop(layer, layer.activation_dropout.p, 0)
        return how.reference(layer.activation(layer.expand(x_TD)))

    def embed(self, foot: Any, tokens_T: Tensor, positions_T: Tensor, segments_T: Tensor | None) -> Tensor:
        how = self.drop(foot, foot.dropout.p, 0)
        return how.reference(foot.scale * foot.tokens(tokens_T) + foot.positions(positions_T))

    def _attend(self, layer: Any, q: Tensor, k: Tensor, v: Tensor, q_pack: Any, k_pack: Any, causal: bool) -> Tensor:
        H, how = q.shape[1], self.drop(layer, layer.attention_dropout, 0)
        allowed = q_pack.owner[:, None] == k_pack.owner[None, :]
        if causal:
            allowed &= q_pack.positions[:, None] >= k_pack.positions[None, :]
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[2] ** 0.5
        weights = torch.nan_to_num(scores.masked_fill(~allowed, float("-inf")).softmax(-1))
        rows, keys = torch.arange(len(q)), torch.arange(len(k))
        kept = torch.stack([how.keeps(rows * H + head, keys) for head in range(H)])
        return torch.einsum("hqk,khd->qhd", weights * kept * how.scale, v).flatten(1)


@pytest.mark.parametrize("placement", ["pre_ln", "post_ln", "deepnorm", "dlcl", "normformer", "admin"])
def test_every_gradient_with_dropout_on_is_that_of_the_plain_operations(config: Config, placement: str) -> None:
    drops = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
    step, batches, model = steps(config.set(model=drops | {"placement": placement}))
    assert isinstance(step, graph.GraphStep)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)  # gains of 1 and biases of 0 would hide mistakes
    step.restored()
    step._capture(batches[0])
    step._send([0.0, 1.0, 1.0], batches[0].count, 12345)
    losses, found = [], []
    for ops in (model.ops, Hashed(model.ops)):
        step.flat.gradients.zero_()
        with model.using(ops):
            loss = step.task.loss(model, batches[0].batch, step.divisor)
            loss.backward()
        losses.append(loss.item())
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    largest = max(gradient.abs().max().item() for gradient in found[1].values())
    for name, gradient in found[1].items():
        torch.testing.assert_close(found[0][name], gradient, rtol=1e-4, atol=1e-6 * max(1.0, largest), msg=name)


@pytest.mark.parametrize(
    "optim",
    [{"name": "adamw", "weight_decay": 0.1}, {"name": "sgd", "momentum": 0.9}, {"name": "muon", "weight_decay": 0.1}],
)
def test_other_optimizers_clipping_and_accumulation(config: Config, optim: dict[str, Any]) -> None:
    config = config.set(optim=optim | {"clip": 0.1}, train={"accumulate": 2})
    losses, weights = trained(config, each=2)
    plain_losses, plain_weights = trained(config.set(train={"step": "eager"}), each=2)
    assert losses == pytest.approx(plain_losses, abs=1e-5)
    assert_close(weights, plain_weights, 2e-3)


@pytest.mark.parametrize("way", ["graph", "eager"])
def test_a_pooler_that_nothing_reads_stays_as_it_is(config: Config, way: str) -> None:
    config = config.set(model={"pooler": True}, optim={"name": "adamw", "weight_decay": 0.1}, train={"step": way})
    before = {name: p.detach().clone() for name, p in steps(config)[2].named_parameters()}
    _, after = trained(config, 1)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if not name.startswith("classifier.")}


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["pre_ln", "dlcl"])
def test_recompute_changes_nothing(config: Config, placement: str) -> None:
    for step in ("graph", "eager"):
        config = config.set(train={"step": step}, model={"dropout": 0.3, "placement": placement})
        losses, weights = trained(config, 1)
        again, same = trained(config.set(train={"recompute": True}), 1)
        assert losses == again
        assert all(torch.equal(weights[name], same[name]) for name in weights)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["graph", "eager"])
def test_a_micro_batch_draws_the_same_whoever_computes_the_others(config: Config, way: str) -> None:
    """The gradient of the second of two is that of both less that of the first, and does not depend on `accumulate`."""
    config = config.set(train={"step": way, "accumulate": 2}, model={"dropout": 0.3}, optim={"name": "sgd"})
    seeds = [dropout_seed(1, 5, number) for number in range(3)]
    assert len(set(seeds) | {dropout_seed(1, 6, 0), dropout_seed(2, 5, 0)}) == 5

    def losses(accumulate: int) -> list[float]:
        step, batches, _ = steps(config.set(train={"accumulate": accumulate}))
        both, first = (float(step(some, 5, 0.0).loss) for some in (batches[:2], batches[:1]))
        count = [batch.count for batch in batches[:2]]
        return [first, both * sum(count) - first * count[0]]

    assert losses(2) == pytest.approx(losses(4), rel=1e-6)


@pytest.mark.slow
def test_dropout_is_a_function_of_the_update(config: Config) -> None:
    config = config.set(model={"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1})
    step, batches, _ = steps(config)
    losses = [float(step([batches[0]], update, 0.0).loss) for update in (1, 2, 1)]
    assert losses[0] == losses[2] != losses[1]


class Seen(Watch):
    """What it would log."""

    def end(self, lr: float) -> tuple[dict[str, float], str]:
        self.row, alarm = super().end(lr)
        return self.row, alarm


def test_a_watched_update_is_the_same_and_the_watch_sees_what_it_sees_in_an_eager_one(config: Config) -> None:
    rows = []
    for step in ("graph", "eager"):
        config = config.set(train={"step": step})
        watch = Seen(every=2)
        trained(config, watch=watch)
        rows.append(watch.row)
    assert rows[0].keys() == rows[1].keys() >= {"watch/grad/encoder.blocks.0.attn", "watch/hidden/decoder.blocks.0.ffn"}
    sensitive = ("watch/update/", "watch/ratio/", "watch/logits/")
    of_streams_and_gradients = [key for key in rows[0] if not key.startswith(sensitive)]
    assert [rows[0][key] for key in of_streams_and_gradients] == pytest.approx(
        [rows[1][key] for key in of_streams_and_gradients], rel=1e-3, abs=1e-6
    )
    # With dropout the forward pass that is shown draws other numbers, and the update does not notice.
    config = config.set(train={"step": "graph"}, model={"dropout": 0.3, "attention_dropout": 0.2})
    losses, weights = trained(config, 1, watch=Watch(every=1))
    plain_losses, plain_weights = trained(config, 1)
    assert losses == plain_losses
    assert all(torch.equal(weights[name], plain_weights[name]) for name in weights)


def test_the_norms_of_layers_are_read_where_the_loop_reads_and_change_nothing(config: Config) -> None:
    pulses, weights = {}, {}
    for name, how in {"read": {"log_every": 1}, "not": {"log_every": 9}, "eager": {"step": "eager"}}.items():
        step, batches, model = steps(config.set(train=how))
        pulses[name] = step([batches[0]], 1, 0.01).pulse
        weights[name], layers = {name: p.detach().clone() for name, p in model.named_parameters()}, step.layers
    assert all(torch.equal(p, weights["not"][name]) for name, p in weights["read"].items())
    assert pulses["not"] is None
    norms, theirs = pulses["read"], pulses["eager"]
    assert norms.shape == (3, len(layers))  # whether somebody else has written is not known between
    for number, tolerance in enumerate((1e-3, 0.2, 1e-3)):  # Adam enlarges rounding where there is no gradient
        assert norms[number].tolist() == pytest.approx(theirs[number].tolist(), rel=tolerance)


@pytest.mark.parametrize("way", ["graph", "eager"])
def test_a_checkpoint_goes_on_in_the_other_way(config: Config, way: str, tmp_path: Path) -> None:
    other = "eager" if way == "graph" else "graph"
    ways = {name: steps(config.set(train={"step": name})) for name in (way, other)}
    step, batches, model = ways[way]
    for update in (1, 2):
        step([batches[update]], update, 0.01)
    saving.save(tmp_path, State(update=2), model, step.optimizer, keep=1)
    found = checkpoint.read_latest(tmp_path)
    assert found
    new_step, new_batches, new_model = ways[other]
    checkpoint.restore_model(new_model, found[1], "here")
    checkpoint.restore_optimizer(new_model, new_step.optimizer, found[2])
    new_step.restored()
    one, another = step([batches[3]], 3, 0.01), new_step([new_batches[3]], 3, 0.01)
    assert float(one.loss) == pytest.approx(float(another.loss), abs=1e-5)
    assert float(one.grad_norm) == pytest.approx(float(another.grad_norm), rel=1e-4)
    assert_close(dict(model.named_parameters()), dict(new_model.named_parameters()), 1e-4)


def test_a_run_trains_evaluates_and_saves(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Translation, "batches", lambda task, part, world: iter([task.collate(np.arange(2))]))
    folder = train(config.set(train={"updates": 2, "eval_every": 1}), tmp_path / "run")
    rows = [row for row in history.read(folder).rows if "valid_nll" in row]
    assert rows[1]["valid_nll"] < rows[0]["valid_nll"]
    assert json.loads((folder / "run.json").read_text())["chosen"]["step"] == "graph"
    assert checkpoint.names(folder) == ["00000001", "00000002"]


def test_batches_travel_in_one_piece(config: Config) -> None:
    _, (batch, *_), _ = steps(config)
    fixed = batch.batch.fixed()
    found = inputs.views(fixed, batch.data)
    assert len(inputs.tensors(fixed)) > 8
    for one, other in zip(inputs.tensors(fixed), inputs.tensors(found), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert found.target.max_length == fixed.target.max_length


def test_without_a_gpu_the_error_says_what_to_do(
    config: Config, leadline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"needs a CUDA device.*train.step=eager"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()


def test_a_checkpoint_that_is_read_reaches_what_matrix_products_read(config: Config) -> None:
    step, _, model = steps(config.set(train={"precision": "bf16"}))
    assert isinstance(step, graph.GraphStep)
    with torch.no_grad():
        model.decoder.blocks[0].cross.kv.weight.fill_(0.5)
    step.restored()
    assert step.flat.memory is None or (step.flat.memory.compute[0] == 0.5).all()
    assert (model.decoder.blocks[0].cross.kv.compute[0] == 0.5).all()
    assert model.decoder.blocks[0].cross.kv.compute[0].dtype == torch.bfloat16


def test_flat_adam_is_an_optimizer_like_any_other(config: Config) -> None:
    step, _, model = steps(config)
    weight = model.decoder.blocks[0].ffn.expand.weight
    peer = torch.nn.Parameter(weight.detach().clone())
    other = torch.optim.Adam([peer], lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    for _ in range(2):
        peer.grad = torch.randn_like(peer)
        weight.grad.copy_(peer.grad)
        step.optimizer.param_groups[0]["lr"] = 0.01
        step.optimizer.step()
        other.step()
    assert torch.allclose(weight, peer, atol=1e-6)


def test_flat_adam_does_not_load_torch_s_compiler(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes as long as torch itself; torch's optimizers do in the methods that they hide from it."""

    def loads(*_: Any, **__: Any) -> None:
        raise AssertionError("torch._dynamo is loaded here")

    for name in ("__init__", "add_param_group"):  # of which a version of torch may hide both or one
        if hidden := getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None):
            monkeypatch.setattr(torch.optim.Optimizer, name, functools.wraps(hidden)(loads))
    assert isinstance(steps(config)[0].optimizer, graph.FlatAdam)


@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_what_is_compiled_before_the_capture_is_what_is_captured(
    config: Config, clip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same kinds of numbers at places aligned alike: more than 2^31 weights are counted in 64 bits."""
    step, _, _ = steps(config.set(optim={"clip": clip}))
    assert isinstance(step, graph.GraphStep)
    assert isinstance(step.optimizer, graph.FlatAdam)
    launched: list[Any] = []

    class Kernel:
        def __getitem__(self, programs: tuple[int]) -> Callable[..., None]:
            def launch(*given: Any, **constants: Any) -> None:
                kinds = [(x.dtype, x.data_ptr() % 16) if isinstance(x, Tensor) else x for x in given]
                launched.append((programs, kinds, constants))

            return launch

    monkeypatch.setattr(adam, "_adam", Kernel())
    step.optimizer.compile()
    step.optimizer.update(step.control, step.measured[1])
    (programs, *compiled), (others, *captured) = launched
    assert compiled == captured
    assert programs == (0,) != others


@pytest.mark.parametrize("embeddings", ["tied", "separate"])
def test_gradients_do_not_depend_on_when_the_second_stream_gets_to_work(config: Config, embeddings: str) -> None:
    """It may be as late as the join: here all that is done aside waits until then, in its own order."""
    config = config.set(model={"embeddings": embeddings})
    plain_step, batches, plain_model = steps(config.set(train={"step": "eager"}))
    step, prepared, model = steps(config)
    assert isinstance(step, graph.GraphStep)
    late: list[Callable[[], None]] = []
    step.runtime.aside = lambda work, *inputs: late.append(work)  # type: ignore[method-assign]
    batch, count = batches[0], batches[0].count
    step.task.loss(model, prepared[0].batch, torch.tensor([float(count)])).backward()
    with torch.no_grad():
        for work in late:
            work()
    plain_step.task.loss(plain_model, batch, count).backward()  # type: ignore[attr-defined]
    for (name, p), other in zip(model.named_parameters(), plain_model.parameters(), strict=True):
        assert (p.grad - other.grad).norm() <= 1e-4 * other.grad.norm() + 1e-6, name


@pytest.mark.parametrize("placement", ["post_ln", "pre_ln", "dlcl"])
def test_an_update_leaves_nothing_of_autograd_s_graph_behind(config: Config, placement: str) -> None:
    """Without waiting for Python to look for cycles: what lives ties the next capture to the stream of this one."""
    step, batches, _ = steps(config.set(model={"placement": placement}))
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        step(batches[:1], 1, 0.01)
        gc.collect()
        left = [thing for thing in gc.garbage if isinstance(thing, torch.autograd.function.BackwardCFunction)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []
