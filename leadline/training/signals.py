"""SIGINT and SIGTERM, which end a training with everything saved."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

TOGETHER = 1.0  # seconds within which signals count as one


@contextlib.contextmanager
def watching_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM are noted, for the loop to save and leave; one that comes a while later ends the process.

    A terminal's Ctrl-C reaches a command and its trainings at once, and the command then tells them to leave: signals
    that come together are one.
    """
    received: list[int] = []
    times: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, _: object) -> None:
        received.append(number)
        times.append(time.monotonic())
        if times[-1] - times[0] > TOGETHER:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    before: dict[int, Any] = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
