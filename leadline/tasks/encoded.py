"""Anybody's texts as a model takes them, in the order they were given and with nothing masked or cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from leadline.config import Config
from leadline.data.flat import Flat
from leadline.data.tokenizer import Tokenizer
from leadline.errors import UserError
from leadline.kernels.pack import Pack, pack_flat
from leadline.tasks import segments


@dataclass(frozen=True)
class Encoded:
    """The hidden states are `model(*encoded.packs)`, of all texts end to end; `each` takes them apart."""

    packs: list[Pack]
    tokens: list[list[int]]  # of each text, on the side that the hidden states are of

    def each(self, states: Tensor) -> list[Tensor]:
        """[all tokens, …] to one [tokens, …] a text."""
        return list(states.split([len(tokens) for tokens in self.tokens]))

    def firsts(self) -> Tensor:
        """Where each text begins."""
        lengths = [len(tokens) for tokens in self.tokens]
        return torch.tensor([0, *accumulate(lengths)][:-1], device=self.packs[-1].tokens.device)

    def to(self, device: torch.device) -> Encoded:
        return replace(self, packs=[pack.to(device) for pack in self.packs])


def by_tokens(order: Sequence[int], lengths: Sequence[int], most: int, padded: bool = False) -> Iterator[list[int]]:
    """Batches of `order`, in which the shortest are first, of at most so many tokens, perhaps padded; at least one."""
    batch: list[int] = []
    total = 0
    for row in order:
        total = (len(batch) + 1) * lengths[row] if padded else total + lengths[row]
        if batch and total > most:
            yield batch
            batch, total = [], lengths[row]
        batch.append(row)
    if batch:
        yield batch


def require_lists(first: Sequence[str], second: Sequence[str] | None) -> None:
    if isinstance(first, str) or isinstance(second, str) or not first:
        raise UserError("encode takes a list of texts: give one text as [text]")
    if second is not None and len(second) != len(first):
        raise UserError(f"encode was given {len(first)} texts and {len(second)} to go with them: give as many")


def packed(sides: Sequence[Sequence[list[int]]], config: Config, kinds: np.ndarray | None = None) -> Encoded:
    """The tokens of every text, side by side."""
    most, packs = config.model.max_length, []
    for side in sides:
        lengths = np.array([len(tokens) for tokens in side])
        if lengths.max() > most:
            raise UserError(
                f"text {lengths.argmax()} (from 0) has {lengths.max()} tokens with its marks, and the model takes "
                f"model.max_length={most}: shorten it"
            )
        flat = np.concatenate([np.array(tokens, dtype=np.int64) for tokens in side])
        packs.append(pack_flat(flat, lengths, len(flat), [len(side)], most, len(side), segments=kinds))
    return Encoded(packs, [list(tokens) for tokens in sides[-1]])


def with_marks(tokenizer: Tokenizer, config: Config, first: Sequence[str], second: Sequence[str] | None) -> Encoded:
    """[CLS] text [SEP], or [CLS] text [SEP] second [SEP], for an encoder."""
    require_lists(first, second)
    both = [tokenizer.encode(texts, config.data.source_lang) for texts in (first, second or [""] * len(first))]
    return marked(tokenizer, config, *both)


def marked(tokenizer: Tokenizer, config: Config, first: list[list[int]], second: list[list[int]]) -> Encoded:
    """The same of tokens; an empty second has no [SEP]."""
    both = (first, second)
    a, b = (Flat(np.array(list(chain(*texts)), dtype=np.int64), np.array([len(t) for t in texts])) for texts in both)
    laid = segments.lay_out(a, b, tokenizer.special("[CLS]"), tokenizer.special("[SEP]"))
    tokens = [part.tolist() for part in np.split(laid.tokens, laid.begins[1:])]
    return packed([tokens], config, laid.segments if config.model.segments > 1 else None)
