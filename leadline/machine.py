"""What differs between operating systems: cores and memory that this process may use, locks of files. No torch."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
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


def memory() -> float:
    """Bytes of this machine, or fewer where a container is given less; infinite where the system does not tell."""
    limits = [math.inf]
    with contextlib.suppress(AttributeError, ValueError, OSError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(ValueError, OSError):  # "max": no limit
            limits.append(int(Path(path).read_text()))
    return min(limits)


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


def lock_is_held(path: Path) -> bool:
    """Whether a process of this machine holds the lock of a file, which is not touched; False where that is unknown."""
    try:
        number = path.stat().st_ino
        locks = Path("/proc/locks").read_text()  # "1: FLOCK  ADVISORY  WRITE 4711 08:02:131072 0 EOF"
    except OSError:
        return False
    fields = [line.split() for line in locks.splitlines()]
    return any(each[1] == "FLOCK" and each[5].rpartition(":")[2] == str(number) for each in fields if len(each) > 5)
