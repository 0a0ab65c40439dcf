"""The stability atlas: real short trainings of many kinds of Transformer, and what a short look saw of each.

    python -m bench.atlas make --minutes 60       what is missing, cell by cell, of
        bench/results/atlas.jsonl                 a row a training
        bench/results/atlas_probes.jsonl          a row a cell and rate: what 30 steps show of another draw of the model
        bench/results/atlas_auto.jsonl            a row a cell: what optim.lr=auto chooses for it
        bench/results/atlas_verdicts.jsonl        a row a cell: what leadline inspect says today
    python -m bench.atlas judge                   the tables of docs/inspect.md
    python -m bench.atlas second                  what was tried afterwards, judged on another set
    python -m bench.atlas list                    the design, cell by cell

Files grow a row at a time, and a command that is stopped goes on where it was. --wide is for the cells that want a GPU
(--device cuda); --cell adds one of your own: task/arch/placement/start/width/depth/optimizer/tokens/warmup.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from bench.atlas import design
from bench.atlas.rows import KINDS, RESULTS, Rows, cell_of, jobs

SETS = {"design": design.design, "held-out": design.held_out, "second": design.second}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.atlas", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["make", "list", "judge", "second"])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--set", choices=SETS, default="design", help="held-out and second: what a change is judged on")
    parser.add_argument("--blocks", type=int, default=10**9, help="only cells with at most so many blocks")
    parser.add_argument("--write", action="store_true", help="judge, second: put the tables into docs/inspect.md")
    parser.add_argument("--only", choices=KINDS, action="append")
    parser.add_argument("--cell", action="append")
    parser.add_argument("--text", default="", help="a folder as text: takes, for translation in place of number words")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    a = parser.parse_args()
    drawn = SETS[a.set]() if not a.wide else design.design(wide=True)
    cells = [cell_of(name) for name in a.cell] if a.cell else drawn
    cells = [cell for cell in cells if cell.blocks <= a.blocks]
    if a.what == "list":
        print("\n".join(cell.name for cell in cells))
        return
    if a.what in ("judge", "second"):
        from bench.atlas import judge, second

        text = (judge if a.what == "judge" else second).page(Rows(a.out))
        print(text, end="")
        if a.write:
            judge.write(a.what, text)
        return
    import torch

    torch.set_num_threads(1)
    until, rows = time.monotonic() + 60 * a.minutes, Rows(a.out)
    for kind, make in jobs(cells, rows, tuple(a.only or KINDS), a.text, a.device):
        if time.monotonic() > until:
            break
        made = make()
        rows.add(kind, made)
        print(kind, made[0]["cell"], made[0]["rate"], made[0].get("loss"), flush=True)


if __name__ == "__main__":
    main()
