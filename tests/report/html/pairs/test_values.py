"""The texts behind a matrix: as Python prints them, for all values, few in number and small when packed."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.plugins.hunt.pairs import PairEffects
from collbench.plugins.hunt.pairs_page import MatrixInput, charts
from collbench.units import format_rate, format_time
from tests.analysis.pair_matrices import SyntheticMatrix
from tests.report.html.matrices import cell_texts, drawn, even, slowed

ANY = st.floats() | st.just(0.0) | st.floats(1e-9, 1e12)


def test_each_text_has_the_figure_that_is_printed_elsewhere() -> None:
    matrix = SyntheticMatrix(70).matrix()
    bandwidth, latency = drawn(matrix)
    rates, times = cell_texts(bandwidth), cell_texts(latency)
    median = np.nanmedian(matrix.bandwidth)
    for a in range(70):
        for b in range(a + 1, 70):
            share = f"{100 * matrix.bandwidth[a, b] / median:.0f} % of the median"
            assert rates[a][b] == f"{format_rate(matrix.bandwidth[a, b])} GB/s, {share}"
            assert times[a][b].startswith(f"{format_time(matrix.latency_s[a, b])} µs, ")


def test_texts_are_in_order_from_slow_to_fast() -> None:
    matrix = slowed(slowed(even(6), 1, 2, 0.5), 3, 4, 0.05)
    matrix.bandwidth[0, 5] = np.nan
    texts = dict.fromkeys(text for row in cell_texts(drawn(matrix)[0]) for text in row)
    assert set(texts) == {
        "0.500 (0.495–0.505) GB/s, 5.0 % of the median", "5.00 (4.95–5.05) GB/s, 50 % of the median",
        "10.0 (9.90–10.1) GB/s, 100 % of the median", "not measured",
    }  # fmt: skip
    assert cell_texts(drawn(matrix)[0])[0][0].startswith("0.500")  # number 0: the diagonal has it, and the script never asks for it


def test_a_pair_measured_twice_and_wrong_data_are_reported() -> None:
    matrix = even(4)
    matrix.wrong[0, 1] = matrix.wrong[1, 0] = 3
    texts = cell_texts(drawn(matrix, again=[(2, 3)])[0])
    assert texts[1][0].endswith("; wrong data: 3 elements")
    assert texts[2][3].endswith("; measured twice, the faster result counts")


def test_paths_inside_hosts_are_set_against_their_own_median() -> None:
    matrix = even(8, hosts=[f"node{number // 2}" for number in range(8)])
    for rank in range(0, 8, 2):
        slowed(matrix, [rank, rank + 1], [rank + 1, rank], 10)
    texts = cell_texts(drawn(matrix)[0])
    assert texts[0][1] == "100 (99.0–101) GB/s, 100 % of the median of such paths"
    assert texts[0][2] == "10.0 (9.90–10.1) GB/s, 100 % of the median of such paths"


@settings(max_examples=40, deadline=None)
@given(st.lists(ANY, min_size=12, max_size=12), st.lists(ANY, min_size=6, max_size=6))
def test_no_figure_ends_in_a_traceback(rates: list[float], times: list[float]) -> None:
    matrix = even(4)
    matrix.bandwidth[~np.eye(4, dtype=bool)] = rates
    matrix.latency_s[np.triu_indices(4, 1)] = times
    matrix.latency_s[np.tril_indices(4, -1)] = matrix.latency_s.T[np.tril_indices(4, -1)]
    for chart in charts(MatrixInput("pairs-0", "", "nodes", PairEffects(matrix), [], (1, 1))):
        assert all(text for row in cell_texts(chart) for text in row)
        assert "nan" not in chart.drawing
        json.dumps(chart.data, allow_nan=False)


def test_values_of_many_places_stay_small() -> None:
    bandwidth, latency = drawn(SyntheticMatrix(200).matrix())
    assert len(json.dumps(bandwidth.data)) < 65_000  # of 39,800 pairs
    assert len(json.dumps(latency.data)) < 45_000
