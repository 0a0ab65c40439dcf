"""Classification of texts and of pairs of texts, as BERT does it: from what the encoder makes of [CLS].

A sequence is [CLS] a [SEP], or [CLS] a [SEP] b [SEP] where b is of the second segment. What does not fit in
model.max_length is cut at the end of the longer text, or of both once they are equally long. Sequences lie end to end
in a pack and do not see each other:

    loss = Σ over sequences of -log p(label)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leadline import config as configuration
from leadline.config import Config
from leadline.data import batching
from leadline.data.parallel import Split
from leadline.data.store import Store
from leadline.errors import UserError
from leadline.kernels.cross_entropy import cross_entropy
from leadline.kernels.pack import Pack, pack_alone
from leadline.model import Transformer
from leadline.model.precision import autocast
from leadline.tasks import agreement

NOTHING = -100  # the label of a place that is not used


@dataclass(frozen=True)
class Batch:
    source: Pack
    firsts: Tensor  # [S] where each sequence begins; S never changes
    labels: Tensor  # [S] NOTHING where there are fewer
    count: int  # sequences
    tokens: int  # that are not filler

    def to(self, device: torch.device) -> Batch:
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in ("firsts", "labels")}
        return dataclasses.replace(self, source=self.source.to(device), **moved)

    def fixed(self) -> Batch:
        return dataclasses.replace(self, source=self.source.fixed())


@dataclass(frozen=True)
class Examples:
    """A split, with what is left of each text in a sequence."""

    split: Split
    labels: np.ndarray  # [rows]
    texts: np.ndarray  # [rows, 2] tokens of each text that are used
    cut: int  # rows of which not all are

    def lengths(self) -> np.ndarray:
        """[rows, 2] of the whole sequence, twice, as batching wants it."""
        specials = 2 + (self.texts[:, 1:] > 0)
        return np.repeat(self.texts.sum(1, keepdims=True) + specials, 2, axis=1)


class Classification:
    skipped = 0

    def __init__(self, config: Config, store: Store) -> None:
        self.config, self.store = config, store
        self.train = self.examples("train")
        _require_usable(config, store.manifest["labels"])
        self.cls, self.sep, self.pad = (store.tokenizer.special(name) for name in ("[CLS]", "[SEP]", "[PAD]"))
        self.lengths, self.cut = self.train.lengths(), self.train.cut
        self.shape = _shape(config, self.lengths[:, 0])

    def examples(self, name: str) -> Examples:
        split = self.store.split(name, "examples")
        lengths = split.lengths()
        texts = fitted(lengths, self.config.model.max_length)
        return Examples(split, self.store.labels(name), texts, int((texts < lengths).any(1).sum()))

    def build_model(self) -> Transformer:
        model = configuration.to_dict(self.config.model)
        return Transformer(self.store.manifest["vocab_size"], seed=self.config.train.seed, **model)

    def collate(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        return self._packed(self.train, rows)

    def _packed(self, examples: Examples, rows: np.ndarray) -> Batch:
        """`rows` come the shortest first."""
        laid = [self._laid_out(examples, int(row)) for row in rows]
        lengths = np.array([len(tokens) for tokens, _ in laid])
        tokens = np.concatenate([tokens for tokens, _ in laid])
        begins = np.cumsum(lengths) - lengths
        second = np.repeat(begins + [first for _, first in laid], lengths)  # where the second segment begins
        firsts = np.zeros(self.shape.sequences, dtype=np.int64)
        labels = np.full(self.shape.sequences, NOTHING, dtype=np.int64)
        firsts[: len(rows)], labels[: len(rows)] = begins, examples.labels[rows]
        segments = (np.arange(len(tokens)) >= second).astype(np.int64) if self.config.model.segments > 1 else None
        size, most, longest = self.shape.source, self.shape.sequences, self.config.model.max_length
        source = pack_alone(tokens, lengths, size, most, longest, self.pad, segments)
        return Batch(source, torch.from_numpy(firsts), torch.from_numpy(labels), len(rows), len(tokens))

    def _laid_out(self, examples: Examples, row: int) -> tuple[np.ndarray, int]:
        """A row's tokens, and where its second segment begins."""
        (a, b), (of_a, of_b) = examples.split[row], examples.texts[row]
        first = np.concatenate([[self.cls], a[:of_a], [self.sep]])
        return (np.concatenate([first, b[:of_b], [self.sep]]) if of_b else first), len(first)

    def hidden(self, model: Transformer, batch: Batch) -> Tensor:
        return model(batch.source)

    def loss_of_hidden(
        self, model: Transformer, hidden_TD: Tensor, batch: Batch, divisor: Tensor | float = 1.0
    ) -> Tensor:
        scores_SC = model.classify(hidden_TD, batch.firsts)
        smoothing = self.config.train.label_smoothing
        return (cross_entropy(scores_SC, batch.labels, smoothing, NOTHING)[0] / divisor).sum()

    def loss(self, model: Transformer, batch: Batch, divisor: Tensor | float = 1.0) -> Tensor:
        return self.loss_of_hidden(model, self.hidden(model, batch), batch, divisor)

    def _batches(self, examples: Examples) -> Iterator[Batch]:
        order = np.arange(len(examples.labels))
        for rows in batching.plan(examples.lengths(), self.shape, order):
            yield self._packed(examples, rows)

    @torch.inference_mode()
    def evaluate(self, model: Transformer, split: str, sentences: int = 0) -> dict[str, float]:
        """Loss in nats a sequence, accuracy, F1 and Matthews (leadline.tasks.agreement), and how many were cut."""
        device = next(model.parameters()).device
        training, classes = model.training, self.config.model.classes
        model.eval()
        examples = self.examples(split)
        nll, counts = 0.0, np.zeros((classes, classes), dtype=np.int64)
        with autocast(device, self.config.train.precision):
            for batch in self._batches(examples):
                moved = batch.to(device)
                scores_SC = model.classify(self.hidden(model, moved), moved.firsts).float()
                nll += float(cross_entropy(scores_SC, moved.labels, 0.0, NOTHING)[0])
                guesses = scores_SC.argmax(-1).cpu().numpy()[: batch.count]
                np.add.at(counts, (batch.labels.numpy()[: batch.count], guesses), 1)
        model.train(training)
        nll /= len(examples.labels)
        return {"loss": nll, "nll": nll, **agreement.scores(counts), "cut": float(examples.cut)}


def fitted(lengths: np.ndarray, longest: int) -> np.ndarray:
    """[rows, 2] how much of each text stays: the longer loses first, then both alike."""
    a, b = lengths.T
    room = longest - np.where(b > 0, 3, 2)
    half = room // 2
    of_b = np.where(a + b <= room, b, np.minimum(b, np.maximum(half, room - a)))
    return np.stack([np.minimum(a, room - of_b), of_b], axis=1)


def _shape(config: Config, lengths: np.ndarray) -> batching.Shape:
    size, sequences = config.train.batch_tokens, config.train.batch_sequences
    if sequences:  # room for so many, whichever they are, but for one batch in a thousand, which has fewer
        usual = sequences * lengths.mean() + 3 * math.sqrt(sequences) * lengths.std()
        needed = min(math.ceil(usual / 16) * 16, sequences * config.model.max_length)
        size = min(size, max(needed, config.model.max_length))
    return batching.Shape(source=size, target=size, sequences=sequences or max(1, size // 4))


def _require_usable(config: Config, labels: list[str]) -> None:
    model, size = config.model, config.train.batch_tokens
    if not model.encoder_layers or model.decoder_layers:
        raise UserError("classification needs an encoder alone: set model.encoder_layers, and model.decoder_layers=0")
    if model.classes != len(labels):
        raise UserError(
            f"the data has {len(labels)} labels ({', '.join(labels[:9])}): set model.classes={len(labels)}, "
            f"not {model.classes}"
        )
    if model.max_length < 8 or size < model.max_length:
        raise UserError(
            f"train.batch_tokens={size} must be at least model.max_length={model.max_length}, and that at least 8"
        )
