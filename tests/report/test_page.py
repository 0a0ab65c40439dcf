"""The page is one file, shows every name as text, and is written whole or not at all."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import math
import re
import warnings
from pathlib import Path

import pytest

from leadline.errors import UserError
from leadline.report.figures import STYLES
from leadline.report.page import Chart, Series, Table, Words, picture, render, write

EVIL = '</script><script>alert(1)</script> & "\u2028<b>'


def chart(**changes: object) -> Chart:
    series = [Series("a", [1, 2, 3], [1.0, None, math.inf]), Series("b", [1], [0.5], low=[0.25], high=[1.0])]
    return Chart(**({"title": "Loss", "x_label": "update", "y_label": "nats", "series": series} | changes))  # type: ignore


def embedded(html: str) -> list[dict]:
    found = re.search('<script type="application/json" id="charts">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_page_needs_nothing_from_outside() -> None:
    html = render("Report", [chart(), Table("t", ["x"], [[1]]), Words("w", ["p"])])
    assert not re.search(r"<(link|img|iframe|a|form)\b|\bsrc=|\bhref=|@import|url\((?!#)", html)
    assert set(re.findall(r"https?://[^\"'\s]*", html)) == {"http://www.w3.org/2000/svg"}


def test_the_policy_allows_the_script_and_the_style_of_the_page_and_nothing_else() -> None:
    html = render("Report", [chart()])
    [policy] = re.findall('http-equiv="Content-Security-Policy" content="(.*?)"', html)
    for tag in ("script", "style"):
        [text] = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_a_name_is_only_ever_text() -> None:
    plain = render("Report", [chart(), Table("t", ["x"], [["y"]]), Words("w", ["p"])])
    sections = [
        chart(title=EVIL, x_label=EVIL, y_label=EVIL, caption=EVIL, series=[Series(EVIL, [1], [1.0], group=EVIL)]),
        Table(EVIL, [EVIL], [[EVIL]]),
        Words(EVIL, [EVIL]),
    ]
    html = render(EVIL, sections)
    assert html.count("<script") == plain.count("<script")
    assert html.count("</script") == plain.count("</script")
    assert "<b>" not in html
    [found] = embedded(html)
    assert found["title"] == found["series"][0]["name"] == found["series"][0]["group"] == EVIL


def test_the_script_sets_text_as_text() -> None:
    html = render("Report", [])
    assert not re.search("innerHTML|outerHTML|insertAdjacentHTML|document.write|eval", html)


def test_numbers_that_cannot_be_drawn_are_gaps() -> None:
    x = [1, 2, 3, 4, 5]
    [found] = embedded(render("Report", [chart(series=[Series("a", x, [1 / 3, math.nan, None, -math.inf, 1e305])])]))
    assert found["series"][0]["x"] == x
    assert found["series"][0]["y"] == [0.3333333, None, None, None, None]


def test_a_series_without_a_group_is_one_of_its_own() -> None:
    [found] = embedded(render("Report", [chart()]))
    assert [each["group"] for each in found["series"]] == ["a", "b"]


def test_series_of_differing_length_are_refused() -> None:
    with pytest.raises(ValueError, match="'a'"):
        Series("a", [1, 2], [1.0])


def test_tables_read_without_a_script() -> None:
    columns = ["run", "lr", "weights", "ok", "loss"]
    html = render("Report", [Table("Runs", columns, [["pre_ln", 0.00051234, 31539200, True, None]])])
    cells = re.findall("<td.*?>(.*?)</td>", html)
    assert cells == ["pre_ln", "0.0005123", "31,539,200", "yes", "–"]
    assert html.count('<th class="number">') == 2
    folded = render("Report", [Table("Runs", ["run"], [], folded=True)])
    assert "<details>" in folded
    assert "<details>" not in html


def test_a_verdict_has_its_tone() -> None:
    html = render("Report", [Words("It trains", ["Nothing to do."], tone="good")])
    assert '<section class="words good"><h2>It trains</h2><p>Nothing to do.</p></section>' in html


def test_write_makes_the_page_and_for_each_chart_a_picture_and_a_table(tmp_path: Path) -> None:
    html, figures = tmp_path / "new" / "report.html", tmp_path / "figures"
    write("Report", [chart(title="Loss, by update"), chart(log_x=True, log_y=True)], html, figures)
    assert html.read_text(encoding="utf-8") == render(
        "Report", [chart(title="Loss, by update"), chart(log_x=True, log_y=True)]
    )
    assert [path.name for path in html.parent.iterdir()] == ["report.html"]
    names = ["01-loss-by-update.csv", "01-loss-by-update.png", "02-loss.csv", "02-loss.png"]
    assert sorted(path.name for path in figures.iterdir()) == names
    assert (figures / names[1]).read_bytes().startswith(b"\x89PNG")
    with (figures / names[0]).open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["group", "series", "update", "nats", "low", "high"],
        ["a", "a", "1", "1.0", "", ""],
        ["a", "a", "2", "", "", ""],
        ["a", "a", "3", "inf", "", ""],
        ["b", "b", "1", "0.5", "0.25", "1.0"],
    ]


@pytest.mark.parametrize("name", ["$x_1", r"$\frac$", "_hidden", "\N{PILE OF POO}", ""])
def test_any_name_can_be_in_a_picture(tmp_path: Path, name: str) -> None:
    series = [Series(name, [0, 1], [0.0, -1.0], style="dashes"), Series("p", [], [], style="points")]
    with warnings.catch_warnings(action="error"):
        write("Report", [chart(title=name, series=series, log_x=True, log_y=True)], tmp_path / "a.html", tmp_path)
    assert len(list(tmp_path.glob("*.png"))) == 1


@pytest.mark.parametrize("name", ["a", "post_ln, adam, no warm-up, {}", "a name of some length, as of a long path {}"])
@pytest.mark.parametrize("count", [1, 4, 12])
def test_the_legend_is_inside_the_picture(name: str, count: int) -> None:
    figure = picture(chart(series=[Series(name.format(i), [0, 1], [0.0, 1.0]) for i in range(count)]))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= figure.bbox.x1


def test_the_legend_of_a_picture_lists_what_is_drawn() -> None:
    series = [
        Series("training", [1, 2], [2.0, 1.0], group="run"),
        Series("validation", [2], [1.5], style="points", group="run"),
        Series("without values", [], []),
        Series("diverged", [1, 2], [None, math.nan]),
        Series("theory", [1, 2], [1.0, 1.0], style="dashes"),
    ]
    figure = picture(chart(series=series))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["run", "theory"]
    run, theory = legend.get_lines()
    assert (run.get_linestyle(), run.get_marker()) == ("-", "o")  # a line and points
    assert theory.get_marker() == "None"
    assert theory.get_color() == STYLES[3][0]  # the colour it has in charts where all have values


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write("Report", [], tmp_path / "file" / "report.html")
