"""The table, CSV and JSON of block transfers."""

import csv
import io
import json
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collbench.plugins.kv import FILE
from collbench.plugins.kv.page import most_bytes, section
from collbench.plugins.kv.records import CASE, CostsInconclusive, KvRow, TransferCosts, costs_of, is_known, series_of
from collbench.plugins.kv.text import BLOCK_TRANSFERS, remarks
from collbench.report.forms import FORMATS, write
from collbench.report.html.first_screen import first_screen
from collbench.report.material import Material
from collbench.report.runs import report_run
from collbench.results.estimate import Estimate
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from tests.results.rows import make_row

ROW = KvRow(
    method="mpi-type", backend="mpi", pattern="prefill-decode", layout="plain", sources=1, targets=1, blocks=64, block_bytes=4096,
    busiest=64, size_bytes=262144, nodes=2, n=60, time_s=Estimate(5e-5, 4e-5, 6e-5),
    expected_s=2.5e-5, limited_by="eth0 on n1 (sysfs)", prefill_s=1.5e-4, checked=1, wrong=0,
)  # fmt: skip


def written(format: str, *rows: KvRow) -> str:
    out = StringIO()
    write(BLOCK_TRANSFERS, rows, format, out, color=False, run="r")
    return out.getvalue()


def test_figures_follow_from_the_time_in_csv_and_json() -> None:
    (line,) = csv.DictReader(StringIO(written("csv", ROW)))
    assert float(line["bytes_per_s"]) == pytest.approx(262144 / 5e-5) and float(line["s_per_block"]) == pytest.approx(5e-5 / 64)
    assert float(line["percent_of_link"]) == pytest.approx(50) and float(line["first_token_percent"]) == pytest.approx(25)
    assert BLOCK_TRANSFERS.decoded(json.loads(written("json", ROW))) == ROW
    row = ROW.replace(time_s=Estimate(1e-3), expected_s=5e-4)
    shown, kept = json.loads(written("json", row)), row.as_json()
    assert {name for name in shown if name not in kept} == {"bytes_per_s", "s_per_block", "percent_of_link", "first_token_percent"}
    assert shown["percent_of_link"] == 50 and shown["bytes_per_s"] == row.size_bytes * 1000


@pytest.mark.parametrize("format", FORMATS)
def test_rows_without_figures_are_printed(format: str) -> None:
    row = ROW.replace(na="socket is missing", time_s=Estimate(), n=0, wrong=None, expected_s=None)
    assert "socket is missing" in written(format, ROW, row)


def row_of(**figures: Any) -> KvRow:
    return KvRow(method="packed", backend="mpi", pattern="prefill-decode", layout="plain", sources=1, targets=1, n=60, **figures)


def rows_of(counts: tuple[int, ...], sizes: tuple[int, ...], noise: float = 0.001) -> list[KvRow]:
    """Rows of 20 µs per transfer, 0.5 µs per block and 10 GB/s, each with its error."""
    errors, found = np.random.default_rng(3), []
    for n, size in product(counts, sizes):
        time_s = (20e-6 + 0.5e-6 * n + n * size / 10e9) * (1 + noise * float(errors.standard_normal()))
        half = 2 * noise * time_s
        times = Estimate(time_s, time_s - half, time_s + half)
        found.append(row_of(blocks=n, block_bytes=size, busiest=n, size_bytes=n * size, time_s=times))
    return found


def test_rows_are_stored_and_read_in_series() -> None:
    (row,) = rows_of((8,), (4096,))
    model = row.replace(model="m", cache_dtype="fp8", block_tokens=16, layout="block-first")
    changes: list[dict[str, Any]] = [
        {"method": "writev"}, {"pattern": "broadcast"}, {"sources": 2}, {"targets": 2}, {"block_bytes": 8192}, {"model": "n"},
        {"cache_dtype": "bf16"}, {"block_tokens": 32}, {"layout": "layer-first"},
    ]  # fmt: skip
    assert len({series_of(row), series_of(model), *(series_of(model.replace(**change)) for change in changes)}) == 2 + len(changes)
    assert series_of(model.replace(tokens=9, blocks=9, size_bytes=9)) == series_of(model)
    assert BLOCK_TRANSFERS.decoded(row.as_json()) == row
    assert row.bytes_per_s is not None and row.first_token_percent is None and row.percent_of_link is None
    rows = [ROW.replace(method=method, blocks=blocks, busiest=blocks) for method in ("packed", "writev") for blocks in (8, 64)]
    assert sum("packed, writev" in text for text in remarks(rows)) == 1
    assert "mpi-type: rank 1: 1 wrong element" in remarks([ROW.replace(wrong=1, wrong_detail="rank 1: 1 wrong element")])


SLOW = ROW.replace(method="packed", time_s=Estimate(1e-4, 9e-5, 1.1e-4), copy_s=2e-5)
SMALL = ROW.replace(blocks=8, busiest=8, size_bytes=8 * 4096, time_s=Estimate(1e-6))
MISSING = ROW.replace(method="nixl", backend="nixl", na="nixl-cu13 is not installed", time_s=Estimate(), n=0, wrong=None, limited_by="")


def stored(path: Path, *rows: KvRow) -> Path:
    folder = RunFolder.create(path, "kv", {"kv": {"rows": len(rows)}})
    for row in rows:
        if row.na is None:
            folder.append(
                make_row(row.size_bytes, operation=CASE, backend=row.backend, dtype="uint8", redop=None, traffic=series_of(row)), {}
            )
        folder.append_record(row.as_json(), FILE)
    folder.finish(exit_code=0)
    return path


def material(tmp_path: Path, *rows: KvRow) -> Material:
    return Material([read_run(stored(tmp_path / "run", *rows))], tmp_path / "page.html")


def test_the_section_has_all_rows_and_a_chart_of_the_most_bytes(tmp_path: Path) -> None:
    found = section(material(tmp_path, SLOW, SMALL, ROW, MISSING))
    assert found is not None
    ((_, table),) = found.tables
    assert len(table.rows) == 4
    (chart,) = found.charts
    assert chart.table is not None and [line[0] for line in chart.table.rows] == ["mpi-type", "packed"]
    assert "eth0 on n1 (sysfs)" in " ".join(found.texts)


def test_the_first_screen_names_the_fastest_method_or_all_whose_intervals_overlap(tmp_path: Path) -> None:
    screen = first_screen(material(tmp_path, SLOW, ROW, MISSING))
    assert screen is not None and screen.badge == ("plain", "MEASURED") and "mpi-type is the fastest" in screen.title
    assert [figure.value for figure in screen.figures] == ["5.24 GB/s", "50 %", "25 %"]
    time = ROW.time_s
    assert time.value is not None and time.high is not None
    near = ROW.replace(method="mpi-put", time_s=Estimate(time.high * 1.1, time.high, time.high * 1.2))
    apart = near.replace(time_s=Estimate(time.high * 1.1, time.high * 1.01, time.high * 1.2))
    for other, equal in ((near, True), (apart, False)):
        screen = first_screen(material(tmp_path / str(equal), ROW, other))
        assert screen is not None
        assert ("mpi-type and mpi-put are the fastest" in screen.title) is equal
        assert ("mpi-type is the fastest" in screen.title) is not equal


def test_wrong_and_missing_rows_are_on_the_first_screen(tmp_path: Path) -> None:
    screen = first_screen(material(tmp_path, ROW.replace(wrong=1, wrong_detail="rank 1: 1 wrong element")))
    assert screen is not None and screen.badge == ("bad", "WRONG DATA")
    found = material(tmp_path / "second", MISSING)
    screen = first_screen(found)
    assert screen is not None and "nixl-cu13 is not installed" in screen.title
    assert [each.sentence() for each in found.concerns] == ["nixl-cu13 is not installed (kv by nixl)"]


def test_costs_are_found_unless_rows_cannot_separate_them_and_impossible_rates_are_not_drawn() -> None:
    assert most_bytes([ROW.replace(time_s=Estimate(1e-300))]) == []
    (costs,) = costs_of(rows_of((8, 64, 512), (4096, 32768)))
    assert isinstance(costs, TransferCosts)
    for cost, true in ((costs.transfer_s, 20e-6), (costs.block_s, 0.5e-6), (costs.byte_s, 1e-10)):
        assert is_known(cost) and cost.low is not None and cost.high is not None and cost.low <= true <= cost.high
    (costs,) = costs_of(rows_of((8, 64, 512), (4096, 32768), noise=0.3))
    assert isinstance(costs, TransferCosts) and not is_known(costs.block_s)
    assert costs_of(rows_of((8, 64, 512, 4096), (4096,))) == [CostsInconclusive("packed", "grid")]
    assert costs_of(rows_of((8, 64), (4096, 32768))[:3]) == [CostsInconclusive("packed", "points")]
    assert costs_of(rows_of((8,), (4096,))) == []
    rows = [row.replace(wrong=3) for row in rows_of((8, 64), (4096, 32768))]
    assert costs_of(rows) == []


def test_markdown_and_openmetrics_have_the_cases(tmp_path: Path) -> None:
    run, err = stored(tmp_path / "run", ROW, SLOW), io.StringIO()
    markdown, metrics = tmp_path / "a.md", tmp_path / "a.om"
    assert report_run([run], None, "table", io.StringIO(), markdown=markdown, openmetrics=metrics, err=err) == 0
    assert "lack" not in err.getvalue()
    for text in (markdown.read_text(), metrics.read_text()):
        assert series_of(ROW) in text and series_of(SLOW) in text
