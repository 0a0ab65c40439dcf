"""A training step of translation (forward, backward, gradient norm, Adam): Leadline beside other libraries."""

from __future__ import annotations

import argparse
from functools import partial

from bench import ours, peers
from bench.measure import Contestants, Row, Setting, compete, installed
from bench.workload import SIZES, Size, make_pool

__all__ = ["SIZES", "run"]

PEERS = {
    "Hugging Face Marian": ("transformers", peers.marian),
    "torch.nn.Transformer": ("torch", peers.torch_nn),
    "x-transformers": ("x_transformers", peers.x_transformers),
}


def contestants(size: Size, setting: Setting) -> Contestants:
    pool = make_pool(size)
    contestants: Contestants = {
        f"leadline, {step}": partial(ours.leadline, size, pool, setting, step) for step in ours.steps(setting.device)
    }
    for name, (package, make) in PEERS.items():
        if not installed(package):
            print(f"{name} is not installed", flush=True)
            continue
        ways: list[tuple[str, peers.Compiled]] = [("eager", "")]
        if package != "x_transformers" or setting.slow:  # it is compiled again for every shape
            ways.append(("compiled", "whole"))
        if setting.device.type == "cuda" and setting.slow:
            ways.append(("compiled, CUDA graphs", "graphs"))
        contestants |= {f"{name}, {way}": partial(peers.work, make, size, pool, setting, how) for way, how in ways}
    return contestants


def run(size: Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> list[Row]:
    return compete(contestants(size, setting), setting, peak)
