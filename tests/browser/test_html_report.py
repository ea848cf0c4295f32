"""The page in a browser: its figures are right, it loads nothing, and zoom, hover, keys, themes and paper work."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from occupancy.analysis.columns import DTYPES, MISSING, Columns, columns_of
from occupancy.analysis.summary import summarize
from occupancy.call import Call
from occupancy.views.html_report import html_report
from occupancy.views.html_tables import figures

MS = 1_000_000
N = 100_000
EVIL = "</script><img src=x onerror=broken=1><b>b</b>&lt;"
LINK = "<a href=https://example.com>a</a>"


@dataclasses.dataclass
class Opened:
    """A page, and what it did."""

    page: Page
    requests: list[str]
    problems: list[str]

    def view_ms(self) -> tuple[float, float]:
        """The part of the wall that all charts show."""
        left, right = (float(ns) / MS for ns in str(self.page.locator("html").get_attribute("data-view")).split())
        return left, right

    def ranges(self) -> list[tuple[float, float]]:
        """The range of the axis of time of each chart, in ms."""
        found: list[list[float]] = self.page.evaluate(
            "[...document.querySelectorAll('.js-plotly-plot')].map((chart) => chart._fullLayout.xaxis.range)"
        )
        return [(left * 1e3, right * 1e3) for left, right in found]

    def trace(self, chart: str, index: int) -> dict[str, Any]:
        """What a chart draws: one of its traces."""
        keep = "({x, y, text, type}) => ({x: Array.from(x || []), y: Array.from(y || []), text, type})"
        found: dict[str, Any] = self.page.evaluate(f"({keep})(document.getElementById('{chart}').data.at({index}))")
        return found

    def plot_area(self, chart: str) -> dict[str, float]:
        """Where a chart's axes are on the screen."""
        self.page.locator(f"#{chart}").scroll_into_view_if_needed()
        box = self.page.locator(f"#{chart} .nsewdrag").first.bounding_box()
        assert box
        return dict(box)


Open = Callable[..., Opened]


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens the page of some calls, without a network; what it asks for and complains of must be nothing."""
    opened: list[Opened] = []

    def open_page(columns: Columns, *, dark: bool = False, width: int = 1280, **more: Any) -> Opened:
        path = tmp_path / f"report-{len(opened)}.html"
        path.write_text(html_report(columns, title="A page", **more), encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", offline=True
        )
        found = Opened(context.new_page(), [], [])
        page = found.page
        page.on("request", lambda request: found.requests.append(request.url))
        page.on("console", lambda message: found.problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: found.problems.append(str(error)))
        page.goto(path.as_uri())
        expect(page.locator("html")).to_have_attribute("data-ready", "true")
        opened.append(found)
        return found

    yield open_page
    for found in opened:
        assert [url for url in found.requests[1:] if not url.startswith("data:")] == []
        assert found.problems == []
        found.page.context.close()


def step(label: str | None, start_ms: int, end_ms: int, **fields: Any) -> Call:
    call = Call(label=label, outcome="ok", start_ns=start_ms * MS, end_ns=end_ms * MS, run="a")
    call.first_byte_ns, call.headers_ns = (end_ms - 10) * MS, (end_ms - 20) * MS
    for name, value in fields.items():
        setattr(call, name, value)
    return call


SERIAL = [step("plan", 0, 200), step("search", 200, 550), step("fetch", 550, 900), step("recap", 900, 1100)]
OVERLAPPED = [
    step("plan", 0, 200),
    step("search", 200, 550, pool_ns=100 * MS),
    step("fetch", 200, 550, status=429, outcome="http_error"),
    step("recap", 550, 750, end_ns=None, outcome="open"),
]


def many(n: int, peak_at: int) -> Columns:
    """Calls of 5 ms every 10 ms, and two more that last 1 ns within one of them."""
    columns = {
        name: np.full(n + 2, MISSING) if dtype is np.int64 else np.full(n + 2, None, dtype=dtype)
        for name, dtype in DTYPES.items()
    }
    columns["start_ns"] = np.append(np.arange(n) * 10 * MS, [peak_at * 10 * MS] * 2)
    columns["end_ns"] = np.append(np.arange(n) * 10 * MS + 5 * MS, [peak_at * 10 * MS + 1] * 2)
    columns["first_byte_ns"] = columns["start_ns"] + 1
    columns["kind"][:], columns["outcome"][:], columns["run"][:] = "tool", "ok", "a"
    columns["label"] = np.array(["plan", "search", "fetch"], dtype=object)[np.arange(n + 2) % 3]
    columns["attempt"][:] = 0
    columns["call_stack"] = np.fromiter(((),) * (n + 2), dtype=object, count=n + 2)
    return columns


def test_the_figures_on_the_page_are_those_of_the_summary(open_page: Open) -> None:
    columns = columns_of(OVERLAPPED)
    page = open_page(columns).page
    for figure in figures(summarize(columns)):
        shown = page.locator(f"[data-figure={figure.key}]")
        expect(shown).to_be_visible()
        expect(shown).to_have_text(figure.text)
        assert float(shown.get_attribute("value") or "") == figure.value
    expect(page.locator("#findings")).to_contain_text("Up to 2 in flight, mean 1.47")


def test_the_curve_is_the_step_function(open_page: Open) -> None:
    opened = open_page(columns_of(OVERLAPPED))
    highest = opened.trace("steps-chart", 1)
    assert highest["x"] == pytest.approx([0, 0, 0.2, 0.55, 0.740000001], abs=1e-9)
    assert highest["y"] == [0, 1, 2, 1, 0]
    on_wire = opened.trace("steps-chart", 2)
    assert on_wire["x"] == pytest.approx([0, 0, 0.3, 0.55, 0.740000001], abs=1e-9)
    assert on_wire["y"] == [0, 1, 2, 1, 0]
    first_bytes = opened.trace("steps-chart", 3)
    assert first_bytes["x"] == pytest.approx([0.19, 0.54, 0.54, 0.74])
    assert first_bytes["y"] == [1, 2, 2, 1]


def test_hover_tells_what_is_in_flight_on_the_wire_and_first_bytes(open_page: Open) -> None:
    opened = open_page(columns_of(OVERLAPPED))
    area = opened.plot_area("steps-chart")
    wall_ms = opened.view_ms()[1]
    for at_ms, told in ((100, "1 in flight, 1 on the wire, 0 first bytes"), (250, "2 in flight, 1 on the wire, 0 ")):
        opened.page.mouse.move(area["x"] + area["width"] * at_ms / wall_ms, area["y"] + area["height"] / 2)
        expect(opened.page.locator("#readout")).to_contain_text(told)
        expect(opened.page.locator("#steps-chart .hoverlayer")).to_contain_text(told.split(",")[0])
    opened.page.mouse.move(area["x"] + area["width"] * 540 / wall_ms, area["y"] + 30)
    expect(opened.page.locator("#readout")).to_contain_text("2 first bytes")


def test_a_drag_zooms_all_charts_and_a_double_click_shows_all(open_page: Open) -> None:
    opened = open_page(columns_of(OVERLAPPED), before=columns_of(SERIAL))
    whole = opened.view_ms()
    assert whole == pytest.approx((0, 1100 * 1.005))
    assert opened.ranges() == [pytest.approx(whole)] * 4
    area = opened.plot_area("steps-chart")
    middle = area["y"] + area["height"] / 2
    opened.page.mouse.move(area["x"] + area["width"] * 0.25, middle)
    opened.page.mouse.down()
    opened.page.mouse.move(area["x"] + area["width"] * 0.5, middle, steps=5)
    opened.page.mouse.up()
    expect(opened.page.locator("#view")).not_to_have_text("0.000 s to 1.105 s")
    left, right = opened.view_ms()
    assert left == pytest.approx(whole[1] * 0.25, rel=0.02)
    assert right == pytest.approx(whole[1] * 0.5, rel=0.02)
    assert opened.ranges() == [pytest.approx((left, right))] * 4
    opened.page.mouse.dblclick(area["x"] + area["width"] / 2, middle)
    expect(opened.page.locator("#view")).to_have_text("0.000 s to 1.105 s")
    assert opened.ranges() == [pytest.approx(whole)] * 4


def test_buttons_and_keys_move_the_view_and_the_readout(open_page: Open) -> None:
    opened = open_page(columns_of(SERIAL))
    page, whole = opened.page, opened.view_ms()[1]
    page.get_by_role("button", name="Zoom in").click()
    assert opened.view_ms() == pytest.approx((whole / 4, whole * 3 / 4))
    page.get_by_role("button", name="Later").click()
    assert opened.view_ms() == pytest.approx((whole * 3 / 8, whole * 7 / 8))
    page.get_by_role("button", name="Earlier").click()
    page.get_by_role("button", name="Zoom out").click()
    assert opened.view_ms() == pytest.approx((0, whole))
    chart = page.locator("#steps-chart")
    chart.focus()
    page.keyboard.press("+")
    assert opened.view_ms() == pytest.approx((whole / 4, whole * 3 / 4))
    page.keyboard.press("Shift+ArrowRight")
    assert opened.view_ms() == pytest.approx((whole * 3 / 8, whole * 7 / 8))
    page.keyboard.press("0")
    assert opened.view_ms() == pytest.approx((0, whole))
    page.keyboard.press("ArrowRight")
    expect(page.locator("#readout")).to_contain_text("at 0.55")
    before = page.locator("#readout").inner_text()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#readout")).not_to_have_text(before)
    expect(page.locator("#readout")).to_contain_text("1 in flight")


def test_every_control_is_reached_by_the_tabulator(open_page: Open) -> None:
    page = open_page(columns_of(SERIAL)).page
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.slice(0, 9)"))
    assert {"Zoom in", "Show all", "steps-chart", "filter", "duration"} <= set(reached)


def test_tables_sort_and_filter(open_page: Open) -> None:
    page = open_page(columns_of(SERIAL)).page
    durations = page.locator("#calls tbody td:nth-child(2)")
    assert durations.all_inner_texts() == ["200 ms", "350 ms", "350 ms", "200 ms"]
    header = page.locator("#calls th", has_text="duration")
    header.get_by_role("button").click()
    assert durations.all_inner_texts() == ["200 ms", "200 ms", "350 ms", "350 ms"]
    expect(header).to_have_attribute("aria-sort", "ascending")
    header.get_by_role("button").click()
    assert durations.all_inner_texts() == ["350 ms", "350 ms", "200 ms", "200 ms"]
    expect(page.locator("#calls th[aria-sort]")).to_have_count(1)
    page.locator("#calls th", has_text="step").get_by_role("button").click()
    assert page.locator("#calls tbody td:nth-child(4)").all_inner_texts() == ["fetch", "plan", "recap", "search"]
    page.get_by_label("Show calls with").fill("RECAP")
    expect(page.locator("#calls tbody tr:visible")).to_have_count(1)


def test_the_waterfall_has_a_bar_for_each_call_where_the_call_is(open_page: Open) -> None:
    opened = open_page(columns_of(OVERLAPPED))
    receive = opened.page.evaluate(
        "(({base, x, y}) => ({base, x, y}))(document.getElementById('waterfall-chart').data[8])"
    )
    assert receive["base"] == pytest.approx([0.18, 0.53, 0.53, 0.73])
    assert receive["y"] == [0, 1, 2, 3]
    expect(opened.page.locator("#waterfall-view")).to_have_text("Shown: 4 calls in view.")
    names = opened.page.locator("#waterfall-chart .ytick").all_text_contents()
    assert sorted(names) == ["fetch", "plan", "recap", "search"]
    area = opened.plot_area("waterfall-chart")
    opened.page.mouse.move(area["x"] + area["width"] * 0.4, area["y"] + area["height"] * 2.6 / 4.2)
    expect(opened.page.locator("#waterfall-chart .hoverlayer")).to_contain_text("fetch")
    expect(opened.page.locator("#waterfall-chart .hoverlayer")).to_contain_text("350 ms  429")


def test_labels_are_text_and_nothing_else(open_page: Open) -> None:
    opened = open_page(columns_of([step(EVIL, 0, 200, run=EVIL, model=EVIL), step(LINK, 100, 300, run=LINK)]))
    page = opened.page
    assert page.evaluate("window.broken") is None
    for tag in ("img", "a", "main b"):
        assert page.locator(tag).count() == 0
    expect(page.locator("#calls tbody tr").first).to_contain_text(EVIL)
    for chart in ("strip-chart", "waterfall-chart"):
        drawn = page.locator(f"#{chart} .ytick").all_text_contents()
        assert drawn == [f"\u2026{EVIL[-20:]}", f"\u2026{LINK[-20:]}"]
    assert page.locator("#waterfall-chart .annotation").all_text_contents()[1] == f"run {LINK}"
    area = opened.plot_area("waterfall-chart")
    page.mouse.move(area["x"] + area["width"] * 0.1, area["y"] + area["height"] * 1.6 / 4.2)
    expect(page.locator("#waterfall-chart .hoverlayer")).to_contain_text(f"...{EVIL[-37:]}")


def test_dark_mode_is_dark_and_follows_the_system(open_page: Open) -> None:
    light, dark = open_page(columns_of(OVERLAPPED)).page, open_page(columns_of(OVERLAPPED), dark=True).page

    def looks(page: Page) -> tuple[str, str]:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return colour, page.evaluate("document.getElementById('steps-chart').data[1].line.color")

    assert looks(light) == ("rgb(255, 255, 255)", "#0072b2")
    assert looks(dark) == ("rgb(21, 24, 28)", "#56b4e9")
    assert light.screenshot() != dark.screenshot()
    light.emulate_media(color_scheme="dark")
    light.wait_for_function("document.getElementById('steps-chart').data[1].line.color === '#56b4e9'")
    assert looks(light) == looks(dark)


def test_paper_is_white_and_has_no_buttons(open_page: Open) -> None:
    page = open_page(columns_of(OVERLAPPED), dark=True).page
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.getElementById('steps-chart').data[1].line.color") == "#0072b2"
    page.emulate_media(media="print")
    expect(page.get_by_role("button", name="Zoom in")).not_to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("width", [320, 390, 768, 1920])
def test_no_width_makes_the_page_scroll_sideways(open_page: Open, width: int) -> None:
    opened = open_page(columns_of(OVERLAPPED), width=width, before=columns_of(SERIAL))
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    areas = [opened.plot_area(chart) for chart in ("steps-chart", "strip-chart", "waterfall-chart", "before-chart")]
    for area in areas:
        assert 0 < area["x"] < area["x"] + area["width"] <= width
        assert area["width"] > width / 2
        assert (area["x"], area["width"]) == pytest.approx(
            (areas[0]["x"], areas[0]["width"]), abs=1.5
        )  # one axis of time


def test_charts_follow_the_width_of_the_window(open_page: Open) -> None:
    opened = open_page(columns_of(OVERLAPPED))
    opened.page.set_viewport_size({"width": 500, "height": 900})
    opened.page.wait_for_function("document.getElementById('steps-chart')._fullLayout.width < 500")
    assert opened.plot_area("steps-chart")["width"] < 500


def test_no_calls_and_one_call_are_pages_without_a_problem(open_page: Open) -> None:
    assert open_page(columns_of([])).page.locator(".js-plotly-plot").count() == 0
    one = open_page(columns_of(SERIAL[:1]))
    assert one.page.locator(".js-plotly-plot").count() == 3
    expect(one.page.locator("#waterfall-view")).to_have_text("Shown: 1 call in view.")


def test_a_hundred_thousand_calls_show_their_peak_and_can_be_zoomed_into(open_page: Open) -> None:
    peak_at = N // 3
    opened = open_page(many(N, peak_at))
    page = opened.page
    expect(page.locator("[data-figure=n]")).to_have_text("100,002")
    expect(page.locator("[data-figure=peak]")).to_have_text("3")
    drawn = opened.trace("steps-chart", 1)
    assert len(drawn["x"]) < 3_000  # pixels, not steps
    assert max(drawn["y"]) == 3
    assert drawn["x"][drawn["y"].index(3)] == pytest.approx(peak_at * 0.01, abs=1)
    assert page.locator("#calls tbody tr").count() == 500
    area = opened.plot_area("steps-chart")
    for _ in range(9):
        at = area["x"] + area["width"] * (peak_at * 10 - opened.view_ms()[0]) / (
            opened.view_ms()[1] - opened.view_ms()[0]
        )
        left, right = (
            max(at - area["width"] / 8, area["x"] + 2),
            min(at + area["width"] / 8, area["x"] + area["width"] - 2),
        )
        seen = page.locator("#view").inner_text()
        page.mouse.move(left, area["y"] + 60)
        page.mouse.down()
        page.mouse.move(right, area["y"] + 60, steps=3)
        page.mouse.up()
        expect(page.locator("#view")).not_to_have_text(seen)
    left_ms, right_ms = opened.view_ms()
    assert right_ms - left_ms < 20
    assert left_ms < peak_at * 10 < right_ms
    assert max(opened.trace("steps-chart", 1)["y"]) == 3
    assert any(re.search("to 3 in flight", text) for text in opened.trace("steps-chart", -1)["text"])
    expect(page.locator("#waterfall-view")).to_contain_text("in view")
    page.get_by_role("button", name="Show all").click()
    assert max(opened.trace("steps-chart", 1)["y"]) == 3
