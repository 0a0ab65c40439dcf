"""Which trainings there are, and what is put into each."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import torch
from torch import Tensor, nn

TRAININGS = ("translation", "masked_lm", "causal_lm", "gpt2")
FAULTS = ("bad_batch", "labels", "rate", "weights", "embedding", "loss_scale", "precision", "moments", "data", "norm")
SLOW = ("rising_rate", "drift", "starving", "logits", "decay", "rounding")
TABLES = {"sudden": FAULTS, "slow": SLOW}
NOISE = ("label_noise", "bursts", "tiny", "restarts")  # no faults: there from the first update on
WRONG, BURSTS, CYCLE = 0.3, 1 / 12, 30  # share of labels; of batches of another alphabet; updates between restarts
WARM_UP = 20
KINDS = {"rising_rate": "rate", "rounding": "precision"}  # as explain calls it, where it has another name
AFTER = {"slow": 60, "sudden": 25, "healthy": 25, "noisy": 105}  # updates that a training goes on for
RISES = 40  # updates in which a rate rises 20 times
DRIFTS = 40  # updates in which all data become others, and all numbers of a layer rounded ones


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
    def kind(self) -> str:
        return KINDS.get(self.fault, self.fault)

    @property
    def healthy(self) -> bool:
        return self.fault in ("", *NOISE)

    @property
    def table(self) -> str:
        tables = {**TABLES, "noisy": NOISE}
        return next((name for name, faults in tables.items() if self.fault in faults), "healthy")

    @property
    def updates(self) -> int:
        return self.at + AFTER[self.table]

    @property
    def layer(self) -> int:
        return random.Random(f"{self.name} layer").randint(0, 3)


class Injector:
    """Puts a fault into a training: into batches, before an update's forward pass, and into its gradients."""

    def __init__(self, case: Case) -> None:
        self.case, self.generator = case, torch.Generator().manual_seed(case.seed)
        self.optimizer: Any = None
        self.where = ""
        self.decays: list[tuple[Tensor, float]] = []  # weights that every step multiplies

    def hook(self, optimizer: Any) -> None:
        """What it does belongs to the optimizer's step, as weight decay does."""
        self.optimizer = optimizer
        optimizer.register_step_post_hook(lambda *_: self._decay())

    @torch.no_grad()
    def _decay(self) -> None:
        for weight, factor in self.decays:
            weight.mul_(factor)

    def rate(self, update: int) -> float:
        if self.case.fault == "rising_rate":
            return 20.0 ** self.share(update, RISES)
        if self.case.fault == "restarts":  # after warm-up it falls to a tenth, again and again
            return 0.55 + 0.45 * math.cos(math.pi * (max(0, update - WARM_UP) % CYCLE) / CYCLE)
        return 10.0 if self.case.fault == "rate" and update >= self.case.at else 1.0

    def share(self, update: int, updates: int) -> float:
        """How far a slow fault has come."""
        return min(1.0, max(0.0, (update + 1 - self.case.at) / updates))

    def tokens(self, update: int, inputs: Tensor, words: int) -> Tensor:
        """The inputs of a batch."""
        if self.case.fault == "bad_batch" and update == self.case.at:
            return torch.randint(8, words, inputs.shape, generator=self.generator)
        if self._is_other(update):
            return self._other(words, update)[inputs]
        return inputs

    def labels(self, update: int, labels: Tensor, words: int, valid: Tensor) -> Tensor:
        labels = labels.clone()
        if self.case.fault == "bad_batch" and update == self.case.at:
            labels[valid] = torch.randint(8, words, (int(valid.sum()),), generator=self.generator)
        if self.case.fault == "labels" and update >= self.case.at:
            labels[valid] = labels[valid][torch.randperm(int(valid.sum()), generator=self.generator)]
        if self.case.fault == "label_noise":
            noise = torch.randint(8, words, labels.shape, generator=self.generator)
            wrong = valid & (torch.rand(labels.shape, generator=self.generator) < WRONG)
            labels = torch.where(wrong, noise, labels)
        if self._is_other(update):
            labels[valid] = self._other(words, update)[labels[valid]]
        return labels

    def _is_other(self, update: int) -> bool:
        if self.case.fault == "bursts":
            return random.Random(f"{self.case.name} {update}").random() < BURSTS
        return self.case.fault in ("data", "drift") and update >= self.case.at

    def _other(self, words: int, update: int) -> Tensor:
        """The same text in another alphabet, or in one that has been drifting there; what is no word stays."""
        generator, same = torch.Generator().manual_seed(self.case.seed), torch.arange(words)
        other = torch.cat([same[:8], torch.randperm(words - 8, generator=generator) + 8])
        if self.case.fault != "drift":
            return other
        return torch.where(torch.rand(words, generator=generator) < self.share(update, DRIFTS), other, same)

    @torch.no_grad()
    def model(self, update: int, model: nn.Module) -> None:
        """Before an update's forward pass."""
        fault, new = self.case.fault, update == self.case.at
        if fault == "weights" and new:
            weights = _matrices(model)
            self.where, weight = weights[self.case.layer % len(weights)]
            weight.mul_(8)
        if fault == "embedding" and new:
            table = _table(model)
            table[20 + self.case.layer].normal_(0, 30 * float(table.std()), generator=self.generator)
        if fault == "precision" and update >= self.case.at:
            for p in model.parameters():
                p.copy_(p.bfloat16())
        if fault == "moments" and new:
            for state in self.optimizer.state.values():
                state["exp_avg"].zero_()
                state["exp_avg_sq"].zero_()
        if fault == "norm" and new:
            self._norm(model)
            parent, _, attribute = self.where.rpartition(".")
            setattr(model.get_submodule(parent), attribute, nn.Identity())
        if fault in SLOW and update >= self.case.at:
            self._slowly(update, model, new)

    def _slowly(self, update: int, model: nn.Module, new: bool) -> None:
        fault = self.case.fault
        if fault == "starving" and new:
            self.decays = [(self._norm(model).weight, 0.93)]
        if fault == "decay" and new:
            self.decays = [(_table(model), 0.95)]
        if fault == "logits" and new:
            matrices = [
                (name, p) for name, p in _matrices(model) if name.endswith(("attn.qkv.weight", "c_attn.weight"))
            ]
            self.where, weight = matrices[self.case.layer % len(matrices)]
            outputs = weight.detach() if "qkv" in self.where else weight.detach().T
            self.decays = [(outputs[: 2 * len(outputs) // 3], 1.03)]  # queries and keys
        if fault == "rounding":
            matrices = _matrices(model)
            self.where, weight = matrices[self.case.layer % len(matrices)]
            rounded = _rounded(weight, self.generator)
            chosen = torch.rand(weight.shape, generator=self.generator) < self.share(update, DRIFTS)
            weight.copy_(torch.where(chosen, rounded, weight))

    def _norm(self, model: nn.Module) -> Any:
        """One of the blocks' norms."""
        norms = [
            (name, module) for name, module in model.named_modules()
            if isinstance(module, nn.LayerNorm) or type(module).__name__ == "LayerNorm"
        ]  # fmt: skip
        inside = [(name, m) for name, m in norms if any(part.isdigit() for part in name.split("."))]
        self.where, norm = inside[self.case.layer % len(inside)]
        return norm

    def gradients(self, update: int, model: nn.Module) -> None:
        if self.case.fault == "loss_scale" and update >= self.case.at:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.mul_(64)


def _table(model: nn.Module) -> Tensor:
    """The largest embedding."""
    return max((m.weight for m in model.modules() if isinstance(m, nn.Embedding)), key=lambda w: w.shape[0])


def _rounded(weight: Tensor, generator: torch.Generator) -> Tensor:
    """To bf16, up or down at random, so that the mean stays."""
    bits = weight.view(torch.int32)
    noise = torch.randint(0, 1 << 16, weight.shape, generator=generator, dtype=torch.int32)
    return ((bits + noise) & ~0xFFFF).view(torch.float32)


def _matrices(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Those of the blocks."""
    return [
        (name, p) for name, p in model.named_parameters()
        if p.ndim == 2 and any(part.isdigit() for part in name.split("."))
    ]  # fmt: skip


def cases(table: str, seed: int) -> list[Case]:
    """The healthy ones of five seeds, the noisy ones of two."""
    if table == "healthy":
        return [Case(training, "", each) for each in range(seed, seed + 5) for training in TRAININGS]
    if table == "noisy":
        return [Case(training, noise, each) for each in (seed, seed + 1) for noise in NOISE for training in TRAININGS]
    return [Case(training, fault, seed) for fault in TABLES[table] for training in TRAININGS]


def case_of(name: str) -> Case:
    training, fault, seed = name.rsplit("-", 2)
    return Case(training, fault.replace("healthy", ""), int(seed))
