"""Do the ways of a step compute the same? The losses of 50 updates without dropout, beside those of the eager step.

"eager, other attention" shows what to expect: the same step, with sums in another order inside attention only. ReLUs
near zero and Adam, which makes the smallest gradients as large as any, let such differences grow.
"""

from __future__ import annotations

import argparse

import torch

from bench import ours
from bench.measure import Row, Setting, free, reason
from bench.workload import SIZES, Size, make_pool

__all__ = ["SIZES", "run"]

UPDATES = 50
# Placement and rate: without warm-up as Xiong et al.'s Pre-LN, and the first updates of a warm-up to 10⁻³ in 4000.
SCHEDULES = {"pre_ln, no warm-up": ("pre_ln", 5e-4, 0), "post_ln, warm-up": ("post_ln", 1e-3, 4000)}


def losses(size: Size, setting: Setting, way: str, schedule: str) -> torch.Tensor:
    placement, rate, warmup = SCHEDULES[schedule]
    step_name, _, other = way.partition(", ")
    config = ours.config_of(size, setting, step_name).set(model={"placement": placement, "dropout": 0.0})
    pool = make_pool(size)
    step = ours.build(config, size.vocab, ours.TranslationTask(), setting.device)
    if other:
        step.model.use_attention("reference" if setting.precision == "fp32" else "padded")  # type: ignore[attr-defined]
    captured = step_name == "graph"
    batches = ours.packs(pool, config.model.max_length)
    prepared = [step.prepare(batch if captured else batch.to(setting.device)) for batch in batches]
    losses = []
    for update in range(1, UPDATES + 1):
        lr = rate * min(1.0, update / max(warmup, 1))
        losses.append(step([prepared[update % len(prepared)]], update, lr).loss.detach().clone())
    return torch.stack(losses).double().cpu()


def run(size: Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for schedule in SCHEDULES:
        expected = losses(size, setting, "eager", schedule)
        for way in [step for step in ours.steps(setting.device) if step != "eager"] + ["eager, other attention"]:
            row: Row = {"contestant": way, "schedule": schedule}
            try:
                off = (losses(size, setting, way, schedule) - expected).abs()
                row |= {"first": float(off[0]), "largest": float(off.max()), "last": float(off[-1])}
            except Exception as error:  # the others are still worth knowing
                row["failed"] = reason(error)
            rows.append(row)
            setting.keep(rows)
            free(setting.device)
    return rows
