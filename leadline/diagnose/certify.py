"""A certificate for anybody's CI: the placement was read, nothing is wrongly coded, it trains as asked. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from leadline.diagnose.connection import by_stack, layers_of
from leadline.diagnose.inspection import Inspection


@dataclass(frozen=True)
class Stack:
    name: str
    layers: int
    placement: str  # of its connections, each once


@dataclass(frozen=True)
class Certificate:
    name: str
    certified: bool
    reasons: list[str]  # why not
    stacks: list[Stack] = field(default_factory=list)
    rate: float | None = None  # asked for
    warmup: int | None = None
    probability: float | None = None  # of learning
    hints: list[str] = field(default_factory=list)  # in what the model differs from those the verdict was fitted on


def certificate(inspection: Inspection) -> Certificate:
    verdict = inspection.verdict
    reasons = [f"{f.where}: {f.message}" for f in inspection.findings if f.severity == "fault"]
    reasons += [] if verdict.trains else [verdict.answer]
    layers = layers_of(inspection.connections)
    stacks = [
        Stack(name, layers[name], " and ".join(dict.fromkeys(c.placement for c in members)))
        for name, members in by_stack(inspection.connections).items()
    ]
    return Certificate(
        inspection.name,
        not reasons,
        reasons,
        stacks,
        verdict.rate,
        verdict.warmup,
        verdict.probability,
        verdict.outside,
    )


def lines(certified: Certificate) -> list[str]:
    """In words, the answer first."""
    said = [f"{certified.name}: {'certified' if certified.certified else 'not certified'}"]
    for stack in certified.stacks:
        said.append(f"  {stack.name}: {stack.layers} layer{'s' * (stack.layers != 1)}, {stack.placement}")
    if certified.probability is not None:
        asked = f"lr {certified.rate:g}, warm-up {certified.warmup}"
        said.append(f"  at {asked}: probability of learning {certified.probability:.2f}")
    return said + [f"  because {reason}" for reason in certified.reasons]
