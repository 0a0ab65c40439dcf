"""Causal language modelling: a decoder alone learns p(token | those before it) from documents.

A document is its tokens and an end of text, <e>; another <e> stands before its first token:

    tokens   <e> t1 t2 t3 … tn          labels   t1 t2 t3 … tn <e>

What is longer than model.max_length goes on in the next sequence, whose first token is the label before: every token
and every <e> is predicted exactly once an epoch, the first of a continued sequence from one token only. Sequences lie
end to end in a pack and do not see each other. With `lm.across_documents` a sequence runs on into the next document,
and the <e> between them is all that tells them apart.
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
from leadline.data.corpus import Shard
from leadline.data.sequences import Places, gathered, windows
from leadline.data.store import Store
from leadline.data.tokenizer import Tokenizer
from leadline.errors import UserError
from leadline.kernels.pack import Pack, pack_alone
from leadline.model import Transformer
from leadline.tasks import base
from leadline.tasks.base import Part, Task
from leadline.tasks.encoded import Encoded, packed, require_lists
from leadline.tasks.generator import Generator

NOTHING = -100  # the label of filler
PIECE = 1024  # tokens whose logits are held at once, to evaluate


@dataclass(frozen=True)
class Batch(base.Batch):
    target: Pack
    labels: Tensor  # [T], NOTHING where nothing is to be predicted; the others are counted


@dataclass(frozen=True)
class Text(Part):
    shards: list[Shard]
    places: Places  # [rows] of the labels


class CausalLM(Task[Text, Batch]):
    commands = ("generate",)
    holds = "documents"

    @classmethod
    def require(cls, config: Config) -> None:
        model, size = config.model, config.train.batch_tokens
        if model.encoder_layers or not model.decoder_layers:
            raise UserError("causal_lm needs a decoder alone: set model.decoder_layers, and model.encoder_layers=0")
        if size < model.max_length:
            raise UserError(f"train.batch_tokens={size} must be at least model.max_length={model.max_length}")
        if model.classes or model.segments:
            raise UserError("causal_lm has no classes and no segments: set model.classes=0 and model.segments=0")

    def __init__(self, config: Config, store: Store) -> None:
        self.end = store.tokenizer.end_of_text
        self.byte_lengths = torch.from_numpy(store.tokenizer.byte_lengths())
        super().__init__(config, store)

    def read(self, split: str) -> Text:
        shards = self.store.documents(split)
        places = windows(shards, self.config.model.max_length, self.config.lm.across_documents)
        compared = self.store.manifest.get("trigrams", {}) if split == "valid" else {}
        facts = {f"trigram_{name}": float(value) for name, value in compared.items()}
        return Text(shards, places, lengths=places.lengths[:, None], facts=facts)

    def choose_shape(self, lengths: np.ndarray) -> Shape:
        size = self.config.train.batch_tokens
        return Shape((size,), sequences=max(1, size // 16))

    def notes(self) -> list[str]:
        compared = self.store.manifest.get("trigrams")
        if not compared:
            return []
        nll, bits = compared["nll"], compared["bits_per_byte"]
        return [f"to compare with: trigrams of the same tokens have {nll:.3f} nats a token, {bits:.3f} bits a byte"]

    def pack(self, part: Text, rows: np.ndarray, shape: Shape, seed: int, epoch: int) -> Batch:
        tokens, places = [shard.tokens for shard in part.shards], part.places.take(rows)
        labels = gathered(tokens, places)
        # What stands before a document is the end of the one before, or of none where a shard begins.
        before = Places(places.shard, np.maximum(places.begins - 1, 0), np.ones_like(places.lengths))
        given = np.concatenate([[self.end], labels[:-1]])
        given[np.cumsum(places.lengths) - places.lengths] = np.where(
            places.begins > 0, gathered(tokens, before), self.end
        )
        size, longest = shape.sides[0], self.config.model.max_length
        target = pack_alone(given, places.lengths, size, shape.sequences, longest, self.end)
        expected = np.full(size, NOTHING, dtype=np.int64)
        expected[: len(labels)] = labels
        return Batch(target, torch.from_numpy(expected), count=len(labels), tokens=len(labels))

    def loss_of_hidden(
        self, model: Transformer, hidden_TD: Tensor, batch: Batch, divisor: Tensor | float = 1.0
    ) -> Tensor:
        return model.loss(hidden_TD, batch.labels, self.config.train.label_smoothing, NOTHING, divisor)[0]

    def judge(self, model: Transformer, batch: Batch, totals: Tensor) -> Tensor:
        """Sums over labels: smoothed and plain loss, how many, and the bytes they stand for."""
        hidden_TD, smoothing = self.hidden(model, batch), self.config.train.label_smoothing
        for states, labels in zip(hidden_TD.split(PIECE), batch.labels.split(PIECE), strict=True):
            counts = labels != NOTHING
            size = (self.byte_lengths.to(labels.device)[labels.where(counts, self.end)] * counts).sum()
            losses = [loss.double() for loss in model.loss(states, labels, smoothing, NOTHING)]
            totals = totals + torch.stack([*losses, counts.sum(), size])
        return totals

    def verdict(self, totals: Sequence[float]) -> dict[str, float]:
        """Loss in nats a token, smoothed and plain; the perplexity of a token; bits for a byte of text."""
        smoothed, plain, count, size = totals
        nll, bits = plain / count, plain / math.log(2) / max(size, 1)
        return {"loss": smoothed / count, "nll": nll, "perplexity": math.exp(min(nll, 700.0)), "bits_per_byte": bits}

    @classmethod
    def encode(
        cls, tokenizer: Tokenizer, config: Config, first: Sequence[str], second: Sequence[str] | None
    ) -> Encoded:
        """Texts as the beginnings of documents: <e> and their tokens."""
        require_lists(first, second)
        if second is not None:
            raise UserError("a language model takes one text: leave the second out")
        texts = tokenizer.encode(first, config.data.source_lang)
        return packed([[[tokenizer.end_of_text, *tokens] for tokens in texts]], config)

    @classmethod
    def generator(cls, model: Transformer, tokenizer: Tokenizer, config: Config) -> Generator:
        return Generator(model, tokenizer, config)
