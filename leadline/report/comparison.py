"""Runs side by side, as a value: `leadline.compare("runs/a", "runs/b")`. No torch."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

from leadline import notebook
from leadline.files import Facts
from leadline.report import page, runs
from leadline.report.page import Chart, Table

# As a notebook has room.
SHORT = ("run", "updates", "last valid loss", "best valid loss", "best at", "seconds", "ended")


@dataclass(frozen=True)
class Comparison:
    overview: Table  # a row a run: what was asked and what came of it
    differing: list[Table]  # the keys of their configs that differ; empty for one run or equal ones
    losses: list[Chart]  # one for every task and data: others are not compared

    @property
    def rows(self) -> list[Facts]:
        """The overview, for a data frame."""
        return [dict(zip(self.overview.columns, row, strict=True)) for row in self.overview.rows]

    def __str__(self) -> str:
        tables = [self.overview, *self.differing]
        return "\n\n".join(f"{table.title}\n{_text(table)}" for table in tables)

    def _repr_html_(self) -> str:
        short = [[row[name] for name in SHORT] for row in self.rows]
        tables = [notebook.table(SHORT, short), *(notebook.table(each.columns, each.rows) for each in self.differing)]
        pictures = [_picture(chart) for chart in self.losses]
        count = len(self.overview.rows)
        return notebook.card(f"{count} run{'s' * (count > 1)}", [*tables, *pictures])


def compare(*folders: str | Path) -> Comparison:
    """Runs side by side: what differs between their configs, their losses and how they ended."""
    read = runs.read([Path(folder) for folder in folders])
    differing = [section for section in runs.differences(read) if isinstance(section, Table)]
    losses = [runs.loss_of(members) for members in runs.kinds_of(read).values()]
    return Comparison(runs.overview(read), differing, losses)


def _text(table: Table) -> str:
    shown = [list(map(str, table.columns)), *(list(map(notebook.shown, row)) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    rows = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in shown)
    return "\n".join(row.rstrip() for row in rows)


def _picture(chart: Chart) -> str:
    file = io.BytesIO()
    page.picture(chart).savefig(file, format="png", dpi=90)  # on white, in a dark notebook too
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="loss by update" style="max-width:100%;margin-top:.6em" src="data:image/png;base64,{data}">'
