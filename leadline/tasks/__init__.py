"""The table of tasks."""

from __future__ import annotations

from typing import Any

from leadline.config import Config
from leadline.data.sources import FORMS
from leadline.data.store import holds
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


def require(config: Config) -> None:
    """Refuse what its task cannot train, before any text is prepared."""
    task, source = find(config.task), config.data.source
    task.require(config)
    if (there := holds(source)) and there != task.holds:
        raise UserError(
            f"data.source={source} has {FORMS[there].words}, and {config.task} needs {FORMS[task.holds].words}: set "
            f"data.source={FORMS[task.holds].needed}"
        )


__all__ = ["TASKS", "AnyTask", "CausalLM", "Classification", "MaskedLM", "Task", "Translation", "find", "require"]
