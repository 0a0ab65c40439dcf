"""The README's picture, from what Xiong's Figure 4 has kept of its runs: python docs/make_figures.py"""

from __future__ import annotations

import json
from pathlib import Path

from leadline.history import History
from leadline.report.page import Chart, picture
from leadline.reproduce.figure import FinishedRun
from leadline.reproduce.reading import curves

RESULTS = Path(__file__).parent / "results"
SHOWN = {
    "post_ln, adam, no warm-up": "Post-LN, no warm-up",
    "post_ln, adam, warm-up": "Post-LN, 4,000 updates of warm-up",
    "pre_ln, adam, no warm-up": "Pre-LN, no warm-up",
    "deepnorm, adam, warm-up": "DeepNorm, 4,000 updates of warm-up",
}


def main() -> None:
    told = json.loads((RESULTS / "xiong-fig4" / "claims.json").read_text(encoding="utf-8"))["runs"]
    lines = (RESULTS / "xiong-fig4" / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    kept = {line["key"]: line for line in map(json.loads, lines)}
    runs: dict[str, list[FinishedRun]] = {name: [] for name in SHOWN.values()}
    for run in told:
        if run["label"] in SHOWN:
            line = kept[run["key"]]
            runs[SHOWN[run["label"]]].append(
                FinishedRun(run["label"], run["seed"], line["result"], History(line["rows"]))
            )
    chart = Chart(
        "TED German-English: where the norm sits decides who needs warm-up",
        "epoch",
        "validation loss (nats a token)",
        curves(runs, "valid_nll", "epoch"),
    )
    picture(chart).savefig(RESULTS / "ted_de-en.png", dpi=130)


if __name__ == "__main__":
    main()
