"""Where the time of a captured step goes: its kernels, by name, summed over their launches. CUDA only.

Kernels of the second stream run beside the others and slow them down, so the sum is more than the step takes.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

from bench import bert, lm, ours
from bench.measure import Row, Setting, wait
from bench.workload import SIZES as TRANSLATION
from bench.workload import make_pool
from leadline.errors import UserError

SIZES = {**TRANSLATION, **bert.SIZES, **lm.SIZES}
PASSES = 3
PRODUCTS = ("nvjet", "gemm", "cutlass", "cublas", "splitK")


def run(size: bert.Size | lm.Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> list[Row]:
    if setting.device.type != "cuda":
        raise UserError("profile looks at kernels of a GPU: give --device cuda")
    if isinstance(size, bert.Size):
        work = bert.leadline(size, setting, "graph")
    elif isinstance(size, lm.Size):
        work = lm.leadline(size, setting, "graph")
    else:
        work = ours.leadline(size, make_pool(size), setting, "graph")
    work.run()
    wait(setting.device)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(PASSES):
            work.run()
        wait(setting.device)
    steps = PASSES * work.steps
    kernels: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in seen.key_averages():
        if event.self_device_time_total > 0 and event.device_type == torch.autograd.DeviceType.CUDA:
            name = "matrix products" if any(word in event.key for word in PRODUCTS) else event.key[:60]
            kernels[name][0] += event.self_device_time_total / steps
            kernels[name][1] += event.count / steps
    rows = [{"contestant": name, "microseconds": us, "launches": n} for name, (us, n) in kernels.items()]
    return sorted(rows, key=lambda row: -row["microseconds"])
