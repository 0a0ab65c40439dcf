"""What Drift logs: each number worked out another way, and the training it watches is not changed by it."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from leadline import recipes, tasks
from leadline.config import Config
from leadline.data import batching
from leadline.data.store import Store, prepare
from leadline.diagnose.drift import Drift
from leadline.errors import UserError
from leadline.training.step import EagerStep, dropout_seed


@pytest.fixture(scope="module")
def config() -> Config:
    model = {"encoder_layers": 1, "decoder_layers": 2, "dim": 16, "ffn_dim": 32, "max_length": 64, "dropout": 0.1}
    return recipes.numerals().set(
        model=model | {"placement": "post_ln"}, data={"size": 300, "vocab_size": 150}, train={"batch_tokens": 128}
    )


def trained(config: Config, drift: Drift | None, updates: int = 3):
    task = tasks.find(config.task)(config, Store(prepare(config.data)))
    model = task.build_model().train()
    model.use_attention("padded")
    step = EagerStep(config, task, model)
    plan = batching.epoch_plan(task.train.lengths, task.shape, 1, 0)
    rows, models = [], [copy.deepcopy(model)]
    for update in range(1, updates + 1):
        watchers = [drift] if drift and drift.due(update) else []
        result = step([task.collate(plan[update])], update, 0.01, watchers)
        rows += [row for row, _ in result.watched]
        models.append(copy.deepcopy(model))
    return rows, models, task.collate(plan[1])


def test_drift_and_change_are_those_of_the_output_on_the_first_batch(config: Config) -> None:
    rows, models, batch = trained(config, Drift(1))
    with torch.no_grad():
        outputs = [model.eval()(batch.source, batch.target) for model in models]

    def size(x: torch.Tensor) -> float:
        return float(x.norm(dim=-1).mean()) / math.sqrt(16)

    for i, row in enumerate(rows):
        assert row["watch/drift"] == pytest.approx(size(outputs[i + 1] - outputs[0]), rel=1e-4)
        assert row["watch/change"] == pytest.approx(size(outputs[i + 1] - outputs[i]), rel=1e-4)
    assert rows[0]["watch/drift"] == rows[0]["watch/change"] > 0


def test_norm_inputs_and_matrices_are_named_by_stack(config: Config) -> None:
    rows, models, batch = trained(config, Drift(1), 1)
    named = {key.split("/")[2] for key in rows[0] if "norm_input" in key}
    assert named == {"encoder.self", "encoder.ffn", "decoder.self", "decoder.cross", "decoder.ffn"}
    seen = []  # by the model as it was before the update, with the update's dropout
    for block in models[0].decoder.blocks:
        block.cross_residual.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        torch.manual_seed(dropout_seed(config.train.seed, 1, 0))
        models[0].train()(batch.source, batch.target)
    expected = sum(float(x.norm(dim=-1).mean()) for x in seen) / len(seen) / math.sqrt(16)
    assert rows[0]["watch/norm_input/decoder.cross"] == pytest.approx(expected, rel=1e-4)
    assert {key for key in rows[0] if "second_matrix" in key} == {
        "watch/second_matrix/encoder.1",
        "watch/second_matrix/decoder.1",
        "watch/second_matrix/decoder.2",
    }
    assert all(rows[0][key] > 0 for key in rows[0] if "second_matrix" in key)


def test_looking_changes_nothing(config: Config) -> None:
    watched, plain = (trained(config, drift)[1][-1] for drift in (Drift(1), None))
    for one, other in zip(watched.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_it_looks_at_the_first_update_and_then_now_and_again() -> None:
    assert [update for update in range(1, 11) if Drift(4).due(update)] == [1, 4, 8]
    with pytest.raises(UserError, match="at least 1"):
        Drift(0)
