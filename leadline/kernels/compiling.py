"""Functions that torch.compile leaves as they are, and compiles around."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F) -> F:
    """As torch.compiler.disable, but where nothing is compiled it does not load the compiler, which takes seconds."""
    # The former loads it when it is called, the latter at once.
    apart = getattr(torch, "_disable_dynamo", torch.compiler.disable)(function)

    @functools.wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        return (apart if torch.compiler.is_compiling() else function)(*arguments, **named)

    return run  # type: ignore[return-value]
