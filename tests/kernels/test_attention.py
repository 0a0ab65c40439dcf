"""Three implementations of one attention, held to a loop over sentences and heads.

Shapes: q [T, H, d], k and v [S, H, d]; sentence i has TARGET[i] queries and SOURCE[i] keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from leadline.errors import UserError
from leadline.kernels.attention import ATTENTION, choose, flash, padded, reference
from leadline.kernels.pack import Pack, pack, pack_one
from leadline.model import Transformer

HEADS, WIDTH, LONGEST = 3, 8, 10
TARGET, SOURCE, SIZES = [4, 1, 7, 10, 1], [2, 1, 9, 3, 6], [2, 2, 1]

CPU = {"reference": reference, "padded": padded}
on_cpu = pytest.mark.parametrize("attention", CPU.values(), ids=CPU)
KINDS = {  # tokens of each sentence as queries and as keys, causal, filler behind the queries and behind the keys
    "full": (TARGET, TARGET, False, 0, 0),
    "full, filler": (TARGET, TARGET, False, 6, 6),
    "causal": (TARGET, TARGET, True, 0, 0),
    "causal, filler": (TARGET, TARGET, True, 13, 13),  # more than LONGEST: two sequences of it
    "cross": (TARGET, SOURCE, False, 0, 0),
    "cross, filler behind queries": (TARGET, SOURCE, False, 13, 0),
    "cross, filler behind keys": (TARGET, SOURCE, False, 0, 6),
    "cross, filler behind both": (TARGET, SOURCE, False, 6, 13),
}
every_kind = pytest.mark.parametrize(
    ("q_lengths", "k_lengths", "causal", "q_filler", "k_filler"), KINDS.values(), ids=KINDS
)


def pack_of(lengths: list[int], filler: int = 0, sizes: list[int] = SIZES) -> Pack:
    tokens = [np.ones(n, dtype=np.int64) for n in lengths]
    return pack(tokens, sum(lengths) + filler, sizes, LONGEST, len(lengths) + 2)


def draw(T: int, S: int, *, grad: bool = False) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(n, HEADS, WIDTH, requires_grad=grad) for n in (T, S, S)]


def loop(q: Tensor, k: Tensor, v: Tensor, q_lengths: list[int], k_lengths: list[int], causal: bool) -> Tensor:
    """One query of one head of one sentence at a time."""
    rows = []
    k_begin = q_begin = 0
    for q_length, k_length in zip(q_lengths, k_lengths, strict=True):
        for i in range(q_length):
            seen = slice(k_begin, k_begin + (i + 1 if causal else k_length))
            for head in range(HEADS):
                weights = (k[seen, head] @ q[q_begin + i, head] / math.sqrt(WIDTH)).exp()
                rows.append((weights[:, None] * v[seen, head]).sum(0) / weights.sum())
        q_begin, k_begin = q_begin + q_length, k_begin + k_length
    return torch.stack(rows).view(-1, HEADS, WIDTH)


@on_cpu
@every_kind
def test_equals_a_loop_over_sentences(attention, q_lengths, k_lengths, causal, q_filler, k_filler) -> None:
    q_pack, k_pack = pack_of(q_lengths, q_filler), pack_of(k_lengths, k_filler)
    q, k, v = draw(len(q_pack.tokens), len(k_pack.tokens))
    found = attention(q, k, v, q_pack, k_pack, causal)
    expected = loop(q, k, v, q_lengths, k_lengths, causal)
    assert found.shape == q.shape
    assert found.isfinite().all()
    torch.testing.assert_close(found[: sum(q_lengths)], expected, rtol=1e-5, atol=1e-5)


def gradients(out: Tensor, inputs: Sequence[Tensor], rows: slice) -> tuple[Tensor, ...]:
    """Of a random direction of some rows of the output."""
    part = out[rows]
    direction = torch.randn(part.shape, generator=torch.Generator().manual_seed(1)).to(part)
    return torch.autograd.grad((part * direction).sum(), inputs)


@every_kind
def test_padded_has_the_gradients_of_reference(q_lengths, k_lengths, causal, q_filler, k_filler) -> None:
    q_pack, k_pack = pack_of(q_lengths, q_filler), pack_of(k_lengths, k_filler)
    inputs = draw(len(q_pack.tokens), len(k_pack.tokens), grad=True)
    real = slice(sum(q_lengths))
    found, expected = (
        gradients(attention(*inputs, q_pack, k_pack, causal), inputs, real) for attention in (padded, reference)
    )
    for one, other in zip(found, expected, strict=True):
        assert other.abs().max() > 0.1
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert not found[0][real.stop :].any()
    assert not any(gradient[sum(k_lengths) :].any() for gradient in found[1:])


@on_cpu
@every_kind
def test_no_gradient_flows_between_sentences(attention, q_lengths, k_lengths, causal, q_filler, k_filler) -> None:
    q_pack, k_pack = pack_of(q_lengths, q_filler), pack_of(k_lengths, k_filler)
    inputs = draw(len(q_pack.tokens), len(k_pack.tokens), grad=True)
    out = attention(*inputs, q_pack, k_pack, causal)
    sentence = 2
    begins = [sum(lengths[:sentence]) for lengths in (q_lengths, k_lengths, k_lengths)]
    ends = [sum(lengths[: sentence + 1]) for lengths in (q_lengths, k_lengths, k_lengths)]
    for gradient, begin, end in zip(gradients(out, inputs, slice(begins[0], ends[0])), begins, ends, strict=True):
        assert gradient[begin:end].any()
        assert not gradient[:begin].any()
        assert not gradient[end:].any()


@on_cpu
def test_a_token_alone_in_its_sentence_attends_to_itself(attention) -> None:
    pack = pack_of([1] * 5)
    q, k, v = draw(5, 5)
    for causal in (False, True):
        torch.testing.assert_close(attention(q, k, v, pack, pack, causal), v)


@on_cpu
def test_groups_do_not_matter(attention) -> None:
    q, k, v = draw(sum(TARGET), sum(SOURCE))
    for sizes in ([5], [1, 1, 1, 1, 1]):
        found = attention(q, k, v, pack_of(TARGET, 0, sizes), pack_of(SOURCE, 0, sizes), False)
        torch.testing.assert_close(found, attention(q, k, v, pack_of(TARGET), pack_of(SOURCE), False))


def test_packs_with_other_groups_cannot_attend_to_one_another() -> None:
    q, k, v = draw(sum(TARGET), sum(SOURCE))
    with pytest.raises(ValueError, match="zip"):
        padded(q, k, v, pack_of(TARGET, 0, [5]), pack_of(SOURCE, 0, [1, 4]), False)


@on_cpu
def test_a_pack_of_nothing_but_filler_is_finite(attention) -> None:
    pack = pack_of([], 13, [])
    q, k, v = draw(13, 13)
    found = attention(q, k, v, pack, pack, True)
    assert found.shape == q.shape
    assert found.isfinite().all()


@on_cpu
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_is_random_and_keeps_the_mean(attention, causal: bool) -> None:
    """Over many draws of Σ_i w_i·m_i with v = 1; each has mean 1 and variance p/(1-p)·Σ_i w_i²."""
    p, length, draws = 0.3, 8, 100
    pack = pack_one([np.ones(length, dtype=np.int64)] * draws)
    torch.manual_seed(0)
    q, k = (torch.randn(length, HEADS, WIDTH).repeat(draws, 1, 1) for _ in range(2))
    v = torch.ones(length * draws, HEADS, WIDTH)
    sums = attention(q, k, v, pack, pack, causal, p)[..., 0].view(draws, length, HEADS)
    # The value of key i is its own unit vector: the output is the weights.
    eye = torch.eye(WIDTH)[:, None].expand(-1, HEADS, -1).repeat(draws, 1, 1)
    weights = attention(q, k, eye, pack, pack, causal).view(draws, length, HEADS, WIDTH)[0]
    std = (p / (1 - p) * weights.square().sum(-1) / draws).sqrt()
    assert ((sums.mean(0) - 1).abs() < 5 * std).all()
    assert sums.std(0).min() > 0.1
    # One key in three is dropped, the others grow.
    kept = attention(q, k, eye, pack, pack, causal, p).view(draws, length, HEADS, WIDTH)
    possible = weights.expand_as(kept) > 0
    torch.testing.assert_close(kept[kept > 0], (weights / (1 - p)).expand_as(kept)[kept > 0])
    dropped = (kept[possible] == 0).float().mean()
    assert float(dropped) == pytest.approx(p, abs=5 * (p * (1 - p) / int(possible.sum())) ** 0.5)


@on_cpu
def test_dropout_of_zero_is_no_dropout(attention) -> None:
    pack = pack_of(TARGET)
    q, k, v = draw(sum(TARGET), sum(TARGET))
    assert torch.equal(attention(q, k, v, pack, pack, True, 0.0), attention(q, k, v, pack, pack, True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="flash attention needs a CUDA device")
@every_kind
def test_flash_equals_reference(q_lengths, k_lengths, causal, q_filler, k_filler) -> None:
    device = torch.device("cuda")
    q_pack, k_pack = pack_of(q_lengths, q_filler).to(device), pack_of(k_lengths, k_filler).to(device)
    drawn = draw(len(q_pack.tokens), len(k_pack.tokens))
    half = [x.to(device, torch.bfloat16).requires_grad_() for x in drawn]
    exact = [x.detach().float().requires_grad_() for x in half]
    real = slice(sum(q_lengths))
    found, expected = flash(*half, q_pack, k_pack, causal), reference(*exact, q_pack, k_pack, causal)
    torch.testing.assert_close(found[real].float(), expected[real], rtol=2e-2, atol=2e-2)
    for one, other in zip(gradients(found, half, real), gradients(expected, exact, real), strict=True):
        torch.testing.assert_close(one.float(), other, rtol=4e-2, atol=4e-2)


def test_flash_refuses_dropout() -> None:
    pack = pack_of(TARGET)
    q, k, v = draw(sum(TARGET), sum(TARGET))
    with pytest.raises(ValueError, match="padded"):
        flash(q, k, v, pack, pack, True, 0.1)


@pytest.mark.parametrize(
    ("device", "precision", "head_width", "dropout", "expected"),
    [
        ("cuda", "bf16", 64, 0.0, "flash"),
        ("cuda", "bf16", 64, 0.1, "padded"),
        ("cuda", "bf16", 12, 0.0, "padded"),
        ("cuda", "bf16", 264, 0.0, "padded"),
        ("cuda", "fp32", 64, 0.0, "padded"),
        ("cpu", "bf16", 64, 0.0, "padded"),
        ("cpu", "fp32", 64, 0.0, "padded"),
    ],
)
def test_flash_is_chosen_only_where_it_can_run(
    device: str, precision: str, head_width: int, dropout: float, expected: str
) -> None:
    assert choose(torch.device(device), precision, head_width, dropout) == expected


def tiny() -> Transformer:
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "dim": 16, "ffn_dim": 24, "heads": 2, "max_length": LONGEST}
    return Transformer(30, dropout=0.0, **sizes)


def test_a_model_uses_the_attention_it_is_told_to() -> None:
    model = tiny()
    for name, kernel in ATTENTION.items():
        model.use_attention(name)
        blocks = [*model.encoder.blocks, *model.decoder.blocks]
        assert all(block.attn.kernel is kernel for block in blocks)
        assert all(block.cross.kernel is kernel for block in model.decoder.blocks)
    with pytest.raises(UserError, match="reference, padded, flash"):
        model.use_attention("flesh")


@pytest.mark.parametrize("kernel", CPU)
def test_a_pack_gives_each_sentence_what_it_gets_alone_and_the_sum_of_their_gradients(kernel: str) -> None:
    model = tiny()
    model.use_attention(kernel)
    rng = np.random.default_rng(0)
    source, target = ([rng.integers(1, 30, n) for n in lengths] for lengths in (SOURCE, TARGET))

    def logits(sources: Pack, targets: Pack) -> Tensor:
        return model.logits(model(sources, targets))

    together = logits(
        pack(source, sum(SOURCE) + 13, SIZES, LONGEST, len(SOURCE) + 2),
        pack(target, sum(TARGET) + 6, SIZES, LONGEST, len(TARGET) + 2),
    )[: sum(TARGET)]
    alone = torch.cat([logits(pack_one([s]), pack_one([t])) for s, t in zip(source, target, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)

    direction = torch.randn(alone.shape, generator=torch.Generator().manual_seed(1)) / len(alone)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found, expected = (torch.autograd.grad((out * direction).sum(), parameters) for out in (together, alone))
    for name, one, other in zip(names, found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
