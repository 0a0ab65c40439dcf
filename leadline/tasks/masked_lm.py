"""Masked language modelling: an encoder learns p(token | the rest of its sequence) on 15 % of the tokens (BERT).

A sequence is [CLS] sentences [SEP] of one document. Sequences lie end to end in a pack and do not see each other.
With `model.classes=2` it is [CLS] A [SEP] B [SEP], and the model also learns whether B follows A (0) or is of
another document (1), half and half. The loss is over the masked tokens, the only ones projected onto the vocabulary:

    loss = Σ over masked tokens of -log p(token)  +  (masked tokens / sequences) Σ over sequences of -log p(follows)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leadline.config import Config
from leadline.data.batching import Shape, whole_type
from leadline.data.sequences import Sequences, cut
from leadline.data.store import Store
from leadline.errors import UserError
from leadline.kernels.cross_entropy import cross_entropy
from leadline.kernels.pack import Pack, pack_alone
from leadline.model import Transformer
from leadline.tasks import base, masking, next_sentence, segments
from leadline.tasks.base import Part, Task
from leadline.tasks.next_sentence import NOTHING

PIECE = 1024  # masked tokens whose logits are held at once, to evaluate


@dataclass(frozen=True)
class Batch(base.Batch):
    source: Pack
    masked: Tensor  # [M] where the masked tokens are; M never changes
    labels: Tensor  # [M] what they were, NOTHING where fewer are masked; the others are counted
    firsts: Tensor  # [S] where each sequence begins; empty without next-sentence prediction
    follows: Tensor  # [S] 0: B follows A; 1: it does not; NOTHING
    weight: Tensor  # [1] masked tokens / sequences


@dataclass(frozen=True)
class Text(Part):
    sequences: Sequences


class MaskedLM(Task[Text, Batch]):
    unit = "a masked token"
    holds = "documents"

    @classmethod
    def require(cls, config: Config) -> None:
        segments.require_encoder(config)
        model = config.model
        if model.classes not in (0, 2) or (model.classes and model.segments < 2):
            raise UserError(
                "masked_lm: set model.classes=0, or model.classes=2 with model.segments=2 for next-sentence prediction"
            )

    def __init__(self, config: Config, store: Store) -> None:
        self.pairs = config.model.classes > 0
        super().__init__(config, store)
        self.vocabulary = masking.Vocabulary.of(store.tokenizer)
        self.cls, self.sep = (store.tokenizer.special(name) for name in ("[CLS]", "[SEP]"))
        self.pad = store.tokenizer.special("[PAD]")
        # Its standard deviation is about half a word a sequence: more than this is next to never drawn.
        size = config.train.batch_tokens
        usual = size / self.train.lengths.mean()
        self.slots = min(size, math.ceil((config.mask.share * size + 4 * math.sqrt(usual) + 1) / 8) * 8)

    def read(self, split: str) -> Text:
        """Lengths are with [CLS] and [SEP]; a pair may turn out shorter."""
        specials = 3 if self.pairs else 2
        sequences = cut(self.store.documents(split), self.config.model.max_length - specials)
        lengths = sequences.lengths()[:, None] + specials
        return Text(sequences, lengths=lengths.astype(whole_type(self.config.model.max_length)), facts={})

    def choose_shape(self, lengths: np.ndarray) -> Shape:
        size = self.config.train.batch_tokens
        return Shape((size,), sequences=max(1, size // 16))

    def pack(self, part: Text, rows: np.ndarray, shape: Shape, seed: int, epoch: int) -> Batch:
        texts = part.sequences
        pairs = next_sentence.draw(texts, rows, seed, epoch) if self.pairs else next_sentence.alone(texts, rows)
        # The pack wants the shortest first.
        order = np.argsort(segments.size(pairs.first.lengths, pairs.second.lengths), kind="stable")
        first, second = (texts.gather(places.take(order)) for places in (pairs.first, pairs.second))
        laid, rows = segments.lay_out(first, second, self.cls, self.sep), rows[order]
        tokens, lengths = laid.tokens, laid.lengths

        mask = self.config.mask
        places = masking.choose(tokens, lengths, (seed, epoch, rows), self.vocabulary, mask.share, mask.whole_words)
        places = places[: self.slots]  # should there ever be more, the last stay as they are
        masked, labels = np.zeros(self.slots, dtype=np.int64), np.full(self.slots, NOTHING, dtype=np.int64)
        masked[: len(places)], labels[: len(places)] = places, tokens[places]
        keys = (seed, epoch, rows[laid.sequence[places]], laid.position[places])
        tokens[places] = masking.replaced(tokens, places, keys, self.vocabulary)

        most = shape.sequences if self.pairs else 0
        firsts, follows = np.zeros(most, dtype=np.int64), np.full(most, NOTHING, dtype=np.int64)
        if self.pairs:
            firsts[: len(rows)], follows[: len(rows)] = laid.begins, pairs.labels[order]
        told = max(1, int((follows != NOTHING).sum()))
        kinds = laid.segments if self.config.model.segments else None
        size, most_sequences, longest = shape.sides[0], shape.sequences, self.config.model.max_length
        source = pack_alone(tokens, lengths, size, most_sequences, longest, self.pad, kinds)
        return Batch(
            source,
            masked=torch.from_numpy(masked),
            labels=torch.from_numpy(labels),
            firsts=torch.from_numpy(firsts),
            follows=torch.from_numpy(follows),
            weight=torch.tensor([len(places) / told]),
            count=max(1, len(places)),
            tokens=len(tokens),
        )

    def loss_of_hidden(
        self, model: Transformer, hidden_TD: Tensor, batch: Batch, divisor: Tensor | float = 1.0
    ) -> Tensor:
        picked_MD = hidden_TD.index_select(0, batch.masked)
        loss = model.loss(picked_MD, batch.labels, self.config.train.label_smoothing, NOTHING, divisor)[0]
        if self.pairs:
            scores_SC = model.classify(hidden_TD, batch.firsts)
            loss = loss + (cross_entropy(scores_SC, batch.follows, 0.0, NOTHING)[0] * batch.weight / divisor).sum()
        return loss

    def judge(self, model: Transformer, batch: Batch, totals: Tensor) -> Tensor:
        """Sums over masked tokens, then over sequences: loss, right guesses, how many."""
        hidden_TD = self.hidden(model, batch)
        for places, labels in zip(batch.masked.split(PIECE), batch.labels.split(PIECE), strict=True):
            totals = totals + F.pad(_judged(model.logits(hidden_TD.index_select(0, places)), labels), (0, 3))
        if self.pairs:
            totals = totals + F.pad(_judged(model.classify(hidden_TD, batch.firsts), batch.follows), (3, 0))
        return totals

    def verdict(self, totals: Sequence[float]) -> dict[str, float]:
        """Loss in nats a masked token, its perplexity, the share guessed right; the same of next sentences."""
        masked, sequences = max(totals[2], 1), max(totals[5], 1)
        nll, next_nll = totals[0] / masked, totals[3] / sequences
        scores = {"loss": nll, "nll": nll, "perplexity": math.exp(min(nll, 700.0)), "accuracy": totals[1] / masked}
        if self.pairs:
            scores |= {"loss": nll + next_nll, "next_nll": next_nll, "next_accuracy": totals[4] / sequences}
        return scores


def _judged(logits: Tensor, labels: Tensor) -> Tensor:
    """Sums over the labels that count: loss, right guesses, how many."""
    right = (logits.argmax(-1) == labels).sum()
    return torch.stack([cross_entropy(logits, labels, 0.0, NOTHING)[0], right, (labels != NOTHING).sum()]).double()
