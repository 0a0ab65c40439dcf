"""On what the verdict was fitted: each way to lie outside is named, and nothing is said within."""

from __future__ import annotations

from typing import Any

import pytest
from test_verdict import connection

from leadline.diagnose.connection import Connection
from leadline.diagnose.fitted import hint, outside, unlike

FACTS = {"optimizer": "Adam", "data": "builtin:numerals", "start": "xavier"}


def model(**changes: Any) -> list[Connection]:
    encoder = [connection(i, stack="encoder", **changes) for i in range(2)]
    kinds = ["attention", "cross-attention", "feed-forward"]
    return encoder + [connection(2 + i, **({"stack": "decoder", "sublayer": kinds[i]} | changes)) for i in range(3)]


def test_within() -> None:
    for placement in ("Post-LN", "Pre-LN", "DeepNorm"):
        assert outside(model(placement=placement), FACTS) == []
    assert hint([]) == ""


@pytest.mark.parametrize(
    ("changes", "facts", "said"),
    [
        ({"sublayer": "attention"}, {}, ["not an encoder-decoder"]),
        ({"placement": "Sandwich-LN"}, {}, ["Sandwich-LN"]),
        ({"dim": 512}, {}, ["width 512"]),
        ({}, {"optimizer": "SGD"}, ["optimizer SGD"]),
        ({}, {"start": "fairseq_2019"}, ["weights start at fairseq_2019"]),
        ({}, {"start": "trained"}, ["weights already trained"]),
        ({}, {"data": "text:here"}, ["data other than number words"]),
        ({}, {"batches": 1}, ["one batch to look at"]),
        ({}, {"batches": 2}, ["two batches to look at"]),
        ({}, {"batches": 3}, []),
        ({"dim": 16}, {"data": "", "start": ""}, ["width 16", "data other than number words"]),
    ],
)
def test_each_difference_is_named(changes: dict[str, Any], facts: dict[str, Any], said: list[str]) -> None:
    assert outside(model(**changes), FACTS | facts) == said


def test_several_placements_and_depth() -> None:
    mixed = [*model(), connection(5, placement="Pre-LN")]
    assert outside(mixed, FACTS) == ["Post-LN and Pre-LN"]
    deep = [*model(), *(connection(5 + i, stack="encoder") for i in range(50))]
    assert outside(deep, FACTS) == ["26 layers"]
    assert hint(["26 layers"]) == "outside what the verdict was fitted on (26 layers): a hint, not a verdict"


@pytest.mark.parametrize(
    ("changes", "facts", "longer"),
    [({}, {}, False), ({}, {"optimizer": "AdamW", "data": ""}, False), ({"placement": "ReZero"}, {}, True),
     ({}, {"optimizer": "SGD"}, True)],
)  # fmt: skip
def test_another_placement_or_optimizer_is_looked_at_for_longer(
    changes: dict[str, Any], facts: dict[str, Any], longer: bool
) -> None:
    assert unlike(model(**changes), FACTS | facts) == longer
