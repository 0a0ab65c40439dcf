"""What was measured as a table: on the terminal, and in Markdown (`python -m bench table FILES`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure import Row

# Key of a row -> its heading and how it is written. A table has those columns that any of its rows has.
COLUMNS = {
    "contestant": ("contestant", ""),
    "schedule": ("schedule", ""),
    "first": ("first", ".1e"),
    "largest": ("largest", ".1e"),
    "last": ("last", ".1e"),
    "microseconds": ("µs a step", ",.0f"),
    "launches": ("launches", ".0f"),
    "layers": ("layers", ""),
    "recompute": ("recompute", ""),
    "parameters": ("weights", ",.0f"),
    "ms_a_step": ("ms a step", ".1f"),
    "target_tokens_per_second": ("target tokens/s", ",.0f"),
    "tokens_per_second": ("tokens/s", ",.0f"),
    "sentences_per_second": ("sentences/s", ",.0f"),
    "best_sentences_per_second": ("the fastest pass", ",.0f"),
    "output_tokens_per_second": ("output tokens/s", ",.0f"),
    "pairs_per_second": ("pairs/s", ",.0f"),
    "tflops": ("TFLOP/s", ".3g"),
    "share_of_peak": ("of peak", ".1%"),
    "wait_share": ("device waits", ".1%"),
    "state_gib": ("state GiB", ".2f"),
    "activations_gib": ("activations GiB", ".2f"),
    "peak_gib": ("peak GiB", ".2f"),
    "build_seconds": ("build s", ".1f"),
    "first_step_seconds": ("first step s", ".1f"),
    "step_seconds": ("update s", ".2f"),
    "save_seconds": ("save s", ".2f"),
    "grown_gib": ("memory GiB", ".2f"),
    "first_loss": ("first loss", ".2f"),
    "last_loss": ("last loss", ".2f"),
    "valid_loss": ("valid loss", ".2f"),
    "wall_seconds": ("s in all", ".1f"),
    "seconds_to_target": ("s to target", ".1f"),
    "valid_nll": ("valid loss", ".3f"),
    "bleu": ("BLEU", ".2f"),
    "bleu_p": ("p against leadline", ".3f"),
    "sentences": ("sentences", ",.0f"),
    "same": ("the same", ",.0f"),
    "same_unlimited": ("without our limit", ",.0f"),
    "by_limit": ("differ by our limit", ",.0f"),
    "by_end": ("by the end at max_length", ",.0f"),
    "by_tie": ("by a tie", ",.0f"),
    "by_unexplained": ("unexplained", ",.0f"),
    "numbers": ("numbers", ",.0f"),
    "apart": ("apart at most", ".1e"),
    "largest_number": ("the largest number", ".1f"),
    "same_output": ("same output as leadline", ".1%"),
    "leadline_is_faster_by": ("leadline is faster by", ".2f×"),
    "failed": ("", ""),
}


def cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    keys = [key for key in COLUMNS if any(row.get(key) not in (None, "") for row in rows)]
    return [COLUMNS[key][0] for key in keys], [[_cell(row.get(key), COLUMNS[key][1]) for key in keys] for row in rows]


def _cell(value: Any, form: str) -> str:
    if value is None:
        return ""
    return format(value, form.removesuffix("×")) + ("×" if form.endswith("×") else "")


def title(facts: dict[str, Any]) -> str:
    size = facts["size"]["name"] if isinstance(facts.get("size"), dict) else facts.get("size", "")
    parts = [f"{facts.get('what', 'train')} {size}".strip(), facts.get("precision", ""), facts["machine"]]
    parts.append(f"torch {facts['torch']}")
    if facts.get("peak_tflops"):
        parts.append(f"matrix product {facts['peak_tflops']:.3g} TFLOP/s")
    return ", ".join([*filter(None, parts), facts["date"]])


def show(facts: dict[str, Any]) -> None:
    """As wide as it needs to be, for terminals and files alike."""
    heads, rows = cells(facts["rows"])
    numeric = _numeric(rows)
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    print(f"\n{title(facts)}")
    for line in [heads, ["─" * width for width in widths], *rows]:
        parts = zip(line, widths, numeric, strict=True)
        print("  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in parts).rstrip())
    for note in facts.get("notes", []):
        print(note)


def _numeric(rows: Sequence[Sequence[str]]) -> list[bool]:
    return [all(cell[:1].isdigit() or not cell for cell in column) for column in zip(*rows, strict=True)]


def markdown(path: Path) -> str:
    facts = json.loads(path.read_text(encoding="utf-8"))
    heads, rows = cells(facts["rows"])
    lines = [heads, ["---:" if number else "---" for number in _numeric(rows)], *rows]
    body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    notes = "".join(f"\n- {note}" for note in facts.get("notes", []))
    return f"{title(facts)} ([`{path.name}`](../bench/results/{path.name}))\n\n{body}\n" + (notes and f"{notes}\n")
