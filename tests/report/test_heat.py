"""A heat map: light is low, diverged is the darkest, names are text."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from leadline.report import page
from leadline.report.heat import SHADES, Heat, shades, shown

HEAT = Heat("Loss", "rate", "placement", ["1e-3", "<b>"], ["post", "pre & co"], [[8.0, math.inf], [1.0, math.nan]], "c")


def test_shades_rise_with_the_value() -> None:
    assert shades([[0.0, 4.0, 8.0]]) == [[0, SHADES // 2, SHADES - 1]]
    assert shades(HEAT.values) == [[SHADES - 1, SHADES - 1], [0, None]]
    assert shades([[3.0, 3.0]]) == [[0, 0]]
    assert shades([[math.inf]]) == [[SHADES - 1]]


def test_what_a_cell_says() -> None:
    assert [shown(value) for value in (1.234, math.inf, math.nan)] == ["1.23", "diverged", "–"]


def test_a_page_shows_it_as_text_and_writes_a_picture_and_a_table(tmp_path: Path) -> None:
    page.write("t", [HEAT], tmp_path / "p.html", tmp_path / "figures")
    html = (tmp_path / "p.html").read_text()
    assert "<th>&lt;b&gt;</th>" in html
    assert "<th>pre &amp; co</th>" in html
    assert f'<td class="heat-{SHADES - 1}">8.00</td><td class="heat-{SHADES - 1}">diverged</td>' in html
    assert "style=" not in html.partition("<body>")[2]  # the page's policy forbids it
    (table,), (picture,) = ((tmp_path / "figures").glob(f"*.{kind}") for kind in ("csv", "png"))
    with table.open() as file:
        assert list(csv.reader(file))[1] == ["post", "1e-3", "8.0"]
    assert picture.read_bytes().startswith(b"\x89PNG")
