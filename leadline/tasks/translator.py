"""A trained model as a function from sentences to sentences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from leadline.config import Config, DecodeConfig
from leadline.data.tokenizer import BOS, EOS, Tokenizer
from leadline.kernels.pack import group_sizes, pack
from leadline.model import Transformer, slots
from leadline.model.decode import Hypothesis, beam_search
from leadline.model.precision import autocast

MARGIN = 20  # tokens a translation may have beyond decode.max_ratio times its source
WAVE = 1 << 18  # source tokens given at once to a search that sees itself to how many of them it works on


class Translator:
    """`translate` for people, `translate_tokenized` for scores."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, config: Config) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.split_up = 0  # sentences that were too long and were translated in pieces

    def translate(self, lines: Sequence[str], progress: Callable[[int], None] = lambda done: None) -> list[str]:
        return [self.tokenizer.detokenize(line) for line in self.translate_tokenized(lines, progress)]

    def translate_tokenized(
        self, lines: Sequence[str], progress: Callable[[int], None] = lambda done: None
    ) -> list[str]:
        """One output a line, in order. A line over the model's limit is translated in pieces; an empty one stays so."""
        sources = self.tokenizer.encode(lines, self.tokenizer.config.source_lang)
        pieces: list[list[int]] = []
        owners: list[int] = []
        for owner, tokens in enumerate(sources):
            parts = self._pieces(tokens)
            self.split_up += len(parts) > 1
            pieces += parts
            owners += [owner] * len(parts)
        outputs: list[list[str]] = [[] for _ in lines]
        texts = self.tokenizer.decode([h.tokens for h in self._search(pieces, progress)])
        for owner, text in zip(owners, texts, strict=True):
            outputs[owner].append(text)
        return [" ".join(" ".join(parts).split()) for parts in outputs]

    @functools.cached_property
    def _begins_word(self) -> np.ndarray:
        return self.tokenizer.begins_word()

    def _pieces(self, tokens: list[int]) -> list[list[int]]:
        """Equal parts, cut between words, none over the limit."""
        limit = self.model.config.max_length - 1
        if len(tokens) <= limit:
            return [tokens] if tokens else []
        middle = len(tokens) // 2
        between_words = [i for i in range(1, len(tokens)) if self._begins_word[tokens[i]]]
        cut = min(between_words, key=lambda i: abs(i - middle), default=middle)
        return self._pieces(tokens[:cut]) + self._pieces(tokens[cut:])

    def _search(self, sources: list[list[int]], progress: Callable[[int], None]) -> list[Hypothesis]:
        """The best hypothesis of each, searched in batches of similar length."""
        decode = self.config.decode
        results: list[Hypothesis | None] = [None] * len(sources)
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        in_slots = slots.usable(self._device())
        batches = _by_tokens(order, sources, self._wave() if in_slots else decode.batch_tokens, padded=not in_slots)
        training = self.model.training
        self.model.eval()
        try:
            for batch in batches:
                for i, hypothesis in zip(batch, self._best([sources[i] for i in batch], decode), strict=True):
                    results[i] = hypothesis
                progress(len(batch))
        finally:
            self.model.train(training)
        return results  # type: ignore[return-value]

    def _best(self, sources: list[list[int]], decode: DecodeConfig) -> list[Hypothesis]:
        device = self._device()
        sequences = [np.array([*tokens, EOS]) for tokens in sources]
        lengths = [len(sequence) for sequence in sequences]
        source = pack(sequences, sum(lengths), group_sizes([lengths]), max(lengths), len(lengths)).to(device)
        limits = [min(self.model.config.max_length, int(len(s) * decode.max_ratio) + MARGIN) for s in sources]
        # The most likely token each time is a search with one beam, whose score is log p whatever the length.
        length_penalty = decode.length_penalty if decode.beam > 1 else 0.0
        with autocast(device, self.config.train.precision):
            found = beam_search(
                self.model, source, torch.tensor(limits, device=device), BOS, EOS, decode.beam, length_penalty, best=1
            )
        return [hypotheses[0] for hypotheses in found]

    def _wave(self) -> int:
        """Source tokens whose keys and values for all layers take a quarter of the free memory, at most."""
        if self._device().type != "cuda":
            return WAVE
        config = self.model.config
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self._device())
        numbers = 2 * config.dim * config.decoder_layers + 4 * config.dim + 2 * config.ffn_dim
        return max(self.config.decode.batch_tokens, min(WAVE, free // 4 // (4 * numbers)))

    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


def _by_tokens(order: list[int], sources: list[list[int]], budget: int, padded: bool) -> Iterator[list[int]]:
    """Consecutive items of `order` whose size, perhaps padded, is within the budget; at least one."""
    batch: list[int] = []
    total = 0
    for i in order:  # shortest first, so that the newest is the longest
        length = len(sources[i]) + 1
        total = (len(batch) + 1) * length if padded else total + length
        if batch and total > budget:
            yield batch
            batch, total = [], length
        batch.append(i)
    if batch:
        yield batch
