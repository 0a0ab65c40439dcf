"""Batches are made in a thread while the device works on earlier ones."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any


def prefetched(items: Iterable[Any], ahead: int = 4) -> Iterator[Any]:
    """The same items, made in a thread while the previous ones are used."""
    ready: queue.Queue[Any] = queue.Queue(ahead)
    stop = threading.Event()

    def put(item: Any) -> bool:
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
