"""Advice for a model not built yet: the papers' constants, how the rate goes, and where the table ends."""

from __future__ import annotations

import math
from typing import Any

import pytest

from leadline.diagnose import advise as advising
from leadline.diagnose.advise import SAFE, TOKENS, Advice, Measured, advise, measured
from leadline.diagnose.verdict import calibration, warmup_gain
from leadline.errors import UserError
from leadline.placement import PLACEMENTS

MEASURED = ("post_ln", "pre_ln", "deepnorm")  # the placements of the grid of trainings


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is easy to reckon with: rate · width is 1 at depth 1, halves from 2 to 8; Post-LN ends at 2."""
    rows = [
        Measured(placement, layers, dim, level / dim, change)
        for placement, points in {
            "deepnorm": [(2, 0.25, 0.2), (8, 0.25, 0.4)],
            "post_ln": [(2, 0.5, 1.0), (8, 0.0, 0.0)],
            "pre_ln": [(2, 1.0, 1.0), (8, 0.5, 2.0)],
        }.items()
        for layers, level, change in points
        for dim in (32, 128)
    ]
    monkeypatch.setattr(advising, "measured", lambda: tuple(rows))


def of(placement: str, *arguments: Any, **keywords: Any) -> Advice:
    (found,) = (a for a in advise(*arguments, **keywords) if a.placement == placement)
    return found


# The table of the package


def test_the_table_is_there_and_holds_every_placement() -> None:
    assert {row.placement for row in measured()} == set(MEASURED) < set(PLACEMENTS)
    for row in measured():
        assert row.layers >= 1
        assert row.dim >= 2
        assert 0 <= row.highest_rate < 1
        assert (row.highest_rate > 0) == (row.output_change > 0)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (6, (1.418, 0.497, 2.060, 0.343)),
        (18, (1.999, 0.353, 2.711, 0.261)),
        (100, (3.416, 0.206, 4.162, 0.170)),
    ],
)
def test_deepnorms_constants_are_the_papers(layers: int, expected: tuple[float, ...]) -> None:
    constants = of("deepnorm", layers, 512).constants
    assert list(constants) == ["encoder_alpha", "encoder_beta", "decoder_alpha", "decoder_beta"]
    assert tuple(constants.values()) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("arch", ["encoder", "decoder"])
def test_a_single_stack_has_constants_of_its_own(arch: Any) -> None:
    """α = (2N)^¼ and β = (8N)^-¼ (DeepNet, Figure 2)."""
    assert of("deepnorm", 100, 512, arch).constants == pytest.approx(
        {f"{arch}_alpha": 200**0.25, f"{arch}_beta": 800**-0.25}
    )


def test_only_deepnorm_has_constants() -> None:
    assert all(not a.constants for a in advise(6, 512) if a.placement != "deepnorm")


def test_there_is_one_entry_a_placement() -> None:
    for layers in (1, 6, 100, 1000):
        assert sorted(a.placement for a in advise(layers, 512)) == sorted(MEASURED)


@pytest.mark.parametrize("placement", MEASURED)
def test_the_rate_falls_with_depth(placement: str) -> None:
    shallow, middle, deep, deeper = (of(placement, layers, 64).rate for layers in (1, 12, 100, 1000))
    assert shallow > 0
    assert shallow > middle >= deep >= deeper >= 0


@pytest.mark.parametrize("arch", ["encoder-decoder", "encoder", "decoder"])
def test_the_rate_goes_as_one_over_the_width(arch: Any) -> None:
    for placement in MEASURED:
        levels = [of(placement, 3, dim, arch).rate * dim for dim in (8, 64, 512, 4096)]
        assert levels == pytest.approx([levels[0]] * 4)


def test_the_best_is_first() -> None:
    for layers in (1, 3, 6, 12):
        rates = [a.rate for a in advise(layers, 64)]
        assert rates == sorted(rates, reverse=True)
        assert rates[0] > 0


def test_models_deeper_than_the_table_get_deepnorm_first() -> None:
    deepest = max(row.layers for row in measured())
    for layers in (deepest + 1, 100, 1000):
        first = advise(layers, 512)[0]
        assert first.placement == "deepnorm"
        assert first.rate > 0


@pytest.mark.parametrize("layers", [24, 30, 100, 1000])
def test_what_does_not_train_is_last(layers: int) -> None:
    trains = [a.rate > 0 for a in advise(layers, 64)]
    assert trains == [True, True, False]


def test_every_number_is_finite() -> None:
    for layers in (1, 2, 5, 17, 24, 60, 500):
        for dim in (2, 64, 512, 8192):
            for a in advise(layers, dim, warmup=300):
                assert all(math.isfinite(v) and v >= 0 for v in (a.rate, a.highest_rate, a.output_change))
                assert a.rate == pytest.approx(SAFE * a.highest_rate)


# Between its rows, and beyond


def test_between_two_depths_the_rate_is_on_a_line_in_log_depth(made_up: None) -> None:
    assert of("pre_ln", 4, 64).highest_rate * 64 == pytest.approx(math.sqrt(0.5))
    assert of("pre_ln", 4, 64).output_change == pytest.approx(SAFE * 1.5)


def test_at_a_row_of_the_table_the_rate_is_the_tables(made_up: None) -> None:
    for layers, level in ((2, 1.0), (8, 0.5)):
        assert of("pre_ln", layers, 32).highest_rate == pytest.approx(level / 32)


def test_shallower_than_the_table_is_as_its_first_row(made_up: None) -> None:
    assert of("pre_ln", 1, 64).highest_rate == of("pre_ln", 2, 64).highest_rate


def test_beyond_the_table_a_fall_goes_on_and_nothing_rises(made_up: None) -> None:
    assert of("pre_ln", 32, 64).highest_rate * 64 == pytest.approx(0.25)
    assert of("deepnorm", 32, 64).highest_rate == pytest.approx(of("deepnorm", 8, 64).highest_rate)


def test_where_nothing_learnt_there_is_no_rate(made_up: None) -> None:
    assert of("post_ln", 2, 64).rate > 0
    for layers in (3, 8, 100):
        found = of("post_ln", layers, 64)
        assert (found.rate, found.highest_rate, found.output_change) == (0, 0, 0)


def test_what_does_not_train_comes_last(made_up: None) -> None:
    assert advise(8, 64)[-1].placement == "post_ln"


def test_a_single_stack_is_read_as_two_of_half_its_depth(made_up: None) -> None:
    for arch in ("encoder", "decoder"):
        assert of("pre_ln", 8, 64, arch).rate == of("pre_ln", 4, 64).rate


def test_warm_up_multiplies_the_rate_by_its_gain() -> None:
    without, with_warmup = of("pre_ln", 6, 64), of("pre_ln", 6, 64, warmup=100)
    assert with_warmup.rate / without.rate == pytest.approx(warmup_gain(100))
    assert with_warmup.highest_rate / without.highest_rate == pytest.approx(warmup_gain(100))
    assert with_warmup.warmup == 100


# Where the table ends


def test_inside_the_table_nothing_is_said(made_up: None) -> None:
    assert advise(8, 64, batch_tokens=TOKENS)[0].beyond == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((9, 64, "encoder-decoder", TOKENS), "8-8 layers"),
        ((8, 16, "encoder-decoder", TOKENS), "widths 32 to 128"),
        ((8, 129, "encoder-decoder", TOKENS), "widths 32 to 128"),
        ((8, 64, "decoder", TOKENS), "encoder-decoders only"),
        ((8, 64, "encoder", TOKENS), "encoder-decoders only"),
        ((8, 64, "encoder-decoder", 4096), f"{TOKENS} tokens a batch"),
    ],
)
def test_the_end_of_the_table_is_said(arguments: tuple[Any, ...], said: str, made_up: None) -> None:
    for entry in advise(*arguments):
        assert sum(said in line for line in entry.beyond) == 1


def test_every_end_is_said_at_once(made_up: None) -> None:
    longest = int(calibration()["warmup_gain"][-1][0])
    said = advise(200, 4096, "encoder", warmup=10 * longest)[0].beyond
    for part in (
        "8-8 layers",
        "widths 32 to 128",
        "encoder-decoders only",
        f"up to {longest} updates",
        "tokens a batch",
    ):
        assert any(part in line for line in said)
    assert len(said) == len(set(said))
    assert not any("\n" in line for line in said)


# Bad input


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"layers": 0}, "at least 1 layer"),
        ({"layers": -3}, "at least 1 layer"),
        ({"dim": 1}, "width of at least 2"),
        ({"batch_tokens": 0}, "at least 1 token"),
        pytest.param(
            {"warmup": -1}, "warm"
        ),
        pytest.param(
            {"arch": "both"}, "encoder-decoder",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_bad_input_is_one_sentence(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError, match=part) as error:
        advise(**({"layers": 6, "dim": 512} | changes))
    assert "\n" not in str(error.value)
