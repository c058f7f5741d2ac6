"""The identity of cases, resumed runs, and launches of one allocation combined."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.analysis import launches
from collbench.errors import UsageError
from collbench.machine.peak.ceiling import Ceiling
from collbench.report import FORMATS as REPORTED
from collbench.report.compare import FORMATS as COMPARED
from collbench.report.compare import compare_runs
from collbench.report.runs import report_run
from collbench.results.folder import RunFolder
from collbench.results.reader import Run, read_run
from collbench.results.row import SERIES, Row, Times
from collbench.stats.launches import over_launches
from tests.results.rows import NIC, make_row, make_times, not_measured, store


@pytest.mark.parametrize(("value", "is_known", "is_a_time"), [
    (1e-6, True, True), (1, True, True), (0, False, False), (0.0, False, False), (-1.0, False, False), (True, False, False),
    (float("nan"), False, False), (float("inf"), False, False), (None, False, False), ("1", False, False), (1e-15, True, True),
    (9e-16, True, False), (1e12, True, True), (1.1e12, True, False),
])  # fmt: skip
def test_figures_are_finite_and_above_0(value: Any, is_known: bool, is_a_time: bool) -> None:
    assert (launches.known(value), launches.is_time(value)) == (is_known, is_a_time)


def test_the_time_of_a_row_and_what_a_library_was_forced_to_use() -> None:
    assert launches.time_of(make_row(time_s=make_times(2e-6))) == 2e-6
    assert launches.time_of(make_row(time_s=make_times(0.0))) is None
    assert launches.time_of(not_measured("no memory")) is None
    forced = [launches.forced(make_row(**each)) for each in ({}, {"algorithm": "tree"}, {"algorithm": "tree", "protocol": "ll128"})]
    assert forced == ["", "tree", "tree/ll128"]


ROWS = [make_row(8 << step) for step in range(5)]
RESUMED = "its 5 rows are of 2 launches: 3 + 2; an interval covers one launch, and different launches may differ by more"


def _resumed(path: Path, at: int | None) -> Path:
    """A run of five rows that broke off after so many."""
    folder = RunFolder.create(path, "allreduce", {"allocation_id": "7"})
    for place, row in enumerate(ROWS):
        if place == at:
            folder.give_up()
            folder = RunFolder.reopen(path)
            folder.rows = place
            folder.go_on()
            folder.resumed(allocation_id="7")
        folder.append(row, {})
    folder.finish(exit_code=0)
    return path


@pytest.mark.parametrize(("notes", "rows"), [
    (None, [5]), ([], [5]), ([{"rows": 3}], [3, 2]), ([{"rows": 1}, {"rows": 3}], [1, 2, 2]), ([{"rows": 0}], [5]), ([{"rows": 5}], [5]),
    ([{"rows": 3}, {"rows": 3}], [3, 2]), ([{"rows": 3}, {"rows": 2}], [0, 0, 0]), ([{"rows": "3"}], [0, 0]), ([{"rows": 9}], [0, 0]),
    ([{}], [0, 0]), ("yes", [5]), ([7], [5]),
])  # fmt: skip
def test_rows_are_of_the_launch_that_measured_them(notes: Any, rows: list[int]) -> None:
    assert launches.rows_by_launch(Run(Path("run"), {"resumed": notes}, ROWS)) == rows


def test_what_is_not_known_is_not_reported_and_allocations_are(tmp_path: Path) -> None:
    run = read_run(_resumed(tmp_path / "run", 3))
    assert launches.sentence(run) == f"{run.path} was resumed: {RESUMED}"
    strange = replace(run, info={**run.info, "resumed": [{}]})
    assert "of 2 launches; " in str(launches.sentence(strange))
    elsewhere = replace(run, info={**run.info, "resumed": [{"rows": 3, "allocation_id": "8"}]})
    assert "of 2 launches in 2 allocations: 3 + 2;" in str(launches.sentence(elsewhere))
    assert launches.sentence(read_run(_resumed(tmp_path / "other", None))) is None


@pytest.mark.parametrize("format", REPORTED)
def test_every_report_shows_it(tmp_path: Path, format: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    report_run([_resumed(tmp_path / "run", 3)], None, format, out, err=err)
    assert err.getvalue() == f"{tmp_path / 'run'} was resumed: {RESUMED}\n"
    assert ("run (5 rows, resumed: 2 launches)" in out.getvalue()) is (format == "table")


@pytest.mark.parametrize("format", COMPARED)
def test_every_comparison_shows_it(tmp_path: Path, format: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    compare_runs(_resumed(tmp_path / "a", None), _resumed(tmp_path / "b", 3), format, out, err=err)
    assert err.getvalue() == f"{tmp_path / 'b'} was resumed: {RESUMED}\n"
    assert ("B: b (1 launch, resumed)" in out.getvalue()) is (format in ("table", "markdown"))


def test_launches_put_together_report_it_of_the_one_that_was(tmp_path: Path) -> None:
    runs = [_resumed(tmp_path / f"launch-{number}", 3 if number == 2 else None) for number in (1, 2)]
    for run in runs:
        about = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**about, "id": run.name, "started_utc": run.name}))
    out, err = io.StringIO(), io.StringIO()
    report_run([tmp_path], None, "table", out, err=err)
    assert err.getvalue() == f"{tmp_path / 'launch-2'} was resumed: {RESUMED}\n"
    assert "(2 launches, 5 rows, 1 resumed)" in out.getvalue()


DONE = {"finished_utc": "2026-11-21T00:00:00Z"}
OTHER = {
    "operation": "broadcast", "backend": "gloo", "device": "cpu", "dtype": "int8", "redop": "max", "root": 1, "mode": "batched",
    "in_place": True, "buffers": "rotating", "window": 8, "group": "0-1", "ranks": 8, "nodes": 2,
}  # fmt: skip


def row_of(p50: float, **changes: Any) -> Row:
    """1 KiB on four ranks, all of its figures in keeping with the time."""
    rates = {"algbw_bytes_per_s": 1024 / p50, "busbw_bytes_per_s": 1.5 * 1024 / p50, "percent_of_ceiling": 150 * 1024 / p50 / 50e9}
    return make_row(1024, **{"time_s": make_times(p50), **rates, **changes})


def run_of(rows: list[Row], name: str = "run", **info: Any) -> Run:
    return Run(Path(name), {"allocation_id": "job-1", **DONE, **info}, rows)


def combined(*rows: Row) -> Row:
    (one,) = launches.combined_rows([run_of([row]) for row in rows])
    return one


class TestFigures:
    def test_the_time_is_the_median_of_the_medians_and_all_figures_follow_from_it(self) -> None:
        row, spread = combined(row_of(3e-6), row_of(1e-6), row_of(2e-6)), over_launches([3e-6, 1e-6, 2e-6])
        assert row.time_s == Times(2e-6, spread.low, spread.high, 0.9e-6, 2.4e-6, 3e-6, 6e-6)
        assert (row.launches, row.n, row.n_eff) == (3, 600, None)
        assert row.evidence["launch_medians_s"] == [3e-6, 1e-6, 2e-6]
        row = combined(row_of(1e-6), row_of(2e-6), row_of(4e-6))
        assert (row.algbw_bytes_per_s, row.busbw_bytes_per_s) == (pytest.approx(1024 / 2e-6), pytest.approx(1.5 * 1024 / 2e-6))
        assert row.percent_of_ceiling == pytest.approx(100 * 1.5 * 1024 / 2e-6 / 50e9)

    def test_a_measured_ceiling_is_the_median_of_the_launches_another_that_of_most(self) -> None:
        copies = [Ceiling("measured", rate, "memory copy and sum") for rate in (10e9, 30e9, 20e9)]
        row = combined(*(row_of(1e-6, ceiling=copy) for copy in copies))
        assert row.ceiling == Ceiling("measured", 20e9, "memory copy and sum")
        assert row.percent_of_ceiling == pytest.approx(100 * 1.5 * 1024 / 1e-6 / 20e9)
        links = (replace(NIC, limited_by="eth0"), NIC, NIC, None)
        assert combined(*(row_of(1e-6, ceiling=ceiling) for ceiling in links)).ceiling == NIC

    def test_no_percentage_where_one_launch_withholds_it_and_no_bandwidth_of_a_barrier(self) -> None:
        assert combined(row_of(1e-6), row_of(1e-6, percent_of_ceiling=None, flags=("oversubscribed",))).percent_of_ceiling is None
        row = combined(*[row_of(1e-6, algbw_bytes_per_s=None, busbw_bytes_per_s=None)] * 2)
        assert (row.algbw_bytes_per_s, row.busbw_bytes_per_s, row.percent_of_ceiling) == (None, None, None)

    def test_each_group_has_the_median_of_its_launches(self) -> None:
        groups = [
            {"count": 2, "ranks": 2, "p50_s": [a, b], "busbw_bytes_per_s": [1 / a, 1 / b], "total_busbw_bytes_per_s": 1 / a + 1 / b}
            for a, b in ((1.0, 4.0), (2.0, 5.0), (4.0, 8.0))
        ]
        assert combined(*(row_of(1e-6, groups=each) for each in groups)).groups == groups[1]
        assert combined(row_of(1e-6, groups=groups[0]), row_of(1e-6)).groups == {}
        unlisted = {**groups[0], "p50_s": None, "busbw_bytes_per_s": None}
        assert combined(*[row_of(1e-6, groups=unlisted)] * 2).groups == unlisted

    def test_wrong_data_in_any_launch_stays_visible(self) -> None:
        wrong, unchecked = row_of(1e-6, wrong=3, wrong_detail="first at 1"), row_of(1e-6, wrong=None, checked=0)
        row = combined(row_of(1e-6), wrong, row_of(1e-6, wrong=2), unchecked)
        assert (row.wrong, row.wrong_detail, row.checked) == (5, "first at 1", 3)
        assert combined(unchecked, unchecked).wrong is None

    def test_flags_and_reasons_are_united_slowest_ranks_summed_and_state_probes_are_medians(self) -> None:
        row = combined(row_of(1e-6, flags=("drift",), reached=True), row_of(1e-6, flags=("few_samples", "drift"), reached=False))
        assert (row.flags, row.reached) == (("drift", "few_samples"), False)
        assert combined(*(row_of(1e-6, stopped=why) for why in ("precision", "max_time", "precision"))).stopped == "max_time"
        counts = [{"worst": [[3, 10], [0, 5]], "count": 2}, {"worst": [[0, 9], [1, 1]], "count": 2}, {"worst": "junk"}]
        row = combined(*(row_of(1e-6, slowest_ranks=each) for each in counts))
        assert row.slowest_ranks == {"worst": [[0, 14], [3, 10], [1, 1]], "count": 3}
        row = combined(*(row_of(1e-6, canary_s={"before": ns * 1e-9, "after": None}) for ns in (60, 260, 64)))
        assert row.canary_s == {"before": pytest.approx(64e-9), "after": None}

    def test_two_modes_are_shown_where_every_launch_has_them(self) -> None:
        pairs = [[{"time_s": low, "share": 0.8}, {"time_s": 10e-6, "share": 0.2}] for low in (1e-6, 2e-6, 3e-6)]
        row = combined(*(row_of(2e-6, modes=pair) for pair in pairs))
        assert row.modes == [{"time_s": 2e-6, "share": pytest.approx(0.8)}, {"time_s": 10e-6, "share": pytest.approx(0.2)}]
        assert combined(row_of(2e-6, modes=pairs[0]), row_of(2e-6)).modes == []

    @settings(max_examples=30)
    @given(st.lists(st.floats(1e-7, 1e-1), min_size=2, max_size=12))
    def test_the_order_of_the_launches_changes_nothing(self, medians: list[float]) -> None:
        one, other = (launches.combine([row_of(p50) for p50 in each]) for each in (medians, medians[::-1]))
        assert (one.time_s.p50, one.time_s.min, one.time_s.max) == (other.time_s.p50, 0.9 * min(medians), 2 * max(medians))
        assert min(medians) <= one.time_s.p50 <= max(medians)
        assert one.time_s.ci_high / one.time_s.ci_low >= 1


class TestCases:
    def test_one_launch_is_left_as_it_is(self) -> None:
        rows = [row_of(1e-6), not_measured("no")]
        assert [replace(row, expectation=None) for row in launches.combined_rows([run_of(rows)])] == rows

    @pytest.mark.parametrize("name", [*SERIES, "size_bytes"])
    def test_cases_that_differ_in_anything_never_mix(self, name: str) -> None:
        other = replace(row_of(2e-6), **{name: OTHER.get(name, 2048)})
        assert [row.launches for row in launches.combined_rows([run_of([row_of(1e-6)]), run_of([other])])] == [1, 1]

    def test_a_case_that_some_launches_miss_is_combined_from_the_others(self) -> None:
        # a case that is missing in some launches is combined from the others
        row = combined(row_of(1e-6), not_measured("no memory", size_bytes=1024), row_of(3e-6))
        assert (row.na, row.launches, row.flags) == (None, 2, ("missing_launches",))
        assert row.time_s.p50 == 2e-6
        # a case that a broken launch did not reach reports it
        whole, broken = run_of([row_of(1e-6), make_row(8)]), run_of([make_row(8)], finished_utc=None)
        del broken.info["finished_utc"]
        assert {row.size_bytes: row.flags for row in launches.combined_rows([whole, broken])} == {1024: ("missing_launches",), 8: ()}
        # a launch that never meant to measure a case misses nothing
        found = launches.combined_rows([run_of([row_of(1e-6)]), run_of([row_of(1e-6, operation="broadcast")])])
        assert [(row.launches, row.flags) for row in found] == [(1, ()), (1, ())]
        assert combined(*[not_measured("no memory")] * 3).na == "no memory"
        # times that no clock gives do not count
        hostile = [row_of(1e-6, time_s=Times(p50, None, None, p50, p50, p50, p50)) for p50 in (-1.0, 0.0, 1e-320, None)]  # type: ignore[arg-type]
        row = combined(*hostile, row_of(2e-6), row_of(2e-6))
        assert (row.time_s.p50, row.launches, row.flags) == (2e-6, 2, ("missing_launches",))


class TestTogether:
    def test_runs_of_one_allocation_are_one_and_others_and_those_without_are_apart(self) -> None:
        runs = [run_of([row_of(1e-6)], name, allocation_id=of) for name, of in (("a", "x"), ("b", "y"), ("c", "x"))]
        found, apart = launches.together(runs)
        assert [(each.name, [run.path.name for run in each.runs]) for each in found] == [("x", ["a", "c"]), ("b", ["b"])]
        assert apart == []
        for without in (None, "", 7):
            assert len(launches.together([run_of([], name, allocation_id=without) for name in "ab"])[0]) == 2, without

    @pytest.mark.parametrize(("one", "other", "expected"), [
        ({"backends": {"mpi": {"mpi": "MPICH 4"}}}, {"backends": {"mpi": {"mpi": "MPICH 5"}}}, "software mpi mpi: MPICH 4 → MPICH 5"),
        ({"environment": {}}, {"environment": {"NCCL_ALGO": "Ring"}}, "environment NCCL_ALGO: – → Ring"),
        ({"hosts": ["n1", "n2"]}, {"hosts": ["n1", "n3"]}, "hosts names: n1, n2 → n1, n3"),
        ({"collbench": "1"}, {"collbench": "2"}, "software collbench: 1 → 2"),
    ])  # fmt: skip
    def test_what_was_changed_in_between_keeps_launches_apart(self, one: dict[str, Any], other: dict[str, Any], expected: str) -> None:
        found, apart = launches.together([run_of([row_of(1e-6)], "a", **one), run_of([row_of(1e-6)], "b", **other)])
        assert (len(found), [text.partition(": ")[2] for text in apart]) == (2, [expected])

    def test_what_launchers_number_anew_and_a_backend_that_only_one_has_does_not(self) -> None:
        numbered = ("SLURM_STEP_ID", "PMI_FD", "OMPI_MCA_ess_base_jobid", "COLLBENCH_LOCAL")
        first, second = ({**dict.fromkeys(numbered, f"/tmp/{step}"), "NCCL_ALGO": "Ring"} for step in range(2))
        gloo_too = {"mpi": {"mpi": "5"}, "gloo": {"torch": "2"}}
        runs = [
            run_of([row_of(1e-6)], hosts=["n1", "n2"], environment=first, backends={"mpi": {"mpi": "5"}}),
            run_of([row_of(1e-6)], hosts=["n2", "n1"], environment=second, backends=gloo_too),
        ]
        (found,), apart = launches.together(runs)
        assert (found.runs, apart) == (tuple(runs), [])


class TestFolders:
    def test_a_run_a_folder_of_launches_or_neither(self, tmp_path: Path) -> None:
        paths = [store(tmp_path / f"launch-{number}", [row_of(1e-6)]) for number in (10, 2, 1)]
        (tmp_path / "launch-x").mkdir()
        (tmp_path / "notes").write_text("mine")
        assert [run.path for run in launches.runs_in(tmp_path)] == paths[::-1]
        assert [run.path for run in launches.runs_in(paths[0])] == [paths[0]]
        with pytest.raises(UsageError, match="is not a run folder"):
            launches.runs_in(tmp_path / "launch-x")

    def test_a_launch_that_cannot_be_read_is_reported_and_the_others_count(self, tmp_path: Path) -> None:
        store(tmp_path / "launch-2", [row_of(1e-6)])
        (tmp_path / "launch-1").mkdir()
        (found,) = launches.runs_in(tmp_path)
        assert found.path.name == "launch-2" and "launch-1" in found.warnings[0]
        shutil.rmtree(tmp_path / "launch-2")
        with pytest.raises(UsageError, match="launch-1"):
            launches.runs_in(tmp_path)

    def test_the_folder_of_all_launches_names_them(self, tmp_path: Path) -> None:
        for number in (1, 2):
            store(tmp_path / "before" / f"launch-{number}", [row_of(1e-6)], allocation_id="job")
        (found,), _ = launches.together(launches.runs_in(tmp_path / "before"))
        assert (found.name, len(found.runs), found.rows[0].launches) == ("before", 2, 2)

    def test_a_launch_counts_once_under_any_name(self, tmp_path: Path) -> None:
        one = store(tmp_path / "launch-1", [row_of(1e-6)])
        shutil.copytree(one, tmp_path / "copy")
        (tmp_path / "link").symlink_to(one)
        for other in (one, tmp_path, tmp_path / "copy", tmp_path / "link"):
            with pytest.raises(UsageError, match="named twice"):
                launches.read_all([one, other])

    def test_junk_in_run_json_is_no_obstacle(self, tmp_path: Path) -> None:
        paths = [store(tmp_path / name, [row_of(1e-6)], allocation_id="job") for name in "ab"]
        junk = {**read_run(paths[0]).info, "backends": [[1]], "hosts": {}, "rank_map": "x", "host": 3}
        (paths[0] / "run.json").write_text(json.dumps(junk))
        (paths[0] / "topology.json").write_text("[" * 10_000)
        assert [len(each.runs) for each in launches.together(launches.read_all(paths))[0]] == [2]
