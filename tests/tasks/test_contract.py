"""What all tasks have in common, task by task; and that nobody else asks which task it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import pytest
import torch

import leadline
from leadline import tasks
from leadline.errors import UserError
from leadline.model import Transformer

PACKAGE = Path(leadline.__file__).parent
CASES = {name: case for name, case in handmade.CASES.items() if name in tasks.TASKS}


@pytest.fixture(params=tasks.TASKS)
def task(request: pytest.FixtureRequest) -> tasks.Task[Any, Any]:
    config, store = CASES[request.param]
    return tasks.find(config.task)(config, store)


def test_a_side_is_a_pack_and_every_row_comes_once_an_epoch(task: tasks.Task[Any, Any]) -> None:
    rows = len(task.train.lengths)
    assert task.train.lengths.shape == (rows, len(task.shape.sides))
    assert sorted(np.concatenate(task.epoch(2))) == list(range(rows))
    batch = task.collate(task.epoch(2)[0], 2)
    assert [len(pack.tokens) for pack in batch.packs()] == list(task.shape.sides)


def test_epochs_differ_and_are_a_function_of_seed_and_number(task: tasks.Task[Any, Any]) -> None:
    again = type(task)(task.config, task.store)
    other = type(task)(task.config.set(train={"seed": 77}), task.store)
    orders = [
        str([rows.tolist() for rows in each.epoch(n)]) for each, n in ((task, 1), (again, 1), (task, 0), (other, 1))
    ]
    assert orders[0] == orders[1]
    assert len(set(orders)) == 3


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_leaves_the_model_as_it_was(task: tasks.Task[Any, Any], training: bool, monkeypatch) -> None:
    model = task.build_model().train(training)
    modes: list[bool] = []
    forward = Transformer.forward
    monkeypatch.setattr(
        Transformer, "forward", lambda self, *packs: modes.append(self.training) or forward(self, *packs)
    )
    found = task.evaluate(model, "valid")
    assert np.isfinite(list(found.values())).all()
    assert not any(modes)
    assert model.training == training
    monkeypatch.setattr(type(task), "judge", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        task.evaluate(model, "valid")
    assert model.training == training


def test_a_split_with_nothing_short_enough_is_one_sentence() -> None:
    config, store = CASES["translation"]
    task = tasks.find("translation")(config, store)
    task.config = config.set(model={"max_length": 1})
    with pytest.raises(UserError, match="nothing in the valid split fits in"):
        task.evaluate(task.build_model(), "valid")


@pytest.mark.parametrize("name", [name for name in tasks.TASKS if name != "translation"])
def test_what_cannot_translate_says_so(name: str) -> None:
    with pytest.raises(UserError, match=f"this run was trained for {name}: it cannot translate"):
        tasks.find(name).translator(torch.nn.Identity(), None, CASES[name][0])  # type: ignore[arg-type]


def test_nothing_else_asks_which_task_it_is() -> None:
    classes = "|".join(kind.__name__ for kind in tasks.TASKS.values())
    asks = re.compile(
        rf"\btasks\.({classes})\b|import .*\b({classes})\b|\.task (==|!=|in) *[\"'(\[]|isinstance\(.*\b({classes})\b"
    )
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "tasks":
            assert not asks.findall(path.read_text(encoding="utf-8")), path
