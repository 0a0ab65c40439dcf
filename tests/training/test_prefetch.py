"""Batches made ahead in a thread, as a training on a GPU has them: the same, in order, and no thread is left."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from leadline.training.prefetch import AHEAD, prefetched


def test_items_come_in_order_made_ahead_by_a_thread_that_ends_when_no_more_are_wanted() -> None:
    before, ahead = threading.active_count(), threading.Event()

    def endless() -> Iterator[int]:
        for number in itertools.count():
            if number > AHEAD:
                ahead.set()
            yield number

    used = prefetched(endless())
    assert next(used) == 0
    assert ahead.wait(10)
    assert [next(used) for _ in range(9)] == list(range(1, 10))
    used.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_mistake_in_the_thread_is_raised_where_the_item_is_wanted(error: type[BaseException]) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise error("of the second")

    used = prefetched(failing())
    assert next(used) == 1
    with pytest.raises(error, match="of the second"):
        next(used)
