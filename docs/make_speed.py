"""The tables of performance.md: what was measured of each goal, from the newest JSON of its kind, and of each export.

python -m docs.make_speed writes them into docs/performance.md, between their marks, and the list of all results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.goals import GOALS, GPU, RESULTS, Goal, compared, median, newest
from bench.report import title

DOCS = Path(__file__).parent
TABLE = ("<!-- goals: made by docs/make_speed.py -->", "<!-- end of goals -->")
EXPORTS = ("<!-- exports: made by docs/make_speed.py -->", "<!-- end of exports -->")
LIST = ("<!-- results: made by docs/make_speed.py -->", "<!-- end of results -->")
UNITS = {
    "sentences_per_second": "sentences/s",
    "pairs_per_second": "pairs/s",
    "output_tokens_per_second": "tokens/s",
    "tokens_per_second": "tokens/s",
}


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
    facts, (ours, best) = json.loads(path.read_text(encoding="utf-8")), compared(goal, path)
    if ours is None:
        return f"| {goal.work} | {where} | [failed](../bench/results/{path.name}) | | | | {goal.asked()} | **no** |"
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
