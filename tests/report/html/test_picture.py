"""Pictures of a page: what matplotlib draws, small, escaped, in the page's colors, and with tooltips where the marks are."""

import re
import sys
from itertools import pairwise
from math import inf, nan
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.analysis.outcome import Outcome
from collbench.report.charts import Bar, BarPanel, RatioLine, RatioMark, RatioPanel
from collbench.report.figures import ratio_ticks, time_text
from collbench.report.html.chart import Chart, Table
from collbench.report.html.picture import NO_PICTURE, PAGE, VARIABLES, WIDE, Picture, apart, bar_chart, drawn, ratio_chart
from tests.cli.command import ROOT
from tests.report.html.svg import marks, outside, texts

RATIOS = st.floats(1e-12, 1e12) | st.sampled_from([0.0, -1.0, inf, nan, 1.0])
EMPTY = Chart("key", 'a "title" & <more>\u202e', "caption", "method", Table((), ()))


def drawn_line(picture: Picture) -> None:
    axes = picture.axes()
    axes.plot([0, 1, nan, 2, 3], [1, 2, nan, 2, 1], color=PAGE.series[1], label="</svg><script> $x$ 网络", gid="line 0")
    axes.plot([0, 1], [1.5, 1.5], color=PAGE.expected, marker="o", linestyle="none", gid="marks")
    picture.tip(axes, 0, 1.5, "first")
    picture.tip(axes, 1, 1.5, "second")
    picture.legend(1)


def line(ratio: float, name: str = "allreduce", **changes: Any) -> RatioLine:
    outcome, role = (Outcome.SLOWER, "slower") if ratio > 1 else (Outcome.FASTER, "faster")
    return RatioLine(name, [RatioMark(ratio, outcome, role)], **{"words": "slower", "tooltip": f"{name} {ratio}", **changes})


def ratios_of(*lines: RatioLine) -> Chart:
    return ratio_chart(EMPTY, RatioPanel("", lines, "axis", 1.04))


class TestElements:
    def test_it_is_one_small_element_with_a_name_colors_of_the_page_escaped_texts_and_tooltips_at_its_marks(self) -> None:
        chart = drawn(EMPTY, drawn_line)
        drawing = chart.drawing
        root = ElementTree.fromstring(drawing)
        assert root.attrib == {"viewBox": "0 0 900 270", "role": "img", "aria-label": root.attrib["aria-label"]}
        assert root.attrib["aria-label"].startswith('a "title" & <more>') and "\u202e" not in drawing
        assert not re.search(r"<\?xml|<style|#[0-9a-f]{6}|xlink|\bid=", drawing)
        assert set(re.findall(r"var\(--([\w-]+)\)", drawing)) == {"series-1", "limit", "grid", "ink"}
        assert len(drawing) < 4000 and drawing == drawn(EMPTY, drawn_line).drawing
        assert "</svg><script> $x$ 网络" in texts(drawing)
        assert len(marks(drawing)["line 0"]) == 2  # two parts of one path: a gap interrupts the line
        assert not outside(drawing)
        assert [spot.text for spot in chart.spots] == ["first", "second"]
        for spot, (left, top) in zip(chart.spots, marks(drawing)["marks"], strict=True):
            assert abs(spot.x - left) < 4 and abs(spot.y - top) < 4  # a circle begins at its rim

    def test_the_colors_are_those_of_the_style_sheet(self) -> None:
        style = (ROOT / "collbench/report/html/drawing.css").read_text()
        light = dict(re.findall(r"--([\w-]+): light-dark\((#\w+)", style))
        for color, variable in VARIABLES.items():
            written = light[variable].lower()
            assert (written if len(written) == 7 else "#" + "".join(2 * digit for digit in written[1:])) == color, variable
        assert len(set(PAGE.series)) == 7

    def test_without_matplotlib_the_chart_reports_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        chart = drawn(EMPTY, drawn_line, WIDE)
        assert (chart.drawing, list(chart.spots), chart.caption, chart.wide) == ("", [], f"caption {NO_PICTURE}", True)
        drawn_by_script = drawn(replace(EMPTY, data={"kind": "sizes"}), drawn_line)
        assert drawn_by_script.caption == f"caption Printed, and without a script: {NO_PICTURE.replace('The', 'the', 1)}"


class TestRatios:
    def test_slower_is_to_the_right_of_one_and_faster_to_the_left(self) -> None:
        chart = ratios_of(line(1.2), line(0.9))
        slower, faster = chart.spots
        assert [(spot.text) for spot in chart.spots] == ["allreduce 1.2", "allreduce 0.9"]
        places = marks(chart.drawing)
        assert places["faster 1"][0][0] < places["slower 0"][0][0]
        assert faster.x < slower.x and slower.y < faster.y
        assert {"axis", "×1", "allreduce", "slower"} <= set(texts(chart.drawing))

    def test_small_differences_do_not_fill_the_axis_and_huge_ones_leave_one_visible(self) -> None:
        one, other = (ratios_of(line(ratio)).spots[0].x for ratio in (0.999, 1.001))
        assert other - one < 20
        assert ratio_ticks(0.9, 1.3) == [0.9, 0.95, 1, 1.05, 1.1, 1.2]
        assert ratio_ticks(0.03, 40) == [0.0625, 0.25, 1, 4, 16]

    def test_an_interval_and_a_limit_are_drawn_and_included(self) -> None:
        drawing = ratios_of(line(1.1, interval=(0.5, 2.0), limit=3.0)).drawing
        (low, high), limit = re.findall(r'data-mark="interval 0"><path[^>]*d="M([\d.]+) [\d.]+L([\d.]+) ', drawing)[0], r'stroke-width="2"'
        assert float(low) < marks(drawing)["slower 0"][0][0] < float(high)
        assert "×2" in texts(drawing) and limit in drawing

    def test_the_first_mark_is_drawn_on_top_and_names_are_escaped_and_cut(self) -> None:
        both = [RatioMark(1.3, Outcome.SLOWER, "slower"), RatioMark(1.0, Outcome.NO_CHANGE, "quiet", is_open=True)]
        chart = ratios_of(RatioLine("group", both))
        assert chart.drawing.index("no change 0") < chart.drawing.index("slower 0")
        assert abs(chart.spots[0].x - marks(chart.drawing)["slower 0"][0][0]) < 6
        drawing = ratios_of(line(1.1, "<script>\u202e" + "x" * 100)).drawing
        assert not re.search(r"<script|<b>|\u202e|x{50}", drawing)

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.tuples(RATIOS, RATIOS, RATIOS), min_size=1, max_size=5))
    def test_any_ratio_is_inside_the_picture(self, figures: list[tuple[float, float, float]]) -> None:
        chart = ratios_of(*(line(ratio, interval=(low, ratio), limit=limit) for ratio, low, limit in figures))
        assert not outside(chart.drawing) and "nan" not in re.sub(r"<text.*?</text>", "", chart.drawing)
        assert len(chart.spots) == len(figures)
        assert all(0 <= spot.x <= WIDE for spot in chart.spots)

    @pytest.mark.parametrize("ratio", [1e-9, 1e9])
    def test_a_huge_ratio_is_at_the_edge_and_one_stays_visible(self, ratio: float) -> None:
        assert "×1" in texts(ratios_of(line(ratio)).drawing)


class TestBars:
    def test_a_bar_has_its_name_its_value_an_interval_and_what_is_expected(self) -> None:
        bars = [Bar("whole", "20 ms", 20.0, (19.0, 22.0), 18.0), Bar("part", "5 ms", 5.0, color=1, is_part=True)]
        chart = bar_chart(EMPTY, BarPanel("", bars, "ms"))
        assert {"whole", "20 ms", "part", "5 ms", "ms"} <= set(texts(chart.drawing))
        assert {"bar 0", "interval 0", "expected 0", "bar 1"} == set(marks(chart.drawing))
        assert [spot.text for spot in chart.spots] == ["whole: 20 ms", "part: 5 ms"]
        assert chart.spots[1].x < chart.spots[0].x
        assert not outside(chart.drawing)


class TestApart:
    def test_labels_with_room_stay_where_they_are_and_of_too_many_none_leaves_the_picture(self) -> None:
        assert apart([50, 10], 20, 0, 100) == [50, 10]
        positions = apart([50.0] * 30, 26, 0, 300)
        assert min(positions) >= 0 and max(positions) <= 300 and len(set(positions)) == 30

    @given(st.lists(st.floats(0, 300), min_size=1, max_size=11))
    def test_labels_do_not_collide_and_stay_inside(self, wanted: list[float]) -> None:
        positions = apart(wanted, 26, 0, 300)
        assert all(after - before >= 26 - 1e-6 for before, after in pairwise(sorted(positions)))
        assert all(-1e-6 <= position <= 300 + 1e-6 for position in positions)


def test_a_time_has_a_unit_of_its_size() -> None:
    assert [time_text(seconds) for seconds in (2e-9, 2e-6, 0.05, 0.1402, 20.0)] == ["2 ns", "2 µs", "50 ms", "140.2 ms", "20 s"]
