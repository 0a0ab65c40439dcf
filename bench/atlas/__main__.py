"""The stability atlas: real short trainings of many kinds of Transformer, and what a short look saw of each.

    python -m bench.atlas train --minutes 60      bench/results/atlas.jsonl: a row a training
    python -m bench.atlas probe --minutes 20      bench/results/atlas_probes.jsonl: a row a cell and rate
    python -m bench.atlas list                    the design, cell by cell

Both files grow a row at a time, and a command that is stopped goes on where it was. --wide trains the cells that want a
GPU (--device cuda); --cell adds one of your own: task/arch/placement/start/width/depth/optimizer/tokens/warmup.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

from bench.atlas import design
from bench.atlas.design import Cell

RESULTS = Path("bench/results")


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def cell_of(name: str) -> Cell:
    task, arch, placement, start, width, depth, optimizer, tokens, warmup = name.split("/")
    return Cell(task, arch, placement, start, int(width), int(depth), optimizer, int(tokens), int(warmup))


class Trained:
    """The rows so far, by cell and seed."""

    def __init__(self, rows: list[dict[str, object]]) -> None:
        self.ends: dict[tuple[str, int], dict[float, float]] = {}
        self.frequencies: dict[str, float] = {}
        for row in rows:
            self.add(row)

    def add(self, row: dict[str, object]) -> None:
        name, loss = str(row["cell"]), row["loss"]
        end = float("inf") if loss is None else float(str(loss))
        self.ends.setdefault((name, int(str(row["seed"]))), {})[float(str(row["rate"]))] = end
        self.frequencies[name] = float(str(row["frequencies"]))


def jobs(cells: list[Cell], trained: Trained) -> Iterator[tuple[Cell, float, int]]:
    """Cell by cell with the first seed; then, where the edge lies, with the others."""
    for cell in cells:
        ends = trained.ends.setdefault((cell.name, 1), {})
        for _ in range(len(cell.ladder)):
            left = design.rates_left(cell, ends, trained.frequencies.get(cell.name, 0.0))
            for rate in left:
                yield cell, rate, 1
            if not left:
                break
    for cell in cells:
        ends = trained.ends[cell.name, 1]
        if at := design.edge(ends, trained.frequencies[cell.name]):
            for rate in (at, *(r for r in cell.ladder if at < r <= 2.1 * at)):
                for seed in design.EDGE_SEEDS:
                    if rate not in trained.ends.setdefault((cell.name, seed), {}):
                        yield cell, rate, seed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.atlas", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["train", "probe", "list"])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--cell", action="append")
    parser.add_argument("--text", default="", help="a folder as text: takes, for translation in place of number words")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    a = parser.parse_args()
    cells = [cell_of(name) for name in a.cell] if a.cell else design.design(wide=a.wide)
    if a.what == "list":
        for cell in cells:
            print(cell.name)
        return
    import torch

    from bench.atlas import trainings

    torch.set_num_threads(1)
    until = time.monotonic() + 60 * a.minutes
    if a.what == "train":
        path = a.out / "atlas.jsonl"
        trained = Trained(read(path))
        with path.open("a", encoding="utf-8") as file:
            for cell, rate, seed in jobs(cells, trained):
                if time.monotonic() > until:
                    break
                row = trainings.train(cell, rate, seed, a.text, a.device)
                trained.add(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(row, flush=True)
        return
    path = a.out / "atlas_probes.jsonl"
    done = {row["cell"] for row in read(path)}
    with path.open("a", encoding="utf-8") as file:
        for cell in cells:
            if cell.name not in done and time.monotonic() < until:
                rows = trainings.probe(cell, a.text, a.device)
                file.write("".join(json.dumps(row) + "\n" for row in rows))
                file.flush()
                print(cell.name, *(row["losses"][-1:] for row in rows), flush=True)


if __name__ == "__main__":
    main()
