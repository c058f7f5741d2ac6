"""The part of the page that shows pairs: sentences, a table per place, a chart per quantity."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from collbench.plugins.hunt.pairs_page import section
from collbench.report.html.chart import Section
from collbench.report.material import Material
from collbench.results.flags import explain
from collbench.results.reader import read_run
from tests.plugins.hunt.html.matrices import cell_values, drawn, even, slowed, texts_in
from tests.stored import stored_reports

TRIALS = Path(__file__).parents[4] / "reports" / "pairs-trials"
EVIL = "<script>$x$\u202e"


def of(*runs: Path) -> Section | None:
    return section(Material([read_run(run) for run in runs], Path("report.html")))


@pytest.fixture(scope="module")
def sick_host() -> Section:
    found = of(TRIALS / "host-0")
    assert found
    return found


def altered(tmp_path: Path, **about: object) -> Path:
    """The trial with another `pairs` in its run.json."""
    run = tmp_path / "run"
    shutil.copytree(TRIALS / "host-0", run)
    info = json.loads((run / "run.json").read_text())
    info["pairs"].update(about)
    (run / "run.json").write_text(json.dumps(info))
    return run


def test_runs_without_pairs_have_no_such_part() -> None:
    assert of(TRIALS.parent / "first-run") is None
    assert section(Material([], Path("report.html"))) is None


def test_sentences_report_what_is_doubtful_and_leave_the_verdict_to_the_first_screen(sick_host: Section) -> None:
    bandwidth, latency, *flags = sick_host.texts
    assert bandwidth.startswith("bandwidth: ") and " 15 % " in bandwidth
    assert latency.startswith("latency: ") and " 4.9 times the expected latency " in latency
    assert flags == list(explain(["few_samples", "pairs_at_once"]))


def test_each_place_has_a_line_and_named_places_are_marked(sick_host: Section) -> None:
    ((caption, table),) = sick_host.tables
    assert caption == "each place: medians over partners"
    assert table.rows[1] == ["cb1h2", "0.0120", "0.0120", "10.25", "0.0119 from cb1h7"]
    assert (len(table.rows), table.marks) == (8, {1: "doubtful"})


def test_bandwidth_and_latency_have_a_chart_each(sick_host: Section) -> None:
    bandwidth, latency = sick_host.charts
    assert (bandwidth.key, bandwidth.title) == ("pairs-0-bandwidth", "Bandwidth of 128 KiB messages between 8 nodes")
    assert bandwidth.caption.startswith("Slow: cb1h2: both ways 50 %. Senders are rows")
    assert "cb1h2: both ways 50 %" in texts_in(bandwidth.drawing)
    assert (latency.key, latency.title) == ("pairs-0-latency", "Latency of 8 B messages between 8 nodes")
    assert latency.caption.startswith("No slow place or pair. ")
    assert "by the median of up to 16 samples of 128 KiB" in bandwidth.method


def test_a_cell_has_its_value_its_interval_and_its_share(sick_host: Section) -> None:
    bandwidth, latency = sick_host.charts
    assert bandwidth.data and latency.data
    assert [round(row[6][7], 4) for row in (bandwidth.data["values"], *bandwidth.data["bounds"])] == [0.0239, 0.0238, 0.0242]  # type: ignore[misc]
    assert round(cell_values(bandwidth)[6, 7] / bandwidth.data["medians"][0], 2) == 1  # type: ignore[index]
    assert round(cell_values(bandwidth)[1, 6] / bandwidth.data["medians"][0], 2) == 0.5  # type: ignore[index]
    assert round(cell_values(latency)[7, 6], 3) == 9.978
    assert round(cell_values(latency)[6, 7] / latency.data["medians"][0], 2) == 0.84  # type: ignore[index]
    assert bandwidth.table.rows[6][8] == "0.0239"
    assert latency.table.rows[6][8] == latency.table.rows[7][7] == "9.978"


def test_of_several_runs_each_is_named() -> None:
    found = of(TRIALS / "host-0", stored_reports() / "pairs-trials/pair-0")
    assert found
    assert [chart.key for chart in found.charts] == ["pairs-0-bandwidth", "pairs-0-latency", "pairs-1-bandwidth", "pairs-1-latency"]
    assert found.charts[2].title == "pair-0: Bandwidth of 128 KiB messages between 8 nodes"
    assert "pair-0: cb1h6 to cb1h3 reaches 50 %" in " ".join(found.texts)
    assert [caption for caption, _ in found.tables] == [
        "host-0: each place: medians over partners",
        "pair-0: each place: medians over partners",
    ]


def test_names_from_a_file_stay_text(tmp_path: Path) -> None:
    names = [f"{EVIL}{number}" + "x" * 500 for number in range(8)]
    found = of(altered(tmp_path, places=names, by=EVIL, backend=EVIL))
    assert found
    for chart in found.charts:
        assert "<script" not in chart.drawing
        assert "\u202e" not in chart.drawing + json.dumps(chart.data, ensure_ascii=False) + chart.title + chart.caption
        assert max(map(len, texts_in(chart.drawing))) < 100
        assert len(chart.drawing) < 5000


def test_pairs_that_could_not_be_measured_are_reported_with_their_reason(tmp_path: Path) -> None:
    run = altered(tmp_path)
    lines = (run / "pairs.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    first["na"] = ["no route", None, None, None]
    (run / "pairs.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]))
    found = of(run)
    assert found
    assert "not measured: 1 pair: no route" in found.texts
    assert np.argwhere(np.isnan(cell_values(found.charts[0]))).tolist() == sorted([[6, 7], [7, 6], *([place, place] for place in range(8))])
    assert "not measured" in texts_in(found.charts[0].drawing)


def test_a_run_without_a_single_round_has_no_chart(tmp_path: Path) -> None:
    run = altered(tmp_path)
    (run / "pairs.jsonl").write_text("")
    found = of(run)
    assert found
    assert found.charts == []


def test_the_table_of_many_places_has_the_slowest_pairs() -> None:
    bandwidth, latency = drawn(slowed(even(20), 3, 7))
    assert bandwidth.table.head == ["sender", "receiver", "GB/s", "versus the median"]
    assert bandwidth.table.rows[0] == ["node4", "node8", "5.00", "50 % of the median"]
    assert len(bandwidth.table.rows) == len(latency.table.rows) == 40
    assert latency.table.rows[0][2:] == ["20.00", "1.00 times the median"]
    assert bandwidth.wide
    assert "collbench report RUN --csv FILE" in bandwidth.method


def test_pairs_that_a_named_place_explains_are_not_in_that_table() -> None:
    matrix = slowed(slowed(slowed(even(20), 3), slice(None), 7), 10, 11, 0.8)
    rows = drawn(matrix)[0].table.rows
    assert rows[0] == ["node11", "node12", "8.00", "80 % of the median"]
    assert not [row for row in rows if row[0] == "node4" or row[1] == "node8"]
