"""The machines in the page: equal ones once, and what limits marked."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from collbench.machine.model import Machine, Nic, Port
from collbench.machine.peak.ceiling import Ceiling
from collbench.machine.peak.limits import GpuLinkLimit, Limit, NicLimit, PcieLimit, limited_by
from collbench.machine.snapshot import topology_json
from collbench.plugins.drawings.host_links import HostLink, describe_links, network_picture
from collbench.plugins.drawings.section import section
from collbench.plugins.drawings.svg import style
from collbench.report.html.chart import Chart, Section
from collbench.report.html.page import html
from collbench.report.kinds import SuspectLink
from collbench.report.material import Material
from collbench.results.reader import Run, read_run
from collbench.results.row import Row
from tests.machine.machines import dgx, laptop, mesh, pcie_box
from tests.results.rows import make_row, store


def ceiling_of(rate: float, *parts: Limit) -> Ceiling:
    return Ceiling("topology", rate, limited_by(parts), "ring", "counted", limited_by_parts=parts)


EIGHT = NicLimit(ports=((8, 400e9),))
SLOT = PcieLimit(generation=4, lanes=16)
NVLINK = ceiling_of(450e9, GpuLinkLimit(link="NVLink", count=18, bytes_per_s=25e9))


def shown(folder: Path, machines: Sequence[Machine], *ceilings: Ceiling, also: dict[str, object] | None = None) -> Section:
    path = store(
        folder / "run", [make_row(ceiling=ceiling) for ceiling in ceilings or (NVLINK,)], hosts=[machine.hostname for machine in machines]
    )
    (path / "topology.json").write_text(json.dumps({**topology_json(machines), **(also or {})}))
    made = section(Material([read_run(path)], folder / "page.html"))
    assert made is not None
    return made


def test_what_limits_is_in_the_table_of_parts(tmp_path: Path) -> None:
    (chart,) = shown(tmp_path, [dgx()], NVLINK, ceiling_of(400e9, EIGHT)).charts
    assert chart.caption.endswith("Marked as limiting: NVLink 18×25 GB/s; NIC 8×400 Gb/s.")
    marks = {row[0]: row[2] for row in chart.table.rows}
    assert (marks["GPU 0"], marks["NIC mlx5_0 (ib0)"], marks["processors"]) == ("limits", "limits", "")


@pytest.mark.parametrize(("ceiling", "marks"), [
    (ceiling_of(1e9, EIGHT.of(host="dgx01")), 8), (ceiling_of(1e9, NicLimit(ports=((1, 1e9),), interface="eth0")), 0),
    (Ceiling("topology", 1e9, "NIC 8×400 Gb/s"), 0),  # of an earlier version: text alone
])  # fmt: skip
def test_marks_are_what_the_ceiling_names(ceiling: Ceiling, marks: int, tmp_path: Path) -> None:
    made = shown(tmp_path, [dgx()], ceiling)
    assert made.charts[0].drawing.count(">limits<") == marks
    assert ("Marked as limiting" in made.charts[0].caption) == bool(marks)
    assert ("Limiting, but not marked in this drawing: " in made.charts[0].caption) == (not marks)


def test_links_of_other_hosts_and_measured_references_limit_nothing_here(tmp_path: Path) -> None:
    slow = replace(pcie_box(), hostname="slow")
    made = shown(tmp_path, [replace(mesh(), hostname="fast"), slow], ceiling_of(1e9, SLOT.of(host="slow")))
    assert [chart.drawing.count(">limits<") for chart in made.charts] == [0, 3]
    made = shown(tmp_path / "second", [laptop()], Ceiling("measured", 30e9, "memory copy and sum"))
    assert made.charts[0].caption.endswith("None of its links is a limit.")


def test_drawings_have_one_style_sheet_and_the_first_has_the_pattern(tmp_path: Path) -> None:
    made = shown(tmp_path, [replace(dgx(), hostname="a"), replace(mesh(), hostname="b")])
    assert all("<style" not in chart.drawing for chart in made.charts)
    assert [chart.drawing.count('<pattern id="probe-hatch"') for chart in made.charts] == [1, 0]
    shown(tmp_path / "second", [dgx()])
    text = html(Material([read_run(tmp_path / "second" / "run")], tmp_path / "second" / "page.html"))
    assert text.count("<style") == 1
    assert style() in text


def test_without_machines_there_is_no_section_foreign_and_many_ones_are_sentences_and_names_no_markup(tmp_path: Path) -> None:
    assert section(Material([read_run(store(tmp_path / "bare", [make_row()]))], tmp_path / "page.html")) is None
    made = shown(tmp_path, [], also={"machines": [{"hostname": "x"}, 7]})
    assert any("`collbench probe`" in text for text in made.texts)
    assert any("not a machine" in text for text in made.texts)
    evil = '"><script>alert(1)</script>\u202e'
    made = shown(tmp_path / "second", [replace(dgx(), hostname=evil)], ceiling_of(1e9, EIGHT.of(host=evil)))
    assert "<script" not in made.charts[0].drawing
    assert all("\u202e" not in text for text in (made.charts[0].title, made.charts[0].caption))
    made = shown(tmp_path / "third", [replace(laptop(), hostname=f"n{number}", doubts=(str(number),)) for number in range(6)])
    assert len(made.charts) == 4
    assert made.texts[0].startswith("2 more machines of 2 other kinds are not drawn")


# The hosts with their links.


def cluster(folder: Path, rates: dict[str, float | None], *, name: str = "run", row: Row | None = None, moved: bool = True) -> Run:
    """Store a run on hosts with one virtual interface each, by the rate of its shaper; the counters show the traffic of eth0."""
    machines = [
        Machine(hostname=host, nics=(Nic("eth0", ports=(Port(shaped_bits_per_s=rate),), virtual="veth"), Nic("docker0", virtual="bridge")))
        for host, rate in rates.items()
    ]
    counts = {"tx_bytes": 10**9, "rx_bytes": 10**9, "tx_packets": 10**6}
    carried = {host: {"interfaces": {"eth0": counts, "docker0": {"tx_bytes": 9000}, "lo": counts}} for host in rates}
    evidence = {"moved": {"hosts": carried}} if moved else {}
    path = store(folder / name, [replace(row or make_row(ceiling=None, percent_of_ceiling=None), evidence=evidence)], hosts=list(rates))
    (path / "topology.json").write_text(json.dumps(topology_json(machines)))
    return read_run(path)


def machines_section(folder: Path, *runs: Run) -> Section:
    made = section(Material(runs, folder / "page.html"))
    assert made is not None
    return made


def mark_of(chart: Chart) -> dict[str, str]:
    return {row[0]: row[5] for row in chart.table.rows}


def tcp(rate: float, host: str | None = None) -> Ceiling:
    return replace(ceiling_of(rate / 8, NicLimit(ports=((1, rate),), interface="eth0", host=host)), kind="network")


def test_a_rate_before_and_after_and_the_slow_link(tmp_path: Path) -> None:
    before = cluster(tmp_path, {"a": 1e9, "b": 1e9}, row=make_row(ceiling=tcp(1e9)))
    after = cluster(tmp_path, {"a": 1e9, "b": 8e8}, name="after", row=make_row(ceiling=tcp(8e8, "b")))
    network, slow, other = machines_section(tmp_path, before, after).charts
    assert network.caption == "2 hosts. Slow: eth0 of b (1 → 0.8 Gb/s). The expected rates are limited by eth0 of b (1 → 0.8 Gb/s)."
    assert mark_of(network) == {"a": "", "b": "slow"}
    assert network.table.rows[1][2:4] == ["1", "0.8"]
    assert (slow.title, slow.drawing.count(">slow<"), slow.drawing.count(">1 → 0.8 Gb/s<")) == ("b", 1, 1)
    assert "Slow: eth0 of b (1 → 0.8 Gb/s)." in slow.caption
    assert (other.title, other.drawing.count(">slow<"), other.drawing.count(">1 Gb/s<")) == ("a", 0, 1)
    assert "eth0 1 Gb/s, TCP" not in other.caption  # it limited before, and something else does now


def test_a_ceiling_of_an_earlier_version_is_that_of_the_slowest_interface(tmp_path: Path) -> None:
    row = make_row(ceiling=Ceiling("network", 1e8, "NIC eth0 0.8 Gb/s, TCP of b", "ring", "tc"))
    network, *nodes = machines_section(tmp_path, cluster(tmp_path, {"a": 1e9, "b": 8e8}, row=row)).charts
    assert mark_of(network) == {"a": "", "b": "limits"}
    assert {chart.title: chart.caption.rpartition(". ")[2] for chart in nodes} == {
        "a": "None of its links is a limit.",
        "b": "Marked as limiting: NIC eth0 0.8 Gb/s, TCP of b.",
    }


def test_without_counters_the_interface_chosen_for_the_traffic_is_drawn(tmp_path: Path) -> None:
    run = cluster(tmp_path, {"a": 1e9, "b": 1e9}, moved=False)
    (nodes,) = machines_section(tmp_path, run).charts
    assert "Virtual interfaces are not drawn: eth0, docker0." in nodes.drawing
    topology = json.loads((run.path / "topology.json").read_text())
    interfaces = [{"name": "eth0", "virtual": "veth", "shaped_bits_per_s": 1e9}] * 2
    (run.path / "topology.json").write_text(json.dumps({**topology, "interfaces": interfaces}))
    network, nodes = machines_section(tmp_path, run).charts
    assert [row[:4] for row in network.table.rows] == [["a", "eth0", "1", "1"], ["b", "eth0", "1", "1"]]
    assert ">eth0<" in nodes.drawing


def test_one_host_has_no_network_and_another_machine_is_drawn_apart(tmp_path: Path) -> None:
    (chart,) = machines_section(tmp_path, cluster(tmp_path, {"a": 1e9})).charts
    assert chart.title == "a"
    runs = [cluster(tmp_path / "second", {"a": 1e9, "b": 1e9}, name=name) for name in ("one", "two")]
    topology = json.loads((runs[1].path / "topology.json").read_text())
    topology["machines"][0]["system"]["kernel"] = "7.0"
    (runs[1].path / "topology.json").write_text(json.dumps(topology))
    made = machines_section(tmp_path / "second", *runs)
    assert len(made.charts) == 3 and made.texts == ["not the same machine in all runs (see what differs, below): a, b"]


def test_paths_and_many_hosts_of_a_network() -> None:
    links = [HostLink(host, "eth0") for host in ("a", "b", "c")]
    paths = [SuspectLink(("a", "c"), True), SuspectLink(("a", "b"), False)]
    assert describe_links(links, paths) == "3 hosts. Slow: the path between a and c. Perhaps slow: the path between a and b."
    drawing = network_picture(links, paths)
    assert (drawing.count(">slow<"), drawing.count(">suspect<")) == (1, 1)
    assert "the path between a and c" in drawing
    links = [HostLink(f"n{number:03}", "eth0", 1e9, 1e9, "slow" if number == 77 else "") for number in range(100)]
    drawing = network_picture(links)
    assert drawing.count('class="nic"') == 2
    assert "n[000-076,078-099]" in drawing and ">n077<" in drawing
    apart = network_picture([replace(link, after=1e9 + number) for number, link in enumerate(links)])
    assert apart.count('class="nic"') == 16 and ">n077<" in apart and "84 more hosts are not drawn." in apart
