"""What can be inspected by name: a recipe, a run, a Hugging Face folder, a function that returns a model."""

from __future__ import annotations

from typing import Any

import torch

from leadline import tasks
from leadline.config import Config
from leadline.data import batching
from leadline.data.store import Progress, Store, prepare
from leadline.diagnose.probe import Subject
from leadline.model import Transformer
from leadline.training import optim

BATCHES = 5  # one to look at, four to train on


def subject_of(config: Config, model: Transformer | None = None, progress: Progress | None = None) -> Subject:
    """The model, the data and the optimizer a config would train; `model`: with weights it already has."""
    store = Store(prepare(config.data, progress=progress or (lambda what, done: None)))
    task = tasks.find(config.task)(config, store)
    fresh = model is None
    model = model if model is not None else task.build_model()
    model.use_attention("padded")
    plan = batching.epoch_plan(task.lengths, task.shape, config.train.seed, 0)
    device = next(model.parameters()).device
    batches = [task.collate(rows).to(device) for rows in plan[:BATCHES]]

    def call(model: Any, batch: Any) -> torch.Tensor:
        return model(batch.source, batch.target)

    def loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
        return tasks.translation.loss_of_hidden(model, output, batch, config.train.label_smoothing) / batch.count

    return Subject(model, batches, loss, optim.optimizer(config.optim, model), fresh, call)
