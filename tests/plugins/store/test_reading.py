"""Runs rebuilt from a store, and queries of it, equal those of the folders."""

import json
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from collbench.analysis.differences import facts
from collbench.errors import UsageError
from collbench.gating.allocation import allocations_in, allocations_of
from collbench.plugins.store.database import open_store
from collbench.plugins.store.query import RESULTS, SUBJECTS, Condition, Query, check_column, parse_condition, records, size_condition
from collbench.plugins.store.reading import RunSelection, load_runs, newest_launches, select_runs
from collbench.results.quality import quality_of
from collbench.results.reader import read_run
from collbench.results.row import Row
from tests.cli.command import ROOT
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


_KEPT = [each.name for each in fields(Row) if each.name not in ONLY_IN_THE_FOLDER | {"canary_s", "hard_bound"}]


def _ceiling(row: Row) -> list[object]:
    kept = ("kind", "bytes_per_s", "limited_by", "model", "source", "limited_by_parts")
    return [each and [getattr(each, name) for name in kept] for each in (row.ceiling, row.hard_bound)]


def test_allocations_of_a_store_are_those_of_the_folders(name: str) -> None:
    folder = REPORTS / "regression" / "before"
    added(name, folder)
    database = open_store(name)
    assert allocations_of(load_runs(database, select_runs(database, RunSelection()))) == allocations_in([folder])


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
    for unknown in ({"names": ("night-9",)}, {"nodes": ("c",)}, {"names": ("night-1",), "nodes": ("c",)}):
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


@pytest.mark.parametrize(
    ("condition", "number"),
    [
        ("dtype=float32", 7), ("dtype!=float32", 0), ("size_bytes>=64K", 4), ("size_bytes<64K", 3), ("busbw_bytes_per_s < 3e10", 3),
        ("na=", 6), ("na!=", 1), ("root=", 7), ("root!=1", 7), ("node=b", 4), ("in_place=0", 7),
    ],
)  # fmt: skip
def test_conditions(nights: str, condition: str, number: int) -> None:
    assert len(found(nights, conditions=(parse_condition(condition, RESULTS),))) == number


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
def test_every_column_can_be_queried(nights: str, subject: object) -> None:
    assert isinstance(subject, type(RESULTS))
    assert set(subject.shown) <= set(subject.columns)
    assert all(column.doc for column in subject.columns.values())
    found(nights, subject=subject, columns=tuple(subject.columns))


def test_conditions_and_columns_as_typed() -> None:
    assert parse_condition(" size_bytes >= 64K", RESULTS) == Condition("size_bytes", ">=", 65536)
    assert parse_condition("operation=a=b", RESULTS) == Condition("operation", "=", "a=b")
    assert parse_condition("redop=", RESULTS) == Condition("redop", "=", None)
    assert parse_condition("ranks!=4", RESULTS) == Condition("ranks", "!=", 4)
    with pytest.raises(UsageError, match=r"^unknown column 'bus_bw_bytes_per_s' of results: did you mean busbw_bytes_per_s\?$"):
        check_column("bus_bw_bytes_per_s", RESULTS)


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


def test_a_limit_gives_the_newest_results_in_the_order_of_all(name: str, tmp_path: Path) -> None:
    undated = run(tmp_path / "undated", [make_row(8)], started_utc="never")
    added(name, undated, *(night(tmp_path, number) for number in (3, 1, 2)))
    whole = found(name, columns=("run", "size_bytes"))
    assert [run for run, _ in whole[::3]] == ["night-3", "night-2", "night-1", "undated"]
    for limit in range(1, 12):
        assert found(name, columns=("run", "size_bytes"), limit=limit) == whole[:limit]


def test_more_cases_than_a_list_has_are_found_by_a_join(name: str, tmp_path: Path) -> None:
    added(name, run(tmp_path / "many", [make_row(8 * number) for number in range(1, 500)]))
    assert len(found(name, operations=("allreduce",))) == 499


def test_a_gone_folder_stays_in_the_store(name: str, tmp_path: Path) -> None:
    folder = night(tmp_path, 1)
    added(name, folder)
    shutil.rmtree(folder)
    database = open_store(name)
    (rebuilt,) = load_runs(database, select_runs(database, RunSelection()))
    assert (rebuilt.is_there, len(rebuilt.rows)) == (False, 3)
    assert json.dumps(rebuilt.rows[0].as_json())
