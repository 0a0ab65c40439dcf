"""A trained model as a function from texts to labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from leadline.config import Config
from leadline.data.tokenizer import Tokenizer
from leadline.errors import UserError
from leadline.model import Transformer
from leadline.model.precision import autocast
from leadline.tasks import segments
from leadline.tasks.classification import fitted
from leadline.tasks.encoded import by_tokens, marked


class Classifier:
    """`probabilities` of each label, for texts or pairs of texts as the run was trained on."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, config: Config, labels: Sequence[str]) -> None:
        self.model, self.tokenizer, self.config, self.labels = model, tokenizer, config, list(labels)
        self.pairs = bool(config.data.second)
        self.cut = 0  # examples of which the end did not fit

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
        lengths = np.array([[len(tokens) for tokens in side] for side in sides], dtype=np.int64).reshape(2, -1).T
        used = fitted(lengths, self.config.model.max_length)
        self.cut += int((used < lengths).any(1).sum())
        answers: list[dict[str, float]] = [{} for _ in examples]
        whole = segments.size(*used.T).tolist()
        room = max(self.config.train.batch_tokens, self.config.model.max_length)
        for rows in by_tokens(sorted(range(len(whole)), key=whole.__getitem__), whole, room):
            first, second = ([side[row][: used[row, i]] for row in rows] for i, side in enumerate(sides))
            for row, shares in zip(rows, self._forward(first, second), strict=True):
                answers[row] = dict(zip(self.labels, shares, strict=True))
        return answers

    def _forward(self, first: list[list[int]], second: list[list[int]]) -> list[list[float]]:
        device = next(self.model.parameters()).device
        encoded = marked(self.tokenizer, self.config, first, second).to(device)
        with autocast(device, self.config.train.precision):
            scores_SC = self.model.classify(self.model(*encoded.packs), encoded.firsts())
        return scores_SC.float().softmax(-1).tolist()
