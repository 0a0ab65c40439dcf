"""A claim is data: the number it is about, where it must lie, and at which scales that can be told."""

from __future__ import annotations

import math

import pytest

from leadline.reproduce.claims import Claim, judge

CLAIM = Claim("a is larger", "much larger", "a", at_least=0.5, scales=("small",))


@pytest.mark.parametrize(
    ("values", "verdict", "measured"),
    [
        ([0.7], "holds", "0.7"),
        ([0.5], "holds", "0.5"),
        ([0.4], "does not hold", "0.4"),
        ([0.2, 0.9], "holds", "0.55 (0.2 to 0.9, 2 runs)"),  # the mean decides
        ([0.7, 0.8, 0.9], "holds", "0.8 ± 0.25 (0.7 to 0.9, 3 runs)"),
        ([0.2, 0.9, 0.7], "undecided", "0.6 ± 0.9 (0.2 to 0.9, 3 runs)"),  # on both sides of 0.5
        ([0.2, 0.6, 0.3], "undecided", "0.367 ± 0.52 (0.2 to 0.6, 3 runs)"),
        ([0.1, 0.2, 0.15], "does not hold", "0.15 ± 0.12 (0.1 to 0.2, 3 runs)"),
        ([math.inf], "holds", "inf"),  # a run that diverged
        ([math.inf, 0.1, 0.1], "holds", "inf (0.1 to inf, 3 runs)"),
        ([], "not measured", "–"),
        ([math.nan], "not measured", "–"),
    ],
)
def test_a_claim_is_judged_by_the_mean_of_its_number(values: list[float], verdict: str, measured: str) -> None:
    judged = judge(CLAIM, "small", {"a": values})
    assert (judged.verdict, judged.measured) == (verdict, measured)


def test_a_scale_that_cannot_tell_says_so_and_shows_the_number() -> None:
    judged = judge(CLAIM, "tiny", {"a": [0.1]})
    assert (judged.verdict, judged.measured) == ("not tested at this scale", "0.1")
    with pytest.raises(KeyError):  # of a number that nobody makes
        judge(CLAIM, "small", {"b": [1.0]})


def test_a_claim_says_what_it_wants() -> None:
    assert CLAIM.wanted == "≥ 0.5"
    assert Claim("", "", "a", at_most=2).wanted == "≤ 2"
    assert Claim("", "", "a", at_least=-0.9, at_most=-0.25).wanted == "-0.9 to -0.25"
    assert judge(Claim("", "", "a", at_least=-0.9, at_most=-0.25), "tiny", {"a": [0.0]}).verdict == "does not hold"
