"""Rows of interference: stored, read again, and shown as a table, CSV, JSON and a page."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.reason import as_json
from collbench.report.load import load_values, write_load
from collbench.report.runs import report_run
from collbench.results.folder import LOAD
from collbench.results.interference import LoadInconclusive
from collbench.results.load import LoadQuantile, LoadRow, SharedLink, load_from_json
from collbench.results.steps import Estimate
from tests.report.test_kinds import sections

P50 = LoadQuantile(Estimate(1e-5, 0.9e-5, 1.1e-5), Estimate(2e-5, 1.9e-5, 2.1e-5), Estimate(2.0, 1.9, 2.1))
ROW = LoadRow(
    "allreduce", "mpi", "float32", 8, "incast", 4096, 1.0, 4, victims=(0, 2), others=(1, 3), blocks=8, n_off=800, n_on=400,
    quantiles={"p50": P50, "p99": LoadQuantile(), "p99_9": LoadQuantile()}, achieved=0.9, rate_bytes_per_s=6e6, full_bytes_per_s=7e6,
    shared=(SharedLink("host", "n1", "NIC eth0", 12e6),), verdict="interference", checked=1, wrong=0,
)  # fmt: skip
CONTROL = replace(ROW, level=0.0, verdict="inconclusive", reason=as_json(LoadInconclusive("wide", 8, 0.9, 1.2)))


def shown(*rows: LoadRow, format: str) -> str:
    out = io.StringIO()
    write_load(rows, format, out, color=False, run="a")
    return out.getvalue()


def stored(folder: Path, *rows: LoadRow) -> Path:
    folder.mkdir()
    head: dict[str, Any] = {
        "schema": 1,
        "id": folder.name,
        "operation": "load",
        "load": {"rows": len(rows)},
        "started_utc": "2026-01-01T00:00:00Z",
    }
    (folder / "run.json").write_text(json.dumps(head))
    (folder / LOAD).write_text("".join(f"{json.dumps(row.as_json())}\n" for row in rows))
    return folder


def test_a_row_is_the_same_when_it_is_read_again() -> None:
    assert load_from_json(json.loads(json.dumps(CONTROL.as_json()))) == CONTROL
    assert load_from_json(json.loads(shown(ROW, format="json"))) == ROW
    assert ROW.percent_of_link == pytest.approx(50)


@pytest.mark.parametrize(("key", "value"), [("verdict", "perhaps"), ("level", "high"), ("quantiles", {"p50": {"factor": {"low": -1}}})])
def test_a_row_that_does_not_fit_is_rejected(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=key):
        load_from_json(ROW.as_json() | {key: value})


def test_csv_has_the_figures_with_their_intervals() -> None:
    (found,) = csv.DictReader(io.StringIO(shown(ROW, format="csv")))
    assert (float(found["p50_factor"]), float(found["p50_factor_low"]), float(found["p50_off_s"])) == (2.0, 1.9, 1e-5)
    assert (found["p99_factor"], found["verdict"], found["run"]) == ("", "interference", "a")
    assert list(load_values(ROW)) == list(load_values(LoadRow("", "", "", 0, "", 0, 0.0, 0, na="why")))


def test_a_table_has_each_row_and_the_shared_link() -> None:
    found = shown(CONTROL, ROW, format="table")
    assert "2 (1.9–2.1)×" in found and "NIC eth0 on n1" in found and "0 % (control)" in found


def test_a_stored_run_is_reported_as_table_and_page(tmp_path: Path) -> None:
    run, out = stored(tmp_path / "run", CONTROL, ROW), io.StringIO()
    assert report_run([run], None, "table", out, html=tmp_path / "page.html", err=io.StringIO()) == 0
    assert "2 (1.9–2.1)×" in out.getvalue()
    found = sections(tmp_path / "page.html")
    assert "interference" in found["load"] and f"{LOAD} (" in found["provenance"]
