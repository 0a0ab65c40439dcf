"""Which trainings there are, and what is put into each."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import torch
from torch import Tensor, nn

TRAININGS = ("translation", "masked_lm", "causal_lm", "gpt2")
FAULTS = ("bad_batch", "labels", "rate", "weights", "embedding", "loss_scale", "precision", "moments", "data", "norm")
AFTER = 25  # updates that a training goes on with a fault


@dataclasses.dataclass(frozen=True)
class Case:
    training: str
    fault: str  # "" : healthy
    seed: int

    @property
    def name(self) -> str:
        return f"{self.training}-{self.fault or 'healthy'}-{self.seed}"

    @property
    def at(self) -> int:
        return random.Random(f"{self.name} at").randint(60, 95)

    @property
    def layer(self) -> int:
        return random.Random(f"{self.name} layer").randint(0, 3)


class Injector:
    """Puts a fault into a training: into batches, before an update's forward pass, and into its gradients."""

    def __init__(self, case: Case) -> None:
        self.case, self.generator = case, torch.Generator().manual_seed(case.seed)
        self.optimizer: Any = None
        self.where = ""

    def rate(self, update: int) -> float:
        return 10.0 if self.case.fault == "rate" and update >= self.case.at else 1.0

    def tokens(self, update: int, inputs: Tensor, words: int) -> Tensor:
        """The inputs of a batch."""
        if self.case.fault == "bad_batch" and update == self.case.at:
            return torch.randint(8, words, inputs.shape, generator=self.generator)
        if self.case.fault == "data" and update >= self.case.at:
            return self._other(words)[inputs]
        return inputs

    def labels(self, update: int, labels: Tensor, words: int, valid: Tensor) -> Tensor:
        labels = labels.clone()
        if self.case.fault == "bad_batch" and update == self.case.at:
            labels[valid] = torch.randint(8, words, (int(valid.sum()),), generator=self.generator)
        if self.case.fault == "labels" and update >= self.case.at:
            labels[valid] = labels[valid][torch.randperm(int(valid.sum()), generator=self.generator)]
        if self.case.fault == "data" and update >= self.case.at:
            labels[valid] = self._other(words)[labels[valid]]
        return labels

    def _other(self, words: int) -> Tensor:
        """The same text in another alphabet; what is no word stays."""
        order = torch.randperm(words - 8, generator=torch.Generator().manual_seed(self.case.seed)) + 8
        return torch.cat([torch.arange(8), order])

    @torch.no_grad()
    def model(self, update: int, model: nn.Module) -> None:
        """Before an update's forward pass."""
        fault, new = self.case.fault, update == self.case.at
        if fault == "weights" and new:
            weights = _matrices(model)
            self.where, weight = weights[self.case.layer % len(weights)]
            weight.mul_(8)
        if fault == "embedding" and new:
            table = max((m.weight for m in model.modules() if isinstance(m, nn.Embedding)), key=lambda w: w.shape[0])
            table[20 + self.case.layer].normal_(0, 30 * float(table.std()), generator=self.generator)
        if fault == "precision" and update >= self.case.at:
            for p in model.parameters():
                p.copy_(p.bfloat16())
        if fault == "moments" and new:
            for state in self.optimizer.state.values():
                state["exp_avg"].zero_()
                state["exp_avg_sq"].zero_()
        if fault == "norm" and new:
            self._remove(model)

    def _remove(self, model: nn.Module) -> None:
        norms = [
            (name, module) for name, module in model.named_modules()
            if isinstance(module, nn.LayerNorm) or type(module).__name__ == "LayerNorm"
        ]  # fmt: skip
        inside = [(name, m) for name, m in norms if any(part.isdigit() for part in name.split("."))]
        self.where, _ = inside[self.case.layer % len(inside)]
        parent, _, attribute = self.where.rpartition(".")
        setattr(model.get_submodule(parent), attribute, nn.Identity())

    def gradients(self, update: int, model: nn.Module) -> None:
        if self.case.fault == "loss_scale" and update >= self.case.at:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.mul_(64)


def _matrices(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Those of the blocks."""
    return [
        (name, p) for name, p in model.named_parameters()
        if p.ndim == 2 and any(part.isdigit() for part in name.split("."))
    ]  # fmt: skip


def cases() -> list[Case]:
    """The healthy ones first seeds of all, so that a part of the whole is of every kind."""
    faulty = [Case(training, fault, seed) for seed in (2, 1) for fault in FAULTS for training in TRAININGS]
    healthy = [Case(training, "", seed) for seed in range(10) for training in TRAININGS]
    return [*faulty, *healthy]
