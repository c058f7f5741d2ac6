"""Parquet files of a store, read back by pyarrow."""

import sys
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.store.database import open_store
from collbench.plugins.store.export import export
from collbench.plugins.store.query import Query, records
from collbench.plugins.store.reading import RunSelection
from tests.plugins.store.runs import added, night, run
from tests.results.rows import make_row

dataset = pytest.importorskip("pyarrow.dataset", reason="pyarrow is not installed")


def test_the_files_have_all_results_by_month_and_operation(name: str, tmp_path: Path) -> None:
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
    assert table.schema.field("busbw_bytes_per_s").metadata[b"about"].startswith(b"Bus bandwidth: algbw times a factor of the operation")


def test_selected_runs_alone_are_exported(name: str, tmp_path: Path) -> None:
    added(name, night(tmp_path, 1, hosts=["a"]), night(tmp_path, 2, hosts=["b"]))
    assert export(open_store(name), tmp_path / "lake", RunSelection(nodes=("b",))).results == 3


def test_an_empty_store_gives_no_files(tmp_path: Path) -> None:
    name = str(tmp_path / "runs.db")
    open_store(name, write=True).close()
    assert export(open_store(name), tmp_path / "lake").files == 0


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    name = str(tmp_path / "runs.db")
    added(name, night(tmp_path / "runs", 1))
    with pytest.raises(UsageError, match="not an empty folder"):
        export(open_store(name), tmp_path)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = str(tmp_path / "runs.db")
    open_store(name, write=True).close()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"install collbench\[pandas\]"):
        export(open_store(name), tmp_path / "lake")
