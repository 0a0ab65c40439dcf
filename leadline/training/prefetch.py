"""Batches are made in a thread while a GPU works on earlier ones."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
AHEAD = 4  # items that wait


def prefetched(items: Iterable[T]) -> Iterator[T]:
    """The same items, made in a thread while the previous ones are used."""
    ready: queue.Queue[Any] = queue.Queue(AHEAD)
    stop = threading.Event()

    def put(item: object) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put((item, None)):
                    return
        except BaseException as error:
            put((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error:
                raise error
            yield item
    finally:
        stop.set()
        thread.join()
