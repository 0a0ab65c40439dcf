"""Classification of texts and of pairs of texts, as BERT does it: from what the encoder makes of [CLS].

A sequence is [CLS] a [SEP], or [CLS] a [SEP] b [SEP] where b is of the second segment. What does not fit in
model.max_length is cut at the end of the longer text, or of both once they are equally long. Sequences lie end to end
in a pack and do not see each other:

    loss = Σ over sequences of -log p(label)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leadline.config import Config
from leadline.data.batching import Shape
from leadline.data.flat import Flat, spans
from leadline.data.parallel import Split
from leadline.data.store import Store
from leadline.errors import UserError
from leadline.kernels.cross_entropy import cross_entropy
from leadline.kernels.pack import Pack, pack_alone
from leadline.model import Transformer
from leadline.tasks import agreement, base, segments
from leadline.tasks.base import Part, Task
from leadline.tasks.encoded import Encoded

NOTHING = -100  # the label of a place that is not used


@dataclass(frozen=True)
class Batch(base.Batch):
    source: Pack
    firsts: Tensor  # [S] where each sequence begins; S never changes
    labels: Tensor  # [S] NOTHING where there are fewer


@dataclass(frozen=True)
class Examples(Part):
    split: Split
    labels: np.ndarray  # [rows]
    texts: np.ndarray  # [rows, 2] tokens of each text that are used


class Classification(Task[Examples, Batch]):
    unit = "an example"
    commands = ("classify",)
    holds = "examples"

    @classmethod
    def require(cls, config: Config) -> None:
        segments.require_encoder(config)

    def __init__(self, config: Config, store: Store) -> None:
        super().__init__(config, store)
        labels = store.manifest["labels"]
        if config.model.classes != len(labels):
            raise UserError(
                f"the data has {len(labels)} labels ({', '.join(labels[:9])}): set model.classes={len(labels)}, "
                f"not {config.model.classes}"
            )
        self.cls, self.sep, self.pad = (store.tokenizer.special(name) for name in ("[CLS]", "[SEP]", "[PAD]"))

    def read(self, split: str) -> Examples:
        examples = self.store.split(split, "examples")
        lengths = examples.lengths()
        texts = fitted(lengths, self.config.model.max_length)
        whole = segments.size(*texts.T)[:, None]
        facts = {"cut": float((texts < lengths).any(1).sum())}
        return Examples(examples, self.store.labels(split), texts, lengths=whole, facts=facts)

    def choose_shape(self, lengths: np.ndarray) -> Shape:
        train, longest = self.config.train, self.config.model.max_length
        size, sequences = train.batch_tokens, train.batch_sequences
        if sequences:  # room for so many, whichever they are, but for one batch in a thousand, which has fewer
            usual = sequences * lengths.mean() + 3 * math.sqrt(sequences) * lengths.std()
            needed = min(math.ceil(usual / 16) * 16, sequences * longest)
            size = min(size, max(needed, longest))
        return Shape((size,), sequences=sequences or max(1, size // 4))

    def notes(self) -> list[str]:
        cut, limit = int(self.train.facts["cut"]), f"model.max_length={self.config.model.max_length}"
        return [f"{cut} training examples are longer than {limit} and cut"] if cut else []

    def pack(self, part: Examples, rows: np.ndarray, shape: Shape, seed: int, epoch: int) -> Batch:
        first, second = map(cut, part.split.gather(rows), part.texts[rows].T)
        laid = segments.lay_out(first, second, self.cls, self.sep)
        firsts = np.zeros(shape.sequences, dtype=np.int64)
        labels = np.full(shape.sequences, NOTHING, dtype=np.int64)
        firsts[: len(rows)], labels[: len(rows)] = laid.begins, part.labels[rows]
        kinds = laid.segments if self.config.model.segments > 1 else None
        size, most, longest = shape.sides[0], shape.sequences, self.config.model.max_length
        source = pack_alone(laid.tokens, laid.lengths, size, most, longest, self.pad, kinds)
        tensors = torch.from_numpy(firsts), torch.from_numpy(labels)
        return Batch(source, *tensors, count=len(rows), tokens=len(laid.tokens))

    def loss_of_hidden(
        self, model: Transformer, hidden_TD: Tensor, batch: Batch, divisor: Tensor | float = 1.0
    ) -> Tensor:
        scores_SC = model.classify(hidden_TD, batch.firsts)
        smoothing = self.config.train.label_smoothing
        return (cross_entropy(scores_SC, batch.labels, smoothing, NOTHING)[0] / divisor).sum()

    def judge(self, model: Transformer, batch: Batch, totals: Tensor) -> Tensor:
        """The loss, and how often each label was given each guess."""
        scores_SC = model.classify(self.hidden(model, batch), batch.firsts).float()
        nll = cross_entropy(scores_SC, batch.labels, 0.0, NOTHING)[0]
        classes, used = scores_SC.shape[1], slice(batch.count)
        both = batch.labels[used] * classes + scores_SC.argmax(-1)[used]
        return totals + torch.cat([nll.double().view(1), torch.bincount(both, minlength=classes**2)])

    @classmethod
    def logits(cls, model: Transformer, hidden_TD: Tensor, encoded: Encoded) -> list[Tensor]:
        """Of each text, over the classes."""
        return list(model.classify(hidden_TD, encoded.firsts()))

    def verdict(self, totals: Sequence[float]) -> dict[str, float]:
        """Loss in nats a sequence, accuracy, F1 and Matthews (leadline.tasks.agreement)."""
        classes = self.config.model.classes
        counts_CC = np.array(totals[1:]).reshape(classes, classes)
        nll = totals[0] / counts_CC.sum()
        return {"loss": nll, "nll": nll, **agreement.scores(counts_CC)}


def fitted(lengths: np.ndarray, longest: int) -> np.ndarray:
    """[rows, 2] how much of each text stays: the longer loses first, then both alike."""
    a, b = lengths.T
    room = longest - np.where(b > 0, 3, 2)
    half = room // 2
    of_b = np.where(a + b <= room, b, np.minimum(b, np.maximum(half, room - a)))
    return np.stack([np.minimum(a, room - of_b), of_b], axis=1)


def cut(texts: Flat, lengths: np.ndarray) -> Flat:
    """So many tokens from the beginning of each."""
    return Flat(texts.tokens[spans(np.cumsum(texts.lengths) - texts.lengths, lengths)], lengths)
