"""What a user did that cannot work, said in one sentence: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable
from pathlib import Path

MANY = 40  # names that are not all listed where one is near


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


def runs_in(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/config.toml"))


def not_a_run(folder: Path) -> UserError:
    """For what was named as the folder of a run and is none."""
    if not folder.exists():
        return UserError(f"{folder} does not exist: give the folder of a run")
    if folder.is_file():
        return UserError(f"{folder} is a file: give the folder of the run")
    if inside := runs_in(folder):
        return UserError(f"{folder} is a folder of runs: name those you mean, such as {inside[0]}, or {folder}/*")
    return UserError(f"{folder} is not a run: it has no config.toml")


def nearest(wrong: str, right: Iterable[str]) -> str:
    """A hint for a name that does not exist: the closest right one, then all of them, if they are not many."""
    names = list(right)
    plain = {name.lower().replace("-", "_"): name for name in names}
    few = len(names) <= MANY
    close = difflib.get_close_matches(wrong.lower().replace("-", "_"), plain, n=1, cutoff=0.5 if few else 0.7)
    choices = f"the choices are {', '.join(names)}"
    if not close:
        return choices
    return f"did you mean {plain[close[0]]!r}?" + (f" {choices}" if few else "")


def first_line(error: BaseException) -> str:
    """What somebody else's error says, in a line; its kind where that alone tells nothing."""
    said = str(error).strip().splitlines()
    kind = type(error).__name__
    return f"{kind}: {said[0]}" if said and len(said[0].split()) < 3 else said[0] if said else kind
