"""Pages without figures of a run: check, doctor, probe, peak, and the history of a baseline."""

import json
import re
from pathlib import Path

import pytest
from markupsafe import escape
from msgspec.structs import replace

from collbench.analysis.health import CheckVerdict, DoctorSummary, MissesExpected, Reach, ReachesExpected, RunFailedEarly, SeriesCheck
from collbench.errors import UsageError
from collbench.gating.history import history
from collbench.machine.doctor.finding import Finding
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.node import Job, node_of
from collbench.machine.sources import read_paths
from collbench.report.health import CHECK, CheckAnswer, read_check, store_check
from collbench.report.html import history as made
from collbench.report.html.first_screen import BAD, DOUBT, GOOD, first_screen, of_check, of_doctor, of_history, of_peak, of_probe
from collbench.report.html.history import write_history
from collbench.report.html.machine import doctor_sections, peak_sections, probe_sections
from collbench.report.html.page import html as html_of
from collbench.report.html.page import page
from collbench.report.material import Material
from collbench.results.reader import read_run
from tests.cli.command import ROOT, run_here
from tests.conftest import needs_plugin
from tests.gate.histories import nights, upgraded
from tests.machine.machines import dgx
from tests.results.rows import make_row, store

SEVERE = Finding("CB2101", "severe", "dgx01", "GPU 0 runs on 8 of 16 lanes", "LnkSta x8", "reseat the card")
NOTE = Finding("CB2104", "note", "dgx01", "1 link at 2.5 GT/s", "LnkSta 2.5 GT/s", "read it again")
SLOW = SeriesCheck("allreduce", "mpi", Reach.MISSED, 64 << 20, 1e9, 10e9, 10.0, 9.0, 11.0, 0.5, "NIC eth0", 0.1, 1)
LATENCY = SeriesCheck("p2p_latency", "mpi", Reach.LATENCY, 8, time_s=5e-6, checked=1)
VERDICT = CheckVerdict((MissesExpected(SLOW),), (SLOW, LATENCY, DoctorSummary(1, 0, 0, "CB2101")))


def test_a_check_shows_its_verdict_and_the_figures_that_decide() -> None:
    screen = of_check(VERDICT)
    assert screen.badge == (BAD, "SLOW") and screen.title.startswith("allreduce over mpi reaches only 1.00 of 10.0 GB/s (10 %)")
    assert [figure.value for figure in screen.figures] == ["10 %", "5.000 µs"]
    reached = SeriesCheck("allreduce", "mpi", Reach.REACHED, percent=84.0)
    assert of_check(CheckVerdict((ReachesExpected("mpi", (reached,)),))).badge == (GOOD, "OK")
    assert of_check(CheckVerdict((RunFailedEarly(4, "rank 1 was killed"),))).badge == (BAD, "BROKEN")
    assert list(screen.more) == [each.render() for each in VERDICT.evidence]


def test_a_report_shows_the_verdict_that_the_check_stored(tmp_path: Path) -> None:
    run = store(tmp_path / "run", [make_row()])
    assert read_check(run) is None
    store_check(CheckAnswer(VERDICT, run, 2), run)
    assert read_check(run) == VERDICT and json.loads((run / CHECK).read_text())["verdict"] == "SLOW"
    stored = json.loads((run / CHECK).read_text())
    assert list(stored) == ["schema", "verdict", "exit_code", "text", "backends", "causes", "evidence", "run", "nodes", "next"]
    assert (stored["schema"], stored["exit_code"], stored["text"], stored["backends"]) == (1, 1, str(VERDICT), {"mpi": "SLOW"})
    assert (stored["run"], stored["nodes"], stored["next"]) == (str(run), 2, ["collbench", "pairs"])
    assert [(each["kind"], each["text"]) for each in stored["causes"]] == [("misses_expected", str(VERDICT.causes[0]))]
    assert [each["text"] for each in stored["evidence"]] == list(map(str, VERDICT.evidence))
    material = Material([read_run(run)], tmp_path / "page.html")
    screen = first_screen(material)
    assert screen.badge == (BAD, "SLOW")
    assert list(screen.more) == [each.render() for each in VERDICT.evidence]
    assert str(escape(VERDICT.evidence[0].render())) in html_of(material)


@pytest.mark.parametrize("text", ["{}", '{"causes": [], "evidence": []}', '{"causes": [{"kind": "other"}], "evidence": []}'])
def test_an_invalid_verdict_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / CHECK).write_text(text)
    with pytest.raises(UsageError, match="is not the verdict of a check"):
        read_check(tmp_path)


def test_doctor_shows_the_worst_finding_first_and_one_of_several_hosts_once() -> None:
    screen = of_doctor([SEVERE, NOTE], [dgx()], ())
    assert (screen.badge, screen.title) == ((BAD, "SEVERE"), "dgx01: GPU 0 runs on 8 of 16 lanes (CB2101)")
    assert list(screen.more[:2]) == ["evidence: LnkSta x8", "remedy: reseat the card"]
    assert [(each.value, each.label) for each in screen.figures] == [("1", "severe finding"), ("1", "note")]
    findings, examined = doctor_sections([SEVERE, NOTE], [dgx()], ())
    assert [row[:2] for row in findings.tables[0][1].rows] == [["severe", "CB2101"], ["note", "CB2104"]]
    assert findings.tables[0][1].marks == {0: "wrong"} and examined.texts
    assert of_doctor([], [dgx()], ()).badge == (GOOD, "NO FINDINGS")
    both = [SEVERE, replace(SEVERE, hostname="dgx02")]
    assert of_doctor(both, [dgx(), replace(dgx(), hostname="dgx02")], ()).title.startswith("dgx01 and 1 more: ")
    rows = doctor_sections(both, [dgx(), replace(dgx(), hostname="dgx02")], ())[0].tables[0][1].rows
    assert [row[2] for row in rows] == ["dgx01 and dgx02"]


@needs_plugin("drawings")
def test_probe_shows_the_machine_with_the_limiting_link_marked() -> None:
    machines = read_paths([ROOT / "reports" / "example-node"])
    screen = of_probe(machines, [], [])
    limit = "all-reduce between two such nodes can reach 554 GB/s, limited by NVLink 18×25 GB/s with NVLink SHARP"
    assert screen.title.endswith(limit) and screen.badge is None
    assert [figure.value for figure in screen.figures] == ["554 GB/s", "8", "8"]
    sections = probe_sections(machines, [], [SEVERE])
    (chart,) = sections[0].charts
    assert "Marked as limiting: NVLink 18×25 GB/s with NVLink SHARP." in chart.caption and "limits" in chart.drawing
    assert of_probe(machines * 2, ["the firmware differs"], []).badge == (DOUBT, "NODES DIFFER")
    assert of_probe(machines, [], [SEVERE]).badge == (BAD, "SEVERE FINDINGS")
    text = page(screen, lambda: sections)
    assert text.count("<style>") == 1 and 'id="findings"' in text
    assert text.index('id="machine-0"') < text.index('id="details"')  # on the first screen
    with pytest.raises(UsageError, match="no machine was read"):
        of_probe([], [], [])


@needs_plugin("drawings")
def test_peak_shows_the_rate_what_limits_it_and_the_share_of_a_measured_one() -> None:
    machines = read_paths([ROOT / "reports" / "example-node"])
    job = Job((node_of(machines[0]),) * 2)
    found = ceilings("allreduce", job)
    screen = of_peak("allreduce", None, found, job)
    assert screen.title == "allreduce on 2 nodes, 16 ranks: at most 554 GB/s expected, limited by NVLink 18×25 GB/s with NVLink SHARP"
    assert [(figure.value, figure.label) for figure in screen.figures] == [("554 GB/s", "expected (NVLS tree)"), ("750 GB/s", "hard limit")]
    measured = of_peak("allreduce", 300e9, found, job)
    assert "300 of 554 GB/s (54 %)" in measured.title and measured.figures[0].value == "54 %"
    assert of_peak("allreduce", 900e9, found, job).badge == (DOUBT, "DOUBTFUL")
    rates, drawings = peak_sections("allreduce", None, found, job, machines)
    assert (rates.key, len(drawings.charts)) == ("rates", 1)
    assert not peak_sections("allreduce", None, found, job, [])[1].charts


@pytest.mark.parametrize(
    "line", [pytest.param("probe --measure", marks=needs_plugin("channels")), "probe --gather x.tar", "doctor --launch"]
)
def test_what_has_no_page_refuses_it(tmp_path: Path, line: str) -> None:
    done = run_here(tmp_path, *line.split(), "--html", "page.html")
    assert done.returncode == 2 and "--html" in done.stderr and not (tmp_path / "page.html").exists()


def test_changes_then_groups_then_cases_that_changed_then_allocations(tmp_path: Path) -> None:
    write_history(history("base", upgraded(12, 6), ["left out: <b>night</b>"]), "allreduce*MiB mpi", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.findall(r'<details class="folded" id="(\w+)"', text) == ["changes", "groups", "cells", "allocations"]
    assert text.count("<figure") == 1 + 1 + 4
    assert "software mpi version: 4.3 → 5.0" in text
    assert "left out: &lt;b&gt;night&lt;/b&gt;" in text and "<b>night" not in text
    assert re.search(r"Slower × 1\.0\d\d \(.*\) since night-7, 2026-11-07; with it: software mpi version: 4\.3 → 5\.0\.", text)
    assert "<th>allreduce on mpi, large messages" in text
    assert "night-3, 2026-11-03: × 1.0" in text or "night-3, 2026-11-03: × 0.9" in text


def test_where_nothing_changed_it_reports_it_and_a_pattern_that_fits_nothing_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--only 'x'"):
        write_history(history("base", nights(1)), "x", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    write_history(history("base", nights(6)), "allreduce 8 B*", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.findall(r'<details class="folded" id="(\w+)"', text) == ["changes", "groups", "allocations"]
    assert "changed: nothing." in text and "It did not change." in text


def test_of_many_the_first_are_drawn_which_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_MOST_CASES", "_MOST_GROUPS", "_MOST_LISTED"):
        monkeypatch.setattr(made, limit, 1)
    write_history(history("base", upgraded(6, 3, by=1.3)), "*", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("<figure") == 1 + 2
    assert "Drawn are 1 of 5 groups, those that changed most." in text
    assert "Drawn are 1 of 4 cases that changed, those that changed most." in text
    assert "what else changed then (1 of " in text


def test_the_first_screen_has_the_largest_slowdown_its_date_and_what_changed_then() -> None:
    found = history("base", upgraded(12, 6))
    screen = of_history(found, found.series)
    assert screen.badge == (BAD, "SLOWER")
    assert re.fullmatch(
        r".+ slower \(\+\d+\.\d % time\) since 2026-11-07 \(night-7\); with it: software mpi version: 4\.3 → 5\.0", screen.title
    )
    assert screen.figures[0].value.startswith("+") and screen.figures[1].value == "12"
    faster = history("base", upgraded(12, 6, by=0.8))
    assert of_history(faster, faster.series).badge == (GOOD, "FASTER")


@pytest.mark.parametrize(("count", "badge", "title"), [
    (6, (GOOD, "NO CHANGE"), "no change: 6 allocations from 2026-11-01 to 2026-11-06, 14 cases"),
    (3, (DOUBT, "TOO FEW"), "too few allocations to find a change: 3 allocations from 2026-11-01 to 2026-11-03, 14 cases"),
])  # fmt: skip
def test_without_a_change_the_title_is_the_verdict(count: int, badge: tuple[str, str], title: str) -> None:
    found = history("base", nights(count))
    screen = of_history(found, found.series)
    assert (screen.badge, screen.title, screen.figures[0].value) == (badge, title, str(count))


@pytest.mark.parametrize(("began", "label"), [("2026-11-21T0{}:30:00+00:00", "0{}:30"), ("2026-11-0{}T00:30:00+00:00", "2026-11-0{}")])
def test_allocations_of_one_day_have_the_time(tmp_path: Path, began: str, label: str) -> None:
    allocations = [replace(each, began_utc=began.format(n)) for n, each in enumerate(nights(3), 1)]
    write_history(history("base", allocations), "allreduce 8 B mpi", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(f">{label.format(n)}<" in text for n in (1, 2, 3))


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    allocations = [
        replace(each, facts={**each.facts, "software": {"mpi": f"<script>{number > 2}</script>\u202e"}})
        for number, each in enumerate(nights(6, lambda number, backend, size: 1.5 if number > 2 else 1.0))
    ]
    write_history(history("<script>", allocations), "allreduce 8 B mpi", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;True" in text and "<script>True" not in text and "\u202e" not in text
