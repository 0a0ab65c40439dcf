"""Every Triton kernel of an update, compiled for GPUs that are not here: python tests/kernels/ahead.py 80 90 …

Triton compiles as it would before a launch, with the types and sizes of a real step, and launches nothing. Prints a
JSON: by compute capability and kernel, the most shared memory it takes, in bytes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from leadline import recipes, tasks
from leadline.config import Config
from leadline.data import batching
from leadline.data.store import Store, prepare
from leadline.training import graph
from leadline.training.step import make_step


class Absent:
    """In place of a driver: a GPU that one can compile for and not run on."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def config() -> Config:
    """A training that has every kernel in it."""
    drops = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1, "embed_norm": True}
    return recipes.numerals().set(
        model=drops | {"dim": 128, "ffn_dim": 256, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
        data={"size": 300, "vocab_size": 200},
        train={"step": "graph", "precision": "bf16", "batch_tokens": 256, "device": "cpu"},
    )


def shared_memory(capability: int) -> dict[str, int]:
    driver.set_active(Absent(capability))
    found: dict[str, int] = {}
    run = jit.JITFunction.run

    def compile_only(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made = run(kernel, *arguments, grid=grid, warmup=True, **options)
        found[kernel.fn.__name__] = max(found.get(kernel.fn.__name__, 0), made.metadata.shared)
        return made

    jit.JITFunction.run = compile_only  # type: ignore[method-assign, assignment]
    graph.require_usable = lambda device: None  # type: ignore[assignment]
    try:
        chosen = config()
        task = tasks.find(chosen.task)(chosen, Store(prepare(chosen.data)))
        step = make_step(chosen, task, task.build_model().train())
        rows = batching.epoch_plan(task.train.lengths, task.shape, 1, 0)[0]
        step([step.prepare(task.collate(rows))], 1, 1e-3)
    finally:
        jit.JITFunction.run = run  # type: ignore[method-assign]
    return found


if __name__ == "__main__":
    print(json.dumps({each: shared_memory(int(each)) for each in sys.argv[1:]}))
