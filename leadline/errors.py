"""What a user did that cannot work, said in one sentence: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable
from pathlib import Path


class UserError(Exception):
    """Ends a command with its message and exit code 2, without a traceback."""


class Unfit(UserError):
    """A model that cannot be read, or that no rate could train: certify answers no and does not call it a mistake."""


class Diverged(Exception):
    """Training met a loss or gradient that is not finite: exit code 3."""


class Interrupted(Exception):
    """A signal asked training to stop; everything is saved."""

    def __init__(self, number: int, folder: Path, update: int) -> None:
        super().__init__(number, folder, update)
        self.number, self.folder, self.update = number, folder, update

    def __str__(self) -> str:
        name = signal.Signals(self.number).name
        return f"{name} after update {self.update}: saved; go on with leadline train --resume {self.folder}"


def nearest(wrong: str, right: Iterable[str]) -> str:
    """A hint for a name that does not exist: the closest right one, then all of them."""
    names = list(right)
    plain = {name.lower().replace("-", "_"): name for name in names}
    close = difflib.get_close_matches(wrong.lower().replace("-", "_"), plain, n=1, cutoff=0.5)
    return (f"did you mean {plain[close[0]]!r}? " if close else "") + f"the choices are {', '.join(names)}"


def first_line(error: BaseException) -> str:
    """What somebody else's error says, in a line; its kind where that alone tells nothing."""
    said = str(error).strip().splitlines()
    kind = type(error).__name__
    return f"{kind}: {said[0]}" if said and len(said[0].split()) < 3 else said[0] if said else kind
