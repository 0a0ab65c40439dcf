"""What differs between operating systems: how many cores this process may use, and how a file is locked. No torch."""

from __future__ import annotations

import os
from typing import IO, Any

from leadline.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def cores() -> int:
    """Those this process may run on; where the system does not tell, all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def lock(file: IO[Any], wait: bool) -> bool:
    """Lock an open file until it is closed, however the process ends; False: another process holds it.

    Where the system has no such locks, nothing is locked: do not start two commands on one folder there.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        raise UserError(f"{file.name} cannot be locked: {error.strerror}; use a folder on another filesystem") from None
    return True
