"""Concerns about runs: their order, no repetition, their counts, and links and ceilings that fell between two runs."""

import csv
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from collbench.analysis import concerns as module
from collbench.analysis.ceilings import (
    CeilingChange,
    LinkChange,
    dropped_ceilings,
    link_ceilings,
    link_rates,
    present_percents,
    with_ceilings_before,
)
from collbench.analysis.compare import compare
from collbench.analysis.concerns import DOUBTFUL, FINDING, MISSING, NOTE, SEVERITIES, WRONG, Concern, concerns
from collbench.analysis.launches import Launches, read_all
from collbench.analysis.stragglers import Compared
from collbench.machine.peak.ceiling import Ceiling
from collbench.report.cases import of_ceiling
from collbench.report.material import Material
from collbench.report.runs import report_run
from collbench.results.flags import DOUBTFUL as DOUBTFUL_FLAGS
from collbench.results.flags import FLAGS
from collbench.results.reader import Run, read_run
from collbench.results.row import Row
from tests.results.rows import COPY, make_row, not_measured, store

DONE = {"finished_utc": "2026-11-21T06:59:15.362Z"}


def of(*tables: Sequence[Row], events: Sequence[Mapping[str, Any]] = (), info: Mapping[str, Any] = DONE, **more: Any) -> list[Concern]:
    """The concerns of runs with these rows, called run-0, run-1 …"""
    runs = [Run(Path(f"run-{number}"), dict(info), list(rows), [dict(event) for event in events]) for number, rows in enumerate(tables)]
    launches = [Launches(run.path.name, (run,), run.rows) for run in runs]
    return concerns(runs, launches, more.get("compared", [[] for _ in runs]), more.get("effects", []), more.get("warnings", []))


def test_a_good_run_raises_no_concern_and_every_flag_has_its_place() -> None:
    assert of([make_row(8), make_row(16)]) == []
    assert of() == []
    assert {*module.DOUBTS, *module.REMARKS} == set(FLAGS)
    assert set(module.DOUBTS) >= DOUBTFUL_FLAGS


def test_worst_first() -> None:
    rows = [
        make_row(8, flags=("target_missed",)),
        make_row(16, flags=("two_modes", "remeasured")),
        make_row(32, wrong=2),
        not_measured("no"),
    ]
    texts = {"note": "started late", "abort": "rank 3 died", "finding": "a slow link"}
    found = of(rows, events=[{"kind": kind, "text": text} for kind, text in texts.items()])
    assert [(each.severity, each.what) for each in found] == [
        ("wrong data", "2 elements are wrong"), ("broken off", "abort: rank 3 died"), ("finding", "a slow link"),
        ("doubtful", "two_modes"), ("doubtful", "target_missed"), ("missing", "not measured: no"), ("note", "started late"),
        ("note", "remeasured"),
    ]  # fmt: skip
    assert [SEVERITIES.index(each.severity) for each in found] == sorted(SEVERITIES.index(each.severity) for each in found)
    assert found[0].sentence() == f"{found[0].what} ({found[0].where})"


def test_where_a_flag_is_in_few_words() -> None:
    few = [make_row(size, flags=("drift",)) for size in (8, 16)]
    many = [make_row(1 << power, backend="mpi", flags=("drift",)) for power in range(3, 13)]
    (found,) = of([*few, *many, make_row(32)])
    assert found.where == "12 of 13 cases: allreduce nccl at 8 B, 16 B; allreduce mpi at 10 sizes, 8 B to 4 KiB"
    assert (of([make_row(flags=("drift",))])[0].where, of(few)[0].where) == ("the only case", "all 2 cases")
    others = [make_row(8, operation=name, flags=("drift",)) for name in "abcdef"]
    assert of([*others, make_row()])[0].where.endswith("; d nccl at 8 B; and 2 more series")
    barrier = make_row(0, operation="barrier", flags=("drift",))
    assert of([barrier, make_row()])[0].where == "1 of 2 cases: barrier nccl"


def test_of_several_runs_the_cases_name_theirs_and_what_all_report_is_reported_once() -> None:
    found = of([make_row(8, flags=("drift",))], [make_row(8)], events=[{"kind": "note", "text": "same"}])
    drift = Concern(DOUBTFUL, "drift", "1 of 2 cases: run-0: allreduce nccl at 8 B", "drift")
    assert found == [drift, Concern(NOTE, "same", "run-0, run-1")]


def test_wrong_data_is_reported_once_and_what_several_launches_settle_is_a_note() -> None:
    (found,) = of([make_row(launches=3, flags=("target_missed",))])
    assert found.severity == NOTE
    assert [each.severity for each in of([make_row(8, launches=3, flags=("drift",)), make_row(16, flags=("drift",))])] == [DOUBTFUL]
    assert [each.severity for each in of([make_row(launches=5, flags=("two_modes",))])] == [DOUBTFUL]
    (found,) = of([make_row(8, wrong=1, wrong_detail="rank 2, element 7", flags=("wrong_data",)), make_row(16, wrong=4)])
    assert found.severity == WRONG and found.what.startswith("5 elements ") and found.what.endswith("rank 2, element 7")
    assert of([make_row(flags=("wrong_data",))]) == [Concern(WRONG, "wrong_data", "the only case", "wrong_data")]


def test_runs_that_did_not_end_and_slow_ranks_are_concerns() -> None:
    assert of([make_row(8)], info={})[0].what.endswith("finished: 1")
    (found,) = of([make_row(8)], info={}, events=[{"kind": "hang", "text": 7}, {}])
    assert found.what == "hang: without a word"
    cases = [Compared(make_row(1 << power), np.ones(100, np.int64), np.array([1e-4, 1.5e-4, 1e-4, 1e-4])) for power in range(10, 14)]
    (found,) = of([make_row()], compared=[cases])
    assert found.severity == FINDING
    assert found.sentence().startswith("rank 1 finishes last in 100 % ")


def test_reasons_and_warnings_are_there_and_never_more_than_twenty_of_a_kind() -> None:
    found = of([not_measured("a"), not_measured("b"), not_measured("a")], warnings=["run-9 is empty"])
    missing = [(f"not measured: {what}", f"{number} of 3 cases: allreduce nccl at 64 MiB") for what, number in (("a", 2), ("b", 1))]
    assert [(each.what, each.where) for each in found] == [*missing, ("run-9 is empty", "")]
    assert {each.severity for each in found} == {MISSING}
    found = of([make_row(8, flags=tuple(f"flag-{number}" for number in range(50)))])
    assert len(found) == 21
    assert found[0].what.startswith("flag-0, ")
    assert found[-1].what == "and 30 more of this kind"


def test_findings_of_pairs_come_from_the_matrix_and_not_from_the_events(tmp_path: Path) -> None:
    events = [{"kind": "finding", "text": "node1 is slow"}, {"kind": "note", "text": "a note"}]
    plain = Run(tmp_path, {"finished_utc": "2026-11-20T10:00:00Z"}, [], events, [])
    assert [each.severity for each in concerns([plain], [], [], []) if each.what == "node1 is slow"] == [FINDING]
    pairs = replace(plain, info={**plain.info, "pairs": {}})
    assert [each.what for each in concerns([pairs], [], [], []) if each.severity in (FINDING, NOTE)] == ["a note"]


FAST = Ceiling("network", 0.12e9, "NIC eth0 1 Gb/s, TCP")
SLOW = Ceiling("network", 0.06e9, "NIC eth0 0.5 Gb/s, TCP of n2")
HOSTS = ["n1", "n2"]


def row(ceiling: Ceiling, busbw: float, **changes: Any) -> Row:
    percent = 100 * busbw / (ceiling.bytes_per_s or 1)
    changes = {"backend": "mpi", "ranks": 2, "nodes": 2, "busbw_bytes_per_s": busbw, **changes}
    return make_row(1 << 20, ceiling=ceiling, hard_bound=replace(ceiling, model="bound"), percent_of_ceiling=percent, **changes)


def interface(bits_per_s: float | None, **changes: Any) -> dict[str, Any]:
    return {"name": "eth0", "mtu": 1500, "shaped_bits_per_s": bits_per_s, "speed_bits_per_s": None, "virtual": "veth", **changes}


def run(folder: Path, ceiling: Ceiling, second: dict[str, Any], hosts: list[str] | None = None, busbw: float = 0.119e9) -> Path:
    store(folder, [row(ceiling, busbw)], hosts=HOSTS if hosts is None else hosts)
    (folder / "topology.json").write_text(json.dumps({"interfaces": [interface(1e9), second], "machines": []}))
    return folder


def test_a_slower_link_is_named_with_its_host_and_comes_first(tmp_path: Path) -> None:
    a = run(tmp_path / "before", FAST, interface(1e9))
    lost = compare(a, run(tmp_path / "after", SLOW, interface(0.5e9), busbw=0.059e9)).fallen
    assert lost.links == (LinkChange("n2", "eth0", 1e9, 0.5e9),)
    values = (0.12e9, 0.06e9, FAST.limited_by, SLOW.limited_by)
    assert lost.ceilings == tuple(CeilingChange("allreduce", "mpi", model, *values) for model in ("ring", "bound"))
    of_link, of_ceiling = lost.sentences()
    assert of_link == "eth0 of n2: 1 → 0.5 Gb/s"
    assert "allreduce on mpi: 0.120 → 0.0600 GB/s (-50 %)" in of_ceiling and of_ceiling.endswith(SLOW.limited_by)


def test_faster_links_measured_or_given_references_and_ceilings_that_depend_on_the_size_are_no_loss(tmp_path: Path) -> None:
    a, b = run(tmp_path / "a", SLOW, interface(0.5e9)), run(tmp_path / "b", FAST, interface(1e9))
    assert compare(a, b).fallen.sentences() == []
    assert link_ceilings([row(COPY, 1e9), row(replace(FAST, kind="given"), 1e9, backend="gloo")]) == ()
    assert link_ceilings([row(FAST, 1e8), replace(row(SLOW, 5e7), size_bytes=8)]) == ()


def test_rates_of_machines_and_of_ports_are_known_by_host(tmp_path: Path) -> None:
    ports = [{"number": number, "rate_bits_per_s": 4e11 / number} for number in (1, 2)]
    nics = [{"name": "mlx5_0", "virtual": None, "ports": ports}, {"name": "junk", "virtual": "veth", "ports": [{"rate_bits_per_s": 1e10}]}]
    store(tmp_path / "run", [row(FAST, 1e8)], hosts=HOSTS)
    (tmp_path / "run" / "topology.json").write_text(json.dumps({"machines": [{"hostnames": HOSTS, "nics": nics}, "junk"], "interfaces": 3}))
    expected = {(host, f"mlx5_0 port {number}"): 4e11 / number for host in HOSTS for number in (1, 2)}
    assert link_rates(read_run(tmp_path / "run")) == expected


def test_percentages_use_the_baselines_ceiling_where_it_fell() -> None:
    changes = dropped_ceilings(link_ceilings([row(FAST, 0.119e9)]), link_ceilings([row(SLOW, 0.06e9)]))
    (shown,) = with_ceilings_before(changes, "before", [row(SLOW, 0.06e9)])
    assert shown.percent_of_ceiling == 50.0 and shown.ceiling is not None and shown.ceiling.bytes_per_s == FAST.bytes_per_s
    assert (shown.ceiling.limited_by, shown.own) == (f"{FAST.limited_by} in before, now {SLOW.limited_by}", row(SLOW, 0.06e9))
    text = "of the bandwidth expected now: allreduce over mpi 100 %; other percentages are of the bandwidth expected before"
    assert present_percents([shown, row(FAST, 0.1e9, backend="gloo")]) == [text]
    assert present_percents([row(SLOW, 0.06e9)]) == []
    others = [row(FAST, 0.119e9), row(SLOW, 0.06e9, backend="gloo"), row(COPY, 1e9)]
    assert with_ceilings_before(changes, "before", others) == others


def report_of(a: Path, b: Path) -> Material:
    return Material(read_all([a, b]), a.parent / "page.html")


def test_pages_tables_and_csv_show_the_loss_and_the_percentages_of_both_limits(tmp_path: Path) -> None:
    a, b = run(tmp_path / "before", FAST, interface(1e9)), run(tmp_path / "after", SLOW, interface(0.5e9), busbw=0.06e9)
    page = report_of(a, b)
    assert page.concerns[0] == Concern(FINDING, "eth0 of n2: 1 → 0.5 Gb/s", "after")
    assert [page.rows(table)[0].percent_of_ceiling for table in page.tables] == [0.119e9 / 0.12e9 * 100, 50.0]
    assert of_ceiling(page.rows(page.tables[1])[0]) == "0.0600 of 0.120 GB/s (50 %, 100 % of the 0.0600 GB/s expected now)"
    both, alone, table = StringIO(), StringIO(), StringIO()
    report_run([a, b], Path("-"), "table", both)
    report_run([b], Path("-"), "table", alone)
    before, after = csv.DictReader(both.getvalue().splitlines())
    assert float(before["percent_of_baseline_ceiling"]) == float(before["percent_of_ceiling"])
    assert (float(after["percent_of_ceiling"]), float(after["percent_of_baseline_ceiling"])) == (100.0, 50.0)
    assert after["ceiling_limited_by"] == SLOW.limited_by and float(after["ceiling_bytes_per_s"]) == SLOW.bytes_per_s
    assert "percent_of_baseline_ceiling" not in alone.getvalue()
    report_run([a, b], None, "table", table)
    note = "since before: of the bandwidth expected now: allreduce over mpi 100 %; other percentages are of the bandwidth"
    assert note in table.getvalue()


def test_of_other_hosts_the_ceilings_are_a_note_and_percentages_stay(tmp_path: Path) -> None:
    a, b = run(tmp_path / "before", FAST, interface(1e9)), run(tmp_path / "after", SLOW, interface(0.5e9), ["n8", "n9"], 0.06e9)
    page = report_of(a, b)
    assert [each.severity for each in page.concerns if "expected bandwidth" in each.what] == [NOTE]
    assert page.rows(page.tables[1])[0].percent_of_ceiling == 100.0
