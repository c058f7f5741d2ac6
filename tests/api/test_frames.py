"""DataFrames of stored runs: the figures of the rows, SI units, types that do not depend on the values, descriptions, Parquet."""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collbench
from collbench.results.folder import RunFolder
from tests.cli.command import ROOT
from tests.conftest import needs_plugin
from tests.report.golden import report_of
from tests.results.rows import make_row, not_measured, store
from tests.stored import stored_reports

pandas = pytest.importorskip("pandas", reason="no pandas here: pip install 'collbench[pandas]'")
REPORTS = ROOT / "reports"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a measured case and one that could not be measured."""
    rows = [make_row(1 << 20, flags=("imported", "drift"), evidence={"a": [1]}), not_measured("no bfloat16", size_bytes=2 << 20)]
    return store(tmp_path / "run", rows, allocation_id="night", collbench="1.2")


def test_a_row_per_case_in_si_units(run: Path) -> None:
    frame = collbench.read(run).frame()
    first, second = (frame.iloc[index] for index in range(2))
    assert (first["run"], first["path"], first["allocation"], first["collbench"]) == ("run", str(run), "night", "1.2")
    assert (first["size_bytes"], first["time_p50_s"], first["busbw_bytes_per_s"], first["ranks"]) == (1 << 20, 2.399e-3, 42e9, 4)
    assert (first["flags"], first["evidence"], first["quality"]) == (("imported", "drift"), {"a": [1]}, "noisy")
    assert second["na"] == "no bfloat16" and pandas.isna(second["time_p50_s"]) and pandas.isna(second["wrong"])
    assert first["started_utc"].tzinfo is not None and abs((pandas.Timestamp.now("UTC") - first["started_utc"]).total_seconds()) < 3600


def test_rows_are_ordered_as_the_report_prints_them(tmp_path: Path) -> None:
    sizes = (1 << 20, 8, 4096)
    measured = [make_row(size, backend=backend) for size in sizes for backend in ("mpi", "gloo")]
    runs = collbench.read(store(tmp_path / "run", measured))
    frame = runs.frame(["backend", "size_bytes"])
    shown = list(zip(frame["backend"], frame["size_bytes"], strict=True))
    assert shown == [(backend, size) for backend in ("gloo", "mpi") for size in (8, 4096, 1 << 20)]
    assert [row.size_bytes for row in runs.rows] == [row.size_bytes for row in measured]  # in measuring order, as events are


def test_samples_name_the_row_of_the_run() -> None:
    runs = collbench.read(REPORTS / "first-run")
    samples = runs.samples()
    assert list(samples["size_bytes"].loc[samples["backend"] == "mpi"].drop_duplicates()) == sorted(
        {row.size_bytes for row in runs.rows if row.backend == "mpi" and "max_s" in row.samples}
    )
    for _, first in samples.groupby("row").first().reset_index().iterrows():
        row = runs.rows[int(first["row"])]
        assert (row.backend, row.size_bytes) == (first["backend"], first["size_bytes"])


def test_the_columns_are_those_of_csv(run: Path) -> None:
    records = csv.DictReader(io.StringIO(report_of(run, file=Path("-"))[0], newline=""))
    texts = next(record for record in records if record["size_bytes"] == str(1 << 20))
    frame, header = collbench.read(run).frame(), list(texts)
    assert [name for name in frame.columns if name in header] == header
    assert set(frame.columns) - set(header) == {"path", "started_utc", "allocation", "collbench"}
    for name in ("time_p50_s", "ceiling_bytes_per_s", "busbw_bytes_per_s"):
        assert float(texts[name]) == frame[name].iloc[0]


def test_types_do_not_depend_on_the_values(run: Path, tmp_path: Path) -> None:
    whole = collbench.read(run).frame()
    empty = collbench.read(store(tmp_path / "empty", [])).frame()
    assert (len(empty), list(empty.dtypes)) == (0, list(whole.dtypes))
    assert str(whole["size_bytes"].dtype) == "Int64" and str(whole["time_p50_s"].dtype) == "float64"


PLUGIN_TABLES = {"pairs": "hunt", "hunts": "hunt", "workloads": "training", "loads": "load", "kv": "kv"}


def of_plugin(table: str, *before: str) -> Any:
    """Return the parameter for a table, after others; skipped where its plug-in is absent."""
    return pytest.param(*before, table, marks=needs_plugin(PLUGIN_TABLES[table]))


@pytest.mark.parametrize("table", ["frame", "samples", *map(of_plugin, PLUGIN_TABLES)])
def test_each_column_is_described_with_its_unit(table: str) -> None:
    frame = getattr(collbench.read(REPORTS / "first-run"), table)()
    about = frame.attrs["columns"]
    assert list(about) == list(frame.columns)
    assert not [name for name, text in about.items() if not text.partition("Unit:")[0].strip()]
    assert len({*about.values()}) == len(about), "two columns have the same description"
    assert all("Unit: seconds" in text for name, text in about.items() if name.endswith("_s") and not name.endswith("per_s"))
    json.dumps(frame.attrs)


def test_columns_can_be_selected_and_unknown_ones_are_one_sentence(run: Path) -> None:
    runs = collbench.read(run)
    frame = runs.frame(["size_bytes", "time_p50_s"])
    assert list(frame.columns) == list(frame.attrs["columns"]) == ["size_bytes", "time_p50_s"]
    with pytest.raises(collbench.UsageError, match=r"^unknown column 'busbw': did you mean .*busbw_bytes_per_s"):
        runs.frame(["busbw"])


def test_launches_are_combined_with_intervals_over_them() -> None:
    runs = collbench.read(REPORTS / "regression")
    each, combined = runs.frame(), runs.frame(combine=True)
    assert (len(each), len(combined)) == (80, 16)
    assert set(combined["launches"]) == {5} and set(combined["run"]) == {"before", "after"}
    case = combined.iloc[0]
    same = each[
        (each["path"].str.contains(f"/{case['run']}/")) & (each["size_bytes"] == case["size_bytes"]) & (each["backend"] == case["backend"])
    ]
    assert case["time_p50_s"] == pytest.approx(same["time_p50_s"].median())


def test_samples_are_those_of_the_rows_or_one_sentence(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "allreduce", {})
    folder.append(make_row(8), {"max_s": np.array([1e-3, 2e-3]), "slowest_rank": np.array([0, 1], np.int32)})
    folder.append(make_row(16), {})
    folder.finish(exit_code=0)
    frame = collbench.read(tmp_path / "run").samples()
    assert frame[["row", "size_bytes", "sample", "time_s", "slowest_rank"]].to_numpy().tolist() == [[0, 8, 0, 1e-3, 0], [0, 8, 1, 2e-3, 1]]
    assert frame["mean_s"].isna().all()
    stored = collbench.read(REPORTS / "first-run")
    means = stored.samples().groupby("row")["time_s"].median()
    assert means.to_dict() == pytest.approx({index: row.time_s.p50 for index, row in enumerate(stored[0].rows) if row.time_s}, rel=0.02)
    folder = RunFolder.create(tmp_path / "cut", "allreduce", {})
    folder.append(make_row(8), {"max_s": np.array([1e-3, 2e-3])})
    folder.finish(exit_code=0)
    (tmp_path / "cut/samples.bin").write_bytes(b"")
    with pytest.raises(collbench.UsageError, match=r"samples\.bin"):
        collbench.read(tmp_path / "cut").samples()


@needs_plugin("hunt")
@needs_plugin("training")
def test_pairs_hunts_and_workloads() -> None:
    pairs = collbench.read(stored_reports() / "pairs-trials/pair-0").pairs()
    places = sorted(set(pairs["sender"]))
    assert len(pairs) == len(places) * (len(places) - 1) and (pairs["bandwidth_bytes_per_s"] > 0).all()
    hunts = collbench.read(REPORTS / "hunt-host").hunts()
    assert hunts["state"].iloc[0] == "confirmed" and hunts["ratio"].iloc[0] < 0.9
    workloads = collbench.read(REPORTS / "training").workloads()
    assert len(workloads) == len((REPORTS / "training/workload.jsonl").read_text().splitlines())
    assert workloads["time_p50_s"].notna().any() and set(workloads["regime"]) >= {"data-parallel"}
    others = collbench.read(REPORTS / "first-run")
    assert [len(table()) for table in (others.pairs, others.hunts, others.workloads)] == [0, 0, 0]


def test_an_arrow_table_and_a_parquet_file_keep_types_and_descriptions(run: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="no pyarrow here: pip install 'collbench[pandas]'")
    runs = collbench.read(run)
    table = runs.to_arrow()
    assert table.num_rows == 2 and table.schema.field("time_p50_s").metadata[b"description"].endswith(b"Unit: seconds.")
    assert table["flags"].to_pylist() == ['["imported","drift"]', None] and table["evidence"].to_pylist()[0] == '{"a":[1]}'
    assert runs.to_parquet(tmp_path / "rows.parquet") == tmp_path / "rows.parquet"
    assert {path.name for path in tmp_path.iterdir()} == {"run", "rows.parquet"}
    read = parquet.read_table(tmp_path / "rows.parquet")
    assert read.equals(table) and read["time_p50_s"].to_pylist() == [2.399e-3, None]
    empty = collbench.read(store(tmp_path / "empty", [])).to_arrow()
    assert empty.schema.equals(table.schema)
    with pytest.raises(collbench.UsageError, match="cannot be written"):
        runs.to_parquet(tmp_path / "missing/rows.parquet")


def test_all_stored_runs_of_the_repository_become_tables() -> None:
    runs = collbench.read(REPORTS)
    frame = runs.frame()
    assert len(frame) == len(runs.rows) and frame["time_p50_s"].notna().sum() == sum(row.time_s is not None for row in runs.rows)
    assert collbench.api.frames.to_arrow(frame).num_rows == len(frame)


@pytest.mark.parametrize("table", [of_plugin("pairs"), of_plugin("hunts"), of_plugin("workloads")])
def test_all_stored_runs_of_plug_ins_become_tables(table: str) -> None:
    assert len(getattr(collbench.read(REPORTS), table)())


def test_strange_values_of_stored_runs_are_values_or_unknown(tmp_path: Path) -> None:
    # a hostile date and the largest integers are values
    path = store(tmp_path / "run", [make_row(2**63 - 1, wrong=2**62)], started_utc="9999-99-99T\x1b[2J", allocation_id=7)
    frame = collbench.read(path).frame()
    assert frame["size_bytes"].iloc[0] == 2**63 - 1 and frame["started_utc"].isna().all() and frame["allocation"].isna().all()
    # nested values of another type are unknown
    groups = {"count": "many", "ranks": True, "p50_s": "long", "total_busbw_bytes_per_s": [1]}
    frame = collbench.read(store(tmp_path / "groups", [make_row(8, groups=groups)])).frame()
    assert frame[["groups_count", "groups_ranks", "groups_total_busbw_bytes_per_s"]].isna().all(axis=None)
    assert frame["groups_p50_s"].to_list() == ["long"]


@pytest.mark.parametrize(("name", "file", "table"), [
    of_plugin("pairs", "pairs-trials/host-0", "pairs"), of_plugin("hunts", "hunt-host", "hunt"),
    of_plugin("workloads", "training", "workload"),
])  # fmt: skip
def test_damaged_records_are_errors_unless_they_are_allowed(name: str, file: str, table: str, tmp_path: Path) -> None:
    copy = tmp_path / file
    shutil.copytree(REPORTS / name, copy)
    with (copy / f"{file}.jsonl").open("a") as lines:
        lines.write("{}\n")
    with pytest.raises(collbench.UnreadableRun, match=f"{file}.jsonl"):
        getattr(collbench.read(copy), table)()
    allowed = collbench.read(copy, strict=False)
    assert len(getattr(allowed, table)()) and any(f"{file}.jsonl" in text for text in allowed.warnings)


def test_text_that_utf_8_does_not_have_is_replaced(tmp_path: Path) -> None:
    runs = collbench.read(store(tmp_path / "run", [make_row(8, operation="\ud800", flags=("\ud800",))]))
    assert runs.frame()["operation"].to_list() == ["\ufffd"]
    pytest.importorskip("pyarrow", reason="no pyarrow here: pip install 'collbench[pandas]'")
    assert runs.to_arrow()["operation"].to_pylist() == ["\ufffd"]
