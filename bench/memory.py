"""How deep a model fits on the device: DeepNorm from 6-6 to 500-500 layers, with and without recomputation.

State is what lies there before the first update: weights, gradients, both moments of Adam, 16-bit copies. Activations
are the peak of three updates less the state; their growth with depth, fitted over the depths measured, is given as
bytes a token and layer (one encoder and one decoder layer together, a target token). On a CPU only times are taken.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence

import numpy as np
import torch

from bench import flops, ours
from bench.measure import Row, Setting, free, reason, wait
from bench.workload import Size, make_pool
from leadline.errors import UserError

SIZES = {
    "memory": Size("memory", 0, 512, 2048, 8, 10000, 4096, 1, "deepnorm"),  # layers: see DEPTHS
    "memory-tiny": Size("memory-tiny", 0, 32, 64, 2, 500, 512, 1, "deepnorm"),
}
DEPTHS = {"memory": (6, 25, 100, 500), "memory-tiny": (2, 6)}
UPDATES = 3


def run(size: Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> tuple[list[Row], list[str]]:
    depths = sorted(arguments.depths or DEPTHS[size.name])
    rows: list[Row] = []
    notes: list[str] = []
    for recompute in (True, False):
        of_size: list[Row] = []
        for depth in depths:
            row = {"contestant": "leadline", "layers": f"{depth}-{depth}", "recompute": "yes" if recompute else "no"}
            row |= _expected_too_large(of_size, depth, setting.device) or _measured(
                size, depth, recompute, setting, peak
            )
            of_size.append(row | {"depth": depth})
            print(row, flush=True)
        rows += of_size
        if fit := _fit(of_size):
            tokens = size.batch_tokens
            notes.append(
                f"recompute {'on' if recompute else 'off'}: activations take {fit[0] / tokens:,.0f} bytes a token and "
                f"layer, and {fit[1] / tokens:,.0f} a token besides"
            )
    return rows, notes


def _measured(size: Size, depth: int, recompute: bool, setting: Setting, peak: float) -> Row:
    try:
        row = _updates(dataclasses.replace(size, layers=depth), recompute, setting, peak)
    except UserError:
        raise
    except Exception as error:
        full = isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)
        row = {"failed": "does not fit" if full else reason(error)}
    free(setting.device)  # only now are the error and the frames that it kept gone
    return row


def _updates(size: Size, recompute: bool, setting: Setting, peak: float) -> Row:
    device, cuda = setting.device, setting.device.type == "cuda"
    pool = make_pool(size)
    config = ours.config_of(size, setting, "graph" if cuda else "eager", recompute)
    started = time.perf_counter()
    step = ours.build(config, size.vocab, ours.TranslationTask(), device)
    wait(device)
    built = time.perf_counter()
    parameters = sum(p.numel() for group in step.optimizer.param_groups for p in group["params"])
    state = _used(device)
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    one_pass = ours.one_pass(step, ours.packs(pool, config.model.max_length), device, cuda)
    one_pass()
    wait(device)
    first = time.perf_counter() - built
    seconds = []
    for _ in range(UPDATES - 1):
        wait(device)
        begun = time.perf_counter()
        one_pass()
        wait(device)
        seconds.append(time.perf_counter() - begun)
    fastest = min(seconds)
    work = flops.translation(size, pool.lengths)
    row: Row = {
        "parameters": parameters,
        "ms_a_step": 1000 * fastest,
        "target_tokens_per_second": pool.target_tokens / fastest,
        "tflops": work / fastest / 1e12,
        "share_of_peak": work / fastest / peak,
        "build_seconds": built - started,
        "first_step_seconds": first,
        "seconds": seconds,
    }
    if cuda:
        used, held = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        row |= {"state_gib": state / 2**30, "activations_gib": (used - state) / 2**30, "peak_gib": used / 2**30}
        row["reserved_gib"] = held / 2**30
    return row


def _used(device: torch.device) -> int:
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def _fit(rows: Sequence[Row], key: str = "activations_gib") -> tuple[float, float] | None:
    """Bytes = slope · depth + rest, by least squares over the rows that were measured."""
    points = [(row["depth"], row[key] * 2**30) for row in rows if key in row]
    if len(points) < 2:
        return None
    depths, sizes = np.array(points, dtype=np.float64).T
    slope, rest = np.polyfit(depths, sizes, 1)
    return float(slope), float(rest)


def _expected_too_large(rows: Sequence[Row], depth: int, device: torch.device) -> Row | None:
    """Not even tried where the shallower ones say that it is hopeless: a large model takes minutes to build."""
    fit = _fit(rows, "peak_gib")
    if fit is None:
        return None
    expected, total = fit[0] * depth + fit[1], torch.cuda.get_device_properties(device).total_memory
    if expected < 1.1 * total:
        return None
    return {"failed": f"would need about {expected / 2**30:,.0f} GiB of {total / 2**30:,.0f}"}
