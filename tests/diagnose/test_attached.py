"""Watch in loops that are not ours: what it sees of any module, and that the training does not see it."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leadline
from leadline import UserError, callbacks, flight, history, pulse
from leadline.diagnose import looking
from leadline.report import runs as reports

WIDTH, WORDS = 16, 40


class Block(nn.Module):
    """Pre-LN, with names that say nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        x = x + self.mix(h, h, h, need_weights=False)[0]
        return x + self.wide(self.two(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.seen = nn.Embedding(WORDS, WIDTH), nn.BatchNorm1d(WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.out = nn.Linear(WIDTH, WORDS)
        self.calls = nn.Buffer(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Counts its calls and draws random numbers, also where it is evaluated."""
        self.calls += 1
        h = (1 + 0.01 * torch.rand(())) * self.seen(self.words(x).transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            h = block(h)
        return self.out(h)


LAYERS = ["blocks.0.mix", "blocks.0.wide", "blocks.1.mix", "blocks.1.wide"]


def batches(seed: int = 3) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(0, WORDS, (8, 12), generator=generator)


def train(
    out: Path | None,
    updates: int = 6,
    wrap: Callable[[nn.Module], Any] = lambda model: model,
    autocast: bool = False,
    between: Callable[[int, nn.Module], None] = lambda update, model: None,
) -> tuple[list[Tensor], Any]:
    """A plain loop; every weight, buffer and moment at its end, and the watch."""
    torch.manual_seed(0)
    model = Model()
    called, optimizer = wrap(model), torch.optim.Adam(model.parameters(), 1e-3)
    watch = leadline.Watch(called, optimizer, out, every=2) if out else None
    for update, x in zip(range(1, updates + 1), batches(), strict=False):
        between(update, model)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = nn.functional.cross_entropy(called(x).flatten(0, 1).float(), x.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if watch:
            watch.step(loss)
    if watch:
        watch.close()
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [*model.state_dict().values(), *moments, torch.rand(3)], watch


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def compiled(model: nn.Module) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, backend="eager")


def in_place(model: nn.Module) -> Any:
    torch._dynamo.reset()
    model.compile(backend="eager")
    return model


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of one process, for DistributedDataParallel."""
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", ["plain", "autocast", "compiled", "in place", "parallel"])
def test_the_training_does_not_see_it(kind: str, tmp_path: Path, alone: None) -> None:
    """Weights, moments, BatchNorm's buffers and the random state, bit for bit; and it looks, however it is called."""
    wraps: dict[str, Any] = {"compiled": compiled, "in place": in_place}
    wraps["parallel"] = nn.parallel.DistributedDataParallel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.compile's own
        options: dict[str, Any] = {"wrap": wraps.get(kind, lambda model: model), "autocast": kind == "autocast"}
        plain, _ = train(None, **options)
        watched, watch = train(tmp_path / "run", **options)
    assert same(plain, watched)
    assert watch.attached.messages == []
    rows = history.read(tmp_path / "run").rows
    assert [row["update"] for row in rows] == [2, 4, 6]
    assert all(row[f"watch/hidden/{name}"] > 0 for row in rows for name in LAYERS)


def test_every_quantity_of_every_layer_is_written(tmp_path: Path) -> None:
    train(tmp_path / "run")
    rows = history.read(tmp_path / "run").rows
    others = {"embeddings", "norms"}
    expected = {f"watch/{q}/{name}" for q in ("grad", "update", "weight", "ratio") for name in {*LAYERS, *others}}
    streams = ("hidden", "branch", "diversity", "norm_input", "norm_output")
    expected |= {f"watch/{q}/{name}" for q in streams for name in LAYERS}
    for row in rows:
        assert expected <= row.keys()
        assert all(math.isfinite(value) for value in row.values())
    facts = json.loads((tmp_path / "run" / "watch.json").read_text())
    assert {name: place["placement"] for name, place in facts["connections"].items()} == dict.fromkeys(LAYERS, "Pre-LN")


def test_the_values_are_what_hooks_give(tmp_path: Path) -> None:
    """On the first samples of the batch, without dropout, from the weights before the update."""
    seen: dict[str, Any] = {}

    def look(update: int, model: nn.Module) -> None:
        if update != 2:
            return
        x = next(batch for i, batch in enumerate(batches(), 1) if i == 2)[: looking.SAMPLES]
        hooks = [
            block.register_forward_hook(lambda m, a, out, i=i: seen.update({i: out}))  # type: ignore[misc]
            for i, block in enumerate(model.blocks)  # type: ignore[arg-type]
        ]
        state = torch.get_rng_state()
        with torch.no_grad():
            torch.manual_seed(0)
            model.eval()(x)
        model.train()
        torch.set_rng_state(state)
        for hook in hooks:
            hook.remove()

    train(tmp_path / "run", 2, between=look)
    (row,) = history.read(tmp_path / "run").rows
    for i in range(2):
        assert row[f"watch/hidden/blocks.{i}.wide"] == pytest.approx(float(seen[i].norm(dim=-1).mean()), rel=1e-5)


def test_attention_logits_are_seen_where_the_operation_is(tmp_path: Path) -> None:
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8)
    expected = (q[0] @ k[0].repeat_interleave(2, 0).mT / math.sqrt(8)).max()
    assert float(looking._measured("scaled_dot_product_attention", [q, k, k, q])[0]) == pytest.approx(float(expected))


def test_whether_attention_is_causal_is_seen() -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 8).unbind()
    for causal in (True, False):
        output = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        logits = (q @ k.mT / math.sqrt(8)).masked_fill(torch.ones(5, 5).triu(1).bool() & causal, -math.inf)
        seen = looking._measured("scaled_dot_product_attention", [q, k, v, output])[1]
        shares = looking._measured("softmax", [logits, logits.softmax(-1)])[1]
        assert (float(seen) < 1e-6) == (float(shares) < 1e-6) == causal


def nothing(update: int, model: Any, optimizer: Any) -> None:
    pass


def evaluated(update: int, model: Any, optimizer: Any) -> None:
    if update == CHANGED:
        model.eval()


def dropped(update: int, model: Any, optimizer: Any) -> None:
    if update == CHANGED:
        model.blocks[0].wide[2].p = model.blocks[1].wide[2].p = 0.7


def decayed(update: int, model: Any, optimizer: Any) -> None:
    if update == CHANGED:
        optimizer.param_groups[0]["weight_decay"] = 0.1


CHANGED = 30  # the update from which on a loop is another
OTHERWISE: dict[str, tuple[Callable[..., None], str]] = {
    "healthy": (nothing, ""), "eval": (evaluated, "mode"), "dropout": (dropped, "settings"),
    "decay": (decayed, "settings"), "not zeroed": (nothing, "kept"), "zeroed late": (nothing, ""),
    "stuck": (nothing, "repeated"), "uphill": (nothing, "sign"),
}  # fmt: skip


@pytest.mark.parametrize("how", OTHERWISE)
def test_what_a_loop_does_otherwise_is_named(how: str, tmp_path: Path) -> None:
    change, kind = OTHERWISE[how]
    torch.manual_seed(0)
    model, given = Model(), batches()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with leadline.Watch(model, optimizer, tmp_path / "run", every=50) as watch:
        for update in range(1, CHANGED + 25):
            change(update, model, optimizer)
            late = how == "not zeroed" and update >= CHANGED
            x = x if how == "stuck" and update > CHANGED else next(given)  # noqa: F821
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
            loss = -loss if how == "uphill" and update >= CHANGED else loss
            if how == "zeroed late":  # after the forward pass, as many loops have it
                optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            if how != "zeroed late" and not late:
                optimizer.zero_grad()
            watch.step(loss)
    causes = leadline.explain(tmp_path / "run").causes
    assert [(cause.kind, cause.update) for cause in causes[:1]] == (
        [(kind, CHANGED + (how == "not zeroed"))] if kind else []
    )


def test_the_flight_recorder_has_every_update(tmp_path: Path) -> None:
    train(tmp_path / "run")
    rows = flight.read(tmp_path / "run")
    assert [row["update"] for row in rows] == [1, 2, 3, 4, 5, 6]
    for row in rows:
        assert row["layers"] == [*LAYERS, "embeddings", "norms"]
        assert [len(values) for values in row["pulse"]] == [6] * len(flight.QUANTITIES)
        assert row["grad_norm"] == pytest.approx(math.hypot(*row["pulse"][0]), rel=1e-3)


def test_gradients_are_exact_and_updates_estimated(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = {
        "a": [nn.Parameter(torch.randn(300, 64))],
        "b": [nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(9, 9))],
    }
    looked = pulse.Pulse(weights)
    gradients = [torch.randn_like(p) for group in weights.values() for p in group]
    looked.before([g.norm() for g in gradients])
    moves = [0.01 * g for g in gradients]
    with torch.no_grad():
        for p, move in zip(looked.weights, moves, strict=True):
            p += move
    grad, update, weight, outside = looked.after().tolist()
    norm = lambda values: float(torch.cat([v.detach().flatten() for v in values]).norm())  # noqa: E731
    assert grad == pytest.approx([norm(gradients[:1]), norm(gradients[1:])], rel=1e-5)
    assert update == pytest.approx([norm(moves[:1]), norm(moves[1:])], rel=0.05)
    assert weight == pytest.approx([norm(weights["a"]), norm(weights["b"])], rel=0.05)
    assert outside == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["layer", "row"])
def test_weights_that_somebody_else_changed_are_named(kind: str, tmp_path: Path) -> None:
    def change(update: int, model: Any) -> None:
        if update == 5:
            with torch.no_grad():
                (model.blocks[1].wide[0].weight if kind == "layer" else model.words.weight[7]).mul_(8)

    _, watch = train(tmp_path / "run", between=change)
    where = "blocks.1.wide" if kind == "layer" else "embeddings"
    (message,) = watch.attached.messages
    assert message.startswith(f"update 5: the weights of {where} were changed by ")


def test_a_model_that_cannot_be_read_is_trained_all_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with leadline.Watch(model, optimizer, tmp_path / "run", every=1) as watch:
        for _ in range(2):
            loss = model(torch.ones(2, 4)).sum()
            loss.backward()
            optimizer.step()
            watch.step(loss)
    assert "no residual connection was found in Sequential" in watch.attached.messages[0]  # type: ignore[union-attr]
    assert len(watch.attached.messages) == 1  # type: ignore[union-attr]
    assert len(history.read(tmp_path / "run").rows) == 2
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_norm_that_is_taken_out_is_no_reason_to_stop_looking(tmp_path: Path) -> None:
    def remove(update: int, model: Any) -> None:
        if update == 3:
            model.blocks[0].two = nn.Identity()

    train(tmp_path / "run", between=remove)
    rows = history.read(tmp_path / "run").rows
    assert ["watch/norm_output/blocks.0.wide" in row for row in rows] == [True, False, False]
    assert "watch/hidden/blocks.0.wide" in rows[-1]
    cause = leadline.explain(tmp_path / "run").causes[0]
    assert (cause.kind, cause.where, cause.update) == ("norm", "blocks.0.wide", 4)


def test_a_training_goes_on_in_its_folder(tmp_path: Path) -> None:
    train(tmp_path / "run", 4)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(UserError, match="holds a run already"):
        leadline.Watch(model, optimizer, tmp_path / "run")
    watch = leadline.Watch(model, optimizer, tmp_path / "run", every=1, update=2)
    model(next(batches())).sum().backward()
    optimizer.step()
    watch.step(1.0)
    watch.close()
    assert [row["update"] for row in history.read(tmp_path / "run").rows] == [2, 3]
    assert [row["update"] for row in flight.read(tmp_path / "run")] == [1, 2, 3]


def test_it_can_be_reported(tmp_path: Path) -> None:
    train(tmp_path / "run")
    titles = [section.title for section in reports.sections_of([tmp_path / "run"])]
    assert {"Loss", "Diversity by layer", "Ratio by layer"} <= set(titles)
    (tmp_path / "run" / "watch.json").write_text("[]")
    with pytest.raises(UserError, match="damaged"):
        reports.sections_of([tmp_path / "run"])


@pytest.mark.parametrize("given", [(), (Model(),), (Model(), None, "x"), (Model(), torch.optim.Adam([torch.ones(1)]))])
def test_what_is_missing_is_said(given: tuple[Any, ...]) -> None:
    if given:
        with pytest.raises(UserError, match="needs all three"):
            leadline.Watch(*given)
    else:
        with pytest.raises(UserError, match="has no model"):
            leadline.Watch().step(1.0)


def test_sharded_weights_are_refused(tmp_path: Path) -> None:
    class FullyShardedDataParallel(nn.Linear):
        pass

    model = FullyShardedDataParallel(2, 2)
    with pytest.raises(UserError, match="sharded"):
        leadline.Watch(model, torch.optim.SGD(model.parameters()), tmp_path / "run")


def test_names_of_layers_that_share_a_module_say_what_they_are() -> None:
    def connection(where: str, sublayer: str, *weights: str) -> Any:
        return SimpleNamespace(where=where, sublayer=sublayer, weights=weights)

    bert = [
        connection(
            "layer.0.attention.output", "attention", "layer.0.attention.q.weight", "layer.0.attention.out.weight"
        ),
        connection("layer.0.output", "feed-forward", "layer.0.intermediate.weight", "layer.0.output.weight"),
    ]
    assert looking.names_of(bert) == ["layer.0.attention", "layer.0.feed-forward"]
    bare = [connection("", "attention", "q", "o"), connection("", "attention", "q", "o")]
    assert looking.names_of(bare) == [".attention.0", ".attention.1"]


# Other people's trainers


@pytest.mark.slow
def test_in_the_trainer_of_transformers(tmp_path: Path) -> None:
    transformers, _ = pytest.importorskip("transformers"), pytest.importorskip("accelerate")

    def weights(given: list[Any]) -> list[Tensor]:
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            n_layer=1, n_embd=16, n_head=2, vocab_size=50, n_positions=32, bos_token_id=0, eos_token_id=0
        )
        model = transformers.GPT2LMHeadModel(config)
        rows = [{"input_ids": torch.arange(i, i + 8) % 50, "labels": torch.arange(i, i + 8) % 50} for i in range(32)]
        arguments = transformers.TrainingArguments(
            str(tmp_path / "out"), max_steps=4, per_device_train_batch_size=4, gradient_accumulation_steps=2,
            report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, logging_steps=100,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            transformers.Trainer(model, arguments, train_dataset=rows, callbacks=given).train()
        return [p.detach().clone() for p in model.parameters()]

    assert same(weights([]), weights([callbacks.transformers(tmp_path / "run", every=2)]))
    rows = history.read(tmp_path / "run").rows
    assert [row["update"] for row in rows] == [2, 4]
    assert all("watch/hidden/transformer.h.0.mlp" in row for row in rows)
    assert rows[0]["loss"] == pytest.approx(math.log(50), rel=0.2)  # of all its batches, as the trainer counts


def test_in_a_trainer_with_the_hooks_of_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "_callback", lambda: object)
    callback = callbacks.lightning(tmp_path / "run", every=2)
    torch.manual_seed(0)
    model = Model()
    model.automatic_optimization = True
    trainer = SimpleNamespace(
        optimizers=[torch.optim.Adam(model.parameters())], global_step=0, accumulate_grad_batches=2, model=model
    )
    callback.on_train_start(trainer, model)
    for i, x in zip(range(8), batches(), strict=False):  # two batches an update
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        if i % 2:
            trainer.optimizers[0].step()
            trainer.optimizers[0].zero_grad()
            trainer.global_step += 1
        callback.on_train_batch_end(trainer, model, {"loss": loss}, x, i)
    callback.on_train_end(trainer, model)
    assert [row["update"] for row in history.read(tmp_path / "run").rows] == [2, 4]
    trainer.optimizers *= 2
    with pytest.raises(UserError, match="has 2"):
        callbacks.lightning(tmp_path / "other").on_train_start(trainer, model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("calls_itself", [True, False])
def test_in_the_trainer_of_lightning(calls_itself: bool, tmp_path: Path) -> None:
    """Its optimizer's step has the forward and the backward pass in it, and it divides the loss of each batch."""
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.said = Model(), list[float]()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, x: Tensor, index: int) -> Tensor:
            loss = nn.functional.cross_entropy((self if calls_itself else self.net)(x).flatten(0, 1), x.flatten())
            self.log("train", loss)
            self.said.append(float(loss))
            return loss

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self.norms = [*getattr(self, "norms", []), float(_norm_of(self))]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-3)

    def trained(given: list[Any]) -> tuple[Any, list[Tensor]]:
        torch.manual_seed(0)
        module = Module()
        rows = [x for _, x in zip(range(12), batches(), strict=False)]
        trainer = lightning.Trainer(
            max_steps=6, accumulate_grad_batches=2, accelerator="cpu", devices=1, logger=False, callbacks=given,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=None))
        moments = [value for state in trainer.optimizers[0].state.values() for value in state.values()]
        return module, [*module.state_dict().values(), *moments, torch.rand(3), trainer.callback_metrics["train"]]

    out = tmp_path / "run"
    (_, alone), (module, watched) = trained([]), trained([callbacks.lightning(out, every=2)])
    assert same(alone, watched)
    rows, looks = flight.read(out), history.read(out).rows
    means = [(a + b) / 2 for a, b in zip(module.said[::2], module.said[1::2], strict=True)]
    assert [row["loss"] for row in rows] == pytest.approx(means, rel=1e-5)
    assert [row["grad_norm"] for row in rows] == pytest.approx(module.norms, rel=1e-4)
    assert [look["update"] for look in looks] == [2, 4, 6]
    assert all(f"watch/hidden/{layer}" in look for look in looks for layer in LAYERS)
    assert "Diversity by layer" in {section.title for section in reports.sections_of([out])}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lightning_calls_a_training_step_once_where_data_parallel_calls_it(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.more, self.calls = Model(), nn.Linear(WORDS, WORDS), 0

        def training_step(self, x: Tensor, index: int) -> Tensor:
            self.calls += 1
            return nn.functional.cross_entropy(self.more(self.net(x)).flatten(0, 1), x.flatten())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-3)

    module = Module()
    rows = [x for _, x in zip(range(4), batches(), strict=False)]
    lightning.Trainer(
        max_steps=4, strategy="ddp", accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[callbacks.lightning(tmp_path / "run", every=2)],
    ).fit(module, torch.utils.data.DataLoader(rows, batch_size=None))  # fmt: skip
    torch.distributed.destroy_process_group()
    assert module.calls == 4
    assert [len(row["pulse"]) for row in flight.read(tmp_path / "run")] == [4] * 4


def _norm_of(module: nn.Module) -> Tensor:
    return torch.stack([p.grad.norm() for p in module.parameters() if p.grad is not None]).norm()


def test_a_step_that_calls_the_model_itself(tmp_path: Path) -> None:
    """optimizer.step(closure): the same numbers as of a loop that has the passes before the step."""

    def rows(inside: bool) -> list[Any]:
        torch.manual_seed(0)
        model, out = Model(), tmp_path / str(inside)
        optimizer = torch.optim.SGD(model.parameters(), 1e-1)
        with leadline.Watch(model, optimizer, out, every=2) as watch:
            for _, x in zip(range(4), batches(), strict=False):

                def passes(x: Tensor = x) -> Tensor:
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
                    loss.backward()
                    return loss

                if inside:
                    watch.step(optimizer.step(passes))
                else:
                    loss = passes()
                    optimizer.step()
                    watch.step(loss)
        return flight.read(out)

    seen = rows(True)
    assert seen == rows(False)
    assert all("pulse" in row for row in seen)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("name", ["flight", "metrics"])
def test_a_full_disk_ends_the_watching_and_not_the_training(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    watch = leadline.Watch(model, optimizer, tmp_path / "run", every=2)
    assert watch.attached
    taken, x = 0, next(batches())
    for update in range(1, 7):
        if update == 3:
            getattr(watch.attached, name).file.close()
            getattr(watch.attached, name).file = open("/dev/full", "w", buffering=1)  # noqa: SIM115
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        watch.step(loss)
        taken += 1
    watch.close()
    told = capsys.readouterr().err.splitlines()
    assert taken == 6
    assert len(told) == 1
    assert told[0].startswith("leadline: Watch ends at update ")
    assert "the disk is full" in told[0]
    assert [row["update"] for row in flight.read(tmp_path / "run")] == ([1, 2] if name == "flight" else [1, 2, 3, 4])
