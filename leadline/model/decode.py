"""Greedy and beam search with a key/value cache.

Shapes: B sentences, K beams, N = B·K hypotheses, V vocabulary, L tokens so far.
A hypothesis scores log p(y) / length ** length_penalty, its </s> counted in the length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.kernels.attention import pad
from leadline.kernels.pack import Pack
from leadline.model.layers import Cache, Memory
from leadline.model.transformer import Transformer


@dataclass(frozen=True)
class Hypothesis:
    tokens: list[int]  # without <s> and </s>
    score: float


class Stepper:
    """The decoder, one token at a time: what it has seen stays in the caches."""

    def __init__(self, model: Transformer, source: Pack, beams: int, longest: int) -> None:
        self.model = model
        memory_SD = model.encode(source)
        sentences = source.groups[0].sequences
        config = model.config
        self.memories: list[Memory] = []
        self.caches: list[Cache] = []
        for block in model.decoder.blocks:
            k, v = block.cross.split(block.cross.kv(memory_SD), 2)  # type: ignore[union-attr, operator]
            keys, values = (pad(x, source).view(sentences, -1, *x.shape[1:]).transpose(1, 2) for x in (k, v))
            self.memories.append(Memory(keys, values, source.groups[0].valid[:, None, None, :]))
            empty = keys.new_zeros(sentences * beams, config.heads, longest, config.head_width)
            self.caches.append(Cache(empty, empty.clone()))

    def __call__(self, tokens_N: Tensor) -> Tensor:
        """log p of the next token of each hypothesis, [N, V] in float32."""
        positions = torch.full_like(tokens_N, self.caches[0].length)
        x_ND = self.model.target_embed(tokens_N, positions)
        for block, cache, memory in zip(self.model.decoder.blocks, self.caches, self.memories, strict=True):
            x_ND = block.step(x_ND, cache, memory)  # type: ignore[operator]
        return self.model.logits(self.model.decoder.final(x_ND)).float().log_softmax(-1)

    def reorder(self, parents_N: Tensor) -> None:
        """Hypothesis n goes on from where `parents_N[n]` was."""
        for cache in self.caches:
            for tensor in (cache.keys, cache.values):
                tensor[:, :, : cache.length] = tensor[parents_N, :, : cache.length]


@torch.inference_mode()
def greedy(model: Transformer, source: Pack, max_lengths: Tensor, bos: int, eos: int) -> list[Hypothesis]:
    """The most likely next token, until </s> or `max_lengths` (tokens of each sentence, </s> included)."""
    longest = int(max_lengths.max())
    step = Stepper(model, source, 1, longest)
    tokens = torch.full_like(max_lengths, bos)
    chosen: list[Tensor] = []
    score = torch.zeros(len(tokens), device=tokens.device)
    open_ = torch.ones_like(tokens, dtype=torch.bool)
    lengths = torch.zeros_like(tokens)
    for length in range(1, longest + 1):
        log_p = step(tokens)
        log_p, tokens = _only_eos(log_p, length >= max_lengths, eos).max(-1)
        score += torch.where(open_, log_p, 0)
        lengths += open_
        chosen.append(tokens)
        open_ = open_ & (tokens != eos)
        if not open_.any():
            break
    rows = torch.stack(chosen, 1).tolist()
    found = zip(rows, lengths.tolist(), score.tolist(), strict=True)
    return [Hypothesis(row[: n - 1], total) for row, n, total in found]


@torch.inference_mode()
def beam_search(
    model: Transformer,
    source: Pack,
    max_lengths: Tensor,
    bos: int,
    eos: int,
    beam: int,
    length_penalty: float,
) -> list[list[Hypothesis]]:
    """Up to `beam` finished hypotheses of each sentence, best first.

    A hypothesis finishes when </s> is among the `beam` best continuations; a sentence is done when `beam` have.
    """
    B, K, longest = len(max_lengths), beam, int(max_lengths.max())
    device = max_lengths.device
    step = Stepper(model, source, K, longest)
    first = torch.arange(B, device=device)[:, None] * K  # index of the first hypothesis of each sentence
    minus_inf = float("-inf")
    live_score = torch.full((B, K), minus_inf, device=device)
    live_score[:, 0] = 0  # all beams are the same at first: count one
    live_tokens = torch.zeros(B, K, longest, dtype=torch.long, device=device)
    done_score = torch.full((B, K), minus_inf, device=device)
    done_tokens, done_length = live_tokens.clone(), torch.zeros(B, K, dtype=torch.long, device=device)
    finished = torch.zeros(B, dtype=torch.long, device=device)
    tokens = torch.full((B * K,), bos, device=device)
    for length in range(1, longest + 1):
        log_p = step(tokens)
        log_p = _only_eos(log_p, (length >= max_lengths).repeat_interleave(K), eos)
        V = log_p.shape[-1]
        total = (live_score.view(-1, 1) + log_p).view(B, K * V)
        score, flat = total.topk(min(2 * K, K * V))
        parent, token = flat // V, flat % V
        history = live_tokens.gather(1, parent[:, :, None].expand(-1, -1, longest))
        history[:, :, length - 1] = token
        is_eos = token == eos

        # Those that end here join the finished ones; the best K stay.
        ends = is_eos[:, :K] & (score[:, :K] > minus_inf) & (finished < K)[:, None]
        normalised = torch.where(ends, score[:, :K] / length**length_penalty, minus_inf)
        done_score, kept = torch.cat([done_score, normalised], 1).topk(K)
        done_tokens = torch.cat([done_tokens, history[:, :K]], 1).gather(1, kept[:, :, None].expand(-1, -1, longest))
        done_length = torch.cat([done_length, torch.full_like(done_length, length)], 1).gather(1, kept)
        finished += ends.sum(1)

        # The best K of the others go on.
        live_score, kept = score.masked_fill(is_eos, minus_inf).topk(K)
        if bool(((finished >= K) | (live_score[:, 0] == minus_inf)).all()):
            break
        live_tokens = history.gather(1, kept[:, :, None].expand(-1, -1, longest))
        tokens = token.gather(1, kept).flatten()
        step.reorder((first + parent.gather(1, kept)).flatten())
    return _hypotheses(done_score, done_tokens, done_length)


def _only_eos(log_p: Tensor, at_limit: Tensor, eos: int) -> Tensor:
    """Where a hypothesis has reached its limit, nothing but </s> may follow."""
    allowed = torch.zeros(log_p.shape[-1], dtype=torch.bool, device=log_p.device)
    allowed[eos] = True
    return log_p.masked_fill(at_limit[:, None] & ~allowed, float("-inf"))


def _hypotheses(score: Tensor, tokens: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
    return [
        [
            Hypothesis(row[: length - 1], value)
            for row, length, value in zip(rows, row_lengths, values, strict=True)
            if value > float("-inf")
        ]
        for rows, row_lengths, values in zip(tokens.tolist(), lengths.tolist(), score.tolist(), strict=True)
    ]
