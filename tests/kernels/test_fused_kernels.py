"""Each fused kernel equals the torch expression beside it, values and gradients; on a GPU, or interpreted."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("triton")

from leadline.kernels import attention as plain_attention
from leadline.kernels import cross_entropy as plain_cross_entropy
from leadline.kernels.fused import adam, attention, cross_entropy, embedding, heads, linear, residual
from leadline.kernels.fused.attention import Heads
from leadline.kernels.fused.dropout import Dropout, dropout
from leadline.kernels.fused.runtime import Runtime
from leadline.kernels.pack import Pack, group_sizes, pack
from leadline.kernels.rotary import rotations

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SEED = torch.tensor([12_345_678_901], device=DEVICE)
RUNTIME = Runtime(torch.float32, SEED)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_()


def with_gradient(*shape: int) -> nn.Parameter:
    """A parameter whose .grad waits for what kernels write."""
    parameter = nn.Parameter(torch.randn(*shape, device=DEVICE))
    parameter.grad = torch.zeros_like(parameter)
    return parameter


class Layer:
    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        self.weight, self.bias = with_gradient(outputs, inputs), with_gradient(outputs) if bias else None
        self.compute = self.weight.data, self.bias.data if self.bias is not None else None

    def parameters(self) -> list[nn.Parameter]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]


def gradients(value: Callable[[], Tensor], *of: Tensor) -> list[Tensor]:
    """Of the sum of a fixed random weighting of `value`, by autograd, and by what is left in .grad."""
    for tensor in of:
        tensor.grad = torch.zeros_like(tensor)
    result = value()
    weighting = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(result)
    (result.float() * weighting.float()).sum().backward()
    return [tensor.grad.clone() for tensor in of if tensor.grad is not None]


def assert_same(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-5) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.float() - other.float()).norm() <= tolerance * (other.float().norm() + 1e-3)


# Dropout


def test_dropout_draws_the_mask_of_its_reference_forward_and_back() -> None:
    how, x = Dropout(0.3, SEED, 7), random(33, 70)
    assert torch.equal(dropout(x, how), how.reference(x))
    assert_same(gradients(lambda: dropout(x, how), x), gradients(lambda: how.reference(x), x), 0.0)


def test_masks_keep_the_right_share_and_differ_by_seed_site_row_and_column() -> None:
    rows, columns = torch.arange(500, device=DEVICE), torch.arange(400, device=DEVICE)
    mask = Dropout(0.1, SEED, 1).keeps(rows, columns).float()
    assert abs(mask.mean() - 0.9) < 5 * (0.09 / mask.numel()) ** 0.5
    # by row and by column as a coin would: the spread of the sums is binomial
    for sums, trials in ((mask.sum(0), 500), (mask.sum(1), 400)):
        assert 0.8 < sums.var() / (trials * 0.09) < 1.25
    others = [Dropout(0.1, SEED, 2), Dropout(0.1, SEED + 1, 1)]
    for other in others:
        both = torch.corrcoef(torch.stack([mask.flatten(), other.keeps(rows, columns).float().flatten()]))[0, 1]
        assert abs(both) < 5 / mask.numel() ** 0.5
    shifted = torch.corrcoef(torch.stack([mask[1:, 1:].flatten(), mask[:-1, :-1].flatten()]))[0, 1]
    assert abs(shifted) < 5 / mask.numel() ** 0.5


# Residual connection and norm


@pytest.mark.parametrize("p", [0.0, 0.2])
@pytest.mark.parametrize("has_branch", [True, False])
@pytest.mark.parametrize("result", ["s", "h", "wide"])
@pytest.mark.parametrize("kind", ["layer_norm", "without bias", "rms_norm"])
def test_add_norm(p: float, has_branch: bool, result: str, kind: str) -> None:
    tokens, width, how = 37, 48, Dropout(p, SEED, 3)
    norm = nn.RMSNorm(width, eps=1e-3) if kind == "rms_norm" else nn.LayerNorm(width, bias=kind == "layer_norm")
    for parameter in norm.to(DEVICE).parameters():
        nn.init.normal_(parameter)
    x, y, bias = random(tokens, width), random(tokens, width) if has_branch else None, with_gradient(width)
    leaves = [x, *norm.parameters(), *([y, bias] if y is not None else [])]

    def fused() -> Tensor:
        joined = residual.add_norm(x, y, norm, RUNTIME, y_bias=bias, alpha=1.7, dropout=how, wide=True)
        return getattr(joined, result) + joined.s.sin()  # several ways back at once

    def plain() -> Tensor:
        branch = None if y is None else y + bias - bias.detach()  # the bias is in y already
        joined = residual.reference(x, branch, norm, 1.7, how, torch.float32)
        return getattr(joined, result) + joined.s.sin()

    assert_same([fused()], [plain()])
    assert_same(gradients(fused, *leaves), gradients(plain, *leaves))


def test_add_without_a_norm_and_in_16_bits() -> None:
    x, y, how = random(9, 32), random(9, 32, dtype=torch.bfloat16), Dropout(0.5, SEED, 3)
    runtime = Runtime(torch.bfloat16, SEED)
    joined = residual.add_norm(x, y, None, runtime, dropout=how)
    assert torch.equal(joined.s, residual.reference(x, y, None, 1.0, how, torch.bfloat16).s)
    normed = residual.add_norm(x, y, nn.LayerNorm(32).to(DEVICE), runtime, dropout=how).h
    assert normed is not None
    assert normed.dtype == torch.bfloat16


# Attention


def two_packs() -> tuple[Pack, Pack]:
    """Sequences of 1 to 70 tokens, both sides with filler, one side with more of it."""
    left, right = [1, 3, 5, 9, 20, 40, 70], [2, 4, 6, 7, 25, 33, 64]
    sizes = group_sizes([left, right])
    sides = (pack([np.ones(n, dtype=int) for n in side], 200, sizes, 80, 12) for side in (left, right))
    source, target = (side.to(DEVICE) for side in sides)
    return source, target


def plain(
    first: Tensor, second: Tensor | None, heads: Heads, q_pack: Pack, k_pack: Pack, causal: bool, how: Dropout
) -> Tensor:
    """The reference attention; with dropout, the equation with the mask that the kernel draws."""
    q, k, v = (x.reshape(len(x), -1, heads.width) for x in heads.views(first, second, 0))
    k, v = (x.repeat_interleave(heads.queries // heads.groups, 1) for x in (k, v))
    if not how.p:
        return plain_attention.reference(q, k, v, q_pack, k_pack, causal).flatten(1)
    seen = q_pack.owner[:, None] == k_pack.owner[None, :]
    if causal:
        seen &= q_pack.positions[:, None] >= k_pack.positions[None, :]
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num()
    queries, keys = (torch.arange(len(x), device=DEVICE) for x in (q, k))
    kept = torch.stack([how.keeps(queries * heads.queries + head, keys) for head in range(heads.queries)])
    return torch.einsum("hqk,khd->qhd", weights * kept * how.scale, v).flatten(1)


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize(("queries", "groups", "width"), [(2, 2, 16), (4, 2, 24), (2, 1, 80)])
def test_attention(kind: str, p: float, queries: int, groups: int, width: int) -> None:
    source, target = two_packs()
    q_pack, k_pack = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}[kind]
    heads, how, causal = Heads(queries, groups, width), Dropout(p, SEED, 5), kind == "decoder"
    D, K = queries * width, 2 * groups * width
    if kind == "cross":
        first, second = random(len(q_pack.tokens), D), random(len(k_pack.tokens), K)
        biases = (with_gradient(D), with_gradient(K))
    else:
        first, second, biases = random(len(q_pack.tokens), D + K), None, (with_gradient(D + K),)
    leaves = [first, *([] if second is None else [second]), *biases]

    def fused() -> Tensor:
        return attention.attention(first, second, q_pack, k_pack, heads, causal, RUNTIME, dropout=how, biases=biases)

    def expected() -> Tensor:
        added = [b - b.detach() for b in biases]  # in first and second already
        kv = None if second is None else second + added[1]
        return plain(first + added[0], kv, heads, q_pack, k_pack, causal, how)

    assert_same([fused()], [expected()])
    assert_same(gradients(fused, *leaves), gradients(expected, *leaves))


@pytest.mark.parametrize("kind", ["none", "head", "whole", "layer norm", "layer norm of all"])
@pytest.mark.parametrize("turns", [True, False])
def test_heads_are_normed_and_turned(kind: str, turns: bool) -> None:
    """q of 3 heads and k of 2, normed and turned, v left; in the middle of a wider tensor's columns."""
    if kind == "none" and not turns:
        return
    width, table = 6, rotations(9, 6, 30.0).to(DEVICE)
    positions = torch.arange(20, device=DEVICE) % 9

    def norm(heads: int) -> nn.Module | None:
        of = width * (heads if kind in ("whole", "layer norm of all") else 1)
        made = {"none": lambda: None, "head": lambda: nn.RMSNorm(of, eps=1e-2), "whole": lambda: nn.RMSNorm(of, 1e-2)}
        found = made.get(kind, lambda: nn.LayerNorm(of))()
        for parameter in [] if found is None else found.to(DEVICE).parameters():
            nn.init.normal_(parameter, 1.0, 0.3)
        return found

    norms = norm(3), norm(2)
    parts = [heads.Part(0, 3, width, turns, norms[0]), heads.Part(18, 2, width, turns, norms[1])]
    parts.append(heads.Part(30, 2, width, False))
    x = random(20, 42)
    leaves = [x, *(p for one in norms if one is not None for p in one.parameters())]

    def fused() -> Tensor:
        return heads.prepare(x * 1.0, parts, table, positions, RUNTIME)

    def expected() -> Tensor:
        return heads.reference(x, parts, table, positions)

    assert_same([fused()], [expected()])
    assert_same(gradients(fused, *leaves), gradients(expected, *leaves))


def test_attention_of_filler_without_keys_is_zero() -> None:
    ones = [np.ones(3, dtype=int)]
    q_pack, k_pack = (pack(ones, size, [1], 8, 4).to(DEVICE) for size in (20, 3))
    found = attention.attention(
        random(20, 32), random(3, 64), q_pack, k_pack, Heads(2, 2, 16), False, RUNTIME, dropout=Dropout(0.0, SEED)
    )
    assert found[:3].abs().min() > 0
    assert torch.equal(found[3:], torch.zeros_like(found[3:]))


# Matrix products


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("accumulate", [False, True])
def test_linear_writes_or_adds_its_gradients(accumulate: bool, bias: bool) -> None:
    layer, x = Layer(24, 40, bias), random(50, 24)
    runtime = Runtime(torch.float32, SEED, accumulate)
    expected = gradients(lambda: F.linear(x, layer.weight, layer.bias), x, *layer.parameters())
    found = gradients(lambda: linear.linear(x, layer, runtime, own_bias=True), x, *layer.parameters())
    assert_same(found, expected)
    linear.linear(x.detach().requires_grad_(), layer, runtime, own_bias=False).sum().backward()
    once = torch.ones(50, 40, device=DEVICE).t() @ x.detach()
    assert layer.weight.grad is not None
    assert_same([layer.weight.grad], [once + accumulate * expected[1]])


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("kind", linear.ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_expand(kind: str, p: float, bias: bool) -> None:
    layer, x, how = Layer(24, 150, bias), random(70, 24), Dropout(p, SEED, 2)
    leaves = x, *layer.parameters()

    def fused() -> Tensor:
        return linear.expand(x, layer, kind, how, RUNTIME)

    def expected() -> Tensor:
        return linear.expand_reference(x, layer.weight, layer.bias, kind, how)

    assert_same([fused()], [expected()])
    assert_same(gradients(fused, *leaves), gradients(expected, *leaves))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("words", [50, 4100])
@pytest.mark.parametrize("piece", [1 << 27, 12 * 4104])
def test_cross_entropy(smoothing: float, words: int, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "PIECE", piece)
    hidden, weight = random(30, 24), with_gradient(words, 24)
    labels = torch.randint(1, words, (30,), device=DEVICE)
    labels[::7] = 0
    divisor = torch.tensor([17.0], device=DEVICE)

    def fused() -> tuple[Tensor, Tensor]:
        read = cross_entropy.filled(weight.data)
        sink = SimpleNamespace(grad=torch.zeros_like(read))
        onto = cross_entropy.Projection(words, sink, read)
        sums = cross_entropy.linear_cross_entropy(hidden, onto, labels, smoothing, 0, divisor, RUNTIME)
        assert not sink.grad[words:].any()
        weight.grad += sink.grad[:words]
        return sums

    def expected() -> tuple[Tensor, Tensor]:
        sums = plain_cross_entropy.cross_entropy(hidden @ weight.t(), labels, smoothing, 0)
        return sums[0] / 17, sums[1] / 17

    assert_same(list(fused()), list(expected()))
    leaves, found = (hidden, weight), []
    for way in (fused, expected):
        for leaf in leaves:
            leaf.grad = torch.zeros_like(leaf)
        way()[0].backward()
        found.append([leaf.grad for leaf in leaves])
    assert_same(*found)
    with torch.no_grad():
        weight.grad = torch.zeros_like(weight)
        assert_same(list(fused()), list(expected()))
        assert not weight.grad.any(), "without a way back nothing is learnt"


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("learned", [False, True, None])
def test_embedding(p: float, learned: bool | None) -> None:
    table, how = with_gradient(20, 24), Dropout(p, SEED, 1)
    places = with_gradient(10, 24) if learned else None if learned is None else torch.randn(10, 24, device=DEVICE)
    tokens = torch.randint(0, 20, (45, 2), device=DEVICE)[:, 0]  # with others between them
    positions = torch.arange(45, device=DEVICE) % 10
    leaves = [table, places] if learned else [table]

    def fused() -> Tensor:
        return embedding.embed(table, places, tokens, positions, 3.0, how, RUNTIME)

    def expected() -> Tensor:
        return embedding.reference(table, places, tokens, positions, 3.0, how)

    assert_same([fused()], [expected()])
    assert_same(gradients(fused, *leaves), gradients(expected, *leaves))


def test_embedding_prepares_no_backward_pass_where_nothing_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that is captured would otherwise wait for work that is not."""
    table, places, how = with_gradient(3, 8), torch.zeros(1, 8, device=DEVICE), Dropout(0.0, SEED, 1)
    tokens = torch.tensor([1, 2], device=DEVICE)
    aside: list[str] = []
    monkeypatch.setattr(Runtime, "aside", lambda *_: aside.append("sort"))

    def embed() -> None:
        embedding.embed(table, places, tokens, torch.zeros_like(tokens), 3.0, how, RUNTIME)

    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            embed()
    assert aside == []
    embed()
    assert aside == ["sort"]


def test_embedding_of_many_equal_tokens() -> None:
    """More than a program reads at a time, and more columns than it has."""
    table, places, how = with_gradient(3, 136), torch.zeros(1, 136, device=DEVICE), Dropout(0.0, SEED, 1)
    tokens = torch.tensor([1] * 70 + [2] + [1] * 3 + [0] * 32, device=DEVICE)
    positions = torch.zeros_like(tokens)
    ways = (
        lambda: embedding.embed(table, places, tokens, positions, 3.0, how, RUNTIME),
        lambda: embedding.reference(table, places, tokens, positions, 3.0, how),
    )
    assert_same(*(gradients(way, table) for way in ways))


# The optimizer


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_equals_torch_and_its_reference(decoupled: bool, clip: float) -> None:
    size, decayed = 3000, 2000
    start, gradient = torch.randn(size, device=DEVICE), torch.randn(3, size, device=DEVICE)
    keywords = {"betas": (0.9, 0.98), "eps": 1e-9, "decoupled": decoupled, "decayed": decayed, "clip": clip}
    keywords |= {"weight_decay": 0.1}
    parts = [nn.Parameter(start[:decayed].clone()), nn.Parameter(start[decayed:].clone())]
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    groups = [{"params": parts[:1], "weight_decay": 0.1}, {"params": parts[1:], "weight_decay": 0.0}]
    peer = kind(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    results = []
    for way in (adam.adam, adam.reference):
        weights, first, second = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
        copy = torch.zeros(size, dtype=torch.bfloat16, device=DEVICE)
        for t in (1, 2, 3):
            control = torch.tensor([0.01, 1 / (1 - 0.9**t), (1 - 0.98**t) ** -0.5], device=DEVICE)
            norm = torch.zeros((), device=DEVICE)
            way(weights, gradient[t - 1], first, second, copy, control, norm, **keywords)  # type: ignore[arg-type]
            assert norm.item() == pytest.approx(gradient[t - 1].norm().item(), rel=1e-5)
        results.append([weights, first, second])
        assert_same([copy], [weights], 5e-3)
    for t in range(3):
        for part, piece in zip(parts, (slice(decayed), slice(decayed, None)), strict=True):
            part.grad = gradient[t, piece].clone()
        if clip:
            nn.utils.clip_grad_norm_(parts, clip)
        peer.step()
    assert_same(results[0], results[1])
    assert_same([results[0][0]], [torch.cat([p.data for p in parts])])
