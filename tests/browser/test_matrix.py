"""A matrix of pairs in a browser: each cell shows its figure, under the pointer and with the arrow keys; every pair can be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page

from collbench.report.html import page as page_of
from collbench.report.html.chart import Section
from collbench.report.html.first_screen import FirstScreen
from tests.browser.pages import ObservedPage
from tests.report.html.matrices import cell_texts, drawn, even, slowed

PLACES = 100
OPEN = "for (const part of document.querySelectorAll('.folded')) part.open = true"


@pytest.fixture(scope="module")
def many(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page of a matrix of 100 places in 10 groups, of which one pair is slow."""
    names = [f"r{number // 10}n{number % 10}" for number in range(PLACES)]
    charts = drawn(slowed(even(PLACES, names), 37, 52))
    path = tmp_path_factory.mktemp("page") / "matrix.html"
    path.write_text(page_of.page(FirstScreen("pairs"), lambda: [Section("pairs", "Pairs", charts=charts)]), encoding="utf-8")
    seen = ObservedPage.opening(browser.new_page(viewport={"width": 1280, "height": 900}), Path(path))
    seen.page.evaluate(OPEN)
    yield seen.page
    assert seen.said == []
    seen.page.close()


def wait_for_text(page: Page, text: str) -> None:
    """Wait until the tooltip has this text: values are unpacked at first use."""
    page.wait_for_function("(text) => !tip.hidden && tip.textContent === text", arg=text, timeout=20_000)


def over(picture: Locator, box: tuple[float, float, float], units: float, cell: tuple[float, float]) -> dict[str, float]:
    """Where a point lies from the picture's corner, in pixels; cell: row and column as parts of the box's side."""
    found = picture.bounding_box()
    assert found
    scale = found["width"] / units
    return {"x": scale * (box[0] + box[2] * cell[1]), "y": scale * (box[1] + box[2] * cell[0])}


def group(page: Page, row: int, column: int) -> dict[str, float]:
    svg = page.locator("#pairs-0-bandwidth svg")
    data = page.evaluate("JSON.parse(document.querySelector('#pairs-0-bandwidth > .data').textContent).box")
    units = svg.evaluate("(svg) => svg.viewBox.baseVal.width")
    return over(svg, data, units, ((row + 0.5) / 10, (column + 0.5) / 10))


def test_a_cell_of_groups_reports_their_slowest_pair(many: Page) -> None:
    svg = many.locator("#pairs-0-bandwidth svg")
    svg.hover(position=group(many, 3, 5))  # type: ignore[arg-type]
    wait_for_text(many, "r3n* to r5n*: 100 pairs, the slowest:\nr3n7 to r5n2\n5.00 GB/s, 50 % of the median")
    svg.hover(position=group(many, 4, 4))  # type: ignore[arg-type]
    wait_for_text(many, "among r4n*: 90 pairs, the slowest:\nr4n0 to r4n1\n10.0 GB/s, 100 % of the median")
    many.mouse.move(2, 2)
    assert many.locator(".here").count() == 0


def test_a_press_goes_to_the_pairs_of_a_cell(many: Page) -> None:
    many.locator("#pairs-0-bandwidth svg").click(position=group(many, 3, 5))  # type: ignore[arg-type]
    image = many.locator("#pairs-0-bandwidth .matrix img")
    box = many.locator("#pairs-0-bandwidth .matrix").bounding_box()
    image_box = image.bounding_box()
    assert box and image_box and image_box["width"] == 4 * PLACES
    image.hover(position=over(image, (0, 0, PLACES), PLACES, (0.375, 0.525)))  # type: ignore[arg-type]
    wait_for_text(many, "r3n7 to r5n2\n5.00 GB/s, 50 % of the median")
    many.locator("#pairs-0-bandwidth button[aria-label=larger]").click()
    larger = image.bounding_box()
    assert larger and larger["width"] == 8 * PLACES


def test_arrow_keys_go_from_cell_to_cell_of_every_pair(many: Page) -> None:
    many.locator("#pairs-0-latency .matrix").focus()
    for key, text in (
        ("ArrowRight", "r0n0 with itself: not measured"),
        ("End", "r0n0 and r9n9\n20.00 µs, 1.00 times the median"),
        ("ArrowDown", "r0n1 and r9n9\n20.00 µs, 1.00 times the median"),
        ("ArrowLeft", "r0n1 and r9n8\n20.00 µs, 1.00 times the median"),
    ):
        many.keyboard.press(key)
        wait_for_text(many, text)
        assert many.locator("#announcement").text_content() == text
    many.keyboard.press("Escape")
    assert not many.locator("#tip").is_visible()


def test_of_few_places_each_cell_of_the_drawing_is_a_pair(opened: Callable[[str], Page]) -> None:
    page = opened("slow-host")
    page.evaluate(OPEN)
    drawing = page.locator("#pairs-0-bandwidth .drawing")
    drawing.focus()
    for key, start in (("ArrowRight", "cb1h1 with itself"), ("ArrowRight", "cb1h1 to cb1h2\n0.0120 ("), ("ArrowDown", "cb1h2 with itself")):
        page.keyboard.press(key)
        page.wait_for_function("(start) => !tip.hidden && tip.textContent.startsWith(start)", arg=start, timeout=20_000)
    assert page.locator("#announcement").text_content() == page.locator("#tip").text_content()
    page.keyboard.press("Escape")


def test_the_script_reads_what_was_packed(many: Page) -> None:
    texts = cell_texts(drawn(slowed(even(PLACES), 37, 52))[0])
    unpack = "Cells.of(JSON.parse(document.querySelector('#pairs-0-bandwidth > .data').textContent))"
    found = many.evaluate(f"{unpack}.then((all) => [[0, 1], [37, 52], [52, 37], [99, 98]].map((place) => all.texts[all.code(...place)]))")
    assert found == [texts[0][1], texts[37][52], texts[52][37], texts[99][98]]
