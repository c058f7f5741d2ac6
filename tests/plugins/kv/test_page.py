"""The section of block transfers, the first screen, and their cases in Markdown and OpenMetrics."""

import io
from pathlib import Path

from collbench.plugins.kv import FILE
from collbench.plugins.kv.page import most_bytes, section
from collbench.plugins.kv.records import CASE, KvRow, series_of
from collbench.report.html.first_screen import first_screen
from collbench.report.material import Material
from collbench.report.runs import report_run
from collbench.results.estimate import Estimate
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from tests.plugins.kv.test_text import ROW
from tests.results.rows import make_row

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


def test_the_first_screen_names_the_fastest_method(tmp_path: Path) -> None:
    screen = first_screen(material(tmp_path, SLOW, ROW, MISSING))
    assert screen is not None and screen.badge == ("plain", "MEASURED") and "mpi-type is the fastest" in screen.title
    assert [figure.value for figure in screen.figures] == ["5.24 GB/s", "50 %", "25 %"]


def test_methods_whose_intervals_overlap_are_equally_fast(tmp_path: Path) -> None:
    time = ROW.time_s
    assert time.value is not None and time.high is not None
    near = ROW.replace(method="mpi-put", time_s=Estimate(time.high * 1.1, time.high, time.high * 1.2))
    apart = near.replace(time_s=Estimate(time.high * 1.1, time.high * 1.01, time.high * 1.2))
    for other, equal in ((near, True), (apart, False)):
        screen = first_screen(material(tmp_path / str(equal), ROW, other))
        assert screen is not None
        assert ("mpi-type and mpi-put are the fastest" in screen.title) is equal
        assert ("mpi-type is the fastest" in screen.title) is not equal


def test_wrong_data_is_on_the_first_screen(tmp_path: Path) -> None:
    screen = first_screen(material(tmp_path, ROW.replace(wrong=1, wrong_detail="rank 1: 1 wrong element")))
    assert screen is not None and screen.badge == ("bad", "WRONG DATA")


def test_a_run_without_a_measured_row_has_a_page_with_the_reason(tmp_path: Path) -> None:
    found = material(tmp_path, MISSING)
    screen = first_screen(found)
    assert screen is not None and "nixl-cu13 is not installed" in screen.title
    assert [each.sentence() for each in found.concerns] == ["nixl-cu13 is not installed (kv by nixl)"]


def test_rates_that_no_machine_has_are_not_drawn() -> None:
    assert most_bytes([ROW.replace(time_s=Estimate(1e-300))]) == []


def test_markdown_and_openmetrics_have_the_cases(tmp_path: Path) -> None:
    run, err = stored(tmp_path / "run", ROW, SLOW), io.StringIO()
    markdown, metrics = tmp_path / "a.md", tmp_path / "a.om"
    assert report_run([run], None, "table", io.StringIO(), markdown=markdown, openmetrics=metrics, err=err) == 0
    assert "lack" not in err.getvalue()
    for text in (markdown.read_text(), metrics.read_text()):
        assert series_of(ROW) in text and series_of(SLOW) in text
