"""python -m bench.fits: which model fits on how many GPUs, and what the traffic between them costs. A model, not a run.

Built from what one GPU has measured (bench/results/*-memory-memory-cuda-bf16.json) and from what a captured step keeps
and sends. A weight takes 4 bytes for itself, 4 for its gradient, 2 for its 16-bit copy, and 8 for Adam's moments, which
the processes share. After the backward pass of an update each GPU sends and receives (n-1)/n of 4 bytes a weight
(gradients) and of 2 (16-bit copies; 4 for embeddings, which are also read as they are). Nothing overlaps with the
backward pass, so the times add up. What a batch leaves behind grows with tokens, layers and width.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

GIB = 2**30
RESULTS = Path(__file__).parent / "results"
VOCABULARY, TOKENS = 10_000, 4096
MEMORY = 139 * GIB  # of an H200
GPUS = (1, 8, 64)
BANDWIDTHS = (450e9, 50e9)  # bytes a second that a GPU sends, and as many it receives: NVLink, a 400 Gbit/s network


class Shape(NamedTuple):
    layers: int  # of each stack
    dim: int

    @property
    def products(self) -> int:
        """Weights that only matrix products read; a feed-forward layer is four times as wide as the model."""
        return self.layers * (12 + 16) * self.dim**2

    @property
    def weights(self) -> int:
        return self.products + VOCABULARY * self.dim


SHAPES = (*(Shape(layers, 512) for layers in (6, 25, 100, 500)), Shape(100, 1024))


class Measured(NamedTuple):
    """Of one GPU, by depth, at width 512 and 4,096 target tokens."""

    state: dict[int, float]  # GiB
    seconds: dict[tuple[int, bool], float]  # of an update, by depth and recomputation
    per_layer: dict[bool, float]  # bytes a token and layer that a batch leaves, by recomputation
    besides: dict[bool, float]  # bytes a token


def measured(path: Path) -> Measured:
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows = [row for row in facts["rows"] if "ms_a_step" in row]
    fits = [[float(number.replace(",", "")) for number in re.findall(r"[\d,]+\d", note)] for note in facts["notes"]]
    by_way = dict(zip((True, False), fits, strict=True))  # the order in which bench.memory writes them
    return Measured(
        {row["depth"]: row["state_gib"] for row in rows if row["recompute"] == "yes"},
        {(row["depth"], row["recompute"] == "yes"): row["ms_a_step"] / 1000 for row in rows},
        {way: numbers[0] for way, numbers in by_way.items()},
        {way: numbers[1] for way, numbers in by_way.items()},
    )


def state(shape: Shape, gpus: int) -> float:
    """Bytes on each."""
    return shape.weights * (4 + 4 + 2 + 8 / gpus)


def activations(shape: Shape, recompute: bool, one: Measured) -> float:
    wider = shape.dim / 512
    return TOKENS * wider * (one.per_layer[recompute] * shape.layers + one.besides[recompute])


def traffic(shape: Shape, gpus: int) -> float:
    """Bytes that each GPU sends for an update; it receives as many."""
    return (gpus - 1) / gpus * (6 * shape.products + 8 * (shape.weights - shape.products))


def seconds(shape: Shape, recompute: bool, one: Measured) -> float:
    """Of a batch on one GPU: measured, or in proportion to the weights."""
    nearest = min((known for known in one.seconds if known[1] == recompute), key=lambda k: abs(k[0] - shape.layers))
    return one.seconds[nearest] * shape.weights / Shape(nearest[0], 512).weights


def table(one: Measured) -> str:
    heads = ["layers", "width", "weights", "GPUs", "state GiB", "with a batch", "recomputed", "traffic GB"]
    heads += [f"{count} at {band / 1e9:.0f} GB/s" for band in BANDWIDTHS for count in ("1 batch", "8 batches")]
    lines = [heads, ["---:"] * len(heads)]
    for shape in SHAPES:
        for gpus in GPUS:
            sizes = [state(shape, gpus) + activations(shape, way, one) for way in (False, True)]
            recompute = sizes[0] > MEMORY
            compute, sent = seconds(shape, recompute, one), traffic(shape, gpus)
            shares = [
                f"{compute * batches / (compute * batches + sent / band):.0%}" if gpus > 1 else ""
                for band in BANDWIDTHS
                for batches in (1, 8)
            ]
            told = [f"{size / GIB:.0f}" if size <= MEMORY else "does not fit" for size in sizes]
            facts = [f"{shape.layers}-{shape.layers}", f"{shape.dim}", f"{shape.weights / 1e6:,.0f} M", f"{gpus}"]
            lines.append([*facts, f"{state(shape, gpus) / GIB:.1f}", *told, f"{sent / 1e9:.2f}", *shares])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def compared(one: Measured) -> str:
    pairs = [
        f"{depth}-{depth}: {state(Shape(depth, 512), 1) / GIB:.2f} and {one.state[depth]:.2f}" for depth in one.state
    ]
    return "State on one GPU, worked out and measured, in GiB: " + ", ".join(pairs) + "."


def main() -> None:
    newest = sorted(RESULTS.glob("*-memory-memory-cuda-bf16.json"))[-1]
    parser = argparse.ArgumentParser(prog="python -m bench.fits", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "measured", nargs="?", type=Path, default=newest, help=f"a result of bench memory ({newest.name})"
    )
    one = measured(parser.parse_args().measured)
    print(table(one), compared(one), sep="\n\n")


if __name__ == "__main__":
    main()
