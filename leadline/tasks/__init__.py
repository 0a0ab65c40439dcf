"""The table of tasks."""

from __future__ import annotations

from leadline.errors import UserError, nearest
from leadline.tasks.base import Task
from leadline.tasks.translation import Translation

TASKS: dict[str, type[Translation]] = {"translation": Translation}


def find(name: str) -> type[Translation]:
    if name not in TASKS:
        raise UserError(f"there is no task {name!r}: {nearest(name, TASKS)}")
    return TASKS[name]


__all__ = ["TASKS", "Task", "Translation", "find"]
