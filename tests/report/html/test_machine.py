"""The machines in the page: equal ones once, and what limits marked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.machine.model import Machine
from collbench.machine.peak.ceiling import Ceiling
from collbench.machine.peak.limits import GpuLinkLimit, Limit, NicLimit, PcieLimit, limited_by
from collbench.machine.snapshot import topology_json
from collbench.report.html.chart import Section
from collbench.report.html.machine import section
from collbench.report.html.page import html
from collbench.report.machine_picture import style
from collbench.report.material import Material
from collbench.results.reader import read_run
from collbench.results.row import Row
from tests.machine.machines import dgx, laptop, mesh, pcie_box
from tests.results.rows import make_row, store


def ceiling_of(rate: float, *parts: Limit) -> Ceiling:
    """A ceiling that these links set."""
    return Ceiling("topology", rate, limited_by(parts), "ring", "counted", limited_by_parts=parts)


EIGHT = NicLimit(ports=((8, 400e9),))
SLOT = PcieLimit(generation=4, lanes=16)
NVLINK = ceiling_of(450e9, GpuLinkLimit(link="NVLink", count=18, bytes_per_s=25e9))
NICS = ceiling_of(400e9, EIGHT)


def shown(
    folder: Path,
    machines: Sequence[Machine],
    ceiling: Ceiling = NVLINK,
    rows: Sequence[Row] | None = None,
    also: dict[str, object] | None = None,
) -> Section:
    """Return the section of a run on these machines; `also` replaces entries of topology.json."""
    path = store(folder / "run", rows or [make_row(ceiling=ceiling)], hosts=[machine.hostname for machine in machines])
    (path / "topology.json").write_text(json.dumps({**topology_json(machines), **(also or {})}))
    made = section(Material([read_run(path)], folder / "page.html"))
    assert made is not None
    return made


def test_equal_machines_are_drawn_once(tmp_path: Path) -> None:
    made = shown(tmp_path, [replace(dgx(), hostname=f"node{number}") for number in range(1, 9)])
    (chart,) = made.charts
    assert chart.title == "node[1-8] (8 equal machines)"
    assert chart.caption == "node[1-8]: 8 × H100 80GB HBM3, 8 NICs at 400 Gb/s InfiniBand. Marked as limiting: NVLink 18×25 GB/s."
    assert chart.drawing.count(">limits<") == 8
    assert chart.drawing.startswith("<svg ")


def test_what_limits_is_in_the_table_of_parts(tmp_path: Path) -> None:
    rows = [make_row(ceiling=NVLINK), make_row(operation="alltoall", ceiling=NICS), make_row(8, operation="alltoall", ceiling=NICS)]
    made = shown(tmp_path, [dgx()], rows=rows)
    assert made.charts[0].caption.endswith("Marked as limiting: NVLink 18×25 GB/s; NIC 8×400 Gb/s.")
    parts = {row[0]: row for row in made.charts[0].table.rows}
    assert parts["GPU 0"] == [
        "GPU 0",
        "0000:18:00.0, H100 80GB HBM3, 80 GiB, PCIe Gen5 x16; NVLink: 18 to a switch, each 26.6 GB/s",
        "limits",
    ]
    assert parts["NIC mlx5_0 (ib0)"][2] == "limits" and parts["processors"][2] == ""


@pytest.mark.parametrize(
    ("machine", "ceiling", "marks"),
    [
        (dgx(), ceiling_of(1e9, EIGHT), 8),
        (mesh(), ceiling_of(1e9, GpuLinkLimit(link="NVLink", count=12, bytes_per_s=25e9)), 3),
        (pcie_box(), ceiling_of(1e9, PcieLimit(generation=4, lanes=8)), 1),
        (laptop(), ceiling_of(1e9, NicLimit(ports=((1, 1e9),), interface="enp2s0")), 1),
        (dgx(), ceiling_of(1e9, EIGHT.of(host="dgx01")), 8),
        (dgx(), ceiling_of(1e9, NicLimit(ports=((1, 1e9),), interface="eth0")), 0),
        (dgx(), Ceiling("topology", 1e9, "NIC 8×400 Gb/s"), 0),  # of an earlier version: text alone
    ],
)
def test_marks_are_what_the_ceiling_names(machine: Machine, ceiling: Ceiling, marks: int, tmp_path: Path) -> None:
    made = shown(tmp_path, [machine], ceiling)
    assert made.charts[0].drawing.count(">limits<") == marks
    assert ("Marked as limiting" in made.charts[0].caption) == bool(marks)
    assert ("Limiting, but not marked in this drawing: " in made.charts[0].caption) == (not marks)


def test_a_link_of_another_host_is_not_marked_here(tmp_path: Path) -> None:
    slow = replace(pcie_box(), hostname="slow")
    made = shown(tmp_path, [replace(mesh(), hostname="fast"), slow], ceiling_of(1e9, SLOT.of(host="slow")))
    assert [chart.drawing.count(">limits<") for chart in made.charts] == [0, 3]


def test_measured_references_limit_no_link(tmp_path: Path) -> None:
    made = shown(tmp_path, [laptop()], Ceiling("measured", 30e9, "memory copy and sum"))
    assert made.charts[0].caption.endswith("None of its links is a limit.")


def test_drawings_have_no_style_of_their_own_and_the_first_has_the_pattern(tmp_path: Path) -> None:
    made = shown(tmp_path, [replace(dgx(), hostname="a"), replace(mesh(), hostname="b")])
    assert all("<style" not in chart.drawing for chart in made.charts)
    assert [chart.drawing.count('<pattern id="probe-hatch"') for chart in made.charts] == [1, 0]


def test_the_page_has_the_rules_of_the_drawings_in_its_one_style_sheet(tmp_path: Path) -> None:
    shown(tmp_path, [dgx()])
    text = html(Material([read_run(tmp_path / "run")], tmp_path / "page.html"))
    assert text.count("<style") == 1
    assert style() in text


def test_runs_that_show_nothing_have_no_section(tmp_path: Path) -> None:
    assert section(Material([read_run(store(tmp_path / "run", [make_row()]))], tmp_path / "page.html")) is None


def test_a_foreign_machine_is_a_sentence(tmp_path: Path) -> None:
    made = shown(tmp_path, [], also={"machines": [{"hostname": "x"}, 7]})
    assert any("`collbench probe`" in text for text in made.texts)
    assert any("not a machine" in text for text in made.texts)


def test_names_that_would_be_markup(tmp_path: Path) -> None:
    evil = '"><script>alert(1)</script>\u202e'
    made = shown(tmp_path, [replace(dgx(), hostname=evil)], ceiling_of(1e9, EIGHT.of(host=evil)))
    assert "<script" not in made.charts[0].drawing
    assert all("\u202e" not in text for text in (made.charts[0].title, made.charts[0].caption))


def test_many_kinds_are_counted_and_not_drawn(tmp_path: Path) -> None:
    made = shown(tmp_path, [replace(laptop(), hostname=f"n{number}", doubts=(str(number),)) for number in range(6)])
    assert len(made.charts) == 4
    assert made.texts[0].startswith("2 more machines of 2 other kinds are not drawn")
