"""Commands in forked processes: torch is loaded once for thousands of them. Linux and macOS; CPU only.

Everything happens below one scratch folder, which is also the home, the cache and the current folder of every command.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
STUCK = 110.0  # seconds after which a command says on stderr where it is
WORD = 20.0  # seconds within which a command at work says something: a training does every ten
# What commands load as they run, which torch's optimizers do too: once here, and not in each of thousands of processes.
LOADED = (
    "leadline.cli", "leadline.training.trained", "leadline.report.figures", "leadline.diagnose.inspect",
    "tensorboard.summary.writer.record_writer", "matplotlib.pyplot", "sacrebleu", "rich.progress", "typer.rich_utils",
    "torch._dynamo",
)  # fmt: skip


def load() -> None:
    for name in LOADED:
        importlib.import_module(name)


@dataclass(frozen=True)
class Ended:
    """How a command has ended."""

    code: int  # its exit code; below 0: the signal that ended it
    out: str
    err: str
    seconds: float
    memory: int  # bytes resident at the most
    silent: float = 0.0  # of one that did not end: seconds since its last word

    @property
    def crashed(self) -> bool:
        """What no user should ever see: a traceback, or the end of the interpreter."""
        return "Traceback (most recent call last)" in self.err or "Fatal Python error" in self.err or self.code < 0


class Command:
    """`leadline ARGUMENTS` in a forked process. `before` runs there first: it may break things."""

    def __init__(
        self, arguments: list[str], folder: Path, stdin: bytes = b"", before: Callable[[], None] = lambda: None
    ) -> None:
        self.files = [folder / f".{name}.{time.monotonic_ns()}" for name in ("stdin", "stdout", "stderr")]
        for path, content in zip(self.files, (stdin, b"", b""), strict=True):
            path.write_bytes(content)
        self.begun = time.monotonic()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._become(arguments, folder, before)
            finally:
                os._exit(70)

    def _become(self, arguments: list[str], folder: Path, before: Callable[[], None]) -> None:
        from leadline import cli

        gc.freeze()  # what waits to be collected here may have threads, which only the other process can end
        for number, path in enumerate(self.files):
            os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY), number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(i, "r" if i == 0 else "w", encoding="utf-8") for i in range(3))
        os.chdir(folder)
        faulthandler.dump_traceback_later(STUCK, file=sys.stderr)
        code: object = 70
        try:
            before()
            sys.argv = ["leadline", *arguments]
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else 1)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, limit: float = 120.0) -> Ended:
        """Until it ends; one that does not is killed, with the code of SIGALRM."""
        while True:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() - self.begun > limit:
                self.kill()
                _, status, usage = os.wait4(self.pid, 0)
                status = signal.SIGALRM
                break
            time.sleep(0.002)
        silent = time.time() - max(path.stat().st_mtime for path in self.files[1:])
        out, err = (path.read_text(encoding="utf-8", errors="replace") for path in self.files[1:])
        if status == signal.SIGALRM and (silent > WORD or "Timeout (" in err):  # which faulthandler says
            print(f"a command did not end:\n{err}", file=sys.stderr)  # with the test or trial that waited for it
        for path in self.files:
            path.unlink(missing_ok=True)
        seconds = time.monotonic() - self.begun
        unit = 1 if sys.platform == "darwin" else 1024
        return Ended(os.waitstatus_to_exitcode(status), out, err, seconds, usage.ru_maxrss * unit, silent)


def call(
    arguments: list[str],
    folder: Path,
    stdin: bytes = b"",
    before: Callable[[], None] = lambda: None,
    limit: float = 120.0,
) -> Ended:
    return Command(arguments, folder, stdin, before).wait(limit)


def limit_memory(size: int) -> Callable[[], None]:
    """For `before`: an allocation that needs more than `size` bytes of address space on top fails."""

    def apply() -> None:
        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + size, now + size))

    return apply
