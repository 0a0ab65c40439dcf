"""Translation: an encoder-decoder learns p(target | source) from pairs of sentences.

A batch holds the same sentences in two packs: the source followed by </s>, and the target preceded by <s>;
its labels are the target followed by </s>. Of many languages, the tag of the one to write is the first token of the
source, where the data has it, or stands in place of <s>; an epoch has as many pairs as there are, drawn by direction
(leadline.data.sampling).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leadline.config import Config
from leadline.data import batching
from leadline.data.batching import Shape
from leadline.data.directions import arrow, ends
from leadline.data.flat import Flat
from leadline.data.parallel import Split
from leadline.data.sampling import drawn
from leadline.data.tokenizer import BOS, EOS, PAD, Tokenizer
from leadline.errors import UserError
from leadline.files import Facts
from leadline.kernels.pack import Pack, group_sizes, pack_flat
from leadline.model import Transformer
from leadline.tasks import base
from leadline.tasks.base import Part, Task
from leadline.tasks.by_direction import ByDirection, translated_scores
from leadline.tasks.encoded import Encoded, packed, require_lists
from leadline.tasks.translator import Translator, marks
from leadline.world import ALONE, World


@dataclass(frozen=True)
class Batch(base.Batch):
    source: Pack
    target: Pack
    labels: Tensor  # [T], PAD where nothing is to be predicted; the others are counted


@dataclass(frozen=True)
class Fitting(Part):
    """The pairs that fit in model.max_length."""

    split: Split
    rows: np.ndarray  # their numbers in the split
    directions: np.ndarray  # of each: the number of its direction; 0 where there is one
    begins: np.ndarray  # of each direction: what stands before the target


def collate(source: Flat, target: Flat, shape: Shape, max_length: int, begins: np.ndarray | int = BOS) -> Batch:
    """Pairs, the shorter first, as one batch of fixed shape; `begins`: what stands before each target."""
    lengths = source.lengths + 1, target.lengths + 1
    most = shape.sequences + -(-max(shape.sides) // max_length)  # the filler may need that many more
    fixed: dict[str, Any] = {"sizes": group_sizes(lengths), "max_length": max_length, "max_sequences": most, "pad": PAD}
    expected = _ended(target)
    labels = np.full(shape.sides[1], PAD, dtype=np.int64)
    labels[: len(expected)] = expected
    given = np.concatenate([[BOS], expected[:-1]])  # each </s> is now where the next sequence begins
    given[np.cumsum(lengths[1]) - lengths[1]] = begins
    packs = (
        pack_flat(_ended(source), lengths[0], shape.sides[0], **fixed),
        pack_flat(given, lengths[1], shape.sides[1], **fixed),
    )
    return Batch(*packs, torch.from_numpy(labels), count=len(expected), tokens=len(expected))


def _ended(side: Flat) -> np.ndarray:
    """The tokens with </s> behind each sequence."""
    sequences = np.arange(len(side.lengths))
    tokens = np.full(len(side.tokens) + len(sequences), EOS)
    tokens[np.arange(len(side.tokens)) + np.repeat(sequences, side.lengths)] = side.tokens  # half the time of np.insert
    return tokens


class Translation(Task[Fitting, Batch]):
    commands = ("translate",)

    @classmethod
    def require(cls, config: Config) -> None:
        if not config.model.encoder_layers or not config.model.decoder_layers:
            raise UserError("translation needs an encoder and a decoder: set both layer counts to at least 1")
        if config.train.batch_tokens < config.model.max_length:
            raise UserError(
                f"train.batch_tokens={config.train.batch_tokens} must be at least "
                f"model.max_length={config.model.max_length}, so that every sentence fits in a batch"
            )

    def read(self, split: str) -> Fitting:
        """Lengths are with </s> or <s>."""
        pairs = self.store.split(split)
        lengths, longest = pairs.lengths() + 1, self.config.model.max_length
        rows = np.flatnonzero(np.maximum(*lengths.T) <= longest).astype(batching.whole_type(len(pairs)))
        sizes = self.store.directions(split)
        direction = np.broadcast_to(np.uint16(0), len(rows))
        if sizes:
            direction = np.searchsorted(np.cumsum([*sizes.values()]), rows, side="right").astype(np.uint16)
        begins = np.array([marks(self.store.tokenizer, self.config.data, ends(d)[1])[1] for d in sizes] or [BOS])
        lengths, facts = lengths[rows].astype(batching.whole_type(longest)), {"skipped": float(len(pairs) - len(rows))}
        return Fitting(pairs, rows, direction, begins, lengths=lengths, facts=facts)

    def choose_shape(self, lengths: np.ndarray) -> Shape:
        if not len(lengths):
            longest = self.config.model.max_length
            raise UserError(f"every training pair is longer than model.max_length={longest} tokens")
        drawn = self._drawn(0)
        usual = lengths if drawn is None else lengths[drawn]
        return batching.shape_for(usual, self.config.train.batch_tokens).with_room_for(lengths)

    def notes(self) -> list[str]:
        skipped, limit = int(self.train.facts["skipped"]), f"model.max_length={self.config.model.max_length}"
        notes = [f"{skipped} training pairs are longer than {limit} and left out"] if skipped else []
        if (drawn := self._drawn(0)) is not None:
            names, temperature = [*self.store.directions("train")], self.config.data.temperature
            sizes = np.bincount(self.train.directions[drawn], minlength=len(names))
            told = f"an epoch is {len(drawn):,} pairs, drawn from {len(names)} directions"
            least, most = (f"{sizes[i]:,} ({arrow(names[i])})" for i in (sizes.argmin(), sizes.argmax()))
            shares = f"{sizes[0]:,} of each" if sizes.min() == sizes.max() else f"between {least} and {most}"
            notes.append(f"{told} at temperature {temperature:g}: {shares}")
        return notes

    def epoch(self, number: int) -> Sequence[np.ndarray]:
        """Of many languages, as many pairs as there are, by direction in proportion to size^(1/temperature)."""
        train = self.train
        return batching.epoch_plan(train.lengths, self.shape, self.config.train.seed, number, self._drawn(number))

    def _drawn(self, epoch: int) -> np.ndarray | None:
        if not (names := self.store.directions("train")):
            return None
        sizes = np.bincount(self.train.directions, minlength=len(names))
        return drawn(sizes, self.config.data.temperature, self.config.train.seed, epoch)

    def pack(self, part: Fitting, rows: np.ndarray, shape: Shape, seed: int, epoch: int) -> Batch:
        begins = part.begins[part.directions[rows]]
        return collate(*part.split.gather(part.rows[rows]), shape, self.config.model.max_length, begins)

    def loss_of_hidden(
        self, model: Transformer, hidden_TD: Tensor, batch: Batch, divisor: Tensor | float = 1.0
    ) -> Tensor:
        """The label-smoothed loss, summed over the labels, over `divisor`."""
        return model.loss(hidden_TD, batch.labels, self.config.train.label_smoothing, PAD, divisor)[0]

    def judge(self, model: Transformer, batch: Batch, totals: Tensor) -> Tensor:
        hidden_TD = self.hidden(model, batch)
        smoothed, plain = model.loss(hidden_TD, batch.labels, self.config.train.label_smoothing, PAD)
        return totals + torch.stack([smoothed.double(), plain.double(), (batch.labels != PAD).sum()])

    def verdict(self, totals: Sequence[float]) -> dict[str, float]:
        """Loss in nats a token, smoothed and plain."""
        smoothed, plain, count = totals
        return {"loss": smoothed / count, "nll": plain / count}

    def scored(self, split: str, directions: Sequence[str] = ()) -> int:
        if split == "train":
            raise UserError("the text of the train split is not kept, so it has no BLEU: use valid or test")
        if sizes := self.store.directions(split):
            return sum(sizes[name] for name in self.by_direction.choose(split, directions))
        if directions:
            raise UserError(f"{self.store.folder} has one direction in {split}: leave --directions out")
        return len(self.store.sentences(split))

    def scores(
        self,
        model: Transformer,
        split: str,
        sentences: int = -1,
        on_done: Callable[[int], None] = lambda done: None,
        directions: Sequence[str] = (),
        world: World = ALONE,
    ) -> Facts:
        """BLEU and chrF, with their signatures; of many languages by direction."""
        self.scored(split, directions)
        if self.store.directions(split):
            return self.by_direction.scores(model, split, sentences, on_done, directions, world)
        pairs = self.store.sentences(split)[: None if sentences < 0 else sentences]
        return translated_scores(model, self.store.tokenizer, self.config, pairs, on_done, world)

    @functools.cached_property
    def by_direction(self) -> ByDirection:
        return ByDirection(self.store, self.config)

    @classmethod
    def encode(
        cls, tokenizer: Tokenizer, config: Config, first: Sequence[str], second: Sequence[str] | None
    ) -> Encoded:
        """Sources with </s> behind; <s> and what is written of the translation so far, which may be nothing."""
        require_lists(first, second)
        before, start = marks(tokenizer, config.data, config.data.target_lang)
        sources = tokenizer.encode(first, config.data.source_lang)
        targets = tokenizer.encode(second or [""] * len(first), config.data.target_lang)
        return packed([[[*before, *s, EOS] for s in sources], [[start, *t] for t in targets]], config)

    @classmethod
    def translator(cls, model: Transformer, tokenizer: Tokenizer, config: Config, world: World = ALONE) -> Translator:
        marks(tokenizer, config.data, config.data.target_lang)  # of many languages, one must have been chosen
        return Translator(model, tokenizer, config, world)
