"""The section of the overlap: a line per case with its exposed time, and why a case is inconclusive."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

from collbench.analysis.concerns import DOUBTFUL
from collbench.plugins.overlap.page import concerns, section
from collbench.plugins.overlap.records import CoresSharedWithProgress, Overlap, OverlapEstimate
from collbench.report.compare import compare_runs
from collbench.report.material import Material
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from collbench.results.row import Row, Times

KNOWN = Overlap(
    10e-6, 11e-6, 15e-6, OverlapEstimate(60.0, 55.0, 65.0), OverlapEstimate(4e-6, 3.9e-6, 4.1e-6), OverlapEstimate(1.2, 1.1, 1.3),
    "waiting", "calls", None, None, 40, "partial",
)  # fmt: skip
ROW = Row(
    "allreduce", "mpi", "mpi", "cpu", "float32", "sum", None, mode="overlap", in_place=False, buffers="fixed", group="all", window=None,
    size_bytes=65536, count=16384, ranks=2, nodes=1, time_s=Times(15e-6, *[15e-6] * 6), overlap=KNOWN.as_json(),
)  # fmt: skip


def material(folder: Path, *rows: Row) -> Material:
    run = RunFolder.create(folder / "run", "allreduce", {})
    for row in rows:
        run.append(row, {})
    run.finish(exit_code=0)
    return Material([read_run(folder / "run")], Path("page.html"))


def test_each_case_is_a_line(tmp_path: Path) -> None:
    found = section(material(tmp_path, ROW, replace(ROW, overlap={}, mode="isolated")))
    assert found is not None and found.key == "overlap"
    ((caption, table),) = found.tables
    assert caption == "each case"
    assert table.rows == [
        ["allreduce 64 KiB", "mpi", "10.00", "11.00", "15.00", "4.000", "60 % (55–65)", "+20 %", "–", "partial, waiting pays"]
    ]


def test_a_run_without_overlap_has_no_section_and_hostile_values_have_no_line(tmp_path: Path) -> None:
    hostile: dict[str, Any] = {"both_s": "<script>"}
    assert section(material(tmp_path, replace(ROW, overlap={}), replace(ROW, overlap=hostile))) is None


def test_what_is_inconclusive_is_a_concern(tmp_path: Path) -> None:
    doubtful = replace(KNOWN, outcome="inconclusive", doubt=CoresSharedWithProgress("node1", 2, 2, 2))
    row = replace(ROW, overlap=doubtful.as_json())
    doubted = material(tmp_path / "doubtful", row)
    (concern,) = concerns(doubted)
    assert concern.severity == DOUBTFUL and list(concerns(material(tmp_path / "known", ROW))) == []
    assert any(each.severity == DOUBTFUL and each.what == concern.what for each in doubted.concerns)


def test_compare_shows_the_exposed_time_of_both_sides(tmp_path: Path) -> None:
    slower = replace(KNOWN, both_s=30e-6, exposed_s=OverlapEstimate(19e-6, 18e-6, 20e-6))
    for name, row in (("a", ROW), ("b", replace(ROW, time_s=Times(30e-6, *[30e-6] * 6), overlap=slower.as_json()))):
        material(tmp_path / name, row)
    out = io.StringIO()
    assert compare_runs(tmp_path / "a" / "run", tmp_path / "b" / "run", "table", out) == 0
    assert "slower" in out.getvalue()
    assert "exposed µs of allreduce 64 KiB on mpi: 4 (3.9–4.1) → 19 (18–20)" in out.getvalue().splitlines()
