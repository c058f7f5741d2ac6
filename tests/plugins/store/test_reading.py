"""Runs rebuilt from a store, and queries of it, equal those of the folders."""

import json
import sys
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from collbench.analysis.differences import facts
from collbench.errors import UsageError
from collbench.plugins.store.database import open_store
from collbench.plugins.store.export import export
from collbench.plugins.store.folders import read_folder, result_of
from collbench.plugins.store.query import RESULTS, SUBJECTS, Condition, Query, check_column, parse_condition, records, size_condition
from collbench.plugins.store.reading import RunSelection, load_runs, newest_launches, select_runs
from collbench.plugins.store.text import write_query
from collbench.plugins.store.writing import Writer, sync
from collbench.results.quality import quality_of
from collbench.results.reader import read_run
from collbench.results.row import Row
from tests.cli.command import ROOT
from tests.plugins.store.dashboards.fleet import run_folder
from tests.plugins.store.runs import added, night, run
from tests.results.rows import make_row, not_measured

REPORTS = ROOT / "reports"
ONLY_IN_THE_FOLDER = {"evidence", "samples", "slowest_ranks", "ceiling"}
STORED = sorted(path.parent for path in REPORTS.glob("**/cells.jsonl") if read_run(path.parent).rows)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> str:
    name = str(tmp_path_factory.mktemp("store") / "all.db")
    assert not added(name, REPORTS).refused
    return name


@pytest.mark.parametrize("folder", STORED, ids=lambda path: str(path.relative_to(REPORTS)))
def test_a_rebuilt_run_equals_its_folder(everything: str, folder: Path) -> None:
    database = open_store(everything)
    (rebuilt,) = load_runs(database, select_runs(database, RunSelection((str(folder),))))
    original = read_run(folder)
    assert (rebuilt.path, rebuilt.info) == (folder, original.info)
    assert facts(rebuilt) == facts(original)
    assert len(rebuilt.rows) == len(original.rows)
    for one, other in zip(rebuilt.rows, original.rows, strict=True):
        assert [getattr(one, name) for name in _KEPT] == [getattr(other, name) for name in _KEPT]
        assert quality_of(one) == quality_of(other)
        assert _ceiling(one) == _ceiling(other)


_KEPT = [name for name in Row.__struct_fields__ if name not in ONLY_IN_THE_FOLDER | {"canary_s", "hard_bound"}]


def _ceiling(row: Row) -> list[object]:
    kept = ("kind", "bytes_per_s", "limited_by", "model", "source", "limited_by_parts")
    return [each and [getattr(each, name) for name in kept] for each in (row.ceiling, row.hard_bound)]


def test_samples_need_the_folder(everything: str) -> None:
    database = open_store(everything)
    (rebuilt,) = load_runs(database, select_runs(database, RunSelection(("first-run",))))
    with pytest.raises(UsageError, match="has no samples"):
        rebuilt.array(rebuilt.rows[0], "max_s")


# Selections


def test_runs_are_selected_by_name_allocation_label_host_and_time(name: str, tmp_path: Path) -> None:
    one, two = night(tmp_path, 1, hosts=("a", "b")), night(tmp_path, 2, hosts=("b",), allocation_id="job-5")
    added(name, one, labels=["good"])
    added(name, two)
    database = open_store(name)

    def selected(**parts: object) -> list[str]:
        return [found.path.name for found in load_runs(database, select_runs(database, RunSelection(**parts)))]  # type: ignore[arg-type]

    assert selected() == selected(nodes=("b",)) == ["night-1", "night-2"]
    assert selected(nodes=("a",)) == selected(names=("good",)) == selected(labels=("good",)) == selected(names=(str(one),)) == ["night-1"]
    assert selected(names=("job-5",)) == selected(since_s=1793584800.0) == ["night-2"]
    assert selected(until_s=1793584800.0) == ["night-1"]
    assert newest_launches(database) == select_runs(database, RunSelection(("night-2",)))
    one_is_unknown = {"names": ("night-1", "night-9")}
    for unknown in ({"names": ("night-9",)}, one_is_unknown, {"nodes": ("c",)}, {"names": ("night-1",), "nodes": ("c",)}):
        with pytest.raises(UsageError):
            selected(**unknown)


# Queries


@pytest.fixture
def nights(name: str, tmp_path: Path) -> str:
    added(name, night(tmp_path, 1, hosts=("a",)), night(tmp_path, 2, hosts=("a", "b"), slower=2.0))
    added(name, run(tmp_path / "other", [not_measured("no room", size_bytes=8, operation="broadcast", backend="mpi")], hosts=["b"]))
    return name


def found(name: str, **parts: object) -> list[tuple[object, ...]]:
    database = open_store(name)
    try:
        return list(records(database, Query(**parts)))  # type: ignore[arg-type]
    finally:
        database.close()


def test_filters_select_records_newest_first_and_node_gives_one_for_each_host(nights: str) -> None:
    of_size = {"sizes": "64M", "columns": ("run", "time_p50_s")}
    slow, fast = (("night-2", 2 * (1e-5 + (64 << 20) / 20e9)), ("night-1", 1e-5 + (64 << 20) / 20e9))
    assert found(nights, **of_size) == [slow, fast]
    assert found(nights, **of_size, limit=1) == [slow]
    assert found(nights, **of_size, runs=RunSelection(nodes=("b",))) == [slow]
    assert found(nights, sizes="8,1M", operations=("broadcast",), columns=("na",)) == [("no room",)]
    assert len(found(nights, sizes="1K-1G")) == 4
    assert found(nights, operations=("reduce",)) == []
    assert found(nights, backends=("mpi",), columns=("time_p50_s",)) == [(None,)]
    assert sorted(found(nights, sizes="64M", columns=("run", "node"))) == [("night-1", "a"), ("night-2", "a"), ("night-2", "b")]
    assert found(nights, sizes="64M", columns=("run", "node"), runs=RunSelection(nodes=("b",))) == [("night-2", "b")]
    assert [run for _, run, *_ in found(nights, subject=SUBJECTS["runs"]) if run != "other"] == ["night-2", "night-1"]
    for name in ("suspects", "pairs", "verdicts"):
        assert found(nights, subject=SUBJECTS[name], runs=RunSelection(since_s=0.0)) == []


@pytest.mark.parametrize(("condition", "number"), [
    ("dtype=float32", 7), ("dtype!=float32", 0), ("size_bytes>=64K", 4), ("size_bytes<64K", 3), ("busbw_bytes_per_s < 3e10", 3), ("na=", 6),
    ("na!=", 1), ("root=", 7), ("root!=1", 7), ("node=b", 4), ("in_place=0", 7),
])  # fmt: skip
def test_conditions(nights: str, condition: str, number: int) -> None:
    assert len(found(nights, conditions=(parse_condition(condition, RESULTS),))) == number


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_every_column_can_be_queried(nights: str, subject: object) -> None:
    assert isinstance(subject, type(RESULTS))
    assert set(subject.shown) <= set(subject.columns)
    assert all(column.doc for column in subject.columns.values())
    found(nights, subject=subject, columns=tuple(subject.columns))


def test_a_case_keeps_its_conditions_and_queries_their_columns() -> None:
    assert parse_condition(" size_bytes >= 64K", RESULTS) == Condition("size_bytes", ">=", 65536)
    assert parse_condition("operation=a=b", RESULTS) == Condition("operation", "=", "a=b")
    assert parse_condition("redop=", RESULTS) == Condition("redop", "=", None)
    assert parse_condition("ranks!=4", RESULTS) == Condition("ranks", "!=", 4)
    with pytest.raises(UsageError, match=r"^unknown column 'bus_bw_bytes_per_s' of results: did you mean busbw_bytes_per_s\?$"):
        check_column("bus_bw_bytes_per_s", RESULTS)
    assert figures_of(make_row(evidence={"at_s": [0.5, 1.5], "stolen": 0.0, "preempted": 0})) == (101.5, 0.0, 0)
    assert figures_of(make_row(evidence={"at_s": [0, 2]}), None) == (None, None, None)
    for junk in (None, [], [1.0], "x", [0, "1"], [0, float("nan")], {}, [0, True]):
        assert figures_of(make_row(evidence={"at_s": junk, "stolen": junk, "preempted": junk})) == (None, None, None)


@pytest.mark.parametrize(
    "text", ["", "ranks", "bogus=1", "ranks=many", "ranks=nan", "ranks<", "started=2026", "size_bytes=0", "1=1", "ranks=1; DROP TABLE runs"]
)
def test_invalid_conditions_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_condition(text, RESULTS)


@pytest.mark.parametrize("text", ["", "1M-1K", "x", "0", "1K-"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        size_condition(text)


def test_people_read_when_a_case_ended_as_a_date(name: str, tmp_path: Path) -> None:
    rows = [make_row(evidence={"at_s": [0.5, 2.0]})]
    added(name, run(tmp_path / "one", rows, started_utc="2026-11-01T02:00:00.000Z"))
    out = StringIO()
    database = open_store(name)
    write_query(database, Query(columns=("ended_s",)), "markdown", out)
    database.close()
    assert out.getvalue().splitlines()[::2] == ["| ended (UTC) |", "| 2026-11-01 02:00:02 |", "- 1 record"]


def test_a_limit_gives_the_newest_results_in_the_order_of_all(name: str, tmp_path: Path) -> None:
    undated = run(tmp_path / "undated", [make_row(8)], started_utc="never")
    added(name, undated, *(night(tmp_path, number) for number in (3, 1, 2)))
    whole = found(name, columns=("run", "size_bytes"))
    assert [run for run, _ in whole[::3]] == ["night-3", "night-2", "night-1", "undated"]
    for limit in range(1, 12):
        assert found(name, columns=("run", "size_bytes"), limit=limit) == whole[:limit]


def test_a_limit_counts_the_records_of_nodes_without_newer_runs_that_have_no_host(name: str, tmp_path: Path) -> None:
    imported = run(tmp_path / "imported", [make_row(8)], started_utc="2026-11-30T02:00:00.000Z")
    added(name, imported, night(tmp_path, 1, hosts=("a", "b")))
    whole = found(name, columns=("node", "run"))
    assert [run for _, run in whole] == 6 * ["night-1"]
    for limit in range(1, 7):
        assert len(found(name, columns=("node", "run"), limit=limit)) == limit


def test_more_cases_than_a_list_has_are_found_by_a_join(name: str, tmp_path: Path) -> None:
    added(name, run(tmp_path / "many", [make_row(8 * number) for number in range(1, 500)]))
    assert len(found(name, operations=("allreduce",))) == 499


STARTED = datetime(2026, 11, 1, 2, 0, tzinfo=UTC)


def event(at_s: float, hosts: Any) -> dict[str, Any]:
    return {"kind": "telemetry", "case": 0, "utc": (STARTED + timedelta(seconds=at_s)).isoformat(), "hosts": hosts}


def sample(mhz: float, *slowed_by: str, watts: float = 500.0, celsius: float = 60.0) -> dict[str, Any]:
    return {"monotonic_s": 7.0, "gpus": {"g0": {"sm_mhz": mhz, "power_w": watts, "temperature_c": celsius, "slowed_by": list(slowed_by)}}}


def test_the_samples_of_a_case_are_summarized(tmp_path: Path) -> None:
    samples = [sample(1900), sample(1400, "heat", watts=700.0), sample(1800, celsius=71.0), sample(1700)]
    folder = run_folder(tmp_path / "run", [make_row()], STARTED, (event(9.0, {"a": samples, "b": samples[:1]}),), hosts=["a", "b"])
    database = open_store(str(tmp_path / "runs.db"), write=True)
    for _ in range(2):  # a changed run is read again, and replaces what was there
        assert not sync(Writer(database), [tmp_path]).refused
        found = database.rows(text("SELECT node, gpu, ended_s, samples, sm_mhz, power_w, temperature_c, throttled FROM telemetry_history"))
        ended_s = STARTED.timestamp() + 9
        assert sorted(found) == [("a", "g0", ended_s, 4, 1750.0, 700.0, 71.0, 0.25), ("b", "g0", ended_s, 1, 1900.0, 500.0, 60.0, 0.0)]
        run = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(run | {"note": "changed"}))
    database.close()


@settings(max_examples=25)
@given(
    st.recursive(
        st.none() | st.booleans() | st.sampled_from([0, -1, 7, 1.5, 1e99, 2**70, "", "a\0b", "2026-11-21", float("nan")]),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["monotonic_s", "gpus", "a", "sm_mhz", "g\0"]), inner, max_size=3)
        ),
        max_leaves=10,
    )
)
def test_what_is_not_telemetry_is_left_out(tmp_path_factory: Any, hosts: Any) -> None:
    folder = tmp_path_factory.mktemp("run")
    run_folder(folder / "run", [], STARTED, (event(1.0, hosts), {"kind": "telemetry", "utc": hosts, "hosts": {"a": [sample(1)]}}))
    for _, columns, host in read_folder(folder / "run").parts:
        assert "\0" not in host and "\0" not in columns["gpu"]
        assert all(columns[name] is None or abs(columns[name]) <= 1e6 for name in ("sm_mhz", "power_w", "temperature_c"))


def figures_of(row: Row, started_s: float | None = 100.0) -> tuple[Any, ...]:
    figures = result_of(row, started_s).figures
    return figures["ended_s"], figures["stolen"], figures["preempted"]


dataset = pytest.importorskip("pyarrow.dataset", reason="pyarrow is not installed")


def test_the_files_have_all_or_the_selected_results_by_month_and_operation(name: str, tmp_path: Path) -> None:
    december = run(tmp_path / "december", [make_row(8, operation="alltoall/x")], started_utc="2026-12-31T23:59:59.000Z")
    undated = run(tmp_path / "undated", [make_row(8)], started_utc="never")
    added(name, night(tmp_path, 1), night(tmp_path, 30), december, undated)
    database, out = open_store(name), tmp_path / "lake"
    found = export(database, out)
    assert (found.results, found.files) == (8, 3)
    places = {str(path.relative_to(out)) for path in out.rglob("*.parquet")}
    assert places == {
        "month=2026-11/operation=allreduce/part-0.parquet",
        "month=2026-12/operation=alltoall%2Fx/part-0.parquet",
        "month=unknown/operation=allreduce/part-0.parquet",
    }
    table = dataset.dataset(out, format="parquet").to_table()
    columns = ("run", "size_bytes", "time_p50_s", "busbw_bytes_per_s", "quality", "redop", "root")
    rows = sorted(tuple(row[name] for name in columns) for row in table.to_pylist())
    assert rows == sorted(records(database, Query(columns=columns)))
    assert export(database, tmp_path / "selected", RunSelection(nodes=("node1",))).results == 6
    assert table.schema.field("busbw_bytes_per_s").metadata[b"about"].startswith(b"Bus bandwidth: algbw times a factor of the operation")


def test_exports_need_an_empty_folder_and_pyarrow_and_may_have_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = str(tmp_path / "runs.db")
    open_store(name, write=True).close()
    assert export(open_store(name), tmp_path / "lake").files == 0
    added(name, night(tmp_path / "second" / "runs", 1))
    with pytest.raises(UsageError, match="not an empty folder"):
        export(open_store(name), tmp_path / "second")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"install collbench\[pandas\]"):
        export(open_store(name), tmp_path / "third" / "lake")
