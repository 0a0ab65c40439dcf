"""A rate from short trainings: which are tried and which is chosen, without a model."""

from __future__ import annotations

import math

import pytest

from leadline.errors import UserError
from leadline.rates import COLLAPSED, LOOK, NEAR, Ended, budget, choice, ladder, lengths, risen, search, warmup


def valley(best: float, width: float = 1.0, breaks: float = math.inf):  # type: ignore[no-untyped-def]
    """A loss that is lowest at `best`, and not finite from `breaks` on."""

    def trial(rate: float, updates: int) -> Ended:
        return Ended(math.inf if rate >= breaks else 2 + width * math.log2(rate / best) ** 2)

    return trial


@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
@pytest.mark.parametrize("updates", [140, 320, 3000])
def test_the_best_rate_is_found_within_the_budget(optimizer: str, updates: int) -> None:
    rates = ladder(optimizer)
    best = rates[4]
    rate, tried = search(valley(best), rates, updates, 100_000)
    assert rate == best / 2  # so early
    assert updates / 2 < sum(t.updates + LOOK for t in tried) <= updates


@pytest.mark.parametrize(("best", "seems"), [(4, 4), (2, 4), (5, 4), (0, 2), (9, 10), (10, 10)])
def test_the_last_round_goes_on_until_the_best_has_both_neighbours(best: int, seems: int) -> None:
    rates = ladder("Adam")
    first = lengths(len(rates), 3000, 400)[0]

    def trial(rate: float, updates: int) -> Ended:
        return valley(rates[seems if updates == first else best])(rate, updates)

    rate, tried = search(trial, rates, 3000, 400)
    assert rate == rates[best]
    last = {t.rate for t in tried if t.updates == 400}
    assert last >= set(rates[max(best - 1, 0) : best + 2])
    assert sum(t.updates + LOOK for t in tried) <= 3000


def test_where_a_look_may_take_it_whole_trainings_are_compared_and_none_twice() -> None:
    rates = ladder("Adam")
    rate, tried = search(valley(rates[5]), rates, 1250, 100)
    assert rate == rates[5]
    assert {t.updates for t in tried} == {100}
    assert len({t.rate for t in tried}) == len(tried)
    assert lengths(11, 1250, 200)[1] == 200
    assert lengths(11, 1250, 10_000)[1] < 250


def test_of_a_look_at_a_quarter_or_less_half_the_best_rate_is_taken_and_the_reason_says_so() -> None:
    rates = ladder("Adam")
    last = lengths(len(rates), 320, 400)[1]
    rate, tried = search(valley(rates[4]), rates, 320, 4 * last - 1)
    assert rate == rates[4]
    assert "lowest rate within" in choice(rate, 40, 4 * last - 1, tried).reason
    rate, tried = search(valley(rates[4], width=NEAR / 2), rates, 320, 4 * last)
    assert rate == rates[4] / 2  # of that with the lowest loss, and not of one near it
    said = choice(rate, 40, 4 * last, tried)
    assert said.rate == rate
    assert f"half of 0.001, whose loss of 2 is the best after {last} of {4 * last} updates (0.0005: " in said.reason
    assert "may be better" not in said.reason
    rate, tried = search(valley(1e9), rates, 320, 400)
    assert rate == rates[-1] / 2
    assert "(0.064 is an end of what was tried: beyond it may be better)" in choice(rate, 40, 400, tried).reason
    rate, tried = search(lambda rate, updates: Ended(rate, COLLAPSED / 2), rates, 320, 400)
    assert rate == rates[0] / 2
    assert "this model may not train at all" in choice(rate, 40, 400, tried).reason


def test_a_look_stops_where_its_updates_are_spent_and_says_so() -> None:
    rates = ladder("Adam")
    first = lengths(len(rates), 320, 100_000)[0]

    def trial(rate: float, updates: int) -> Ended:
        return valley(rates[0 if updates == first else 10])(rate, updates)

    rate, tried = search(trial, rates, 320, 100_000)
    assert rate < rates[10]
    assert sum(t.updates + LOOK for t in tried) <= 320
    assert "may be better" in choice(rate, 40, 100_000, tried).reason


def test_a_rate_that_breaks_or_collapses_is_never_chosen_over_one_that_does_not() -> None:
    rates = ladder("Adam")
    assert search(valley(rates[-1], breaks=rates[6]), rates, 320, 100)[0] == rates[5]

    def collapses(rate: float, updates: int) -> Ended:
        return Ended(1 / rate, 1.0 if rate <= rates[3] else COLLAPSED / 2)

    assert search(collapses, rates, 320, 100)[0] == rates[3]

    def recovers(rate: float, updates: int) -> Ended:
        return Ended(1 / rate, COLLAPSED / 2 if rate == rates[4] else 1.0)

    assert search(recovers, rates, 320, 100)[0] == rates[3]  # what lies above a failure is luck


def test_where_all_rates_collapse_the_reason_says_so() -> None:
    rates = ladder("Adam")
    rate, tried = search(lambda rate, updates: Ended(rate, COLLAPSED / 2), rates, 320, 100)
    assert "this model may not train at all" in choice(rate, 40, 100, tried).reason
    rate, tried = search(valley(rates[4]), rates, 320, 100)
    assert "may not train" not in choice(rate, 40, 100, tried).reason


def test_of_rates_that_end_alike_the_lowest_is_taken() -> None:
    rates = ladder("Adam")
    rate, tried = search(valley(rates[5], width=NEAR / 2), rates, 320, 100)
    assert rate == rates[4]
    assert "may be better" not in choice(rate, 40, 100, tried).reason  # the best, above it, has both neighbours
    rate, tried = search(valley(rates[10], width=NEAR / 2), rates, 320, 100)
    assert rate == rates[9]
    assert "(0.064 is an end of what was tried: beyond it may be better)" in choice(rate, 40, 100, tried).reason


def test_where_nothing_survives_or_the_budget_is_too_small_a_sentence_says_so() -> None:
    with pytest.raises(UserError, match="not finite at any rate"):
        search(valley(1, breaks=0), ladder("Adam"), 320, 100)
    with pytest.raises(UserError, match="are needed"):
        search(valley(1), ladder("Adam"), 20, 400)


def test_a_look_takes_its_share_of_the_training_or_a_minute() -> None:
    assert budget(100_000, 1e12, "cpu") == 3000
    assert budget(100_000, 1e12, "cpu", processes=4) == 750
    assert budget(400, 1e8, "cpu") == 1250
    assert budget(400, 1e11, "cpu") == 12
    assert budget(400, 1e12, "cuda") == 1250


def test_the_warm_up_is_a_tenth_and_is_run_through_in_a_look() -> None:
    assert [warmup(n) for n in (5, 400, 40_000, 400_000)] == [0, 40, 4000, 4000]
    assert [risen(step, 30, 400, 40) for step in (1, 5, 10, 30)] == [0.1, 0.5, 1.0, 1.0]
    assert [risen(step, 300, 400, 40) for step in (1, 20, 40)] == [0.025, 0.5, 1.0]
    assert risen(20, 60, 60, 40) == 0.5  # as long as the training
    assert risen(1, 30, 400, 0) == risen(1, 4, 400, 40) == 1.0


def test_the_reason_names_what_was_tried() -> None:
    rates = ladder("Adam")
    rate, tried = search(valley(rates[4]), rates, 320, 100)
    said = choice(rate, 40, 100, tried)
    assert said.rate == rate == 1e-3
    assert f"{said.updates} updates in all" in said.reason
    assert "8 from 6.25e-05 to 0.064 were tried, " in said.reason
    rate, tried = search(valley(1e9), rates, 320, 100)
    assert "may be better" in choice(rate, 40, 100, tried).reason
    assert "49 updates (" in choice(rate, 40, 100, tried).reason
    assert "49 updates, the whole training (" in choice(rate, 40, 49, tried).reason
