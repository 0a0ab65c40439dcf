"""The table that opens results.md: every claim of both papers, from what figures have left in results/NAME/claims.json.

python docs/make_claims.py writes it into docs/results.md, between its marks. Verdicts are judged anew from the values.
"""

from __future__ import annotations

import json
from pathlib import Path

from leadline.provenance import NUMERICS
from leadline.reproduce import FIGURES
from leadline.reproduce.claims import Judged, judge

DOCS = Path(__file__).parent
BEGIN, END = "<!-- claims: made by docs/make_claims.py -->", "<!-- end of claims -->"
WORDS = {"holds": "**holds**", "does not hold": "**does not hold**", "undecided": "undecided"}


def table() -> str:
    lines = ["| figure | claim | the paper | measured | |", "|---|---|---|---|---|"]
    for name, figure in FIGURES.items():
        path = DOCS / "results" / name / "claims.json"
        facts = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"claims": [], "scale": "small"}
        values = {claim.get("number"): [v for v in claim["values"] if v is not None] for claim in facts["claims"]}
        mark = "" if facts.get("numerics") == NUMERICS else " †"
        for claim in figure.claims:
            judged: Judged = judge(claim, facts["scale"], {claim.number: values.get(claim.number, [])})
            verdict = WORDS.get(judged.verdict, judged.verdict) + (mark if judged.values else "")
            shown = f"`{name}`" if claim is figure.claims[0] else ""
            lines.append(f"| {shown} | {claim.text} | {claim.paper} | {judged.measured} | {verdict} |")
    return "\n".join(lines)


def page() -> str:
    """results.md with the table as it should be."""
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    (DOCS / "results.md").write_text(page(), encoding="utf-8")
