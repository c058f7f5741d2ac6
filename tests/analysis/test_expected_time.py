"""The expected time of each row: the line through a run's sizes, NCCL's own models, and the rules for "no model"."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from collbench.analysis.expected_time import HOLDS_WITHIN, not_saturated, with_expectations
from collbench.machine.peak.ceiling import Ceiling
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.job import job_on
from collbench.machine.peak.time_model import expected_times, time_of_table
from collbench.machine.readers.nccl_facts import TunedRate
from collbench.machine.snapshot import topology_json
from collbench.machine.sources import read_paths
from collbench.results import expectation
from collbench.results.folder import TOPOLOGY
from collbench.results.reader import Run, read_run
from collbench.results.row import Row
from tests.machines import captures
from tests.results.rows import COPY, make_row, make_times, not_measured, store

K, M, G = 1 << 10, 1 << 20, 1 << 30
ALPHA_S, RATE = 10e-6, 10e9  # of the line of these tests: bytes per second of algorithm bandwidth
SIZES = (64, 4 * K, 64 * K, M, 16 * M)
MORE_SIZES = (*SIZES, 256 * K, 512 * K)
OF_RUN = [expectation.SmallestOfRun, *[expectation.FromRunSizes] * 3, expectation.LargestOfRun]  # where the sizes of the run are the model
NO_RUN = Run(Path("none"))


def series(factors: dict[int, float] | None = None, sizes: tuple[int, ...] = SIZES, **changes: Any) -> list[Row]:
    """Rows on the line of these tests, with times that are multiplied by the factors; intervals are ±1 %."""
    rows = []
    for size in sizes:
        seconds = (ALPHA_S + size / RATE) * (factors or {}).get(size, 1.0)
        rates = {"algbw_bytes_per_s": size / seconds, "busbw_bytes_per_s": 1.5 * size / seconds}
        values = {"backend": "gloo", "device": "cpu", "ceiling": None, "percent_of_ceiling": None, "flags": (), **rates, **changes}
        rows.append(make_row(size, time_s=make_times(seconds), **values))
    return rows


def oversubscribed(size: int, rows: list[Row]) -> list[Row]:
    """The rows, of which this size is unreliable."""
    return [replace(row, flags=("oversubscribed",)) if row.size_bytes == size else row for row in rows]


def expected(rows: list[Row], run: Run = NO_RUN) -> dict[int, Any]:
    return {row.size_bytes: row.expectation for row in with_expectations(rows, run)}


def origins(rows: list[Row], run: Run = NO_RUN) -> list[type]:
    return [type(row.expectation.origin) for row in with_expectations(rows, run) if row.expectation]


class TestTheLineOfARun:
    def test_the_ends_make_it_in_any_order_and_the_others_are_compared_with_it(self) -> None:
        found = expected(series({64 * K: 1.25}))
        assert [type(each.origin) for each in found.values()] == OF_RUN
        assert found[64].percent_of_expected_time is None and found[16 * M].percent_of_expected_time is None
        assert found[M].percent_of_expected_time == pytest.approx(100)
        assert found[M].expected_time_s == pytest.approx(ALPHA_S + M / RATE)
        slow = found[64 * K]
        percents = (slow.percent_of_expected_time, slow.percent_of_expected_time_low, slow.percent_of_expected_time_high)
        assert percents == pytest.approx((80, 80 / 1.01, 80 / 0.99))
        assert found[M].origin == expectation.FromRunSizes(smallest=64, largest=16 * M)
        rows = series({64 * K: 1.25})
        assert expected(rows) == expected(rows[::-1])

    def test_unreliable_imported_and_other_rows_have_no_percentage_or_none_with_an_interval(self) -> None:
        bare = [replace(row, time_s=replace(row.time_s, ci_low=None, ci_high=None), flags=("imported",)) for row in series()]
        found = expected(bare)[M]
        assert found.percent_of_expected_time == pytest.approx(100)
        assert (found.percent_of_expected_time_low, found.percent_of_expected_time_high) == (None, None)
        found = expected(oversubscribed(M, series({M: 1.2})))[M]
        assert (found.origin, found.percent_of_expected_time) == (expectation.UnreliableTime(), None)
        assert found.expected_time_s == pytest.approx(ALPHA_S + M / RATE)
        rows = [not_measured("no GPU", backend="gloo"), *series(wrong=3), *series(ranks=1), *series(mode="load"), *series(mode="overlap")]
        assert all(row.expectation is None for row in with_expectations(rows, NO_RUN))

    @pytest.mark.parametrize("sizes", [(64,), (64, M)])
    def test_fewer_than_three_sizes_are_no_model(self, sizes: tuple[int, ...]) -> None:
        assert {each.origin for each in expected(series(sizes=sizes)).values()} == {expectation.TooFewSizes(sizes=len(sizes))}

    @pytest.mark.parametrize("flag", ["oversubscribed", "slowed", "above_bound"])
    def test_an_unreliable_row_is_never_an_end(self, flag: str) -> None:
        *rest, last = series({16 * M: 5.0})
        found = expected([*rest, replace(last, flags=(flag,))])
        assert found[M].origin == expectation.LargestOfRun()
        assert found[16 * M].origin == expectation.OutsideOfSizes(smallest=64, largest=M)
        assert found[16 * M].expected_time_s is None

    def test_times_that_do_not_grow_are_a_flat_line_and_other_series_have_their_own(self) -> None:
        rows = [replace(row, time_s=make_times(ALPHA_S * (0.999 if row.size_bytes == 256 else 1))) for row in series(sizes=(8, 64, 256))]
        assert expected(rows)[64].percent_of_expected_time == pytest.approx(100)
        slow = series(dict.fromkeys(SIZES, 4.0), in_place=True)
        found = with_expectations([*series(), *slow], NO_RUN)
        assert all(row.expectation.percent_of_expected_time in (None, pytest.approx(100)) for row in found if row.expectation)


class TestNoModel:
    """The rule of `expected_time`: what is off the line by more than a factor of 1.5, beyond its interval."""

    def test_one_slower_size_is_slow_unless_most_are_off_and_one_faster_size_or_a_single_one_between_the_ends_is_off(self) -> None:
        assert isinstance(expected(series({M: 0.5}))[M].origin, expectation.OffTheLine)
        assert isinstance(expected(series({M: 2.0}, sizes=(64, M, 16 * M)))[M].origin, expectation.OffTheLine)
        found = expected(series({64 * K: 3.0}))
        assert found[64 * K].percent_of_expected_time == pytest.approx(100 / 3)
        assert found[4 * K].percent_of_expected_time == pytest.approx(100)
        found = expected(series({4 * K: 2.0, M: 0.5}))
        assert [type(found[size].origin) for size in (4 * K, 64 * K, M)] == [expectation.OffTheLine] * 3
        assert type(found[64].origin) is expectation.SmallestOfRun

    def test_neighbors_that_are_slower_are_a_switch_of_the_library_also_an_unreliable_one(self) -> None:
        found = expected(series({4 * K: 1.6, 64 * K: 2.0}, sizes=MORE_SIZES))
        assert found[4 * K].origin == expectation.OffTheLine(first=4 * K, last=64 * K, factor=pytest.approx(1.6))
        assert found[64 * K].origin == expectation.OffTheLine(first=4 * K, last=64 * K, factor=pytest.approx(2.0))
        assert (found[64 * K].expected_time_s, found[64 * K].percent_of_expected_time) == (None, None)
        assert found[M].percent_of_expected_time == pytest.approx(100)
        rows = oversubscribed(4 * K, series({4 * K: 3, 64 * K: 3}, MORE_SIZES))
        assert isinstance(expected(rows)[64 * K].origin, expectation.OffTheLine)

    @pytest.mark.parametrize(("factor", "is_off"), [(HOLDS_WITHIN * 0.99, False), (1.02 * HOLDS_WITHIN, True)])
    def test_the_factor_holds_beyond_the_interval(self, factor: float, is_off: bool) -> None:
        found = expected(series({4 * K: factor, 64 * K: factor}, sizes=MORE_SIZES))
        assert isinstance(found[64 * K].origin, expectation.OffTheLine) is is_off

    def test_a_wide_interval_explains_it(self) -> None:
        *rows, row, largest = series({M: 0.6})
        wide = replace(row, time_s=replace(row.time_s, ci_high=0.7 / 0.6 * row.time_s.p50))
        assert isinstance(expected([*rows, row, largest])[M].origin, expectation.OffTheLine)
        assert expected([*rows, wide, largest])[M].percent_of_expected_time == pytest.approx(100 / 0.6)


class TestTheRateOfTheLinks:
    LINK = Ceiling("network", 7.5e9, "NIC eth0 60 Gb/s", "ring", "sysfs")  # half of the line's bus bandwidth

    def test_a_run_that_exceeds_it_is_compared_with_it(self) -> None:
        found = expected(series(ceiling=self.LINK, percent_of_ceiling=200.0))
        assert found[16 * M].origin == expectation.FromRunAndReference(smallest=64, limited_by="NIC eth0 60 Gb/s")
        assert found[16 * M].percent_of_expected_time == pytest.approx(200, rel=0.02)

    def test_a_latency_that_hides_behind_the_bytes_does_not_exceed_it(self) -> None:
        """Times that do not grow with the size have an infinite slope; what counts is the bandwidth of the largest size."""
        link = replace(self.LINK, bytes_per_s=4e9)
        flat = [replace(row, time_s=make_times(1e-3), busbw_bytes_per_s=3.2e9) for row in series(ceiling=link, percent_of_ceiling=80.0)]
        assert expected(flat)[16 * M].origin == expectation.LargestOfRun()

    @pytest.mark.parametrize("ceiling", [replace(LINK, bytes_per_s=75e9), COPY, replace(COPY, bytes_per_s=1e9)])
    def test_a_slower_run_and_a_measured_reference_leave_the_own_rate(self, ceiling: Ceiling) -> None:
        assert expected(series(ceiling=ceiling, percent_of_ceiling=20.0))[16 * M].origin == expectation.LargestOfRun()


# Healthy H100 nodes, captured; the rows are as a run on them stores them.

H100 = read_paths([captures.folder("oci-bm-gpu-h100-8")])
OF_NCCL = {"backend": "nccl", "device": "cuda", "ranks": 8, "nodes": 1}


def h100_rows(operation: str = "allreduce", sizes: tuple[int, ...] = SIZES, **changes: Any) -> list[Row]:
    reached = ceilings(operation, job_on(H100, 8, 1, "cuda")).expected
    return series(sizes=sizes, **{**OF_NCCL, "operation": operation, "ceiling": reached, "percent_of_ceiling": 80.0, **changes})


def h100_run(path: Path, rows: list[Row], **info: Any) -> Run:
    store(path, rows, **info)
    (path / TOPOLOGY).write_text(json.dumps(topology_json(H100)))
    return read_run(path)


class TestConstantsOfNccl:
    @pytest.mark.parametrize("operation", ["allreduce", "allgather", "reducescatter"])
    @pytest.mark.parametrize("backend", ["nccl", "torch-nccl"])
    def test_every_size_has_the_time_of_peak(self, tmp_path: Path, operation: str, backend: str) -> None:
        rows = h100_rows(operation, backend=backend)
        found = expected(rows, h100_run(tmp_path, rows))
        times = expected_times(operation, job_on(H100, 8, 1, "cuda"), SIZES)
        for row, time in zip(rows, times, strict=True):
            each = found[row.size_bytes]
            assert each.origin == expectation.FromNcclConstants(choice=time.how)
            assert each.expected_time_s == pytest.approx(time.seconds)
            assert each.percent_of_expected_time == pytest.approx(100 * time.seconds / row.time_s.p50)

    def test_one_size_is_enough_and_a_forced_algorithm_has_its_own_time(self, tmp_path: Path) -> None:
        rows = h100_rows(sizes=(G,))
        assert origins(rows, h100_run(tmp_path / "one", rows)) == [expectation.FromNcclConstants]
        rows = h100_rows(algorithm="ring", protocol="simple")
        found = expected(rows, h100_run(tmp_path / "forced", rows))
        assert {each.origin for each in found.values()} == {expectation.FromNcclConstants(choice="ring/Simple")}

    @pytest.mark.parametrize(("changes", "info"), [
        pytest.param({"operation": "alltoall"}, {}, id="an operation without latencies"),
        pytest.param({"algorithm": "collnetdirect"}, {}, id="an algorithm without latencies"),
        pytest.param({"group": "MOD 2", "ranks": 4}, {}, id="a part of the machine"),
        pytest.param({"ranks": 16}, {}, id="more ranks than GPUs"), pytest.param({"nodes": None}, {}, id="an unknown number of nodes"),
        pytest.param({"nodes": 10**12, "ranks": 10**12}, {}, id="an impossible number of nodes"),
        pytest.param({"ceiling": Ceiling("topology", 100e9, "NIC")}, {}, id="another expected rate than the machine's"),
        pytest.param({"ceiling": Ceiling("given", 480e9, "the ceiling given")}, {}, id="a given ceiling"),
        pytest.param({}, {"environment": {"NCCL_ALGO": "Ring"}}, id="the user forces an algorithm"),
        pytest.param({"backend": "mpi"}, {}, id="another library"),
    ])  # fmt: skip
    def test_otherwise_the_runs_own_sizes_are_the_model(self, tmp_path: Path, changes: dict[str, Any], info: dict[str, Any]) -> None:
        rows = h100_rows(**{"operation": "allreduce", **({} if "operation" in changes else changes)})
        rows = [replace(row, **changes) for row in rows]
        assert origins(rows, h100_run(tmp_path, rows, **info)) == OF_RUN

    def test_a_broken_topology_is_not_known(self, tmp_path: Path) -> None:
        rows = h100_rows()
        run = h100_run(tmp_path, rows)
        (tmp_path / TOPOLOGY).write_text('{"schema": 1, "machines": [{"gpus": 7}]}')
        assert origins(rows, run)[1] is expectation.FromRunSizes


TABLE = [
    ["AllReduce", "Tree", "LL", 10.0, 5.0], ["AllReduce", "Ring", "LL", 15.0, 20.0], ["AllReduce", "Ring", "Simple", 40.0, 200.0],
    ["AllGather", "Ring", "Simple", 20.0, 300.0],
]  # fmt: skip
ENTRIES = [TunedRate(*values) for values in TABLE]


class TestTableOfNccl:
    @pytest.mark.parametrize(("size", "microseconds", "choice"), [
        (64, 10 + 64 / 5e3, "Tree/LL"), (64 * K, 15 + 64 * K / 20e3, "Ring/LL"), (G, 40 + G / 200e3, "Ring/Simple"),
    ])  # fmt: skip
    def test_the_fastest_choice_counts(self, size: int, microseconds: float, choice: str) -> None:
        found = time_of_table(ENTRIES, "allreduce", 8, 1, size)
        assert (found.seconds * 1e6, found.choice) == (pytest.approx(microseconds), choice)

    def test_a_tree_has_its_share_and_a_ring_between_nodes_its_longer_latency(self) -> None:
        tree = time_of_table(ENTRIES, "allreduce", 8, 1, 64 * K, forced=("TREE", "LL"))
        assert tree.seconds * 1e6 == pytest.approx(10 + 64 * K / (5e3 * 0.6))  # 2^16 B: the eleventh entry of LL
        ring = time_of_table(ENTRIES, "allreduce", 16, 2, G, forced=("ring", "simple"))
        assert ring.seconds * 1e6 == pytest.approx(1.4 * 40 + G / 200e3)

    def test_rates_with_too_few_digits_and_missing_operations_are_unknown(self) -> None:
        assert time_of_table([TunedRate("AllReduce", "Ring", "LL", 15.0, 0.9)], "allreduce", 8, 1, G) is None
        assert time_of_table(ENTRIES, "reduce", 8, 1, G) is None
        assert time_of_table(ENTRIES, "alltoall", 8, 1, G) is None

    def test_it_goes_before_the_constants_and_follows_the_choices_in_the_log(self, tmp_path: Path) -> None:
        choices = [{"collective": "AllReduce", "bytes": G, "algorithm": "RING", "protocol": "LL", "channels": 2, "calls": 1}]
        rows = [*h100_rows(sizes=(64 * K,)), *h100_rows(sizes=(G,), evidence={"nccl": {"choices": choices}})]
        run = h100_run(tmp_path, rows, nccl_log={"nccl": {"tuning": TABLE}})
        found = expected(rows, run)
        assert found[64 * K].origin == found[G].origin == expectation.FromNcclLog(choice="Ring/LL")
        assert found[G].expected_time_s == pytest.approx(15e-6 + G / 20e9)

    @pytest.mark.parametrize(("backend", "table"), [
        ("torch-nccl", TABLE), ("nccl", "text"), ("nccl", [["AllReduce", "Ring", "Simple", 40.0]]),
        ("nccl", [["AllReduce", "Ring", "Fast", 40.0, 200.0]]), ("nccl", [["AllReduce", "Ring", "Simple", "40", 200.0]]),
        ("nccl", [["AllReduce", "Ring", "Simple", 40.0, -1.0]]), ("nccl", [["AllReduce", None, "Simple", 40.0, 1.0]]),
    ])  # fmt: skip
    def test_a_stored_table_of_another_backend_or_that_is_not_valid_is_not_used(self, tmp_path: Path, backend: str, table: Any) -> None:
        rows = h100_rows()
        assert set(origins(rows, h100_run(tmp_path, rows, nccl_log={backend: {"tuning": table}}))) == {expectation.FromNcclConstants}


# 20 racks of NVL72: bus bandwidth in GB/s of an all-reduce by size; 1,440 ranks.
RACKS = {G: 218.0, 2 * G: 287.0, 4 * G: 346.0, 8 * G: 382.0, 16 * G: 406.0}


def racks(rates: dict[int, float] = RACKS, percent: float = 41.0) -> list[Row]:
    ceiling = Ceiling("topology", 100 * 406e9 / percent, "NVLink 900 GB/s with NVLink SHARP", "nvls_tree")
    rows = []
    for size, rate in rates.items():
        seconds = 2 * 1439 / 1440 * size / (rate * 1e9)
        times = replace(make_times(seconds), ci_low=None, ci_high=None)
        rates = {"algbw_bytes_per_s": size / seconds, "busbw_bytes_per_s": rate * 1e9, "ceiling": ceiling}
        percent_of_ceiling = 100 * rate * 1e9 / ceiling.bytes_per_s
        rows.append(
            make_row(size, time_s=times, percent_of_ceiling=percent_of_ceiling, ranks=1440, nodes=360, flags=("imported",), **rates)
        )
    return rows


def test_many_racks_are_not_saturated_at_12_mb_per_rank() -> None:
    (found,) = not_saturated(racks())
    assert (found.size_bytes / found.ranks / 1e6, found.reached) == (pytest.approx(11.9, abs=0.1), 406e9)
    assert found.approached == pytest.approx(433e9, rel=0.02)
    assert "not saturated at 16 GiB, 11.4 MiB per rank" in found.render()


@pytest.mark.parametrize("rows", [
    pytest.param(racks(percent=90.0), id="a healthy share of the expected rate"),
    pytest.param(racks(dict.fromkeys(RACKS, 406.0)), id="saturated, and slow"),
    pytest.param(racks(dict(list(RACKS.items())[:3])), id="too few sizes for a fit"),
    pytest.param([replace(row, percent_of_ceiling=None) for row in racks()], id="no expected rate"),
])  # fmt: skip
def test_no_excuse_for_what_is_not_proven(rows: list[Row]) -> None:
    assert not_saturated(rows) == []
