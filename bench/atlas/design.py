"""Which trainings the atlas holds, what their labels mean, and how they are split: fixed before any was looked at.

A cell is a model, a task and an optimizer; it is trained from one start at several rates of a fixed ladder.

A training has LEARNT when it ends at least half the way from the loss of the label frequencies to the best of its
cell. A cell in which no training ends MARGIN below the frequencies learns nothing in this time, and is left out.
The EDGE of a cell is its highest rate that has learnt (a rate below it is at worst slow). Its GOOD rates are those from
the lowest to the highest that end within NEAR nats of the best.

Rates of a cell: every fourth of the ladder first (factor 4); then, of the rates between two of those (factor 2), the
neighbours of the best and the one above the highest that has learnt. `rates_left` is that rule.

Splits: by TASK and by FAMILY each in turn is left out of the fit; nothing is fitted on a cell that it is judged on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

UPDATES = 100  # after the warm-up
SHOWN = (20, 50, 100)  # updates after which the validation loss is taken
PARTS = (8, 4, 2, 1)  # of a training, after which the batches are looked at by which optim.lr=auto chooses
PROBE_STEPS = (1, 3, 8, 15, 30)
MARGIN = 0.1  # nats
NEAR = 0.1  # nats
DRAWN = 20261118  # the seed of the design
HELD_OUT = 20261119  # of the cells that a change is judged on, once
SECOND = 20261120  # of those that the next one is
PROBE_SEED = 11  # of the model and the batches that a probe looks at; trainings have 1, at the edges also 2 and 3
EDGE_SEEDS = (2, 3)
BIGGER = (("causal_lm", "ours", 8), ("masked_lm", "torch", 12), ("text_classes", "bert", 8))  # of SECOND
UNDRAWN = ("translation", "text_classes")
PROBE_WARMUP = 10  # steps of a probe, where the cell warms up
WIDE = 256  # this width and more, and more than DEEP layers, are left to a GPU: --wide
DEEP = 12

LADDERS = {  # factor 2
    "adam": [1.25e-4 * 2**k for k in range(10)],  # to 6.4e-2
    "adamw": [1.25e-4 * 2**k for k in range(10)],
    "sgd": [2e-3 * 2**k for k in range(12)],  # to 4.1
}

# task: which architectures it can be given to
TASKS = {
    "translation": ("ours", "torch"),
    "causal_lm": ("ours", "gpt2", "llama"),
    "masked_lm": ("ours", "torch", "bert"),
    "text_classes": ("ours", "torch", "bert"),
    "digits": ("torch", "vit"),
}
FAMILIES = {"ours": "ours", "torch": "torch", "gpt2": "hf", "llama": "hf", "bert": "hf", "vit": "hf"}
PLACEMENTS = {
    "ours": ("post_ln", "pre_ln", "deepnorm", "sandwich_ln", "rezero", "res_post_ln"),
    "torch": ("post_ln", "pre_ln"),
    "gpt2": ("pre_ln",),
    "llama": ("pre_ln",),
    "bert": ("post_ln",),
    "vit": ("pre_ln",),
}
STARTS = {  # "own": as its makers start it
    "ours": ("xavier", "fairseq_2019", "fairseq_2020", "small"),
    "torch": ("own", "xavier", "small"),
    "gpt2": ("own", "xavier"),
    "llama": ("own", "xavier"),
    "bert": ("own", "xavier"),
    "vit": ("own", "xavier"),
}
PAIRS = [(task, arch) for task, archs in TASKS.items() for arch in archs for _ in range(2 if arch == "ours" else 1)]
WIDTHS = (32, 64, 128)
WIDER = (256, 512, 1024)
DEPTHS = (2, 2, 4, 4, 6, 12)
AFFORDED = 200_000  # layers · (width + 32) · tokens: some 50 ms an update on an idle core
DEEPER = (24, 48)


@dataclass(frozen=True, order=True)
class Cell:
    task: str
    arch: str
    placement: str
    start: str
    width: int
    depth: int  # layers of each stack
    optimizer: str
    tokens: int  # in a batch
    warmup: int

    @property
    def name(self) -> str:
        return "/".join(map(str, dataclasses.astuple(self)))

    @property
    def family(self) -> str:
        return FAMILIES[self.arch]

    @property
    def wide(self) -> bool:
        return self.width >= WIDE or self.depth > DEEP

    @property
    def blocks(self) -> int:
        return self.depth * (2 if self.task == "translation" else 1)

    @property
    def ladder(self) -> list[float]:
        return LADDERS[self.optimizer]

    @property
    def updates(self) -> int:
        return UPDATES + self.warmup


def drawn(rng: Random, task: str, arch: str, wide: bool, afforded: int = AFFORDED) -> Cell:
    depth = rng.choice(DEEPER if wide and rng.random() < 0.5 else DEPTHS)
    width = rng.choice(WIDER if wide else WIDTHS)
    tokens = rng.choice((4096, 8192) if wide else (256, 256, 512))
    stacks = 2 if task == "translation" else 1
    depth = depth // stacks
    while not wide and stacks * depth * (width + 32) * tokens > afforded:
        if tokens > 256:
            tokens //= 2
        elif width > 32:
            width //= 2
        else:
            depth //= 2
    return Cell(
        task,
        arch,
        rng.choice(PLACEMENTS[arch]),
        rng.choice(STARTS[arch]),
        width,
        depth,
        rng.choice(("adam", "adam", "adam", "adamw", "sgd")),
        tokens,
        rng.choice((0, 0, 0, 100)),
    )


def design(rounds: int = 12, wide: bool = False) -> list[Cell]:
    """Every pair of task and architecture in turn, so that however far a run gets, its cells are balanced.

    Ours is drawn twice a round: it has six placements.
    """
    rng = Random(DRAWN + wide)
    cells = dict.fromkeys(drawn(rng, *pair, wide) for _ in range(rounds) for pair in PAIRS)
    return [cell for cell in cells if cell.wide == wide]


def held_out(rounds: int = 2) -> list[Cell]:
    """Cells drawn in the same way from another seed, half as dear and none of the design's."""
    rng, known = Random(HELD_OUT), set(design())
    cells = dict.fromkeys(drawn(rng, *pair, False, AFFORDED // 2) for _ in range(rounds) for pair in PAIRS)
    return [cell for cell in cells if cell not in known]


def second(rounds: int = 3) -> list[Cell]:
    """Cells of another seed, drawn like those held out and none of theirs.

    Behind the first round stand three of width 256, and two with ReZero, which had not been drawn at all.
    """
    rng, known = Random(SECOND), {*design(), *held_out()}
    cells = [drawn(rng, *pair, False, AFFORDED // 2) for _ in range(rounds) for pair in PAIRS]
    bigger = [
        replace(drawn(rng, task, arch, False), width=256, depth=depth, tokens=256) for task, arch, depth in BIGGER
    ]
    rezero = [replace(drawn(rng, task, "ours", False, AFFORDED // 2), placement="rezero") for task in UNDRAWN]
    ordered = dict.fromkeys([*cells[: len(PAIRS)], *bigger, *rezero, *cells[len(PAIRS) :]])
    return [cell for cell in ordered if cell not in known]


def rates_left(cell: Cell, ends: Mapping[float, float], frequencies: float) -> list[float]:
    """What is still to be trained of a cell, given the final losses so far (inf: diverged)."""
    ladder = cell.ladder
    coarse = ladder[1::2] if cell.optimizer != "sgd" else ladder[::2]
    if left := [rate for rate in coarse if rate not in ends]:
        return left
    ends = {rate: ends[rate] for rate in ladder if rate in ends}  # optim.lr=auto may have gone beyond it
    best = min(ladder.index(rate) for rate, loss in ends.items() if loss == min(ends.values()))
    wanted = {best - 1, best + 1}
    if learnt := [ladder.index(rate) for rate, loss in ends.items() if has_learnt(loss, ends, frequencies)]:
        wanted.add(max(learnt) + 1)
    return [ladder[at] for at in sorted(wanted) if 0 <= at < len(ladder) and ladder[at] not in ends]


def has_learnt(loss: float, ends: Mapping[float, float], frequencies: float) -> bool:
    best = min(ends.values())
    return best < frequencies - MARGIN and loss <= (frequencies + best) / 2


def edge(ends: Mapping[float, float], frequencies: float) -> float:
    """The highest rate that has learnt; 0: none."""
    return max((rate for rate, loss in ends.items() if has_learnt(loss, ends, frequencies)), default=0.0)


def good(ends: Mapping[float, float]) -> tuple[float, float]:
    """The lowest and the highest rate that end near the best."""
    near = [rate for rate, loss in ends.items() if loss <= min(ends.values()) + NEAR]
    return min(near), max(near)
