"""The same step 100-100 layers deep, with DeepNorm; peers that have no DeepNorm are Post-LN of the same sizes.

Peers are compiled layer by layer: as a whole they take longer to compile than anyone waits.
"""

from __future__ import annotations

import argparse
from functools import partial

from bench import ours, peers
from bench.measure import Contestants, Row, Setting, compete, installed
from bench.workload import Size, make_pool

SIZES = {
    "deep": Size("deep", 100, 512, 2048, 8, 10000, 4096, 4, "deepnorm"),
    "deep-tiny": Size("deep-tiny", 8, 32, 64, 2, 500, 512, 2, "deepnorm"),
}
PEERS = {
    "torchscale": ("torchscale", peers.torchscale),
    "Hugging Face Marian": ("transformers", peers.marian),
    "torch.nn.Transformer": ("torch", peers.torch_nn),
}


def contestants(size: Size, setting: Setting) -> Contestants:
    pool = make_pool(size)
    contestants: Contestants = {}
    for step in [step for step in ours.steps(setting.device) if step != "compiled"]:
        contestants[f"leadline, {step}"] = partial(ours.leadline, size, pool, setting, step)
        contestants[f"leadline, {step}, recompute"] = partial(ours.leadline, size, pool, setting, step, recompute=True)
    for name, (package, make) in PEERS.items():
        if not installed(package):
            print(f"{name} is not installed", flush=True)
            continue
        contestants[f"{name}, eager"] = partial(peers.work, make, size, pool, setting)
        if name != "torchscale":
            contestants[f"{name}, layers compiled"] = partial(peers.work, make, size, pool, setting, "layers")
    return contestants


def run(size: Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> list[Row]:
    return compete(contestants(size, setting), setting, peak)
