"""Translation: an encoder-decoder learns p(target | source) from pairs of sentences.

A batch holds the same sentences in two packs: the source followed by </s>, and the target preceded by <s>;
its labels are the target followed by </s>.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leadline.config import Config
from leadline.data import batching
from leadline.data.batching import Shape
from leadline.data.pairs import Pair
from leadline.data.parallel import Flat, Split
from leadline.data.store import Store
from leadline.data.tokenizer import BOS, EOS, PAD, Tokenizer
from leadline.errors import UserError
from leadline.kernels.pack import Pack, group_sizes, pack_flat
from leadline.model import Transformer
from leadline.tasks import base, metrics
from leadline.tasks.base import Part, Task
from leadline.tasks.encoded import Encoded, packed, require_lists
from leadline.tasks.translator import Translator


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


def collate(pairs: Sequence[tuple[np.ndarray, np.ndarray]], shape: Shape, max_length: int) -> Batch:
    """Pairs of token arrays, the shorter first, as one batch of fixed shape."""
    source, target = (
        Flat(np.concatenate(side), np.array([len(tokens) for tokens in side])) for side in zip(*pairs, strict=True)
    )
    return collate_flat(source, target, shape, max_length)


def collate_flat(source: Flat, target: Flat, shape: Shape, max_length: int) -> Batch:
    """The same for sides whose sequences lie end to end already."""
    lengths = source.lengths + 1, target.lengths + 1
    most = shape.sequences + -(-max(shape.sides) // max_length)  # the filler may need that many more
    fixed: dict[str, Any] = {"sizes": group_sizes(lengths), "max_length": max_length, "max_sequences": most, "pad": PAD}
    expected = _ended(target)
    labels = np.full(shape.sides[1], PAD, dtype=np.int64)
    labels[: len(expected)] = expected
    given = np.concatenate([[BOS], expected[:-1]])  # each </s> is now where the next sequence begins
    given[np.cumsum(lengths[1]) - lengths[1]] = BOS
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

    def __init__(self, config: Config, store: Store) -> None:
        if not config.model.encoder_layers or not config.model.decoder_layers:
            raise UserError("translation needs an encoder and a decoder: set both layer counts to at least 1")
        if config.train.batch_tokens < config.model.max_length:
            raise UserError(
                f"train.batch_tokens={config.train.batch_tokens} must be at least "
                f"model.max_length={config.model.max_length}, so that every sentence fits in a batch"
            )
        super().__init__(config, store)

    def read(self, split: str) -> Fitting:
        """Lengths are with </s> or <s>."""
        pairs = self.store.split(split)
        lengths = pairs.lengths() + 1
        rows = np.flatnonzero(lengths.max(1) <= self.config.model.max_length)
        return Fitting(pairs, rows, lengths=lengths[rows], facts={"skipped": float(len(pairs) - len(rows))})

    def choose_shape(self, lengths: np.ndarray) -> Shape:
        if not len(lengths):
            longest = self.config.model.max_length
            raise UserError(f"every training pair is longer than model.max_length={longest} tokens")
        return batching.shape_for(lengths, self.config.train.batch_tokens)

    def notes(self) -> list[str]:
        skipped, limit = int(self.train.facts["skipped"]), f"model.max_length={self.config.model.max_length}"
        return [f"{skipped} training pairs are longer than {limit} and left out"] if skipped else []

    def pack(self, part: Fitting, rows: np.ndarray, shape: Shape, seed: int, epoch: int) -> Batch:
        return collate_flat(*part.split.gather(part.rows[rows]), shape, self.config.model.max_length)

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

    def scored(self, split: str) -> int:
        return len(self._text(split))

    def scores(
        self, model: Transformer, split: str, sentences: int = -1, on_done: Callable[[int], None] = lambda done: None
    ) -> dict[str, Any]:
        """BLEU and chrF, with their signatures."""
        pairs = self._text(split)[: None if sentences < 0 else sentences]
        translator = Translator(model, self.store.tokenizer, self.config)
        outputs = translator.translate_tokenized([left for left, _ in pairs], on_done)
        scores = metrics.corpus_scores(outputs, [right for _, right in pairs], self.store.tokenizer)
        return scores | {"sentences": len(pairs), "in_pieces": translator.split_up}

    def _text(self, split: str) -> list[Pair]:
        if split == "train":
            raise UserError("the text of the train split is not kept, so it has no BLEU: use valid or test")
        return self.store.sentences(split)

    @classmethod
    def encode(
        cls, tokenizer: Tokenizer, config: Config, first: Sequence[str], second: Sequence[str] | None
    ) -> Encoded:
        """Sources with </s> behind; <s> and what is written of the translation so far, which may be nothing."""
        require_lists(first, second)
        sources = tokenizer.encode(first, config.data.source_lang)
        targets = tokenizer.encode(second or [""] * len(first), config.data.target_lang)
        return packed([[[*s, EOS] for s in sources], [[BOS, *t] for t in targets]], config)

    @classmethod
    def translator(cls, model: Transformer, tokenizer: Tokenizer, config: Config) -> Translator:
        return Translator(model, tokenizer, config)
