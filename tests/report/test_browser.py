"""The page in a real browser: what it draws, what it answers, and that it asks nobody for anything."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from leadline import config as configuration
from leadline.config import Config
from leadline.report.live import Followed, open_server
from leadline.report.page import Chart, Section, Series, Table, Words, write

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium on this machine")

EVIL = "</script><script>document.title='broken in'</script>"
UPDATES = list(range(10, 1010, 10))


def document() -> list[Section]:
    falling = [8 * 0.997**update + 2 for update in UPDATES]
    series = [
        Series("training", UPDATES, falling, group="pre_ln"),
        Series("validation", UPDATES[9::10], falling[9::10], style="points", group="pre_ln"),
        Series("training", UPDATES, [v + 1 if v > 3 else None for v in falling], group=EVIL),
    ]
    depth = list(range(1, 13))
    norm = [float(layer) for layer in depth]
    band = Series("measured", depth, norm, low=[n * 0.9 for n in norm], high=[n * 1.1 for n in norm], group="pre_ln")
    theory = Series("theory", depth, norm, style="dashes", group="pre_ln")
    many = [Series(f"layer.{i}", [0, 1, 2], [i, i + 0.5, i * 1e-3], selected=i % 2 == 0) for i in range(20)]
    return [
        Words("It trains", ["Nothing to do."], "good"),
        Chart("Loss", "update", "loss (nats a token)", series, caption="Lines: training."),
        Chart("Norm", "layer", "norm", [band, theory], log_x=True, log_y=True),
        Chart("Layers", "update", "norm", many, log_y=True),
        Chart("One value", "update", "tokens a second", [Series("one", [60], [7845.9])]),
        Chart("No value", "update", "nothing", [Series("none", [1, 2], [None, float("nan")])]),
        Table("Runs", [f"column {i}" for i in range(30)], [[EVIL, *range(29)]]),
    ]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    write(f"Report of {EVIL}", document(), path)
    return path.as_uri()


@pytest.fixture(scope="module")
def desktop(browser: Any) -> Any:
    return browser.new_page(viewport={"width": 1280, "height": 900})


@pytest.fixture
def opened(desktop: Any, address: str) -> Iterator[Any]:
    """The report, opened afresh."""
    with watched(desktop, address):
        desktop.set_viewport_size({"width": 1280, "height": 900})
        yield open_report(desktop, address)


@contextmanager
def watched(page: Any, address: str) -> Iterator[None]:
    """In the end, nothing may have been complained of, nor asked for."""
    noise: list[str] = []
    listeners = {
        "console": lambda message: noise.append(message.text),
        "pageerror": lambda error: noise.append(str(error)),
        "request": lambda request: noise.append(request.url) if request.url != address else None,
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    yield
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    assert noise == []


def open_report(page: Any, address: str) -> Any:
    page.goto(address)
    wait_for_drawing(page)
    return page


def wait_for_drawing(page: Any) -> None:
    """Every plot is drawn, as wide as it is now. (The page's own policy forbids playwright's wait_for_function.)"""
    drawn = "[...document.querySelectorAll('.plot')].every((p) => p.clientWidth === p.firstChild.viewBox.baseVal.width)"
    end = time.monotonic() + 20
    while not page.evaluate(drawn):
        assert time.monotonic() < end, "the charts were not drawn"
        page.wait_for_timeout(20)


def resize(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    wait_for_drawing(page)


def plot(page: Any, number: int = 0) -> Any:
    return page.locator(".plot > svg").nth(number)


def ticks(page: Any, number: int = 0) -> list[str]:
    """Of y, then of x."""
    return plot(page, number).locator("text.middle, text.end:not(.name)").all_text_contents()


def pixel(page: Any, update: float) -> float:
    """Where the first chart puts an update, from its ticks."""
    marks = (
        plot(page).locator("text.middle").evaluate_all("all => all.map((t) => [t.textContent, +t.getAttribute('x')])")
    )
    (low, left), (high, right) = ((float(text.replace("k", "e3")), at) for text, at in (marks[0], marks[-1]))
    return float(left + (update - low) / (high - low) * (right - left))


def hover(page: Any, update: float) -> str:
    plot(page).hover(position={"x": pixel(page, update), "y": 100})
    text: str = page.locator(".readout").first.inner_text()
    return re.sub(r"\s+", " ", text)


def drag(page: Any, begin: tuple[float, float], end: tuple[float, float]) -> None:
    box = plot(page).bounding_box()
    page.mouse.move(box["x"] + begin[0], box["y"] + begin[1])
    page.mouse.down()
    page.mouse.move(box["x"] + end[0], box["y"] + end[1], steps=3)
    page.mouse.up()


def test_every_chart_is_drawn_within_its_frame(opened: Any) -> None:
    paths = opened.locator(".plot > svg path").evaluate_all("all => all.map((path) => path.getAttribute('d'))")
    assert len(paths) > 30
    for path in paths:
        assert re.fullmatch(r"[MLHVZmlhvaz0-9. -]+", path), path
    drawn = opened.locator(".plot > svg").evaluate_all(
        "all => all.map((svg) => svg.querySelectorAll('[data-series] path').length)"
    )
    assert drawn == [3, 3, 10, 1, 0]
    assert plot(opened, 4).text_content() == "no values to draw"
    gap = opened.locator("section.chart .note").first
    assert "missing or not finite" in gap.inner_text()
    outside = """all => all.map((text) => [text.textContent, text.getBBox(), text.ownerSVGElement.viewBox.baseVal])
      .filter(([, b, v]) => b.x < 0 || b.y < 0 || b.x + b.width > v.width || b.y + b.height > v.height)"""
    assert opened.locator(".plot > svg text").evaluate_all(outside) == []


def test_labels_do_not_overlap(opened: Any) -> None:
    for width in (1280, 375):
        resize(opened, width)
        overlaps = opened.locator(".plot > svg").evaluate_all(
            """all => all.flatMap((svg) => {
              const texts = [...svg.querySelectorAll("text")].map((t) => [t.textContent, t.getBBox()]);
              return texts.flatMap(([a, p], i) => texts.slice(i + 1).filter(([, q]) =>
                p.x < q.x + q.width && q.x < p.x + p.width && p.y + 2 < q.y + q.height && q.y + 2 < p.y + p.height
              ).map(([b]) => [a, b]));
            })"""
        )
        assert overlaps == []


def test_hovering_reads_every_series_at_the_nearest_update(opened: Any) -> None:
    assert opened.locator(".readout").first.is_hidden()
    text = hover(opened, 302)  # values at 300: 8 × 0.997^300 + 2 = 5.248, one more for the other run
    assert text == f"update 300 pre_ln training 5.248 validation 5.248 {EVIL} training 6.248"
    assert hover(opened, 331).startswith("update 330 pre_ln training 4.968 validation 5.248 at 300")
    assert "training –" in hover(opened, 900)  # where the other run has a gap
    assert plot(opened).locator(".cross circle").count() == 2
    opened.mouse.move(5, 5)
    assert opened.locator(".readout").first.is_hidden()


def test_the_readout_never_leaves_the_window(opened: Any) -> None:
    for width in (1280, 375):
        resize(opened, width)
        for update in (300, 500, 700):
            hover(opened, update)
            box = opened.locator(".readout").first.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width


def test_a_drag_zooms_and_a_double_click_or_the_button_resets(opened: Any) -> None:
    before = ticks(opened)
    reset = opened.get_by_role("button", name="Reset zoom").first
    assert reset.is_disabled()
    drag(opened, (pixel(opened, 400), 80), (pixel(opened, 600), 85))  # level: x alone, and y fits what is left
    zoomed = [tick for tick in ticks(opened) if tick.isdigit() and int(tick) > 100]
    assert zoomed
    assert all(400 <= int(tick) <= 600 for tick in zoomed)
    assert "update 500 " in hover(opened, 500)
    reset.click()
    assert ticks(opened) == before
    drag(opened, (pixel(opened, 400), 60), (pixel(opened, 600), 160))  # both
    assert ticks(opened) != before
    plot(opened).dblclick(position={"x": 200, "y": 100})
    assert ticks(opened) == before
    drag(opened, (200, 100), (203, 102))  # a hand that shakes is not a zoom
    assert ticks(opened) == before


def test_the_axes_turn_to_logarithms_and_back(opened: Any) -> None:
    before = ticks(opened)
    for which in ("x", "y"):
        button = opened.get_by_role("button", name=f"log {which}").first
        assert button.get_attribute("aria-pressed") == "false"
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        assert ticks(opened) != before
        button.click()
        assert ticks(opened) == before
    note = opened.locator("section.chart").nth(2).locator(".note")
    assert note.inner_text() == "2 values are 0 or below, which a log axis cannot show."
    assert ticks(opened, 2)[:4] == ["0.01", "0.1", "1", "10"]
    assert "8k" in ticks(opened, 3)


def test_a_checkbox_hides_a_run_in_every_chart(opened: Any) -> None:
    shown = opened.locator("[data-series]")
    everything = shown.count()
    box = opened.get_by_role("checkbox", name="pre_ln").first
    box.uncheck()
    assert shown.count() == everything - 4  # two series in the first chart, two in the second
    assert not opened.get_by_role("checkbox", name="pre_ln").nth(1).is_checked()
    assert plot(opened, 1).text_content() == "nothing is selected"
    box.check()
    assert shown.count() == everything


def test_many_lines_are_selected_in_part_and_all_at_once(opened: Any) -> None:
    layers = opened.locator("section.chart").nth(2)
    assert layers.locator("[data-series]").count() == 10
    layers.get_by_role("button", name="all").click()
    assert layers.locator("[data-series]").count() == 20
    layers.get_by_role("button", name="none").click()
    assert layers.locator("[data-series]").count() == 0
    plot(opened, 2).hover()
    assert layers.locator(".readout").is_hidden()


def test_names_are_shown_and_never_run(opened: Any) -> None:
    assert opened.title() == f"Report of {EVIL}"
    assert opened.locator("h1").inner_text() == f"Report of {EVIL}"
    assert opened.locator(".legend span").nth(1).inner_text() == EVIL
    assert opened.locator("td", has_text="broken in").first.inner_text() == EVIL
    assert opened.locator("script").count() == 2


def test_the_keyboard_reaches_everything(opened: Any) -> None:
    seen = []
    for _ in range(6):
        opened.keyboard.press("Tab")
        seen.append(opened.evaluate("document.activeElement.textContent || document.activeElement.type"))
        if len(seen) == 2:
            opened.keyboard.press("Space")
        if len(seen) == 3:
            opened.keyboard.press("ArrowRight")
            opened.keyboard.press("ArrowRight")
            assert "update 20\n" in opened.locator(".readout").first.inner_text()
            opened.keyboard.press("Escape")
            assert opened.locator(".readout").first.is_hidden()
        if len(seen) == 4:
            opened.keyboard.press("Space")
    assert seen[:2] == ["log x", "log y"]
    assert seen[3:] == ["checkbox", "checkbox", "Data"]
    assert opened.get_by_role("button", name="log y").first.get_attribute("aria-pressed") == "true"
    assert not opened.get_by_role("checkbox", name="pre_ln").first.is_checked()


def test_the_numbers_can_be_read_as_a_table(opened: Any) -> None:
    details = opened.locator("details.data").first
    details.locator("summary").click()
    details.locator("table").wait_for()
    assert details.locator("th").all_text_contents()[:2] == ["update", "pre_ln · training"]
    assert details.locator("tr").nth(30).locator("td").all_text_contents() == ["300", "5.248", "5.248", "6.248"]
    assert details.locator("tr").nth(33).locator("td").all_text_contents() == ["330", "4.968", "", "5.968"]
    details.locator("summary").click()
    details.locator("summary").click()
    assert details.locator("table").count() == 1


def test_a_phone_scrolls_only_down_and_a_tap_reads(browser: Any, address: str) -> None:
    opened = browser.new_page(viewport={"width": 375, "height": 700}, has_touch=True, is_mobile=True)
    with watched(opened, address):
        use_phone(open_report(opened, address))
    opened.close()


def use_phone(opened: Any) -> None:
    for summary in opened.locator("summary").all():
        summary.click()
    assert opened.evaluate("document.documentElement.scrollWidth") <= 375
    assert opened.evaluate("document.querySelector('section.table .box').scrollWidth") > 375
    plot(opened).tap(position={"x": 150, "y": 100})
    assert "update" in opened.locator(".readout").first.inner_text()
    opened.locator("h1").tap()
    assert opened.locator(".readout").first.is_hidden()
    box, finger = plot(opened).bounding_box(), opened.context.new_cdp_session(opened)
    for kind, moves in (("touchStart", [90]), ("touchMove", range(95, 200, 15)), ("touchEnd", [0])):
        for x in moves:
            points = [] if kind == "touchEnd" else [{"x": box["x"] + x, "y": box["y"] + 100}]
            finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    sync_api.expect(opened.get_by_role("button", name="Reset zoom").first).to_be_enabled()


def test_dark_rooms_get_a_dark_page(opened: Any) -> None:
    brightness = {}
    for scheme in ("dark", "light"):
        opened.emulate_media(color_scheme=scheme)
        colour = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness[scheme] = sum(map(int, re.findall(r"\d+", colour)[:3]))
    assert brightness["dark"] < 150
    assert brightness["light"] > 600


def test_without_scripts_it_says_so_and_shows_words_and_tables(browser: Any, address: str) -> None:
    opened = browser.new_page(java_script_enabled=False)
    opened.goto(address)
    text = opened.inner_text("body")
    opened.close()
    assert "JavaScript, which is switched off" in text
    assert "Nothing to do." in text
    assert EVIL in text


def test_many_thousands_of_points_are_drawn_as_few(desktop: Any, tmp_path: Path) -> None:
    updates = list(range(20_000))
    series = [Series(f"run {i}", updates, [i + (update * 7919 % 100) / 100 for update in updates]) for i in range(4)]
    write("Long", [Chart("Loss", "update", "loss", series)], tmp_path / "long.html")
    desktop.goto((tmp_path / "long.html").as_uri())
    desktop.wait_for_selector("[data-series] path")
    lengths = desktop.locator("[data-series] path").evaluate_all("all => all.map((p) => p.getAttribute('d').length)")
    assert len(lengths) == 4
    assert max(lengths) < 100_000


# ── The page that follows a training ──


class Training:
    """A run folder that grows."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, 0

    def begin(self) -> None:
        self.folder.mkdir(exist_ok=True)
        text = configuration.to_toml(Config().set(train={"updates": 400}))
        (self.folder / "config.toml").write_text(text, encoding="utf-8")

    def go_on(self, until: int) -> None:
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            for update in range(self.rows + 1, until + 1):
                file.write(
                    json.dumps({"update": update, "loss": 8 * 0.99**update, "lr": 1e-3, "seconds": update}) + "\n"
                )
        self.rows = until


@pytest.fixture
def followed(browser: Any, tmp_path: Path) -> Iterator[tuple[Any, Training, Callable[[], None]]]:
    """(a browser's page that follows a training, the training, ends the server)."""
    training = Training(tmp_path / "run")
    with open_server(Followed([training.folder]), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        def end() -> None:
            server.shutdown()
            thread.join()
            server.server_close()

        opened = browser.new_page(viewport={"width": 1280, "height": 700})
        opened.add_init_script("const late = setTimeout; window.setTimeout = (f, ms) => late(f, Math.min(ms, 100))")
        noise: list[str] = []
        opened.on("console", lambda message: noise.append(message.text))
        opened.on("pageerror", lambda error: noise.append(str(error)))
        try:
            opened.goto(server.url)
            yield opened, training, end
            assert [text for text in noise if "ERR_CONNECTION" not in text] == []
        finally:
            end()
            opened.close()


def test_a_live_page_follows_a_training(followed: tuple[Any, Training, Callable[[], None]]) -> None:
    opened, training, end = followed
    expect = sync_api.expect
    now = opened.locator("section.words").first
    expect(now).to_contain_text("run: there is no folder")
    training.begin()
    expect(now).to_contain_text("nothing is measured yet")
    training.go_on(100)
    expect(now).to_contain_text("run: training, update 100 of 400 (25%), about 5 min of training left.")
    assert opened.locator("progress").get_attribute("value") == "0.250"
    wait_for_drawing(opened)
    assert hover(opened, 50).startswith("update 50 run training 4.84")

    # What a reader does stays while the training goes on.
    drag(opened, (pixel(opened, 20), 80), (pixel(opened, 60), 85))
    zoomed = ticks(opened)[-4:]
    opened.get_by_role("button", name="log y").nth(1).click()
    opened.locator("details summary", has_text="Configuration").click()
    opened.locator("details.data summary").first.click()
    opened.evaluate("scrollTo(0, 150)")
    assert "update 40 " in hover(opened, 40)
    element = opened.locator(".plot > svg").first.element_handle()
    training.go_on(200)
    expect(now).to_contain_text("update 200 of 400")
    assert opened.evaluate("(svg) => svg === document.querySelector('.plot > svg')", element)
    assert "update 40\nrun" in opened.locator(".readout").first.inner_text()
    assert ticks(opened)[-4:] == zoomed
    assert opened.evaluate("scrollY") == 150
    assert opened.get_by_role("button", name="log y").nth(1).get_attribute("aria-pressed") == "true"
    assert opened.locator("details", has_text="Configuration").first.get_attribute("open") == ""
    expect(opened.locator("details.data tr")).to_have_count(201)  # with the head
    opened.mouse.move(5, 5)
    opened.get_by_role("button", name="Reset zoom").first.click()
    assert "update 200 run training 1.07" in hover(opened, 200)

    # Resumed from update 150: what came later is dropped, and comes again.
    lines = (training.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (training.folder / "metrics.jsonl").write_text("".join(lines[:150]))
    expect(now).to_contain_text("update 150 of 400")
    assert "update 150 " in hover(opened, 150)
    shutil.rmtree(training.folder)
    expect(now).to_contain_text("there is no folder")
    assert opened.locator("section.chart").count() == 0
    training.rows = 0
    training.begin()
    training.go_on(400)
    expect(now).to_contain_text("run: complete, update 400 of 400 (100%)")
    wait_for_drawing(opened)
    end()
    expect(opened.locator("#news")).to_contain_text("No answer from leadline report --live")
    assert opened.locator("#news").get_attribute("class") == "warning"
    assert opened.locator("[data-series]").count() > 0


@pytest.mark.slow
def test_a_live_page_on_a_phone(followed: tuple[Any, Training, Callable[[], None]]) -> None:
    opened, training, _ = followed
    training.begin()
    training.go_on(100)
    sync_api.expect(opened.locator("section.chart")).to_have_count(2)
    resize(opened, 375)
    assert opened.evaluate("document.documentElement.scrollWidth") <= 375
    training.go_on(120)
    sync_api.expect(opened.locator("section.words").first).to_contain_text("update 120 of 400")
    assert opened.evaluate("document.documentElement.scrollWidth") <= 375
