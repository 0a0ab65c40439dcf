"""Wrongly coded blocks are named, each by its own fault and by nothing else; rightly coded ones are left alone."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from handwritten import (
    ADDS,
    ATTENTIONS,
    DIM,
    IDS,
    MISTAKES,
    NORMS,
    SCALES,
    WRAPPERS,
    Built,
    Style,
    Toy,
    drawn,
    drawn_wrong,
    found_in,
    toy,
    wrong_styles,
)
from torch import Tensor, nn
from variants import VARIANTS
from zoo import ZOO, Arch, arch, ident, of_zoo

from leadline.diagnose import faults
from leadline.diagnose.deepnorm import Size
from leadline.diagnose.faults import Finding, findings
from leadline.diagnose.structure import connections
from leadline.diagnose.trace import sizes, trace


def faults_of(built: Built) -> set[str]:
    return {f.name for f in found_in(*built)[1] if f.severity == "fault"}


def name_of(style: Style) -> str:
    return ident(f"{style.fault} {style.placement}{' decoder' if style.decoder else ''}")


def check(style: Style) -> None:
    torch.manual_seed(0)
    assert faults_of(toy(style)) == {MISTAKES[style.fault][0]}


@pytest.mark.parametrize("style", wrong_styles(), ids=name_of)
def test_wrong_blocks_are_named(style: Style) -> None:
    check(style)


@pytest.mark.parametrize("style", [drawn_wrong(seed) for seed in range(40)], ids=lambda s: ident(s.fault))
def test_drawn_wrong_blocks_are_named(style: Style) -> None:
    check(style)


@pytest.mark.parametrize("name", VARIANTS, ids=ident)
def test_layers_written_by_hand_have_the_fault_they_have_and_no_other(name: str) -> None:
    torch.manual_seed(0)
    variant = VARIANTS[name]
    wrong = [f for f in found_in(*variant.build())[1] if f.severity == "fault"]
    assert {f.name for f in wrong} == {variant.fault} - {""}
    for finding in wrong:
        assert_says_what_to_do(finding)
        assert finding.where


def test_every_fault_is_written_in_several_ways() -> None:
    ways = Counter(v.fault for v in VARIANTS.values())
    assert ways.pop("") >= 25
    assert min(ways.values()) >= 3


# --- Blocks written by hand -------------------------------------------------------------------------------------------


def test_pre_ln_whose_skip_starts_behind_the_norm_and_without_a_final_norm() -> None:
    def forward(m: Arch, x: Tensor) -> Tensor:
        for a, f, n, _, _, _ in m.each():
            x = n[0](x)
            x = x + a(x)
            x = n[1](x)
            x = x + f(x)
        return x

    assert faults_of(arch(forward, False)) == {"final_norm_missing"}


def test_a_norm_shared_by_the_whole_stack_and_its_end() -> None:
    def forward(m: Arch, x: Tensor) -> Tensor:
        for a, f, _, _, _, _ in m.each():
            x = x + a(m.final(x))
            x = x + f(m.final(x))
        return x

    assert faults_of(arch(forward)) == {"norm_shared"}


def test_one_layer_without_its_residual() -> None:
    def forward(m: Arch, x: Tensor) -> Tensor:
        for a, f, n, _, _, i in m.each():
            x = x + a(n[0](x)) if i == 0 else a(n[0](x))
            x = x + f(n[1](x))
        return x

    assert faults_of(arch(forward)) == {"residual_missing"}


def test_the_last_sublayer_without_its_norm() -> None:
    def forward(m: Arch, x: Tensor) -> Tensor:
        for a, f, n, _, _, i in m.each():
            x = x + a(n[0](x))
            x = x + f(n[1](x) if i == 0 else x)
        return x

    assert faults_of(arch(forward)) == {"norm_missing"}


def test_post_ln_with_one_norm_left_out() -> None:
    def forward(m: Arch, x: Tensor) -> Tensor:
        for a, f, n, _, _, i in m.each():
            x = x + a(x) if i == 1 else n[0](x + a(x))
            x = n[1](x + f(x))
        return x

    assert faults_of(arch(forward, False)) == {"norm_missing"}


def test_the_encoder_of_two_stacks_without_its_final_norm() -> None:
    model = Toy(Style("pre", decoder=True))
    model.memory.final = nn.Identity()
    found, wrong = found_in(model, lambda: model(IDS))
    assert [(f.name, f.where) for f in wrong] == [("final_norm_missing", found[0].stack)]


def test_constants_of_one_stack_in_an_encoder_decoder() -> None:
    """α = (2N)^¼ is right for one stack, and wrong for the encoder beside a decoder."""
    style = Style("deepnorm", decoder=True, layers=4)
    model = Toy(style)
    for block in model.memory.blocks:  # type: ignore[attr-defined]
        block.alpha = 8**0.25
    _, wrong = found_in(model, lambda: model(IDS))
    assert [f.name for f in wrong] == ["deepnorm_constants"]
    assert "1.682" in wrong[0].message


def test_alpha_of_one_layer_only() -> None:
    model = Toy(Style("deepnorm", layers=4))
    model.layers.blocks[2].alpha *= 1.2  # type: ignore[index, operator]
    _, wrong = found_in(model, lambda: model(IDS))
    assert [(f.name, f.where) for f in wrong] == [("deepnorm_constants", "layers.blocks.2")]


def test_beta_of_one_matrix_only() -> None:
    model = Toy(Style("deepnorm", layers=4))
    nn.init.xavier_normal_(model.layers.blocks[1].feed.down.weight)  # type: ignore[index, union-attr, arg-type]
    _, wrong = found_in(model, lambda: model(IDS))
    assert [(f.name, f.where, f.places) for f in wrong] == [("beta_missing", "layers.blocks.1.feed.down.weight", 1)]


def test_a_branch_scaled_down_is_no_fault() -> None:
    """1/√(2N), muP, Granite: a smaller branch is a choice."""

    def forward(m: Arch, x: Tensor) -> Tensor:
        for a, f, n, _, _, _ in m.each():
            x = x + 0.2 * a(n[0](x))
            x = x + 0.2 * f(n[1](x))
        return x

    assert found_in(*arch(forward))[1] == []


def test_weights_that_were_trained_are_not_judged() -> None:
    model = Toy(Style("deepnorm", fault="beta_missing"))
    found, _ = found_in(model, lambda: model(IDS))
    assert findings(found, sizes(model), initial=False) == []


def test_a_redundant_final_norm_is_a_note() -> None:
    model = Toy(Style("post"))
    model.layers.final = nn.LayerNorm(DIM)
    _, wrong = found_in(model, lambda: model(IDS))
    assert [(f.name, f.severity) for f in wrong] == [("final_norm_redundant", "note")]


def test_places_count_how_often() -> None:
    _, wrong = found_in(*toy(Style("pre", layers=4, fault="norm_on_skip")))
    assert [(f.name, f.where, f.places) for f in wrong] == [("norm_on_skip", "layers.blocks.0", 8)]


# --- The zoo ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ZOO, ids=ident)
def test_no_fault_in_what_is_right(name: str) -> None:
    assert {f.name for f in of_zoo(name)[1] if f.severity == "fault"} == ZOO[name].faults


# --- What is said -----------------------------------------------------------------------------------------------------

# Words that say what to do, or what is right instead
ADVICE = re.compile(r"\b(add|remove|use|give|leave|scale|normalise|can go|belongs|asks for|mixes)\b")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_messages_are_one_sentence_and_say_what_to_do(mistake: str) -> None:
    _, wrong = found_in(*toy(Style(MISTAKES[mistake][1][0], fault=mistake)))
    assert wrong
    for finding in wrong:
        assert_says_what_to_do(finding)


def assert_says_what_to_do(finding: Finding) -> None:
    message = finding.message
    assert "\n" not in message
    assert len(message) < 250
    assert not re.search(r"[.!?](\s|$)", message)
    advice = re.split(r"[:;]|, but |, so ", message, maxsplit=1)[-1]
    assert ADVICE.search(advice), message


def test_findings_are_named_once_and_faults_know_no_torch() -> None:
    model, run = toy(Style("pre", fault="norm_on_skip"))
    graph, _ = trace(model, run)
    names = [f.name for f in findings(connections(graph), {})]
    assert len(names) == len(set(names))
    assert not hasattr(faults, "torch")


def test_sizes_of_matrices_and_their_biases() -> None:
    model = nn.Sequential(nn.Linear(200, 300), nn.Embedding(7, 5), nn.LayerNorm(300), nn.Linear(300, 200, bias=False))
    nn.init.xavier_normal_(model[0].weight)  # type: ignore[arg-type]
    found = sizes(model)
    assert set(found) == {"0.weight", "1.weight", "3.weight"}
    assert found["0.weight"].to_xavier == pytest.approx(1, rel=0.02)
    assert found["0.weight"].bias_to_default == pytest.approx(1, rel=0.15)
    assert found["3.weight"].bias_to_default is None
    assert Size((4, 4), 0.5).to_xavier == 1
    assert Finding("a", "b", "c").severity == "fault"


def test_the_lists_of_styles_are_all_drawn() -> None:
    styles = [drawn(seed) for seed in range(300)]
    assert {s.norm for s in styles} == set(NORMS)
    assert {s.add for s in styles} == set(ADDS)
    assert {s.scale for s in styles} == set(SCALES)
    assert {s.attention for s in styles} == set(ATTENTIONS)
    assert {s.wrapper for s in styles} == set(WRAPPERS)
    assert {drawn_wrong(seed).fault for seed in range(300)} == set(MISTAKES)
