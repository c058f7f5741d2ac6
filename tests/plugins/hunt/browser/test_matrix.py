"""A matrix of pairs in a browser: each cell shows its figure, under the pointer and with the arrow keys; every pair can be found."""

import numpy as np
import pytest

from collbench.plugins.hunt.pairs_page import COLORS, grouped
from collbench.plugins.hunt.pairs_text import classes_of
from collbench.report.html import page as page_of
from collbench.report.html.chart import Section
from collbench.report.html.first_screen import FirstScreen
from collbench.units import format_rate, format_time
from tests.browser.pages import ObservedPage
from tests.plugins.hunt.html.matrices import drawn, even, slowed
from tests.plugins.hunt.pair_matrices import SyntheticMatrix

PLACES = 100
OPEN = "for (const part of document.querySelectorAll('.folded')) part.open = true"


def write(path, charts):
    path.write_text(page_of.page(FirstScreen("pairs"), lambda: [Section("pairs", "Pairs", charts=charts)]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def many(browser, tmp_path_factory):
    """The page of a matrix of 100 places in 10 groups, of which one pair is slow."""
    names = [f"r{number // 10}n{number % 10}" for number in range(PLACES)]
    path = write(tmp_path_factory.mktemp("page") / "matrix.html", drawn(slowed(even(PLACES, names), 37, 52)))
    seen = ObservedPage.opening(browser.new_page(viewport={"width": 1280, "height": 900}), path)
    seen.page.evaluate(OPEN)
    yield seen.page
    assert seen.said == []
    seen.page.close()


def wait_for_text(page, text):
    page.wait_for_function("(text) => !tip.hidden && tip.textContent === text", arg=text, timeout=20_000)


def over(picture, box, units, cell):
    """Where a point lies from the picture's corner, in pixels; cell: row and column as parts of the box's side."""
    scale = picture.bounding_box()["width"] / units
    return {"x": scale * (box[0] + box[2] * cell[1]), "y": scale * (box[1] + box[2] * cell[0])}


def group(page, row, column):
    svg = page.locator("#pairs-0-bandwidth svg")
    data = page.evaluate("JSON.parse(document.querySelector('#pairs-0-bandwidth > .data').textContent).box")
    units = svg.evaluate("(svg) => svg.viewBox.baseVal.width")
    return over(svg, data, units, ((row + 0.5) / 10, (column + 0.5) / 10))


def test_a_cell_of_groups_reports_their_slowest_pair_and_a_press_goes_to_its_pairs(many):
    svg = many.locator("#pairs-0-bandwidth svg")
    svg.hover(position=group(many, 3, 5))
    wait_for_text(many, "r3n* to r5n*: 100 pairs, the slowest:\nr3n7 to r5n2\n5.00 GB/s, 50 % of the median")
    svg.hover(position=group(many, 4, 4))
    wait_for_text(many, "among r4n*: 90 pairs, the slowest:\nr4n0 to r4n1\n10.0 GB/s, 100 % of the median")
    many.mouse.move(2, 2)
    assert many.locator(".here").count() == 0
    many.locator("#pairs-0-bandwidth svg").click(position=group(many, 3, 5))
    image = many.locator("#pairs-0-bandwidth .matrix canvas")
    box = many.locator("#pairs-0-bandwidth .matrix").bounding_box()
    image_box = image.bounding_box()
    assert box and image_box and image_box["width"] == 4 * PLACES
    image.hover(position=over(image, (0, 0, PLACES), PLACES, (0.375, 0.525)))
    wait_for_text(many, "r3n7 to r5n2\n5.00 GB/s, 50 % of the median")
    many.locator("#pairs-0-bandwidth button[aria-label=larger]").click()
    larger = image.bounding_box()
    assert larger and larger["width"] == 8 * PLACES


def test_arrow_keys_go_from_cell_to_cell_of_every_pair(many):
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


def test_of_few_places_each_cell_of_the_drawing_is_a_pair(opened):
    page = opened("slow-host")
    page.evaluate(OPEN)
    drawing = page.locator("#pairs-0-bandwidth .drawing")
    drawing.focus()
    for key, start in (("ArrowRight", "cb1h1 with itself"), ("ArrowRight", "cb1h1 to cb1h2\n0.0120 ("), ("ArrowDown", "cb1h2 with itself")):
        page.keyboard.press(key)
        page.wait_for_function("(start) => !tip.hidden && tip.textContent.startsWith(start)", arg=start, timeout=20_000)
    assert page.locator("#announcement").text_content() == page.locator("#tip").text_content()
    page.keyboard.press("Escape")


def cell_texts(page, chart):
    """Return the text of each pair of a chart by row and column; "" on the diagonal."""
    script = """(data) => {
      const cells = new Cells(data);
      return data.places.map((_, row, all) => all.map((_, column) => (row === column ? "" : cells.text(row, column))));
    }"""
    return page.evaluate(script, chart.data)


def test_each_text_has_the_figure_that_is_printed_elsewhere(many):
    matrix = SyntheticMatrix(70).matrix()
    rates, times = (cell_texts(many, chart) for chart in drawn(matrix))
    median = np.nanmedian(matrix.bandwidth)
    for a in range(70):
        for b in range(a + 1, 70):
            share = f"{100 * float(f'{matrix.bandwidth[a, b]:.3g}') / median:.0f} % of the median"
            assert rates[a][b] == f"{format_rate(matrix.bandwidth[a, b])} GB/s, {share}"
            assert times[a][b].startswith(f"{format_time(matrix.latency_s[a, b])} µs, ")
    matrix = even(8, hosts=[f"node{number // 2}" for number in range(8)])
    for rank in range(0, 8, 2):
        slowed(matrix, [rank, rank + 1], [rank + 1, rank], 10)
    texts = cell_texts(many, drawn(matrix)[0])
    assert texts[0][1] == "100 (99.0–101) GB/s, 100 % of the median of such paths"
    assert texts[0][2] == "10.0 (9.90–10.1) GB/s, 100 % of the median of such paths"
    rates = [412.0, 100.0, 99.5, 10.26, 1.0, 0.118, 0.0119, 0.00031, 0.00002, 0.000003]
    times = [0.2345, 1.0, 9.978, 12.35, 999.6, 1234.6, 104912.0]
    assert many.evaluate("(rates) => rates.map(rateText)", rates) == [format_rate(rate * 1e9) for rate in rates]
    assert many.evaluate("(times) => times.map(timeText)", times) == [format_time(time / 1e6) for time in times]


def test_slow_unknown_and_wrong_pairs_and_those_measured_twice_are_reported(many):
    matrix = slowed(slowed(even(6), 1, 2, 0.5), 3, 4, 0.05)
    matrix.bandwidth[0, 5] = np.nan
    matrix.wrong[0, 1] = matrix.wrong[1, 0] = 3
    matrix.wrong[4, 5] = matrix.wrong[5, 4] = 1
    texts = cell_texts(many, drawn(matrix, again=[(2, 3), (0, 5)])[0])
    usual = "10.0 (9.90–10.1) GB/s, 100 % of the median"
    assert texts[3][4] == "0.500 (0.495–0.505) GB/s, 5.0 % of the median"
    assert texts[1][2] == "5.00 (4.95–5.05) GB/s, 50 % of the median"
    assert texts[0][5] == "not measured"
    assert texts[5][0] == f"{usual}; measured twice, the faster result counts"
    assert texts[1][0] == texts[0][1] == f"{usual}; wrong data: 3 elements"
    assert texts[4][5] == f"{usual}; wrong data: 1 element"
    assert texts[2][3] == texts[3][2] == f"{usual}; measured twice, the faster result counts"
    assert texts[0][2] == usual


def test_the_canvas_has_a_pixel_of_its_class_for_every_pair_and_nothing_is_written_to_the_console(either, tmp_path):
    matrix = SyntheticMatrix(80).slow(7).matrix()
    matrix.wrong[3, 4] = matrix.wrong[4, 3] = 2
    matrix.bandwidth[5, 6] = np.nan
    seen = ObservedPage.opening(either.new_page(), write(tmp_path / "matrix.html", drawn(matrix)))
    page = seen.page
    pixels = page.locator("#pairs-0-bandwidth canvas").evaluate(
        "(canvas) => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
    )
    classes, _ = classes_of(matrix)
    colors = np.array([*([int(color[at : at + 2], 16) for at in (1, 3, 5)] + [255] for color in COLORS), [0, 0, 0, 0]])
    order = grouped(matrix.places).order
    wanted = colors[np.where(classes < 0, len(COLORS), classes)[np.ix_(order, order)]]
    found = np.array(pixels).reshape(80, 80, 4)
    assert (found != wanted).any(axis=2).sum() <= 0.005 * 80 * 80  # a number of three digits may lie on the other side of a limit
    assert found[3, 4].tolist() == found[4, 3].tolist() == [0xD0, 0x10, 0x4C, 255]
    assert found[5, 6].tolist() == found[8, 8].tolist() == [0, 0, 0, 0]
    label = page.locator("#pairs-0-bandwidth canvas").get_attribute("aria-label")
    assert label == "Bandwidth of 1 MiB messages between 80 nodes, every pair"
    page.close()
    assert seen.said == []


def test_axe_finds_nothing_in_a_large_matrix(many, axe):
    many.evaluate(axe)
    assert many.evaluate("async () => (await axe.run({ exclude: ['svg'] })).violations.map((each) => each.id)") == []


def test_without_a_script_the_drawing_and_the_table_are_there(browser, tmp_path):
    path = write(tmp_path / "matrix.html", drawn(slowed(even(PLACES), 37, 52)))
    page = browser.new_page(java_script_enabled=False)
    page.goto(path.as_uri())
    figure = page.locator("#pairs-0-bandwidth")
    figure.locator("summary").click()
    assert figure.locator("svg path.cells").first.is_visible()
    assert figure.locator("tbody tr").first.inner_text().split("\t")[:3] == ["node38", "node53", "5.00"]
    assert page.locator("canvas").count() == 0
    page.close()
