"""The best of each operation over each backend: which row it is, and which it is not."""

from __future__ import annotations

from math import inf, nan

from collbench.analysis.best import peaks
from collbench.report.headlines import figure
from tests.results.rows import make_row, make_times, not_measured


def test_the_highest_bandwidth_at_any_size_and_the_time_of_the_smallest() -> None:
    small, top = make_row(8, busbw_bytes_per_s=1e6, time_s=make_times(2e-6)), make_row(1 << 20, busbw_bytes_per_s=45e9)
    (peak,) = peaks([top, small, make_row(1 << 30, busbw_bytes_per_s=40e9)])
    assert (peak.row, peak.smallest, peak.cases, peak.sound) == (top, small, 3, 3)


def test_of_equal_bandwidths_the_larger_size_counts() -> None:
    (peak,) = peaks([make_row(1 << 20), make_row(1 << 30), make_row(1 << 25)])
    assert peak.row.size_bytes == 1 << 30


def test_one_for_each_operation_backend_and_number_of_ranks_and_the_best_placing() -> None:
    rows = [make_row(), make_row(backend="mpi"), make_row(operation="broadcast"), make_row(ranks=8), make_row(mode="pipelined")]
    in_place = make_row(in_place=True, busbw_bytes_per_s=43e9)
    found = peaks([*rows, in_place])
    assert [each.row for each in found] == [in_place, *rows[1:]]
    assert [each.cases for each in found] == [2, 1, 1, 1, 1]


def test_wrong_data_is_never_a_peak() -> None:
    right = make_row(1024, busbw_bytes_per_s=1e9)
    (peak,) = peaks([make_row(2048, wrong=3), right])
    assert (peak.row, peak.sound) == (right, 1)
    (peak,) = peaks([wrong := make_row(wrong=3)])
    assert (peak.row, peak.smallest, peak.sound) == (wrong, None, 0)


def test_what_took_another_path_is_a_peak_only_where_there_is_nothing_else() -> None:
    beyond = make_row(1 << 20, busbw_bytes_per_s=90e9, flags=("above_bound",), percent_of_ceiling=None)
    assert peaks([beyond])[0].row == beyond
    assert peaks([beyond, slow := make_row(8, busbw_bytes_per_s=1e6)])[0].row == slow


def test_without_a_bandwidth_the_shortest_time_counts() -> None:
    barriers = [
        make_row(0, operation="barrier", algbw_bytes_per_s=None, busbw_bytes_per_s=None, time_s=make_times(t)) for t in (3e-6, 2e-6)
    ]
    (peak,) = peaks(barriers)
    assert (peak.row, peak.smallest) == (barriers[1], None)
    alone = [make_row(size, ranks=1, time_s=make_times(size * 1e-9)) for size in (64, 8)]
    assert peaks(alone)[0].row == alone[1]


def test_nothing_measured_and_figures_that_cannot_be() -> None:
    (peak,) = peaks([na := not_measured("no library")])
    assert (peak.row, peak.smallest, peak.sound) == (na, None, 0)
    strange = [make_row(8, busbw_bytes_per_s=value) for value in (nan, inf, -1.0)]
    assert peaks([*strange, sound := make_row(16)])[0].row == sound
    assert peaks([]) == []


def test_a_ping_pong_is_reported_by_its_shortest_time_not_by_a_bandwidth() -> None:
    rows = [make_row(size, operation="p2p_latency", time_s=make_times(time_s)) for size, time_s in ((8, 2e-6), (1 << 20, 1e-4))]
    (peak,) = peaks(rows)
    assert peak.row.size_bytes == 8
    assert figure(peak.row) == "2.000 µs"
