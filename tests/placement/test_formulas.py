"""Every placement against its equation, written out here a second time: sublayers, norms, joins and all.

The functions under "The equations" are the papers' formulas on a stack taken apart: matrices are read from our modules,
everything else is computed here. Shapes: T tokens, D model width, H heads, d = D / H.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leadline.kernels.pack import Pack, pack_one
from leadline.model import Transformer
from leadline.model.block import Layers
from leadline.placement import PLACEMENTS, ROLES, Site

DIM, FFN, HEADS = 16, 32, 4
SOURCE, TARGET = [5, 3], [2, 4]  # tokens of each sentence
N, M = 4, 5  # layers, where nothing else is said
DEPTHS = {"encoder-decoder": (N, M), "encoder-only": (N, 0), "decoder-only": (0, M)}


def build(placement: str, encoder: int = N, decoder: int = M, seed: int = 1, **options: Any) -> Transformer:
    sizes = {"dim": DIM, "ffn_dim": FFN, "heads": HEADS, "max_length": 8, "dropout": 0.0} | options
    return Transformer(20, seed=seed, placement=placement, encoder_layers=encoder, decoder_layers=decoder, **sizes)


@torch.no_grad()
def perturbed(model: Transformer) -> Transformer:
    """In double precision, and every parameter away from where it starts: a gain of 1 or a scalar of 0 hides much."""
    torch.manual_seed(0)
    for parameter in model.double().parameters():
        parameter += torch.randn_like(parameter) * (0.3 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5)
    return model


def pack_of(lengths: list[int]) -> Pack:
    return pack_one([np.ones(n, dtype=np.int64) for n in lengths])


def draw(lengths: list[int], seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(sum(lengths), DIM, generator=torch.manual_seed(seed), dtype=dtype)


def close(found: Any, expected: Any, tolerance: float = 1e-6, message: str | None = None) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, msg=message)


# A stack of ours, taken apart


def ln(norm: nn.Module, x: Tensor) -> Tensor:
    """LayerNorm or RMSNorm with the gain (and bias) of `norm`."""
    if isinstance(norm, nn.RMSNorm):
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
    assert isinstance(norm, nn.LayerNorm)
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def concatenated(heads_THd: Tensor) -> Tensor:
    return heads_THd.flatten(1)


def as_it_is(x: Tensor) -> Tensor:
    return x


@dataclass
class Sub:
    """A sublayer, written out; `join` is the placement's connection, for its parameters."""

    kind: str
    join: Any
    layer: Any
    lengths: list[int]
    causal: bool = False
    memory: Tensor | None = None
    memory_lengths: list[int] | None = None

    def __call__(self, x: Tensor, inside: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """`inside`: of the heads [T, H, d] -> [T, D] before the matrix out, or of the activations [T, FFN]."""
        return self.ffn(x, inside or as_it_is) if self.kind == "ffn" else self.attend(x, inside or concatenated)

    def ffn(self, x: Tensor, inside: Callable[[Tensor], Tensor]) -> Tensor:
        wide = (x @ self.layer.expand.weight.T + self.layer.expand.bias).clamp(min=0)
        return inside(wide) @ self.layer.contract.weight.T + self.layer.contract.bias

    def attend(
        self, x: Tensor, inside: Callable[[Tensor], Tensor], of_heads: Callable[[str, Tensor], Tensor] = lambda _, h: h
    ) -> Tensor:
        first, *rest = [self.layer.qkv] if self.kind == "self" else [self.layer.q, self.layer.kv]
        weights = torch.cat([first.weight, *(m.weight for m in rest)]).chunk(3)
        biases = torch.cat([first.bias, *(m.bias for m in rest)]).chunk(3)
        other, other_lengths = (x, self.lengths) if self.memory is None else (self.memory, self.memory_lengths)
        q, k, v = (h @ w.T + b for h, w, b in zip((x, other, other), weights, biases, strict=True))
        q, k, v = (of_heads(name, h.view(-1, HEADS, DIM // HEADS)) for name, h in zip("qkv", (q, k, v), strict=True))
        sentences = []
        for q_i, k_i, v_i in zip(q.split(self.lengths), k.split(other_lengths), v.split(other_lengths), strict=True):
            scores = torch.einsum("qhd,khd->hqk", q_i, k_i) / math.sqrt(DIM // HEADS)
            if self.causal:
                scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, float("-inf"))
            sentences.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v_i))
        return inside(torch.cat(sentences)) @ self.layer.out.weight.T + self.layer.out.bias


@dataclass
class Taken:
    """A stack apart: `layers` of sublayers, and what opens and closes it, for their parameters."""

    layers: list[list[Sub]]
    opens: Any
    final: Any
    N: int
    M: int
    stack: str

    def __iter__(self) -> Iterator[Sub]:
        for layer in self.layers:
            yield from layer


def apart(model: Transformer, stack: str, memory: Tensor | None = None) -> Taken:
    decodes, ours = stack == "decoder", getattr(model, stack)
    layers = []
    for block in ours.blocks:
        lengths = TARGET if decodes else SOURCE
        layers.append([Sub("self", block.attn_residual, block.attn, lengths, causal=decodes)])
        if decodes and memory is not None:
            layers[-1].append(Sub("cross", block.cross_residual, block.cross, lengths, False, memory, SOURCE))
        layers[-1].append(Sub("ffn", block.ffn_residual, block.ffn, lengths))
    config = model.config
    return Taken(layers, ours.opens, ours.final, config.encoder_layers, config.decoder_layers, stack)


# The equations


def post_ln(stack: Taken, x: Tensor) -> Tensor:
    for f in stack:
        x = ln(f.join.norm, x + f(x))
    return x


def pre_ln(stack: Taken, x: Tensor) -> Tensor:
    for f in stack:
        x = x + f(ln(f.join.norm, x))
    return ln(stack.final, x)


def deepnorm(stack: Taken, x: Tensor) -> Tensor:
    if stack.N and stack.M:
        alpha = 0.81 * (stack.N**4 * stack.M) ** (1 / 16) if stack.stack == "encoder" else (3 * stack.M) ** (1 / 4)
    else:
        alpha = (2 * (stack.N + stack.M)) ** (1 / 4)
    for f in stack:
        x = ln(f.join.norm, alpha * x + f(x))
    return x


def admin(stack: Taken, x: Tensor) -> Tensor:
    for f in stack:
        x = ln(f.join.norm, f.join.omega * x + f(x))
    return x


def admin_constant(stack: Taken, x: Tensor) -> Tensor:
    n = sum(1 for _ in stack)
    for f in stack:
        x = ln(f.join.norm, math.sqrt((n + 1) / math.log(n + 1) - 1) * x + f(x))
    return x


def b2t(stack: Taken, x: Tensor) -> Tensor:
    for *below, last in stack.layers:
        entered = x
        for f in below:
            x = ln(f.join.norm, x + f(x))
        x = ln(last.join.norm, entered + x + last(x))
    return x


def resi_dual(stack: Taken, x: Tensor) -> Tensor:
    branches = [x]
    for f in stack:
        branches.append(f(x))
        x = ln(f.join.norm, x + branches[-1])
    return x + ln(stack.final.norm, torch.stack(branches).sum(0))


def dlcl(stack: Taken, x: Tensor) -> Tensor:
    rows = [layer[0].join.combine.weights for layer in stack.layers] + [stack.final[0].weights]
    outputs = [ln(stack.opens.norm, x)]
    for row, layer in zip(rows, [*stack.layers, []], strict=True):
        x = torch.zeros_like(x)
        for k in range(len(outputs)):
            x = x + row[k] * outputs[k]
        for f in layer:
            x = x + f(ln(f.join.norm, x))
        if layer:
            outputs.append(ln(layer[-1].join.output_norm, x))
    return ln(stack.final[1], x)


def normformer(stack: Taken, x: Tensor) -> Tensor:
    for f in stack:
        if f.kind == "ffn":
            x = x + f(ln(f.join.norm, x), lambda wide, f=f: ln(f.layer.inside, wide))
        elif f.kind == "cross":
            x = x + f(ln(f.join.norm, x))
        else:
            gains = f.layer.inside.gain
            scaled = f(ln(f.join.norm, x), lambda heads, g=gains: torch.einsum("thd,h->thd", heads, g).flatten(1))
            x = x + ln(f.join.branch_norm, scaled)
    return ln(stack.final, x)


def sub_ln(stack: Taken, x: Tensor) -> Tensor:
    for f in stack:
        inside = None if f.kind == "cross" else lambda h, f=f: ln(f.layer.inside, h.flatten(1))
        x = x + f(ln(f.join.norm, x), inside)
    return ln(stack.final, x)


def sandwich_ln(stack: Taken, x: Tensor) -> Tensor:
    for f in stack:
        x = x + ln(f.join.branch_norm, f(ln(f.join.norm, x)))
    return ln(stack.final, x)


def peri_ln(stack: Taken, x: Tensor) -> Tensor:
    return sandwich_ln(stack, ln(stack.opens, x))


def ln_scaling(stack: Taken, x: Tensor) -> Tensor:
    for number, layer in enumerate(stack.layers, start=1):
        for f in layer:
            x = x + f(ln(f.join.norm, x) / math.sqrt(number))
    return ln(stack.final, x)


def mix_ln(stack: Taken, x: Tensor) -> Tensor:
    quarter = {3: 0, 4: 1, 5: 1, 8: 2}[len(stack.layers)]
    for layer in stack.layers[:quarter]:
        for f in layer:
            x = ln(f.join.inner.norm, x + f(x))
    for layer in stack.layers[quarter:]:
        for f in layer:
            x = x + f(ln(f.join.inner.norm, x))
    return ln(stack.final, x)


def t_fixup(stack: Taken, x: Tensor) -> Tensor:
    for f in stack:
        x = x + f(x)
    return x


def r_fixup(stack: Taken, x: Tensor) -> Tensor:
    for f in stack:
        x = x + f.join.scale * f(x + f.join.shift_in) + f.join.shift_out
    return x


def rezero(stack: Taken, x: Tensor) -> Tensor:
    for layer in stack.layers:
        a = layer[0].join.a
        for f in layer:
            x = x + a * f(x)
    return x


def res_post_ln(stack: Taken, x: Tensor) -> Tensor:
    for f in stack:
        x = x + ln(f.join.norm, f(x))
    return ln(stack.final, x)


def layer_scale(stack: Taken, x: Tensor) -> Tensor:
    for f in stack:
        x = x + f.join.scale * f(ln(f.join.norm, x))
    return ln(stack.final, x)


def hybrid_norm(stack: Taken, x: Tensor) -> Tensor:
    for *attentions, ffn in stack.layers:
        for f in attentions:
            x = x + f.attend(x, concatenated, lambda name, heads, f=f: ln(f.layer.norms[name], heads))
        normed = ln(attentions[-1].join.norm, x)
        x = normed + ffn(normed)
    return ln(stack.final, x)


def keel(stack: Taken, x: Tensor) -> Tensor:
    first, *others = stack.layers
    for f in first:
        x = x + f(ln(f.join.norm, x))
    alpha = len(first) * len(stack.layers)
    for f in (f for layer in others for f in layer):
        x = ln(f.join.outer_norm, alpha * x + f(ln(f.join.norm, x)))
    return x


def siamese_norm(stack: Taken, x: Tensor) -> Tensor:
    y = x
    for number, layer in enumerate(stack.layers, start=1):
        for f in layer:
            x = ln(f.join.post_norm, x)
            branch = f(ln(f.join.norm, x + ln(f.join.pre_norm, y)))
            x, y = x + branch / math.sqrt(2 * number), y + branch
    final = stack.final
    return ln(final.norm, ln(final.post_norm, x) + ln(final.pre_norm, y))


def complete_p(stack: Taken, x: Tensor) -> Tensor:
    for f in stack:
        x = x + 2 * f(ln(f.join.norm, x)) / len(stack.layers)
    return ln(stack.final, x)


EQUATIONS: dict[str, Callable[[Taken, Tensor], Tensor]] = {
    "post_ln": post_ln,
    "pre_ln": pre_ln,
    "deepnorm": deepnorm,
    "post_ln_init": post_ln,
    "ds_init": post_ln,
    "admin": admin,
    "admin_constant": admin_constant,
    "b2t": b2t,
    "resi_dual": resi_dual,
    "dlcl": dlcl,
    "normformer": normformer,
    "sub_ln": sub_ln,
    "sandwich_ln": sandwich_ln,
    "peri_ln": peri_ln,
    "ln_scaling": ln_scaling,
    "mix_ln": mix_ln,
    "t_fixup": t_fixup,
    "r_fixup": r_fixup,
    "rezero": rezero,
    "res_post_ln": res_post_ln,
    "layer_scale": layer_scale,
    "hybrid_norm": hybrid_norm,
    "keel": keel,
    "siamese_norm": siamese_norm,
    "complete_p": complete_p,
}


def compare(ours: Tensor, by_hand: Tensor, inputs: list[Tensor]) -> None:
    """Values, and the gradients of a random direction at everything that went in."""
    close(ours, by_hand)
    direction = torch.randn(ours.shape, generator=torch.manual_seed(2), dtype=ours.dtype)
    found, expected = (torch.autograd.grad((way * direction).sum(), inputs) for way in (ours, by_hand))
    close(torch.cat([g.flatten() for g in found]), torch.cat([g.flatten() for g in expected]))
    assert all(g.abs().max() > 1e-6 for g in expected)


def stacks(model: Transformer) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """(name, what enters, memory) of each stack that the model has."""
    if model.config.encoder_layers:
        yield "encoder", draw(SOURCE).requires_grad_(), None
    if model.config.decoder_layers:
        memory = draw(SOURCE, seed=3).requires_grad_() if model.config.encoder_layers else None
        yield "decoder", draw(TARGET, seed=4).requires_grad_(), memory


def ours(model: Transformer, stack: str, x: Tensor, memory: Tensor | None = None) -> Tensor:
    layers: Layers = getattr(model, stack)
    if memory is None:
        return layers(x, pack_of(TARGET if stack == "decoder" else SOURCE))
    return layers(x, pack_of(TARGET), memory, pack_of(SOURCE))


def agrees(model: Transformer, equation: Callable[[Taken, Tensor], Tensor]) -> None:
    for stack, x, memory in stacks(model):
        weights = [
            parameter
            for name, parameter in getattr(model, stack).named_parameters()
            if not name.endswith("norms.k.bias")  # it moves all scores of a query alike
        ]
        inputs = [x, *([] if memory is None else [memory]), *weights]
        compare(ours(model, stack, x, memory), equation(apart(model, stack, memory), x), inputs)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [(name, kind) for name, found in PLACEMENTS.items() for kind in DEPTHS if kind in found.architectures],
)
def test_a_stack_is_its_equation_in_values_and_gradients(name: str, architecture: str) -> None:
    agrees(perturbed(build(name, *DEPTHS[architecture])), EQUATIONS[name])


@pytest.mark.parametrize("name", PLACEMENTS)
def test_with_rms_norm_it_is_the_same_equation(name: str) -> None:
    agrees(perturbed(build(name, norm="rms_norm")), EQUATIONS[name])


@pytest.mark.parametrize(("layers", "post"), [(8, 2), (3, 0)])
def test_mix_ln_has_post_ln_in_the_first_quarter_of_a_stack_and_pre_ln_above(layers: int, post: int) -> None:
    model = perturbed(build("mix_ln", layers, 3))
    agrees(model, mix_ln)
    kinds = [type(f.join.inner).__name__ for f in apart(model, "encoder")]
    assert kinds == ["PostLN"] * 2 * post + ["PreLN"] * 2 * (layers - post)


# What the weights start from: the same seed's Post-LN weights, times a factor for each role

Factors = dict[str, float]
UNSCALED: Factors = dict.fromkeys(ROLES, 1.0)


def all_scaled(*of_layers: float) -> list[Factors]:
    return [dict.fromkeys(ROLES, value) for value in of_layers]


def scaled(value: float) -> Factors:
    """v, out and both FFN matrices; q and k are left."""
    return UNSCALED | {"v": value, "out": value, "ffn_in": value, "ffn_out": value}


def fixup(attention: float, ffn_in: float) -> Factors:
    return dict.fromkeys(("q", "k", "v", "out"), attention) | {"ffn_in": ffn_in, "ffn_out": 0.0}


# placement, N, M, the factors of each encoder layer, of each decoder layer, of the embeddings
STARTS: list[tuple[str, int, int, list[Factors], list[Factors], float]] = [
    ("post_ln_init", 4, 2, all_scaled(1 / 4, 1 / 3, 1 / 2, 1), all_scaled(1 / 2, 1), 1.0),
    ("post_ln_init", 0, 3, [], all_scaled(1 / 3, 1 / 2, 1), 1.0),
    ("ds_init", 4, 3, all_scaled(1, 0.7071068, 0.5773503, 0.5), all_scaled(1, 0.7071068, 0.5773503), 1.0),
    ("ds_init", 2, 0, all_scaled(1, 0.7071068), [], 1.0),
    ("t_fixup", 16, 9, [scaled(0.67 / 2)] * 16, [scaled(1 / 3)] * 9, 12**-0.5),  # 16^-¼ = 1/2, (9·9)^-¼ = 1/3
    # L = 2·8 + 3·16 = 64, in a stack alone 2·32: L^-1/6 = 1/2, L^-½ = 1/8
    ("r_fixup", 8, 16, [fixup(1 / 2, 1 / 8)] * 8, [fixup(1 / 2, 1 / 8)] * 16, 1.0),
    ("r_fixup", 32, 0, [fixup(1 / 2, 1 / 8)] * 32, [], 1.0),
    ("r_fixup", 0, 32, [], [fixup(1 / 2, 1 / 8)] * 32, 1.0),
    # √ln 24; √(ln 18 · ln 12 / 3) and √ln 18; √(ln 9 · ln 4 / 3) and √ln 9
    ("sub_ln", 12, 0, [scaled(1.782710)] * 12, [], 1.0),
    ("sub_ln", 0, 12, [], [scaled(1.782710)] * 12, 1.0),
    ("sub_ln", 6, 6, [scaled(1.547288)] * 6, [scaled(1.700109)] * 6, 1.0),
    ("sub_ln", 2, 3, [scaled(1.007638)] * 2, [scaled(1.482304)] * 3, 1.0),
]
SCALED = {start[0] for start in STARTS} | {"deepnorm"}  # DeepNorm has its own file
STARTS += [(name, 2, 2, [UNSCALED] * 2, [UNSCALED] * 2, 1.0) for name in PLACEMENTS if name not in SCALED]


def matrices(block: Any) -> Iterator[tuple[str, str, Tensor]]:
    """(sublayer, role, matrix), by the names of our modules."""
    named = {"qkv": "qkv", "q": "q", "kv": "kv", "out": ["out"], "expand": ["ffn_in"], "contract": ["ffn_out"]}
    for kind, sublayer in block.named_children():
        for name, roles in named.items():
            if kind in ("attn", "cross", "ffn") and hasattr(sublayer, name):
                for role, part in zip(roles, getattr(sublayer, name).weight.chunk(len(roles)), strict=True):
                    yield kind, role, part


@pytest.mark.parametrize("start", STARTS, ids=lambda start: "-".join(map(str, start[:3])))
def test_weights_start_as_the_paper_says(start: tuple[str, int, int, list[Factors], list[Factors], float]) -> None:
    name, encoder, decoder, of_encoder, of_decoder, embed = start
    model, plain = (build(each, encoder, decoder, dim=8, ffn_dim=16, init="xavier") for each in (name, "post_ln"))
    own = build(name, encoder, decoder, dim=8, ffn_dim=16)  # constants of its own are defined on that start
    same = all(torch.equal(a, b) for a, b in zip(own.parameters(), model.parameters(), strict=True))
    assert same == (name in ("deepnorm", "ds_init", "sub_ln", "t_fixup", "r_fixup"))
    close(model.output.weight, embed * plain.output.weight)
    seen = 0
    for stack, of_layers in (("encoder", of_encoder), ("decoder", of_decoder)):
        for number, of_roles in enumerate(of_layers):
            pair = (getattr(each, stack).blocks[number] for each in (model, plain))
            for (kind, role, found), (_, _, base) in zip(*map(matrices, pair), strict=True):
                factor = 1.0 if (name, kind) == ("sub_ln", "cross") else of_roles[role]
                close(found, factor * base, 1e-5, f"{stack} layer {number + 1}, {kind} {role}: not × {factor}")
                seen += 1
    assert seen == encoder * 6 + decoder * (10 if encoder else 6)
    assert all(not parameter.any() for key, parameter in model.named_parameters() if key.endswith("bias"))


def test_t_fixup_s_authors_reach_our_v_from_another_base() -> None:
    """fairseq draws v with Xavier gain 1/√2, uniformly; their code multiplies it by √2. q is left at 1/√2 there."""
    wide = build("t_fixup", 1, 1, dim=256, ffn_dim=8)
    q, _, v = wide.encoder.blocks[0].attn.qkv.weight.chunk(3)
    torch.manual_seed(0)
    base = nn.init.xavier_uniform_(torch.empty(256, 256), gain=1 / math.sqrt(2))
    q, v = q.detach(), v.detach()
    assert float(v.std()) == pytest.approx(float((0.67 * math.sqrt(2) * base).std()), rel=0.02)
    assert float(q.std()) == pytest.approx(float(base.std()) * math.sqrt(2), rel=0.02)


@pytest.mark.parametrize("name", ["t_fixup", "r_fixup", "rezero"])
def test_placements_without_norms_have_none(name: str) -> None:
    assert not [m for m in build(name, 2, 2).modules() if isinstance(m, nn.LayerNorm)]


def test_r_fixup_starts_as_a_plain_sum_of_attention_alone() -> None:
    model = build("r_fixup").double()
    for f in apart(model, "encoder"):
        assert [p.item() for p in (f.join.scale, f.join.shift_in, f.join.shift_out)] == [1.0, 0.0, 0.0]
    x = expected = draw(SOURCE)
    for attention, _ in apart(model, "encoder").layers:
        expected = expected + attention(expected)
    close(ours(model, "encoder", x), expected)


# Admin


def variance(x: Tensor) -> float:
    return float((x - x.mean()).square().mean())


@torch.no_grad()
def profiled(stack: Taken, x: Tensor) -> tuple[list[float], Tensor]:
    """ω of each connection by one pass: ω_1 = 1, ω_{i+1}² = Var[ω_i·x_{i-1}] + Var[f_i]; and what the stack gives."""
    omegas = [1.0]
    for f in stack:
        branch, skip = f(x), omegas[-1] * x
        omegas.append(math.sqrt(variance(skip) + variance(branch)))
        x = ln(f.join.norm, skip + branch)
    return omegas[:-1], x


def calibrate(model: Transformer) -> Tensor:
    """On our two packs of random embeddings; gives what the model gave."""
    outputs: list[Tensor] = []

    def forward() -> None:
        memory = ours(model, "encoder", draw(SOURCE))
        outputs.append(ours(model, "decoder", draw(TARGET, seed=4), memory))

    model.calibrate(forward)
    return outputs[-1]


def test_admin_before_calibration_is_post_ln() -> None:
    model, plain = build("admin"), build("post_ln")
    assert {tuple(f.join.omega.tolist()) for f in apart(model, "encoder")} == {(1.0,) * DIM}
    x, memory = draw(TARGET, dtype=torch.float32), draw(SOURCE, dtype=torch.float32)
    assert torch.equal(ours(model, "encoder", memory), ours(plain, "encoder", memory))
    assert torch.equal(ours(model, "decoder", x, memory), ours(plain, "decoder", x, memory))


@pytest.mark.parametrize("start", [as_it_is, perturbed])
def test_one_profiling_pass_gives_admins_omegas(start: Callable[[Transformer], Transformer]) -> None:
    model = start(build("admin", dropout=0.2).double()).train()
    given = calibrate(model)
    assert model.training
    expected, memory = profiled(apart(model.eval(), "encoder"), draw(SOURCE))
    of_decoder, output = profiled(apart(model, "decoder", memory), draw(TARGET, seed=4))
    found = [f.join.omega for stack in ("encoder", "decoder") for f in apart(model, stack, memory)]
    assert len(found) == len(expected + of_decoder) == 2 * N + 3 * M
    for omega, value in zip(found, expected + of_decoder, strict=True):
        close(omega.detach(), torch.full((DIM,), value, dtype=torch.float64), 1e-5)
    close(given, output, 1e-5)  # what was profiled is what is computed from then on
    with torch.no_grad():
        close(ours(model, "decoder", draw(TARGET, seed=4), ours(model, "encoder", draw(SOURCE))), given)


def test_admins_omega_adds_up_the_variances_of_the_branches_below() -> None:
    """At the beginning every x but the first has variance 1."""
    model = build("admin", 6, 1).double()
    calibrate(model)
    x, of_branches = draw(SOURCE), []
    with torch.no_grad():
        for f in apart(model, "encoder"):
            of_branches.append(variance(f(x)))
            x = ln(f.join.norm, f.join.omega * x + f(x))
    squares = [float(f.join.omega[0].detach() ** 2) for f in apart(model, "encoder")]
    ones = [variance(draw(SOURCE))] + [1.0] * 10
    for i in range(11):
        assert squares[i + 1] == pytest.approx(ones[i] * squares[i] + of_branches[i], rel=1e-4)
    assert squares[-1] > squares[1] + 1


def test_admin_is_calibrated_by_calibrate_only_and_anew_each_time() -> None:
    model = perturbed(build("admin"))
    calibrate(model)
    omegas = [f.join.omega.detach().clone() for f in apart(model, "encoder")]
    with pytest.raises(ZeroDivisionError):
        model.calibrate(lambda: 1 / 0)  # half-way: nothing of it stays
    ours(model, "encoder", 3 * draw(SOURCE, seed=9))
    for f, omega in zip(apart(model, "encoder"), omegas, strict=True):
        assert torch.equal(f.join.omega, omega)
        f.join.omega.data.normal_()
    calibrate(model)
    for f, omega in zip(apart(model, "encoder"), omegas, strict=True):
        assert torch.equal(f.join.omega, omega)


def test_admins_omega_is_learned_after_calibration() -> None:
    model = build("admin", 2, 1).double()
    calibrate(model)
    before = [f.join.omega.detach().clone() for f in apart(model, "encoder")]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    (ours(model, "encoder", draw(SOURCE)) * draw(SOURCE, seed=5)).sum().backward()
    optimizer.step()
    for f, omega in zip(apart(model, "encoder"), before, strict=True):
        assert isinstance(f.join.omega, nn.Parameter)
        assert len((f.join.omega - omega).detach().round(decimals=9).unique()) > 1  # each dimension goes its own way
    agrees(model, admin)


@pytest.mark.parametrize("name", [name for name in PLACEMENTS if name != "admin"])
def test_nothing_else_is_calibrated(name: str) -> None:
    model = build(name, 2, 2)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.calibrate(lambda: pytest.fail("a pass over data for nothing"))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


# √((n+1)/ln(n+1) - 1), for n connections in a stack
@pytest.mark.parametrize(
    ("stack", "encoder", "decoder", "omega"),
    [
        ("encoder", 1, 1, "1.3156"),  # n = 2
        ("decoder", 1, 1, "1.3731"),  # 3
        ("encoder", 6, 1, "2.0170"),  # 12
        ("decoder", 1, 6, "2.3351"),  # 18
        ("decoder", 0, 6, "2.0170"),  # 12
        ("encoder", 12, 0, "2.6013"),  # 24
        ("encoder", 100, 100, "6.0746"),  # 200
        ("decoder", 100, 100, "7.1931"),  # 300
    ],
)
def test_admin_constants_omega(stack: Any, encoder: int, decoder: int, omega: str) -> None:
    connection = PLACEMENTS["admin_constant"](Site(8, stack, 0, encoder, decoder))
    assert f"{connection.omega:.4f}" == omega
    assert connection.describe() == {"omega": connection.omega}
    assert not [name for name, _ in connection.named_parameters() if "omega" in name]


# ReZero


def test_a_rezero_model_starts_as_the_identity_bit_for_bit() -> None:
    model = build("rezero")
    x, memory = draw(TARGET, dtype=torch.float32), draw(SOURCE, dtype=torch.float32)
    assert torch.equal(ours(model, "encoder", memory), memory)
    assert torch.equal(ours(model, "decoder", x, memory), x)


def shared_numbers(model: Transformer) -> list[nn.Parameter]:
    """The a of each layer, which all its sublayers must hold."""
    numbers = []
    for stack in (model.encoder, model.decoder):
        for block in stack.blocks:
            (number,) = {joined.a for joined, _ in block.connections()}
            numbers.append(number)
    assert len({id(number) for number in numbers}) == len(numbers) == N + M
    assert len([n for n, _ in model.named_parameters() if n.endswith(".a")]) == N + M
    return numbers


def step(model: Transformer) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    memory = ours(model, "encoder", draw(SOURCE))
    loss = (ours(model, "decoder", draw(TARGET, seed=4), memory) * draw(TARGET, seed=5)).sum()
    (loss + (memory * draw(SOURCE, seed=6)).sum()).backward()
    optimizer.step()


def test_rezeros_sublayers_share_one_number_for_each_layer_and_keep_sharing_it() -> None:
    model = build("rezero").double()
    assert all(not number.any() for number in shared_numbers(model))
    matrices_before = [f.layer.out.weight.detach().clone() for f in apart(model, "encoder") if f.kind == "self"]
    step(model)
    found = [f.layer.out.weight for f in apart(model, "encoder") if f.kind == "self"]
    assert all(torch.equal(*pair) for pair in zip(found, matrices_before, strict=True))  # at first only the a's learn
    assert all(number.item() for number in shared_numbers(model))
    model.zero_grad()
    step(model)
    assert not any(torch.equal(*pair) for pair in zip(found, matrices_before, strict=True))
    agrees(model, rezero)

    other = build("rezero", seed=2).double()
    other.load_state_dict(model.state_dict())
    for restored in (other, copy.deepcopy(model)):
        assert [n.item() for n in shared_numbers(restored)] == [n.item() for n in shared_numbers(model)]
        assert torch.equal(ours(restored, "encoder", draw(SOURCE)), ours(model, "encoder", draw(SOURCE)))
        step(restored)
        shared_numbers(restored)


# DLCL


def test_dlcls_rows_have_an_entry_for_each_output_below_and_start_at_their_mean() -> None:
    model = build("dlcl")
    for stack, layers in (("encoder", N), ("decoder", M)):
        taken = apart(model, stack, draw(SOURCE))
        rows = [layer[0].join.combine.weights.tolist() for layer in taken.layers] + [taken.final[0].weights.tolist()]
        assert [len(row) for row in rows] == list(range(1, layers + 2))
        for row in rows:
            assert row == pytest.approx([1 / len(row)] * len(row))
        assert all(f.join.combine is None for layer in taken.layers for f in layer[1:])


# NormFormer, and what other norms make invisible


@torch.no_grad()
@pytest.mark.parametrize("head", range(HEADS))
def test_a_normformer_gain_of_zero_removes_exactly_its_head(head: int) -> None:
    """As if the columns of the matrix out that read the head were zero."""
    gained, cut = (perturbed(build("normformer", 1, 1)) for _ in range(2))
    x, memory = draw(TARGET), draw(SOURCE)
    whole = ours(gained, "decoder", x, memory)
    for model in (gained, cut):
        model.decoder.blocks[0].attn.inside.gain.fill_(1.0)
    gained.decoder.blocks[0].attn.inside.gain[head] = 0.0
    width = DIM // HEADS
    cut.decoder.blocks[0].attn.out.weight[:, head * width : (head + 1) * width] = 0.0
    without = ours(gained, "decoder", x, memory)
    close(without, ours(cut, "decoder", x, memory))
    assert not torch.allclose(without, whole, atol=1e-3)


def test_normformer_has_its_extra_norms_after_attention_and_after_the_activation() -> None:
    block = build("normformer", 1, 1).decoder.blocks[0]
    widths = {
        name: tuple(module.normalized_shape)
        for name, module in block.named_modules()
        if isinstance(module, nn.LayerNorm)
    }
    assert widths == {
        "attn_residual.norm": (DIM,),
        "attn_residual.branch_norm": (DIM,),
        "cross_residual.norm": (DIM,),
        "ffn_residual.norm": (DIM,),
        "ffn.inside": (FFN,),
    }
    assert block.attn.inside.gain.tolist() == [1.0] * HEADS
    assert isinstance(block.cross.inside, nn.Identity)


def test_sub_ln_has_its_extra_norms_in_self_attention_and_ffn_alone() -> None:
    block = build("sub_ln", 1, 1).decoder.blocks[0]
    assert block.attn.inside.normalized_shape == (DIM,)
    assert block.ffn.inside.normalized_shape == (FFN,)
    assert isinstance(block.cross.inside, nn.Identity)


def without_eps(model: Transformer) -> Transformer:
    for norm in model.modules():
        if isinstance(norm, nn.LayerNorm):
            norm.eps = 0.0
    return model


@torch.no_grad()
def grown(name: str, *parts: str) -> float:
    """How much an encoder's output changes when these matrices, with their biases, grow threefold."""
    model = without_eps(perturbed(build(name, 3, 0)))
    before = ours(model, "encoder", draw(SOURCE))
    for key, parameter in model.encoder.named_parameters():
        if any(f".{part}." in key for part in parts):
            parameter *= 3
    return float((ours(model, "encoder", draw(SOURCE)) - before).abs().max())


@pytest.mark.parametrize(
    ("name", "hidden", "seen"),
    [
        ("sandwich_ln", ["attn.out", "ffn.contract"], ["ffn.expand"]),
        ("peri_ln", ["attn.out", "ffn.contract"], ["ffn.expand"]),
        ("normformer", ["attn.out", "ffn.expand"], ["ffn.contract"]),
        ("sub_ln", ["ffn.expand"], ["attn.out", "ffn.contract"]),
        ("pre_ln", [], ["attn.out", "ffn.expand", "ffn.contract"]),
    ],
)
def test_what_is_normalised_may_grow_unseen(name: str, hidden: list[str], seen: list[str]) -> None:
    """relu(3x) = 3·relu(x), and a norm takes the 3 away: exactly where ε = 0."""
    assert grown(name, *hidden) < 1e-9
    for part in seen:
        assert grown(name, part) > 0.01


@torch.no_grad()
def test_only_peri_ln_does_not_see_how_large_the_embeddings_are() -> None:
    for name, sees in (("peri_ln", False), ("sandwich_ln", True), ("pre_ln", True)):
        model = without_eps(perturbed(build(name, 3, 0)))
        changed = ours(model, "encoder", 5 * draw(SOURCE)) - ours(model, "encoder", draw(SOURCE))
        assert (float(changed.abs().max()) > 0.01) == sees
        assert isinstance(model.encoder.opens, nn.Identity if sees else nn.LayerNorm)


# Site


@pytest.mark.parametrize(
    ("stack", "encoder", "decoder", "architecture", "kinds", "connections"),
    [
        ("encoder", 3, 2, "encoder-decoder", ("self", "ffn"), 6),
        ("decoder", 3, 2, "encoder-decoder", ("self", "cross", "ffn"), 6),
        ("decoder", 1, 4, "encoder-decoder", ("self", "cross", "ffn"), 12),
        ("encoder", 5, 0, "encoder-only", ("self", "ffn"), 10),
        ("decoder", 0, 4, "decoder-only", ("self", "ffn"), 8),
    ],
)
def test_a_site_knows_its_layer_and_its_sublayer(
    stack: Any, encoder: int, decoder: int, architecture: str, kinds: tuple[str, ...], connections: int
) -> None:
    layers = encoder if stack == "encoder" else decoder
    sites = [Site(8, stack, index, encoder, decoder) for index in range(connections)]
    assert {(s.architecture, s.kinds, s.connections, s.layers) for s in sites} == {
        (architecture, kinds, connections, layers)
    }
    assert [(s.layer, s.kind) for s in sites] == [(layer, kind) for layer in range(1, layers + 1) for kind in kinds]
    model = build("pre_ln", encoder, decoder)
    of_model = [joined.site for joined in getattr(model, stack).connections()]
    assert [(s.layer, s.kind, s.index) for s in of_model] == [(s.layer, s.kind, s.index) for s in sites]


@pytest.mark.parametrize(("name", "kind"), [("layer_norm", nn.LayerNorm), ("rms_norm", nn.RMSNorm)])
def test_a_sites_norm_has_the_streams_width_unless_told_another(name: Any, kind: type[nn.Module]) -> None:
    site = Site(8, encoder_layers=1, norm_name=name)
    assert all(isinstance(norm, kind) for norm in (site.norm(), site.norm(24)))
    assert (site.norm().normalized_shape, site.norm(24).normalized_shape) == ((8,), (24,))
    x = 1e-3 * torch.randn(2, 8, generator=torch.manual_seed(0))  # so small that ε matters
    close(site.norm()(x), ln(kind(8, eps=1e-5), x))
