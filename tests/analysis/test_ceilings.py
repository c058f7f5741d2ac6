"""Links and ceilings that fell between two runs are findings, and percentages use the baseline's ceiling."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from collbench.analysis.ceilings import (
    CeilingChange,
    LinkChange,
    dropped_ceilings,
    link_ceilings,
    link_rates,
    present_percents,
    with_ceilings_before,
)
from collbench.analysis.compare import Comparison, compare
from collbench.analysis.concerns import FINDING, NOTE, Concern
from collbench.analysis.launches import read_all
from collbench.machine.peak.ceiling import Ceiling
from collbench.report.cases import of_ceiling
from collbench.report.material import Material
from collbench.report.runs import report_run
from collbench.results.reader import read_run
from collbench.results.row import Row
from tests.results.rows import COPY, make_row, store

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


def both(tmp_path: Path) -> Comparison:
    a = run(tmp_path / "before", FAST, interface(1e9))
    return compare(a, run(tmp_path / "after", SLOW, interface(0.5e9), busbw=0.059e9))


def test_a_slower_link_is_named_with_its_host_and_comes_first(tmp_path: Path) -> None:
    lost = both(tmp_path).fallen
    assert lost.links == (LinkChange("n2", "eth0", 1e9, 0.5e9),)
    assert lost.ceilings == (
        CeilingChange("allreduce", "mpi", "ring", 0.12e9, 0.06e9, FAST.limited_by, SLOW.limited_by),
        CeilingChange("allreduce", "mpi", "bound", 0.12e9, 0.06e9, FAST.limited_by, SLOW.limited_by),
    )
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
    assert link_rates(read_run(tmp_path / "run")) == {
        (host, f"mlx5_0 port {number}"): 4e11 / number for host in HOSTS for number in (1, 2)
    }  # fmt: skip


def test_percentages_use_the_baselines_ceiling_where_it_fell() -> None:
    changes = dropped_ceilings(link_ceilings([row(FAST, 0.119e9)]), link_ceilings([row(SLOW, 0.06e9)]))
    (shown,) = with_ceilings_before(changes, "before", [row(SLOW, 0.06e9)])
    assert shown.percent_of_ceiling == 50.0 and shown.ceiling is not None and shown.ceiling.bytes_per_s == FAST.bytes_per_s
    assert shown.ceiling.limited_by == f"{FAST.limited_by} in before, now {SLOW.limited_by}"
    assert shown.own == row(SLOW, 0.06e9)
    assert present_percents([shown, row(FAST, 0.1e9, backend="gloo")]) == [
        "of the bandwidth expected now: allreduce over mpi 100 %; other percentages are of the bandwidth expected before"
    ]
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
