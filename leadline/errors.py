"""What a user did that cannot work, said in one sentence: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable
from pathlib import Path


class UserError(Exception):
    """Ends a command with its message and exit code 2, without a traceback."""


class Diverged(Exception):
    """Training met a loss or gradient that is not finite: exit code 3."""


class Interrupted(Exception):
    """A signal asked training to stop; everything is saved."""

    def __init__(self, number: int, folder: Path, update: int) -> None:
        name = signal.Signals(number).name
        super().__init__(f"{name} after update {update}: saved; go on with leadline train --resume {folder}")
        self.number = number


def nearest(wrong: str, right: Iterable[str]) -> str:
    """A hint for a name that does not exist: the closest right one, then all of them."""
    names = list(right)
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=0.5)
    return (f"did you mean {close[0]!r}? " if close else "") + f"the choices are {', '.join(names)}"
