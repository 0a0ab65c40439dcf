"""From records to an answer, without torch: what counts, where the edge lies, what is said and what is advised."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from leadline.diagnose import fitted
from leadline.diagnose import verdict as verdicts
from leadline.diagnose.connection import Connection
from leadline.diagnose.faults import Finding
from leadline.diagnose.inspection import Inspection, lines
from leadline.diagnose.record import Record
from leadline.diagnose.verdict import (
    COLLAPSE_AFTER,
    FLOOR,
    STEPS,
    Features,
    Verdict,
    calibration,
    features,
    highest_rate,
    judge,
    needed_warmup,
    probability,
    score,
    warmup_gain,
)

NO_TORCH = [
    "leadline.diagnose.verdict",
    "leadline.diagnose.fitted",
    "leadline.diagnose.theory",
    "leadline.diagnose.connection",
    "leadline.diagnose.structure",
    "leadline.diagnose.faults",
    "leadline.diagnose.record",
    "leadline.diagnose.inspection",
    "leadline.diagnose.advise",
    "leadline.report.inspections",
]

NUMBERS = {
    "score": {"collapse": 8.0, "first": 0.0, "change": 0.0, "intercept": 4.0},
    "warmup_gain": [[100, 2.0], [400, 4.0]],
}


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration that is easy to reckon with: the odds are even where half a decade of diversity is lost."""
    monkeypatch.setattr(verdicts, "calibration", lambda: NUMBERS)


def connection(position: int, **changes: Any) -> Connection:
    facts: dict[str, Any] = {
        "add": 10 * position, "skip": 0, "branch": 0, "where": f"layers.{position}", "weights": (f"w{position}",),
        "sublayer": "feed-forward" if position % 2 else "attention", "dim": 64, "norm_nodes": (), "norm_gains": (),
        "before": 0, "within": 0, "after_branch": 0, "after_add": 1, "on_skip": 0, "stack": "layers",
        "position": position, "placement": "Post-LN",
    }  # fmt: skip
    return Connection(**(facts | changes))


POST = [connection(i) for i in range(6)]
PRE = [connection(i, placement="Pre-LN", before=1, after_add=0) for i in range(6)]


def before(start: float = 1.0, count: int = 6) -> list[Record]:
    return [Record("diversity", start, f"layers.{i}", i) for i in range(count)]


def rollout(left: float = 1.0, change: float = 0.1, steps: int = STEPS, count: int = 6) -> list[Record]:
    """The records of some steps after which the tokens differ by `left`."""
    found: list[Record] = []
    for step in range(1, steps + 1):
        found += [Record("step_change", change, step=step), Record("output_change", step * change, step=step)]
        found += [Record("diversity", left if step == COLLAPSE_AFTER else 1.0, f"layers.{i}", i, step=step)
                  for i in range(count)]  # fmt: skip
        found += [Record("hidden_change", 0.1 * 2**i, f"layers.{i}", i, step=step) for i in range(count)]
    return found


def at(collapse: float) -> list[Record]:
    """A rollout with this collapse."""
    return rollout(10**collapse)


# Features


def test_features_are_the_logarithms_of_what_was_measured() -> None:
    records = rollout(0.1, 0.5)
    records += [Record("step_change", 0.01, step=STEPS)]  # the last of a step counts
    found = features(before(0.5), records)
    assert found == pytest.approx((math.log10(0.1 / 0.5), math.log10(0.5), -2.0))


def test_collapse_is_the_mean_over_connections_of_the_logarithm() -> None:
    records = [r for r in rollout() if r.quantity != "diversity"]
    records += [Record("diversity", value, position=i, step=COLLAPSE_AFTER) for i, value in enumerate((1.0, 0.1, 0.01))]
    assert features(before(count=3), records).collapse == pytest.approx(-1.0)


def test_only_step_three_counts_for_the_collapse() -> None:
    records = rollout(0.1)
    others = [Record("diversity", 1e-3, position=i, step=step) for i in range(6) for step in (1, 2, 4, 5)]
    assert features(before(), [*records, *others]) == features(before(), records)


def test_what_is_tiny_counts_as_the_floor() -> None:
    assert features(before(), rollout(0.0, 0.0)) == pytest.approx((math.log10(FLOOR),) * 3)
    assert features(before(0.0), rollout(0.0)).collapse == 0.0


@pytest.mark.parametrize(
    "records",
    [
        [],
        rollout(steps=1),
        rollout(steps=STEPS - 1),
        [r for r in rollout() if r.quantity != "diversity"],
        [*rollout(), Record("diversity", math.nan, position=2, step=COLLAPSE_AFTER)],
        [*rollout(), Record("step_change", math.inf, step=2)],
        [*rollout(steps=4), Record("step_change", math.nan, step=STEPS)],
    ],
    ids=["empty", "one step", "four steps", "no diversity", "NaN tokens", "infinite change", "NaN change"],
)
def test_a_rollout_that_broke_off_counts_as_complete_collapse(records: list[Record]) -> None:
    found = features(before(), records)
    assert found.collapse == math.log10(FLOOR)
    assert all(math.isfinite(value) for value in found)
    assert score(found) < 0  # with the numbers of the package too


# Score


def test_the_score_is_a_weighted_sum() -> None:
    weights = {"collapse": 2.0, "first": -3.0, "change": 5.0, "intercept": 7.0}
    assert score(Features(0.5, 1.0, -1.0), weights) == 2 * 0.5 - 3 + -5 + 7


def test_the_packages_numbers_are_there_and_say_that_collapse_is_bad() -> None:
    n = calibration()["score"]
    assert set(n) == {"collapse", "first", "change", "intercept"}
    assert n["collapse"] > 0
    scores = [score(Features(collapse, -0.5, -1.0)) for collapse in (-4, -2, -1, -0.5, 0)]
    assert scores == sorted(scores)
    assert scores[0] < 0 < scores[-1]


def test_probability_is_the_logistic_function_and_never_overflows() -> None:
    assert probability(0) == 0.5
    assert probability(2) == pytest.approx(1 / (1 + math.exp(-2)))
    assert probability(2) + probability(-2) == pytest.approx(1)
    assert 0 < probability(-1e9) < probability(-1) < probability(1) < probability(1e9) <= 1
    assert probability(math.inf) > 0.99
    assert probability(-math.inf) < 0.01


def test_odds_that_are_not_a_number_are_no_reason_to_train() -> None:
    assert not probability(math.nan) >= 0.5


# The edge


def test_the_edge_is_where_the_line_in_log_rate_crosses_zero() -> None:
    assert highest_rate({1e-3: 1.0, 4e-3: -1.0}) == pytest.approx(2e-3)
    assert highest_rate({1e-3: 3.0, 1.6e-2: -1.0}) == pytest.approx(1e-3 * 16**0.75)
    assert highest_rate({1.6e-2: -1.0, 4e-3: -1.0, 1e-3: 1.0}) == pytest.approx(2e-3)  # in any order


def test_a_score_of_zero_is_the_edge_itself() -> None:
    assert highest_rate({1e-3: 1.0, 2e-3: 0.0, 4e-3: -1.0}) == pytest.approx(2e-3)


def test_without_a_crossing_the_edge_is_never_beyond_what_was_tried() -> None:
    assert highest_rate({1e-3: 1.0, 4e-3: 2.0}) == 4e-3
    assert highest_rate({1e-3: 1.0}) == 1e-3
    assert highest_rate({1e-3: -1.0, 4e-3: -2.0}) == highest_rate({1e-3: -1.0}) == 0


def test_a_better_score_anywhere_never_lowers_the_edge() -> None:
    base = {1e-3: 2.0, 2e-3: 0.5, 4e-3: -1.5}
    for rate in base:
        assert highest_rate(base | {rate: base[rate] + 0.25}) >= highest_rate(base)


# Warm-up


def test_gain_goes_through_its_points_on_lines_in_the_logarithm(numbers: None) -> None:
    assert [warmup_gain(w) for w in (0, 50, 100, 250, 400, 10_000)] == pytest.approx(
        [1, math.sqrt(2), 2, 2 * math.sqrt(2), 4, 4]
    )


def test_the_packages_gain_never_falls() -> None:
    gains = [warmup_gain(w) for w in range(0, 2000, 25)]
    assert gains[0] == 1
    assert gains == sorted(gains)
    assert gains[-1] > 1


def test_needed_warmup_is_the_least_that_is_enough(numbers: None) -> None:
    assert needed_warmup(0.5) == needed_warmup(1.0) == 0
    assert needed_warmup(2.0) == 100
    assert needed_warmup(4.0) == 400
    assert needed_warmup(4.01) is None
    for excess in (1.01, 1.3, 1.9, 2.5, 3.9):
        needed = needed_warmup(excess)
        assert needed is not None
        assert warmup_gain(needed) >= excess > warmup_gain(needed - 5)


# The four answers


def test_trains_without_warm_up(numbers: None) -> None:
    v = judge(PRE, [], before(), {1e-3: at(-0.1), 4e-3: at(-0.9)}, 1e-3)
    assert v.trains
    assert v.probability == pytest.approx(probability(3.2))
    assert v.highest_rate == pytest.approx(2e-3)
    assert (v.rate, v.warmup, v.needed_warmup, v.remedies) == (1e-3, 0, 0, [])
    assert v.answer == "trains without warm-up up to lr ≈ 2.0e-03 (3 layers, Pre-LN)"


def test_needs_warm_up(numbers: None) -> None:
    v = judge(POST, [], before(), {1e-3: at(-0.4), 2e-3: at(-0.6)}, 2e-3)
    assert not v.trains
    assert v.highest_rate == pytest.approx(1e-3 * math.sqrt(2))
    assert v.needed_warmup == needed_warmup(math.sqrt(2)) == 50
    assert v.answer == (
        "needs about 50 warm-up updates at lr 0.002 (3 layers, Post-LN); without warm-up it trains up to lr ≈ 1.4e-03"
    )
    assert v.remedies[0] == "warm up for about 50 updates"


def test_trains_with_the_warm_up_asked_for(numbers: None) -> None:
    v = judge(POST, [], before(), {1e-3: at(-0.4), 2e-3: at(-0.6)}, 2e-3, warmup=100)
    assert v.trains
    assert v.warmup == 100
    assert v.answer == (
        "trains at lr 0.002 with 100 warm-up updates (3 layers, Post-LN); without warm-up it trains up to lr ≈ 1.4e-03"
    )


def test_too_little_warm_up_is_not_enough(numbers: None) -> None:
    v = judge(POST, [], before(), {1e-3: at(-0.4), 2e-3: at(-0.6)}, 2e-3, warmup=20)
    assert not v.trains
    assert v.answer.startswith("needs about 50 warm-up updates at lr 0.002")
    assert any("with 20 warm-up updates" in line for line in v.remedies)


def test_a_rate_too_high_for_any_warm_up(numbers: None) -> None:
    v = judge(POST, [], before(), {1e-3: at(-0.4), 4e-3: at(-0.6), 1.6e-2: at(-2)}, 1.6e-2)
    assert (v.trains, v.needed_warmup) == (False, None)
    assert v.answer == (
        "will not train at lr 0.016 (3 layers, Post-LN): without warm-up it trains up to lr ≈ 2.0e-03, "
        "with 400 warm-up updates up to about 8.0e-03"
    )
    assert not any(line.startswith("warm up") for line in v.remedies)
    longer = judge(POST, [], before(), {1e-3: at(-0.4), 4e-3: at(-0.6), 1.6e-2: at(-2)}, 1.6e-2, warmup=401)
    assert longer.answer == v.answer.replace("will", "may") + "; no warm-up above 400 was measured"
    assert "warm-up 401 (judged as 400): does not train" in said_of(longer)[1]


def test_a_depth_at_which_nothing_trains(numbers: None) -> None:
    v = judge(POST, [], before(), {1e-4: at(-1), 4e-4: at(-2)}, 4e-4)
    assert not v.trains
    assert (v.highest_rate, v.edge_found) == (0, True)
    assert v.answer == ("will not train at this depth (3 layers, Post-LN): without warm-up even lr 1.0e-04 is too high")
    assert v.remedies[0] == "lower the rate below 1.0e-04, the lowest tried"


def test_no_rate_tried_trains(numbers: None) -> None:
    v = judge(POST, [], before(), {1e-2: at(-1), 4e-2: at(-2)}, 4e-2, warmup=100)
    assert (v.trains, v.needed_warmup) == (False, None)
    assert v.answer == "does not train at any rate tried, the lowest lr 1.0e-02 (3 layers, Post-LN)"


def test_where_every_rate_trains_no_edge_is_promised(numbers: None) -> None:
    v = judge(PRE, [], before(), {1e-3: at(0), 4e-3: at(-0.1)}, 1e-3)
    assert (v.trains, v.highest_rate, v.edge_found) == (True, 4e-3, False)
    assert v.answer == "trains without warm-up at every rate judged (3 layers, Pre-LN): no edge found up to lr 4.0e-03"


def test_nothing_is_promised_above_the_highest_edge_of_the_fit(numbers: None) -> None:
    rollouts = {1e-2: at(0), 4e-2: at(-0.1), 1.6e-1: at(-2)}
    v = judge(PRE, [], before(), rollouts, 1e-2, limit=3.2e-2)
    assert (v.trains, v.highest_rate, v.edge_found) == (True, 3.2e-2, False)
    assert "no edge found up to lr 3.2e-02" in v.answer
    assert not judge(PRE, [], before(), rollouts, 4e-2, limit=3.2e-2).trains
    assert judge(PRE, [], before(), rollouts, 4e-2, limit=8e-2).trains
    assert judge(PRE, [], before(), rollouts, 1e-2).edge_found
    assert [fitted.limit({"optimizer": name}) for name in ("Adam", "AdamW", "SGD")] == [4.5e-2, 4.5e-2, math.inf]


@pytest.mark.parametrize("last", [2.3, 1e7, math.inf, math.nan])
def test_a_loss_that_rises_means_no_whatever_the_probability(last: float, numbers: None) -> None:
    start, rises = [*before(), Record("shown_loss", 2.0)], [*at(0), Record("shown_loss", last, step=STEPS)]
    v = judge(PRE, [], start, {1e-3: at(0), 4e-3: rises}, 4e-3)
    assert (v.trains, v.edge_found) == (False, True)
    assert 1e-3 <= v.highest_rate < 4e-3
    assert v.evidence[0] == f"loss: it rises from 2 to {last:.3g} within 5 steps at lr 0.004"


def test_a_loss_that_falls_or_hardly_rises_changes_nothing(numbers: None) -> None:
    for last in (-3.0, 1.0, 2.0, 2.1):
        start, falls = [*before(), Record("shown_loss", 2.0)], [*at(0), Record("shown_loss", last, step=STEPS)]
        assert judge(PRE, [], start, {1e-3: falls}, 1e-3) == judge(PRE, [], before(), {1e-3: at(0)}, 1e-3)


def test_hopeless_depends_on_the_width(numbers: None) -> None:
    wide = [connection(i, dim=1024) for i in range(6)]
    rollouts = {1e-4: at(-1), 4e-4: at(-2)}
    assert "at this depth" in judge(POST, [], before(), rollouts, 4e-4).answer
    assert "at this depth" not in judge(wide, [], before(), rollouts, 4e-4).answer


def test_the_answer_names_the_layers_of_every_stack_and_every_placement(numbers: None) -> None:
    encoder = [connection(i, stack="encoder", placement="Pre-LN", before=1) for i in range(4)]
    kinds = ["attention", "cross-attention", "feed-forward"]
    decoder = [connection(4 + i, stack="decoder", sublayer=kinds[i % 3]) for i in range(9)]
    v = judge([*encoder, *decoder], [], before(count=13), {1e-3: rollout(count=13)}, 1e-3)
    assert "(2-3 layers, Pre-LN and Post-LN)" in v.answer


# Monotone


def test_more_collapse_never_helps(numbers: None) -> None:
    found = [judge(POST, [], before(), {1e-3: at(-0.1), 2e-3: at(-c)}, 2e-3) for c in (0.1, 0.3, 0.6, 1.0, 3.0)]
    for better, worse in itertools.pairwise(found):
        assert better.probability >= worse.probability
        assert better.highest_rate >= worse.highest_rate
        assert better.trains or not worse.trains


def test_more_warm_up_never_hurts(numbers: None) -> None:
    rollouts = {1e-3: at(-0.4), 2e-3: at(-0.6), 4e-3: at(-0.8)}
    found = [judge(POST, [], before(), rollouts, 4e-3, warmup) for warmup in (0, 10, 50, 100, 200, 400, 1000)]
    chances = [v.probability for v in found]
    assert chances == sorted(chances)
    assert not found[0].trains
    assert found[-1].trains


def test_warm_up_is_enough_just_where_it_is_said_to_be(numbers: None) -> None:
    rollouts = {1e-3: at(-0.4), 2e-3: at(-0.6), 4e-3: at(-0.8)}
    needed = judge(POST, [], before(), rollouts, 4e-3).needed_warmup
    assert needed is not None
    assert judge(POST, [], before(), rollouts, 4e-3, needed).trains
    assert not judge(POST, [], before(), rollouts, 4e-3, needed - 5).trains


def test_a_rollout_that_broke_off_does_not_train(numbers: None) -> None:
    v = judge(POST, [], before(), {1e-3: at(-0.1), 1.0: rollout(steps=2)}, 1.0)
    assert not v.trains
    assert v.probability < 0.01


def test_a_rollout_of_nans_does_not_train_and_names_a_layer(numbers: None) -> None:
    broken = [Record(r.quantity, math.nan, r.where, r.position, step=r.step) for r in rollout(steps=1)]
    v = judge(POST, [], before(), {1.0: broken}, 1.0)
    assert not v.trains
    assert v.where in {c.where for c in POST}


# Where and why


def moved(*values: float) -> list[Record]:
    kept = [r for r in rollout(0.1) if r.quantity != "hidden_change"]
    return kept + [Record("hidden_change", v, f"layers.{i}", i, step=1) for i, v in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.1, 0.2, 0.9, 1.0, 1.1, 1.1), "layers.2"),
        ((1.0, 1.0, 1.0, 1.0, 1.0, 1.0), "layers.0"),
        ((0.0, 0.0, 0.0, 0.0, 0.0, 3.0), "layers.5"),
        ((0.1, math.nan, 0.1, 0.2, 0.2, 0.2), "layers.0"),
    ],
)
def test_the_first_layer_that_moves_is_named(values: Sequence[float], expected: str, numbers: None) -> None:
    assert judge(POST, [], before(), {1e-3: moved(*values)}, 1e-3).where == expected


def test_without_hidden_changes_the_last_layer_is_named(numbers: None) -> None:
    records = [r for r in rollout(0.1) if r.quantity != "hidden_change"]
    assert judge(POST, [], before(), {1e-3: records}, 1e-3).where == "layers.5"


def test_the_evidence_says_what_decided_and_no_more(numbers: None) -> None:
    """The gradients of the first and last layer do not enter the score."""
    start = before(0.8)
    start += [Record("grad_norm_of_mean", 4.0, "w0", 0), Record("grad_norm_of_mean", 2.0, "w5", 5)]
    records = [r for r in rollout(0.4, 0.25) if (r.quantity, r.step, r.position) != ("diversity", COLLAPSE_AFTER, 3)]
    records.append(Record("diversity", 0.125, "layers.3", 3, step=COLLAPSE_AFTER))
    tokens, update = judge(POST, [], start, {1e-3: records}, 1e-3).evidence
    assert tokens == (
        "tokens: after 3 steps at lr 0.001 the token vectors at layers.3 are still different (spread 12 % of their "
        "norm, 80 % before training)"
    )
    assert update == "‖ΔF‖: the first step changes the model's output by 25 % of its norm, 5 steps by 125 %"


def test_tokens_that_are_alike_are_a_collapse(numbers: None) -> None:
    v = judge(POST, [], before(), {1e-3: rollout(0.006)}, 1e-3)
    assert v.evidence[0] == (
        "tokens: after 3 steps at lr 0.001 the token vectors at layers.0 are almost identical (spread 0.6 % of their "
        "norm, 100 % before training): the model has collapsed"
    )


@pytest.mark.parametrize("records", [[], rollout(steps=1)], ids=["none", "one step"])
def test_a_rollout_that_broke_off_is_judged_without_an_error(records: list[Record], numbers: None) -> None:
    v = judge(POST, [], before(), {1e-3: records}, 1e-3)
    assert not v.trains
    assert v.evidence == [line for line in v.evidence if line]


# Remedies

FAULT = Finding("norm_twice", "layers.1", "two norms follow each other directly: remove one of them")
NOTE = Finding("final_norm_redundant", "layers", "it does no harm and can go", "note")


def test_remedies_go_from_the_least_change_to_the_greatest(numbers: None) -> None:
    v = judge(POST, [NOTE, FAULT], before(), {1e-3: at(-0.4), 2e-3: at(-0.6)}, 2e-3)
    fix, warm_up, rate, deepnorm, pre_ln = v.remedies
    assert fix == f"fix layers.1: {FAULT.message}"
    assert warm_up == "warm up for about 50 updates"
    assert rate == f"lower the rate to {0.7 * v.highest_rate:.1e}"
    assert "DeepNorm" in deepnorm
    assert "encoder alpha 1.57" in deepnorm  # 6^¼
    assert "Pre-LN" in pre_ln


def test_a_fault_is_to_be_fixed_even_where_the_model_trains(numbers: None) -> None:
    v = judge(PRE, [FAULT, NOTE], before(), {1e-3: at(0)}, 1e-3)
    assert v.trains
    assert v.remedies == [f"fix layers.1: {FAULT.message}"]


def test_pre_ln_is_not_advised_to_become_what_it_is(numbers: None) -> None:
    v = judge(PRE, [], before(), {1e-3: at(-0.4), 2e-3: at(-0.6)}, 2e-3)
    assert [line.split()[0] for line in v.remedies] == ["warm", "lower"]


def test_deepnorm_is_advised_with_the_constants_of_both_stacks(numbers: None) -> None:
    encoder = [connection(i, stack="encoder") for i in range(12)]
    kinds = ["attention", "cross-attention", "feed-forward"]
    decoder = [connection(12 + i, stack="decoder", sublayer=kinds[i % 3]) for i in range(18)]
    v = judge([*encoder, *decoder], [], before(count=30), {1e-3: rollout(0.01, count=30)}, 1e-3)
    (said,) = (line for line in v.remedies if "DeepNorm" in line)
    assert "encoder alpha 1.42, encoder beta 0.497, decoder alpha 2.06, decoder beta 0.343" in said


def test_the_rate_advised_would_train(numbers: None) -> None:
    rollouts = {1e-3: at(-0.4), 2e-3: at(-0.6)}
    v = judge(POST, [], before(), rollouts, 2e-3)
    (said,) = (line for line in v.remedies if line.startswith("lower the rate to "))
    rate = float(said.removeprefix("lower the rate to "))
    assert rate < v.highest_rate
    assert judge(POST, [], before(), {rate: at(-0.45)} | rollouts, rate).trains


# In words


def said_of(v: Verdict, *findings: Finding) -> list[str]:
    return lines(Inspection("my model", POST, findings, [], v, {}))


def test_the_lines_begin_with_the_answer_and_end_with_what_to_do(numbers: None) -> None:
    v = judge(POST, [FAULT, NOTE], before(), {1e-3: at(-0.4), 2e-3: at(-0.6)}, 2e-3)
    said = said_of(v, Finding(FAULT.name, FAULT.where, FAULT.message, places=3), NOTE)
    assert said[0] == f"my model: {v.answer}"
    assert said[1].startswith("  at lr 0.002, warm-up 0: does not train (probability of learning 0.")
    assert f"  in the first step the residual stream changes most from {v.where} on" in said
    assert f"  wrong: layers.1 (3 places): {FAULT.message}" in said
    assert f"  note: layers: {NOTE.message}" in said
    assert [line for line in said if line.startswith("  to do: ")] == [f"  to do: {line}" for line in v.remedies]
    assert said[-1].startswith("  to do: ")
    assert str(Inspection("my model", POST, [], [], v, {})) == "\n".join(said_of(v))


def test_a_model_that_trains_has_no_place_where_trouble_starts(numbers: None) -> None:
    said = said_of(judge(PRE, [], before(), {1e-3: at(0)}, 1e-3))
    assert "trains" in said[1]
    assert not any("changes most" in line or "to do" in line for line in said)


def test_outside_what_it_was_fitted_on_stands_below_the_answer(numbers: None) -> None:
    v = judge(PRE, [], before(), {1e-3: at(0)}, 1e-3, outside=["width 512", "data other than number words"])
    assert said_of(v)[2] == (
        "  outside what the verdict was fitted on (width 512, data other than number words): a hint, not a verdict"
    )
    assert not any("outside" in line for line in said_of(judge(PRE, [], before(), {1e-3: at(0)}, 1e-3)))


# No torch


def test_none_of_it_loads_torch() -> None:
    imports = ", ".join(NO_TORCH)
    program = f"import sys, {imports}; print(sorted(m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
