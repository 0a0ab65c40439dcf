"""Beam search with a key/value cache.

Shapes: B sentences, K beams, N = B·K hypotheses, V vocabulary, L tokens so far.
A hypothesis scores log p(y) / length ** length_penalty, its </s> counted in the length.

The search as it reads is here, for any device. On a GPU with Triton leadline.model.slots finds the same faster.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from leadline.kernels.pack import Pack
from leadline.model import slots
from leadline.model.layers import Ancestry, Cache, Memory
from leadline.model.transformer import Transformer

MINUS_INF = float("-inf")
SHRINK = 0.8  # a batch is rid of its finished sentences when no more than this part of it is left


@dataclass(frozen=True)
class Hypothesis:
    tokens: list[int]  # without <s> and </s>
    score: float


@torch.inference_mode()
def beam_search(
    model: Transformer,
    source: Pack,
    max_lengths: Tensor,
    bos: int,
    eos: int,
    beam: int,
    length_penalty: float,
    best: int | None = None,
) -> list[list[Hypothesis]]:
    """The `best` (all, if None) of up to `beam` finished hypotheses of each sentence, best first.

    `max_lengths`: tokens of each sentence at most, </s> included.
    A hypothesis finishes when </s> is among the `beam` best continuations; a sentence is done when `beam` have.
    """
    search = slots.search if slots.usable(max_lengths.device) else plain_search
    return _hypotheses(*search(model, source, max_lengths, bos, eos, beam, length_penalty), best or beam)


class Stepper:
    """The decoder, one token at a time: what it has seen stays in the caches."""

    def __init__(self, model: Transformer, source: Pack, beams: int, longest: int) -> None:
        self.model = model
        memory_SD = model.encode(source)
        sentences = sum(group.sequences for group in source.groups)
        starts = source.starts[: sentences + 1].long()
        steps = torch.arange(max(group.length for group in source.groups), device=starts.device)
        inside = steps < starts.diff()[:, None]  # [sentences, longest source]
        cells = torch.where(inside, starts[:-1, None] + steps, 0)
        self.ancestry = Ancestry(torch.zeros(sentences, beams, longest, dtype=torch.long, device=starts.device))
        self.memories: list[Memory] = []
        self.caches: list[Cache] = []
        for block in model.decoder.blocks:
            cross = typing.cast(Any, block.cross)
            k, v = cross.split(cross.kv, cross.read(memory_SD))
            keys, values = (x[cells].transpose(1, 2).contiguous() for x in (k, v))
            self.memories.append(Memory(keys, values, inside[:, None, None, :]))
            empty = keys.new_empty(sentences, k.shape[1], longest * beams, k.shape[2])
            self.caches.append(Cache(empty, torch.empty_like(empty), self.ancestry))

    def __call__(self, tokens_N: Tensor) -> Tensor:
        """The logits of the next token of each hypothesis, [N, V]."""
        positions = torch.full_like(tokens_N, self.ancestry.length)
        self.ancestry.grow()
        return self.model.step(
            tokens_N, positions, zip(self.model.decoder.blocks, self.caches, self.memories, strict=True)
        )

    def reorder(self, parents_BK: Tensor) -> None:
        """Hypothesis (b, k) goes on from where (b, parents_BK[b, k]) was."""
        self.ancestry.beam = _take(self.ancestry.beam, parents_BK)

    def keep(self, sentences: Tensor) -> None:
        """The others are forgotten."""
        self.ancestry.beam = self.ancestry.beam[sentences]
        end = self.ancestry.length * self.ancestry.beam.shape[1]
        for cache, memory in zip(self.caches, self.memories, strict=True):
            memory.keys, memory.values = memory.keys[sentences], memory.values[sentences]
            memory.mask = memory.mask[sentences]
            cache.keys, cache.values = (_first(x, sentences, end) for x in (cache.keys, cache.values))


def _first(cells: Tensor, sentences: Tensor, end: int) -> Tensor:
    """Of some sentences, with as much room as there was; only what is filled is copied."""
    kept = cells.new_empty(len(sentences), *cells.shape[1:])
    kept[:, :, :end] = cells[sentences, :, :end]
    return kept


@dataclass
class Beams:
    """Where the search stands with the sentences it has not finished."""

    sentence: Tensor  # [B] their numbers
    limit: Tensor  # [B]
    score: Tensor  # [B, K] of hypotheses that go on; -inf: there is none
    tokens: Tensor  # [B, K, longest]
    finished: Tensor  # [B] how many have been finished
    done_score: Tensor  # [B, K] of the best of these
    done_tokens: Tensor  # [B, K, longest]
    done_length: Tensor  # [B, K]

    @staticmethod
    def begin(limit: Tensor, beam: int, longest: int) -> Beams:
        B, device = len(limit), limit.device
        score = torch.full((B, beam), MINUS_INF, device=device)
        score[:, 0] = 0  # all beams are the same at first: count one
        tokens = torch.zeros(B, beam, longest, dtype=torch.long, device=device)
        none = torch.full_like(score, MINUS_INF)
        zeros = torch.zeros(B, beam, dtype=torch.long, device=device)
        numbers = torch.arange(B, device=device)
        return Beams(numbers, limit, score, tokens, torch.zeros_like(limit), none, tokens.clone(), zeros)

    def keep(self, sentences: Tensor) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name)[sentences])


def plain_search(
    model: Transformer, source: Pack, max_lengths: Tensor, bos: int, eos: int, beam: int, length_penalty: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Finished hypotheses of each sentence: scores [B, K] (-inf: none), lengths [B, K], tokens [B, K, longest]."""
    K, longest = beam, int(max_lengths.max())
    step = Stepper(model, source, K, longest)
    at = Beams.begin(max_lengths, K, longest)
    results = (at.done_score.clone(), at.done_length.clone(), at.done_tokens.clone())
    tokens = torch.full((len(max_lengths) * K,), bos, device=max_lengths.device)
    for length in range(1, longest + 1):
        log_p, token = _continuations(step(tokens), (length >= at.limit).repeat_interleave(K), eos, 2 * K)
        total = (at.score.view(-1, 1) + log_p).view(len(at.limit), -1)
        score, flat = total.topk(min(2 * K, total.shape[1]))
        parent, token = flat // log_p.shape[1], token.view_as(total).gather(1, flat)
        history = _take(at.tokens, parent)
        history[:, :, length - 1] = token
        is_eos = token == eos

        # Those that end here join the finished ones; the best K stay.
        ends = is_eos[:, :K] & (score[:, :K] > MINUS_INF) & (at.finished < K)[:, None]
        normalised = torch.where(ends, score[:, :K] / length**length_penalty, MINUS_INF)
        at.done_score, kept = torch.cat([at.done_score, normalised], 1).topk(K)
        at.done_tokens = _take(torch.cat([at.done_tokens, history[:, :K]], 1), kept)
        at.done_length = torch.cat([at.done_length, torch.full_like(at.done_length, length - 1)], 1).gather(1, kept)
        at.finished = at.finished + ends.sum(1)

        # The best K of the others go on.
        at.score, kept = score.masked_fill(is_eos, MINUS_INF).topk(K)
        at.tokens = _take(history, kept)
        tokens = token.gather(1, kept)
        step.reorder(parent.gather(1, kept))

        done = (at.finished >= K) | (at.score[:, 0] == MINUS_INF)
        left = int((~done).sum())
        if left <= SHRINK * len(done) or length == longest:
            for result, values in zip(results, (at.done_score, at.done_length, at.done_tokens), strict=True):
                result[at.sentence] = values
            if left == 0:
                break
            rows = (~done).nonzero()[:, 0]
            at.keep(rows)
            step.keep(rows)
            tokens = tokens[rows]
        tokens = tokens.flatten()
    return results


def _continuations(logits_NV: Tensor, at_limit: Tensor, eos: int, count: int) -> tuple[Tensor, Tensor]:
    """log p and tokens of the `count` likeliest, [N, count] each. At its limit nothing but </s> may follow."""
    logits_NV = logits_NV.float()
    normaliser = logits_NV.logsumexp(-1, keepdim=True)
    if bool(at_limit.any()):
        others = torch.arange(logits_NV.shape[1], device=logits_NV.device) != eos
        logits_NV = logits_NV.masked_fill(at_limit[:, None] & others, MINUS_INF)
    best, tokens = logits_NV.topk(min(count, logits_NV.shape[1]))
    return best - normaliser, tokens


def _take(x_BKL: Tensor, kept: Tensor) -> Tensor:
    """Of each sentence, the beams `kept` [B, some]."""
    return x_BKL.gather(1, kept[:, :, None].expand(-1, -1, x_BKL.shape[2]))


def _hypotheses(scores: Tensor, lengths: Tensor, tokens: Tensor, best: int) -> list[list[Hypothesis]]:
    scores, order = scores.topk(best)
    lengths = lengths.gather(1, order).masked_fill(scores == MINUS_INF, 0)
    inside = torch.arange(tokens.shape[2], device=tokens.device) < lengths[:, :, None]
    words = _take(tokens, order)[inside].tolist()  # end to end: most of a padded row would be padding
    hypotheses: list[list[Hypothesis]] = []
    begin = 0
    for row_lengths, row_scores in zip(lengths.tolist(), scores.tolist(), strict=True):
        hypotheses.append([])
        for length, score in zip(row_lengths, row_scores, strict=True):
            if score > MINUS_INF:
                hypotheses[-1].append(Hypothesis(words[begin : begin + length], score))
            begin += length
    return hypotheses
