"""The command line. Answers go to stdout (`--json` for programs), progress to stderr, errors are one sentence."""

from __future__ import annotations

import os

# Read when torch loads: without it, waiting threads spin and a busy machine slows training down twentyfold.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import signal
import sys

import typer

# In the order in which --help lists their commands, which they register.
from leadline.cli import trainings, encoders, diagnosis, comparison, texts  # isort: skip
from leadline.cli.app import app
from leadline.errors import Diverged, Interrupted, UserError
from leadline.files import reason

__all__ = ["app", "comparison", "diagnosis", "encoders", "main", "texts", "trainings"]


def main() -> None:
    try:
        code = app(standalone_mode=False)
        if code == 128 + signal.SIGINT:  # typer has caught a KeyboardInterrupt
            _leave("stopped", code)
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
    except OSError as error:
        _leave(f"{error.filename}: {reason(error)}" if error.filename else reason(error), 2)
    except Exception as error:
        # torch's, which is not imported here, and what it says of a CPU
        if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error):
            _leave("the device is out of memory: lower train.batch_tokens, or decode.batch_tokens to translate", 2)
        if not hasattr(error, "show"):
            raise
        error.show()  # an option or argument that does not exist
        sys.exit(2)


def _leave(message: str, code: int) -> None:
    print(f"leadline: {message}", file=sys.stderr)
    sys.exit(code)
