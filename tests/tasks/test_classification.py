"""Sequences, cuts and batches of labelled pairs; the loss and the scores against the model called by hand."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from leadline import history, recipes
from leadline.config import Config
from leadline.data import batching
from leadline.data.store import Store, prepare
from leadline.errors import UserError
from leadline.kernels.pack import pack_flat
from leadline.tasks import Classification
from leadline.tasks.classification import NOTHING, fitted

WORDS = ["ab", "cd", "ef", "ga", "hb", "ic"]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Three labels; some pairs are longer than the model."""
    folder, rng = tmp_path_factory.mktemp("labelled"), random.Random(0)
    for split, size in {"train": 70, "valid": 21}.items():
        rows = ["sort\tone\ttwo"]
        for _ in range(size):
            one, two = (" ".join(rng.choices(WORDS, k=rng.randint(1, most))) for most in (9, 20))
            rows.append(f"{rng.choice(['x', 'y', 'z'])}\t{one}\t{two}")
        (folder / f"{split}.tsv").write_text("\n".join(rows))
    model = {"encoder_layers": 1, "dim": 16, "ffn_dim": 32, "heads": 2, "max_length": 32, "classes": 3}
    columns = {"source": f"table:{folder}", "first": "one", "second": "two", "label": "sort", "vocab_size": 24}
    config = recipes.same_meaning().set(model=model, data=columns, train={"batch_sequences": 8, "device": "cpu"})
    return config


def task_of(config: Config, **changes: Any) -> Classification:
    config = config.set(**changes)
    return Classification(config, Store(prepare(config.data)))


@pytest.mark.parametrize(("lengths", "longest", "expected"), [
    ((4, 5), 12, (4, 5)),  # 9 and three marks fit
    ((4, 5), 11, (4, 4)),  # the longer loses first
    ((10, 3), 12, (6, 3)),
    ((3, 10), 12, (3, 6)),
    ((10, 10), 12, (5, 4)),  # then both alike
    ((10, 0), 12, (10, 0)),
    ((11, 0), 12, (10, 0)),
])  # fmt: skip
def test_what_is_too_long_is_cut_from_the_longer(lengths: tuple, longest: int, expected: tuple) -> None:
    assert fitted(np.array([lengths]), longest).tolist() == [list(expected)]


def test_cutting_is_taking_one_token_at_a_time_from_the_longer() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, (300, 2))
    for (a, b), found in zip(lengths.tolist(), fitted(lengths, 24).tolist(), strict=True):
        while a + b > 21:
            a, b = (a - 1, b) if a > b else (a, b - 1)
        assert [a, b] == found


def test_a_sequence_is_two_texts_with_their_marks_and_segments(labelled: Config) -> None:
    task = task_of(labelled)
    assert task.train.facts["cut"] == int((task.train.split.lengths().sum(1) > 29).sum()) > 0
    rows = batching.plan(task.train.lengths, task.shape, np.arange(70))[0]
    batch, (cls, sep) = task.collate(rows), (task.cls, task.sep)
    starts = batch.source.starts.tolist()
    for number, row in enumerate(rows):
        a, b = task.train.split[row]
        of_a, of_b = task.train.texts[row]
        tokens = batch.source.tokens[starts[number] : starts[number + 1]].tolist()
        assert tokens == [cls, *a[:of_a], sep, *b[:of_b], sep]
        segments = batch.source.segments[starts[number] : starts[number + 1]].tolist()  # type: ignore[index]
        assert segments == [0] * (of_a + 2) + [1] * (of_b + 1)
        assert batch.firsts[number] == starts[number]
        assert batch.labels[number] == task.train.labels[row]
    assert (batch.labels[len(rows) :] == NOTHING).all()
    assert batch.count == len(rows)


def test_batches_have_so_many_examples_and_one_shape(labelled: Config) -> None:
    task = task_of(labelled)
    plan = batching.epoch_plan(task.train.lengths, task.shape, 1, 0)
    assert sorted(np.concatenate(plan).tolist()) == list(range(70))
    assert sorted(map(len, plan)) == [6] + [8] * 8
    shapes = {
        tuple(t.shape for t in (b.source.tokens, b.source.starts, b.firsts, b.labels)) for b in map(task.collate, plan)
    }
    assert len(shapes) == 1
    assert task.shape.sides[0] <= 8 * 32
    single = task_of(labelled, data={"second": ""})
    assert single.train.lengths[:, 0].mean() * 8 < single.shape.sides[0] < 8 * 32  # less than the longest would need
    assert task_of(labelled, train={"batch_sequences": 0, "batch_tokens": 64}).shape.sides[0] == 64


def test_single_texts_and_models_without_segments(labelled: Config) -> None:
    task = task_of(labelled, data={"second": ""}, model={"segments": 0})
    batch = task.collate(np.array([3]))
    a, _ = task.train.split[3]
    assert batch.source.tokens[: len(a) + 2].tolist() == [task.cls, *a, task.sep]
    assert batch.source.segments is None
    assert (task.train.facts["cut"], batch.tokens) == (0, len(a) + 2)


def test_loss_and_scores_are_those_of_each_sequence_by_itself(labelled: Config) -> None:
    task = task_of(labelled, train={"label_smoothing": 0.0})
    model = task.build_model().eval()
    examples = task.read("valid")
    nll, right = 0.0, 0
    for row, label in enumerate(examples.labels):
        (a, b), (of_a, of_b) = examples.split[row], examples.texts[row]
        tokens = np.array([task.cls, *a[:of_a], task.sep, *b[:of_b], task.sep])
        segments = (np.arange(len(tokens)) >= of_a + 2).astype(np.int64)
        alone = pack_flat(tokens, np.array([len(tokens)]), len(tokens), [1], 32, 1, 0, segments)
        with torch.no_grad():
            scores = model.classify(model(alone), torch.tensor([0]))
        nll += float(F.cross_entropy(scores, torch.tensor([label])))
        right += int(scores.argmax()) == label
    found = task.evaluate(model, "valid")
    assert found["nll"] == pytest.approx(nll / 21, abs=1e-5)
    assert found["accuracy"] == right / 21
    assert found["cut"] == examples.facts["cut"]
    batches = list(task.batches(examples))
    with torch.no_grad():
        total = sum(float(task.loss(model, batch, 2.0)) for batch in batches)
    assert total == pytest.approx(nll / 2, abs=1e-4)
    assert [batch.count for batch in batches] == [8, 8, 5]


def test_what_does_not_fit_together_is_refused(labelled: Config) -> None:
    for changes, complaint in (
        ({"model": {"classes": 2}}, r"the data has 3 labels \(x, y, z\): set model.classes=3, not 2"),
        ({"model": {"decoder_layers": 1}}, "needs an encoder alone"),
        ({"train": {"batch_tokens": 31}}, "train.batch_tokens=31 must be at least model.max_length=32"),
    ):
        with pytest.raises(UserError, match=complaint):
            task_of(labelled, **changes)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="holds pairs, and this task needs examples"):
        task_of(labelled, data={"source": "builtin:numerals", "source_lang": "de", "size": 50, "vocab_size": 120})


@pytest.mark.usefixtures("captured")
def test_graph_and_eager_have_the_same_losses_and_weights(labelled: Config) -> None:
    from leadline.training.step import make_step

    config = labelled.set(model={"max_length": 12}, train={"batch_sequences": 2, "step": "graph"})
    results = []
    for kind in ("graph", "eager"):
        task = task_of(config, train={"step": kind})
        model = task.build_model().train()
        step = make_step(task.config, task, model)
        plan = batching.epoch_plan(task.train.lengths, task.shape, 1, 0)
        losses = [float(step([step.prepare(task.collate(plan[u]))], u + 1, 0.01).loss) for u in range(2)]
        results.append((losses, {name: p.detach().clone() for name, p in model.named_parameters()}))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-5)
    for name, weight in results[0][1].items():
        if "qkv.bias" not in name:
            assert (weight - results[1][1][name]).abs().max() < 2e-3, name


@pytest.mark.slow
def test_it_learns_what_can_be_learnt(tmp_path: Path) -> None:
    """Whether two texts begin with the same word: nothing in either text alone tells."""
    from leadline.training.loop import train
    from leadline.training.run import labels_of

    rng = random.Random(0)
    for split, size in {"train": 1500, "valid": 200}.items():
        rows = ["label\ta\tb"]
        for number in range(size):
            one = rng.choice(WORDS)
            two = one if number % 2 else rng.choice([word for word in WORDS if word != one])
            rows.append(f"{('differ', 'agree')[number % 2]}\t{one} {rng.choice(WORDS)}\t{two} {rng.choice(WORDS)}")
        (tmp_path / f"{split}.tsv").write_text("\n".join(rows))
    config = recipes.same_meaning().set(
        model={"encoder_layers": 2, "dim": 32, "ffn_dim": 64, "heads": 2, "max_length": 16},
        data={"source": f"table:{tmp_path}", "first": "a", "second": "b", "vocab_size": 27},
        optim={"lr": 4e-3, "warmup": 20},
        train={"epochs": 5, "device": "cpu"},
    )
    run = train(config, tmp_path / "run")
    last = history.read(run).rows[-1]
    assert last["valid_accuracy"] > 0.9
    assert last["valid_nll"] < math.log(2) / 2
    assert labels_of(run) == ["agree", "differ"]
