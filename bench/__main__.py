"""python -m bench COMMAND (see COMMANDS): a table, and a dated JSON in bench/results.

python -m bench table FILES prints Markdown from such JSONs. docs/performance.md says what is compared and how.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

from bench import report
from bench.measure import Row, Setting, matrix_peak
from leadline.errors import UserError
from leadline.files import write_json

# Command -> the size it takes if none is asked for. Each is a module of this package with SIZES and run().
COMMANDS = {
    "train": "iwslt14",
    "bert": "bert-tiny",
    "deep": "deep-tiny",
    "lm": "gpt2-tiny",
    "generate": "gpt2-tiny",
    "decode": "small",
    "ctranslate2": "iwslt14",
    "exports": "trained",
    "memory": "memory-tiny",
    "agree": "tiny",
    "profile": "iwslt14-gpu",
    "tune": "tiny",
    "prepare": "numerals",
    "command": "numerals-tiny",
    "start": "numerals-tiny",
    "loop": "lm-tiny",
    "depth": "depth-tiny",
    "processes": "tiny",
}
LIBRARIES = ("transformers", "ctranslate2", "tokenizers", "sentencepiece", "x-transformers", "torchscale", "triton")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Speed against peers, in one process run.")
    parser.add_argument("what", choices=[*COMMANDS, "table"])
    parser.add_argument("files", nargs="*", type=Path, help="table: JSON files")
    parser.add_argument("--size", default="")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], help="contestants whose name holds one of these")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: for a busy machine, see docs")
    parser.add_argument("--slow", action="store_true", help="also contestants that take minutes to compile")
    parser.add_argument("--limit", type=float, default=0.0, help="seconds to compile a contestant; 0: no limit")
    parser.add_argument("--run", type=Path, help="decode, ctranslate2, exports: a trained run folder")
    parser.add_argument("--text", type=Path, help="with --run: sentences, one a line; prepare, command: text")
    parser.add_argument("--reference", type=Path, help="ctranslate2: their translations, one a line")
    parser.add_argument("--sentences", type=int, default=0, help="decode, ctranslate2, exports, generate: only so many")
    parser.add_argument("--languages", nargs=2, default=["de", "en"], help="prepare, command: of the text folder")
    parser.add_argument("--depths", nargs="+", type=int, default=[], help="memory: layers of each stack")
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    return parser


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    what, device = arguments.what, torch.device(arguments.device)
    command = importlib.import_module(f"bench.{what}")
    name = arguments.size or COMMANDS[what]
    if name not in command.SIZES:
        raise UserError(f"{what} has no size {name!r}: it has {', '.join(command.SIZES)}")
    size = command.SIZES[name]
    if arguments.run and not arguments.text:
        raise UserError("--run FOLDER needs --text FILE, the sentences to translate")
    setting = Setting(
        device=device,
        precision=arguments.precision,
        repeats=arguments.repeats,
        warmups=3 if device.type == "cuda" and what in ("train", "bert", "deep", "lm") else 1,
        only=tuple(arguments.only),
        slow=arguments.slow,
        limit=arguments.limit,
        clock=time.process_time if arguments.clock == "cpu" else time.perf_counter,
    )
    peak = (
        0.0
        if what in ("tune", "prepare", "depth", "command", "start", "loop", "exports", "processes")
        else matrix_peak(setting)
    )
    cpu = f"{platform.machine()} CPU, {torch.get_num_threads()} of {os.cpu_count()} threads"
    facts = {
        "what": what,
        "date": datetime.date.today().isoformat(),
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else cpu,
        "torch": torch.__version__,
        "libraries": {library: version for library in LIBRARIES if (version := _version(library))},
        "size": {"name": arguments.run.name, "text": str(arguments.text)} if arguments.run else vars(size),
        "precision": arguments.precision,
        "clock": arguments.clock,
        "peak_tflops": peak / 1e12,
        "rows": [],
        "notes": [],
    }

    def keep(rows: list[Row]) -> None:
        facts["rows"] = rows
        _write(facts, arguments)

    result = command.run(size, dataclasses.replace(setting, keep=keep), peak, arguments)
    facts["rows"], facts["notes"] = result if isinstance(result, tuple) else (result, [])
    return facts


def _write(facts: dict[str, Any], arguments: argparse.Namespace) -> Path:
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = torch.device(arguments.device).type
    words = [facts["date"], facts["what"], facts["size"]["name"], device, facts["precision"]]
    path = arguments.out / f"{'-'.join(words)}.json"
    write_json(path, facts)
    return path


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


def main(words: list[str] | None = None) -> None:
    arguments = parser().parse_args(words)
    if arguments.what == "table":
        print("\n".join(report.markdown(path) for path in arguments.files))
        return
    facts = measure(arguments)
    path = _write(facts, arguments)
    report.show(facts)
    print(path)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
