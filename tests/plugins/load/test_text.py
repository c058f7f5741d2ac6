"""Rows of interference: stored, read again, and shown as a table, CSV, JSON and a page."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import collbench
from collbench.errors import RunFailed
from collbench.measuring.session import Plan
from collbench.plugins.load import FILE
from collbench.plugins.load.interference import LoadInconclusive
from collbench.plugins.load.page import section
from collbench.plugins.load.progress import LoadProgressPrinter
from collbench.plugins.load.records import LoadQuantile, LoadRow, SharedLink
from collbench.plugins.load.text import INTERFERENCE, LoadWriter, remarks
from collbench.reason import as_json
from collbench.report.forms import FORMATS, write
from collbench.report.html.first_screen import first_screen
from collbench.report.material import Material
from collbench.report.progress import Output
from collbench.report.runs import report_run
from collbench.results.estimate import Estimate
from collbench.results.reader import read_run
from tests.cli.command import ROOT
from tests.plugins.hunt.test_kinds import sections
from tests.plugins.load.loads import PLAN, load_run, simulated_row

P50 = LoadQuantile(Estimate(1e-5, 0.9e-5, 1.1e-5), Estimate(2e-5, 1.9e-5, 2.1e-5), Estimate(2.0, 1.9, 2.1))
ROW = LoadRow(
    victim="allreduce", backend="mpi", dtype="float32", size_bytes=8, aggressors="incast", message_bytes=4096, level=1.0, nodes=4,
    victims=(0, 2), others=(1, 3), blocks=8, n_off=800, n_on=400,
    quantiles={"p50": P50, "p99": LoadQuantile(), "p99_9": LoadQuantile()}, achieved=0.9, rate_bytes_per_s=6e6, full_bytes_per_s=7e6,
    shared=(SharedLink("host", "n1", "NIC eth0", 12e6),), verdict="interference", checked=1, wrong=0,
)  # fmt: skip
CONTROL = ROW.replace(level=0.0, verdict="inconclusive", reason=as_json(LoadInconclusive("wide", 8, 0.9, 1.2)))


class Pipe(io.StringIO):
    """A pipe: `passed` is what a reader has, which is what was flushed."""

    passed = ""

    def flush(self) -> None:
        self.passed = self.getvalue()


def shown(*rows: LoadRow, format: str) -> str:
    out = io.StringIO()
    write(INTERFERENCE, rows, format, out, color=False, run="a")
    return out.getvalue()


def stored(folder: Path, *rows: LoadRow) -> Path:
    folder.mkdir()
    head: dict[str, Any] = {
        "schema": 1, "id": folder.name, "operation": "load", "load": {"rows": len(rows)}, "started_utc": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(head))
    (folder / FILE).write_text("".join(f"{json.dumps(row.as_json())}\n" for row in rows))
    return folder


def test_rows_are_read_again_and_opposite_directions_are_reported_once() -> None:
    assert INTERFERENCE.decoded(json.loads(json.dumps(CONTROL.as_json()))) == CONTROL
    assert INTERFERENCE.decoded(json.loads(shown(ROW, format="json"))) == ROW
    assert ROW.percent_of_link == pytest.approx(50)
    there = SharedLink("host", "n1", "NIC eth0", 12e6, senders=("victims",), receivers=("aggressors",))
    both = replace(there, senders=("victims", "aggressors"))
    assert there.opposite and not both.opposite and not SharedLink("fabric").opposite
    first, second = (remarks([ROW.replace(shared=(link,))]) for link in (there, both))
    assert "shared link: NIC eth0 on n1: victims send, aggressors receive" in first
    assert "shared link: NIC eth0 on n1: victims and aggressors send, aggressors receive" in second
    assert sum("opposite" in text for text in first) == 1 and not any("opposite" in text for text in second)
    rows = [CONTROL.replace(level=level) for level in (0.0, 0.25, 0.5)] + [ROW]
    found = remarks(rows)
    assert sum("no interval of p99:" in text for text in found) == 1
    (text,) = (text for text in found if text.startswith("inconclusive"))
    assert all(f"incast at {percent} %" in text for percent in (0, 25, 50)) and "0.9" not in text


@pytest.mark.parametrize(("key", "value"), [("verdict", "perhaps"), ("level", "high"), ("quantiles", {"p50": {"factor": {"low": -1}}})])
def test_a_row_that_does_not_fit_is_rejected(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=key):
        INTERFERENCE.decoded(ROW.as_json() | {key: value})


def test_csv_and_tables_have_each_row_with_its_interval_and_link() -> None:
    (found,) = csv.DictReader(io.StringIO(shown(ROW, format="csv")))
    assert (float(found["p50_factor"]), float(found["p50_factor_low"]), float(found["p50_off_s"])) == (2.0, 1.9, 1e-5)
    assert (found["p99_factor"], found["verdict"], found["run"]) == ("", "interference", "a")
    assert set(INTERFERENCE.fields_of(ROW)) == set(INTERFERENCE.fields_of(ROW.replace(quantiles={}, na="why"))) == found.keys() - {"run"}
    found = shown(CONTROL, ROW, format="table")
    assert "2.00× (1.90–2.10×)" in found and "NIC eth0 on n1" in found and "0 % (control)" in found


class TestRowsAtOnce:
    @pytest.mark.parametrize("format", FORMATS)
    def test_each_row_is_printed_and_flushed_before_the_next_is_measured(self, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
        out = Pipe()
        monkeypatch.setattr("sys.stdout", out)
        with LoadProgressPrinter(Output(format, "never")) as listener:
            listener.begin(Plan(2, {"load": {"against": ["incast"]}}), "runs/a")
            seen = []
            for place, row in enumerate((CONTROL, ROW)):
                listener.record(row, place)
                seen.append(out.passed)
            listener.end()
        own = {"table": ("0 % (control)", "100 %"), "csv": (",0.0,", ",1.0,"), "json": ('"level":0.0', '"level":1.0')}[format]
        assert own[0] in seen[0] and own[1] not in seen[0] and own[1] in seen[1]
        assert ("shared link" in out.passed) == (format == "table")
        if format == "csv":
            assert [line["level"] for line in csv.DictReader(io.StringIO(out.passed))] == ["0.0", "1.0"]
            assert out.passed.replace("\r\n", "\n") == shown(CONTROL, ROW, format="csv").replace("\r\n", "\n")

    def test_a_run_that_is_stopped_has_the_sentences_of_its_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        out = Pipe()
        monkeypatch.setattr("sys.stdout", out)
        with pytest.raises(RunFailed), LoadProgressPrinter(Output(color="never")) as listener:
            listener.begin(Plan(2, {"load": {"against": ["incast"]}}), "runs/a")
            listener.record(ROW, 1)
            raise RunFailed("a rank died")
        assert out.passed.count("shared link") == 1

    def test_columns_are_aligned_although_rows_are_not_known_before(self) -> None:
        writer = LoadWriter("table", "a", ["incast", "alltoall+incast"], None)
        texts = [line.text for row in (CONTROL, ROW.replace(aggressors="alltoall+incast")) for line in writer.row(row)]
        assert texts[1].index("result") == texts[2].index("inconclusive") == texts[3].index("interference")


def test_openmetrics_and_markdown_have_the_factor(tmp_path: Path) -> None:
    run = load_run(tmp_path / "a", simulated_row(1, 2.0), simulated_row(2, 3.0, crowded=True, plan=PLAN.replace(aggressors="ring")))
    out = io.StringIO()
    assert report_run([run], None, "table", out, markdown=tmp_path / "a.md", openmetrics=tmp_path / "a.om", err=io.StringIO()) == 0
    metrics = (tmp_path / "a.om").read_text()
    (line,) = (line for line in metrics.splitlines() if line.startswith("collbench_factor_ratio{"))
    assert "against incast" in line and float(line.split()[-1]) == pytest.approx(2, rel=0.02)
    markdown = (tmp_path / "a.md").read_text()
    assert markdown.count("| incast |") == 3 and "| incast | 100 % | off | 320 |" in markdown


def test_a_stored_run_is_reported_as_table_and_page(tmp_path: Path) -> None:
    run, out = stored(tmp_path / "run", CONTROL, ROW), io.StringIO()
    assert report_run([run], None, "table", out, html=tmp_path / "page.html", err=io.StringIO()) == 0
    assert "2.00× (1.90–2.10×)" in out.getvalue()
    found = sections(tmp_path / "page.html")
    assert "interference" in found["load"] and "10.00 (9.000–11.00)" in found["load"] and f"{FILE} (" in found["provenance"]


def test_the_page_has_the_answer_and_a_line_for_each_measured_factor(tmp_path: Path) -> None:
    missing = ROW.replace(level=0.5, quantiles={}, verdict="inconclusive", na="no")
    material = Material([read_run(stored(tmp_path / "run", ROW, missing, CONTROL))], tmp_path / "page.html")
    screen, found = first_screen(material), section(material)
    assert screen is not None and found is not None
    assert [figure.value for figure in screen.figures] == ["2.00×", "10.00 µs", "20.00 µs"]
    (chart,) = found.charts
    assert chart.table is not None and len(chart.table.rows) == 2
    assert [spot.text.splitlines()[0] for spot in chart.spots] == ["incast at 0 %", "incast at 100 %"]
    nothing = Material([read_run(stored(tmp_path / "none", missing))], tmp_path / "none.html")
    without = section(nothing)
    assert without is not None and not without.charts


pytest.importorskip("pandas", reason="no pandas here: pip install 'collbench[pandas]'")
REPORTS = ROOT / "reports"


def test_loads_as_a_frame_and_as_typed_values(tmp_path: Path) -> None:
    made = [simulated_row(1, 2.0), simulated_row(2, 3.0, plan=PLAN.replace(level=0.5))]
    runs = collbench.read(load_run(tmp_path / "a", *made))
    frame = runs.loads()
    ascending = [made[1][0], made[0][0]]
    assert runs.load_rows == ascending
    assert frame["level"].to_list() == [0.5, 1.0] and frame["p50_factor"].to_list() == [row.factor.value for row in ascending]
    assert frame["flags"].to_list() == [row.flags for row in ascending]  # the names of flags, as in the other tables
    assert set(frame["verdict"]) == {"interference"} and frame["aggressor_nodes"].to_list() == [2, 2]
    assert [row.mode for row in runs.rows] == ["isolated", "load"] * 2 and runs.rows[1].interference["factor"] == made[0][0].factor.value
    assert len(collbench.read(REPORTS / "first-run").loads()) == 0
    with (tmp_path / "a/load.jsonl").open("a") as lines:
        lines.write("{}\n")
    with pytest.raises(collbench.UnreadableRun, match=r"load\.jsonl"):
        collbench.read(tmp_path / "a").loads()
    allowed = collbench.read(tmp_path / "a", strict=False)
    assert len(allowed.load_rows) == 2 and any("load.jsonl" in text for text in allowed.warnings)
