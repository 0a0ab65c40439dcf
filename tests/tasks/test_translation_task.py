"""Translation: batches hold what was prepared, and losses are those of each sentence by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.config import Config
from leadline.data import batching, parallel
from leadline.data.flat import Flat
from leadline.data.sources import open_source
from leadline.data.store import Store, prepare
from leadline.data.tokenizer import BOS, EOS, PAD
from leadline.errors import UserError
from leadline.kernels.pack import Pack, group_sizes, pack, pack_one
from leadline.model import Transformer
from leadline.tasks.translation import Batch, Translation, collate


@pytest.fixture
def task(config: Config, store: Store) -> Translation:
    return Translation(config, store)


@pytest.fixture
def model(task: Translation) -> Transformer:
    return task.build_model().eval()


def token_pairs(store: Store, config: Config, split: str) -> list[tuple[list[int], list[int]]]:
    """From the text itself."""
    left, right = zip(*open_source(config.data).pairs(split), strict=True)
    encode = store.tokenizer.encode
    return list(zip(encode(left, "de"), encode(right, "en"), strict=True))


def fits(pair: tuple[list[int], list[int]], config: Config) -> bool:
    return max(map(len, pair)) + 1 <= config.model.max_length


def sentence_loss(model: Transformer, pair: tuple[list[int], list[int]], smoothing: float) -> Tensor:
    """The sum of one sentence's losses, by itself and with PyTorch's own cross entropy."""
    source, target = pack_one([np.array([*pair[0], EOS])]), pack_one([np.array([BOS, *pair[1]])])
    logits = model.logits(model(source, target))
    return F.cross_entropy(logits, torch.tensor([*pair[1], EOS]), label_smoothing=smoothing, reduction="sum")


def first_batch(task: Translation) -> tuple[np.ndarray, Batch]:
    rows = batching.epoch_plan(task.train.lengths, task.shape, seed=0, epoch=0)[0]
    return rows, task.collate(rows)


def gradients(model: Transformer) -> list[Tensor]:
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return found


def test_collate_shifts_the_target_and_ends_both_sides(task: Translation, store: Store) -> None:
    rows, batch = first_batch(task)
    split = store.split("train")
    starts = {side: getattr(batch, side).starts.tolist() for side in ("source", "target")}
    assert len(rows) > 1
    for i, row in enumerate(rows):
        left, right = (side.tolist() for side in split[int(task.train.rows[row])])
        of_source = slice(starts["source"][i], starts["source"][i + 1])
        of_target = slice(starts["target"][i], starts["target"][i + 1])
        assert batch.source.tokens[of_source].tolist() == [*left, EOS]
        assert batch.target.tokens[of_target].tolist() == [BOS, *right]
        assert batch.labels[of_target].tolist() == [*right, EOS]
    end = starts["target"][len(rows)]
    assert (batch.labels[end:] == PAD).all()
    assert (batch.target.tokens[end:] == PAD).all()
    assert (batch.source.tokens[starts["source"][len(rows)] :] == PAD).all()


def collated_one_by_one(pairs: list[tuple[np.ndarray, np.ndarray]], shape: batching.Shape, max_length: int) -> Batch:
    """Every sentence an array by itself."""
    source = [np.append(left, EOS) for left, _ in pairs]
    target = [np.append(BOS, right) for _, right in pairs]
    labels = np.concatenate([np.append(right, EOS) for _, right in pairs])
    sizes = group_sizes([[len(s) for s in source], [len(t) for t in target]])
    most = shape.sequences + -(-max(shape.sides) // max_length)
    return Batch(
        pack(source, shape.sides[0], sizes, max_length, most, PAD),
        pack(target, shape.sides[1], sizes, max_length, most, PAD),
        torch.from_numpy(np.pad(labels, (0, shape.sides[1] - len(labels)), constant_values=PAD)),
        count=len(labels),
        tokens=len(labels),
    )


def everything_in(value: object) -> list[object]:
    """Dataclasses, tuples and tensors as lists that can be compared, with the types."""
    if isinstance(value, Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, Batch | Pack):
        return [[name, everything_in(part)] for name, part in vars(value).items()]
    return [type(value), [everything_in(part) for part in value] if isinstance(value, tuple) else value]


@pytest.mark.parametrize("shard_tokens", [1 << 24, 100], ids=["one shard", "several shards"])
def test_collate_equals_its_form_of_one_sentence_at_a_time(config, tmp_path, monkeypatch, shard_tokens: int) -> None:
    monkeypatch.setattr(parallel, "SHARD_TOKENS", shard_tokens)
    monkeypatch.setattr(parallel, "CHUNK", 4)
    store = Store(prepare(config.data, tmp_path / "data"))
    task, split = Translation(config, store), store.split("train")
    assert (len(split.tokens) > 3) == (shard_tokens == 100)
    for rows in batching.epoch_plan(task.train.lengths, task.shape, seed=0, epoch=0):
        pairs = [split[int(task.train.rows[row])] for row in rows]
        expected = everything_in(collated_one_by_one(pairs, task.shape, config.model.max_length))
        assert everything_in(task.collate(rows)) == expected
        assert (
            everything_in(collate(*map(Flat.of, zip(*pairs, strict=True)), task.shape, config.model.max_length))
            == expected
        )


def test_collate_counts_the_labels_and_keeps_the_shape(task: Translation) -> None:
    for rows in batching.epoch_plan(task.train.lengths, task.shape, seed=0, epoch=0):
        batch = task.collate(rows)
        assert batch.count == int((batch.labels != PAD).sum()) == task.train.lengths[rows, 1].sum()
        assert len(batch.source.tokens) == task.shape.sides[0]
        assert len(batch.target.tokens) == len(batch.labels) == task.shape.sides[1]


def test_an_epoch_holds_every_sentence_that_is_short_enough(task: Translation, store: Store, config: Config) -> None:
    pairs = token_pairs(store, config, "train")
    short = [pair for pair in pairs if fits(pair, config)]
    assert 0 < task.train.facts["skipped"] == len(pairs) - len(short)
    batches = [task.collate(rows) for rows in batching.epoch_plan(task.train.lengths, task.shape, seed=0, epoch=0)]
    assert sum(batch.count for batch in batches) == sum(len(right) + 1 for _, right in short)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_is_the_sum_over_sentences(config: Config, store: Store, model: Transformer, smoothing: float) -> None:
    task = Translation(config.set(train={"label_smoothing": smoothing}), store)
    rows, batch = first_batch(task)
    loss = task.loss(model, batch)
    pairs = [store.split("train")[int(task.train.rows[row])] for row in rows]
    pairs = [(left.tolist(), right.tolist()) for left, right in pairs]
    assert batch.count == sum(len(right) + 1 for _, right in pairs)
    assert task.loss(model, batch, batch.count).item() == pytest.approx(loss.item() / batch.count)
    assert loss.item() == pytest.approx(sum(sentence_loss(model, p, smoothing).item() for p in pairs), rel=1e-5)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_evaluate_equals_a_loop_over_sentences(task, store, config, model, split: str) -> None:
    pairs = token_pairs(store, config, split)
    short = [pair for pair in pairs if fits(pair, config)]
    count = sum(len(right) + 1 for _, right in short)
    with torch.no_grad():
        plain, smoothed = (sum(sentence_loss(model, p, s).item() for p in short) / count for s in (0.0, 0.1))
    found = task.evaluate(model, split)
    assert found["nll"] == pytest.approx(plain, rel=1e-5)
    assert found["loss"] == pytest.approx(smoothed, rel=1e-5)
    assert found["skipped"] == len(pairs) - len(short)


def test_evaluate_skips_what_is_longer_than_the_limit_and_nothing_shorter(config, store) -> None:
    lengths = store.split("valid").lengths().max(1) + 1  # with </s>
    for limit in sorted(set(lengths.tolist()))[1:]:
        task = Translation(config.set(model={"max_length": limit}), store)
        assert task.evaluate(task.build_model(), "valid")["skipped"] == (lengths > limit).sum()


def test_evaluate_is_without_dropout_and_leaves_the_model_as_it_was(task: Translation) -> None:
    model = task.build_model().train()
    first, second = task.evaluate(model, "valid"), task.evaluate(model, "valid")
    assert model.training
    assert first == second == task.evaluate(model.eval(), "valid")
    assert not model.training


def test_evaluate_scores_the_sentences_asked_for(task: Translation, model: Transformer) -> None:
    assert "bleu" not in task.evaluate(model, "test")
    found = task.evaluate(model, "test", sentences=2)
    assert {"loss", "nll", "bleu", "chrf", "exact_match"} <= found.keys()
    assert all(isinstance(value, float) for value in found.values())
    assert task.scores(model, "test", 2)["sentences"] == 2
    assert task.scores(model, "test")["sentences"] == 6


def test_score_counts_the_sentences_translated_in_pieces(task: Translation, store, config, model) -> None:
    longer = sum(len(left) + 1 > config.model.max_length for left, _ in token_pairs(store, config, "valid"))
    done: list[int] = []
    found = task.scores(model, "valid", on_done=done.append)
    assert 0 < found["in_pieces"] == longer
    assert sum(done) >= found["sentences"] == 12


def test_accumulated_gradients_equal_those_of_one_large_batch(config: Config, store: Store) -> None:
    small = Translation(config, store)
    large = Translation(config.set(train={"batch_tokens": 2048}), store)
    model = small.build_model().eval()
    everything = np.argsort(small.train.lengths.max(1), kind="stable")
    batches = [small.collate(rows) for rows in batching.epoch_plan(small.train.lengths, small.shape, 0, 0)]
    assert len(batches) > 4
    count = sum(batch.count for batch in batches)
    for batch in batches:
        small.loss(model, batch, count).backward()
    accumulated = gradients(model)

    one = large.collate(everything)
    large.loss(model, one, one.count).backward()
    assert one.count == count
    for some, whole in zip(accumulated, gradients(model), strict=True):
        assert (some - whole).abs().max() < 1e-6 + 1e-4 * whole.abs().max()


def test_the_model_has_the_vocabulary_of_the_data_and_the_seed_of_the_config(config: Config, store: Store) -> None:
    def weights(seed: int) -> Tensor:
        return Translation(config.set(train={"seed": seed}), store).build_model().output.weight

    assert len(weights(1)) == store.manifest["vocab_size"]
    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": {"encoder_layers": 0}}, "needs an encoder and a decoder"),
        ({"model": {"decoder_layers": 0}}, "needs an encoder and a decoder"),
        ({"train": {"batch_tokens": 23}}, "train.batch_tokens=23 must be at least model.max_length=24"),
        ({"model": {"max_length": 2}}, "every training pair is longer than model.max_length=2"),
    ],
)
def test_what_cannot_be_trained_is_refused(config: Config, store: Store, change: dict, named: str) -> None:
    with pytest.raises(UserError, match=named):
        Translation(config.set(**change), store)


def test_the_train_split_has_no_bleu(task: Translation, model: Transformer) -> None:
    with pytest.raises(UserError, match="use valid or test"):
        task.scores(model, "train")
