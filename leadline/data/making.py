"""A folder made by one process at a time, on the disk before it has its name: it is whole or absent."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from leadline import machine
from leadline.errors import UserError
from leadline.files import sync

Progress = Callable[[str, int], None]  # what is being done, and how many more of it are done


class Unfinished(UserError):
    """A preparation was stopped, and the next goes on with what is there."""


def make(
    folder: Path,
    key: str,
    resumes: bool,
    is_made: Callable[[], bool],
    fill: Callable[[Path], None],
    progress: Progress,
) -> None:
    """Fill a hidden folder and rename it, unless another process does so meanwhile.

    A kill leaves the hidden folder. The next preparation of the same key goes on with it where the work `resumes`, and
    removes it otherwise, or where what is left cannot be resumed. A mistake in the text leaves nothing.
    """
    building = folder.with_name(f".{folder.name}.{key[:16]}.unfinished")
    building.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f".{folder.name}.lock"), progress):
        if is_made():
            return
        begun = resumes and building.exists()
        try:
            if begun:
                _fill(building, fill)
        except Unfinished:
            raise
        except Exception as error:
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise  # of the disk, and not of what lies there
            progress(f"an unfinished preparation cannot be resumed ({error}): starting over", 0)
            begun = False
        if not begun:
            shutil.rmtree(building, ignore_errors=True)
            try:
                _fill(building, fill)
            except BaseException as error:
                if not resumes or (isinstance(error, UserError) and not isinstance(error, Unfinished)):
                    shutil.rmtree(building, ignore_errors=True)
                raise
        _replace(folder, building)


def _fill(building: Path, fill: Callable[[Path], None]) -> None:
    building.mkdir(exist_ok=True)
    fill(building)
    for path in [*building.iterdir(), building]:
        sync(path)


def _replace(folder: Path, building: Path) -> None:
    before = folder.with_name(f".{folder.name}.before.unfinished")
    shutil.rmtree(before, ignore_errors=True)
    if folder.exists():
        folder.rename(before)
    building.rename(folder)
    sync(folder.parent)
    shutil.rmtree(before, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of that name: who had it before removed the file, so the one locked may not be that any more."""
    while True:
        with path.open("w") as file:
            if not machine.lock(file, wait=False):
                progress("waiting for another process that prepares the same", 0)
                machine.lock(file, wait=True)
            if not _is(path, file.fileno()):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
