"""Search: a wide beam finds what brute force finds, and the caches change nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from leadline.kernels.pack import Pack, pack, pack_one
from leadline.model import Transformer, decode
from leadline.model.decode import Hypothesis, Stepper, beam_search
from leadline.placement import PLACEMENTS

VOCAB, BOS, EOS = 7, 1, 2
WORDS = [token for token in range(VOCAB) if token != EOS]
# Lengths differ, so that a batch of them is padded.
SOURCES = [[4, 5, 3, 6, EOS], [3, EOS], [6, 6, 4, EOS], [5, 4, 3, 3, 6, 5, EOS]]
SEEDS = range(4)


def tiny(seed: int, placement: str = "post_ln") -> Transformer:
    model = Transformer(
        VOCAB,
        seed=seed,
        placement=placement,
        encoder_layers=2,
        decoder_layers=2,
        dim=16,
        ffn_dim=32,
        heads=2,
        max_length=16,
        embeddings="separate",
    )
    with torch.no_grad():
        model.output.weight *= 3  # peaked distributions: hypotheses differ clearly in score
    return model.eval()


def packed(sources: list[list[int]]):
    return pack_one([np.array(source) for source in sources])


@torch.inference_mode()
def next_log_p(model: Transformer, source: list[int], prefixes: list[list[int]]) -> list[Tensor]:
    """For each prefix [tokens + 1, V]: log p after <s> and after each of its tokens, without a cache."""
    target = packed([[BOS, *prefix] for prefix in prefixes])
    log_p = model.logits(model(packed([source] * len(prefixes)), target)).log_softmax(-1)
    return list(log_p.split([len(prefix) + 1 for prefix in prefixes]))


def log_p_of(model: Transformer, source: list[int], sequences: list[list[int]]) -> list[float]:
    """Of whole sequences, their </s> included."""
    rows = next_log_p(model, source, sequences)
    return [float(row[range(len(row)), [*s, EOS]].sum()) for row, s in zip(rows, sequences, strict=True)]


def beam(model, sources, max_lengths, size: int, length_penalty: float = 0.0) -> list[list[Hypothesis]]:
    return beam_search(model, packed(sources), torch.tensor(max_lengths), BOS, EOS, size, length_penalty)


def greedy(model: Transformer, source: Pack, max_lengths: Tensor, bos: int, eos: int) -> list[Hypothesis]:
    return [hypotheses[0] for hypotheses in beam_search(model, source, max_lengths, bos, eos, 1, 0.0)]


def plain_beam_search(model, source, max_length: int, size: int, length_penalty: float) -> list[Hypothesis]:
    """As the docstring of beam_search says it, for one sentence, with lists and no cache."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[Hypothesis] = []
    for length in range(1, max_length + 1):
        rows = next_log_p(model, source, [tokens for _, tokens in live])
        allowed = [EOS] if length == max_length else range(VOCAB)
        continued = [
            (score + float(row[-1, token]), tokens, token)
            for (score, tokens), row in zip(live, rows, strict=True)
            for token in allowed
        ]
        continued.sort(key=lambda item: -item[0])
        done += [Hypothesis(t, s / length**length_penalty) for s, t, token in continued[:size] if token == EOS]
        live = [(s, [*t, token]) for s, t, token in continued if token != EOS][:size]
        if len(done) >= size or not live:
            break
    return sorted(done, key=lambda hypothesis: -hypothesis.score)[:size]


@pytest.mark.parametrize("length_penalty", [0, 0.6, 1.2])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_wide_beam_equals_brute_force(seed: int, length_penalty: float) -> None:
    model, source, max_length = tiny(seed), SOURCES[0], 4
    every = [list(s) for n in range(max_length) for s in itertools.product(WORDS, repeat=n)]
    scores = [
        log_p / (len(s) + 1) ** length_penalty for s, log_p in zip(every, log_p_of(model, source, every), strict=True)
    ]
    (found,) = beam(model, [source], [max_length], len(every) + 1, length_penalty)

    best = max(range(len(every)), key=lambda i: scores[i])
    assert found[0].tokens == every[best]
    assert {tuple(h.tokens): h.score for h in found} == pytest.approx(
        {tuple(s): score for s, score in zip(every, scores, strict=True)}, abs=1e-5
    )


def test_the_length_penalty_changes_what_is_best() -> None:
    """So the comparison with brute force is not one of equals."""
    longer = [
        len(beam(tiny(seed), SOURCES[:1], [4], 300, 1.2)[0][0].tokens)
        - len(beam(tiny(seed), SOURCES[:1], [4], 300, 0)[0][0].tokens)
        for seed in SEEDS
    ]
    assert min(longer) >= 0
    assert max(longer) > 0


@pytest.mark.parametrize("size", [2, 3, 25])  # 25: more than there are first tokens
@pytest.mark.parametrize("seed", SEEDS)
def test_a_narrow_beam_equals_a_plain_search_without_cache(seed: int, size: int) -> None:
    model, max_lengths = tiny(seed), [8, 5, 7, 6]
    found = beam(model, SOURCES, max_lengths, size, 0.6)
    for source, max_length, hypotheses in zip(SOURCES, max_lengths, found, strict=True):
        expected = plain_beam_search(model, source, max_length, size, 0.6)
        assert [h.tokens for h in hypotheses] == [h.tokens for h in expected]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in expected], abs=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_beam_1_equals_greedy(seed: int) -> None:
    model, max_lengths = tiny(seed), [8, 3, 8, 12]
    by_beam = beam(model, SOURCES, max_lengths, 1)
    by_greed = greedy(model, packed(SOURCES), torch.tensor(max_lengths), BOS, EOS)
    assert [[h.tokens for h in hypotheses] for hypotheses in by_beam] == [[h.tokens] for h in by_greed]
    assert [h.score for (h,) in by_beam] == pytest.approx([h.score for h in by_greed], abs=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_greedy_takes_the_most_likely_token_each_time(seed: int) -> None:
    model, limit = tiny(seed), 6
    found = greedy(model, packed(SOURCES), torch.tensor([limit] * len(SOURCES)), BOS, EOS)
    for source, hypothesis in zip(SOURCES, found, strict=True):
        (log_p,) = next_log_p(model, source, [hypothesis.tokens])
        chosen = log_p.argmax(-1).tolist()
        free = len(hypothesis.tokens) + (len(hypothesis.tokens) + 1 < limit)  # at the limit </s> is forced
        assert chosen[:free] == [*hypothesis.tokens, EOS][:free]
        assert hypothesis.score == pytest.approx(log_p_of(model, source, [hypothesis.tokens])[0], abs=1e-5)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_cached_steps_equal_the_uncached_forward(placement: str) -> None:
    model, beams, longest = tiny(0, placement), 2, 6
    generator = torch.Generator().manual_seed(0)
    owners = [source for source in SOURCES for _ in range(beams)]
    prefixes: list[list[int]] = [[] for _ in owners]
    with torch.inference_mode():
        step = Stepper(model, packed(SOURCES), beams, longest)
        tokens = torch.full((len(owners),), BOS)
        for _ in range(longest):
            log_p = step(tokens).log_softmax(-1)
            uncached = [next_log_p(model, source, [p])[0][-1] for source, p in zip(owners, prefixes, strict=True)]
            assert (log_p - torch.stack(uncached)).abs().max() < 1e-5
            # Hypotheses of a sentence change places, or one of them goes on twice.
            parents = torch.randint(beams, (len(SOURCES), beams), generator=generator)
            step.reorder(parents)
            parents = (parents + torch.arange(len(SOURCES))[:, None] * beams).flatten()
            tokens = torch.tensor(WORDS)[torch.randint(len(WORDS), (len(owners),), generator=generator)]
            prefixes = [[*prefixes[p], int(t)] for p, t in zip(parents, tokens, strict=True)]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_batch_is_decoded_like_each_sentence_alone(placement: str) -> None:
    model, max_lengths = tiny(1, placement), [7, 5, 9, 8]
    together = beam(model, SOURCES, max_lengths, 3, 0.6)
    greedily = greedy(model, packed(SOURCES), torch.tensor(max_lengths), BOS, EOS)
    for source, limit, hypotheses, first in zip(SOURCES, max_lengths, together, greedily, strict=True):
        (alone,) = beam(model, [source], [limit], 3, 0.6)
        assert [h.tokens for h in hypotheses] == [h.tokens for h in alone]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in alone], abs=1e-5)
        (alone_greedily,) = greedy(model, packed([source]), torch.tensor([limit]), BOS, EOS)
        assert first.tokens == alone_greedily.tokens
        assert first.score == pytest.approx(alone_greedily.score, abs=1e-5)


@pytest.mark.parametrize("size", [1, 4])
def test_max_lengths_are_respected_and_reached(size: int) -> None:
    model, max_lengths = tiny(0), [1, 2, 4, 6]
    with torch.no_grad():
        hidden = model(packed(SOURCES[:1]), packed([[BOS, *WORDS]]))
        model.output.weight[EOS] = -hidden.mean(0)  # </s> is unlikely
    found = beam(model, SOURCES, max_lengths, size)
    by_greed = greedy(model, packed(SOURCES), torch.tensor(max_lengths), BOS, EOS)
    for limit, hypotheses, first in zip(max_lengths, found, by_greed, strict=True):
        lengths = [len(h.tokens) + 1 for h in [*hypotheses, first]]
        assert max(lengths) == limit
        assert all(EOS not in h.tokens for h in [*hypotheses, first])


@pytest.mark.parametrize("seed", SEEDS)
def test_hypotheses_are_distinct_and_sorted_and_scored_as_documented(seed: int) -> None:
    model, size, length_penalty = tiny(seed), 5, 1.2
    for source, hypotheses in zip(SOURCES, beam(model, SOURCES, [6] * 4, size, length_penalty), strict=True):
        scores = [h.score for h in hypotheses]
        sequences = [h.tokens for h in hypotheses]
        assert len(hypotheses) == size
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(s) for s in sequences}) == size
        expected = [
            log_p / (len(s) + 1) ** length_penalty
            for s, log_p in zip(sequences, log_p_of(model, source, sequences), strict=True)
        ]
        assert scores == pytest.approx(expected, abs=1e-5)


def test_only_the_best_are_returned_where_only_they_are_wanted() -> None:
    model, limits = tiny(2), torch.tensor([8, 5, 7, 6])
    every = beam_search(model, packed(SOURCES), limits, BOS, EOS, 4, 0.6)
    assert min(map(len, every)) > 2
    assert beam_search(model, packed(SOURCES), limits, BOS, EOS, 4, 0.6, best=2) == [found[:2] for found in every]


@pytest.mark.parametrize("shrink", [0.0, 0.99])
def test_finished_sentences_leave_the_batch_without_a_trace(shrink: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """At very different times, and whether they are removed at once or never."""
    model = tiny(3)
    sources, limits = SOURCES * 3, [1, 12, 3, 9, 2, 5, 14, 4, 1, 7, 8, 2]
    sizes: list[int] = []
    step = Stepper.__call__

    def counted(self: Stepper, tokens: Tensor) -> Tensor:
        sizes.append(len(tokens))
        return step(self, tokens)

    monkeypatch.setattr(Stepper, "__call__", counted)
    monkeypatch.setattr(decode, "SHRINK", shrink)
    found = beam(model, sources, limits, 3, 0.6)
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[-1] < sizes[0]) == (shrink > 0)
    for source, limit, hypotheses in zip(sources, limits, found, strict=True):
        expected = plain_beam_search(model, source, limit, 3, 0.6)
        assert [h.tokens for h in hypotheses] == [h.tokens for h in expected]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in expected], abs=1e-5)


def test_sentences_in_several_groups_are_decoded_as_in_one() -> None:
    model, limits = tiny(1), torch.tensor([5, 6, 7, 8])
    sources = [np.array(s) for s in sorted(SOURCES, key=len)]
    size = sum(map(len, sources))
    one, two = (pack(sources, size, sizes, 7, 4) for sizes in ([4], [1, 3]))
    found, expected = (beam_search(model, source, limits, BOS, EOS, 3, 0.6) for source in (two, one))
    assert [[h.tokens for h in row] for row in found] == [[h.tokens for h in row] for row in expected]
