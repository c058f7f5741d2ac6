"""The forest plot: a line per case with its marks, interval and limit inside the picture."""

from __future__ import annotations

import re
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.report.html.drawing import Tooltip
from collbench.report.html.forest import FASTER, SAME, SLOWER, ForestLine, ForestMark, forest
from tests.report.html.svg import outside_markup

RATIOS = st.floats(1e-12, 1e12) | st.sampled_from([0.0, -1.0, inf, nan, 1.0])


def line(ratio: float, name: str = "allreduce", **changes: object) -> ForestLine:
    values = {"words": "slower", "tooltip": f"{name} {ratio}", **changes}
    return ForestLine(name, [ForestMark(ratio, SLOWER if ratio > 1 else FASTER, "bad")], **values)  # type: ignore[arg-type]


def drawn(lines: list[ForestLine], least: float, title: str = "title") -> tuple[str, list[Tooltip]]:
    """The drawing, and its tooltips."""
    picture = forest(lines, "axis", least)
    return picture.markup(title), picture.tooltips


def xs(drawing: str) -> list[float]:
    """The positions of the marks."""
    return [float(x) for x in re.findall(r"translate\(([\d.]+) ", drawing)]


def test_slower_is_to_the_right_of_one_and_faster_to_the_left() -> None:
    drawing, tooltips = drawn([line(1.2), line(0.9)], 1.04)
    slower, faster = xs(drawing)
    one = float(re.findall(r'class="line axis" d="M([\d.]+) ', drawing)[0])
    assert faster < one < slower
    assert [(tip.x, tip.text) for tip in tooltips] == [(slower, "allreduce 1.2"), (faster, "allreduce 0.9")]
    assert tooltips[0].y < tooltips[1].y
    assert ">axis<" in drawing and ">×1<" in drawing


def test_small_differences_do_not_fill_the_axis() -> None:
    (left,), (right,) = (xs(drawn([line(ratio)], 1.04)[0]) for ratio in (0.999, 1.001))
    assert right - left < 20


def test_an_interval_and_a_limit_are_drawn_and_included() -> None:
    drawing, _ = drawn([line(1.1, interval=(0.5, 2.0), limit=3.0)], 1.04)
    assert drawing.count('class="line bad wide"') == drawing.count('class="line limit wide"') == 1
    low, high = map(float, re.findall(r'class="line bad wide" d="M([\d.]+) [\d.]+L([\d.]+) ', drawing)[0])
    limit = float(re.findall(r'class="line limit wide" d="M([\d.]+) ', drawing)[0])
    assert low < xs(drawing)[0] < high < limit


def test_the_first_mark_is_drawn_on_top() -> None:
    marks = [ForestMark(1.3, SLOWER, "bad"), ForestMark(1.0, SAME, "quiet open")]
    drawing, (tip,) = drawn([ForestLine("group", marks, "words", "tip")], 1.03)
    assert drawing.index('class="quiet open"') < drawing.index('class="bad"')
    assert tip.x == xs(drawing)[-1]


def test_names_are_escaped_and_cut() -> None:
    drawing, _ = drawn([line(1.1, "<script>\u202e" + "x" * 100)], 1.04, "<b>")
    assert not re.search(r"<script|<b>|\u202e|x{50}", drawing)


@settings(max_examples=60)
@given(st.lists(st.tuples(RATIOS, RATIOS, RATIOS), min_size=1, max_size=5))
def test_any_ratio_is_inside_the_picture(given_: list[tuple[float, float, float]]) -> None:
    drawing, tooltips = drawn([line(ratio, interval=(low, ratio), limit=limit) for ratio, low, limit in given_], 1.04)
    assert not outside_markup(drawing) and "nan" not in re.sub(r"<text.*?</text>", "", drawing)
    assert len(tooltips) == len(given_)
    assert all(290 <= tip.x <= 624 for tip in tooltips)


@pytest.mark.parametrize("ratio", [1e-9, 1e9])
def test_a_huge_ratio_is_at_the_edge_and_one_stays_visible(ratio: float) -> None:
    drawing, _ = drawn([line(ratio)], 1.04)
    assert xs(drawing)[0] == (624 if ratio > 1 else 290)
    assert ">×1<" in drawing
