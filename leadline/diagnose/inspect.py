"""`leadline.inspect`: any model built of residual blocks, before it is trained.

    import leadline

    inspection = leadline.inspect(model, batch, loss=lambda output, batch: ..., optimizer=torch.optim.Adam(...))
    print(inspection)

The model is run and trained for a few steps at a few rates; afterwards it and its optimizer are as they were.
"""

from __future__ import annotations

import itertools
import math
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from leadline.data.making import Progress
from leadline.diagnose import fitted, probe
from leadline.diagnose.inspection import Inspection
from leadline.diagnose.probe import Loss, Subject
from leadline.diagnose.record import Record
from leadline.diagnose.state import random_kept, restored, sources_of
from leadline.diagnose.trace import tensors_in
from leadline.diagnose.verdict import ENDURES, RISES, STEPS, features, highest_rate, judge, score
from leadline.errors import Unfit, UserError
from leadline.files import Facts

BATCHES = STEPS + 1  # at most: one a step, one to look at
LOOKS = 5  # steps between two looks at the loss of a longer training
REACH = 8  # doublings or halvings of the rate until the edge must have come
MOST_RATES = REACH // 2 + 2  # the one asked for, those four times further each, and one between the last two
FASTEST = 1e30  # rates above it are a mistake, and cannot be multiplied in float32


def _silent(what: str, done: int) -> None: ...


def inspect(
    module: nn.Module,
    batch: Any,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    warmup: int = 0,
) -> Inspection:
    """Find the residual connections of a model, name what is wrong with them, and say whether it will train.

    Args:
        module: the model; no subclass and no naming is asked of it.
        batch: what the model is called with: a dictionary of keywords, a tuple of arguments or a single value; a
            DataLoader or an iterator of such gives a few of them.
        loss: function(output, batch) -> one number; not needed where the output has a `loss`.
        optimizer: what will train it, at the intended rate; Adam at 1e-3 if not given.
        warmup: updates over which the rate will rise.
    """
    if not isinstance(module, nn.Module):
        raise UserError(f"inspect takes a torch.nn.Module, not {type(module).__name__}")
    if warmup < 0:
        raise UserError(f"warmup must be 0 or more, not {warmup}")
    subject = Subject(module, batches_of(batch), loss, optimizer_of(module, optimizer, 1e-3))
    return inspect_subject(subject, type(subject.model).__name__, warmup=warmup)


def optimizer_of(module: nn.Module, given: torch.optim.Optimizer | None, rate: float) -> torch.optim.Optimizer:
    """The optimizer given, if it can train this model; Adam if none was."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    if not trainable:
        raise UserError("every weight of the model is frozen: nothing would be trained; set requires_grad on some")
    if given is None:
        return torch.optim.Adam(trainable, lr=rate)
    ours = {id(p) for p in trainable}
    if not any(id(p) in ours for group in given.param_groups for p in group["params"]):
        raise UserError("the optimizer holds none of the model's weights: make it from model.parameters()")
    return given


def batches_of(batch: Any) -> list[Any]:
    """A few batches of a DataLoader or an iterator, or the one given."""
    if not isinstance(batch, Iterator | torch.utils.data.DataLoader):
        return [batch]
    with random_kept(sources_of(batch)), probe.in_words("no batch could be read"):
        batches = list(itertools.islice(batch, BATCHES))
    if not batches:
        raise UserError("the iterator of batches is empty")
    return batches


def inspect_subject(
    subject: Subject,
    name: str,
    rate: float | None = None,
    warmup: int = 0,
    seed: int = 0,
    progress: Progress = _silent,
) -> Inspection:
    """Everything is afterwards as it was, whatever is raised."""
    with random_kept(subject.model.modules()), restored(subject.model, subject.optimizer):
        rate = float(rate or max(float(group["lr"]) for group in subject.optimizer.param_groups))
        if not 0 < rate <= FASTEST:
            raise UserError(f"the learning rate is {rate}: give the optimizer the rate you intend to train with")
        return _inspected(subject, name, rate, warmup, seed, progress)


def _inspected(subject: Subject, name: str, rate: float, warmup: int, seed: int, progress: Progress) -> Inspection:
    _require_usable(subject)
    progress("finding the residual connections", 0)
    connections = subject.connections
    start = probe.look(subject, subject.batches[-1])
    if not math.isfinite(start.loss):
        raise Unfit(
            f"the loss is {start.loss} before the first step: look for a log of 0, a division by 0, a row of attention "
            "that is masked whole or labels that are all ignored"
        )
    progress("measuring streams and gradients", 0)
    initial = probe.initial(subject, seed, most=2)
    before = [r for r in initial if r.quantity != "diversity"] + probe.at_start(subject, start, seed)

    rollouts: dict[float, list[Record]] = {}

    def log_odds(at: float) -> float:
        if at not in rollouts:
            trying = f"trying lr {at:.1e} for {STEPS} steps (rate {len(rollouts) + 1} of at most {MOST_RATES})"
            progress(trying, 0)
            rollouts[at] = probe.rollout(subject, at, STEPS, seed, start, partial(progress, trying, 1))
        return score(features(before, rollouts[at]))

    _find_edge(log_odds, rate)
    facts = _facts(subject)
    differences = fitted.outside(connections, facts)
    limit = fitted.limit(facts)
    endured = highest = math.inf
    if fitted.unlike(connections, facts):
        highest = min(highest_rate({at: log_odds(at) for at in rollouts}), limit)
        endured = _endured(subject, start.loss, highest, min(rollouts), progress)
    verdict = judge(connections, subject.findings, before, rollouts, rate, warmup, differences, limit, endured)
    if endured < highest:
        line = f"loss: at lr {highest:.1e} it rises again within {ENDURES} steps"
        verdict = replace(verdict, evidence=[*verdict.evidence, line])
        facts["rises_again"] = highest
    records = [*before, *(r for at in sorted(rollouts) for r in rollouts[at])]
    return Inspection(name, connections, subject.findings, records, verdict, facts)


def _endured(subject: Subject, start: float, rate: float, lowest: float, progress: Progress) -> float:
    """The rate or, halved as often as need be, one at which the loss does not rise again; 0: none down to the lowest.

    What gates hold shut at first, or no norm holds together, falls apart only after the steps of a rollout.
    """
    while rate:
        progress(f"trying lr {rate:.1e} for {ENDURES} steps", 0)
        if _endures(subject, start, rate, progress):
            return rate
        rate = max(rate / 2, lowest) if rate > lowest else 0.0
    return 0.0


def _endures(subject: Subject, start: float, rate: float, progress: Progress) -> bool:
    best = start
    with restored(subject.model, subject.optimizer):
        for step, loss in enumerate(probe.training(subject, rate, ENDURES), start=1):
            if not math.isfinite(loss):
                return False
            if step % LOOKS == 0:
                progress(f"trying lr {rate:.1e} for {ENDURES} steps", LOOKS)
                shown = probe.loss_at(subject, subject.batches[-1])
                if not shown - best <= RISES * abs(start):  # also where it is not a number
                    return False
                best = min(best, shown)
    return True


def _require_usable(subject: Subject) -> None:
    """Refuse what no rate could train, and what would be blamed on the rate."""
    for name, p in subject.model.named_parameters():
        if not p.detach().isfinite().all():
            raise Unfit(f"{name} holds values that are not finite: load or initialise the weights again")
        if p.requires_grad and p.dtype == torch.float16:
            raise Unfit(
                f"{name} is float16, in which Adam's eps is 0 and small updates are lost: inspect the model in float32 "
                "or bfloat16, and train with autocast"
            )
    for number, batch in enumerate(subject.batches):
        tensors = list(tensors_in(batch))
        if tensors and not any(t.numel() for t in tensors):
            raise UserError(f"batch {number} is empty: it has a tensor of shape {tuple(tensors[0].shape)}")
        if any(t.isnan().any() for t in tensors if t.is_floating_point()):
            raise UserError(f"batch {number} holds NaN: look at how it is prepared")


def inspect_seeds(
    make: Callable[[int], Subject],
    seeds: Sequence[int],
    name: str,
    rate: float | None = None,
    warmup: int = 0,
    progress: Progress = _silent,
) -> Inspection:
    """The same model drawn several times: the records of all, the verdict of the one in the middle."""
    inspections = []
    for seed in seeds:
        of = f"seed {seed}: " if len(seeds) > 1 else ""
        progress(f"{of}making the model", 0)
        inspections.append(inspect_subject(make(seed), name, rate, warmup, seed, partial(_told, progress, of)))
    ordered = sorted(inspections, key=lambda inspection: inspection.verdict.highest_rate)
    middle = ordered[(len(ordered) - 1) // 2]
    if len(inspections) > 1:
        low, high = ordered[0].verdict.highest_rate, ordered[-1].verdict.highest_rate
        line = f"seeds: over {len(inspections)} of them the highest rate without warm-up is {low:.1e} to {high:.1e}"
        middle = replace(middle, verdict=replace(middle.verdict, evidence=[*middle.verdict.evidence, line]))
    return replace(middle, records=[r for inspection in inspections for r in inspection.records])


def _told(progress: Progress, of: str, what: str, done: int) -> None:
    progress(of + what, done)


def last_gradient(subject: Subject, layers: int, seed: int = 0) -> Record:
    """How large the gradient of the last feed-forward matrix is: Theorem 1's quantity, for a plot against depth."""
    last = [c for c in subject.connections if c.sublayer == "feed-forward" and c.weights][-1]
    values = {r.where: r.value for r in probe.gradients(subject, seed) if r.quantity == "grad_norm_of_mean"}
    return Record("last_gradient", values[last.weights[-1]], last.where, layers, last.stack, seed=seed)


def _find_edge(log_odds: Callable[[float], float], rate: float) -> None:
    """Tries rates in steps of four, then the one between, until the edge lies between two that differ by two."""
    up = log_odds(rate) > 0
    factor = 4.0 if up else 0.25
    last = rate
    for _ in range(REACH // 2):
        following = last * factor
        if (log_odds(following) > 0) != up:
            log_odds((last * following) ** 0.5)
            return
        last = following


def _facts(subject: Subject) -> Facts:
    model, optimizer = subject.model, subject.optimizer
    first = next(model.parameters())
    return {
        "model": type(model).__name__,
        "weights": sum(p.numel() for p in model.parameters()),
        "frozen": sum(p.numel() for p in model.parameters() if not p.requires_grad),
        "optimizer": type(optimizer).__name__,
        "data": subject.data,
        "start": subject.start if subject.initial else "trained",
        "dtype": str(first.dtype).removeprefix("torch."),
        "device": str(first.device),
        "batches": len(subject.batches),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
    }
