"""What `probe` prints in its three formats."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from collbench.errors import UsageError
from collbench.machine.doctor.finding import Finding
from collbench.machine.model import GpuLink, Machine, Nic
from collbench.machine.snapshot import machines_of
from collbench.report.frame import Line
from collbench.report.machine import document, probe_text
from collbench.report.screen import wrapped
from tests.machine.machines import MACHINES, dgx, infiniband, laptop, mesh, pcie_box

SLOW = Finding("CB2101", "severe", "box", "GPU 3 has half its lanes", "Gen4 x8 of Gen4 x16", "reseat it")
OLD = Finding("CB2102", "note", "laptop", "an old kernel", "6.8", "update it")
BETWEEN = Finding("CB2103", "warning", None, "kernels differ", "6.8, 5.4", "make them equal")


def printed(*machines: Machine, format: str = "table", differences: tuple[str, ...] = (), color: str = "never", **more: object) -> str:
    stream = io.StringIO()
    findings = more.get("findings", [])
    assert isinstance(findings, list)
    probe_text(machines, differences, format, stream, color, findings=findings)
    return stream.getvalue()


def test_a_table_is_the_tree_and_how_many_findings_there_are() -> None:
    lines = printed(pcie_box(), findings=[SLOW, OLD, SLOW]).splitlines()
    assert lines[0] == "box: 4 × A100-PCIE-40GB, 1 NIC at 100 Gb/s InfiniBand, 1 at 25 Gb/s Ethernet, 1 down"
    assert lines[1] == "  AMD EPYC 7402 24-Core Processor, 2 sockets, 48 cores, 96 threads, 512 GiB, kernel 5.4.0-150-generic"
    assert lines[-1] == "findings: 2 severe, 1 note; `collbench doctor` shows them"
    assert printed(laptop()).splitlines()[-1] == "findings: none"


def test_equal_machines_once() -> None:
    nodes = [replace(dgx(), hostname=f"dgx0{number}") for number in range(1, 4)]
    text = printed(*nodes, laptop(), differences=("laptop has no GPU, dgx01 has 8",))
    assert text.count("NVLink: 18") == 8
    assert text.startswith(
        "4 nodes: 3 alike, 1 differs\ndifferences between nodes:\n  laptop has no GPU, dgx01 has 8\n\ndgx[01-03]: 8 × H100"
    )
    assert "\n\nlaptop: no GPU on the PCI bus, 1 NIC at 1 Gb/s Ethernet\n" in text


def test_the_odd_ones_of_a_cluster_on_one_screen() -> None:
    nodes = [replace(dgx(), hostname=f"n{number:03}") for number in range(64)]
    system = replace(nodes[9].system, memory_bytes=nodes[9].system.memory_bytes + 4096)  # type: ignore[operator]
    nodes[9] = replace(nodes[9], system=system)  # every node of a real cluster has a few KiB more or less
    nodes[13] = replace(nodes[13], gpus=nodes[13].gpus[:7])
    slow = replace(nodes[30].nics[3], ports=(infiniband(200, "HDR", lid=23),))
    nodes[30] = replace(nodes[30], nics=(*nodes[30].nics[:3], slow, *nodes[30].nics[4:]))
    lines = printed(*nodes).splitlines()
    assert len(lines) <= 52
    assert lines[:7] == [
        "64 nodes: 62 alike, 2 differ",
        "n013, unlike n000:",
        "  without GPU 7  0000:c4:00.0  H100 80GB HBM3, 80 GiB  PCIe Gen5 x16; NVLink: 18 to a switch, each 26.6 GB/s",
        "n030, unlike n000:",
        "  NIC mlx5_3 (ib3)  0000:3e:00.0  ConnectX-7, RDMA  PCIe Gen5 x16; port 1: 200 Gb/s InfiniBand, active, MTU 4096 [4X HDR]",
        "",
        "n[000-012,014-029,031-063]: 8 × H100 80GB HBM3, 8 NICs at 400 Gb/s InfiniBand",
    ]


def test_many_odd_ones_are_counted() -> None:
    nodes = [replace(dgx(), hostname=f"n{number:03}") for number in range(200)]
    for number in range(12):
        nodes[number] = replace(nodes[number], nics=nodes[number].nics[: number % 8], gpus=nodes[number].gpus[: 1 + number // 8])
    lines = printed(*nodes).splitlines()
    assert lines[0] == "200 nodes: 188 alike, 12 differ" and len(lines) < 100
    assert "4 more nodes differ: `collbench probe --format json` has them all" in lines


def test_alike_or_with_the_same_parts() -> None:
    nodes = [replace(dgx(), hostname=name) for name in "ab"]
    assert printed(*nodes).startswith("2 nodes, all alike\n")
    assert printed(*nodes, differences=("a has kernel 5, b has kernel 6",)).startswith("2 nodes with the same parts\ndifferences")
    assert printed(dgx(), mesh()).startswith("2 nodes, no two alike\n")


def test_on_a_narrow_terminal_lines_go_on_below_their_beginning() -> None:
    lines = [
        Line("│  └─ GPU 0  H100 80GB HBM3, 80 GiB  PCIe Gen5 x16"),
        Line("  MTU of mlx5_0: sysfs does not hold it, ask", "foot"),
        Line("short"),
    ]
    assert [line.text for line in wrapped(lines, 40)] == [
        "│  └─ GPU 0  H100 80GB HBM3, 80 GiB",
        "│       PCIe Gen5 x16",
        "  MTU of mlx5_0: sysfs does not hold it,",
        "    ask",
        "short",
    ]
    assert list(wrapped(lines, None)) == lines


def test_matrices_of_several_machines_have_their_names() -> None:
    lines = printed(mesh(), laptop(), format="matrix").splitlines()
    assert lines[:4] == ["2 nodes, no two alike", "", "jwb0001", "      GPU0  GPU1  GPU2  GPU3  NIC0  NIC1  NIC2  NIC3  CPU affinity  NUMA"]
    assert "laptop" in lines
    assert printed(mesh(), format="matrix").startswith("      GPU0")


@pytest.mark.parametrize("name", MACHINES)
def test_json_reads_back_as_the_same_machine(name: str) -> None:
    machine = MACHINES[name]()
    data = json.loads(printed(machine, format="json", findings=[SLOW]))
    assert list(data) == ["schema", "machines", "differences"]
    assert {"hostname", "cpus", "numa_nodes", "gpus", "nics", "links", "findings"} <= set(data["machines"][0])
    assert machines_of(data, "probe.json") == [machine]


def test_json_has_links_cpus_and_gpudirect() -> None:
    entry = document([pcie_box()], [], [])["machines"][0]
    assert entry["cpus"] == {
        "model": "AMD EPYC 7402 24-Core Processor", "vendor": "AMD", "architecture": "x86_64", "sockets": 2, "cores": 48, "threads": 96,
    }  # fmt: skip
    assert {"kind": "pcie", "from": "0000:82:00.0", "to": "0000:80:03.1", "speed_gt_per_s": 16.0, "width": 8, "max_speed_gt_per_s": 16.0,
            "max_width": 16} in entry["links"]  # fmt: skip
    assert {"kind": "gpudirect", "from": "0000:03:00.0", "to": "eno1", "path": "SYS", "state": "not capable",
            "why": "the NIC is not an RDMA device"} in entry["links"]  # fmt: skip
    assert {"kind": "nvlink", "from": "0000:03:00.0", "to": "0000:43:00.0", "count": 4, "bytes_per_s": 25e9} in (
        document([mesh()], [], [])["machines"][0]["links"]
    )


def test_json_has_each_finding_once_with_its_machine() -> None:
    found = document([pcie_box(), laptop()], ["kernels differ"], [SLOW, OLD, BETWEEN])
    assert [[each["code"] for each in entry["findings"]] for entry in found["machines"]] == [["CB2101", "CB2103"], ["CB2102"]]
    assert found["differences"] == ["kernels differ"]


def test_json_has_no_infinities_and_no_control_characters() -> None:
    machine = Machine(hostname="a\x1b\x7f\x9b\u202e", gpu_links=(GpuLink("a", "b", 1, bytes_per_s=float("inf")),), nics=(Nic("n"),))
    text = printed(machine, format="json")
    assert text.replace("\n", "").isascii() and text.replace("\n", "").isprintable()
    assert json.loads(text)["machines"][0]["gpu_links"][0]["bytes_per_s"] is None


def test_colours_only_where_they_are_asked_for() -> None:
    assert "\x1b" not in printed(dgx())
    assert printed(dgx(), color="always").startswith("\x1b[1mdgx01")


def test_unknown_formats_and_colours() -> None:
    with pytest.raises(UsageError, match=r"--format 'xml': .*table, matrix, json"):
        printed(dgx(), format="xml")
    with pytest.raises(UsageError, match="--color 'pink' is unknown"):
        printed(dgx(), color="pink")
