"""Translation: an encoder-decoder learns p(target | source) from pairs of sentences.

A batch holds the same sentences in two packs: the source followed by </s>, and the target preceded by <s>;
its labels are the target followed by </s>.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leadline import config as configuration
from leadline.config import Config
from leadline.data import batching
from leadline.data.parallel import Flat, Split
from leadline.data.store import Store
from leadline.data.tokenizer import BOS, EOS, PAD
from leadline.errors import UserError
from leadline.kernels.pack import Pack, group_sizes, pack_flat
from leadline.model import Transformer
from leadline.model.precision import autocast
from leadline.tasks import metrics
from leadline.tasks.translator import Translator


@dataclass(frozen=True)
class Batch:
    source: Pack
    target: Pack
    labels: Tensor  # [T], PAD where nothing is to be predicted
    count: int  # labels that are not PAD

    @property
    def tokens(self) -> int:
        return self.count

    def to(self, device: torch.device) -> Batch:
        source, target = self.source.to(device), self.target.to(device)
        return Batch(source, target, self.labels.to(device, non_blocking=True), self.count)

    def fixed(self) -> Batch:
        return dataclasses.replace(self, source=self.source.fixed(), target=self.target.fixed())


def collate(pairs: Sequence[tuple[np.ndarray, np.ndarray]], shape: batching.Shape, max_length: int) -> Batch:
    """Pairs of token arrays, the shorter first, as one batch of fixed shape."""
    source, target = (
        Flat(np.concatenate(side), np.array([len(tokens) for tokens in side])) for side in zip(*pairs, strict=True)
    )
    return collate_flat(source, target, shape, max_length)


def collate_flat(source: Flat, target: Flat, shape: batching.Shape, max_length: int) -> Batch:
    """The same for sides whose sequences lie end to end already."""
    lengths = source.lengths + 1, target.lengths + 1
    most = shape.sequences + -(-max(shape.source, shape.target) // max_length)  # the filler may need that many more
    fixed: dict[str, Any] = {"sizes": group_sizes(lengths), "max_length": max_length, "max_sequences": most, "pad": PAD}
    expected = _ended(target)
    labels = np.full(shape.target, PAD, dtype=np.int64)
    labels[: len(expected)] = expected
    given = np.concatenate([[BOS], expected[:-1]])  # each </s> is now where the next sequence begins
    given[np.cumsum(lengths[1]) - lengths[1]] = BOS
    packs = (
        pack_flat(_ended(source), lengths[0], shape.source, **fixed),
        pack_flat(given, lengths[1], shape.target, **fixed),
    )
    return Batch(*packs, torch.from_numpy(labels), len(expected))


def _ended(side: Flat) -> np.ndarray:
    """The tokens with </s> behind each sequence."""
    sequences = np.arange(len(side.lengths))
    tokens = np.full(len(side.tokens) + len(sequences), EOS)
    tokens[np.arange(len(side.tokens)) + np.repeat(sequences, side.lengths)] = side.tokens  # half the time of np.insert
    return tokens


class Translation:
    cut = 0

    def __init__(self, config: Config, store: Store) -> None:
        if not config.model.encoder_layers or not config.model.decoder_layers:
            raise UserError("translation needs an encoder and a decoder: set both layer counts to at least 1")
        if config.train.batch_tokens < config.model.max_length:
            raise UserError(
                f"train.batch_tokens={config.train.batch_tokens} must be at least "
                f"model.max_length={config.model.max_length}, so that every sentence fits in a batch"
            )
        self.config, self.store = config, store
        self.train = store.split("train")
        self.rows, self.lengths = self._short_enough(self.train)
        self.skipped = len(self.train) - len(self.rows)
        if not len(self.rows):
            raise UserError(f"every training pair is longer than model.max_length={config.model.max_length} tokens")
        self.shape = batching.shape_for(self.lengths, config.train.batch_tokens)

    def _short_enough(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """Rows that fit in model.max_length, and their lengths with </s> or <s>."""
        lengths = split.lengths() + 1
        rows = np.flatnonzero(lengths.max(1) <= self.config.model.max_length)
        return rows, lengths[rows]

    def build_model(self) -> Transformer:
        model = configuration.to_dict(self.config.model)
        return Transformer(self.store.manifest["vocab_size"], seed=self.config.train.seed, **model)

    def collate(self, rows: np.ndarray, epoch: int = 0) -> Batch:
        return self._packed(self.train, self.rows[rows], self.shape)

    def _packed(self, split: Split, rows: np.ndarray, shape: batching.Shape) -> Batch:
        return collate_flat(*split.gather(rows), shape, self.config.model.max_length)

    def hidden(self, model: Transformer, batch: Batch) -> Tensor:
        return model(batch.source, batch.target)

    def loss_of_hidden(
        self, model: Transformer, hidden_TD: Tensor, batch: Batch, divisor: Tensor | float = 1.0
    ) -> Tensor:
        """The label-smoothed loss, summed over the labels, over `divisor`."""
        return model.loss(hidden_TD, batch.labels, self.config.train.label_smoothing, PAD, divisor)[0]

    def loss(self, model: Transformer, batch: Batch, divisor: Tensor | float = 1.0) -> Tensor:
        return self.loss_of_hidden(model, self.hidden(model, batch), batch, divisor)

    def _valid_batches(self, name: str) -> tuple[Iterator[Batch], int]:
        split = self.store.split(name)
        rows, lengths = self._short_enough(split)
        shape = dataclasses.replace(self.shape, source=max(self.shape.source, int(lengths[:, 0].max(initial=1))))
        plan = batching.plan(lengths, shape, np.arange(len(rows)))
        return (self._packed(split, rows[chosen], shape) for chosen in plan), len(split) - len(rows)

    @torch.inference_mode()
    def evaluate(self, model: Transformer, split: str, sentences: int = 0) -> dict[str, float]:
        """Loss in nats a token, smoothed and plain; BLEU and chrF on the first `sentences` (-1: all)."""
        device = next(model.parameters()).device
        training = model.training
        model.eval()
        smoothed = plain = torch.zeros((), dtype=torch.float64, device=device)
        count = 0
        batches, skipped = self._valid_batches(split)
        with autocast(device, self.config.train.precision):
            for batch in batches:
                batch = batch.to(device)
                hidden = model(batch.source, batch.target)
                sums = model.loss(hidden, batch.labels, self.config.train.label_smoothing, PAD)
                smoothed, plain = smoothed + sums[0], plain + sums[1]
                count += batch.count
        if not count:
            raise UserError(f"every pair of the {split} split is longer than model.max_length")
        found = {"loss": float(smoothed) / count, "nll": float(plain) / count, "skipped": float(skipped)}
        model.train(training)
        if sentences:
            scores = self.score(model, split, sentences)
            found |= {name: value for name, value in scores.items() if isinstance(value, float)}
        return found

    def score(
        self,
        model: Transformer,
        split: str,
        sentences: int = -1,
        on_translated: Callable[[int], None] = lambda done: None,
    ) -> dict[str, Any]:
        """Translate the first `sentences` of a split (-1: all) and compare with the references."""
        if split == "train":
            raise UserError("the text of the train split is not kept, so it has no BLEU: use valid or test")
        pairs = self.store.sentences(split)[: None if sentences < 0 else sentences]
        translator = Translator(model, self.store.tokenizer, self.config)
        outputs = translator.translate_tokenized([left for left, _ in pairs], on_translated)
        scores = metrics.corpus_scores(outputs, [right for _, right in pairs], self.store.tokenizer)
        return scores | {"sentences": len(pairs), "in_pieces": translator.split_up}
