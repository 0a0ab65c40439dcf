"""The page of a figure: its claims beside what was measured, its charts and its runs; and a page of all figures."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from leadline.files import Facts, read_json
from leadline.report import page
from leadline.report.page import Chart, Section, Table, Words
from leadline.reproduce.claims import Judged, Verdict
from leadline.reproduce.figure import Figure, Runs

MARKS: dict[Verdict, str] = {
    "holds": "✓ holds",
    "does not hold": "✗ does not hold",
    "undecided": "? undecided",
    "not tested at this scale": "– not tested at this scale",
    "not measured": "– not measured",
}


def sections(
    figure: Figure, scale: str, source: str, runs: Runs, wanted: int, judged: Sequence[Judged]
) -> list[Section]:
    """Of `wanted` runs those that are there."""
    table = [
        [run.label, run.result.get("init", ""), run.seed, run.result["updates"], run.last("valid_nll"),
         run.last("valid_bleu"), "diverged" if run.result["diverged"] else "", run.result["seconds"]]
        for members in runs.values() for run in members
    ]  # fmt: skip
    names = ["run", "started from", "seed", "updates", "valid loss (nats a token)", "BLEU", "", "seconds"]
    count = sum(map(len, runs.values()))
    all_or_some = f"{count} in all" if count == wanted else f"of {wanted} runs only {count} are finished"
    charts = [section for section in figure.charts(runs) if not isinstance(section, Chart) or section.series]
    return [
        Words(
            "What this is",
            [
                f"{figure.paper}, at scale “{scale}”: {len(runs)} kinds of runs, {all_or_some}. Data: {source}.",
                "Measured: the mean over runs, from three on with its 95 % confidence interval, and the lowest and "
                "highest. Undecided: the interval lies on both sides of what is wanted.",
            ],
        ),
        _claims("Claims", [facts_of_claim(j) for j in judged]),
        *charts,
        Table("Runs", names, table, folded=True),
    ]


def facts_of_claim(judged: Judged) -> Facts:
    """For people, and for reading it again: by the name of its number, which no rewording changes."""
    claim = judged.claim
    return {
        "number": claim.number,
        "claim": claim.text,
        "paper": claim.paper,
        "wanted": claim.wanted,
        "measured": judged.measured,
        "values": list(judged.values),
        "verdict": judged.verdict,
    }


def write_page(figure: Figure, out: Path, name: str, shown: Sequence[Section]) -> None:
    """NAME.html, and its charts in the folder NAME."""
    for kind in ("png", "csv"):  # of charts that may be gone, or have another title now
        for picture in (out / name).glob(f"[0-9][0-9]-*.{kind}"):
            with contextlib.suppress(OSError):  # a folder that cannot be written: the page says so in a sentence
                picture.unlink()
    page.write(figure.title, shown, out / f"{name}.html", out / name)


def overview(out: Path, names: Iterable[str]) -> Path:
    """A page with the claims of those figures that were made in a folder."""
    paths = [path for name in names if (path := out / f"{name}.json").exists()]
    made = [read_json(path) for path in paths]
    tables = [_claims(f"{f['title']} ({f['figure']}.html, scale {f['scale']})", f["claims"]) for f in made]
    counts = Counter(claim["verdict"] for each in made for claim in each["claims"])
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    words = Words("All figures", [f"{counts.total()} claims of {len(made)} figures: {verdicts}"])
    page.write("What the papers claim, and what was measured", [words, *tables], out / "index.html")
    return out / "index.html"


def _claims(title: str, rows: Sequence[Facts]) -> Table:
    columns = {"claim": "claim", "measured": "measured", "wanted": "wanted", "paper": "the paper"}
    shown = [[MARKS[row["verdict"]], *(row[key] for key in columns)] for row in rows]
    return Table(title, ["", *columns.values()], shown)
