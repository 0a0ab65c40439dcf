"""Training a masked language model: learns, resumes bit for bit, and is the same on fused kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from leadline import history
from leadline.config import Config
from leadline.data import batching
from leadline.data.store import Store, prepare
from leadline.errors import UserError
from leadline.tasks import MaskedLM
from leadline.training.events import Event
from leadline.training.loop import resume, train
from leadline.training.step import make_step
from leadline.training.trained import load


class Crash(Exception):
    pass


def crash(event: Event) -> None:
    if event.kind == "update" and event.update == 13:
        raise Crash


def tensors(run: Path) -> dict[str, torch.Tensor]:
    folder = run / "checkpoints" / "00000020"
    return load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")


def test_it_learns_and_resumes_to_the_same_bits(masked: Config, tmp_path: Path, monkeypatch) -> None:
    """In the middle of an epoch after the first, with pairs, dropout and several batches an update."""
    epochs: list[int] = []
    collate = MaskedLM.collate
    monkeypatch.setattr(MaskedLM, "collate", lambda *a: epochs.extend(a[2:]) or collate(*a))
    config = masked.set(model={"classes": 2, "dropout": 0.1}, train={"accumulate": 2}, optim={"lr": 0.01})
    whole = train(config, tmp_path / "whole")
    assert {0, 1, 2} <= set(epochs)  # masks are drawn anew in each
    with pytest.raises(Crash):
        train(config, tmp_path / "stopped", [crash])
    resume(tmp_path / "stopped")
    found, expected = tensors(tmp_path / "stopped"), tensors(whole)
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
    rows = history.read(whole).rows
    assert rows[-1]["epoch"] >= 2
    assert {"valid_nll", "valid_accuracy", "valid_perplexity", "valid_next_accuracy"} <= rows[-1].keys()
    assert rows[-1]["valid_nll"] < rows[0]["loss"]


def trained(config: Config, each: int = 1) -> tuple[list[float], dict[str, torch.Tensor]]:
    task = MaskedLM(config, Store(prepare(config.data)))
    model = task.build_model().train()
    step = make_step(config, task, model)
    plan = batching.epoch_plan(task.train.lengths, task.shape, 1, 0)
    prepared = [step.prepare(task.collate(rows, 1)) for rows in plan[: 2 * each]]
    losses = [float(step(prepared[u * each : (u + 1) * each], u + 1, 0.01).loss) for u in range(2)]
    return losses, {name: p.detach().clone() for name, p in model.named_parameters()}


CASES: list[dict[str, Any]] = [{"placement": name, "classes": 2} for name in ("pre_ln", "post_ln", "deepnorm")]
CASES += [{"embed_norm": False}, {"embed_norm": False, "segments": 0, "embeddings": "separate"}]


@pytest.mark.parametrize("model", CASES, ids=str)
@pytest.mark.usefixtures("captured")
def test_graph_and_eager_have_the_same_losses_and_weights(masked: Config, model: dict) -> None:
    each = 2 if model.get("placement") == "post_ln" else 1
    config = masked.set(
        model=model | {"max_length": 16}, train={"batch_tokens": 48, "step": "graph", "accumulate": each}
    )
    losses, weights = trained(config, each)
    plain_losses, plain_weights = trained(config.set(train={"step": "eager"}), each)
    assert losses == pytest.approx(plain_losses, abs=1e-5)
    for name, weight in weights.items():
        if "qkv.bias" not in name:  # the keys' have no gradient but rounding, which Adam makes as large as any other
            assert (weight - plain_weights[name]).abs().max() < 2e-3, name


def test_the_command_line_trains_and_evaluates(masked: Config, leadline: Callable[..., Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assignments = [
        f"data.source={masked.data.source}", "data.vocab_size=120", "data.valid_every=10", "model.dim=16",
        "model.max_length=48", "train.batch_tokens=512", "train.updates=3", "model.placement=deepnorm",
    ]  # fmt: skip
    changed = [part for assignment in assignments for part in ("--set", assignment)]
    done = leadline("train", "bert_small_post_ln", "--out", run, *changed)
    assert done.code == 0, done.err
    assert f"next: leadline evaluate {run}\n" in done.out
    found = leadline("evaluate", run)
    assert found.code == 0, found.err
    assert {"split", "nll", "perplexity", "accuracy"} <= {line.split()[0] for line in found.out.splitlines()}
    refused = leadline("translate", run, stdin=b"hello\n")
    assert (refused.code, refused.err.splitlines()[-1]) == (
        2,
        "leadline: this run was trained for masked_lm: it cannot translate",
    )
    shown = leadline("data", "prepare", "bert_small_post_ln", *changed)
    assert "54 documents" in shown.out
    assert leadline("data", "show", "bert_small_post_ln", *changed, "-n", 1).out.count("▁") > 3
    assert leadline("train", "bert_base_pre_ln", "--set", f"data.source=documents:{tmp_path}/nowhere").code == 2


def test_a_run_does_not_go_on_with_another_vocabulary(masked: Config, tmp_path: Path, monkeypatch) -> None:
    """The same text prepared again may have one."""
    run = train(masked.set(train={"updates": 1}), tmp_path / "run")
    trained_run = load(run)
    manifest = Store.__init__

    def changed(self: Store, folder: Path) -> None:
        manifest(self, folder)
        self.manifest["sha256"]["tokenizer.json"] = "another"
        self.tokenizer.bpe.add_tokens(["another"])

    monkeypatch.setattr(Store, "__init__", changed)
    with pytest.raises(UserError, match="has changed since the run began"):
        resume(run)
    with pytest.raises(UserError, match="another vocabulary than the run's"):
        trained_run.evaluate("valid")
