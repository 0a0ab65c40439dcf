"""A document of charts, tables and words as one HTML page that opens without a network.

Words and tables are plain HTML; charts are drawn by page.js from JSON. Whatever a name contains is shown as text:
it is escaped here, set as text there, and the page's policy runs no script but page.js and fetches nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html as markup
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from leadline.errors import UserError
from leadline.files import Facts, reason, to_json, write_csv, write_text
from leadline.report import heat
from leadline.report.figures import STYLES
from leadline.report.heat import Heat

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINES = ["-", "--", "-.", ":"]  # of the pictures

Style = Literal["line", "dashes", "points"]
Tone = Literal["plain", "good", "bad", "warning"]


@dataclass(frozen=True)
class Series:
    """Points of one thing measured; None and what is not finite leave a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None  # with high: a shaded band
    high: Sequence[float | None] | None = None
    style: Style = "line"
    group: str = ""  # series of a group share a colour and a checkbox; "": a group of its own
    selected: bool = True  # shown at first

    def __post_init__(self) -> None:
        if any(len(values) != len(self.x) for values in (self.y, self.low, self.high) if values is not None):
            raise ValueError(f"series {self.name!r}: x, y, low and high differ in length")


@dataclass(frozen=True)
class Chart:
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    caption: str = ""


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    folded: bool = False  # only the title, until it is clicked


@dataclass(frozen=True)
class Words:
    title: str
    paragraphs: Sequence[str]
    tone: Tone = "plain"
    bars: Sequence[float | None] = ()  # of each paragraph: how much is done, from 0 to 1


Section = Chart | Heat | Table | Words


def sentence(line: str) -> str:
    return line[0].upper() + line[1:] + "."


def render(title: str, sections: Sequence[Section], live: bool = False) -> str:
    """The page as HTML; a live one asks the server it came from for its content, again and again."""
    script, style = "\n".join(_beside(name) for name in ("page.js", "live.js")[: 1 + live]), _beside("page.css")
    # A policy that names the script and the style by their hashes: nothing else runs, nothing else is fetched.
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'"
    policy += "; connect-src 'self'" if live else ""
    news = '<p id="news"></p>\n' if live else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{_text(title)}</title>
<style>{style}</style>
</head>
<body>
<h1>{_text(title)}</h1>
<noscript><p class="warning">The charts on this page are drawn with JavaScript, which is switched off.</p></noscript>
{news}<main>
{body_of(sections)}
</main>
<script type="application/json" id="charts">{_embedded(charts_of(sections))}</script>
<script>{script}</script>
</body>
</html>
"""


def body_of(sections: Sequence[Section]) -> str:
    return "\n".join(map(_section, sections))


def charts_of(sections: Sequence[Section]) -> list[Facts]:
    """What page.js draws, in the order of the sections."""
    return [_chart(section) for section in sections if isinstance(section, Chart)]


def beside(html: Path) -> Path:
    """The folder of a page's figures, which has its name without the ending."""
    if not html.suffix or html.is_dir():
        raise UserError(f"{html} cannot be a page: give a file with an ending, such as {html / 'report.html'}")
    return html.with_suffix("")


def write(title: str, sections: Sequence[Section], html: Path, figures: Path | None = None) -> None:
    """The page, atomically; with `figures`, also a folder with each chart as a PNG and a CSV."""
    try:
        html.parent.mkdir(parents=True, exist_ok=True)
        write_text(html, render(title, sections))
        if figures:
            figures.mkdir(parents=True, exist_ok=True)
            for number, chart in enumerate((s for s in sections if isinstance(s, Chart | Heat)), 1):
                name = re.sub("[^a-z0-9]+", "-", chart.title.lower()).strip("-")[:60]
                table, image = (figures / f"{number:02d}-{name}.{kind}" for kind in ("csv", "png"))
                if isinstance(chart, Heat):
                    write_csv(table, [chart.y_label, chart.x_label, "value"], heat.cells(chart))
                    heat.write_picture(chart, image)
                else:
                    write_csv(table, ["group", "series", chart.x_label, chart.y_label, "low", "high"], _rows(chart))
                    with warnings.catch_warnings(action="ignore"):  # a character the font lacks is a box, and no more
                        picture(chart).savefig(image, dpi=130)
    except OSError as error:
        raise UserError(f"the report cannot be written to {error.filename or html}: {reason(error)}") from None


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _text(value: object) -> str:
    return markup.escape(str(value))


def _section(section: Section) -> str:
    title = f"<h2>{_text(section.title)}</h2>"
    if isinstance(section, Words):
        bars = section.bars or [None] * len(section.paragraphs)
        words = "".join(
            f"<p>{_text(paragraph)}{_bar(done)}</p>" for paragraph, done in zip(section.paragraphs, bars, strict=True)
        )
        return f'<section class="words {section.tone}">{title}{words}</section>'
    if isinstance(section, Chart):
        caption = f'<p class="caption">{_text(section.caption)}</p>' if section.caption else ""
        return f'<section class="chart">{title}{caption}</section>'
    if isinstance(section, Heat):
        caption = f'<p class="caption">{_text(section.caption)}</p>' if section.caption else ""
        return f'<section class="table">{title}{caption}{heat.to_html(section)}</section>'
    kinds = [_kind(column) for column in zip(*section.rows, strict=True)]
    kinds = kinds or [""] * len(section.columns)
    head = "".join(f"<th{kind}>{_text(name)}</th>" for kind, name in zip(kinds, section.columns, strict=True))
    rows = "".join(
        f"<tr>{''.join(f'<td{kind}>{_text(_shown(value))}</td>' for kind, value in zip(kinds, row, strict=True))}</tr>"
        for row in section.rows
    )
    name = f'role="region" aria-label="{_text(section.title)}"'  # a box that scrolls needs the keyboard too
    table = f'<div class="box" tabindex="0" {name}><table><tr>{head}</tr>{rows}</table></div>'
    if section.folded:
        return f'<section class="table"><details><summary>{title}</summary>{table}</details></section>'
    return f'<section class="table">{title}{table}</section>'


def _bar(done: float | None) -> str:
    return "" if done is None else f'<progress value="{done:.3f}" aria-label="{done:.0%} done"></progress>'


def _kind(column: Sequence[object]) -> str:
    """Heads of numbers stand above them, on the right; sentences may take several lines."""
    known = [value for value in column if value is not None]
    if known and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return ' class="number"'
    return ' class="sentence"' if any(isinstance(value, str) and value.count(" ") >= 4 for value in known) else ""


def _shown(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.4g}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else value


def _chart(chart: Chart) -> Facts:
    return {
        "title": chart.title,
        "x_label": chart.x_label,
        "y_label": chart.y_label,
        "log": {"x": chart.log_x, "y": chart.log_y},
        "series": [
            {
                "name": s.name,
                "group": s.group or s.name,
                "style": s.style,
                "selected": s.selected,
                "x": _numbers(s.x),
                "y": _numbers(s.y),
                "low": _numbers(s.low or []),
                "high": _numbers(s.high or []),
            }
            for s in chart.series
        ],
    }


def _numbers(values: Iterable[float | None]) -> list[float | None]:
    """Seven digits are more than a screen shows, and half of the file."""
    return [None if value is None or not _drawable(value) else _rounded(float(value)) for value in values]


def _drawable(value: float) -> bool:
    return abs(value) < 1e300  # not for NaN; nor for what would overflow as the difference of two


def _rounded(value: float) -> float:
    return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.7g}")


def _embedded(value: object) -> str:
    """JSON that cannot end the script element it stands in."""
    return re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", to_json(value))


def _rows(chart: Chart) -> Iterator[tuple[object, ...]]:
    for s in chart.series:
        nothing = [None] * len(s.x)
        for row in zip(s.x, s.y, s.low or nothing, s.high or nothing, strict=True):
            yield s.group or s.name, s.name, *row


def picture(chart: Chart) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    chosen = [s for s in chart.series if s.selected]
    names = list(dict.fromkeys(s.group or s.name for s in chosen))
    legend: dict[str, Any] = {}  # of what is drawn
    for s in chosen:
        name = s.group or s.name
        index = names.index(name)  # also of one without values, so that a run has its colour in all charts
        if not any(y is not None and _drawable(y) for y in s.y):
            continue
        colour, _ = STYLES[index % len(STYLES)]
        dash = LINES[(index + index // len(STYLES)) % len(LINES)]  # the second time round, colours have other dashes
        look: Facts = {"color": colour, "linestyle": dash, "linewidth": 1.5}
        if s.style == "dashes":
            look["linestyle"] = (0, (2, 2))
        if s.style == "points" or len(s.x) == 1:
            look |= {"linestyle": "none", "marker": "o", "markersize": 5, "markeredgecolor": "white", "zorder": 3}
        entry = legend.setdefault(name, Line2D([], [], **look))
        if entry.get_marker() == "None" and "marker" in look:  # both a line and points
            entry.set(marker="o", markersize=5, markeredgecolor="white")
        axes.plot(s.x, _floats(s.y), **look)
        if s.low is not None and s.high is not None:
            axes.fill_between(s.x, _floats(s.low), _floats(s.high), color=colour, alpha=0.2, linewidth=0)
    axes.set(title=_plain(chart.title), xlabel=_plain(chart.x_label), ylabel=_plain(chart.y_label))
    if chart.log_x and any(x > 0 for s in chosen for x in s.x):
        axes.set_xscale("log", nonpositive="mask")
    if chart.log_y and any(y > 0 for s in chosen for y in _floats(s.y)):
        axes.set_yscale("log", nonpositive="mask")
    axes.grid(alpha=0.3)
    texts = [_plain(name) for name in legend]
    across = 105 // (8 + max(map(len, texts), default=0))  # as many as are as wide as the picture
    columns = max(1, min(len(texts), 4, across))
    figure.legend(legend.values(), texts, loc="outside lower center", ncols=columns, fontsize=9)
    return figure


def _plain(text: str) -> str:
    """To matplotlib, dollars begin a formula and an underscore a name to leave out."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def _floats(values: Iterable[float | None]) -> list[float]:
    return [math.nan if value is None or not _drawable(value) else float(value) for value in values]
