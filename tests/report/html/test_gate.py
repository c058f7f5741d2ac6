"""Verdicts and comparisons on the page: what is slower comes first, intervals where there are any, and never more than was measured."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from collbench.analysis.ceilings import CeilingChange
from collbench.analysis.concerns import FINDING, Concern
from collbench.analysis.launches import case_of, read_all
from collbench.gating.allocation import allocations_in
from collbench.gating.baseline import write
from collbench.gating.reasons import LinkOfAll
from collbench.gating.verdict import Verdict
from collbench.report.charts import RatioPanel, size_charts
from collbench.report.html.against import MOST_LINES
from collbench.report.html.against import section as against
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.first_screen import first_screen
from collbench.report.html.gate import JudgedLine, section
from collbench.report.html.page import html
from collbench.report.html.picture import ratio_chart
from collbench.report.material import MOST_CANDIDATES, Material
from collbench.results.reader import Run
from collbench.results.row import Row, Times
from tests.gate.allocations import launches
from tests.gate.verdicts import group, regression, suspicion, verdict
from tests.report.html.svg import outside
from tests.report.verdict.hostile import hostile
from tests.results.rows import make_row, make_times, not_measured, store


def material(given: Verdict | None) -> Material:
    return Material([Run(Path("night-9"), {}, [make_row()])], Path("page.html"), (), given)


def gate(given: Verdict) -> Section:
    found = section(material(given))
    assert found is not None
    return found


def test_without_a_verdict_there_is_no_section_and_a_pass_without_groups_has_neither_table_nor_chart() -> None:
    assert section(material(None)) is None
    assert (list(gate(verdict()).tables), list(gate(verdict()).charts)) == ([], [])


def test_a_regression_has_what_the_first_screen_has_no_room_for_tables_of_what_changed_and_charts_against_limits() -> None:
    actual = gate(regression())
    reasons = [f"{reason.render()}." for reason in regression().reasons]
    assert actual.texts == [*reasons, *(f"Note: {note.render()}." for note in regression().notes)]
    tables = dict(actual.tables)
    assert [row[:2] for row in tables["Slower, confirmed and worst first, cleared last"].rows] == [
        ["cleared", "allreduce on mpi, large messages"],
    ]  # fmt: skip
    assert [row[:2] for row in actual.charts[1].table.rows] == [
        ["confirmed", "allreduce 64 MiB mpi"], ["accepted", "allreduce 8 B nccl"],
    ]  # fmt: skip
    assert tables["Changes, the most plausible cause first"].rows == [
        ["topology", "nic rate", "400 Gb/s", "360 Gb/s", LinkOfAll().render(), ""],
        ["software", "nccl", "2.29", "2.30", "", "by A. Reviewer until 2027-01-31: fewer CTAs leave room for kernels"],
    ]
    assert tables["Required shares of the expected bandwidth (--min-percent)"].marks == {0: "wrong"}
    groups, cases = actual.charts
    assert [spot.text.split("\n")[0] for spot in groups.spots] == ["allreduce on mpi, large messages", "allreduce on nccl, large messages"]
    assert groups.caption == (
        "0 of 2 exceed their limit (vertical mark) in every allocation; 1 only in the first one (largest point). 2 of 3 are drawn."
    )
    assert len(groups.table.rows) == 3
    assert [spot.text.split("\n")[0] for spot in cases.spots] == ["allreduce 64 MiB mpi", "allreduce 8 B nccl"]
    assert groups.spots[0].x > groups.spots[1].x


def test_candidates_are_compared_with_the_baseline_alone_and_not_with_one_another() -> None:
    runs = [Run(Path(f"night-{number}"), {"allocation_id": f"night-{number}"}, [make_row()]) for number in (8, 9, 10)]
    page = Material(runs, Path("page.html"), (), verdict())
    assert len(page.tables) == 3 and page.comparisons == [] and against(page) is None
    paired = Material(runs[:2], Path("page.html"), (), verdict(mode="paired"))
    assert [(found.a.name, found.b.name) for found in paired.comparisons] == [("night-8", "night-9")]
    section_of_pairs = against(paired)
    assert section_of_pairs.texts[0] == "Baseline (A): the old stack; candidate (B): the new one."


def test_a_ceiling_that_fell_is_a_finding_and_percentages_show_the_loss() -> None:
    fell = CeilingChange("allreduce", "nccl", "ring", 100e9, 50e9, "NIC 8×100 Gb/s", "NIC 4×100 Gb/s")
    page = material(verdict(ceilings=(fell,)))
    sentence = "expected bandwidth of allreduce on nccl: 100 → 50.0 GB/s (-50 %), limited by NIC 4×100 Gb/s"
    assert gate(verdict(ceilings=(fell,))).texts[0] == f"{sentence}."
    assert Concern(FINDING, sentence, "new") in page.concerns
    assert page.rows(page.tables[0])[0].percent_of_ceiling == 42.0


def test_all_four_outcomes_are_counted() -> None:
    counts = {"slower": 1, "no change": 8, "inconclusive": 1}
    given = verdict(groups=(group(outcome="no change", outcomes=counts),))
    screen = first_screen(material(given))
    assert screen is not None and screen.more[-1] == (
        "cases: 1 slower, 0 faster, 8 no change (limit inside ±5 %), 1 inconclusive; "
        "groups: 0 slower, 0 faster, 1 no change, 0 inconclusive"
    )


@pytest.mark.parametrize("factor", [1e-9, 1.0, 1e9])
def test_a_chart_holds_any_factor(factor: float) -> None:
    line = JudgedLine("cell", (factor, None, 1.0), 1e9, "passed", "text").drawn()
    chart = ratio_chart(Chart("key", "title", "", "", Table((), ())), RatioPanel("", [line], "axis", 1.03))
    assert 0 <= chart.spots[0].x <= 900 and not outside(chart.drawing)


def test_the_chart_has_the_band_of_the_baseline(tmp_path: Path) -> None:
    for number in range(6):
        times = {64 << 20: 1e-3 * (1 + number / 1000)}
        (found,) = allocations_in([launches(tmp_path / f"night-{number}", f"night-{number}", times, times)])
        write(tmp_path / "base", found)
    runs = [Run(Path("night-9"), {}, [make_row(time_s=make_times(1.1e-3))])]
    page = Material(runs, Path("page.html"), (), verdict(), tmp_path / "base")
    known = page.typical_times[case_of(make_row())]
    assert known.time_s == pytest.approx(1e-3, rel=0.01) and known.limit is not None and 1 < known.limit < 1.2
    baseline, candidate = size_charts(page)[0].lines
    (point,) = baseline.points
    assert baseline.name == "nccl baseline" and candidate.name == "nccl"
    assert point.time.value == pytest.approx(1e6 * known.time_s)
    assert point.time.high == pytest.approx(1e6 * known.time_s * known.limit)
    assert point.rate.low is not None and point.rate.low < point.rate.value
    assert [line.name for line in size_charts(material(verdict()))[0].lines] == ["nccl"]


def test_it_precedes_the_results_and_untrusted_text_is_no_markup() -> None:
    page = html(material(regression()))
    assert page.index('id="gate"') < page.index('id="overview"')
    page = html(material(hostile(rows=2)))
    assert "<script>&#34;" not in page and "<script>\"'" not in page
    assert "\x1b" not in page and "\u202e" not in page


def test_hundreds_of_suspects_do_not_drown_what_changed_and_the_worst_floor_is_shown() -> None:
    asked = regression().floors[0]
    floors = (*(replace(asked, state="cleared", name=f"well {n}") for n in range(30)), asked)
    actual = gate(regression(suspicions=tuple(suspicion() for _ in range(135)), floors=floors))
    titles = [title for title, _ in actual.tables]
    assert titles[-1] == "Required shares of the expected bandwidth (--min-percent) (20 of 31; verdict.json has all)"
    assert [len(table.rows) for _, table in actual.tables] == [2, 20]
    assert actual.tables[-1][1].rows[0][:2] == ["confirmed", asked.name]
    cases = actual.charts[1]
    assert (len(cases.spots), len(cases.table.rows)) == (60, 135) and cases.caption.endswith(" 60 of 135 are drawn.")
    undrawn = gate(regression(suspicions=tuple(suspicion(limit=None) for _ in range(135)), groups=()))
    assert undrawn.tables[0][0] == "Slower, confirmed and worst first, cleared last (20 of 135; verdict.json has all)"


NO_INTERVAL = Times(2e-3, None, None, 1e-3, 3e-3, 3e-3, 3e-3)


def row(size: int, p50: float, **changes: Any) -> Row:
    return make_row(size, **{"time_s": make_times(p50), **changes})


def side(folder: Path, rows: list[Row], launches: int = 1) -> Path:
    """Launches with these rows, each a little slower than the one before; a single one is the folder itself."""
    if launches == 1:
        return store(folder, rows, command=["collbench", "allreduce"])
    for number in range(launches):
        by = 1 + 0.001 * number
        slower = [row.time_s and Times(**{name: value and value * by for name, value in asdict(row.time_s).items()}) for row in rows]
        moved = [replace(row, time_s=time_s) for row, time_s in zip(rows, slower, strict=True)]
        store(folder / f"launch-{number + 1}", moved, allocation_id=folder.name, command=["collbench", "allreduce"])
    return folder


def shown(*folders: Path) -> Section:
    made = against(Material(read_all(folders), folders[0].parent / "page.html"))
    assert made is not None
    return made


def test_a_single_run_has_no_comparison_and_nothing_in_common_is_reported(tmp_path: Path) -> None:
    before = side(tmp_path / "before", [row(8, 1e-3)])
    assert against(Material(read_all([before]), tmp_path / "page.html")) is None
    made = shown(before, side(tmp_path / "after", [row(8, 1e-3, ranks=8, dtype="int8")]))
    assert made.texts[1] == "after (1 launch) has no case in common with it: dtype float32 → int8, ranks 4 → 8."
    assert made.charts == []


def test_the_worst_case_is_on_top(tmp_path: Path) -> None:
    before = [row(8, 1e-6), row(16, 1e-6), row(32, 1e-6), row(64, 1e-6), row(128, 1e-6), row(256, 1e-6, time_s=NO_INTERVAL)]
    lost = not_measured("no memory", size_bytes=128)
    after = [row(8, 1.3e-6), row(16, 1e-6), row(32, 2e-6), row(64, 0.5e-6, wrong=3), lost, row(256, 1e-6)]
    made = shown(side(tmp_path / "before", before, 3), side(tmp_path / "after", after, 3))
    assert made.texts[0].startswith("Baseline (A): before (3 launches)")
    assert made.texts[1] == (
        "after (3 launches): 6 cases: 2 slower (+30.0 % to 2.00×), 1 faster (0.000500×), 1 no change (±5 %), 0 inconclusive, "
        "1 with wrong data, 1 n/a."
    )
    (chart,) = made.charts
    assert [cases[1] for cases in chart.table.rows][:4] == ["64 B", "128 B", "32 B", "8 B"]
    assert chart.table.rows[2][-2] == "slower 2.00× (2.00–2.00×)"
    assert chart.table.marks == {0: "wrong", 1: "na"}
    assert chart.table.rows[1][-2] == "n/a (no memory) in B"


def test_hovering_shows_the_exact_values(tmp_path: Path) -> None:
    made = shown(side(tmp_path / "before", [row(1024, 1e-6)], 2), side(tmp_path / "after", [row(1024, 1.5e-6, flags=("drift",))], 2))
    (spot,) = made.charts[0].spots
    name, words, both, flags = spot.text.split("\n")
    assert (name, flags) == ("allreduce 1 KiB nccl float32 sum", "drift in B")
    assert both == "baseline 1.000 µs, candidate 1.501 µs"
    assert words.startswith("slower +50.0 % (")
    assert "slower +50.0 % (+49.5 to +50.5 %)" in made.charts[0].drawing  # figures in a drawing's text are never shortened


def test_without_an_interval_the_marker_is_hollow_and_nothing_is_claimed(tmp_path: Path) -> None:
    made = shown(
        side(tmp_path / "before", [row(8, 1e-3)]), side(tmp_path / "after", [row(8, 2e-3, time_s=NO_INTERVAL, flags=("imported",))])
    )
    (chart,) = made.charts
    assert chart.table.rows[0][-2] == "inconclusive (one launch each): 2.0×"
    assert re.search(r'data-mark="inconclusive 0"><path fill="var\(--paper\)" stroke="var\(--soft\)"', chart.drawing)
    assert "one launch each: changes as measured, the largest first" in chart.method


def test_many_cases_are_drawn_up_to_a_limit(tmp_path: Path) -> None:
    before, after = ([row(8 * number, by * 1e-6) for number in range(1, MOST_LINES + 3)] for by in (1, 1.2))
    made = shown(side(tmp_path / "before", before), side(tmp_path / "after", [*after, row(1 << 20, 1e-3)]))
    (chart,) = made.charts
    assert chart.caption.endswith(f"Drawn are {MOST_LINES} of {MOST_LINES + 2} cases, the worst first.")
    assert len(chart.spots) == MOST_LINES
    assert len(chart.table.rows) == MOST_LINES + 2
    assert made.texts[1].endswith(", 1 only in the candidate.")
    assert len(chart.drawing) < 40_000


def test_many_candidates_are_counted(tmp_path: Path) -> None:
    folders = [side(tmp_path / f"run-{number}", [row(8, 1e-6, na="x", time_s=None)]) for number in range(MOST_CANDIDATES + 3)]
    made = shown(*folders)
    assert made.texts[-1] == "2 more runs are not compared here: `collbench compare` compares any two."
    assert (len(made.charts), len(made.tables)) == (0, MOST_CANDIDATES)
    assert made.tables[0][1].rows[0][-2] == "n/a (x) in A; n/a (x) in B"
