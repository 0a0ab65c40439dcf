"""Every goal of speed, and a command that measures those of one device in the time there is.

python -m bench.goals --device cuda --minutes 10 [--only WORD …] [--pairs FOLDER] [--documents FOLDER] [--out FOLDER]

What was never measured on the device, or beside no peer, comes first, then what was measured longest ago, and whole
commands last. Each is a `python -m bench` of its own, with the peers that take minutes to compile, but for those that
are not ready after --limit seconds. When the time is over, the one that runs is stopped and keeps the rows it has.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
GPU, CPU = "cuda-bf16", "cpu-fp32"
CHOOSES = ("train", "deep", "bert", "lm", "command")  # commands of which some contestants may be left out


@dataclass(frozen=True)
class Goal:
    work: str
    run: str  # command and size, as in the name of the JSON
    on: str = GPU
    ratio: float = 0.0  # at least; 0: not asked for
    ms: float = 0.0  # a step, at most
    seconds: float = 0.0  # at most
    share: float = 0.0  # of the peak, at least
    nll: float = 0.0  # validation loss, at most so far above the peer's
    peers: str = ""  # a pattern of those that count
    ours: str = "leadline"  # a pattern of ours
    needs: str = ""  # of data that is not made: "pairs", "documents" or "run"
    slow: bool = False  # its compiled peers take minutes

    def asked(self) -> str:
        parts = [f"≤ {self.ms:g} ms"] * bool(self.ms) + [f"≤ {self.seconds:g} s"] * bool(self.seconds)
        parts += [f"≥ {self.ratio:g}×"] * bool(self.ratio) + [f"≥ {self.share:.0%} of peak"] * bool(self.share)
        return ", ".join(parts + [f"loss within {self.nll:g}"] * bool(self.nll))

    def reached(self, ours: dict[str, Any], best: dict[str, Any] | None, ratio: float) -> str:
        apart = abs(ours.get("valid_nll", 0.0) - (best or {}).get("valid_nll", 0.0))
        met = [
            not self.ms or ours["ms_a_step"] <= self.ms,
            not self.seconds or median(ours) <= self.seconds,
            not self.ratio or best is None or ratio >= self.ratio,
            not self.share or ours["share_of_peak"] >= self.share,
            not self.nll or apart <= self.nll,
        ]
        if all(met) and (self.ratio or self.nll) and best is None:
            return "no peer finished"
        return "yes" if all(met) else "**no**"


# Peers that are given the saving of another row, or that are ours in another way, do not count there.
AS_IT_COMES, SAME_HEAD = r"^(?!.*masked)", r"compiled.*head on masked"
GOALS = [
    Goal("translation step, 6-6 d 512, 4,096 target tokens", "train-iwslt14-gpu", ms=3.4, slow=True),
    Goal("… 8,192 target tokens", "train-iwslt14-8k"),
    Goal("… 16,384 target tokens", "train-iwslt14-16k"),
    Goal("translation step, 100-100 DeepNorm", "deep-deep", ratio=3),
    Goal("BERT-base step, 64 × 512, Hugging Face as it comes", "bert-bert-base", ratio=2, peers=AS_IT_COMES, slow=True),
    Goal("… beside its compiled form with our head", "bert-bert-base", ratio=1.25, peers=SAME_HEAD),
    Goal("… without attention dropout", "bert-bert-base-plain", share=0.5, peers=AS_IT_COMES),
    Goal("GPT-2 124M step, 32 × 1,024", "lm-gpt2-124m", ms=57, ratio=1.3, share=0.55, slow=True),
    Goal("Llama 124M step, 32 × 1,024", "lm-llama-124m", ms=57, ratio=1.3, share=0.55, slow=True),
    Goal("GPT-2 124M, 256 tokens for 64 prompts", "generate-gpt2-124m", ratio=3),
    Goal("Llama 124M, 256 tokens for 64 prompts", "generate-llama-124m", ratio=3),
    Goal("6,750 TED sentences, beam 5", "decode-ted", ratio=4, needs="run"),
    Goal("TED from text to a translator", "command-ted", ratio=1, nll=0.02, peers="our batches", needs="pairs"),
    Goal("BERT-base from text, 10,000 updates", "command-bert-base", ratio=1, needs="documents"),
    Goal("first update, 6-6, warm cache", "start-iwslt14", seconds=10, ours="warm"),
    Goal("… cold", "start-iwslt14", seconds=20, ours="cold"),
    Goal("training of BERT, 8 layers, d 512, beside its step alone", "loop-bert-8", ratio=0.95, needs="documents"),
    Goal("training of BERT-base beside its step alone", "loop-bert-base", ratio=0.95, needs="documents"),
    Goal("… with next sentences", "loop-bert-base-pairs", ratio=0.95, needs="documents"),
    Goal("translation step, 6-6 d 512", "train-iwslt14", CPU, ratio=1.3),
    Goal("translation step, 3-3 d 64 (the demo)", "train-small", CPU, ratio=1.15),
    Goal("`lm_small` step", "lm-lm-small", CPU, ratio=1),
    Goal("`lm_small`, 128 tokens for 8 prompts", "generate-lm-small", CPU, ratio=1),
    Goal("training of `lm_small` beside its step alone", "loop-lm-small", CPU, ratio=0.95),
    Goal("number words from text to a translator", "command-numerals", CPU, ratio=1, nll=0.02, peers="our batches"),
    Goal(
        "preparing data, beside `tokenizers` alone", "prepare-text", CPU, ratio=0.9, peers="^tokenizers", needs="pairs"
    ),
    Goal("… beside sentencepiece alone", "prepare-text", CPU, peers="sentencepiece", needs="pairs"),
    Goal("translation, beam 5, beside CTranslate2", "ctranslate2-iwslt14", CPU, ratio=1),
    Goal(
        "1,000 TED sentences, 3-3 d 128, beam 5, beside its fp32",
        "ctranslate2-ted_small",
        CPU,
        peers="float32",
        needs="run",
    ),
    Goal("… beside its int8", "ctranslate2-ted_small", CPU, peers="int8", needs="run"),
    Goal("first update, the demo's size, warm cache", "start-numerals", CPU, ours="warm"),
]


def median(row: dict[str, Any]) -> float:
    return statistics.median(row["seconds"])


def newest(goal: Goal) -> Path | None:
    dated = re.compile(rf"\d{{4}}-\d\d-\d\d-{re.escape(goal.run)}-{goal.on}\.json")
    return max((path for path in RESULTS.glob("*.json") if dated.fullmatch(path.name)), default=None)


def compared(goal: Goal, path: Path) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Our row of a JSON that the goal is about, and the best peer's."""
    rows = [row for row in json.loads(path.read_text(encoding="utf-8"))["rows"] if "seconds" in row]
    own = [row for row in rows if row["contestant"].startswith("leadline")]
    others = [row for row in rows if row not in own and re.search(goal.peers, row["contestant"])]
    ours = [row for row in own if re.search(goal.ours, row["contestant"])]
    return min(ours, key=median, default=None), min(others, key=median, default=None)


def measured(goal: Goal) -> str:
    """The date; nothing where it was not, or not beside the peer that it asks for."""
    path = newest(goal)
    if path is None or (goal.ratio and None in compared(goal, path)):
        return ""
    return path.name[:10]


def commands(on: str, data: Mapping[str, Path | None], only: Sequence[str] = ()) -> list[list[str]]:
    """What `python -m bench` is given for each JSON that goals of a device and precision read, in the order of need."""
    device, _, precision = on.partition("-")
    chosen: dict[str, list[str]] = {}
    dates: dict[str, tuple[bool, str]] = {}
    for goal in GOALS:
        folder = data.get(goal.needs)
        if goal.on != on or (goal.needs and folder is None) or (only and not any(word in goal.run for word in only)):
            continue
        what, _, size = goal.run.partition("-")
        words = [what, "--size", size, "--device", device, "--precision", precision]
        words += ["--slow"] * goal.slow + (["--text", str(folder)] if goal.needs else [])
        chosen.setdefault(goal.run, words)
        when = (what == "command", measured(goal))
        dates[goal.run] = min(when, dates.get(goal.run, when))
    return [chosen[run] for run in sorted(chosen, key=dates.__getitem__)]


def measure(words: list[str], seconds: float) -> str:
    """Runs `python -m bench` with these words, at most so long, and says how it ended."""
    process = subprocess.Popen([sys.executable, "-m", "bench", *words], start_new_session=True)
    try:
        ended = process.wait(max(seconds, 0))
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)  # with what it has started
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return "stopped, no time is left"
    return f"failed with exit code {ended}" if ended else "done"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.goals", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", nargs="+", default=[], help="those whose JSON is called so, in part")
    parser.add_argument("--pairs", type=Path, help="a folder of parallel text, German and English")
    parser.add_argument("--documents", type=Path, help="a folder of documents, or a file")
    parser.add_argument("--contestants", nargs="+", default=[], help="those whose name holds one of these")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds to build and compile a contestant")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(words)
    more = ["--limit", str(given.limit), "--repeats", str(given.repeats), "--out", str(given.out)]
    chosen = ["--only", *given.contestants] if given.contestants else []
    ends = time.monotonic() + 60 * given.minutes
    on = GPU if given.device == "cuda" else CPU
    for each in commands(on, {"pairs": given.pairs, "documents": given.documents}, given.only):
        if (begun := time.monotonic()) < ends:
            outcome = measure([*each, *more, *chosen * (each[0] in CHOOSES)], ends - begun)
            print(f"{' '.join(each)}: {outcome} ({time.monotonic() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
