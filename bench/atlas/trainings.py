"""One training of the atlas, and one look at a model at step 0; each gives rows."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.atlas import data as tasks
from bench.atlas.data import NOTHING, VALID, Data
from bench.atlas.design import PARTS, PROBE_SEED, PROBE_STEPS, PROBE_WARMUP, SHOWN, Cell
from bench.atlas.models import build, collate
from leadline import rates
from leadline.diagnose.verdict import warmup_gain
from leadline.errors import UserError
from leadline.rates import diversity

OTHER = 10**6  # number of the first batch that a probe looks at and no step is trained on
LOST = 1.0  # nats above the start: nothing will come of it
LOOKED_AT = 512  # tokens that a probe looks at
Row = dict[str, Any]
Known = Mapping[float, Mapping[int, tuple[float | None, float]]]  # by rate and update: what a look saw


def loss_of(output: tuple[Tensor, Tensor], batch: dict[str, Any]) -> Tensor:
    return functional.cross_entropy(output[0].float(), batch["labels"], ignore_index=NOTHING)


def optimizer_of(cell: Cell, model: nn.Module) -> torch.optim.Optimizer:
    weights = list(model.parameters())
    if cell.optimizer == "sgd":
        return torch.optim.SGD(weights, lr=1.0, momentum=0.9)
    if cell.optimizer == "adamw":
        return torch.optim.AdamW(weights, lr=1.0, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.1, fused=True)
    return torch.optim.Adam(weights, lr=1.0, betas=(0.9, 0.98), eps=1e-9, fused=True)


class Subject:
    """A model of a cell drawn from a seed, and its updates."""

    def __init__(self, cell: Cell, seed: int, text: str = "", device: str = "cpu") -> None:
        self.cell, self.seed, self.device = cell, seed, torch.device(device)
        self.data: Data = tasks.load(cell.task, text if cell.task == "translation" else "")
        self.model = build(cell, self.data, seed).to(self.device).train()
        self.optimizer = optimizer_of(cell, self.model)
        step = 4 * VALID if self.data.classes else VALID // 2
        rows = range(0, len(self.data.valid), step)
        takes = [self.data.valid.take(torch.arange(at, min(at + step, len(self.data.valid))).numpy()) for at in rows]
        self.valid = [self._on_device(collate(cell, take)) for take in takes]

    def _on_device(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {
            k: [p.to(self.device) for p in v] if isinstance(v, list) else v.to(self.device) for k, v in batch.items()
        }

    def batch(self, number: int, tokens: int = 0) -> dict[str, Any]:
        rows = tasks.batch_rows(self.data, tokens or self.cell.tokens, self.seed, number)
        return self._on_device(collate(self.cell, self.data.train.take(rows)))

    def update(self, number: int, rate: float) -> float:
        batch = self.batch(number)
        loss = loss_of(self.model(batch), batch)
        loss.backward()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    @torch.no_grad()
    def judged(self, batches: list[dict[str, Any]]) -> tuple[float, Tensor, Tensor]:
        """The loss over these batches; logits and hidden states of the first."""
        self.model.eval()
        outputs = [self.model(batch) for batch in batches]
        self.model.train()
        counts = [int((batch["labels"] >= 0).sum()) for batch in batches]
        losses = [float(loss_of(o, b)) * n for o, b, n in zip(outputs, batches, counts, strict=True)]
        return sum(losses) / sum(counts), *outputs[0]


class Look:
    """Loss and diversity on the batches by which optim.lr=auto chooses; None: not finite."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.start = subject, 1.0
        self.shown = [subject.batch(OTHER + number) for number in range(rates.OTHER)]
        self.start = self()[1] or 1.0

    def __call__(self) -> tuple[float | None, float]:
        loss, _, hidden = self.subject.judged(self.shown)
        spread = diversity(hidden.float()) / self.start
        return loss if math.isfinite(loss) else None, round(spread, 4) if math.isfinite(spread) else 0.0


def train(cell: Cell, rate: float, seed: int, text: str = "", device: str = "cpu") -> Row:
    started = time.perf_counter()
    subject = Subject(cell, seed, text, device)
    first = subject.judged(subject.valid)[0]
    curve: list[float] = []
    look, looks = Look(subject), []
    for update in range(1, cell.updates + 1):
        warmed = min(1.0, update / max(cell.warmup, 1))
        if not math.isfinite(subject.update(update - 1, rate * warmed)):
            curve.append(math.inf)
            break
        if update in {cell.updates // part for part in PARTS}:
            looks.append([update, *look()])
        if update - cell.warmup in SHOWN:
            curve.append(subject.judged(subject.valid)[0])
            if not curve[-1] < first + LOST:
                break
    end = curve[-1] if math.isfinite(curve[-1]) else math.inf
    return {
        "cell": cell.name,
        "seed": seed,
        "rate": rate,
        "loss": round(end, 4) if end < math.inf else None,  # None: diverged
        "curve": [round(value, 3) if math.isfinite(value) else None for value in curve],
        "looks": looks,
        "frequencies": round(subject.data.frequencies, 4),
        "seconds": round(time.perf_counter() - started, 1),
    }


def probe(cell: Cell, text: str = "", device: str = "cpu") -> list[Row]:
    """What a short look sees at every rate of the ladder: a row a rate, from a model drawn with another seed."""
    rows = []
    for rate in cell.ladder:
        subject = Subject(cell, PROBE_SEED, text, device)
        shown = [subject.batch(OTHER, LOOKED_AT)]
        first, output, hidden = subject.judged(shown)
        start = [p.detach().clone() for p in subject.model.parameters()]
        spread, losses, diversities, moved = diversity(hidden.float()), [], [], []
        facts: Row = {"cell": cell.name, "rate": rate, "start": round(first, 4), "spread": round(spread, 4)}
        for step in range(1, PROBE_STEPS[-1] + 1):
            warmed = min(1.0, step / PROBE_WARMUP) if cell.warmup else 1.0
            if not math.isfinite(subject.update(step - 1, rate * warmed)):
                break
            if step in PROBE_STEPS:
                loss, after, hidden = subject.judged(shown)
                losses.append(loss)
                diversities.append(diversity(hidden.float()))
                moved.append(float((after - output).norm() / output.norm()))
            if step == 1:
                facts |= updates_of(subject.model, start)
        for name, values in (("losses", losses), ("diversities", diversities), ("moved", moved)):
            facts[name] = [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]
        rows.append(facts)
    return rows


def choose(cell: Cell, known: Known, text: str = "", device: str = "cpu") -> Row:
    """What `optim.lr=auto` chooses for the model that is trained: the product's search, with its own updates.

    A short training that is the beginning of one that was recorded is not done again.
    """
    subject = Subject(cell, 1, text, device)
    look, spreads = Look(subject), []

    def trial(rate: float, length: int) -> rates.Ended:
        ended = known.get(rate, {}).get(length) if length == cell.updates or not cell.warmup else None
        if ended is None:
            ended = trained(rate, length)
        spreads.append(ended[1])
        return rates.Ended(math.inf if ended[0] is None else ended[0], ended[1])

    def trained(rate: float, length: int) -> tuple[float | None, float]:
        look.subject = Subject(cell, 1, text, device)
        for update in range(1, length + 1):
            share = rates.risen(update, length, cell.updates, cell.warmup)
            if not math.isfinite(look.subject.update(update - 1, rate * share)):
                return None, 0.0
        return look()

    weights = sum(p.numel() for p in subject.model.parameters())
    allowed = rates.budget(cell.updates, 6.0 * weights * cell.tokens, subject.device.type)
    rate, tried = rates.search(trial, cell.ladder, allowed, cell.updates)
    rows = [
        [t.rate, t.updates, round(t.loss, 4) if math.isfinite(t.loss) else None, s]
        for t, s in zip(tried, spreads, strict=True)
    ]
    return {"cell": cell.name, "rate": rate, "updates": sum(t.updates for t in tried), "tried": rows}


def verdict(cell: Cell, text: str = "", device: str = "cpu") -> Row:
    """What `leadline inspect` says of another draw of the model."""
    from leadline.diagnose import probe
    from leadline.diagnose.inspect import BATCHES, inspect_subject

    subject = Subject(cell, PROBE_SEED, text, device)
    batches = [subject.batch(OTHER + number) for number in range(BATCHES)]
    given = probe.Subject(subject.model, batches, loss_of, subject.optimizer, call=lambda model, batch: model(batch))
    middle = cell.ladder[len(cell.ladder) // 2]
    try:
        found = inspect_subject(given, cell.name, middle, cell.warmup).verdict
    except UserError as error:
        return {"cell": cell.name, "rate": middle, "highest_rate": 0.0, "edge_found": False, "error": str(error)}
    highest = found.highest_rate * (warmup_gain(cell.warmup) if cell.warmup else 1.0)
    return {"cell": cell.name, "rate": middle, "highest_rate": float(f"{highest:.3g}"), "edge_found": found.edge_found}


def updates_of(model: nn.Module, start: list[Tensor]) -> Row:
    """Of the first update: the largest and the median ‖Δw‖/‖w‖ over the matrices, and how far a matrix turns."""
    ratios, angles = [], []
    for p, before in zip(model.parameters(), start, strict=True):
        if p.ndim == 2 and float(before.norm()) > 0:
            ratios.append(float((p.detach() - before).norm() / before.norm()))
            turned = float((p.detach() * before).sum() / p.detach().norm() / before.norm())
            angles.append(math.acos(max(-1.0, min(1.0, turned))) if math.isfinite(turned) else math.pi)
    ratios.sort()
    return {
        "ratio": float(f"{ratios[len(ratios) // 2]:.4g}"),
        "most": float(f"{ratios[-1]:.4g}"),
        "angle": float(f"{max(angles):.4g}"),
    }
