"""One of our models before its training, in a row of numbers: to set placements side by side.

growth          ‖stream‖ behind the last residual connection of the last stack, over that behind its first
first_gradient  ‖∂L/∂W‖ of the feed-forward layer's second matrix, in the first layer of the last stack
last_gradient   the same in its last layer
change          ‖ΔF‖, how far one step of Adam at the rate moves the output, over its size
learns          the probability that it learns at that rate without warm-up (leadline.diagnose.verdict)
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from torch import nn

from leadline.diagnose import probe
from leadline.diagnose.probe import Subject
from leadline.diagnose.stream import Reader
from leadline.diagnose.verdict import STEPS, features, probability, score


@dataclass(frozen=True)
class Compared:
    placement: str
    growth: float
    first_gradient: float
    last_gradient: float
    change: float
    learns: float

    @property
    def needs_warmup(self) -> bool:
        return self.learns < 0.5


def measure(subject: Subject, rate: float) -> Compared:
    model: Any = subject.model
    layers = model.decoder if model.config.decoder_layers else model.encoder
    before = probe.initial(subject, most=2)
    gradients = {r.where: r.value for r in before if r.quantity == "grad_norm_of_mean"}
    names = {id(p): name for name, p in model.named_parameters()}
    first, last = (gradients[names[id(layers.blocks[i].ffn.contract.weight)]] for i in (0, -1))
    start = probe.look(subject, subject.batches[-1])
    rollout = probe.rollout(subject, rate, STEPS, start=start)
    change = next(r.value for r in rollout if r.quantity == "step_change" and r.step == 1)
    learns = probability(score(features(probe.at_start(subject, start), rollout)))
    return Compared(model.config.placement, _growth(subject, layers), first, last, change, learns)


def _growth(subject: Subject, layers: nn.Module) -> float:
    with closing(Reader()) as reader, probe.quiet(subject.model):
        streams = reader.streams(layers)
        subject.run(subject.batches[0])
    sizes = [float(norm) for (norm,) in streams.values()]
    return sizes[-1] / sizes[0]
