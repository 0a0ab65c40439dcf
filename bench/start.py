"""From the command to the first update: `leadline train`, cold and from its cache.

Cold: the data is prepared and kernels are compiled. Warm: both are where the first command has left them. Seconds are
of the wall, to the line of metrics.jsonl; with --clock cpu those of all the command's processes, to its end.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench import prepare
from bench.command import watched
from bench.measure import Row, Setting


@dataclass(frozen=True)
class Size:
    name: str
    recipe: str
    settings: str = ""
    pairs: int = 0  # generated; 0: the recipe's own data


TINY = "model.encoder_layers=1 model.decoder_layers=1 data.size=200 data.vocab_size=300"
SIZES = {
    "numerals": Size("numerals", "numerals"),
    "numerals-tiny": Size("numerals-tiny", "numerals", TINY),
    "iwslt14": Size("iwslt14", "iwslt14_pre_ln", "data.vocab_size=2000 data.text=raw", pairs=50_000),
}


def first_update(size: Size, setting: Setting, text: Path, run: Path, cache: Path, cpu: bool) -> float:
    settings = [*size.settings.split(), "train.epochs=0", "train.updates=1", "train.eval_every=-1", "train.log_every=1"]
    settings += [f"train.device={setting.device}", f"train.precision={setting.precision}"]
    settings += [f"data.source=text:{text}"] * bool(size.pairs)
    command = [sys.executable, "-m", "leadline", "train", size.recipe, "--out", str(run)]
    command += [word for assigned in settings for word in ("--set", assigned)]
    told = watched(command, run, LEADLINE_CACHE=str(cache), TRITON_CACHE_DIR=str(cache / "triton"))
    return told.cpu if cpu else told.rows[0][0]


def run(size: Size, setting: Setting, peak: float, arguments: argparse.Namespace) -> list[Row]:
    seconds: dict[str, list[float]] = {"leadline, cold": [], "leadline, warm cache": []}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "text").mkdir()
        if size.pairs:
            prepare.generate(folder / "text", prepare.Size("", size.pairs, 0), ("de", "en"))
        for repeat in range(setting.repeats):
            for name, own in seconds.items():  # the second finds what the first has left
                place, cache = folder / f"{repeat}-{len(name)}", folder / f"cache-{repeat}"
                own.append(first_update(size, setting, folder / "text", place, cache, arguments.clock == "cpu"))
                setting.keep(rows := _rows(seconds))
    return rows


def _rows(seconds: dict[str, list[float]]) -> list[Row]:
    return [
        {"contestant": name, "wall_seconds": statistics.median(own), "seconds": [*own]}
        for name, own in seconds.items()
        if own
    ]
