"""The batches of a language model and what it is judged by, against what they are defined as, in plain Python."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import handmade
import numpy as np
import pytest
import torch
from torch import Tensor

from leadline.config import Config
from leadline.data.store import Store, prepare
from leadline.errors import UserError
from leadline.tasks import CausalLM, MaskedLM
from leadline.tasks.causal_lm import NOTHING

LONGEST = 32


def task_of(across: bool) -> CausalLM:
    config, store = handmade.CASES["causal_lm, across documents" if across else "causal_lm"]
    return CausalLM(config, store)


def documents(task: CausalLM, split: str, across: bool) -> list[list[int]]:
    """Tokens of each with their end; across: a shard is one."""
    shards = [
        [[int(t) for sentence in document for t in sentence] for document in shard.each()]
        for shard in task.store.documents(split)
    ]
    wholes = [list(itertools.chain.from_iterable(shard)) for shard in shards]
    return wholes if across else list(itertools.chain.from_iterable(shards))


def expected_rows(task: CausalLM, split: str, across: bool) -> list[tuple[list[int], list[int]]]:
    """(tokens, labels) of each sequence."""
    rows = []
    for document in documents(task, split, across):
        given = [task.end, *document[:-1]]
        cuts = range(0, len(document), LONGEST)
        rows += [(given[i : i + LONGEST], document[i : i + LONGEST]) for i in cuts]
    return rows


@pytest.mark.parametrize("across", [False, True])
def test_every_token_and_every_end_is_predicted_once_an_epoch(across: bool) -> None:
    task = task_of(across)
    expected = expected_rows(task, "train", across)
    found: list[tuple[list[int], list[int]]] = []
    for rows in task.epoch(1):
        batch = task.collate(rows, 1)
        starts, labels, tokens = batch.target.starts.tolist(), batch.labels.tolist(), batch.target.tokens.tolist()
        sequences = itertools.pairwise(starts)
        real = [(tokens[a:b], labels[a:b]) for a, b in sequences if b > a and labels[a] != NOTHING]
        assert real == [expected[row] for row in rows]
        assert batch.count == batch.tokens == sum(label != NOTHING for label in labels)
        assert labels[batch.count :] == [NOTHING] * (len(labels) - batch.count)
        found += real
    assert sorted(found) == sorted(expected)
    assert sum(labels.count(task.end) for _, labels in found) == len(documents(task, "train", False))


def test_documents_do_not_see_each_other_unless_asked() -> None:
    """Another document before it changes what is said of a token only where sequences run on."""
    for across in (False, True):
        task = task_of(across)
        model = task.build_model().eval()
        whole = task.collate(task.epoch(0)[0])
        sequence = int((whole.target.owner[: whole.count].bincount() > 3).nonzero()[-1])
        begin, end = whole.target.starts[sequence : sequence + 2].tolist()
        others = torch.arange(len(whole.target.tokens))
        changed = torch.where((others < begin) | (others >= end), 7, whole.target.tokens)
        same = model(whole.target)[begin:end]
        object.__setattr__(whole.target, "tokens", changed)
        assert torch.equal(model(whole.target)[begin:end], same)
    ends = [labels.count(1) for _, labels in expected_rows(task_of(True), "train", True)]
    assert max(ends) > 1  # several documents in a sequence
    assert max(labels.count(1) for _, labels in expected_rows(task_of(False), "train", False)) == 1


def test_a_token_sees_only_those_before_it() -> None:
    task = task_of(False)
    model = task.build_model().eval()
    pack = task.collate(task.epoch(0)[0]).target
    before = model(pack)
    starts = pack.starts.tolist()
    longest = int(np.diff(starts).argmax())
    middle = (starts[longest] + starts[longest + 1]) // 2
    pack.tokens[middle] = (pack.tokens[middle] + 3) % handmade.VOCABULARY
    after = model(pack)
    same = (before == after).all(-1)
    assert same[:middle].all()
    assert not same[middle : starts[longest + 1]].any()


class Uniform(torch.nn.Module):
    """Gives every token the same probability, but the one after token 5, of which it is sure that it is 6."""

    config = task_of(False).config.model

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, pack) -> Tensor:  # type: ignore[no-untyped-def]
        return pack.tokens[:, None].float()

    def loss(self, hidden: Tensor, labels: Tensor, smoothing: float, ignore: int) -> tuple[Tensor, Tensor]:
        sure = (hidden[:, 0] == 5) & (labels == 6)
        nll = torch.where(sure, 0.0, math.log(handmade.VOCABULARY))[labels != ignore].sum()
        return nll, nll


@pytest.mark.parametrize("across", [False, True])
def test_nats_perplexity_and_bits_per_byte_are_as_defined(across: bool) -> None:
    """An end of text counts among the tokens and has no bytes."""
    task = task_of(across)
    verdict = task.evaluate(Uniform(), "valid")  # type: ignore[arg-type]
    rows = expected_rows(task, "valid", across)
    pairs = [pair for tokens, labels in rows for pair in zip(tokens, labels, strict=True)]
    nats = sum(0.0 if pair == (5, 6) else math.log(handmade.VOCABULARY) for pair in pairs)
    size = sum((token - 1) % 7 for _, token in pairs)
    assert verdict["nll"] == pytest.approx(nats / len(pairs))
    assert verdict["perplexity"] == pytest.approx(math.exp(nats / len(pairs)))
    assert verdict["bits_per_byte"] == pytest.approx(nats / math.log(2) / size)


def test_bits_per_byte_are_of_the_bytes_that_were_read(written: Config, documents_text: list[str]) -> None:
    """Those of the validation documents, their line ends between paragraphs among them."""
    task = CausalLM(written, Store(prepare(written.data)))
    lengths = task.store.tokenizer.byte_lengths()
    for split in ("train", "valid"):
        texts = [
            task.store.tokenizer.decode([[int(t) for s in document for t in s]])[0]
            for shard in task.store.documents(split) for document in shard.each()
        ]  # fmt: skip
        assert set(texts) <= set(documents_text)
        size = sum(int(lengths[shard.tokens].sum()) for shard in task.store.documents(split))
        assert size == sum(len(text.encode()) for text in texts)
    with torch.no_grad():
        found = task.evaluate(task.build_model(), "valid")
    assert found["bits_per_byte"] == pytest.approx(
        found["nll"] / math.log(2) * task.read("valid").lengths.sum() / size, rel=1e-5
    )


@pytest.fixture(scope="session")
def documents_text(documents: Path) -> list[str]:
    return documents.read_text(encoding="utf-8").split("\n\n")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"encoder_layers": 1}}, "causal_lm needs a decoder alone"),
        ({"model": {"encoder_layers": 1, "decoder_layers": 0}}, "causal_lm needs a decoder alone"),
        ({"train": {"batch_tokens": 31}}, "train.batch_tokens=31 must be at least model.max_length=32"),
        ({"model": {"classes": 2}}, "causal_lm has no classes"),
    ],
)
def test_what_cannot_work_is_one_sentence(changes: dict, message: str) -> None:
    config, store = handmade.CASES["causal_lm"]
    with pytest.raises(UserError, match=message):
        CausalLM(config.set(**changes), store)


def test_a_vocabulary_that_does_not_match_is_one_sentence(written: Config, masked: Config) -> None:
    with pytest.raises(UserError, match=r"needs a byte-level vocabulary .* set data.tokenizer=byte_bpe"):
        CausalLM(written, Store(prepare(masked.data)))
    with pytest.raises(UserError, match=r"this vocabulary has no \[PAD\].*data.tokenizer=bpe or wordpiece"):
        MaskedLM(masked, Store(prepare(written.data)))
    with pytest.raises(UserError, match=r"takes text as it is: set data.text=raw and data.lowercase=false"):
        prepare(written.set(data={"lowercase": True}).data)
    with pytest.raises(UserError, match="a byte-level vocabulary is for documents"):
        prepare(Config().set(data={"tokenizer": "byte_bpe", "size": 20}).data)
    with pytest.raises(UserError, match=r"data.vocab_size=200 is too small for this corpus.*257"):
        prepare(written.set(data={"vocab_size": 200}).data)
