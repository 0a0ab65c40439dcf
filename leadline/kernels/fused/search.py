"""Triton kernels of the beam search in slots (leadline.model.slots).

Shapes: B slots (one sentence each), K beams, N = B·K rows, H heads of width d, G of keys and values, V vocabulary,
C = 2K candidates, `longest` positions. A slot reads its sentence and each row its position from memory, so the shapes
never change.

What a row was fed at position t, and the key and value made of it, stay in cell (row, t) as long as the slot works on
the sentence. Hypotheses move from row to row; `table[row, t]` is the row whose cell t belongs to its history.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

LOWEST = tl.constexpr(-(2**63))  # below the key of any number


@dataclass
class State:
    """Where the search stands; all of it on the device."""

    bos: int
    eos: int
    length_penalty: float
    # Of the sentences, M of them; number M is the empty one of a slot with nothing to do.
    starts: Tensor  # [M+2] int32: where each begins in the memory
    limits: Tensor  # [M+1] int32: tokens of a translation at most, </s> included
    queue: Tensor  # [M+1] int32: the sentences in the order they are taken
    tickets: Tensor  # [1] int32: how many have been taken
    closed: Tensor  # [1] int32: how many are done
    done_scores: Tensor  # [M, C] float32: of finished hypotheses, divided by length ** length_penalty
    done_lengths: Tensor  # [M, C] int32: without </s>
    done_tokens: Tensor  # [M, C, longest] int32
    # Of the slots
    sentence: Tensor  # [B] int32
    finished: Tensor  # [B] int32: hypotheses of the sentence
    # Of the rows
    tokens: Tensor  # [N] int64: the token to be fed
    positions: Tensor  # [N] int64: and its position
    scores: Tensor  # [N] float32: log p of the hypothesis so far
    table: Tensor  # [N, longest] int32
    fed: Tensor  # [N, longest] int32: the token at each position; that of <s> is not looked at

    @property
    def beams(self) -> int:
        return len(self.tokens) // len(self.sentence)

    @staticmethod
    def begin(starts: Tensor, limits: Tensor, slots: int, beams: int, longest: int, bos: int, eos: int,
              length_penalty: float) -> State:  # fmt: skip
        """The longest sentences first, so that all slots come to an end at about the same time."""
        count, device = len(limits), limits.device

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        starts = starts[: count + 1].int()
        nobody = torch.full((1,), count, dtype=torch.int32, device=device)
        queue = torch.cat([starts.diff().argsort(descending=True, stable=True).int(), nobody])
        scores = torch.full((slots, beams), float("-inf"), device=device)
        scores[:, 0] = 0  # all beams are the same at first: count one
        return State(
            bos, eos, float(length_penalty),
            torch.cat([starts, starts[-1:]]), torch.cat([limits.int(), zeros(1)]), queue,
            zeros(1) + slots, zeros(1),
            torch.full((count, 2 * beams), float("-inf"), device=device), empty(count, 2 * beams),
            empty(count, 2 * beams, longest),
            queue[:slots].clone(), zeros(slots),
            torch.full((slots * beams,), bos, device=device), zeros(slots * beams, dtype=torch.int64),
            scores.flatten(), empty(slots * beams, longest), empty(slots * beams, longest),
        )  # fmt: skip


@triton.jit
def _key(value, index):  # type: ignore[no-untyped-def]
    """An int64 that sorts by value, then by the smaller index: one maximum finds both."""
    bits = value.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - index.to(tl.int64))


@triton.jit
def _value_of(key):  # type: ignore[no-untyped-def]
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _index_of(key):  # type: ignore[no-untyped-def]
    return (0x7FFFFFFF - (key & 0xFFFFFFFF)).to(tl.int32)


@triton.jit
def _self_attention(  # type: ignore[no-untyped-def]
    qkv, keys, values, table, positions, out, longest, scale, HEADS: tl.constexpr, GROUPS: tl.constexpr,
    WIDTH: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    position = tl.load(positions + row).to(tl.int32)
    dims = tl.arange(0, DIMS)
    inside = dims < WIDTH
    group = head // (HEADS // GROUPS)
    own = qkv + row * (HEADS + 2 * GROUPS) * WIDTH + dims
    q = tl.load(own + head * WIDTH, mask=inside, other=0.0).to(tl.float32) * scale
    own_k = tl.load(own + (HEADS + group) * WIDTH, mask=inside, other=0.0)
    own_v = tl.load(own + (HEADS + GROUPS + group) * WIDTH, mask=inside, other=0.0)
    cell = ((row * longest + position) * GROUPS + group) * WIDTH + dims
    if head % (HEADS // GROUPS) == 0:  # the first of those that share them
        tl.store(keys + cell, own_k, mask=inside)
        tl.store(values + cell, own_v, mask=inside)

    # The token itself, then the past in blocks, with a running maximum.
    highest = tl.sum(q * own_k.to(tl.float32), 0)
    total = highest * 0.0 + 1.0
    mixed = own_v.to(tl.float32)
    for begin in range(0, position, BLOCK):
        times = begin + tl.arange(0, BLOCK)
        past = times < position
        rows = tl.load(table + row * longest + times, mask=past, other=0).to(tl.int64)
        cells = ((rows * longest + times) * GROUPS + group) * WIDTH
        where = past[:, None] & inside[None, :]
        k = tl.load(keys + cells[:, None] + dims[None, :], mask=where, other=0.0).to(tl.float32)
        v = tl.load(values + cells[:, None] + dims[None, :], mask=where, other=0.0).to(tl.float32)
        scores = tl.where(past, tl.sum(q[None, :] * k, 1), float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 0))
        weights = tl.exp(scores - higher)
        shrink = tl.exp(highest - higher)
        total = total * shrink + tl.sum(weights, 0)
        mixed = mixed * shrink + tl.sum(weights[:, None] * v, 0)
        highest = higher
    tl.store(out + (row * HEADS + head) * WIDTH + dims, mixed / total, mask=inside)


def self_attention(qkv_NE: Tensor, keys: Tensor, values: Tensor, table: Tensor, positions_N: Tensor) -> Tensor:
    """Keeps the new keys and values [N, longest, G, d] and attends to the row's history: [N, (H+2G)·d] -> [N, H, d]."""
    N, longest, G, d = keys.shape
    H = qkv_NE.shape[1] // d - 2 * G
    out = torch.empty(N, H, d, dtype=qkv_NE.dtype, device=qkv_NE.device)
    _self_attention[(N, H)](
        qkv_NE, keys, values, table, positions_N, out, longest, d**-0.5, H, G, d,
        triton.next_power_of_2(d), BLOCK=16, num_warps=2,
    )  # fmt: skip
    return out


@triton.jit
def _cross_attention(  # type: ignore[no-untyped-def]
    q, memory, sentence, starts, out, scale, K: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr,
    WIDTH: tl.constexpr, BEAMS: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    number = tl.load(sentence + slot)
    start = tl.load(starts + number)
    end = tl.load(starts + number + 1)
    beams = tl.arange(0, BEAMS)
    dims = tl.arange(0, DIMS)
    inside = dims < WIDTH
    cells = ((slot * K + beams) * HEADS + head)[:, None] * WIDTH + dims[None, :]
    here = (beams < K)[:, None] & inside[None, :]
    queries = tl.load(q + cells, mask=here, other=0.0)
    highest = tl.full([BEAMS], -1e30, tl.float32)
    total = tl.zeros([BEAMS], tl.float32)
    mixed = tl.zeros([BEAMS, DIMS], tl.float32)
    for begin in range(start, end, BLOCK):
        tokens = begin + tl.arange(0, BLOCK)
        there = tokens < end
        where = there[:, None] & inside[None, :]
        group = head // (HEADS // GROUPS)
        source = memory + (tokens.to(tl.int64)[:, None] * 2 * GROUPS + group) * WIDTH + dims[None, :]
        k = tl.load(source, mask=where, other=0.0)
        v = tl.load(source + GROUPS * WIDTH, mask=where, other=0.0)
        scores = tl.dot(queries, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(there[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        shrink = tl.exp(highest - higher)
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        highest = higher
    # A slot without a sentence has no memory: zeros, not 0/0.
    tl.store(out + cells, mixed / tl.maximum(total, 1e-30)[:, None], mask=here)


def cross_attention(q_ND: Tensor, memory_SE: Tensor, sentence_B: Tensor, starts: Tensor, width: int) -> Tensor:
    """The beams of a slot are queries of one attention over its sentence's keys and values, packed: [S, 2·G·d]."""
    (N, D), B, d = q_ND.shape, len(sentence_B), width
    heads, groups = D // d, memory_SE.shape[1] // (2 * d)
    out = torch.empty(N, heads, d, dtype=q_ND.dtype, device=q_ND.device)
    _cross_attention[(B, heads)](
        q_ND, memory_SE, sentence_B, starts, out, d**-0.5, N // B, heads, groups, d,
        max(16, triton.next_power_of_2(N // B)), max(16, triton.next_power_of_2(d)), BLOCK=32,
        PRECISION="ieee", num_warps=2,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["count", "eos"])
def _best_tokens(  # type: ignore[no-untyped-def]
    logits, positions, sentence, limits, out_scores, out_tokens, count, stride, V, eos, K: tl.constexpr,
    C: tl.constexpr, GROUPS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    number = tl.load(sentence + row // K)
    if number < count:
        logits += row * stride
        # One pass: the best token of each group g, g + GROUPS, g + 2·GROUPS, … and the parts of the log-sum-exp.
        groups = tl.arange(0, GROUPS)
        highest = tl.full([GROUPS], -3e38, tl.float32)
        where = groups
        total = tl.zeros([GROUPS], tl.float32)
        for begin in range(0, V, GROUPS):
            tokens = begin + groups
            x = tl.load(logits + tokens, mask=tokens < V, other=float("-inf")).to(tl.float32)
            where = tl.where(x > highest, tokens, where)
            higher = tl.maximum(highest, x)
            total = total * tl.exp(highest - higher) + tl.exp(x - higher)
            highest = higher
        top = tl.max(highest, 0)
        normaliser = top + tl.log(tl.sum(total * tl.exp(highest - top), 0))

        # Nothing but </s> may follow at the limit.
        at_limit = tl.load(positions + row) + 1 >= tl.load(limits + number)
        log_p_eos = tl.load(logits + eos).to(tl.float32) - normaliser
        keys = tl.where(groups < V, _key(highest, where), LOWEST)
        for rank in range(C):
            key = tl.max(keys, 0)
            log_p = tl.where(key == LOWEST, float("-inf"), _value_of(key) - normaliser)
            token = tl.where(key == LOWEST, 0, _index_of(key))
            forced = tl.where(rank == 0, log_p_eos, float("-inf"))
            tl.store(out_scores + row * C + rank, tl.where(at_limit, forced, log_p))
            tl.store(out_tokens + row * C + rank, tl.where(at_limit, eos, token))
            # That group is searched again, below what was taken.
            group = token % GROUPS
            tokens = group + tl.arange(0, DEPTH) * GROUPS
            x = tl.load(logits + tokens, mask=tokens < V, other=float("-inf")).to(tl.float32)
            others = _key(x, tokens)
            others = tl.where((tokens < V) & (others < key), others, LOWEST)
            keys = tl.where(groups == group, tl.max(others, 0), keys)


@triton.jit
def _write_words(table, fed, out, row, position, longest, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The words of a beam up to `position`: which row has fed each of them is in the table."""
    length = position + 1
    for begin in range(1, length, BLOCK):
        t = begin + tl.arange(0, BLOCK)
        rows = tl.load(table + row * longest + t, mask=t < position, other=0).to(tl.int64)
        rows = tl.where(t < position, rows, row)
        words = tl.load(fed + rows * longest + t, mask=t < length, other=0)
        tl.store(out + t - 1, words, mask=t < length)


@triton.jit(do_not_specialize=["count", "bos", "eos"])
def _advance(  # type: ignore[no-untyped-def]
    candidate_scores, candidate_tokens, tokens, positions, scores, sentence, finished, table, fed, limits, queue,
    tickets, closed, done_scores, done_lengths, done_tokens, count, longest, bos, eos, length_penalty,
    K: tl.constexpr, C: tl.constexpr, BEAMS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    number = tl.load(sentence + slot).to(tl.int64)
    if number < count:
        first = slot * K
        position = tl.load(positions + first).to(tl.int32)
        length = position + 1
        ended = tl.load(finished + slot)
        beams = tl.arange(0, BEAMS)

        # The C best continuations of the sentence, best first: those with </s> end, the first K others go on.
        flat = tl.arange(0, BEAMS * WIDE)
        parent, rank = flat // WIDE, flat % WIDE
        valid = (parent < K) & (rank < C)
        total = tl.load(scores + first + parent, mask=valid, other=0.0)
        total += tl.load(candidate_scores + (first + parent) * C + rank, mask=valid, other=0.0)
        keys = tl.where(valid, _key(total, flat), LOWEST)
        going_on = 0
        parents = tl.zeros([BEAMS], tl.int32)
        next_tokens = tl.full([BEAMS], 0, tl.int64)
        next_scores = tl.full([BEAMS], float("-inf"), tl.float32)
        for best in range(C):
            key = tl.max(keys, 0)
            keys = tl.where(keys == key, LOWEST, keys)
            index, score = _index_of(key), _value_of(key)
            row = first + index // WIDE
            token = tl.load(candidate_tokens + row * C + index % WIDE)
            if token == eos:
                if (best < K) & (score > float("-inf")):
                    place = number * C + ended
                    tl.store(done_scores + place, score / tl.exp2(tl.log2(length.to(tl.float32)) * length_penalty))
                    tl.store(done_lengths + place, position)
                    _write_words(table, fed, done_tokens + place * longest, row, position, longest, BLOCK)
                    ended += 1
            else:
                here = (beams == going_on) & (going_on < K)
                parents = tl.where(here, index // WIDE, parents)
                next_tokens = tl.where(here, token.to(tl.int64), next_tokens)
                next_scores = tl.where(here, score, next_scores)
                going_on += 1

        alive = tl.max(next_scores, 0) > float("-inf")
        if (ended < K) & alive & (length < tl.load(limits + number)):
            rows = first + parents
            for begin in range(0, length, BLOCK):
                t = begin + tl.arange(0, BLOCK)
                cells = tl.load(table + rows[:, None] * longest + t[None, :], mask=(t < position)[None, :], other=0)
                cells = tl.where((t < position)[None, :], cells, rows.to(tl.int32)[:, None])
                tl.debug_barrier()  # every row is read before any is written
                where = (beams < K)[:, None] & (t < length)[None, :]
                tl.store(table + (first + beams)[:, None] * longest + t[None, :], cells, mask=where)
            tl.store(fed + (first + beams) * longest + length, next_tokens.to(tl.int32), mask=beams < K)
            tl.store(finished + slot, ended)
            tl.store(tokens + first + beams, next_tokens, mask=beams < K)
            tl.store(positions + first + beams, tl.zeros([BEAMS], tl.int64) + length, mask=beams < K)
            tl.store(scores + first + beams, next_scores, mask=beams < K)
        else:
            # The slot takes the next sentence of the queue; its end is a sentence without words, number `count`.
            ticket = tl.atomic_add(tickets, 1)
            tl.atomic_add(closed, 1)
            following = tl.load(queue + tl.minimum(ticket, count))
            tl.store(sentence + slot, following)
            tl.store(finished + slot, 0)
            tl.store(tokens + first + beams, tl.zeros([BEAMS], tl.int64) + bos, mask=beams < K)
            tl.store(positions + first + beams, tl.zeros([BEAMS], tl.int64), mask=beams < K)
            tl.store(scores + first + beams, tl.where(beams == 0, 0.0, float("-inf")), mask=beams < K)


def best_tokens(state: State, logits_NV: Tensor) -> tuple[Tensor, Tensor]:
    """log p and tokens of the C likeliest continuations of each row, best first; rows of empty slots are left out."""
    (N, V), K, device = logits_NV.shape, state.beams, logits_NV.device
    scores = torch.empty(N, 2 * K, dtype=torch.float32, device=device)
    tokens = torch.empty(N, 2 * K, dtype=torch.int32, device=device)
    groups = min(256, triton.next_power_of_2(V))
    _best_tokens[(N,)](
        logits_NV, state.positions, state.sentence, state.limits, scores, tokens, len(state.limits) - 1,
        logits_NV.stride(0), V, state.eos, K, 2 * K, groups, triton.next_power_of_2(triton.cdiv(V, groups)),
        num_warps=1,
    )  # fmt: skip
    return scores, tokens


def advance(state: State, logits_NV: Tensor) -> None:
    """One token further: hypotheses are chosen, end and go on, and a slot that is done takes its next sentence."""
    scores, tokens = best_tokens(state, logits_NV)
    K, C = state.beams, 2 * state.beams
    beams, wide = triton.next_power_of_2(K), triton.next_power_of_2(C)
    _advance[(len(state.sentence),)](
        scores, tokens, state.tokens, state.positions, state.scores, state.sentence, state.finished, state.table,
        state.fed, state.limits, state.queue, state.tickets, state.closed, state.done_scores, state.done_lengths,
        state.done_tokens, len(state.limits) - 1, state.fed.shape[1], state.bos, state.eos, state.length_penalty,
        K, C, beams, wide, BLOCK=32, num_warps=1 if beams * wide <= 512 else 4,
    )  # fmt: skip
