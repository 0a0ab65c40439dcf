"""The tables of performance.md: what was measured of each goal, from the newest JSON of its kind, and of each export.

python -m docs.make_speed writes them into docs/performance.md, between their marks, and the list of all results.
"""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report import title

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "bench" / "results"
TABLE = ("<!-- goals: made by docs/make_speed.py -->", "<!-- end of goals -->")
EXPORTS = ("<!-- exports: made by docs/make_speed.py -->", "<!-- end of exports -->")
LIST = ("<!-- results: made by docs/make_speed.py -->", "<!-- end of results -->")
GPU, CPU = "cuda-bf16", "cpu-fp32"
UNITS = {
    "sentences_per_second": "sentences/s",
    "pairs_per_second": "pairs/s",
    "output_tokens_per_second": "tokens/s",
    "tokens_per_second": "tokens/s",
}


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
    Goal("translation step, 6-6 d 512, 4,096 target tokens", "train-iwslt14-gpu", ms=3.4),
    Goal("… 8,192 target tokens", "train-iwslt14-8k"),
    Goal("… 16,384 target tokens", "train-iwslt14-16k"),
    Goal("translation step, 100-100 DeepNorm", "deep-deep", ratio=3),
    Goal("BERT-base step, 64 × 512, Hugging Face as it comes", "bert-bert-base", ratio=2, peers=AS_IT_COMES),
    Goal("… beside its compiled form with our head", "bert-bert-base", ratio=1.25, peers=SAME_HEAD),
    Goal("… without attention dropout", "bert-bert-base-plain", share=0.5, peers=AS_IT_COMES),
    Goal("GPT-2 124M step, 32 × 1,024", "lm-gpt2-124m", ms=57, ratio=1.3, share=0.55),
    Goal("Llama 124M step, 32 × 1,024", "lm-llama-124m", ms=57, ratio=1.3, share=0.55),
    Goal("GPT-2 124M, 256 tokens for 64 prompts", "generate-gpt2-124m", ratio=3),
    Goal("Llama 124M, 256 tokens for 64 prompts", "generate-llama-124m", ratio=3),
    Goal("6,750 TED sentences, beam 5", "decode-ted", ratio=4),
    Goal("TED from text to a translator", "command-ted", ratio=1, nll=0.02, peers="our batches"),
    Goal("BERT-base from text, 10,000 updates", "command-bert-base", ratio=1),
    Goal("first update, 6-6, warm cache", "start-iwslt14", seconds=10, ours="warm"),
    Goal("… cold", "start-iwslt14", seconds=20, ours="cold"),
    Goal("training of BERT, 8 layers, d 512, beside its step alone", "loop-bert-8", ratio=0.95),
    Goal("training of BERT-base beside its step alone", "loop-bert-base", ratio=0.95),
    Goal("… with next sentences", "loop-bert-base-pairs", ratio=0.95),
    Goal("translation step, 6-6 d 512", "train-iwslt14", CPU, ratio=1.3),
    Goal("translation step, 3-3 d 64 (the demo)", "train-small", CPU, ratio=1.15),
    Goal("`lm_small` step", "lm-lm-small", CPU, ratio=1),
    Goal("`lm_small`, 128 tokens for 8 prompts", "generate-lm-small", CPU, ratio=1),
    Goal("training of `lm_small` beside its step alone", "loop-lm-small", CPU, ratio=0.95),
    Goal("number words from text to a translator", "command-numerals", CPU, ratio=1, nll=0.02, peers="our batches"),
    Goal("preparing data, beside `tokenizers` alone", "prepare-text", CPU, ratio=0.9, peers="^tokenizers"),
    Goal("… beside sentencepiece alone", "prepare-text", CPU, peers="sentencepiece"),
    Goal("translation, beam 5, beside CTranslate2", "ctranslate2-iwslt14", CPU, ratio=1),
    Goal("1,000 TED sentences, 3-3 d 128, beam 5, beside its fp32", "ctranslate2-ted_small", CPU, peers="float32"),
    Goal("… beside its int8", "ctranslate2-ted_small", CPU, peers="int8"),
    Goal("first update, the demo's size, warm cache", "start-numerals", CPU, ours="warm"),
]


def median(row: dict[str, Any]) -> float:
    return statistics.median(row["seconds"])


def newest(goal: Goal) -> Path | None:
    dated = re.compile(rf"\d{{4}}-\d\d-\d\d-{re.escape(goal.run)}-{goal.on}\.json")
    return max((path for path in RESULTS.glob("*.json") if dated.fullmatch(path.name)), default=None)


def shown(row: dict[str, Any]) -> str:
    if "ms_a_step" in row:
        return f"{row['ms_a_step']:,.{1 if row['ms_a_step'] < 100 else 0}f} ms"
    for key, unit in UNITS.items():
        if key in row:
            return f"{row[key]:,.{1 if row[key] < 100 else 0}f} {unit}"
    return f"{median(row):,.1f} s"


def line(goal: Goal) -> str:
    where = "H200" if goal.on == GPU else "CPU"
    path = newest(goal)
    if path is None:
        return f"| {goal.work} | {where} | | | | | {goal.asked()} | not measured yet |"
    facts = json.loads(path.read_text(encoding="utf-8"))
    rows = [row for row in facts["rows"] if "seconds" in row]
    own = [row for row in rows if row["contestant"].startswith("leadline")]
    ours = min((row for row in own if re.search(goal.ours, row["contestant"])), key=median, default=None)
    if ours is None:
        return f"| {goal.work} | {where} | [failed](../bench/results/{path.name}) | | | | {goal.asked()} | **no** |"
    others = [row for row in rows if row not in own and re.search(goal.peers, row["contestant"])]
    best = min(others, key=median, default=None)
    ratio = median(best) / median(ours) if best else 0.0
    told = f"{shown(best)} ({best['contestant']})" if best else ""
    mark = " †" if facts.get("clock") == "cpu" else ""
    share = f"{ours['share_of_peak']:.0%}" if "share_of_peak" in ours else ""
    own_text = f"[{shown(ours)}](../bench/results/{path.name}){mark}"
    done = goal.reached(ours, best, ratio) if goal.asked() else ""
    cells = [goal.work, where, own_text, told, f"{ratio:.2f}×" if best else "", share, goal.asked(), done]
    return f"| {' | '.join(cells)} |"


def table() -> str:
    head = "| work | on | ours | best peer | ratio | share of peak | goal | reached |"
    return "\n".join([head, "|---|---|---:|---|---:|---:|---|---|", *map(line, GOALS)])


def exports() -> str:
    """Every export whose hypotheses, continuations or outputs were compared with the run's: the newest of each run."""
    newest_of = {path.name[11:]: path for path in sorted(RESULTS.glob("*-exports-*.json"))}  # without its date
    head = "| run | in | texts | the same | by our limit | by the end | by a tie | unexplained | apart at most |"
    lines = [head, "|---|---|---:|---:|---:|---:|---:|---:|---|"]
    for path in newest_of.values():
        facts = json.loads(path.read_text(encoding="utf-8"))
        for row in facts["rows"]:
            counts = [row.get(key, "") for key in ("same", "by_limit", "by_end", "by_tie", "by_unexplained")]
            apart = f"{row['apart']:.1e} of {row['largest_number']:.1f}" if "apart" in row else ""
            run = f"[{facts['size']['name']}](../bench/results/{path.name})"
            cells = [run, row["contestant"], row["sentences"], *counts, apart]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def everything() -> str:
    lines = []
    for path in sorted(RESULTS.glob("*.json")):
        facts = json.loads(path.read_text(encoding="utf-8"))
        told = title(facts) if {"machine", "torch", "date"} <= facts.keys() else path.stem
        lines.append(f"- [{told}](../bench/results/{path.name})")
    return "\n".join(lines)


def page() -> str:
    """performance.md with all of them as they should be."""
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    for (begin, end), made in ((TABLE, table()), (EXPORTS, exports()), (LIST, everything())):
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{made}\n\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    (DOCS / "performance.md").write_text(page(), encoding="utf-8")
