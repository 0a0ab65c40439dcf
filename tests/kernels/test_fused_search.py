"""The search in slots: each kernel equals the equation, and the whole finds what the plain search finds.

Without a GPU the kernels run in Triton's interpreter (see tests/conftest.py), so the models are tiny.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from leadline.kernels.fused import search as kernels
from leadline.kernels.fused.search import State
from leadline.kernels.pack import group_sizes, pack
from leadline.model import Transformer, decode, slots
from leadline.model.decode import Hypothesis
from leadline.training.step import compile_blocks

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BOS, EOS = 1, 2


def begin(lengths: list[int], limits: list[int], count: int, beams: int, longest: int = 48) -> State:
    starts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=DEVICE)
    return State.begin(starts, torch.tensor(limits, device=DEVICE), count, beams, longest, BOS, EOS, 0.6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "G"), [(8, 2), (12, 2), (12, 1)])  # 12: not a power of two
def test_self_attention_follows_the_table(width: int, G: int, dtype: torch.dtype) -> None:
    N, longest, H = 4, 48, 2
    torch.manual_seed(0)
    keys, values = (torch.randn(N, longest, G, width, device=DEVICE).to(dtype) for _ in range(2))
    table = torch.randint(N, (N, longest), device=DEVICE, dtype=torch.int32)
    positions = torch.tensor([0, 3, 16, 40], device=DEVICE)  # nothing before it, part of a block, one, several
    qkv = torch.randn(N, (H + 2 * G) * width, device=DEVICE).to(dtype)
    before = keys.clone(), values.clone()
    found = kernels.self_attention(qkv, keys, values, table, positions)

    q, k, v = qkv.view(N, H + 2 * G, width).split([H, G, G], 1)
    for row, position in enumerate(positions.tolist()):
        rows, times = table[row, :position].long(), torch.arange(position, device=DEVICE)
        past_k, past_v = (x[rows, times].float() for x in before)
        all_k, all_v = (
            torch.cat([past, own[row : row + 1].float()]).repeat_interleave(H // G, 1)
            for past, own in ((past_k, k), (past_v, v))
        )
        weights = (torch.einsum("hd,thd->ht", q[row].float(), all_k) * width**-0.5).softmax(-1)
        expected = torch.einsum("ht,thd->hd", weights, all_v)
        torch.testing.assert_close(found[row].float(), expected, atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=0)
        assert torch.equal(keys[row, position], k[row])
        assert torch.equal(values[row, position], v[row])
        before[0][row, position], before[1][row, position] = k[row], v[row]
    assert torch.equal(keys, before[0])  # and nothing else has changed
    assert torch.equal(values, before[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # the interpreter multiplies no bf16 matrices
@pytest.mark.parametrize(("beams", "G"), [(1, 2), (5, 2), (5, 1)])
def test_cross_attention_sees_the_sentence_of_its_slot(beams: int, G: int, dtype: torch.dtype) -> None:
    H, width, lengths = 2, 12, [3, 40, 1, 7]
    torch.manual_seed(0)
    state = begin(lengths, [9] * 4, 4, beams)
    state.sentence = torch.tensor([1, 4, 3, 2], dtype=torch.int32, device=DEVICE)  # 4: nothing to do
    memory = torch.randn(sum(lengths), 2 * G * width, device=DEVICE).to(dtype)
    q = torch.randn(4 * beams, H * width, device=DEVICE).to(dtype)
    found = kernels.cross_attention(q, memory, state.sentence, state.starts, width).view(4, beams, H, width).float()
    q, memory = q.float(), memory.float()
    for slot, number in enumerate(state.sentence.tolist()):
        if number == 4:
            assert torch.equal(found[slot], torch.zeros_like(found[slot]))
            continue
        begins = sum(lengths[:number])
        heads = memory[begins : begins + lengths[number]].view(-1, 2, G, width).repeat_interleave(H // G, 2)
        k, v = heads.unbind(1)
        weights = torch.einsum("khd,thd->hkt", q.view(4, beams, H, width)[slot], k) * width**-0.5
        expected = torch.einsum("hkt,thd->khd", weights.softmax(-1), v)
        torch.testing.assert_close(found[slot], expected, atol=1e-5 if dtype == torch.float32 else 5e-3, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocab", "beams"), [(7, 5), (300, 1), (1000, 3)])  # 7: fewer tokens than candidates
def test_the_likeliest_tokens_and_only_the_end_at_the_limit(vocab: int, beams: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    state = begin([3, 3], [9, 6], 2, beams)
    state.positions[:] = 5  # 6 tokens with the next one: the second sentence is at its limit
    logits = (3 * torch.randn(2 * beams, vocab + 5, device=DEVICE)).to(dtype)[:, :vocab]  # rows may be wider
    log_p = logits.float().log_softmax(-1)
    count = min(2 * beams, vocab)
    scores, tokens = kernels.best_tokens(state, logits)
    expected = log_p[:beams].topk(count).values
    torch.testing.assert_close(scores[:beams, :count], expected, atol=1e-5, rtol=0)
    chosen = tokens[:beams, :count].long()
    torch.testing.assert_close(log_p[:beams].gather(1, chosen), expected, atol=1e-5, rtol=0)
    assert all(len(set(row)) == count for row in chosen.tolist())  # also where rounding makes tokens equally likely
    assert (scores[:beams, count:] == float("-inf")).all()
    assert (tokens >= 0).all()
    assert (tokens < vocab).all()
    torch.testing.assert_close(scores[beams:, 0], log_p[beams:, EOS], atol=1e-5, rtol=0)
    assert (scores[beams:, 1:] == float("-inf")).all()
    assert (tokens[beams:] == EOS).all()


def test_equally_likely_tokens_are_all_found() -> None:
    state = begin([3], [9], 1, 2)
    logits = torch.zeros(2, 600, device=DEVICE)
    logits[0, [5, 261, 517, 6]] = 1.0  # three of them in one group
    assert kernels.best_tokens(state, logits)[1][0].tolist() == [5, 6, 261, 517]


def random_model(vocab: int, seed: int, placement: str = "post_ln", likely_end: float = 0.0, layers: int = 1):
    model = Transformer(
        vocab,
        seed=seed,
        placement=placement,
        encoder_layers=1,
        decoder_layers=layers,
        dim=8,
        ffn_dim=16,
        heads=1,
        max_length=64,
        embeddings="separate",
        init="xavier",
    )
    with torch.no_grad():
        model.output.weight *= 3  # peaked distributions: hypotheses differ clearly in score
        model.output.weight[EOS] *= 1 + likely_end
    return model.eval().to(DEVICE)


def both(model, lengths, limits, beams: int, count: int) -> tuple[list[list[Hypothesis]], list[list[Hypothesis]]]:
    rng = np.random.default_rng(0)
    sources = [np.append(rng.integers(3, model.vocab_size, n - 1), EOS) for n in lengths]
    source = pack(sources, sum(lengths), group_sizes([lengths]), max(lengths), len(lengths)).to(DEVICE)
    arguments = (model, source, torch.tensor(limits, device=DEVICE), BOS, EOS, beams, 0.6)
    with torch.inference_mode():
        plain = decode.plain_search(*arguments)
        in_slots = slots.search(*arguments, slots=count)
        return decode._hypotheses(*plain, beams), decode._hypotheses(*in_slots, beams)


@pytest.mark.parametrize(
    ("vocab", "beams", "count", "placement"),
    [(7, 1, 3, "post_ln"), (7, 2, 2, "pre_ln"), (7, 5, 2, "deepnorm"), (1000, 3, 3, "pre_ln"), (7, 2, 1, "post_ln")],
)
def test_slots_find_what_the_plain_search_finds(vocab: int, beams: int, count: int, placement: str) -> None:
    """Fewer slots than sentences: they take turns, and those left over at the end stand empty."""
    lengths, limits = [2, 4, 5, 35], [1, 7, 3, 9]
    plain, fast = both(random_model(vocab, 2, placement, likely_end=0.5), lengths, limits, beams, count)
    assert [[h.tokens for h in found] for found in fast] == [[h.tokens for h in found] for found in plain]
    scores = [[h.score for h in found] for found in plain]
    assert [[h.score for h in found] for found in fast] == [pytest.approx(s, abs=1e-4) for s in scores]
    assert max(len(h.tokens) + 1 for h in plain[3]) <= 9


@pytest.mark.slow
def test_slots_find_the_same_over_many_steps() -> None:
    """Histories longer than a block of the kernels, and hypotheses that end at very different lengths."""
    plain, fast = both(random_model(7, 2, likely_end=0.5, layers=2), [3, 9, 6], [12, 36, 20], 3, 2)
    assert [[h.tokens for h in found] for found in fast] == [[h.tokens for h in found] for found in plain]
    lengths = {len(h.tokens) for found in plain for h in found}
    assert len(lengths) > 3
    assert max(lengths) > 16


def test_slots_are_left_alone_when_nothing_is_left_to_do() -> None:
    state = begin([3, 3], [9, 9], 2, 2)
    state.sentence[:] = 2
    before = replace(state, **{name: value.clone() for name, value in vars(state).items() if torch.is_tensor(value)})
    kernels.advance(state, torch.randn(4, 50, device=DEVICE))
    for name, value in vars(before).items():
        if torch.is_tensor(value):
            assert torch.equal(value.view(torch.int32), getattr(state, name).view(torch.int32)), name


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from leadline.kernels.fused import search

POINTERS = {"qkv": "bf16", "keys": "bf16", "values": "bf16", "q": "bf16", "memory": "bf16", "out": "bf16",
            "logits": "bf16", "out_scores": "fp32", "candidate_scores": "fp32", "scores": "fp32",
            "done_scores": "fp32", "positions": "i64"}
NUMBERS = {"scale": "fp32", "length_penalty": "fp32", "longest": "i32", "count": "i32", "V": "i32", "stride": "i32",
           "bos": "i32", "eos": "i32"}

def compile(kernel, **constants):
    types = {}
    for name in kernel.arg_names:
        types[name] = "constexpr" if name in constants else NUMBERS.get(name) or "*" + POINTERS.get(name, "i32")
    if kernel is search._advance:
        types["tokens"] = "*i64"
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    triton.compile(ASTSource(kernel, types, values), target=GPUTarget("cuda", 90, 32), options={"num_warps": 2})

compile(search._self_attention, HEADS=4, GROUPS=2, WIDTH=128, DIMS=128, BLOCK=16)
compile(search._cross_attention, K=5, HEADS=4, GROUPS=2, WIDTH=128, BEAMS=16, DIMS=128, BLOCK=32, PRECISION="ieee")
compile(search._best_tokens, K=5, C=10, GROUPS=256, DEPTH=64)
compile(search._advance, K=5, C=10, BEAMS=8, WIDE=16, BLOCK=32)
"""


@pytest.mark.slow
def test_the_kernels_compile_for_a_gpu() -> None:
    """The interpreter accepts what the compiler does not, such as a variable that changes its type in a loop."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILE], env=environment, check=True)


def test_blocks_that_are_compiled_for_training_are_not_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile would look into fused kernels."""
    model = random_model(7, 2)
    source = pack([np.array([3, 4, EOS])], 3, [1], 3, 1).to(DEVICE)
    arguments = (model, source, torch.tensor([3], device=DEVICE), BOS, EOS, 1, 0.6)
    with torch.inference_mode():
        wanted = slots.search(*arguments, slots=1)
        monkeypatch.setattr(
            torch, "compile", lambda *_, **__: lambda *_, **__: pytest.fail("a compiled block was called")
        )
        compile_blocks(model)
        assert torch.equal(slots.search(*arguments, slots=1)[0], wanted[0])  # scores: the rest has unused places
