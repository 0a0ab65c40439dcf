"""Masked language modelling: what a batch holds, and that its loss is that of each sequence by itself."""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.config import Config
from leadline.data import batching
from leadline.data.store import Store, prepare
from leadline.errors import UserError
from leadline.kernels.pack import pack_flat
from leadline.model import Transformer
from leadline.tasks.masked_lm import NOTHING, Batch, MaskedLM
from leadline.training import inputs

PAIRS = {"classes": 2}


@pytest.fixture(scope="module")
def store(masked: Config) -> Store:
    return Store(prepare(masked.data))


def task_of(config: Config, store: Store, **model: object) -> MaskedLM:
    return MaskedLM(config.set(model=model), store)


def batches(task: MaskedLM, epoch: int = 0) -> list[tuple[np.ndarray, Batch]]:
    plan = batching.epoch_plan(task.train.lengths, task.shape, task.config.train.seed, epoch)
    return [(rows, task.collate(rows, epoch)) for rows in plan]


def sequences(batch: Batch) -> list[slice]:
    """Those that are not filler."""
    starts = batch.source.starts.tolist()
    found = [slice(a, b) for a, b in itertools.pairwise(starts) if b > a]
    return [s for s in found if s.start < batch.tokens]


def unmasked(batch: Batch) -> np.ndarray:
    tokens = batch.source.tokens.numpy().copy()
    used = batch.labels != NOTHING
    tokens[batch.masked[used].numpy()] = batch.labels[used].numpy()
    return tokens


def text(task: MaskedLM, row: int) -> list[int]:
    """A row as it lies in its shard."""
    sequences = task.train.sequences
    tokens = sequences.shards[sequences.shard[row]].tokens
    return tokens[sequences.begins[row] : sequences.ends[row]].tolist()


def test_an_epoch_holds_the_text_between_cls_and_sep(masked: Config, store: Store) -> None:
    task = task_of(masked, store)
    found = []
    for rows, batch in batches(task):
        tokens = unmasked(batch)
        parts = [tokens[s].tolist() for s in sequences(batch)]
        assert len(parts) == len(rows)
        assert all(part[0] == task.cls and part[-1] == task.sep and len(part) <= 48 for part in parts)
        found += [part[1:-1] for part in parts]
        assert (tokens[batch.tokens :] == task.pad).all()
        assert not batch.source.segments.any()
    expected = [text(task, row) for row in range(len(task.train.lengths))]
    assert sorted(found) == sorted(expected)
    assert sum(map(len, found)) == sum(len(shard.tokens) for shard in store.documents("train"))


def test_labels_are_what_was_there_and_shapes_never_change(masked: Config, store: Store) -> None:
    task = task_of(masked, store)
    shapes, changed, texts = set(), 0, 0
    for epoch in range(3):
        for rows, batch in batches(task, epoch):
            shapes.add(tuple(tuple(t.shape) for t in inputs.tensors(batch.fixed())))
            used = batch.labels != NOTHING
            assert batch.count == used.sum() > 0
            assert (batch.masked[~used] == 0).all()
            clean = np.concatenate([[task.cls, *text(task, row), task.sep] for row in self_sorted(task, rows)])
            assert np.array_equal(clean[batch.masked[used]], batch.labels[used])
            assert np.array_equal(clean, unmasked(batch)[: len(clean)])
            changed += int((clean != batch.source.tokens.numpy()[: len(clean)]).sum())
            texts += int(task.vocabulary.is_ordinary[clean].sum())
    assert len(shapes) == 1
    assert changed / texts == pytest.approx(0.15 * 0.9, abs=0.02)


def self_sorted(task: MaskedLM, rows: np.ndarray) -> list[int]:
    return sorted(rows.tolist(), key=lambda row: task.train.lengths[row, 0])


def test_masks_are_fresh_every_epoch_and_the_same_for_the_same(masked: Config, store: Store) -> None:
    task, again = task_of(masked, store), task_of(masked, store)
    rows = np.arange(5)
    first, same, other = task.collate(rows, 3), again.collate(rows, 3), task.collate(rows, 4)
    assert all(torch.equal(a, b) for a, b in zip(inputs.tensors(first), inputs.tensors(same), strict=True))
    assert not torch.equal(first.source.tokens, other.source.tokens)
    seed = MaskedLM(masked.set(train={"seed": 9}), store).collate(rows, 3)
    assert not torch.equal(first.source.tokens, seed.source.tokens)


def test_a_row_is_masked_the_same_in_every_batch(masked: Config, store: Store) -> None:
    task = task_of(masked, store, **PAIRS)
    alone = task.collate(np.array([6]), 2)
    among = task.collate(np.arange(9), 2)
    wanted = alone.source.tokens[sequences(alone)[0]]
    assert sum(torch.equal(wanted, among.source.tokens[s]) for s in sequences(among)) == 1


@pytest.mark.parametrize("tokenizer", ["bpe", "wordpiece"])
def test_whole_words_of_a_learnt_vocabulary_are_masked_whole(masked: Config, tokenizer: str) -> None:
    config = masked.set(data={"tokenizer": tokenizer}, mask={"whole_words": True})
    task = MaskedLM(config, Store(prepare(config.data)))
    name, pieces, words = task.store.tokenizer.piece, 0, 0
    goes_on = (lambda p: p.startswith("##")) if tokenizer == "wordpiece" else (lambda p: not p.startswith("▁"))
    for _, batch in batches(task):
        hidden = set(batch.masked[batch.labels != NOTHING].tolist())
        tokens = unmasked(batch)
        for place in range(1, batch.tokens):
            if goes_on(name(tokens[place])) and not name(tokens[place]).startswith("["):
                assert (place in hidden) == (place - 1 in hidden)
                pieces += place in hidden
        words += len(hidden)
    assert pieces > 10 < words


def loss_alone(model: Transformer, task: MaskedLM, batch: Batch, s: slice) -> Tensor:
    """One sequence of a batch by itself, every token projected, with PyTorch's cross entropy."""
    length = s.stop - s.start
    tokens = batch.source.tokens[s].numpy()
    source = pack_flat(tokens, np.array([length]), length, [1], length, 1, 0, batch.source.segments[s].numpy())
    labels = torch.full((len(batch.source.tokens),), NOTHING)
    used = batch.labels != NOTHING
    labels[batch.masked[used]] = batch.labels[used]
    return F.cross_entropy(model.logits(model(source)), labels[s], ignore_index=NOTHING, reduction="sum")


def test_packed_is_alone_and_the_loss_is_over_masked_tokens_only(masked: Config, store: Store) -> None:
    task = task_of(masked, store)
    model = task.build_model().eval()
    _, batch = batches(task)[0]
    loss = task.loss(model, batch)
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    alone = sum(loss_alone(model, task, batch, s) for s in sequences(batch))
    alone.backward()
    assert loss.item() == pytest.approx(alone.item(), rel=1e-5)
    for one, parameter in zip(gradients, model.parameters(), strict=True):
        assert torch.allclose(one, parameter.grad, rtol=1e-4, atol=1e-5)
    assert task.loss(model, batch, 7.0).item() == pytest.approx(loss.item() / 7)


def test_gradients_come_from_masked_positions_only(masked: Config, store: Store) -> None:
    task = task_of(masked, store)
    model = task.build_model().eval()
    _, batch = batches(task)[0]
    hidden = task.hidden(model, batch).detach().requires_grad_()
    task.loss_of_hidden(model, hidden, batch).backward()
    touched = set(hidden.grad.abs().sum(1).nonzero()[:, 0].tolist())
    assert touched == set(batch.masked[batch.labels != NOTHING].tolist())


def test_no_sequence_sees_another(masked: Config, store: Store) -> None:
    """Nor so another document: every sequence is of one."""
    task = task_of(masked, store)
    model = task.build_model().eval()
    _, batch = batches(task)[0]
    places = sequences(batch)
    tokens = batch.source.tokens.clone()
    tokens[places[1]] = tokens[places[1]].flip(0)
    other = dataclasses.replace(batch.source, tokens=tokens)
    for kernel in ("padded", "reference"):
        model.use_attention(kernel)
        with torch.no_grad():
            before, after = model(batch.source), model(other)
        for number, s in enumerate(places):
            assert torch.equal(before[s], after[s]) == (number != 1)


class TestNextSentence:
    def test_labels_are_balanced_and_true(self, masked: Config, store: Store) -> None:
        task = task_of(masked, store, **PAIRS)
        rows_of_text = [" ".join(map(str, shard.tokens.tolist())) for shard in store.documents("train")]
        labels: list[int] = []
        for epoch in range(8):
            for _, batch in batches(task, epoch):
                tokens, places = unmasked(batch), sequences(batch)
                assert batch.firsts[: len(places)].tolist() == [s.start for s in places]
                assert (batch.follows[len(places) :] == NOTHING).all()
                for s, label in zip(places, batch.follows.tolist(), strict=False):
                    inside, segments = tokens[s].tolist(), batch.source.segments[s].tolist()
                    middle = inside.index(task.sep)
                    assert segments == [0] * (middle + 1) + [1] * (len(inside) - middle - 1)
                    assert (inside[0], inside[-1], inside.count(task.sep)) == (task.cls, task.sep, 2)
                    joined = " ".join(map(str, inside[1:middle] + inside[middle + 1 : -1]))
                    assert any(joined in text for text in rows_of_text) == (label == 0)
                    labels.append(label)
        assert np.mean(labels) == pytest.approx(0.5, abs=5 * 0.5 / len(labels) ** 0.5)
        assert len(labels) > 500

    def test_the_pairs_of_a_row_change_with_the_epoch(self, masked: Config, store: Store) -> None:
        task = task_of(masked, store, **PAIRS)
        drawn = {unmasked(task.collate(np.array([0]), epoch)).tobytes() for epoch in range(6)}
        assert len(drawn) > 3

    def test_what_does_not_follow_is_of_another_document_and_as_long(self, masked: Config, tmp_path: Path) -> None:
        """Or else the length would tell. Four long documents, each in letters of its own."""
        words = [[a * n for n in range(1, 5)] for a in "abcd"]
        rng = random.Random(0)
        texts = [" ".join(f"X {' '.join(rng.choices(own, k=4))}." for _ in range(60)) for own in words]
        (tmp_path / "text").write_text("\n\n".join(texts))
        config = masked.set(data={"source": f"documents:{tmp_path}/text", "vocab_size": 26}, model=PAIRS)
        task = MaskedLM(config, Store(prepare(config.data)))
        letters = np.array([next((c for c in task.store.tokenizer.piece(t) if c in "abcd"), "") for t in range(26)])
        shares: dict[int, list[float]] = {0: [], 1: []}
        for row in range(len(task.train.lengths)):
            for epoch in range(30):
                batch = task.collate(np.array([row]), epoch)
                tokens, label = unmasked(batch)[: batch.tokens], int(batch.follows[0])
                second = int(batch.source.segments.argmax())
                first, other = (set(letters[part]) - {""} for part in (tokens[:second], tokens[second:]))
                assert len(first) == len(other) == 1
                assert (first == other) == (label == 0)
                shares[label].append(len(tokens) / task.train.lengths[row, 0])
        assert max(shares[1]) <= 1 == min(shares[0])
        assert np.mean(shares[1]) > 0.93
        assert np.mean([label for label in shares for _ in shares[label]]) == pytest.approx(0.5, abs=0.1)

    def test_both_losses_are_means_of_their_own(self, masked: Config, store: Store) -> None:
        task = task_of(masked, store, **PAIRS)
        model = task.build_model().eval()
        _, batch = batches(task)[0]
        hidden = model(batch.source)
        words = F.cross_entropy(model.logits(hidden[batch.masked]), batch.labels, ignore_index=NOTHING)
        follows = F.cross_entropy(model.classify(hidden, batch.firsts), batch.follows, ignore_index=NOTHING)
        assert task.loss(model, batch, batch.count).item() == pytest.approx((words + follows).item(), rel=1e-5)


@pytest.mark.parametrize("model", [{}, PAIRS])
def test_evaluation_is_that_of_a_loop_and_the_same_each_time(masked: Config, store: Store, model: dict) -> None:
    task = task_of(masked, store, **model)
    net = task.build_model().train()
    found = task.evaluate(net, "valid")
    assert net.training
    assert found == task.evaluate(net, "valid")
    seeded = MaskedLM(task.config.set(train={"seed": 5}), store)
    assert found == seeded.evaluate(net, "valid")  # the mask is not of the training's seed
    losses, right, count = 0.0, 0, 0
    with torch.no_grad():
        for batch in task.batches(task.read("valid")):
            logits = net.eval().logits(net(batch.source)[batch.masked])
            losses += F.cross_entropy(logits, batch.labels, ignore_index=NOTHING, reduction="sum").item()
            right += int((logits.argmax(-1) == batch.labels).sum())
            count += batch.count
    assert found["nll"] == pytest.approx(losses / count, rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(losses / count), rel=1e-4)
    assert found["accuracy"] == pytest.approx(right / count)
    assert ("next_accuracy" in found) == bool(model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"decoder_layers": 1}}, "needs an encoder alone"),
        ({"model": {"classes": 3}}, "model.classes=0, or model.classes=2"),
        ({"model": {"classes": 2, "segments": 0}}, "with model.segments=2"),
        ({"train": {"batch_tokens": 40}}, "batch_tokens=40 must be at least model.max_length=48"),
    ],
)
def test_what_cannot_work_is_one_sentence(masked: Config, store: Store, changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        MaskedLM(masked.set(**changes), store)
