"""Drawings: in the page's colours, small, with texts as texts, and words that never collide."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from collbench.report.html.chart import (
    LIMIT,
    LineLabel,
    fixed_ticks,
    line,
    log_axis,
    panel,
    series_color,
    size_axis,
    spots,
    svg_of,
    write_labels,
    x_of_size,
)

SIZES = [1 << power for power in range(3, 31)]


@pytest.fixture(scope="module")
def drawing() -> str:
    figure, axes = panel()
    for number in range(2):
        axes.plot([x_of_size(size) for size in SIZES], np.linspace(0, 40 + number, 28), **line(number))
    axes.plot([3, 30], [50, 50], color=LIMIT)
    size_axis(axes, SIZES)
    axes.set_ylim(0, 60)
    axes.set_ylabel("GB/s <&$x$")
    write_labels(axes, [LineLabel('ring "reference" <b>', LIMIT, [(3, 50), (30, 50)])], [])
    return svg_of(figure, "key", 'a "title" & more')


def test_it_is_one_element_with_a_name_of_its_own(drawing: str) -> None:
    root = ElementTree.fromstring(drawing)
    assert root.attrib["viewBox"] == "0 0 460 290"
    assert root.attrib["aria-label"] == 'a "title" & more'
    assert not re.search(r"<\?xml|<style|<metadata|<!--", drawing)


def test_colours_are_the_pages(drawing: str) -> None:
    assert set(re.findall(r"var\(--([\w-]+)\)", drawing)) >= {"series-0", "series-1", "limit", "grid", "soft", "paper"}
    assert not re.search(r"#0[0-9a-f]{5}", drawing)


def test_identifiers_are_its_own_and_all_there(drawing: str) -> None:
    there = re.findall(r' id="([^"]*)"', drawing)
    assert len(set(there)) == len(there)
    assert all(name.startswith("key-") for name in there)
    assert set(re.findall(r"url\(#([^)]*)\)", drawing)) <= set(there)


def test_equal_marks_are_the_corners_of_one_path(drawing: str) -> None:
    marked = re.findall(r'<path d="([^"]*)"[^>]*marker-mid', drawing)
    assert [path.count("L") for path in marked] == [27, 27]
    assert len(drawing) < 6000


def test_texts_are_texts_and_nothing_else(drawing: str) -> None:
    texts = [each.text for each in ElementTree.fromstring(drawing).iter() if each.tag == "text"]
    assert 'ring "reference" <b>' in texts
    assert "GB/s <&$x$" in texts
    assert {"8 B", "message size", "0", "60"} <= set(texts)


def test_an_eye_sees_dash_and_marker_too() -> None:
    styles = [line(number) for number in range(8)]
    assert len({(str(each["linestyle"]), each["marker"]) for each in styles}) == 8
    assert series_color(0) == series_color(4) != series_color(1)


def test_spots_are_pixels_from_the_upper_left() -> None:
    _, axes = panel()
    axes.set_xlim(0, 10)
    axes.set_ylim(0, 100)
    found = spots(axes, [0, 10, 5], [0, 100, float("nan")], ["low", "high", "none"])
    assert [(each.x, each.y, each.text) for each in found] == [(54, 250, "low"), (448, 26, "high")]


def test_a_log_axis_that_holds_no_round_step_has_even_ones() -> None:
    _, axes = panel()
    log_axis(axes, 34.0, 38.0)
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["34", "35", "36", "37", "38"]


def test_a_logarithmic_axis_has_plain_labels() -> None:
    figure, axes = panel()
    fixed_ticks(axes.xaxis, [], [])
    log_axis(axes, 3, 250)
    texts = re.findall(r"<text[^>]*>([^<]*)<", svg_of(figure, "log", "times"))
    assert texts == ["5", "10", "20", "50", "100", "200"]


@pytest.mark.parametrize("high", [1e-12, 0.003, 7, 123456789, 1e15])
def test_every_scale_has_some_labels(high: float) -> None:
    figure, axes = panel()
    log_axis(axes, high / 50, high)
    axes.set_xlim(0, high)
    assert 2 < len(re.findall("<text", svg_of(figure, "scale", "any"))) < 20


def test_words_do_not_collide_and_what_has_no_room_is_reported() -> None:
    figure, axes = panel()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    wishes = [LineLabel(f"a rate that has a long name, number {number}", LIMIT, [(0, 0.5), (1, 0.5)]) for number in range(5)]
    left_over = write_labels(axes, wishes, [])
    drawn = svg_of(figure, "words", "words")
    heights = [float(found) for found in re.findall(r'y="([\d.]+)">a rate', drawn)]
    assert len(heights) + len(left_over) == 5
    assert left_over
    assert all(abs(one - other) >= 12 for place, one in enumerate(heights) for other in heights[:place])


def test_a_text_that_no_font_has_draws_without_a_word_on_stderr(
    capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    figure, axes = panel()
    axes.text(0.5, 0.5, "网络\U0001f600", parse_math=False)
    assert "网络" in svg_of(figure, "font", "font")
    assert (capsys.readouterr().err, len(recwarn)) == ("", 0)
