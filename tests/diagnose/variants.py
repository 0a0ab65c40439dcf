"""Layers written by hand, right and wrong, each with the one fault that is to be found in it (`WRONG`, `RIGHT`).

`held`: written down before the rule that finds it was, and not looked at while it was made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from handwritten import DIM, IDS, Block, Built, Style, Toy
from torch import Tensor, nn
from zoo import Arch

Forward = Callable[[Arch, Tensor], Tensor]


@dataclass(frozen=True)
class Variant:
    build: Callable[[], Built]
    fault: str = ""
    held: bool = False


VARIANTS: dict[str, Variant] = {}


def build(forward: Forward, closes: bool = True, change: Callable[[Arch], Any] = lambda m: None) -> Built:
    model = Arch(forward, closes, layers=3)
    change(model)
    return model, lambda: model(IDS)


def variant(fault: str = "", held: bool = False, closes: bool = True, change: Any = lambda m: None) -> Any:
    def decorate(forward: Forward) -> Forward:
        name = forward.__name__
        assert name not in VARIANTS
        VARIANTS[name] = Variant(lambda: build(forward, closes, change), fault, held)
        return forward

    return decorate


def plain(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = x + a(n[0](x))
        x = x + f(n[1](x))
    return x


def plain_post(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = n[0](x + a(x))
        x = n[1](x + f(x))
    return x


def with_norms(name: str, make: Callable[[], nn.Module], fault: str, held: bool = False, post: bool = False) -> None:
    """All norms of a plain model are of another kind."""

    def change(m: Arch) -> None:
        m.n = nn.ModuleList(nn.ModuleList(make() for _ in range(2)) for _ in m.a)
        m.final = make()

    forward = plain_post if post else plain
    VARIANTS[name] = Variant(lambda: build(forward, not post, change), fault, held)


def with_weights(
    name: str, change: Callable[[Block, float], Any], fault: str, held: bool = False, **style: Any
) -> None:
    """A right DeepNorm model whose weights are drawn otherwise."""

    def made() -> Built:
        model = Toy(Style("deepnorm", **({"layers": 4} | style)))
        beta = model.style.constants[1]
        with torch.no_grad():
            for block in (m for m in model.modules() if isinstance(m, Block)):
                change(block, beta)
        return model, lambda: model(IDS)

    VARIANTS[name] = Variant(made, fault, held)


# --- Norms over the wrong axis ----------------------------------------------------------------------------------------

TOKENS = IDS.shape[1]


class OverTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class Written(nn.Module):
    """x over its root mean square along some axes."""

    def __init__(self, dims: tuple[int, ...], centred: bool = False, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.dims, self.centred, self.epsilon, self.g = dims, centred, epsilon, nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(self.dims, keepdim=True) if self.centred else x
        return x * torch.rsqrt(x.pow(2).mean(self.dims, keepdim=True) + self.epsilon) * self.g


class Unit(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=self.dim) * DIM**0.5


class Instance(nn.Module):
    """Over the tokens of each feature, as for pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(DIM, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


with_norms("norm of tokens", OverTokens, "norm_axis")
with_norms("norm of tokens and features", lambda: nn.LayerNorm((TOKENS, DIM)), "norm_axis")
with_norms("rms of tokens", lambda: Written((1,)), "norm_axis")
with_norms("normalize over tokens, post", lambda: Unit(1), "norm_axis", held=True, post=True)
with_norms("rms of everything", lambda: Written((0, 1, 2)), "norm_axis", held=True)
with_norms("centred norm of two axes, post", lambda: Written((1, 2), True), "norm_axis", held=True, post=True)
with_norms("instance norm", Instance, "norm_axis", held=True)


@variant("norm_axis")
def layer_norm_function_of_two_axes(m: Arch, x: Tensor) -> Tensor:
    for a, f, _, _, _, _ in m.each():
        x = x + a(F.layer_norm(x, x.shape[1:]))
        x = x + f(F.layer_norm(x, x.shape[1:]))
    return x


@variant("norm_axis", held=True)
def rms_over_tokens_written_in_the_block(m: Arch, x: Tensor) -> Tensor:
    for a, f, _, _, _, _ in m.each():
        x = x + a(x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt())
        x = x + f(x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt())
    return x


# --- ε far too large --------------------------------------------------------------------------------------------------


class ByDeviation(nn.Module):
    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.epsilon)


with_norms("epsilon of 1", lambda: nn.LayerNorm(DIM, eps=1.0), "norm_epsilon")
with_norms("epsilon of a tenth, post", lambda: nn.LayerNorm(DIM, eps=0.1), "norm_epsilon", post=True)
with_norms("rms with epsilon of 10", lambda: nn.RMSNorm(DIM, eps=10.0), "norm_epsilon", held=True)
with_norms("written out with epsilon of a half", lambda: Written((-1,), epsilon=0.5), "norm_epsilon", held=True)
with_norms("beside the deviation", lambda: ByDeviation(0.5), "norm_epsilon", held=True, post=True)


@variant("norm_epsilon")
def epsilon_of_the_function(m: Arch, x: Tensor) -> Tensor:
    for a, f, _, _, _, _ in m.each():
        x = x + a(F.layer_norm(x, (DIM,), eps=0.3))
        x = x + f(F.layer_norm(x, (DIM,), None, None, 0.3))
    return x


@variant("norm_epsilon", held=True)
def epsilon_of_a_norm_in_the_block(m: Arch, x: Tensor) -> Tensor:
    for a, f, _, _, _, _ in m.each():
        x = x + a(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.2))
        x = x + f(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.2))
    return x


# --- α behind the norm ------------------------------------------------------------------------------------------------

ALPHA = 6**0.25


@variant("alpha_after_norm", closes=False)
def alpha_times_the_norm(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = ALPHA * n[0](x + a(x))
        x = ALPHA * n[1](x + f(x))
    return x


@variant("alpha_after_norm", held=True, closes=False)
def alpha_before_the_next_sublayer(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = x.mul(ALPHA)
        x = n[0](x + a(x)) * torch.tensor(ALPHA)
        x = n[1](x + f(x))
    return x


@variant("alpha_after_norm", held=True, closes=False)
def alpha_after_the_norm_of_the_feed_forward(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = n[0](x + a(x))
        x = n[1](f(x).add(x)) / (1 / 2.2)
    return x


# --- β of DeepNorm on the wrong matrices ------------------------------------------------------------------------------


def scale_queries(block: Block, beta: float) -> None:
    for m in (block.attend.q, block.attend.k):
        m.weight *= beta


def plain_values(block: Block, beta: float) -> None:
    block.attend.v.weight /= beta


def packed(parts: tuple[bool, bool, bool]) -> Callable[[Block, float], None]:
    def change(block: Block, beta: float) -> None:
        for rows, scaled in zip(block.attend.mha.in_proj_weight.chunk(3), parts, strict=True):
            nn.init.xavier_normal_(rows, beta if scaled else 1.0)

    return change


def swapped(block: Block, beta: float) -> None:
    scale_queries(block, beta)
    plain_values(block, beta)


with_weights("beta on q and k", scale_queries, "beta_on_queries")
with_weights("beta on q, k and v in one matrix", packed((True, True, True)), "beta_on_queries", attention="mha")
with_weights("beta on k alone", lambda b, beta: b.attend.k.weight.mul_(beta), "beta_on_queries", True, attention="bmm")
with_weights(
    "beta on q and k, softmax", scale_queries, "beta_on_queries", True, attention="softmax", decoder=True, norm="RMS"
)
with_weights("beta missing on v", plain_values, "beta_missing", attention="softmax")
with_weights("beta missing on v in one matrix", packed((False, False, False)), "beta_missing", True, attention="mha")
with_weights("beta missing on v, bmm", plain_values, "beta_missing", True, attention="bmm")

# --- Residual connections left out at the ends ------------------------------------------------------------------------


@variant("residual_missing")
def first_attention_not_added(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, i in m.each():
        x = x + a(n[0](x)) if i else a(n[0](x))
        x = x + f(n[1](x))
    return x


@variant("residual_missing")
def last_feed_forward_not_added(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, i in m.each():
        x = x + a(n[0](x))
        x = x + f(n[1](x)) if i < 2 else f(n[1](x))
    return x


@variant("residual_missing", closes=False)
def first_attention_not_added_post(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, i in m.each():
        x = n[0](x + a(x)) if i else n[0](a(x))
        x = n[1](x + f(x))
    return x


@variant("residual_missing", held=True, closes=False)
def last_feed_forward_not_added_post(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, i in m.each():
        x = n[0](x + a(x))
        x = n[1](f(x) if i == 2 else f(x) + x)
    return x


@variant("residual_missing", held=True)
def whole_first_layer_not_added(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, i in m.each():
        x = a(n[0](x)) + (x if i else 0)
        x = f(n[1](x)) + (x if i else 0)
    return x


@variant("residual_missing", held=True)
def whole_last_layer_not_added(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, i in m.each():
        if i == 2:
            return f(n[1](a(n[0](x))))
        x = x + a(n[0](x))
        x = x + f(n[1](x))
    return x


# --- Norms left out of one kind of sublayer ---------------------------------------------------------------------------


@variant("norm_missing")
def attentions_without_norms(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = x + a(x)
        x = x + f(n[1](x))
    return x


@variant("norm_missing", closes=False)
def attentions_without_norms_post(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = x + a(x)
        x = n[1](x + f(x))
    return x


@variant("norm_missing", held=True)
def feed_forwards_without_norms(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = x + F.dropout(a(n[0](x)), 0.1)
        x = x + F.dropout(f(x), 0.1)
    return x


@variant("norm_missing", held=True)
def attentions_without_norms_and_twice_a_feed_forward(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, down, _ in m.each():
        x = x + 0.5 * down[0](F.gelu(down[1](n[2](x))))
        x = x + a(x)
        x = x + f(n[1](x))
    return x


# --- Where gradients or values are lost -------------------------------------------------------------------------------


@variant("skip_detached")
def skip_copied_without_gradients(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        for j, sub in enumerate((a, f)):
            with torch.no_grad():
                skip = x.clone()
            x = skip + sub(n[j](x))
    return x


@variant("skip_detached", closes=False)
def skip_scaled_without_gradients(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        for j, sub in enumerate((a, f)):
            with torch.no_grad():
                skip = x * 1.0
            x = n[j](skip + sub(x))
    return x


@variant("skip_detached", held=True)
def skip_in_another_type_without_gradients(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        for j, sub in enumerate((a, f)):
            y = sub(n[j](x))
            with torch.set_grad_enabled(False):
                kept = x.double().float().contiguous()
            x = y + kept
    return x


@torch.no_grad()
def kept_outside(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).view(x.shape).clone()


@variant("skip_detached", held=True)
def skip_by_a_decorated_function(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = kept_outside(x) + a(n[0](x))
        x = kept_outside(x) + f(n[1](x))
    return x


@variant("branch_detached")
def branch_detached(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = x + a(n[0](x)).detach()
        x = x + f(n[1](x)).detach()
    return x


@variant("branch_detached")
def attention_without_gradients(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        with torch.no_grad():
            y = a(n[0](x))
        x = x + y
        x = x + f(n[1](x))
    return x


@variant("branch_detached", held=True, closes=False)
def branch_as_data_post(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = n[0](x + a(x))
        x = n[1](x + F.dropout(f(x).data, 0.1))
    return x


@variant("branch_detached", held=True)
def one_feed_forward_without_gradients(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, i in m.each():
        x = x + a(n[0](x))
        with torch.set_grad_enabled(i != 1):
            y = f(n[1](x))
        x = x + y
    return x


@variant("dropout_on_skip")
def dropout_on_the_skip(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = F.dropout(x, 0.1, m.training) + a(n[0](x))
        x = F.dropout(x, 0.1, m.training) + f(n[1](x))
    return x


@variant("dropout_on_skip", closes=False)
def dropout_on_the_skip_post(m: Arch, x: Tensor) -> Tensor:
    drop = nn.Dropout(0.2).train(m.training)
    for a, f, n, _, _, _ in m.each():
        x = n[0](drop(x) + drop(a(x)))
        x = n[1](drop(x) + drop(f(x)))
    return x


@variant("dropout_on_skip", held=True)
def dropout_on_the_skip_of_attention_alone(m: Arch, x: Tensor) -> Tensor:
    drop = nn.Dropout(0.3).train(m.training)
    for a, f, n, _, _, _ in m.each():
        x = a(n[0](x)) + drop(x)
        x = f(n[1](x)) + x
    return x


@variant("dropout_on_skip", held=True)
def dropout_on_the_skip_that_is_scaled(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = torch.dropout(x, 0.1, m.training).float() * 1.0 + a(n[0](x))
        x = x + f(n[1](x))
    return x


# --- The wrong skip ---------------------------------------------------------------------------------------------------


@variant("skip_of_layer_input")
def feed_forward_added_to_the_layers_input(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        y = x + a(n[0](x))
        x = x + f(n[1](y))
    return x


@variant("skip_of_layer_input", closes=False)
def feed_forward_added_to_the_layers_input_post(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        y = n[0](x + a(x))
        x = n[1](x + f(y))
    return x


@variant("skip_of_layer_input", held=True)
def residual_variable_never_updated(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        residual = x
        x = n[0](x)
        x = residual + F.dropout(a(x), 0.1)
        x = n[1](x)
        x = F.dropout(f(x), 0.1) + residual
    return x


@variant("skip_of_layer_input", held=True)
def layers_input_in_one_layer_alone(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, i in m.each():
        y = x + a(n[0](x))
        x = (x if i == 1 else y) + f(n[1](y))
    return x


@variant("skip_twice")
def sublayer_that_adds_too(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        y = n[0](x)
        x = x + (x + a(y))
        y = n[1](x)
        x = x + (x + f(y))
    return x


@variant("skip_twice", closes=False)
def skip_twice_post(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = n[0](x + a(x) + x)
        x = n[1](x + f(x) + x)
    return x


@variant("skip_twice", held=True)
def twice_the_skip_and_then_the_branch(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = (x + x) + a(n[0](x))
        x = (x + x) + f(n[1](x))
    return x


@variant("skip_twice", held=True)
def attention_alone_adds_too(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = (a(n[0](x)) + x).add(x)
        x = x + f(n[1](x))
    return x


# --- The embedding ----------------------------------------------------------------------------------------------------


def waves(length: int) -> Tensor:
    at = torch.arange(length)[:, None] * torch.exp(torch.arange(0, DIM, 2) * (-math.log(1e4) / DIM))
    return torch.stack([at.sin(), at.cos()], -1).flatten(1)


def small_embedding(m: Arch) -> None:
    nn.init.normal_(m.embed.weight, std=0.02)


def xavier_embedding(m: Arch) -> None:
    nn.init.normal_(m.embed.weight, std=DIM**-0.5)


@variant("embedding_scale_missing", change=xavier_embedding)
def waves_without_the_root(m: Arch, x: Tensor) -> Tensor:
    return plain(m, x + waves(x.shape[1]))


@variant("embedding_scale_missing", closes=False, change=small_embedding)
def waves_on_a_small_embedding_post(m: Arch, x: Tensor) -> Tensor:
    return plain_post(m, F.dropout(x + waves(x.shape[1])[None], 0.1, m.training))


@variant("embedding_scale_missing", held=True, change=xavier_embedding)
def waves_first(m: Arch, x: Tensor) -> Tensor:
    positions = waves(64)
    return plain(m, positions[: x.shape[1]] + x)


@variant("embedding_scale_missing", held=True, change=small_embedding)
def waves_and_a_norm(m: Arch, x: Tensor) -> Tensor:
    return plain(m, m.n[0][5](x + waves(64)[: x.shape[1]].unsqueeze(0).expand(x.shape[0], -1, -1)))


# --- Right ------------------------------------------------------------------------------------------------------------

with_norms("epsilon as in Keras", lambda: nn.LayerNorm(DIM, eps=1e-3), "")
with_norms("epsilon of BERT, post", lambda: nn.LayerNorm(DIM, eps=1e-12), "", post=True)
with_norms("written out", lambda: Written((-1,), True), "")
with_norms("unit length", lambda: Unit(-1), "", held=True)
with_norms("groups of one", lambda: nn.LayerNorm((DIM,), elementwise_affine=False), "", held=True)
with_weights("beta as it should be, softmax", lambda b, beta: None, "", attention="softmax")
with_weights("beta as it should be, packed", lambda b, beta: None, "", attention="mha")
with_weights("beta as it should be, bmm and a decoder", lambda b, beta: None, "", True, attention="bmm", decoder=True)


@variant(change=xavier_embedding)
def waves_with_the_root(m: Arch, x: Tensor) -> Tensor:
    return plain(m, x * DIM**0.5 + waves(x.shape[1]))


@variant()
def waves_on_an_embedding_of_1(m: Arch, x: Tensor) -> Tensor:
    return plain(m, x + waves(x.shape[1]))


@variant(held=True, change=small_embedding)
def small_waves_on_a_small_embedding(m: Arch, x: Tensor) -> Tensor:
    return plain(m, x + 0.02 * waves(x.shape[1]))


@variant()
def dropout_of_the_embedding_and_the_branches(m: Arch, x: Tensor) -> Tensor:
    x = F.dropout(x, 0.1, m.training)
    for a, f, n, _, _, _ in m.each():
        x = x + F.dropout(a(n[0](x)), 0.1, m.training)
        x = x + F.dropout(f(n[1](x)), 0.1, m.training)
    return x


@variant(held=True, closes=False)
def dropout_behind_every_norm(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = F.dropout(n[0](x + a(x)), 0.1, m.training)
        x = F.dropout(n[1](x + f(x)), 0.1, m.training)
    return x


@variant(held=True)
def dropout_of_nothing_on_the_skip(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = F.dropout(x, 0.0, m.training) + a(n[0](x))
        x = x + f(n[1](x))
    return x


@variant()
def one_layer_of_the_branch_frozen(m: Arch, x: Tensor) -> Tensor:
    m.a[1].requires_grad_(False)
    return plain(m, x)


@variant(held=True)
def lower_layers_without_gradients(m: Arch, x: Tensor) -> Tensor:
    """As when a model is frozen up to a layer."""
    for a, f, n, _, _, i in m.each():
        with torch.set_grad_enabled(i > 0):
            x = x + a(n[0](x))
            x = x + f(n[1](x))
    return x


@variant(held=True)
def keys_detached(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        y = n[0](x)
        x = x + a(y, y.detach())
        x = x + f(n[1](x))
    return x


@variant()
def attention_written_into_the_sum(m: Arch, x: Tensor) -> Tensor:
    """x + a + f(norm(x + a)), in an order in which the sum is made twice."""
    for a, f, n, _, _, _ in m.each():
        y = a(n[0](x))
        x = x + (y + f(n[1](x + y)))
    return x


@variant(held=True)
def residual_over_a_group_of_layers(m: Arch, x: Tensor) -> Tensor:
    """As in SwinIR: layers with residual connections, and one around them all."""
    start = x
    for a, f, n, _, _, _ in m.each():
        x = x + a(n[0](x))
        x = x + f(n[1](x))
    return start + m.down[0][0](x)


@variant()
def head_of_two_matrices(m: Arch, x: Tensor) -> Tensor:
    x = m.final(plain(m, x))
    return m.down[0][1](F.gelu(m.down[0][0](x)))


@variant(held=True)
def input_projected_by_a_feed_forward(m: Arch, x: Tensor) -> Tensor:
    return plain(m, m.down[0][1](F.gelu(m.down[0][0](x))))


@variant(held=True)
def query_and_key_norms(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        y = n[0](x)
        q, k, v = (
            F.layer_norm(t.unflatten(-1, (4, -1)), (DIM // 4,)).transpose(1, 2) for t in (a.q(y), a.k(y), a.v(y))
        )
        x = x + a.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + f(n[1](x))
    return x


@variant(held=True)
def time_first(m: Arch, x: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    for a, f, n, _, _, _ in m.each():
        x = x + a(n[0](x).transpose(0, 1)).transpose(0, 1)
        x = x + f(n[1](x))
    return x.transpose(0, 1)


@variant(held=True)
def stream_halved_now_and_then(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, _, _ in m.each():
        x = 0.5 * (x + a(n[0](x)))
        x = 0.5 * (x + f(n[1](x)))
    return x


@variant(held=True)
def macaron_by_hand(m: Arch, x: Tensor) -> Tensor:
    for a, f, n, _, down, _ in m.each():
        x = x + 0.5 * down[0](F.gelu(down[1](n[2](x))))
        x = x + a(n[0](x))
        x = x + 0.5 * f(n[1](x))
    return x


@variant(held=True)
def positional_convolution(m: Arch, x: Tensor) -> Tensor:
    kernel = m.down[2][0].weight.reshape(DIM, DIM, 1).expand(-1, -1, 3)
    x = x + F.gelu(F.conv1d(x.transpose(1, 2), kernel, padding=1)).transpose(1, 2)
    return plain(m, m.n[0][5](x))


@variant()
def mixing_by_fourier(m: Arch, x: Tensor) -> Tensor:
    for _, f, n, _, _, _ in m.each():
        x = n[0](x + torch.fft.fft2(x).real)
        x = n[1](x + f(x))
    return m.down[0][0](x)
