"""A trained model as a function from texts to labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from leadline.config import Config
from leadline.data.tokenizer import Tokenizer
from leadline.errors import UserError
from leadline.kernels.pack import pack_alone
from leadline.model import Transformer
from leadline.model.precision import autocast
from leadline.tasks.classification import fitted


class Classifier:
    """`probabilities` of each label, for texts or pairs of texts as the run was trained on."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, config: Config, labels: Sequence[str]) -> None:
        self.model, self.tokenizer, self.config, self.labels = model, tokenizer, config, list(labels)
        self.pairs = bool(config.data.second)
        self.cut = 0  # examples of which the end did not fit
        self.cls, self.sep, self.pad = (tokenizer.special(name) for name in ("[CLS]", "[SEP]", "[PAD]"))

    def split(self, line: str) -> tuple[str, str]:
        """A line as an example: one text, or two with a tab between them."""
        first, tab, second = line.partition("\t")
        if self.pairs and (not tab or "\t" in second):
            raise UserError(f"the run compares two texts: write them with one tab between them, not {line[:60]!r}")
        return (first, second) if self.pairs else (line, "")

    @torch.inference_mode()
    def probabilities(self, examples: Sequence[tuple[str, str]]) -> list[dict[str, float]]:
        """By label, in the order of the examples."""
        sides = [self.tokenizer.encode(side, self.config.data.source_lang) for side in zip(*examples, strict=True)]
        rows = list(zip(*sides, strict=True))
        lengths = np.array([(len(a), len(b)) for a, b in rows], dtype=np.int64).reshape(-1, 2)
        used = fitted(lengths, self.config.model.max_length)
        self.cut += int((used < lengths).any(1).sum())
        laid = [self._laid_out(a[:of_a], b[:of_b]) for (a, b), (of_a, of_b) in zip(rows, used, strict=True)]
        answers: list[dict[str, float]] = [{} for _ in rows]
        for chosen in self._batches([len(tokens) for tokens, _ in laid]):
            for row, shares in zip(chosen, self._forward([laid[row] for row in chosen]), strict=True):
                answers[row] = dict(zip(self.labels, shares, strict=True))
        return answers

    def _laid_out(self, a: list[int], b: list[int]) -> tuple[list[int], int]:
        """[CLS] a [SEP] or [CLS] a [SEP] b [SEP], and where the second segment begins."""
        first = [self.cls, *a, self.sep]
        return ([*first, *b, self.sep] if b else first), len(first)

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Rows, the shortest first, in batches of so many tokens."""
        room = max(self.config.train.batch_tokens, self.config.model.max_length)
        batch, taken = list[int](), 0
        for row in sorted(range(len(lengths)), key=lengths.__getitem__):
            if batch and taken + lengths[row] > room:
                yield batch
                batch, taken = [], 0
            batch.append(row)
            taken += lengths[row]
        if batch:
            yield batch

    def _forward(self, laid: Sequence[tuple[list[int], int]]) -> list[list[float]]:
        device = next(self.model.parameters()).device
        lengths = np.array([len(tokens) for tokens, _ in laid])
        tokens = np.concatenate([tokens for tokens, _ in laid])
        begins = np.cumsum(lengths) - lengths
        second = np.repeat(begins + [first for _, first in laid], lengths)
        segments = (np.arange(len(tokens)) >= second).astype(np.int64) if self.config.model.segments > 1 else None
        longest = self.config.model.max_length
        pack = pack_alone(tokens, lengths, len(tokens), len(lengths), longest, self.pad, segments).to(device)
        with autocast(device, self.config.train.precision):
            scores_SC = self.model.classify(self.model(pack), torch.from_numpy(begins).to(device))
        return scores_SC.float().softmax(-1).tolist()
