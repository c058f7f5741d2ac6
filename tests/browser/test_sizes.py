"""The chart of an operation, in Chromium and Firefox: series, axes, zoom, and the figures at a size by pointer, finger and keys."""

import csv
import json
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

from collbench.report.html.page import write_html
from collbench.report.material import Material
from collbench.results.reader import read_run
from tests.browser.pages import ObservedPage
from tests.results.rows import make_row, make_times, store

FIGURE = "figure:has(> script.data) >> nth=0"
PIXELS = """(figure) => {
  const canvas = figure.querySelector("canvas");
  const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  return context.getImageData(0, 0, canvas.width, canvas.height).data;
}"""
# How many pixels of the canvas have a color that is not that of the paper, the grid or grey text.
COLORED = """(figure) => {
  const pixels = PIXELS(figure);
  const counts = new Map();
  for (let at = 0; at < pixels.length; at += 4) {
    if (pixels[at + 3] < 255) continue;
    const key = `rgb(${pixels[at]}, ${pixels[at + 1]}, ${pixels[at + 2]})`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return Object.fromEntries(counts);
}""".replace("PIXELS", f"({PIXELS})")
DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
SERIES = {"light": ["rgb(0, 114, 178)", "rgb(179, 58, 0)"], "dark": ["rgb(86, 180, 233)", "rgb(240, 128, 60)"]}


@pytest.fixture
def page(opened: Callable[[str], Page]) -> Page:
    """The page of two hosts, with its charts of sizes open: the first one is allgather over gloo and mpi."""
    shown = opened("two-hosts")
    shown.locator("#curves > summary").click()
    return shown


@pytest.fixture
def figure(page: Page) -> Locator:
    """Its first chart, in view."""
    page.locator(f"{FIGURE} >> .plot").evaluate("(plot) => plot.scrollIntoView({ block: 'center', behavior: 'instant' })")
    return page.locator(FIGURE)


def data_of(figure: Locator) -> Any:
    """Return the chart's data."""
    return json.loads(figure.locator("> script.data").text_content() or "")


def painted(figure: Locator, colors: list[str]) -> list[bool]:
    """Return for each color whether it is drawn."""
    figure.page.evaluate(DRAWN)
    found = figure.evaluate(COLORED)
    return [found.get(color, 0) > 20 for color in colors]


def tip(page: Page) -> str | None:
    """Return the text of the tooltip; None if there is none."""
    return page.evaluate("tip.hidden ? null : tip.textContent")  # type: ignore[no-any-return]


def keep(figure: Locator, name: str) -> None:
    """Keep the picture of the chart under a name."""
    figure.page.evaluate(DRAWN)
    figure.evaluate(f"(figure) => {{ window[{name!r}] = ({PIXELS})(figure) }}")


def is_as(figure: Locator, name: str) -> bool:
    """Return whether the chart looks as it did: fewer than one in 500 pixels differ, since browsers smooth edges differently."""
    figure.page.evaluate(DRAWN)
    count = f"(figure) => ({PIXELS})(figure).reduce((sum, value, at) => sum + (Math.abs(value - window[{name!r}][at]) > 40), 0)"
    pixels = figure.evaluate("(figure) => figure.querySelector('canvas').width * figure.querySelector('canvas').height")
    return bool(figure.evaluate(count) < pixels / 500)


def test_the_theme_changes_the_colors_and_a_series_is_hidden_and_shown_again(figure: Locator) -> None:
    assert painted(figure, SERIES["light"]) == [True, True]
    button = figure.get_by_role("button", name="mpi", exact=True)
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    assert painted(figure, SERIES["light"]) == [True, False]
    figure.get_by_role("button", name="gloo", exact=True).click()
    assert painted(figure, SERIES["light"]) == [False, False]
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    assert painted(figure, SERIES["light"]) == [False, True]
    figure.get_by_role("button", name="gloo", exact=True).click()
    figure.page.locator("#theme").click()
    assert painted(figure, SERIES["dark"] + SERIES["light"]) == [True, True, False, False]


def test_bandwidth_or_time_on_a_linear_or_logarithmic_axis(figure: Locator) -> None:
    pressed = "(figure) => [...figure.querySelectorAll('[role=group] [aria-pressed=true]')].map((each) => each.textContent)"
    assert figure.evaluate(pressed) == ["bandwidth", "linear"]
    keep(figure, "before")
    for name, wanted in (("log", ["bandwidth", "log"]), ("time", ["time", "log"]), ("linear", ["time", "linear"])):
        figure.get_by_role("button", name=name, exact=True).click()
        assert figure.evaluate(pressed) == wanted
        assert not is_as(figure, "before")
        keep(figure, "before")
    figure.get_by_role("button", name="bandwidth", exact=True).click()
    assert figure.evaluate(pressed) == ["bandwidth", "linear"]


def drag(figure: Locator, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag over the chart between two places, each as shares of its width and height."""
    box = figure.locator(".u-over").bounding_box()
    assert box
    mouse = figure.page.mouse
    mouse.move(box["x"] + start[0] * box["width"], box["y"] + start[1] * box["height"])
    mouse.down()
    mouse.move(box["x"] + end[0] * box["width"], box["y"] + end[1] * box["height"], steps=5)
    mouse.up()
    mouse.move(2, 2)


def fragment(page: Page) -> str:
    """Return the fragment of the address."""
    return str(page.evaluate("location.hash"))


@pytest.mark.often("firefox")
def test_dragging_across_zooms_until_it_is_reset(page: Page, figure: Locator) -> None:
    keep(figure, "whole")
    drag(figure, (0.5, 0.2), (0.9, 0.22))
    assert not is_as(figure, "whole")
    keep(figure, "zoomed")
    button = figure.get_by_role("button", name="mpi", exact=True)
    button.click()
    button.click()
    assert is_as(figure, "zoomed")
    assert re.fullmatch(r"#sizes-0\?x=[0-9.e+]+_[0-9.e+]+", fragment(page))
    figure.get_by_role("button", name="reset zoom").click()
    assert is_as(figure, "whole")
    assert fragment(page) == ""


def test_dragging_up_zooms_into_the_values_which_another_measure_resets(page: Page, figure: Locator) -> None:
    keep(figure, "whole")
    drag(figure, (0.5, 0.1), (0.51, 0.5))
    (low, high) = map(float, fragment(page).removeprefix("#sizes-0?y=").split("_"))
    data = data_of(figure)
    rates = [each["rate"] for each in data["limits"]]
    rates += [each[name] for each in data["series"] for name in ("rate", "rateHigh") if each.get(name)]
    most = max(rate for values in rates for rate in values if rate is not None)
    assert (low, high) == (pytest.approx(0.5 * 1.05 * most, rel=0.02), pytest.approx(0.9 * 1.05 * most, rel=0.02))
    keep(figure, "values")
    drag(figure, (0.5, 0.2), (0.9, 0.22))
    assert not is_as(figure, "values")
    assert fragment(page).count("_") == 2  # the sizes are zoomed, too
    figure.get_by_role("button", name="time", exact=True).click()
    assert "y=" not in fragment(page) and "x=" in fragment(page)
    figure.get_by_role("button", name="bandwidth", exact=True).click()
    figure.get_by_role("button", name="reset zoom").click()
    assert is_as(figure, "whole")


def test_a_double_click_resets_the_zoom(page: Page, figure: Locator) -> None:
    keep(figure, "whole")
    drag(figure, (0.2, 0.1), (0.6, 0.6))
    assert not is_as(figure, "whole")
    figure.locator(".u-over").dispatch_event("dblclick")
    page.mouse.move(2, 2)
    assert is_as(figure, "whole") and fragment(page) == ""


def shot(figure: Locator) -> str:
    """Return the picture of the chart, and which buttons are pressed."""
    figure.page.evaluate(DRAWN)
    pressed = "[...figure.querySelectorAll('[aria-pressed=true]')].map((each) => each.textContent).join()"
    return str(figure.evaluate(f"(figure) => figure.querySelector('canvas').toDataURL() + {pressed}"))


def reopened(either: Browser, address: str) -> ObservedPage:
    """Return the page at an address, opened anew."""
    page = either.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    seen = ObservedPage(page)
    page.on("console", lambda message: seen.said.append(message.text))
    page.on("pageerror", lambda error: seen.said.append(str(error)))
    page.goto(address)
    return seen


def test_the_address_has_the_state_of_the_charts(page: Page, figure: Locator, either: Browser) -> None:
    page.locator("#curves").evaluate("(section) => { section.open = true; }")
    drag(figure, (0.3, 0.2), (0.8, 0.22))
    figure.get_by_role("button", name="mpi", exact=True).click()
    figure.get_by_role("button", name="log", exact=True).click()
    second = page.locator("figure:has(> script.data)").nth(1)
    second.get_by_role("button", name="time", exact=True).click()
    first_id, second_id = figure.get_attribute("id"), second.get_attribute("id")
    assert re.fullmatch(rf"#{first_id}\?axis=log&hidden=1&x=[0-9.]+_[0-9.]+;{second_id}\?show=time", fragment(page))
    page.mouse.move(2, 2)
    page.evaluate("document.activeElement.blur()")
    other = reopened(either, page.url)
    again = other.page.locator(f"#{first_id}")
    expect(again.get_by_role("button", name="mpi", exact=True)).to_have_attribute("aria-pressed", "false")
    expect(other.page.locator(f"#{second_id}").get_by_role("button", name="time", exact=True)).to_have_attribute("aria-pressed", "true")
    assert shot(again) == shot(figure)
    again.get_by_role("button", name="reset zoom").click()
    assert "x=" not in fragment(other.page) and f"{second_id}?show=time" in fragment(other.page)
    assert other.said == []
    other.page.close()


def test_an_address_that_is_not_valid_changes_nothing(page: Page, figure: Locator, either: Browser) -> None:
    before = shot(figure)
    for state in ("x=8_4", "x=-1_5", "x=a_b", "hidden=99.-1.x", "show=nothing&axis=none", "y=NaN_1", "y=__proto__", "%zz", "x=1_1e999"):
        other = reopened(either, f"{page.url}#sizes-0?{state}")
        assert (state, shot(other.page.locator("#sizes-0"))) == (state, before)
        assert other.said == []
        other.page.close()


@pytest.fixture
def figure_to_save(browser: Browser, written: Callable[[str], Path]) -> Iterator[Locator]:
    """The first chart in Chromium: Playwright does not see what this Firefox downloads."""
    seen = ObservedPage.opening(browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce"), written("two-hosts"))
    seen.page.locator("#curves > summary").click()
    yield seen.page.locator(FIGURE)
    seen.page.close()
    assert seen.said == []


def test_the_values_of_the_shown_series_are_downloaded(figure_to_save: Locator) -> None:
    figure = figure_to_save
    figure.get_by_role("button", name="mpi", exact=True).click()
    with figure.page.expect_download() as waiting:
        figure.get_by_role("button", name="download the values as CSV").click()
    assert waiting.value.suggested_filename == "allgather-bus-bandwidth-over-message-size.csv"
    rows = list(csv.DictReader(waiting.value.path().read_text(encoding="utf-8").splitlines()))
    data = data_of(figure)
    (series,) = [each for each in data["series"] if each["name"] == "gloo"]
    assert {row["series"] for row in rows} == {"gloo"}
    known = [(size, rate) for size, rate in zip(data["sizes"], series["rate"], strict=True) if rate is not None]
    assert [(int(row["size_bytes"]), float(row["busbw_gb_per_s"])) for row in rows] == known
    assert [row["state"] for row in rows] == [state or "" for state, rate in zip(series["states"], series["rate"], strict=True) if rate]


def test_no_spreadsheet_runs_a_series_as_a_formula(page: Page) -> None:
    assert page.evaluate("['=1', '+a', '@b', '＝c', 'a,\"b\"', 'gloo'].map(field)") == [
        "'=1", "'+a", "'@b", "'＝c", '"a,""b"""', "gloo",
    ]  # fmt: skip


def test_the_picture_is_downloaded_with_its_title_and_series(figure_to_save: Locator) -> None:
    figure = figure_to_save
    figure.get_by_role("button", name="mpi", exact=True).click()
    with figure.page.expect_download() as waiting:
        figure.get_by_role("button", name="download the picture as PNG").click()
    assert waiting.value.suggested_filename == "allgather-bus-bandwidth-over-message-size.png"
    picture = Image.open(waiting.value.path()).convert("RGB")
    canvas = figure.evaluate("(figure) => [figure.querySelector('canvas').width, figure.querySelector('canvas').height]")
    assert picture.width == canvas[0] and canvas[1] < picture.height < canvas[1] + 120
    colors = {color: count for count, color in picture.getcolors(1 << 24) or []}
    assert colors.get((0, 114, 178), 0) > 100 and (179, 58, 0) not in colors  # gloo is there, and mpi is hidden
    title = picture.crop((0, 0, picture.width, 24)).getcolors(1 << 24) or []
    assert len(title) > 5 and max(title)[1] == (255, 255, 255)


def test_a_hint_shows_how_to_zoom_with_a_mouse_only(browser: Browser, page: Page, figure: Locator) -> None:
    assert figure.locator(".hint").inner_text() == "drag across to zoom into sizes, up or down into values"
    phone = browser.new_page(viewport={"width": 400, "height": 800}, has_touch=True, is_mobile=True)
    phone.goto(page.url)
    expect(phone.locator(FIGURE).locator(".hint")).to_be_hidden()
    phone.close()


def test_arrow_keys_announce_size_by_size_what_is_not_hidden(page: Page, figure: Locator) -> None:
    data = data_of(figure)
    figure.locator(".plot").focus()
    last = len(data["sizes"]) - 1
    for key, place in (("Home", 0), ("ArrowRight", 1), ("ArrowLeft", 0), ("ArrowLeft", 0), ("End", last), ("ArrowRight", last)):
        page.keyboard.press(key)
        text = page.locator("#announcement[aria-live=polite]").text_content() or ""
        assert text.split("\n")[: 1 + len(data["series"])] == [data["labels"][place], *(each["texts"][place] for each in data["series"])]
        assert tip(page) == text
    page.keyboard.press("Escape")
    assert tip(page) is None
    figure.get_by_role("button", name="mpi", exact=True).click()
    figure.locator(".plot").focus()
    page.keyboard.press("End")
    assert "gloo: " in (tip(page) or "")
    assert "mpi: " not in (tip(page) or "")


def test_the_pointer_shows_all_series_at_the_nearest_size(page: Page, figure: Locator) -> None:
    data = data_of(figure)
    box = figure.locator(".u-over").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + 40)
    page.wait_for_function("(label) => tip.textContent.startsWith(label)", arg=data["labels"][-1])
    assert all(each["texts"][-1] in (tip(page) or "") for each in data["series"])
    shown = page.locator("#tip").bounding_box()
    assert shown
    assert 0 <= shown["x"] <= 1280 - shown["width"]
    page.mouse.move(2, 2)
    page.wait_for_function("() => tip.hidden")


def test_the_keyboard_reaches_every_control_and_shows_where_it_is(page: Page, figure: Locator) -> None:
    figure.get_by_role("button").first.focus()
    for _ in range(figure.locator(".controls button").count()):
        assert page.evaluate("document.activeElement.closest('.controls') !== null")
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "plot"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_chart_that_is_unfolded_or_narrowed_fits_its_frame(page: Page) -> None:
    page.locator("nav a[href='#curves']").click()
    second = page.locator("figure:has(> script.data)").nth(1)
    fits = "(figure) => Math.abs(figure.querySelector('.uplot').clientWidth - figure.querySelector('.plot').clientWidth) <= 1"
    for width in (1280, 400):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_function(f"(figure) => ({fits})(figure)", arg=second.element_handle())
        assert 0 < second.locator(".plot").evaluate("(plot) => plot.clientWidth") <= width


def test_a_finger_shows_the_figures_until_the_next_touch(browser: Browser, page: Page) -> None:
    phone = browser.new_page(viewport={"width": 400, "height": 800}, has_touch=True)
    phone.goto(page.url)
    phone.locator("#curves > summary").click()
    over = phone.locator(FIGURE).locator(".u-over")
    over.scroll_into_view_if_needed()
    over.tap()
    phone.wait_for_function("() => !tip.hidden && tip.textContent.includes('gloo: ')")
    assert phone.locator("#tip").is_visible()
    phone.locator("h1").tap()
    phone.wait_for_function("() => tip.hidden")
    assert phone.locator("#tip").is_hidden()
    phone.close()


def test_without_a_script_the_picture_is_there(browser: Browser, page: Page) -> None:
    plain = browser.new_page(java_script_enabled=False)
    plain.goto(page.url)
    figure = plain.locator("figure").first
    assert figure.locator("svg").is_visible()
    assert plain.locator("#theme").is_hidden()
    assert figure.locator("table").is_hidden()
    figure.locator("summary").click()
    assert figure.locator("table").is_visible()
    plain.locator("summary:has(h2)").first.click()
    assert plain.locator("main > section").first.locator("svg").first.is_visible()
    plain.close()


# Series look as in the picture: nine of them on one chart, of which each has doubtful values at one size, and one has wrong data.

MARKED = [1 << power for power in range(12, 27, 2)]
DOUBTFUL_AT, WRONG_AT, WRONG_SERIES = 3, 5, 4
PAPER, BAD = "rgb(255, 255, 255)", "rgb(168, 0, 90)"
# The color of the pixel in the middle of a marker.
MIDDLE = """(figure, { series, place }) => {
  const data = JSON.parse(figure.querySelector("script.data").textContent);
  const canvas = figure.querySelector("canvas");
  const { width } = canvas.getBoundingClientRect();
  const ratio = canvas.width / width;
  const over = figure.querySelector(".u-over");
  const [box, outer] = [over.getBoundingClientRect(), canvas.getBoundingClientRect()];
  const most = 1.05 * Math.max(...data.limits.flatMap((limit) => limit.rate), ...data.series.flatMap((each) => each.rateHigh));
  const share = Math.log2(data.sizes[place] / data.sizes[0]) / Math.log2(data.sizes.at(-1) / data.sizes[0]);
  const x = Math.round((box.left - outer.left + share * box.width) * ratio);
  const y = Math.round((box.bottom - outer.top - data.series[series].rate[place] / most * box.height) * ratio);
  const pixels = PIXELS(figure);
  const at = 4 * (y * canvas.width + x);
  return `rgb(${pixels[at]}, ${pixels[at + 1]}, ${pixels[at + 2]})`;
}""".replace("PIXELS", f"({PIXELS})")


@pytest.fixture
def marked(either: Browser, tmp_path: Path) -> Iterator[Page]:
    """The page of nine series."""
    rows = []
    for number, (place, size) in product(range(9), enumerate(MARKED)):
        rate = (5 + 4 * number) * 1e9 * (place + 1) / len(MARKED)
        flags = ("drift",) if place == DOUBTFUL_AT else ()
        wrong = 7 if (number, place) == (WRONG_SERIES, WRONG_AT) else 0
        figures = {"busbw_bytes_per_s": rate, "percent_of_ceiling": rate / 5e8, "time_s": make_times(1.5 * size / rate)}
        rows.append(make_row(size, backend=f"series{number}", flags=flags, wrong=wrong, **figures))
    path = tmp_path / "marked.html"
    write_html(Material([read_run(store(tmp_path / "run", rows))], path))
    seen = ObservedPage.opening(either.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce"), path)
    yield seen.page
    seen.page.close()
    assert seen.said == []


def middle(figure: Locator, series: int, place: int) -> Any:
    """Return the color in the middle of a marker of the chart."""
    figure.page.evaluate(DRAWN)
    return figure.evaluate(MIDDLE, {"series": series, "place": place})


def test_doubtful_values_are_open_and_wrong_data_is_a_cross(marked: Page) -> None:
    figure = marked.locator(FIGURE)
    for series in (0, 1, 6, 8):
        color = figure.evaluate("(figure, at) => getComputedStyle(figure.querySelectorAll('.series .line')[at]).stroke", series)
        assert (middle(figure, series, 4), middle(figure, series, DOUBTFUL_AT)) == (color, PAPER)
    assert middle(figure, WRONG_SERIES, WRONG_AT) == BAD
    figure.get_by_role("button", name=f"series{WRONG_SERIES}", exact=True).click()
    figure.page.evaluate(DRAWN)
    assert BAD not in figure.evaluate(COLORED)


def test_each_series_has_a_look_of_its_own_and_the_buttons_show_it(marked: Page) -> None:
    figure = marked.locator(FIGURE)
    of_line = "(all) => all.map((line) => [getComputedStyle(line).stroke, getComputedStyle(line).strokeDasharray].join(' '))"
    lines = figure.locator(".series .line").evaluate_all(of_line)
    assert len(set(lines)) == len(lines) == 9
    stroke = "(all) => all.map((line) => getComputedStyle(line).stroke)"
    colors = figure.locator(".series .line").evaluate_all(stroke)
    assert len(set(colors)) == 7 and colors[0] == colors[7]  # the eighth backend has the first color, with another dash
    assert figure.locator(".sheet [data-mark^='line'] path").evaluate_all(stroke) == colors  # as in the picture


def test_an_interval_is_a_bar_at_its_size_and_not_a_band(page: Page, figure: Locator) -> None:
    assert page.evaluate("[...document.querySelectorAll('figure > script.data')].some((each) => each.textContent.includes('rateLow'))")
    between = """(figure) => {
      const pixels = PIXELS(figure);
      let faint = 0;
      for (let at = 3; at < pixels.length; at += 4) faint += pixels[at] > 30 && pixels[at] < 60;
      return faint;
    }""".replace("PIXELS", f"({PIXELS})")
    page.evaluate(DRAWN)
    assert figure.evaluate(between) < 2000  # a band fills tens of thousands of pixels with an opacity of 0.18


def test_no_line_joins_sizes_that_are_far_apart(either: Browser, tmp_path: Path) -> None:
    sizes = (8, 4 << 20, 16 << 20)
    rows = [make_row(size, backend="mpi", ceiling=None, percent_of_ceiling=None) for size in sizes]
    write_html(Material([read_run(store(tmp_path / "run", rows))], tmp_path / "far.html"))
    seen = ObservedPage.opening(either.new_page(viewport={"width": 1280, "height": 900}), tmp_path / "far.html")
    figure = seen.page.locator(FIGURE)
    seen.page.evaluate(DRAWN)
    colored = f"""(figure, share) => {{
      const canvas = figure.querySelector("canvas");
      const [over, outer] = [".u-over", "canvas"].map((name) => figure.querySelector(name).getBoundingClientRect());
      const x = Math.round((over.left - outer.left + share * over.width) * canvas.width / outer.width);
      const pixels = ({PIXELS})(figure);
      const is_blue = (y) => pixels[4 * (y * canvas.width + x)] < 40 && pixels[4 * (y * canvas.width + x) + 2] > 150;
      return Array.from({{ length: canvas.height }}, (_, y) => y).some(is_blue);
    }}"""
    # the places of sizes on the axis: 0, 0.905 and 1
    assert [figure.evaluate(colored, share) for share in (0.2, 0.5, 0.8, 0.95)] == [False, False, False, True]
    assert seen.said == []
    seen.page.close()


@pytest.mark.parametrize(("low", "high", "ticks"), [
    (0.000270742, 0.05, [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05]),
    (3, 250, [5, 10, 20, 50, 100, 200]), (34, 38, [34, 35, 36, 37, 38]), (7e-9, 3e6, [1e-8, 1e-6, 1e-4, 1e-2, 1, 100, 1e4, 1e6]),
])  # fmt: skip
def test_ticks_of_a_logarithmic_axis_are_round(page: Page, low: float, high: float, ticks: list[float]) -> None:
    assert page.evaluate("([low, high]) => logTicks(low, high)", [low, high]) == pytest.approx(ticks)
    assert page.evaluate("[8, 1024, 65536, 1 << 30].map(sizeText)") == ["8 B", "1 KiB", "64 KiB", "1 GiB"]
