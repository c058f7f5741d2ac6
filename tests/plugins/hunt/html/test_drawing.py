"""The picture of a matrix: its classes as rectangles, labels without overlap, the names of slow places, the legend."""

from __future__ import annotations

import re

import numpy as np
import pytest

from collbench.plugins.hunt.pairs_page import cut
from tests.plugins.hunt.html.matrices import cell_classes, drawn, even, slowed, texts_in

CLEAR, WRONG = -1, 5


def beside(markup: str) -> list[float]:
    """The heights of the labels on the right."""
    found = [
        (float(x), float(y), text)
        for x, y, text in re.findall(r'<text class="ink" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*: [^<]*|and \d[^<]*)</text>', markup)
    ]
    return [y for x, y, _ in found if x > 100]


def test_the_drawing_has_a_cell_per_pair_and_is_clear_on_the_diagonal() -> None:
    bandwidth, latency = drawn(slowed(even(6), 1, 4))
    classes = cell_classes(bandwidth.drawing, 6)
    assert np.diag(classes).tolist() == [CLEAR] * 6
    assert np.argwhere(classes == 4).tolist() == [[1, 4]]
    assert set(cell_classes(latency.drawing, 6).ravel().tolist()) == {0, CLEAR}


def test_a_slow_place_is_named_once_with_arrows_and_without_rings() -> None:
    bandwidth, _ = drawn(slowed(slowed(even(8), 2), slice(None), 2))
    assert [text for text in texts_in(bandwidth.drawing) if "%" in text and "node" in text] == ["node3: both ways 50 %"]
    assert bandwidth.drawing.count('class="bad"') == 2
    assert "rx=" not in bandwidth.drawing


def test_a_pair_that_nothing_explains_has_a_ring() -> None:
    bandwidth, _ = drawn(slowed(even(8), 5, 2), again=[(2, 5)])
    assert "node6 to node3: 50 %" in texts_in(bandwidth.drawing)
    assert bandwidth.drawing.count("rx=") == 2  # light around dark
    assert 'class="bad"' not in bandwidth.drawing


def test_a_place_that_only_receives_slowly_is_named_below_its_column() -> None:
    bandwidth, _ = drawn(slowed(even(8), slice(None), 6))
    assert "node7: receives 50 %" in texts_in(bandwidth.drawing)
    assert bandwidth.drawing.count('class="bad"') == 1


def test_a_slow_latency_is_reported_in_its_own_chart() -> None:
    matrix = even(8)
    matrix.latency_s[2] *= 2
    matrix.latency_s[:, 2] *= 2
    bandwidth, latency = drawn(matrix)
    assert bandwidth.caption.startswith("No slow place or pair.")
    assert "node3: 2.00 times as long" in texts_in(latency.drawing)


def test_labels_of_neighbours_do_not_overlap_and_are_within_the_matrix() -> None:
    matrix = even(40)
    for place in (0, 1, 2, 3, 37, 38, 39):
        slowed(matrix, place, ratio=0.5)
    heights = beside(drawn(matrix)[0].drawing)
    assert len(heights) == 7
    assert min(np.diff(sorted(heights))) >= 14 - 0.01
    box = drawn(matrix)[0].data
    assert box is not None
    _, top, side = box["box"]  # type: ignore[misc]
    assert top < min(heights) < max(heights) < top + side


def test_wrong_data_has_a_sign_and_not_only_a_colour() -> None:
    matrix = even(5)
    matrix.wrong[0, 2] = matrix.wrong[2, 0] = 7
    bandwidth, _ = drawn(matrix)
    assert texts_in(bandwidth.drawing).count("!") == 2
    assert "wrong data (!)" in texts_in(bandwidth.drawing)
    assert np.argwhere(cell_classes(bandwidth.drawing, 5) == WRONG).tolist() == [[0, 2], [2, 0]]


def test_what_is_not_measured_is_hatched() -> None:
    matrix = even(5)
    matrix.bandwidth[0, 2] = np.nan
    bandwidth, latency = drawn(matrix)
    assert 'fill="url(#pairs-0-bandwidth-no)"' in bandwidth.drawing
    assert "not measured" in texts_in(bandwidth.drawing)
    assert "url(#" not in latency.drawing


def test_colours_are_explained_in_words() -> None:
    bandwidth, latency = drawn(even(5))
    assert texts_in(bandwidth.drawing)[-5:] == ["95 % of the median or more", "90–95 %", "81–90 %", "66–81 %", "below 66 %"]
    assert texts_in(latency.drawing)[-5:] == ["up to 1.05 times the median", "1.05–1.11", "1.11–1.23", "1.23–1.51", "above 1.51"]


@pytest.mark.parametrize(
    ("name", "shown"), [("node1", "node1"), ("ip-10-0-12-34.eu-west-1.compute", "ip-10-0-1…-1.compute"), ("a\u202eb", "a?b")]
)
def test_of_a_long_name_its_middle_is_left_out(name: str, shown: str) -> None:
    assert cut(name) == shown
