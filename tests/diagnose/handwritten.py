"""A Transformer block in every style there is (`Toy`), its mistakes, and what is to be found of it.

`drawn` and `drawn_wrong` draw a style at random, with the answer known.
"""

from __future__ import annotations

import functools
import math
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from leadline.diagnose.connection import Connection
from leadline.diagnose.faults import Finding, findings
from leadline.diagnose.structure import connections
from leadline.diagnose.theory import deepnet_constants
from leadline.diagnose.trace import sizes, trace

Built = tuple[nn.Module, Callable[[], Any]]  # a model and how to run it

IDS = torch.randint(5, 50, (2, 7), generator=torch.Generator().manual_seed(1))
LETTERS = {"attention": "A", "cross-attention": "C", "feed-forward": "F"}


@dataclass(frozen=True)
class Stack:
    """What is found of one stack, in short."""

    layout: str  # one letter a connection: attention, cross-attention, feed-forward
    placement: str
    final: int = 0  # norms that close it
    name: str = ""
    alpha: float = 1.0
    branch: float = 1.0
    closed: bool = True


def stacks_of(found: Sequence[Connection], names: bool = True) -> list[Stack]:
    """Also checks what holds of every chain: it starts anew, is linked one by one, and its last one is the last."""
    result = []
    for stack in dict.fromkeys(c.stack for c in found):
        members = [c for c in found if c.stack == stack]
        assert [c.previous for c in members] == [-1] + [c.position for c in members[:-1]]
        assert [c.last for c in members] == [False] * (len(members) - 1) + [True]
        alpha, branch = (one({round(x, 3) for x in scales}) for scales in zip(*map(scales_of, members), strict=True))
        layout = "".join(LETTERS[c.sublayer] for c in members)
        placement, last = "/".join(dict.fromkeys(c.placement for c in members)), members[-1]
        result.append(Stack(layout, placement, last.final, stack if names else "", alpha, branch, last.closed))
    return result


def scales_of(c: Connection) -> tuple[float, float]:
    return c.skip_scale, c.branch_scale


def one(values: set[float]) -> float:
    return values.pop() if len(values) == 1 else math.nan


def found_in(model: nn.Module, run: Callable[[], Any]) -> tuple[list[Connection], list[Finding]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph, _ = trace(model, run)
    found = connections(graph)
    return found, findings(found, sizes(model))


# --- One block in every style -----------------------------------------------------------------------------------------

DIM, HEADS = 32, 4


class RMS(nn.Module):
    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.g


class RMSOnePlus(RMS):
    """As in Gemma: in 32 bits, the gain counted from one."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * wide * (2 * self.g.float() - 1)).to(x.dtype)


class RMSByNorm(RMS):
    def forward(self, x: Tensor) -> Tensor:
        return self.g * (x / (x.norm(dim=-1, keepdim=True) / math.sqrt(x.shape[-1]) + 1e-6))


class ScaleNorm(nn.Module):
    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.tensor(dim**0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.g * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5)


class Annotated(nn.Module):
    """LayerNorm as the annotated Transformer writes it."""

    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.a * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.b


class ByVariance(Annotated):
    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, -1, keepdim=True, correction=0)
        return (x - mean) * torch.rsqrt(variance + 1e-5) * self.a + self.b


class Zebra(nn.Module):
    """No weights, and a name that says nothing."""

    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.width = dim

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.width,))


class Normalize(nn.Module):
    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.root = dim**0.5

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * self.root


NORMS: dict[str, Callable[..., nn.Module]] = {
    "LayerNorm": nn.LayerNorm,
    "LayerNorm without weights": functools.partial(nn.LayerNorm, elementwise_affine=False),
    "nn.RMSNorm": nn.RMSNorm,
    "RMS": RMS,
    "RMS 1+g": RMSOnePlus,
    "RMS by norm": RMSByNorm,
    "ScaleNorm": ScaleNorm,
    "annotated": Annotated,
    "by variance": ByVariance,
    "Zebra": Zebra,
    "normalize": Normalize,
}


class Attention(nn.Module):
    def __init__(self, style: str = "sdpa") -> None:
        super().__init__()
        self.style = style
        if style in ("mha", "mha weights"):
            self.mha = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        elif style == "einsum":
            self.qkv = nn.Parameter(torch.empty(3, DIM, HEADS, DIM // HEADS).normal_(std=DIM**-0.5))
            self.back = nn.Parameter(torch.empty(HEADS, DIM // HEADS, DIM).normal_(std=DIM**-0.5))
        else:
            self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        flat = x.ndim == 2
        if flat:
            x, memory = x.unsqueeze(0), None if memory is None else memory.unsqueeze(0)
        y = self.attend(x, x if memory is None else memory)
        return y.squeeze(0) if flat else y

    def attend(self, x: Tensor, m: Tensor) -> Tensor:
        if self.style.startswith("mha"):
            return self.mha(x, m, m, need_weights=self.style == "mha weights")[0]
        if self.style == "einsum":
            q, k, v = (torch.einsum("btd,dhk->bthk", t, w) for t, w in zip((x, m, m), self.qkv, strict=True))
            weights = torch.einsum("bthk,bshk->bhts", q, k).mul((DIM // HEADS) ** -0.5).softmax(-1)
            return torch.einsum("bthk,hkd->btd", torch.einsum("bhts,bshk->bthk", weights, v), self.back)
        if self.style == "x @ w.T":
            q, k, v = x @ self.q.weight.T, m @ self.k.weight.T, m @ self.v.weight.T
        else:
            q, k, v = self.q(x), self.k(m), self.v(m)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
        scale = (DIM // HEADS) ** -0.5
        if self.style == "softmax":
            y = torch.softmax(q @ k.transpose(-2, -1) * scale, -1) @ v
        elif self.style == "bmm":
            a, b, c = (t.flatten(0, 1) for t in (q, k, v))
            y = torch.bmm(F.softmax(torch.bmm(a, b.transpose(1, 2)), dim=-1), c).unflatten(0, q.shape[:2])
        elif self.style == "heads one by one":
            y = torch.stack([(q[:, i] @ k[:, i].mT).softmax(-1) @ v[:, i] for i in range(HEADS)], 1)
        elif self.style == "x @ w.T":
            y = F.softmax(q @ k.mT * scale, -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        y = y.transpose(1, 2).flatten(2)
        return y @ self.o.weight.T + self.o.bias if self.style == "x @ w.T" else self.o(y)


ATTENTIONS = ("sdpa", "softmax", "einsum", "bmm", "heads one by one", "mha", "mha weights", "x @ w.T")


class FeedForward(nn.Module):
    def __init__(self, style: str) -> None:
        super().__init__()
        self.style = style
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        if self.style == "x @ w.T":
            return F.relu(x @ self.up.weight.T + self.up.bias) @ self.down.weight.T + self.down.bias
        return self.down(F.relu(self.up(x)))


def _plus_equals(x: Tensor, y: Tensor) -> Tensor:
    x = x.clone()
    x += y
    return x


ADDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "x + y": lambda x, y: x + y,
    "y + x": lambda x, y: y + x,
    "x += y": _plus_equals,
    "x.add_(y)": lambda x, y: x.clone().add_(y),
    "y.add_(x)": lambda x, y: y.add_(x),
    "torch.add": lambda x, y: torch.add(x, y),
    "torch.add alpha": lambda x, y: torch.add(x, y, alpha=1),
    "sum": lambda x, y: sum([x, y]),  # type: ignore[return-value, arg-type]
    "view_as": lambda x, y: x + y.flatten().view_as(x),
    "type_as": lambda x, y: x + y.double().type_as(x),
    "masked": lambda x, y: (x + y).masked_fill(torch.zeros((*x.shape[:-1], 1), dtype=torch.bool), 0.0),
    "mask multiplied": lambda x, y: (x + y) * torch.ones((*x.shape[:-1], 1)),
    "where": lambda x, y: torch.where(torch.ones((*x.shape[:-1], 1), dtype=torch.bool), x + y, x),
}

SCALES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "a * x": lambda x, a: a * x,
    "x * a": lambda x, a: x * a,
    "x.mul(a)": lambda x, a: x.mul(a),
    "x / (1/a)": lambda x, a: x / (1 / a),
    "tensor": lambda x, a: x * torch.tensor(a),
    "numpy": lambda x, a: x * np.float32(a),  # type: ignore[operator]
    "torch.mul": lambda x, a: torch.mul(x, a),
}


class DropPath(nn.Module):
    """Stochastic depth, as timm, Swin and others write it."""

    def __init__(self, style: str, rate: float = 0.3) -> None:
        super().__init__()
        self.style, self.keep = style, 1 - rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        if self.style == "path timm":
            return x * x.new_empty(shape).bernoulli_(self.keep).div_(self.keep)
        if self.style == "path swin":
            return x.div(self.keep) * (self.keep + torch.rand(shape)).floor_()
        return x * (torch.rand_like(x[..., :1]) < self.keep) / self.keep


DROPOUTS = ("none", "module", "function", "path timm", "path swin", "path like")
WRAPPERS = (
    "list", "sequential", "tuple", "dict", "function", "checkpoint", "checkpoint reentrant", "layers in a layer",
)  # fmt: skip
PLACEMENTS = {
    "post": "Post-LN",
    "pre": "Pre-LN",
    "sandwich": "Sandwich-LN",
    "branch": "branch-norm",
    "deepnorm": "DeepNorm",
}


@dataclass(frozen=True)
class Style:
    """How a model is written. `fault`: what is wrong with it, one of `MISTAKES`."""

    placement: str = "pre"
    norm: str = "LayerNorm"
    inline: bool = False  # the norm is written out in the block
    attention: str = "sdpa"
    add: str = "x + y"
    scale: str = "a * x"
    dropout: str = "none"
    wrapper: str = "list"
    layers: int = 3
    flat: bool = False  # a stream of [tokens, dim]
    decoder: bool = False  # with an encoder before it
    fault: str = ""

    @property
    def closes(self) -> bool:
        return self.placement not in ("post", "deepnorm") and self.fault != "final_norm_missing"

    @property
    def constants(self) -> tuple[float, float]:
        """α and β of this stack, or of its encoder where it is called so."""
        return self.constants_of("decoder" if self.decoder else "encoder")

    def constants_of(self, stack: str) -> tuple[float, float]:
        found = deepnet_constants(self.layers, self.layers if self.decoder else 0)
        return found[f"{stack}_alpha"], found[f"{stack}_beta"]


class Block(nn.Module):
    def __init__(self, style: Style, layer: int, crosses: bool, alpha: float) -> None:
        super().__init__()
        self.style, self.layer, self.alpha, self.crosses = style, layer, alpha, crosses
        self.attend, self.feed = Attention(style.attention), FeedForward(style.attention)
        self.cross = Attention(style.attention) if crosses else None
        norms = {f"{s}{i}": NORMS[style.norm](DIM) for s in "acf" for i in (1, 2, 3) if crosses or s != "c"}
        if style.fault == "norm_shared":
            norms["f1"] = norms["a1"]
        self.norms = nn.ModuleDict(norms)
        self.drop = DropPath(style.dropout) if style.dropout.startswith("path") else nn.Dropout(0.1)

    def norm(self, key: str, x: Tensor) -> Tensor:
        module = self.norms[key]
        return module.forward(x) if self.style.inline else module(x)

    def dropped(self, y: Tensor) -> Tensor:
        if self.style.dropout == "none":
            return y
        return F.dropout(y, 0.1, self.training) if self.style.dropout == "function" else self.drop(y)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Any:
        x = self.connect("a", x, self.attend)
        if self.cross is not None:
            x = self.connect("c", x, lambda y: self.cross(y, memory))  # type: ignore[misc]
        x = self.connect("f", x, self.feed)
        return {"tuple": (x, None), "dict": {"hidden": {"states": x}}}.get(self.style.wrapper, x)

    def connect(self, s: str, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        style, fault = self.style, self.style.fault
        add, scaled = ADDS[style.add], SCALES[style.scale]
        placement = style.placement
        before = placement in ("pre", "sandwich") and not (fault == "norm_missing" and self.layer == 1 and s == "f")
        y = self.norm(f"{s}1", x) if before else x
        if fault == "norm_twice before":
            y = self.norm(f"{s}3", y)
        elif fault == "norm_twice":
            y = self.norm(f"{s}3", x)
        y = f(y)
        if placement in ("sandwich", "branch"):
            y = self.norm(f"{s}2", y)
        y = self.dropped(y)
        if fault == "alpha_on_branch":
            y = scaled(y, 1.7)
        if fault == f"residual_missing {s}":
            return y if placement == "pre" else self.norm(f"{s}1", y)
        skip = x
        if fault == "norm_on_skip":
            skip = self.norm(f"{s}3", x)
        elif fault == "skip_detached":
            skip = x.detach()
        elif fault == "skip_detached data":
            skip = x.data
        elif fault == "skip_scaled_without_norm":
            skip = scaled(x, 1.3)
        elif placement == "deepnorm":
            skip = scaled(x, self.alpha)
        x = add(skip, y)
        if placement in ("post", "deepnorm") or fault == "norm_twice":
            x = self.norm(f"{s}1", x)
            if fault == "norm_twice after":
                x = self.norm(f"{s}3", x)
        return x


class Layers(nn.Module):
    def __init__(self, style: Style, crosses: bool, alpha: float) -> None:
        super().__init__()
        self.style = style
        blocks = [Block(style, i, crosses, alpha) for i in range(style.layers)]
        if style.fault == "norm_shared between layers":
            for block in blocks[1:]:
                block.norms = blocks[0].norms
        if style.wrapper == "layers in a layer":
            self.blocks: nn.Module = nn.ModuleList([nn.ModuleDict({"inner": b}) for b in blocks])
        else:
            self.blocks = nn.Sequential(*blocks) if style.wrapper == "sequential" else nn.ModuleList(blocks)
        self.final = NORMS[style.norm](DIM) if style.closes else nn.Identity()

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        given = () if memory is None else (memory,)
        wrapper = self.style.wrapper
        if wrapper == "sequential" and not given:
            x = self.blocks(x)
        else:
            for block in self.blocks:  # type: ignore[attr-defined]
                if wrapper == "function":
                    x = block.forward(x, *given)
                elif wrapper.startswith("checkpoint"):
                    x = checkpoint(block, x, *given, use_reentrant=wrapper == "checkpoint reentrant")  # type: ignore[assignment]
                elif wrapper == "layers in a layer":
                    x = block["inner"](x, *given)
                else:
                    x = block(x, *given)
                x = x[0] if wrapper == "tuple" else x["hidden"]["states"] if wrapper == "dict" else x  # type: ignore[index]
        return self.final(x)


class Toy(nn.Module):
    """An encoder, or an encoder and a decoder, written in one style."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style = style
        self.embed = nn.Embedding(50, DIM)
        encoder = Style.constants_of(style, "encoder")[0]
        wrong = 1.5 if style.fault == "deepnorm_constants" else 1.0
        if style.decoder:
            good = replace(style, fault="")  # what is wrong is in the decoder
            self.memory = Layers(good, False, encoder)
        self.layers = Layers(style, style.decoder, style.constants[0] * wrong)
        self.head = nn.Linear(DIM, 50)
        if style.placement == "deepnorm":
            self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Xavier; β on what follows the values and on the feed-forward."""
        fault = self.style.fault
        for stack, side in (("memory", "encoder"), ("layers", "decoder" if self.style.decoder else "encoder")):
            beta = self.style.constants_of(side)[1] if hasattr(self, stack) else 1.0
            for block in (m for m in getattr(self, stack, nn.Module()).modules() if isinstance(m, Block)):
                for name, p in block.named_parameters():
                    if p.ndim != 2:
                        continue
                    scaled = name.split(".")[-2] not in ("q", "k")
                    if name.endswith("in_proj_weight"):
                        for part, gain in zip(p.chunk(3), (1, 1, beta), strict=True):
                            nn.init.xavier_normal_(part, gain)
                    elif fault == "beta_wrong" and scaled:
                        nn.init.xavier_normal_(p, 0.5 * beta)
                    else:
                        nn.init.xavier_normal_(p, beta if scaled and fault != "beta_missing" else 1)
                for name, p in block.named_parameters():
                    if name.endswith("bias") and p.ndim == 1 and "norms" not in name:
                        if fault == "beta_on_biases" and stack == "layers":
                            p *= beta
                        else:
                            p.zero_()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids.flatten() if self.style.flat else ids)
        memory = (self.memory(x),) if self.style.decoder else ()
        return self.head(self.layers(x, *memory))


def toy(style: Style, ids: Tensor = IDS) -> Built:
    model = Toy(style)
    return model, lambda: model(ids)


def expected(style: Style) -> list[Stack]:
    name, final = PLACEMENTS[style.placement], int(style.closes)

    def alpha(stack: str) -> float:
        return round(style.constants_of(stack)[0], 3) if style.placement == "deepnorm" else 1.0

    encoder = Stack("AF" * style.layers, name, final, alpha=alpha("encoder"))
    if not style.decoder:
        return [encoder]
    return [encoder, Stack("ACF" * style.layers, name, final, alpha=alpha("decoder"))]


# --- Mistakes ---------------------------------------------------------------------------------------------------------

# Of `Style.fault`: the fault it is, and the placements it can be made in
MISTAKES: dict[str, tuple[str, tuple[str, ...]]] = {
    "alpha_on_branch": ("alpha_on_branch", ("post", "pre")),
    "skip_scaled_without_norm": ("skip_scaled_without_norm", ("pre", "sandwich", "branch")),
    "norm_twice": ("norm_twice", ("post",)),
    "norm_twice before": ("norm_twice", ("pre",)),
    "norm_twice after": ("norm_twice", ("post", "deepnorm")),
    "final_norm_missing": ("final_norm_missing", ("pre", "sandwich", "branch")),
    "residual_missing a": ("residual_missing", ("post", "pre")),
    "residual_missing f": ("residual_missing", ("post", "pre")),
    "norm_on_skip": ("norm_on_skip", ("pre",)),
    "skip_detached": ("skip_detached", ("post", "pre", "deepnorm", "sandwich")),
    "skip_detached data": ("skip_detached", ("post", "pre")),
    "norm_missing": ("norm_missing", ("pre",)),
    "norm_shared": ("norm_shared", ("post", "pre")),
    "norm_shared between layers": ("norm_shared", ("post", "pre")),
    "deepnorm_constants": ("deepnorm_constants", ("deepnorm",)),
    "beta_missing": ("beta_missing", ("deepnorm",)),
    "beta_wrong": ("beta_wrong", ("deepnorm",)),
    "beta_on_biases": ("beta_on_biases", ("deepnorm",)),
}


def wrong_styles() -> list[Style]:
    """Every mistake in every placement, as an encoder of modules, and as a decoder in another style."""
    plain = [Style(p, fault=m) for m, (_, placements) in MISTAKES.items() for p in placements]
    other = {
        "norm": "RMS", "attention": "softmax", "add": "y + x", "dropout": "module", "wrapper": "function",
        "layers": 4, "scale": "x.mul(a)", "decoder": True,
    }  # fmt: skip
    return plain + [replace(s, **other) for s in plain]  # type: ignore[arg-type]


# --- Styles drawn at random -------------------------------------------------------------------------------------------


def drawn(seed: int) -> Style:
    """A right model in a random style; the same for the same seed."""
    choice = random.Random(seed).choice
    placement = choice(list(PLACEMENTS))
    attention = choice(ATTENTIONS if placement != "deepnorm" else ATTENTIONS[:2] + ATTENTIONS[3:5])
    norm = choice(list(NORMS))
    return Style(
        placement=placement,
        norm=norm,
        inline=choice([False, False, True]),
        attention=attention,
        add=choice(list(ADDS)),
        scale=choice(list(SCALES)),
        dropout=choice(DROPOUTS),
        wrapper=choice(WRAPPERS),
        layers=choice([1, 2, 3, 5]),
        flat=choice([False, False, True]),
        decoder=choice([False, True]),
    )


def drawn_wrong(seed: int) -> Style:
    draw = random.Random(seed)
    mistake = draw.choice(list(MISTAKES))
    style = replace(drawn(seed), placement=draw.choice(MISTAKES[mistake][1]), layers=draw.choice([3, 4]), fault=mistake)
    if mistake.startswith("norm_shared"):  # only a gain can be seen to be shared
        style = replace(style, norm=draw.choice(["LayerNorm", "RMS", "nn.RMSNorm"]), inline=False)
    if style.placement == "deepnorm":
        style = replace(style, attention=draw.choice(["sdpa", "softmax", "bmm"]))
    return style


# --- What a model may be besides --------------------------------------------------------------------------------------


def modes() -> dict[str, Callable[[Toy], Callable[[], Any]]]:
    def within(context: Callable[[], Any]) -> Callable[[Toy], Callable[[], Any]]:
        def build(model: Toy) -> Callable[[], Any]:
            def run() -> Any:
                with context():
                    return model(IDS)

            return run

        return build

    def changed(change: Callable[[Toy], Any]) -> Callable[[Toy], Callable[[], Any]]:
        def build(model: Toy) -> Callable[[], Any]:
            change(model)
            return lambda: model(IDS)

        return build

    def tied(model: Toy) -> None:
        model.head.weight = model.embed.weight

    def zeroed(model: Toy) -> None:
        for block in model.layers.blocks:  # type: ignore[attr-defined]
            nn.init.zeros_(block.attend.o.weight)
            nn.init.zeros_(block.feed.down.weight)
            nn.init.zeros_(block.feed.down.bias)

    def gains(model: Toy) -> None:
        for p in model.layers.parameters():
            if p.ndim == 1:
                nn.init.zeros_(p)

    def parametrised(model: Toy) -> None:
        for block in model.layers.blocks:  # type: ignore[attr-defined]
            nn.utils.parametrizations.weight_norm(block.feed.down)
            nn.utils.parametrizations.spectral_norm(block.attend.o)

    def backward(model: Toy) -> Callable[[], Any]:
        def run() -> Any:
            loss = F.cross_entropy(model(IDS).flatten(0, 1), IDS.flatten())
            if loss.requires_grad:
                loss.backward()
            return loss

        return run

    def branching(model: Toy) -> Callable[[], Any]:
        def run() -> Any:
            y = model(IDS)
            return y * 2 if y.mean() > 0 else y - 1

        return run

    return {
        "frozen": changed(lambda m: m.requires_grad_(False)),
        "eval": changed(lambda m: m.eval()),
        "double": changed(lambda m: m.double()),
        "half": changed(lambda m: m.half()),
        "tied": changed(tied),
        "branches of zero": changed(zeroed),
        "gains of zero": changed(gains),
        "embedding of zero": changed(lambda m: nn.init.zeros_(m.embed.weight)),
        "large embedding": changed(lambda m: nn.init.constant_(m.embed.weight, 1e4)),
        "nan": changed(lambda m: nn.init.constant_(m.embed.weight, math.nan)),
        "weights parametrised": changed(parametrised),
        "no_grad": within(torch.no_grad),
        "inference_mode": within(torch.inference_mode),
        "autocast": within(lambda: torch.autocast("cpu", torch.bfloat16)),
        "backward": backward,
        "data-dependent branch": branching,
    }
