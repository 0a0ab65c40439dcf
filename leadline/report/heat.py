"""A heat map: a number for every row and column, as a table whose cells are the darker the larger it is."""

from __future__ import annotations

import html as markup
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SHADES = 8  # .heat-0 (light, the lowest) to .heat-7 in page.css: one hue, so that the colour-blind see the same


@dataclass(frozen=True)
class Heat:
    title: str
    x_label: str
    y_label: str
    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float]]  # by row; infinite: diverged, NaN: not measured
    caption: str = ""


def shades(values: Sequence[Sequence[float]]) -> list[list[int | None]]:
    """Of each cell; what diverged is the darkest, what was not measured has none."""
    finite = [value for row in values for value in row if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)

    def shade(value: float) -> int | None:
        if math.isnan(value):
            return None
        share = (value - low) / (high - low) if math.isfinite(value) and high > low else float(value > high)
        return min(SHADES - 1, int(share * SHADES))

    return [[shade(value) for value in row] for row in values]


def shown(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}" if math.isfinite(value) else "diverged"


def to_html(heat: Heat) -> str:
    head = "".join(f"<th>{markup.escape(name)}</th>" for name in heat.columns)
    corner = f"<th>{markup.escape(heat.y_label)} \\ {markup.escape(heat.x_label)}</th>"
    body = ""
    for name, row, colours in zip(heat.rows, heat.values, shades(heat.values), strict=True):
        cells = (
            f'<td class="{"" if colour is None else f"heat-{colour}"}">{shown(value)}</td>'
            for value, colour in zip(row, colours, strict=True)
        )
        body += f"<tr><th>{markup.escape(name)}</th>{''.join(cells)}</tr>"
    label = f'role="region" aria-label="{markup.escape(heat.title)}"'
    return f'<div class="box" tabindex="0" {label}><table class="heat"><tr>{corner}{head}</tr>{body}</table></div>'


def cells(heat: Heat) -> Iterator[tuple[str, str, float]]:
    """Its table: a row for each cell."""
    for name, row in zip(heat.rows, heat.values, strict=True):
        yield from ((name, column, value) for column, value in zip(heat.columns, row, strict=True))


def write_picture(heat: Heat, path: Path) -> None:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    colours = shades(heat.values)
    figure = Figure(figsize=(1.6 + 0.9 * len(heat.columns), 1.4 + 0.4 * len(heat.rows)), layout="constrained")
    axes = figure.add_subplot()
    grid = [[math.nan if colour is None else colour for colour in row] for row in colours]
    axes.imshow(grid, cmap=colormaps["Blues"], vmin=0, vmax=SHADES - 1, aspect="auto")
    for i, row in enumerate(heat.values):
        for j, value in enumerate(row):
            dark = (colours[i][j] or 0) > SHADES / 2
            axes.text(j, i, shown(value), ha="center", va="center", color="white" if dark else "black", fontsize=8)
    axes.set_xticks(range(len(heat.columns)), heat.columns)
    axes.set_yticks(range(len(heat.rows)), heat.rows)
    axes.set(xlabel=heat.x_label, ylabel=heat.y_label)
    figure.suptitle(heat.title)
    figure.savefig(path, dpi=130, bbox_inches="tight")  # a title may be wider than a few columns
