"""Placement, rate and warm-up for a model that is not built yet, from the measured table in the package. No torch.

The table (`measured.csv`, written by `python -m bench.stability fit`) holds the highest learning rate that learnt for
each placement, depth, width and warm-up. Between its rows we interpolate in log depth; over the width the rate goes as
1/d, which is how the table itself goes; beyond its ends we say so.
"""

from __future__ import annotations

import csv
import math
import typing
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from leadline.diagnose import theory
from leadline.diagnose.verdict import calibration, warmup_gain
from leadline.errors import UserError

Architecture = Literal["encoder-decoder", "encoder", "decoder"]
TOKENS = 512  # in a batch of the table's trainings
SAFE = 0.5  # of the highest rate
MOST = 10**9


@dataclass(frozen=True)
class Measured:
    placement: str
    layers: int  # in each of the two stacks
    dim: int
    highest_rate: float  # without warm-up; 0: no rate of the ladder learnt
    output_change: float  # ‖ΔF‖ of the first step at that rate


@dataclass(frozen=True)
class Advice:
    placement: str
    rate: float  # 0: none
    warmup: int
    highest_rate: float
    output_change: float  # expected ‖ΔF‖ of the first step at `rate`, relative to the output
    constants: dict[str, float]  # α and β
    beyond: list[str]  # where the table ends


@cache
def measured() -> tuple[Measured, ...]:
    text = resources.files("leadline.diagnose").joinpath("measured.csv").read_text(encoding="utf-8")
    return tuple(
        Measured(r["placement"], int(r["layers"]), int(r["dim"]), float(r["highest_rate"]), float(r["output_change"]))
        for r in csv.DictReader(text.splitlines())
    )


def advise(
    layers: int, dim: int, arch: Architecture = "encoder-decoder", batch_tokens: int = 4096, warmup: int = 0
) -> list[Advice]:
    """One entry a placement, the recommended one first."""
    if layers < 1 or dim < 2 or batch_tokens < 1 or warmup < 0:
        raise UserError(
            "advise needs at least 1 layer, a width of at least 2, at least 1 token a batch and warm-up of 0 or more"
        )
    if max(layers, dim, batch_tokens, warmup) > MOST:
        raise UserError(f"advise is asked for more than it can reckon with: numbers are at most {MOST:,}")
    if arch not in typing.get_args(Architecture):
        raise UserError(f"arch {arch!r}: the choices are encoder-decoder, encoder and decoder")
    table = measured()
    # A single stack is compared with two stacks that have as many layers together.
    depth = float(layers) if arch == "encoder-decoder" else layers / 2
    beyond = _ends(table, depth, dim, arch, batch_tokens, warmup)
    deepest = max(row.layers for row in table)
    advice = []
    for placement in dict.fromkeys(row.placement for row in table):
        highest, change = _interpolated([row for row in table if row.placement == placement], depth, dim)
        gain = warmup_gain(warmup)
        rate = SAFE * highest * gain
        constants = _constants(layers, arch) if placement == "deepnorm" else {}
        advice.append(Advice(placement, rate, warmup, highest * gain, change * SAFE, constants, beyond))
    # Beyond the table only DeepNorm comes with a bound at any depth (DeepNet, Theorems 4.2 and 4.3), of its matrices.
    return sorted(advice, key=lambda a: (not a.rate, a.placement != "deepnorm" if depth > deepest else -a.rate))


def _ends(
    table: Sequence[Measured], depth: float, dim: int, arch: Architecture, batch_tokens: int, warmup: int
) -> list[str]:
    deepest, widths = max(r.layers for r in table), [r.dim for r in table]
    said = []
    if depth > deepest:
        said.append(f"the table ends at {deepest}-{deepest} layers: rates for deeper models are extrapolated")
    if not min(widths) <= dim <= max(widths):
        measured = f"widths {min(widths)} to {max(widths)}"
        said.append(f"the table holds {measured}: rates for other widths are extrapolated as 1/width")
    if arch != "encoder-decoder":
        said.append("the table holds encoder-decoders only: read for two stacks of half the depth")
    longest = int(calibration()["warmup_gain"][-1][0])
    if warmup > longest:
        said.append(f"warm-up was measured up to {longest} updates: {warmup} count as {longest}")
    if depth > deepest:
        said.append("DeepNet's own recipe at 100-100 and width 512: lr 1.5e-3, warm-up 4000, 128 × 4096 tokens a batch")
    if batch_tokens != TOKENS:
        said.append(f"the table was measured with {TOKENS} tokens a batch")
    return said


def _interpolated(rows: Sequence[Measured], depth: float, dim: int) -> tuple[float, float]:
    """The highest rate at this depth and width, and ‖ΔF‖ there; 0 where the table says that nothing learns."""
    by_depth: dict[int, list[Measured]] = defaultdict(list)
    for row in rows:
        by_depth[row.layers].append(row)
    points = []
    for layers, members in sorted(by_depth.items()):
        learnt = [m for m in members if m.highest_rate]
        if len(learnt) < len(members) / 2:
            break  # nor does it deeper
        level = math.exp(sum(math.log(m.highest_rate * m.dim) for m in learnt) / len(learnt))
        points.append((layers, level, sum(m.output_change for m in learnt) / len(learnt)))
    deepest = max(by_depth)
    if not points or (depth > points[-1][0] and points[-1][0] < deepest):
        return 0.0, 0.0
    level, change = _on_line(points, depth)
    return level / dim, change


def _on_line(points: Sequence[tuple[int, float, float]], depth: float) -> tuple[float, float]:
    if len(points) == 1 or depth <= points[0][0]:
        return points[0][1], points[0][2]
    at = next((i for i, p in enumerate(points) if p[0] >= depth), len(points) - 1)
    (x0, y0, c0), (x1, y1, c1) = points[at - 1], points[at]
    part = math.log(depth / x0) / math.log(x1 / x0)
    slope = math.log(y1 / y0)
    inside = min(max(part, 0.0), 1.0)
    return y0 * math.exp(slope * part if slope < 0 else slope * inside), c0 + (c1 - c0) * inside


def _constants(layers: int, arch: Architecture) -> dict[str, float]:
    counts = {"encoder-decoder": (layers, layers), "encoder": (layers, 0), "decoder": (0, layers)}[arch]
    return theory.deepnet_constants(*counts)
