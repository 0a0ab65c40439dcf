"""The table of tasks."""

from __future__ import annotations

from typing import Any

from leadline.errors import UserError, nearest
from leadline.tasks.base import Task
from leadline.tasks.causal_lm import CausalLM
from leadline.tasks.classification import Classification
from leadline.tasks.masked_lm import MaskedLM
from leadline.tasks.translation import Translation

AnyTask = Task[Any, Any]
TASKS: dict[str, type[AnyTask]] = {
    "translation": Translation,
    "causal_lm": CausalLM,
    "masked_lm": MaskedLM,
    "classification": Classification,
}


def find(name: str) -> type[AnyTask]:
    if name not in TASKS:
        raise UserError(f"there is no task {name!r}: {nearest(name, TASKS)}")
    return TASKS[name]


__all__ = ["TASKS", "AnyTask", "CausalLM", "Classification", "MaskedLM", "Task", "Translation", "find"]
