"""Peaks, the library's own choice compared with forced ones, and operations that take longer than what can replace them."""

from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from collbench.analysis.best import JudgedChoice, headlines, judged
from collbench.analysis.guidelines import ALTERNATIVES, GuidelineCheck, guideline_checks
from collbench.operations.registry import operations
from collbench.report.guidelines import compared_consistency, consistency_frame
from collbench.report.headlines import figure
from collbench.report.material import Material
from collbench.report.runs import markdown_text
from collbench.results.reader import read_run
from collbench.results.row import Row, Times
from tests.results.rows import make_row, make_times, not_measured, store

MIB = 1 << 20


def test_the_largest_reliable_size_counts_and_larger_ones_are_named() -> None:
    small, large = make_row(8, busbw_bytes_per_s=1e6, time_s=make_times(2e-6)), make_row(64 * MIB, busbw_bytes_per_s=40e9)
    in_cache = make_row(MIB, busbw_bytes_per_s=45e9)
    (headline,) = headlines([in_cache, small, large])
    assert (headline.row, headline.smallest, headline.cases, headline.sound, headline.left_out) == (large, small, 3, 3, ())
    rows = [make_row(size * MIB, flags=flags) for size, flags in ((1, ()), (4, ()), (16, ("oversubscribed",)), (64, ("oversubscribed",)))]
    (headline,) = headlines(rows)
    assert (headline.row.size_bytes, headline.left_out) == (4 * MIB, (16 * MIB, 64 * MIB))
    rows = [make_row(4096), make_row(16384, flags=("oversubscribed",)), make_row(MIB, flags=("oversubscribed",))]
    assert (headlines(rows)[0].row.size_bytes, headlines(rows[:2])[0].row.size_bytes) == (MIB, 16384)
    (headline,) = headlines([make_row(1 << 20), make_row(1 << 30), make_row(1 << 25)])
    assert headline.row.size_bytes == 1 << 30


def test_one_for_each_operation_backend_and_number_of_ranks_and_the_best_placing() -> None:
    rows = [make_row(), make_row(backend="mpi"), make_row(operation="broadcast"), make_row(ranks=8), make_row(mode="pipelined")]
    in_place = make_row(in_place=True, busbw_bytes_per_s=43e9)
    found = headlines([*rows, in_place])
    assert [each.row for each in found] == [in_place, *rows[1:]]
    assert [each.cases for each in found] == [2, 1, 1, 1, 1]


def test_wrong_data_or_another_path_is_a_headline_only_where_there_is_nothing_else() -> None:
    right = make_row(1024, busbw_bytes_per_s=1e9)
    (headline,) = headlines([make_row(2048, wrong=3), right])
    assert (headline.row, headline.sound) == (right, 1)
    (headline,) = headlines([wrong := make_row(wrong=3)])
    assert (headline.row, headline.smallest, headline.sound) == (wrong, None, 0)
    beyond = make_row(1 << 20, busbw_bytes_per_s=90e9, flags=("above_bound",), percent_of_ceiling=None)
    assert headlines([beyond])[0].row == beyond
    assert headlines([beyond, slow := make_row(8, busbw_bytes_per_s=1e6)])[0].row == slow


def test_without_a_bandwidth_the_shortest_time_counts_as_of_a_ping_pong() -> None:
    no_rate = {"operation": "barrier", "algbw_bytes_per_s": None, "busbw_bytes_per_s": None}
    barriers = [make_row(0, time_s=make_times(time_s), **no_rate) for time_s in (3e-6, 2e-6)]
    (headline,) = headlines(barriers)
    assert (headline.row, headline.smallest) == (barriers[1], None)
    alone = [make_row(size, ranks=1, time_s=make_times(size * 1e-9)) for size in (64, 8)]
    assert headlines(alone)[0].row == alone[1]
    rows = [make_row(size, operation="p2p_latency", time_s=make_times(time_s)) for size, time_s in ((8, 2e-6), (1 << 20, 1e-4))]
    (headline,) = headlines(rows)
    assert headline.row.size_bytes == 8
    assert figure(headline.row) == "2.000 µs"


def test_nothing_measured_and_figures_that_cannot_be() -> None:
    (headline,) = headlines([na := not_measured("no library")])
    assert (headline.row, headline.smallest, headline.sound) == (na, None, 0)
    strange = [make_row(8, busbw_bytes_per_s=value) for value in (nan, inf, -1.0)]
    assert headlines([*strange, sound := make_row(16)])[0].row == sound
    assert headlines([]) == []


K = 1024


def choice(p50: float, algorithm: str | None = None, protocol: str | None = None, **changes: Any) -> Row:
    """A row of 4 KiB with an interval of ±1 % of its median."""
    values = {"time_s": make_times(p50), "registration": "none", "algorithm": algorithm, "protocol": protocol, **changes}
    return make_row(**{"size_bytes": 4 * K, **values})


def only(rows: list[Row]) -> JudgedChoice:
    (found,) = judged(rows)
    return found


def test_a_forced_choice_that_is_clearly_faster_is_named_with_what_is_lost() -> None:
    rows = [choice(100e-6), choice(97e-6, "ring"), choice(88e-6, "tree", "ll128"), choice(89e-6, "tree", "ll")]
    (loss,) = only(rows).losses
    assert (loss.better.algorithm, loss.better.protocol, loss.better.size_bytes) == ("tree", "ll128", 4 * K)
    assert loss.part == pytest.approx(0.12)
    assert loss.low == pytest.approx(0.1076, abs=5e-4) and loss.high == pytest.approx(0.1324, abs=5e-4)


@pytest.mark.parametrize("forced", [98.5e-6, 100e-6, 130e-6])
def test_overlapping_intervals_and_slower_ones_claim_nothing(forced: float) -> None:
    found = only([choice(100e-6), choice(forced, "tree")])
    assert (found.losses, found.as_good, found.unknown) == ((), (4 * K,), ())
    assert found.within == pytest.approx(max(0.0, 1 - forced / 100e-6 * 0.986), abs=1e-3)


def test_wrong_rows_several_times_refused_choices_and_rows_without_an_interval_are_no_better_choice() -> None:
    assert only([choice(100e-6), choice(50e-6, "tree", wrong=3), choice(101e-6, "ring")]).as_good == (4 * K,)
    bare = Times(50e-6, None, None, 40e-6, 60e-6, 60e-6, 60e-6)
    refused = not_measured("no nvls here", size_bytes=4 * K, registration="none", algorithm="nvls")
    assert only([choice(100e-6), refused, choice(90e-6, "tree")]).losses[0].better.algorithm == "tree"
    unknown = [[choice(100e-6), choice(1.0, "tree", time_s=bare)], [choice(100e-6), refused]]
    for flag in ("two_modes", "drift", "state_flip", "oversubscribed", "budget_exceeded"):
        unknown += [[choice(100e-6), choice(50e-6, "tree", flags=(flag,))], [choice(100e-6, flags=(flag,)), choice(50e-6, "tree")]]
    assert [only(rows).unknown for rows in unknown] == [(4 * K,)] * 12
    assert judged([choice(1e-6), choice(2e-6, backend="mpi")]) == []


def test_sizes_are_judged_each_and_only_like_is_set_against_like() -> None:
    rows = [made for size in (64 * K, 8, K) for made in (choice(100e-6, size_bytes=size), choice(80e-6, "tree", size_bytes=size))]
    rows += [choice(100e-6, size_bytes=16), choice(120e-6, "tree", size_bytes=16), choice(90e-6, "tree", size_bytes=32)]
    found = only(rows)
    assert [loss.better.size_bytes for loss in found.losses] == [8, K, 64 * K]
    assert (found.as_good, found.unknown) == ((16,), (32,))
    rows = [choice(100e-6), choice(50e-6, "tree", registration="symmetric"), choice(60e-6, registration="symmetric"), choice(99e-6, "ring")]
    rows += [choice(10e-6, backend="mpi", registration=None)]
    first, second = judged(rows)
    assert (first.row.registration, first.losses, first.as_good) == ("none", (), (4 * K,))
    assert (second.row.registration, second.losses[0].better.algorithm) == ("symmetric", "tree")


def launches(medians: list[float], **changes: Any) -> Row:
    times = Times(medians[1], min(medians), max(medians), 0.0, 1.0, 1.0, 1.0)
    return choice(1.0, **{**changes, "time_s": times, "launches": len(medians), "evidence": {"launch_medians_s": medians}})


def test_over_launches_the_interval_is_theirs() -> None:
    own, better = launches([1.00e-4, 1.01e-4, 1.02e-4]), launches([0.90e-4, 0.91e-4, 0.92e-4], algorithm="tree")
    (loss,) = only([own, better]).losses
    assert loss.part == pytest.approx(1 - 0.91 / 1.01)
    assert 0.05 < loss.low < loss.part < loss.high < 0.15
    two = [launches(medians[:2], algorithm=name) for medians, name in (([1.0e-4, 1.1e-4], None), ([0.8e-4, 0.99e-4], "tree"))]
    assert (only(two).losses, only(two).as_good) == ((), (4 * K,))
    assert only(two).within > 0.5  # two launches give little information, and the result shows it


@pytest.mark.parametrize("medians", [None, "x", [1e-4], [1e-4, "x"], [1e-4, float("nan")]])
def test_medians_that_a_file_has_wrong_fall_back_to_the_intervals(medians: Any) -> None:
    own, better = choice(100e-6, launches=2, evidence={"launch_medians_s": medians}), choice(80e-6, "tree")
    assert only([own, better]).losses[0].part == pytest.approx(0.2)


KIB = 1 << 10


def row(operation: str, p50: float, size: int = 64 * KIB, **changes: Any) -> Row:
    """A row with an interval of ±1 % of its median."""
    values = {"ranks": 4, "flags": (), "time_s": make_times(p50), **changes}
    return make_row(size, operation=operation, **values)


def violated(rows: list[Row]) -> list[GuidelineCheck]:
    return [check for check in guideline_checks(rows) if check.is_violated]


BAD_ALLREDUCE = [row("allreduce", 80e-6), row("reduce", 20e-6), row("broadcast", 20e-6)]


def test_what_takes_longer_than_what_replaces_it_or_than_a_larger_size_is_a_violation() -> None:
    (violation,) = violated(BAD_ALLREDUCE)
    assert violation.row.operation == "allreduce"
    assert [part.operation for part in violation.instead] == ["reduce", "broadcast"]
    assert (violation.instead_s, violation.ratio) == (pytest.approx(40e-6), pytest.approx(2.0))
    assert violation.low == pytest.approx(2 * 0.99 / 1.01, rel=1e-3) and violation.high == pytest.approx(2 * 1.01 / 0.99, rel=1e-3)
    (violation,) = violated([row("allgather", 50e-6, 4 * KIB), row("allgather", 30e-6, 16 * KIB)])
    assert violation.larger
    assert (violation.row.size_bytes, violation.instead[0].size_bytes) == (4 * KIB, 16 * KIB)
    names = {operation for operation, _ in ALTERNATIVES} | {part for _, parts in ALTERNATIVES for part in parts}
    assert names <= operations().keys()


@pytest.mark.parametrize("changes", [
    pytest.param({"backend": "gloo"}, id="another backend"), pytest.param({"ranks": 8}, id="other ranks"),
    pytest.param({"mode": "batched"}, id="another mode"), pytest.param({"flags": ("drift",)}, id="doubtful"),
    pytest.param({"wrong": 3}, id="wrong data"), pytest.param({"algorithm": "tree"}, id="a forced algorithm"),
    pytest.param({"time_s": replace(make_times(20e-6), ci_low=None, ci_high=None)}, id="no interval"),
    pytest.param({"time_s": make_times(59e-6)}, id="within what launches differ by"),
])  # fmt: skip
def test_what_proves_no_violation(changes: dict[str, Any]) -> None:
    rows = [row("allreduce", 80e-6), row("reduce", 20e-6), replace(row("broadcast", 20e-6), **changes)]
    assert violated(rows) == []


def test_the_table_and_the_comparison_show_it(tmp_path: Path) -> None:
    healthy = [replace(BAD_ALLREDUCE[0], time_s=make_times(35e-6)), *BAD_ALLREDUCE[1:]]
    frame = consistency_frame(BAD_ALLREDUCE)
    assert len(frame.records) == 1
    assert consistency_frame(healthy) is None
    assert consistency_frame([row("allreduce", 80e-6)]) is None, "one operation of one size has nothing to compare"
    assert len(compared_consistency(healthy, BAD_ALLREDUCE)) == 1
    assert compared_consistency(BAD_ALLREDUCE, BAD_ALLREDUCE) == []
    nearly = [replace(BAD_ALLREDUCE[0], time_s=replace(make_times(41e-6), ci_high=82e-6)), *BAD_ALLREDUCE[1:]]
    assert compared_consistency(nearly, BAD_ALLREDUCE) == [], "the intervals of both ratios overlap"
    run = read_run(store(tmp_path / "run", BAD_ALLREDUCE))
    assert "reduce + broadcast" in markdown_text(Material([run], Path()))
