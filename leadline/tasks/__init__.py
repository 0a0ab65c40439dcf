"""The table of tasks."""

from __future__ import annotations

from leadline.errors import UserError, nearest
from leadline.tasks.base import Task
from leadline.tasks.masked_lm import MaskedLM
from leadline.tasks.translation import Translation

TASKS: dict[str, type[Task]] = {"translation": Translation, "masked_lm": MaskedLM}


def find(name: str) -> type[Task]:
    if name not in TASKS:
        raise UserError(f"there is no task {name!r}: {nearest(name, TASKS)}")
    return TASKS[name]


__all__ = ["TASKS", "MaskedLM", "Task", "Translation", "find"]
