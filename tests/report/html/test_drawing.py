"""Pictures: small, escaped, in the classes of the page, with scales and labels that fit."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.report.html.drawing import (
    AxisScale,
    Panels,
    Picture,
    TimeAxis,
    apart,
    draw_legend,
    linear_scale,
    log_scale,
    place_scale,
    ratio_ticks,
    series_classes,
    size_scale,
)
from tests.report.html.svg import outside, texts

RATES = st.floats(1e-9, 1e15)


class TestScales:
    def test_values_are_pixels_and_those_outside_are_at_the_edge(self) -> None:
        y = linear_scale(0, 60, 250, 30)
        assert (y.at(0), y.at(30), y.at(60)) == (250, 140, 30)
        assert (y.at(-1), y.at(1e300)) == (250, 30)

    def test_sizes_are_at_powers_of_two(self) -> None:
        x = size_scale([1 << power for power in range(3, 31)], 0, 100)
        assert [text for _, text in x.ticks] == ["8 B", "128 B", "2 KiB", "32 KiB", "512 KiB", "8 MiB", "128 MiB"]
        assert x.at(1 << 16) - x.at(1 << 15) == pytest.approx(x.at(1 << 9) - x.at(1 << 8))
        assert 0 < x.at(8) < x.at(1 << 30) < 100

    @pytest.mark.parametrize("sizes", [[], [1], [1000], [3, 5]])
    def test_few_sizes_have_a_label(self, sizes: list[int]) -> None:
        assert size_scale(sizes, 0, 100).ticks

    def test_logarithmic_labels_are_plain_figures(self) -> None:
        assert [text for _, text in log_scale(3, 250, 0, 100).ticks] == ["5", "10", "20", "50", "100", "200"]

    def test_a_logarithmic_scale_without_a_round_step_has_labels(self) -> None:
        ticks = log_scale(34.0, 38.0, 0, 100).ticks
        assert len(ticks) >= 2
        assert all(34 <= value <= 38 and float(text) == pytest.approx(value) for value, text in ticks)

    @given(RATES, st.floats(1.001, 1e20))
    def test_every_scale_has_some_labels_inside(self, low: float, factor: float) -> None:
        for scale in (linear_scale(0, low * factor, 300, 0), log_scale(low, low * factor, 300, 0)):
            assert 2 <= len(scale.ticks) <= 20
            assert all(scale.low <= value <= scale.high * (1 + 1e-9) for value, _ in scale.ticks)
            assert len({text for _, text in scale.ticks}) == len(scale.ticks)

    @given(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9))
    def test_a_linear_scale_includes_both_values(self, one: float, other: float) -> None:
        low, high = sorted((one, other))
        scale = linear_scale(low, high, 0, 1)
        assert scale.low <= low * (1 + 1e-9) and scale.high >= high * (1 - 1e-9)

    def test_places_are_beside_each_other_with_few_labels(self) -> None:
        x = place_scale([f"n{place}" for place in range(100)], 50, 150, 8)
        assert (x.at(0), x.at(99), len(x.ticks), x.ticks[1]) == (50.5, 149.5, 8, (13.0, "n13"))
        assert [text for _, text in place_scale(["a", "b"], 0, 1, 8).ticks] == ["a", "b"]

    def test_ratios_are_round_and_apart(self) -> None:
        assert [text for _, text in ratio_ticks(0.9, 1.3)] == ["×0.9", "×0.95", "×1", "×1.05", "×1.1", "×1.2"]
        assert [ratio for ratio, _ in ratio_ticks(0.03, 40)] == [0.0625, 0.25, 1, 4, 16]


class TestApart:
    def test_labels_with_room_stay_where_they_are(self) -> None:
        assert apart([50, 10], 20, 0, 100) == [50, 10]

    @given(st.lists(st.floats(0, 300), min_size=1, max_size=11))
    def test_labels_do_not_collide_and_stay_inside(self, wanted: list[float]) -> None:
        found = apart(wanted, 26, 0, 300)
        assert all(after - before >= 26 - 1e-6 for before, after in pairwise(sorted(found)))
        assert all(-1e-6 <= each <= 300 + 1e-6 for each in found)

    def test_of_too_many_labels_none_leaves_the_picture(self) -> None:
        found = apart([50.0] * 30, 26, 0, 300)
        assert min(found) >= 0 and max(found) <= 300 and len(set(found)) == 30


class TestPicture:
    def test_it_is_one_element_with_an_accessible_name_and_no_style(self) -> None:
        picture = Picture(460, 250)
        picture.text(1, 2, "text")
        drawing = picture.markup('a "title" & <more>\u202e')
        root = ElementTree.fromstring(drawing)
        assert root.attrib == {"viewBox": "0 0 460 250", "role": "img", "aria-label": root.attrib["aria-label"]}
        assert root.attrib["aria-label"].startswith('a "title" & <more>') and "\u202e" not in drawing
        assert not re.search(r"<\?xml|<style|style=|#[0-9a-f]{6}", drawing)

    def test_texts_are_escaped(self) -> None:
        picture = Picture(460, 250)
        for text in ("GB/s <&$x$", "</svg><script>", "网络\U0001f600"):
            picture.text(10, 20, text)
        assert texts(picture) == ["GB/s <&$x$", "</svg><script>", "网络\U0001f600"]

    def test_a_line_is_one_path_that_gaps_interrupt(self) -> None:
        picture = Picture(460, 250)
        picture.line([(0, 0), (1.25, 2), None, (3, 4), (5, 6)], "s0")
        picture.line([], "s1")
        assert picture.elements == ['<path class="line s0" d="M0 0L1.2 2M3 4L5 6"/>']

    def test_labels_of_an_axis_do_not_collide(self) -> None:
        picture = Picture(460, 250)
        ticks = [(float(place), "2026-11-21") for place in range(30)]
        picture.axes(AxisScale(0, 30, 54, 440, ticks), linear_scale(0, 1, 200, 30))
        places = [float(x) for x in re.findall(r'x="([\d.]+)" y="218"', picture.markup(""))]
        assert 2 <= len(places) < 8
        assert all(after - before > 60 for before, after in pairwise(places))


def test_series_differ_in_color_dash_or_marker() -> None:
    assert len({(series_classes(number), number % 5) for number in range(16)}) == 16
    assert series_classes(0).split()[0] == series_classes(4).split()[0] != series_classes(1).split()[0]


def test_a_legend_breaks_into_rows_inside_the_picture() -> None:
    picture = Picture(460, 300)
    top = draw_legend(picture, [(f"a series of a long name {number}", number) for number in range(6)], 54, 14)
    heights = [float(y) for y in re.findall(r'<text class="ink" x="[\d.]+" y="([\d.]+)"', picture.markup(""))]
    assert len(set(heights)) > 1 and top > max(heights)
    assert not outside(picture)


class TestTimeAxis:
    @pytest.mark.parametrize(("end", "unit", "text"), [(90.0, "s", "45 s"), (3600.0, "min", "0.75 min"), (86400.0, "h", "0.0125 h")])
    def test_its_unit_fits_its_length(self, end: float, unit: str, text: str) -> None:
        axis = TimeAxis(end, timed=True)
        assert axis.unit[1] == unit and axis.text(45.0) == text
        assert axis.title == f"{unit} since the start of the run"
        assert 4 <= len(axis.ticks()) <= 12

    def test_without_times_cases_are_counted(self) -> None:
        axis = TimeAxis(3.5, timed=False)
        assert (axis.title, axis.text(0.5), axis.ticks()[-1]) == ("cases in the order of measurement", "case 1", (3.0, "3"))

    def test_a_run_without_length_has_an_axis(self) -> None:
        assert TimeAxis(0.0, timed=True).ticks()


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 100), RATES), min_size=1, max_size=8))
def test_panels_keep_everything_inside(points: list[tuple[float, float]]) -> None:
    stack = Panels(["one", "two"], TimeAxis(100.0, timed=True), [("a", 0), ("b", 1)])
    values = [value for _, value in points]
    for panel in range(2):
        y = stack.scale(panel, min(values), max(values))
        stack.line(y, points, panel)
        stack.marks([(at, y.at(value)) for at, value in points])
        stack.tip(points[0][0], y.at(points[0][1]), "tip")
        assert stack.top(panel) - 0.1 <= stack.picture.tooltips[panel].y <= stack.top(panel) + stack.HEIGHT + 0.1
    assert not outside(stack.picture)
    assert {"one", "two", "a", "b"} <= set(texts(stack.picture))
