"""Residual connections and their norms, found in models of five libraries and in blocks written in many ways."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from handwritten import (
    ADDS,
    ATTENTIONS,
    DIM,
    DROPOUTS,
    IDS,
    NORMS,
    PLACEMENTS,
    SCALES,
    WRAPPERS,
    Style,
    Toy,
    drawn,
    expected,
    found_in,
    modes,
    stacks_of,
    toy,
)
from torch import Tensor, nn
from zoo import PIXELS, ZOO, Arch, Deep, ResNet, arch, ident, of_zoo, post

from leadline.diagnose.faults import findings
from leadline.diagnose.norms import find_norms
from leadline.diagnose.structure import connections
from leadline.diagnose.trace import recording, trace
from leadline.errors import UserError


@pytest.mark.parametrize("name", ZOO, ids=ident)
def test_stacks_of_the_zoo(name: str) -> None:
    assert repr(stacks_of(of_zoo(name)[0])) == repr(ZOO[name].stacks)  # repr: nan, where values differ, equals nan


# --- Styles, one by one and at random ---------------------------------------------------------------------------------


def check(style: Style) -> None:
    torch.manual_seed(0)
    found, wrong = found_in(*toy(style))
    assert stacks_of(found, names=False) == expected(style)
    assert [f.name for f in wrong if f.severity == "fault"] == []


BOTH = ("post", "pre")


@pytest.mark.parametrize(
    "style",
    [Style(p, norm=n, inline=i) for n in NORMS for p in BOTH for i in (False, True)],
    ids=lambda s: ident(f"{s.norm} {s.placement}{' written out' if s.inline else ''}"),
)
def test_norms_are_known_by_what_they_do(style: Style) -> None:
    check(style)


@pytest.mark.parametrize("placement", BOTH)
@pytest.mark.parametrize("norm", ["LayerNorm", "RMS", "ScaleNorm", "Zebra"])
def test_norms_in_sixteen_bits(norm: str, placement: str) -> None:
    model = Toy(Style(placement, norm=norm)).bfloat16()
    found, _ = found_in(model, lambda: model(IDS))
    assert stacks_of(found, names=False) == expected(Style(placement, norm=norm))


@pytest.mark.parametrize(
    "style", [Style(p, add=a) for a in ADDS for p in BOTH], ids=lambda s: ident(f"{s.add} {s.placement}")
)
def test_ways_to_add(style: Style) -> None:
    check(style)


@pytest.mark.parametrize(
    "style",
    [Style("sandwich" if d else "post", attention=a, decoder=d) for a in ATTENTIONS for d in (False, True)],
    ids=lambda s: ident(f"{s.attention}{' crossed' if s.decoder else ''}"),
)
def test_ways_to_attend(style: Style) -> None:
    check(style)


@pytest.mark.parametrize(
    "style", [Style(p, dropout=d) for d in DROPOUTS for p in BOTH], ids=lambda s: ident(f"{s.dropout} {s.placement}")
)
def test_ways_to_drop(style: Style) -> None:
    check(style)


@pytest.mark.parametrize("style", [Style("branch", dropout=d) for d in DROPOUTS], ids=lambda s: ident(s.dropout))
def test_ways_to_drop_one_sample(style: Style) -> None:
    torch.manual_seed(0)
    found, wrong = found_in(*toy(style, IDS[:1]))
    assert stacks_of(found, names=False) == expected(style)
    assert wrong == []


@pytest.mark.parametrize("style", [Style("deepnorm", scale=s) for s in SCALES], ids=lambda s: ident(s.scale))
def test_ways_to_scale(style: Style) -> None:
    check(style)


@pytest.mark.parametrize(("first", "second"), [(1.5, 1.0), (1.0, 0.25)])
def test_factors_of_torch_add(first: float, second: float) -> None:
    """torch.add(y, x, alpha=…) scales the second operand, whichever that is."""

    def forward(m: Arch, x: Tensor) -> Tensor:
        for a, f, n, _, _, _ in m.each():
            for j, sub in enumerate((a, f)):
                y = sub(x)
                x = n[j](torch.add(y, x, alpha=first) if first != 1 else torch.add(x, y, alpha=second))
        return x

    found, _ = found_in(*arch(forward, False))
    assert {(c.skip_scale, c.branch_scale) for c in found} == {(first, second)}


@pytest.mark.parametrize(
    "style", [Style(p, wrapper=w) for w in WRAPPERS for p in BOTH], ids=lambda s: ident(f"{s.wrapper} {s.placement}")
)
def test_ways_to_call_layers(style: Style) -> None:
    check(style)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 4])
def test_placements(placement: str, layers: int, decoder: bool) -> None:
    check(Style(placement, layers=layers, decoder=decoder))


@pytest.mark.parametrize("placement", BOTH)
@pytest.mark.parametrize("attention", ["sdpa", "softmax", "mha"])
def test_a_stream_without_a_batch(placement: str, attention: str) -> None:
    check(Style(placement, flat=True, attention=attention))


@pytest.mark.parametrize("seed", range(40))
def test_drawn_styles(seed: int) -> None:
    check(drawn(seed))


# --- What a model may be besides --------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", BOTH)
@pytest.mark.parametrize("mode", modes())
def test_state_of_the_model(mode: str, placement: str) -> None:
    torch.manual_seed(0)
    model = Toy(Style(placement))
    found, _ = found_in(model, modes()[mode](model))
    assert stacks_of(found, names=False) == expected(Style(placement))


def test_tracing_leaves_the_model_as_it_was() -> None:
    model = Toy(Style("pre", dropout="module"))
    model.layers.blocks[1].eval()  # type: ignore[index]
    before = [m.training for m in model.modules()]
    weights = [p.clone() for p in model.parameters()]
    state = torch.get_rng_state()
    with torch.random.fork_rng():
        found_in(model, lambda: model(IDS))
    assert [m.training for m in model.modules()] == before
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert torch.equal(state, torch.get_rng_state())


def test_nested_tensors_of_torch() -> None:
    """In eval mode, without gradients and with a padding mask, torch.nn.TransformerEncoder packs its batch."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, 4, 64, batch_first=True), 2).eval()
    x, mask = torch.randn(2, 7, DIM), torch.zeros(2, 7, dtype=torch.bool)
    mask[1, 5:] = True
    with torch.no_grad():
        found, _ = found_in(model, lambda: model(x, src_key_padding_mask=mask))
    assert stacks_of(found) == [post("AFAF", "layers")]


def test_a_float_mask_is_no_memory() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(DIM, 4, 64, batch_first=True), 2)
    x, mask = torch.randn(2, 7, DIM), torch.zeros(7, 7)
    found, _ = found_in(model, lambda: model(x, mask=mask))
    assert stacks_of(found) == [post("AFAF", "layers")]


def test_layers_used_again() -> None:
    """A universal Transformer: one block, three times."""
    model = Toy(Style("post"))
    model.layers.blocks = nn.ModuleList([model.layers.blocks[0]] * 3)  # type: ignore[index]
    found, wrong = found_in(model, lambda: model(IDS))
    assert stacks_of(found, names=False) == expected(Style("post"))
    assert wrong == []


def test_a_model_run_twice_gives_two_stacks() -> None:
    model = Toy(Style("post"))
    found, _ = found_in(model, lambda: (model(IDS), model(IDS)))
    assert stacks_of(found, names=False) == 2 * expected(Style("post"))
    assert len({c.stack for c in found}) == 2


def test_the_meta_device_is_refused_in_words() -> None:
    model = Toy(Style("pre")).to("meta")
    ids = IDS.to("meta")
    with pytest.raises(UserError, match="meta"):
        found_in(model, lambda: model(ids))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8)),
        nn.Sequential(nn.Embedding(50, 8)),
        nn.Sequential(nn.Embedding(50, 8), nn.LSTM(8, 8)),
        nn.Identity(),
    ],
    ids=["perceptron", "embedding", "lstm", "nothing"],
)
def test_no_residual_connection(model: nn.Module) -> None:
    assert found_in(model, lambda: model(IDS)) == ([], [])


def test_a_run_that_returns_nothing() -> None:
    model = Toy(Style("pre"))

    def run() -> None:
        model(IDS)

    found, _ = found_in(model, run)
    assert stacks_of(found, names=False)[0].layout == "AFAFAF"


def test_what_the_model_raises_is_passed_on() -> None:
    model = Toy(Style("pre"))
    with pytest.raises(IndexError):
        found_in(model, lambda: model(IDS + 1000))
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("activated", [True, False])
def test_a_convolutional_network_has_no_faults(activated: bool, train: bool) -> None:
    """It is no Transformer: what it has is found, nothing is said."""
    model = ResNet(nn.BatchNorm2d, activated).train(train)
    found, wrong = found_in(model, lambda: model(PIXELS))
    assert {c.sublayer for c in found} == {"feed-forward"}
    assert len(found) == 3
    assert wrong == []


@pytest.mark.parametrize("order", ["x * g", "g * x"])
def test_the_input_of_a_norm_written_out_is_handed_on(order: str) -> None:
    """`keep` gets the stream first, whichever way round it is multiplied."""

    def forward(m: Arch, x: Tensor) -> Tensor:
        for a, f, _, _, _, _ in m.each():
            for sub in (a, f):
                size = torch.rsqrt(x.pow(2).mean(-1, keepdim=True))
                x = x + sub(x * size if order == "x * g" else size * x)
        return x

    model, run = arch(forward)
    widths = []
    with recording(model, find_norms(model, run), lambda i, op, given, _: widths.append((op, given[0].shape[-1]))):
        run()
    assert [w for op, w in widths if op == "norm"] == [DIM] * 5


@pytest.mark.parametrize("add", ["y + x", "y.add_(x)"])
def test_the_operands_of_an_addition_in_place_are_those_before_it(add: str) -> None:
    model, run = toy(Style("post", add=add))
    off = []

    def keep(index: int, op: str, given: Sequence[Tensor], result: Tensor) -> None:
        if op == "add":
            off.append(float((given[0] + given[1] - result).norm().detach()))

    with recording(model, find_norms(model, run), keep):
        run()
    assert off == [0.0] * 6


# --- Depth ------------------------------------------------------------------------------------------------------------


def calls(layers: int, **options: Any) -> int:
    """How many functions are called to find the connections of so many layers."""
    model, x = Deep(layers, **options), torch.randn(2, 3, 4)
    graph, _ = trace(model, lambda: model(x))
    count = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        found = connections(graph)
        findings(found, {})
    finally:
        sys.setprofile(before)
    assert len(found) >= layers
    return count


@pytest.mark.parametrize("again", [False, True])
def test_work_grows_with_depth_and_not_its_square(again: bool) -> None:
    """Four times the layers with less than eight times the calls; sixteen would be its square."""
    assert calls(400, embedding_again=again) < 8 * calls(100, embedding_again=again)


def test_two_hundred_layers() -> None:
    style = Style("post", layers=200)
    check(style)
