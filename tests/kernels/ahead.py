"""Every Triton kernel, compiled for GPUs that are not here: python tests/kernels/ahead.py 80 90 … [--cases NAME …]

Triton compiles as it would before a launch, with the types and sizes of real work, and launches nothing. Prints a
JSON: by compute capability and kernel, the most shared memory it takes, in bytes, and how many instructions read or
write global memory two bytes at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))

import handmade
import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from leadline import tasks
from leadline.kernels.fused import cross_entropy, heads, search
from leadline.kernels.fused.attention import Heads, attention
from leadline.kernels.fused.runtime import Runtime
from leadline.kernels.pack import pack_one
from leadline.training import step as steps


class Absent:
    """In place of a driver: a GPU that one can compile for and not run on."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # a kernel that is compiled is kept for its device

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def attend(widths: Iterable[int], dtype: torch.dtype) -> None:
    """Self-attention of two heads, forward and backward, with dropout: what takes most shared memory."""
    pack = pack_one([np.arange(9), np.arange(20)])
    runtime = Runtime(dtype, torch.zeros(1, dtype=torch.int64))
    for width in widths:
        qkv = torch.zeros(29, 6 * width, dtype=dtype, requires_grad=True)
        heads, how = Heads(2, 2, width), runtime.dropout(0.1, 1)
        attention(qkv, None, pack, pack, heads, True, runtime, dropout=how).sum().backward()


def look_up(width: int = 128, beams: int = 5, dtype: torch.dtype = torch.bfloat16) -> None:
    """A step of the beam search in slots."""
    starts, limits = torch.tensor([0, 9, 29], dtype=torch.int32), torch.tensor([12, 30])
    state = search.State.begin(starts, limits, 2, beams, 48, 1, 2, 0.6)
    rows = 2 * beams
    keys, values = torch.zeros(2, rows, 48, 2, width, dtype=dtype).unbind()
    search.self_attention(torch.zeros(rows, 6 * width, dtype=dtype), keys, values, state.table, state.positions)
    memory = torch.zeros(29, 4 * width, dtype=dtype)
    search.cross_attention(torch.zeros(rows, 2 * width, dtype=dtype), memory, state.sentence, state.starts, width)
    search.advance(state, torch.zeros(rows, 10_000, dtype=dtype))


def like_llama() -> None:
    """What meets sizes that are no multiple of 16: GPT-2's vocabulary, and the halves of heads that turn."""
    runtime = Runtime(torch.bfloat16, torch.zeros(1, dtype=torch.int64))
    read = cross_entropy.filled(torch.zeros(50257, 64, dtype=torch.bfloat16))
    onto = cross_entropy.Projection(50257, SimpleNamespace(grad=torch.zeros(read.shape)), read)
    hidden = torch.zeros(4, 64, dtype=torch.bfloat16, requires_grad=True)
    cross_entropy.linear_cross_entropy(hidden, onto, torch.zeros(4, dtype=torch.int64), 0.1, 1, torch.ones(1), runtime)
    parts = [heads.Part(0, 12, 64, turns=True), heads.Part(768, 12, 64, turns=False)]
    qkv = torch.zeros(4, 1536, dtype=torch.bfloat16, requires_grad=True)
    table, positions = torch.zeros(9, 64), torch.zeros(4, dtype=torch.int32)
    heads.prepare(qkv + 0, parts, table, positions, runtime).sum().backward()


def update(task: str, precision: str, **model: Any) -> None:
    """A whole update, with every kind of dropout."""
    drops = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1, "embed_norm": True}
    train = {"step": "graph", "precision": precision, "device": "cpu"}
    config, store = handmade.CASES[task]
    config = config.set(model=drops | {"dim": 128, "ffn_dim": 256} | model, train=train)
    found = tasks.find(config.task)(config, store)
    step = steps.make_step(config, found, found.build_model().train())
    step([step.prepare(found.collate(found.epoch(0)[0]))], 1, 1e-3)


ONE = {"encoder_layers": 1, "decoder_layers": 1}
MODERN: dict[str, Any] = {"norm": "rms_norm", "positions": "rotary", "activation": "swiglu", "kv_heads": 1} | {
    "qk_norm": "head", "bias": False, "embed_norm": False, "heads": 2,
}  # fmt: skip
CASES: dict[str, Callable[[], None]] = {
    "attention": lambda: attend((128,), torch.bfloat16),
    "attention, other heads": lambda: attend((32, 64, 80, 256), torch.bfloat16),
    "attention, fp32": lambda: attend((64, 128), torch.float32),
    "like Llama": like_llama,
    "search": look_up,
    "search, fp32": lambda: look_up(dtype=torch.float32),
    "translation": lambda: update("translation", "bf16", **ONE),
    "translation, DeepNorm": lambda: update("translation", "bf16", **ONE, placement="deepnorm", heads=1),
    "translation, modern block": lambda: update("translation", "bf16", **ONE, **MODERN),
    "translation, fp32": lambda: update("translation", "fp32", **ONE),
    "masked_lm, pairs": lambda: update("masked_lm, pairs", "bf16", head="bert", activation="gelu"),
    "classification": lambda: update("classification", "bf16", dim=768, heads=12, activation="silu"),
}


def taken(capability: int, cases: Iterable[str]) -> dict[str, tuple[int, int]]:
    """By kernel: bytes of shared memory, and instructions of two bytes."""
    driver.set_active(Absent(capability))
    most: dict[str, tuple[int, int]] = {}
    run = jit.JITFunction.run

    def compile_only(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made = run(kernel, *arguments, grid=grid, warmup=True, **options)
        name = f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__}"
        narrow = len(re.findall(r"(?:ld|st)\.global\S*\.b16 ", made.asm["ptx"]))
        before = most.get(name, (0, 0))
        most[name] = (max(before[0], made.metadata.shared), max(before[1], narrow))
        return made

    jit.JITFunction.run = compile_only  # type: ignore[method-assign, assignment]
    steps.require_usable = lambda device: None  # type: ignore[assignment]
    try:
        for case in cases:
            CASES[case]()
    finally:
        jit.JITFunction.run = run  # type: ignore[method-assign]
    return most


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kernels for GPUs that are not here.")
    parser.add_argument("capabilities", nargs="+", type=int)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    given = parser.parse_args()
    print(json.dumps({each: taken(each, given.cases) for each in given.capabilities}))
