"""A trained model as a function from sentences to sentences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch

from leadline.config import Config, DataConfig, DecodeConfig
from leadline.data.directions import targets
from leadline.data.tokenizer import BOS, EOS, Tokenizer, tag
from leadline.errors import UserError, nearest
from leadline.kernels.pack import group_sizes, pack
from leadline.model import Transformer, slots
from leadline.model.decode import Hypothesis, beam_search
from leadline.model.precision import autocast, evaluating
from leadline.tasks.encoded import by_tokens
from leadline.world import ALONE, World

MARGIN = 20  # tokens a translation may have beyond decode.max_ratio times its source
WAVE = 1 << 18  # source tokens given at once to a search that sees itself to how many of them it works on


def into(config: Config, language: str) -> Config:
    """The config of a run that shall translate into a language, which must be one that it was trained to write."""
    data = config.data
    known = targets(data.directions) or [data.target_lang]
    if language not in known:
        one = f"from {data.source_lang} into {data.target_lang} only"
        raise UserError(
            f"this run was not trained to write {language!r}: "
            + (nearest(language, known) if data.directions else f"it translates {one}")
        )
    return config.set(data={"target_lang": language})


def marks(tokenizer: Tokenizer, data: DataConfig, language: str) -> tuple[list[int], int]:
    """What stands before a source, and before its target in this language: of many languages its tag is one of them."""
    if not data.directions:
        return [], BOS
    known = targets(data.directions)
    if not language and len(known) > 1:
        raise UserError(
            f"this run writes several languages: say which, such as --to {known[0]} (of {', '.join(known)})"
        )
    number = tokenizer.special(tag(language or known[0]))
    return ([number], BOS) if data.tag == "source" else ([], number)


class Translator:
    """`translate` for people, `translate_tokenized` for scores. Processes share the work; all get everything."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, config: Config, world: World = ALONE) -> None:
        self.model, self.tokenizer, self.config, self.world = model, tokenizer, config, world
        self.split_up = 0  # sentences that were too long and were translated in pieces

    def translate(self, lines: Sequence[str], progress: Callable[[int], None] = lambda done: None) -> list[str]:
        return [self.tokenizer.detokenize(line) for line in self.translate_tokenized(lines, progress)]

    def translate_tokenized(
        self,
        lines: Sequence[str],
        progress: Callable[[int], None] = lambda done: None,
        languages: Sequence[str] | None = None,
    ) -> list[str]:
        """One output a line, in order. A line over the model's limit is translated in pieces; an empty one stays so.

        `languages`: that of each output, where it is not the one of all.
        """
        sources = self.tokenizer.encode(lines, self.tokenizer.config.source_lang)
        wanted = languages or [self.config.data.target_lang] * len(lines)
        known = {language: marks(self.tokenizer, self.config.data, language) for language in {*wanted}}
        pieces: list[list[int]] = []
        starts: list[int] = []
        owners: list[int] = []
        for owner, (tokens, language) in enumerate(zip(sources, wanted, strict=True)):
            before, start = known[language]
            parts = self._pieces(tokens, len(before))
            self.split_up += len(parts) > 1
            pieces += [before + part for part in parts]
            starts += [start] * len(parts)
            owners += [owner] * len(parts)
        outputs: list[list[str]] = [[] for _ in lines]
        texts = self.tokenizer.decode(self._search(pieces, progress, starts))
        for owner, text in zip(owners, texts, strict=True):
            outputs[owner].append(text)
        return [" ".join(" ".join(parts).split()) for parts in outputs]

    @functools.cached_property
    def _begins_word(self) -> np.ndarray:
        return self.tokenizer.begins_word()

    def _pieces(self, tokens: list[int], before: int = 0) -> list[list[int]]:
        """Equal parts, cut between words, none over the limit with `before` marks and its end."""
        limit = self.model.config.max_length - before - 1
        if len(tokens) <= limit:
            return [tokens] if tokens else []
        middle = len(tokens) // 2
        between_words = [i for i in range(1, len(tokens)) if self._begins_word[tokens[i]]]
        cut = min(between_words, key=lambda i: abs(i - middle), default=middle)
        return self._pieces(tokens[:cut], before) + self._pieces(tokens[cut:], before)

    def _search(
        self, sources: list[list[int]], progress: Callable[[int], None], starts: Sequence[int] = ()
    ) -> list[list[int]]:
        """The tokens of the best hypotheses, searched in batches of similar length whose targets start alike."""
        starts, world = starts or [BOS] * len(sources), self.world
        results: list[tuple[int, list[int]]] = []
        with evaluating(self.model):
            for start in dict.fromkeys(starts):
                order = sorted((i for i, each in enumerate(starts) if each == start), key=lambda i: len(sources[i]))
                for batch in self._own(order, sources):
                    best = self._best([sources[i] for i in batch], self.config.decode, start)
                    results += [(i, hypothesis.tokens) for i, hypothesis in zip(batch, best, strict=True)]
                    progress(len(batch))
        return [tokens for _, tokens in sorted(pair for some in world.gather(results) for pair in some)]

    def _own(self, order: list[int], sources: list[list[int]]) -> list[list[int]]:
        """This process's batches of `order`, the shortest first."""
        rank, size, lengths = self.world.rank, self.world.size, [len(source) + 1 for source in sources]
        if slots.usable(self._device()):  # few large batches: each process takes some of all lengths
            return list(by_tokens(order[rank::size], lengths, self._wave()))
        # Whole batches, so that what comes out does not depend on the number of processes.
        return list(by_tokens(order, lengths, self.config.decode.batch_tokens, padded=True))[rank::size]

    def _best(self, sources: list[list[int]], decode: DecodeConfig, start: int = BOS) -> list[Hypothesis]:
        device = self._device()
        sequences = [np.array([*tokens, EOS]) for tokens in sources]
        lengths = [len(sequence) for sequence in sequences]
        source = pack(sequences, sum(lengths), group_sizes([lengths]), max(lengths), len(lengths)).to(device)
        limits = [min(self.model.config.max_length, int(len(s) * decode.max_ratio) + MARGIN) for s in sources]
        # The most likely token each time is a search with one beam, whose score is log p whatever the length.
        length_penalty = decode.length_penalty if decode.beam > 1 else 0.0
        with autocast(device, self.config.train.precision):
            searched = beam_search(
                self.model, source, torch.tensor(limits, device=device), start, EOS, decode.beam, length_penalty, best=1
            )
        return [hypotheses[0] for hypotheses in searched]

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
