"""The numbers behind a matrix: those that are printed, for all values, with few digits for many places."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.plugins.hunt.pairs import PairEffects
from collbench.plugins.hunt.pairs_page import charts
from collbench.units import format_rate, format_time
from tests.plugins.hunt.html.matrices import cell_values, drawn, even, slowed
from tests.plugins.hunt.pair_matrices import SyntheticMatrix

ANY = st.floats() | st.just(0.0) | st.floats(1e-9, 1e12)


def test_each_number_is_the_one_that_is_printed_elsewhere() -> None:
    for n in (20, 70):
        matrix = SyntheticMatrix(n).matrix()
        rates, times = map(cell_values, drawn(matrix))
        off = ~np.eye(n, dtype=bool)
        assert np.isnan(np.diag(rates)).all() and np.isnan(np.diag(times)).all()
        assert [format_rate(rate * 1e9) for rate in rates[off]] == [format_rate(rate) for rate in matrix.bandwidth[off]]
        assert [format_time(time / 1e6) for time in times[off]] == [format_time(time) for time in matrix.latency_s[off]]


def test_numbers_are_in_the_order_of_the_drawing() -> None:
    names = [f"r{number % 10}n{number // 10}" for number in range(100)]
    bandwidth, _ = drawn(slowed(even(100, names), 73, 25), again=[(73, 25)])
    assert bandwidth.data
    assert np.argwhere(cell_values(bandwidth) == 5).tolist() == [[37, 52]]
    assert (bandwidth.data["places"][37], bandwidth.data["places"][52]) == ("r3n7", "r5n2")  # type: ignore[index]
    assert bandwidth.data["again"] == [[37, 52]]
    assert bandwidth.data["bounds"] == []


def test_unknown_pairs_and_wrong_data_are_told_apart() -> None:
    matrix = even(4)
    matrix.wrong[0, 1] = matrix.wrong[1, 0] = 3
    matrix.bandwidth[0, 3] = np.nan
    bandwidth, _ = drawn(matrix)
    assert bandwidth.data
    assert bandwidth.data["wrong"] == [[0, 1, 3], [1, 0, 3]]
    assert bandwidth.data["values"][0] == [None, 10, 10, None]  # type: ignore[index]
    assert [bound[0][1] for bound in bandwidth.data["bounds"]] == [9.9, 10.1]  # type: ignore[attr-defined]


def test_paths_inside_hosts_have_their_own_median() -> None:
    matrix = even(8, hosts=[f"node{number // 2}" for number in range(8)])
    for rank in range(0, 8, 2):
        slowed(matrix, [rank, rank + 1], [rank + 1, rank], 10)
    bandwidth, latency = drawn(matrix)
    assert bandwidth.data and latency.data
    assert (bandwidth.data["medians"], latency.data["medians"]) == ([10, 100], [20, 20])
    assert bandwidth.data["hosts"] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert bandwidth.data["median"] == "the median of such paths"
    assert [chart.data["medians"] for chart in drawn(even(4)) if chart.data] == [[10, None], [20, None]]


@settings(max_examples=40, deadline=None)
@given(st.lists(ANY, min_size=12, max_size=12), st.lists(ANY, min_size=6, max_size=6))
def test_no_figure_ends_in_a_traceback(rates: list[float], times: list[float]) -> None:
    matrix = even(4)
    matrix.bandwidth[~np.eye(4, dtype=bool)] = rates
    matrix.latency_s[np.triu_indices(4, 1)] = times
    matrix.latency_s[np.tril_indices(4, -1)] = matrix.latency_s.T[np.tril_indices(4, -1)]
    for chart in charts(PairEffects(matrix), "pairs-0", "", "nodes", (1, 1)):
        assert "nan" not in chart.drawing
        json.dumps(chart.data, allow_nan=False)


def test_numbers_of_many_places_have_few_digits() -> None:
    bandwidth, latency = drawn(SyntheticMatrix(200).matrix())
    assert len(json.dumps(bandwidth.data, separators=(",", ":"))) < 39_800 * 5 + 6_000
    assert len(json.dumps(latency.data, separators=(",", ":"))) < 19_900 * 6 + 6_000
