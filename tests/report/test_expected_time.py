"""The expected time of a stored run is the same in the terminal, on the page, in Markdown, CSV, JSON and Python."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

import collbench
from collbench.report.blocks import View
from collbench.report.charts import size_charts
from collbench.report.expected_time import rows_frame, series_frame, slow_sizes_sentence
from collbench.report.html.expected_time import section
from collbench.report.html.page import html
from collbench.report.material import Material
from collbench.report.plan import PlanSummary
from collbench.report.writers import TableWriter
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from collbench.results.row import Row
from collbench.units import format_percent, format_size, format_span, format_time
from tests.analysis.test_expected_time import SIZES, G, K, M, racks, series
from tests.conftest import needs_plugin
from tests.report.golden import report_of
from tests.results.rows import make_row, store


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return store(tmp_path / "run", series({64 * K: 1.25, 4 * K: 0.9}))


def test_every_form_has_the_same_expectation(stored: Path) -> None:
    runs = collbench.read(stored)
    of_rows = {row.size_bytes: row.expectation for row in runs.launches[0].rows}
    percent = of_rows[64 * K].percent_of_expected_time
    assert percent == pytest.approx(80)

    frame = runs.frame().set_index("size_bytes")
    of_csv = {int(row["size_bytes"]): row for row in csv.DictReader(io.StringIO(report_of(stored, format="csv")[0]))}
    of_json = {row["size_bytes"]: row["expectation"] for row in map(json.loads, report_of(stored, format="json")[0].splitlines())}
    material = Material(list(runs), stored / "page.html")
    of_page = section(material)
    head, rows = of_page.tables[0][1].head, of_page.tables[0][1].rows
    assert of_page.tables[1][0].startswith("latency α and bandwidth of large messages") and "α µs" in of_page.tables[1][1].head
    on_page = {row[head.index("size")]: dict(zip(head, row, strict=True)) for row in rows}
    (chart,) = size_charts(material)
    points = {point.size_bytes: point for line in chart.lines for point in line.points}
    markdown, _ = report_of(stored, markdown=Path("-"))

    for size, expectation in of_rows.items():
        figures = ("expected_time_s", "percent_of_expected_time", "percent_of_expected_time_low", "percent_of_expected_time_high")
        for name in figures:
            value = getattr(expectation, name)
            assert of_csv[size][name] == ("" if value is None else repr(value))
            assert of_json[size][name] == value
            assert frame[name][size] == pytest.approx(value) if value is not None else frame[name].isna()[size]
        assert of_csv[size]["expected_time_origin"] == of_json[size]["expected_time_origin"] == expectation.expected_time_origin
        assert of_json[size]["origin"]["kind"] == expectation.origin.code
        shown = on_page[format_size(size)]
        assert shown["expected µs"] == format_time(expectation.expected_time_s)
        assert shown["expected time from"] == expectation.expected_time_origin
        assert format_span(expectation.expected_time_s) in points[size].text
        row = next(row for row in runs[0].rows if row.size_bytes == size)
        assert points[size].expected_time == pytest.approx(expectation.expected_time_s * 1e6)
        assert points[size].expected_rate * 1e9 == pytest.approx(row.busbw_bytes_per_s * row.time_s.p50 / expectation.expected_time_s)
        if expectation.percent_of_expected_time is not None:
            assert shown["% of expected time"] == format_percent(expectation.percent_of_expected_time)
            assert shown["% of expected time"] in points[size].text
            assert re.search(rf"\| {format_percent(expectation.percent_of_expected_time)} *\| {expectation.expected_time_origin}", markdown)
    table = report_of(stored)[0]
    assert "expected time of each size" in table
    assert re.search(r"allreduce +gloo +80–111 % +64 KiB +– +64 B–16 MiB of the run", table)
    assert html(material).count("this run&#39;s 64 B and 16 MiB") >= 3


def test_columns_of_the_table_show_it_and_no_run_stores_it(stored: Path) -> None:
    out, _ = report_of(stored, view=View(("expected_time", "percent_of_time", "expected_from"), added=True))
    assert re.search(r"64 KiB .* 80 %  this run's 64 B and 16 MiB", out)
    assert "expectation" not in (stored / "cells.jsonl").read_text()
    rows = [json.loads(line) for line in report_of(stored, format="json")[0].splitlines()]
    copy = stored.parent / "copy"
    folder = RunFolder.create(copy, "allreduce", {})
    folder.finish(exit_code=0)
    (copy / "cells.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    read = read_run(copy)
    assert (len(read.rows), read.warnings) == (len(SIZES), [])
    assert all(row.expectation is None for row in read.rows)


def test_a_run_without_three_sizes_has_no_section(tmp_path: Path) -> None:
    path = store(tmp_path / "run", series(sizes=(64, M)))
    rows = collbench.read(path).launches[0].rows
    assert series_frame(rows) is None and rows_frame(rows) is None
    assert "expected time" not in report_of(path)[0]
    assert "no model: 2 reliable sizes, and 3 are needed" in report_of(path, format="csv")[0]


def test_many_racks_read_as_not_saturated(tmp_path: Path) -> None:
    path = store(tmp_path / "run", racks())
    sentence = "allreduce over nccl: not saturated at 16 GiB, 11.4 MiB per rank: 406 of the 43"
    assert sentence in report_of(path)[0]
    found = section(Material(list(collbench.read(path)), path))
    assert any(text.startswith(sentence) for text in found.texts)


def test_a_measurement_names_its_slowest_size_in_one_line(tmp_path: Path) -> None:
    def end(rows: list[Row]) -> list[str]:
        writer = TableWriter()
        writer.start(PlanSummary.of(rows, run=str(tmp_path)))
        for row in rows:
            writer.row(row)
        return [line.text for line in writer.end() if line.text.startswith("expected time")]

    assert end(series()) == []
    assert end(series({64 * K: 3.0})) == [
        "expected time: allreduce over gloo at 64 KiB reaches 33 % of what this run's other sizes predict"
    ]
    assert end([make_row(size) for size in (K, M)]) == []
    two = [*series({64 * K: 3.0}), *series({M: 2.0}, in_place=True)]
    assert end(two)[0].endswith("(and 1 more row)")
    assert slow_sizes_sentence(racks({G: 400.0})) == []


NCCL_TESTS = """\
lab:3:3 [0] NCCL INFO   Algorithm   |                            Tree                  |                            Ring                  |
lab:3:3 [0] NCCL INFO     Broadcast |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |     9.3/   1.2 |    18.0/   0.0 |    22.4/   2.4 |
# Collective test starting: broadcast_perf
#  Rank  0 Group  0 Pid 3039008 on        lab device  0 [0000:02:00] NVIDIA GeForce RTX 5090
#  Rank  1 Group  0 Pid 3039009 on        lab device  1 [0000:03:00] NVIDIA GeForce RTX 5090
        1024           256     float    none       0    20.00    0.05    0.05       0    55.84    0.02    0.02       0
     1048576        262144     float    none       0   452.58    2.32    2.32       0   499.31    2.10    2.10       0
"""


@needs_plugin("importers")
def test_an_imported_log_with_the_table_of_nccl_has_its_times(tmp_path: Path) -> None:
    file = tmp_path / "nccl.log"
    file.write_text(NCCL_TESTS)
    rows = collbench.read(file).launches[0].rows
    found = {row.size_bytes: row.expectation for row in rows if not row.in_place}
    assert (found[K].expected_time_origin, found[K].expected_time_s) == (
        "NCCL's table in the log (Ring/LL)", pytest.approx(9.3e-6 + K / 1.2e9),
    )  # fmt: skip
    assert found[M].expected_time_origin == "NCCL's table in the log (Ring/Simple)"
    assert found[M].expected_time_s == pytest.approx(22.4e-6 + M / 2.4e9)
    assert found[M].percent_of_expected_time == pytest.approx(100 * (22.4 + M / 2.4e3) / 452.58)
    assert found[M].percent_of_expected_time_low is None
