"""What a user did that cannot work, said in one sentence: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Ends a command with its message and exit code 2, without a traceback."""


class Diverged(Exception):
    """Training met a loss or gradient that is not finite: exit code 3."""


def nearest(wrong: str, right: Iterable[str]) -> str:
    """A hint for a name that does not exist: the closest right one, then all of them."""
    names = list(right)
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=0.5)
    return (f"did you mean {close[0]!r}? " if close else "") + f"the choices are {', '.join(names)}"
