"""The command line. Answers go to stdout (`--json` for programs), progress to stderr, errors are one sentence."""

from __future__ import annotations

import os

# Read when torch loads: without it, waiting threads spin and a busy machine slows training down twentyfold.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import signal
import sys
from typing import NoReturn

import typer

# In the order in which --help lists their commands, which they register.
from leadline.cli import trainings, generation, encoders, exchange, texts, choices, diagnosis, comparison  # noqa: F401  # isort: skip
from leadline.cli.app import app as app
from leadline.cli.app import require_values, unusable
from leadline.errors import Diverged, Interrupted, UserError
from leadline.files import reason
from leadline.world import leave_with, tells


def main() -> None:
    try:
        require_values(sys.argv[1:])
        code = app(prog_name="leadline", standalone_mode=False)
        if code == 128 + signal.SIGINT:  # typer has caught a KeyboardInterrupt
            _leave("stopped", code)
        print(end="", flush=True)  # a reader that has left is noticed here and not at exit
        sys.exit(code)
    except UserError as error:
        _leave(str(error), 2)
    except Diverged as error:
        _leave(str(error), 3)
    except Interrupted as stop:
        _leave(str(stop), 128 + stop.number)
    except (KeyboardInterrupt, typer.Abort):  # older versions of typer
        _leave("stopped", 128 + signal.SIGINT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read stdout has left
        sys.exit(1)
    except Exception as error:
        if not (sentence := _said(error)):
            raise
        _leave(sentence, 2)


def _said(error: Exception) -> str:
    """The sentence for an error that is the machine's or typer's, and not a mistake in the code; "": it may be one."""
    if isinstance(error, OSError):
        return f"{error.filename}: {reason(error)}" if error.filename else reason(error)
    if type(error).__name__ == "OutOfMemoryError":  # torch's; not imported here
        return "the device is out of memory: lower train.batch_tokens, or decode.batch_tokens to translate"
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):  # Python's and numpy's; torch's
        return "this machine is out of memory: try a smaller model, train.batch_tokens or decode.batch_tokens"
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:  # bytes of a path or an argument
        text = error.object[max(0, error.start - 60) : error.end + 60].encode(errors="backslashreplace").decode()
        return f"a name that is not UTF-8 cannot be written: rename what is called {text}"
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # pathlib's, until Python 3.13
        return f"{str(error).partition(' from ')[2]} is a link that leads to itself: remove it or name another path"
    if isinstance(error, RecursionError):
        return "something is nested too deeply to be read: look for thousands of brackets in a config or JSON file"
    return unusable(error)


def _leave(message: str, code: int) -> NoReturn:
    if tells():
        print(f"leadline: {message}", file=sys.stderr)
    leave_with(code)
