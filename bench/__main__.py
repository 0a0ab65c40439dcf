"""python -m bench train [--size small|iwslt14] [--device cpu]: a table, and a dated JSON beside it."""

from __future__ import annotations

import argparse
import datetime
import platform
from pathlib import Path
from typing import Any

import torch

from bench import train
from bench.workload import SIZES, make_pool
from leadline.files import write_json
from leadline.terminal import table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Speed against peers, in one process run.")
    parser.add_argument("what", choices=["train"])
    parser.add_argument("--size", choices=list(SIZES), default="iwslt14")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    arguments = parser.parse_args()
    device, size = torch.device(arguments.device), SIZES[arguments.size]
    rows = train.run(size, make_pool(size), device, arguments.precision, arguments.repeats)
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        machine = torch.cuda.get_device_name()
    facts: dict[str, Any] = {"date": datetime.date.today().isoformat(), "torch": torch.__version__, "machine": machine}
    facts |= {"size": vars(size), "precision": arguments.precision, "rows": rows}
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / f"{facts['date']}-train-{size.name}-{device.type}.json", facts)
    columns = ["contestant", "ms_a_step", "target_tokens_per_second", "leadline_is_faster_by"]
    formats = ["", ".1f", ",.0f", ".2f"]
    shown = [[format(row[column], f) for column, f in zip(columns, formats, strict=True)] for row in rows]
    title = f"training step, {size.name}, {arguments.precision}, {machine}, torch {torch.__version__}"
    table(title, [column.replace("_", " ") for column in columns], shown)


if __name__ == "__main__":
    main()
