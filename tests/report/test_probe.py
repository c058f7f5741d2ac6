"""What `probe` and `doctor` print."""

import io
import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.doctor.finding import Finding, pages
from collbench.machine.model import SWITCH, Disagreement, Gpu, GpuLink, Machine, Nic, NumaNode, PcieLink, Port, System
from collbench.report.doctor import print_findings
from collbench.report.frame import Line
from collbench.report.machine import MOST_PARTS, document, matrix_lines, probe_text, tree_lines
from collbench.report.screen import wrapped
from tests.machine.machines import MACHINES, dgx, infiniband, laptop, mesh, pcie_box

SLOW = Finding("CB2101", "severe", "box", "GPU 3 has half its lanes", "Gen4 x8 of Gen4 x16", "reseat it")
OLD = Finding("CB2102", "note", "laptop", "an old kernel", "6.8", "update it")
BETWEEN = Finding("CB2103", "warning", None, "kernels differ", "6.8, 5.4", "make them equal")


def printed(
    *machines: Machine, format: str = "table", differences: Sequence[str] = (), color: str = "never", findings: Sequence[Finding] = ()
) -> str:
    stream = io.StringIO()
    probe_text(machines, differences, format, stream, color, findings=findings)
    return stream.getvalue()


def test_a_table_is_the_tree_and_how_many_findings_there_are() -> None:
    lines = printed(pcie_box(), findings=[SLOW, OLD, SLOW]).splitlines()
    assert lines[0] == "box: 4 × A100-PCIE-40GB, 1 NIC at 100 Gb/s InfiniBand, 1 at 25 Gb/s Ethernet, 1 down"
    assert lines[1] == "  AMD EPYC 7402 24-Core Processor, 2 sockets, 48 cores, 96 threads, 512 GiB, kernel 5.4.0-150-generic"
    assert lines[-1] == "findings: 2 severe, 1 note; `collbench doctor` shows them"
    assert printed(laptop()).splitlines()[-1] == "findings: none"


def test_equal_machines_once_alike_or_with_the_same_parts() -> None:
    nodes = [replace(dgx(), hostname=f"dgx0{number}") for number in range(1, 4)]
    text = printed(*nodes, laptop(), differences=("laptop has no GPU, dgx01 has 8",))
    assert text.count("NVLink: 18") == 8
    assert text.startswith(
        "4 nodes: 3 alike, 1 differs\ndifferences between nodes:\n  laptop has no GPU, dgx01 has 8\n\ndgx[01-03]: 8 × H100"
    )
    assert "\n\nlaptop: no GPU on the PCI bus, 1 NIC at 1 Gb/s Ethernet\n" in text
    nodes = [replace(dgx(), hostname=name) for name in "ab"]
    assert printed(*nodes).startswith("2 nodes, all alike\n")
    assert printed(*nodes, differences=("a has kernel 5, b has kernel 6",)).startswith("2 nodes with the same parts\ndifferences")
    assert printed(dgx(), mesh()).startswith("2 nodes, no two alike\n")


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


def test_on_a_narrow_terminal_lines_go_on_below_their_beginning() -> None:
    lines = [
        Line("│  └─ GPU 0  H100 80GB HBM3, 80 GiB  PCIe Gen5 x16"),
        Line("  MTU of mlx5_0: sysfs does not hold it, ask", "foot"),
        Line("short"),
    ]
    assert [line.text for line in wrapped(lines, 40)] == [
        "│  └─ GPU 0  H100 80GB HBM3, 80 GiB", "│       PCIe Gen5 x16", "  MTU of mlx5_0: sysfs does not hold it,", "    ask", "short",
    ]  # fmt: skip
    assert list(wrapped(lines, None)) == lines


def test_matrices_of_several_machines_have_their_names_and_hostile_ones_stay_text() -> None:
    lines = printed(mesh(), laptop(), format="matrix").splitlines()
    assert lines[:4] == ["2 nodes, no two alike", "", "jwb0001", "      GPU0  GPU1  GPU2  GPU3  NIC0  NIC1  NIC2  NIC3  CPU affinity  NUMA"]
    assert "laptop" in lines
    assert printed(mesh(), format="matrix").startswith("      GPU0")
    machine = replace(pcie_box(), nics=(Nic("a\x1b[31m\nb"),), numa_nodes=(NumaNode(0, "0-\x07"), NumaNode(1)))
    found = matrix(machine)
    assert all(text.isprintable() for text in found)
    assert "NIC0 a?[31m?b" in found


def test_json_has_each_finding_once_with_its_machine_and_no_infinities() -> None:
    found = document([pcie_box(), laptop()], ["kernels differ"], [SLOW, OLD, BETWEEN])
    assert [[each["code"] for each in entry["findings"]] for entry in found["machines"]] == [["CB2101", "CB2103"], ["CB2102"]]
    assert found["differences"] == ["kernels differ"]
    machine = Machine(hostname="a\x1b\x7f\x9b\u202e", gpu_links=(GpuLink("a", "b", 1, bytes_per_s=float("inf")),), nics=(Nic("n"),))
    text = printed(machine, format="json")
    assert text.replace("\n", "").isascii() and text.replace("\n", "").isprintable()
    assert json.loads(text)["machines"][0]["gpu_links"][0]["bytes_per_s"] is None


def test_colours_only_where_they_are_asked_for_and_unknown_ones_and_formats_are_refused() -> None:
    assert "\x1b" not in printed(dgx())
    assert printed(dgx(), color="always").startswith("\x1b[1mdgx01")
    with pytest.raises(UsageError, match=r"--format 'xml': .*table, matrix, json"):
        printed(dgx(), format="xml")
    with pytest.raises(UsageError, match="--color 'pink' is unknown"):
        printed(dgx(), color="pink")


# A machine as a tree of text, word for word where it matters.


def tree(machine: Machine) -> list[str]:
    return [line.text for line in tree_lines(machine)]


def line(machine: Machine, word: str) -> str:
    return next(text for text in tree(machine) if word in text)


def test_a_slow_link_or_bridge_shows_what_it_could_be() -> None:
    assert line(pcie_box(), "0000:82:00.0").endswith("PCIe Gen4 x8 of Gen4 x16 (downtrained)")
    machine = dgx()
    idle = tuple(replace(device, link=PcieLink(2.5, 16, 32.0, 16)) for device in machine.pci)
    sleepy = replace(machine, pci=idle)
    assert line(sleepy, "GPU 0 ").endswith("PCIe Gen1 x16 of Gen5 x16 (idle GPUs slow down)")
    assert "PCIe Gen1 x16 of Gen5 x16 (downtrained)" in line(sleepy, "NIC mlx5_0")
    machine = mesh()
    slow = PcieLink(16.0, 4, 16.0, 16)
    pci = tuple(replace(device, link=slow) if device.address == "0000:01:00.0" else device for device in machine.pci)
    alone = replace(machine, pci=pci, nics=machine.nics[1:])
    assert "PCIe switch 0000:01:00.0, Gen4 x4 of Gen4 x16 (downtrained) up" in line(alone, "0000:01:00.0")
    assert not [text for text in tree(replace(machine, nics=machine.nics[1:])) if "0000:01:00.0" in text]


@pytest.mark.parametrize(("port", "text"), [
    (Port(), "port 1: rate unknown, link layer unknown, state unknown"),
    (Port(2, state="down", phys_state="polling", link_layer="infiniband"), "port 2: InfiniBand, down (polling)"),
    (infiniband(100, "EDR", sm_lid=0), "port 1: 100 Gb/s InfiniBand, active, MTU 4096, no subnet manager [4X EDR]"),
    (
        Port(rate_bits_per_s=100e9, rate_text="200 Gb/sec (4X HDR)"),
        "port 1: 100 Gb/s, link layer unknown, state unknown [200 Gb/sec (4X HDR)]",
    ),
    (
        Port(rate_bits_per_s=54.5e9, state="init", link_layer="ethernet", shaped_bits_per_s=1e9),
        "port 1: 54.5 Gb/s Ethernet, shaped to 1 Gb/s, init",
    ),
])  # fmt: skip
def test_ports(port: Port, text: str) -> None:
    machine = Machine(numa_nodes=(NumaNode(0),), nics=(Nic("n", ports=(port,)),))
    assert tree(machine)[3].strip() == text


def test_equal_parts_are_one_line_and_distinguished_ones_are_not() -> None:
    gpus = tuple(Gpu(f"gpu{index}", index, numa=index // 8) for index in range(16))
    found = tree(Machine(gpus=gpus, gpu_links=tuple(GpuLink(gpu.key, SWITCH, 6) for gpu in gpus)))
    assert [text.split("─ ")[1].split("  ")[0] for text in found if "─ GPU " in text] == [
        "GPU 0, 1, 2, 3, 4, 5, 6, 7",
        "GPU 8, 9, 10, 11, 12, 13, 14, 15",
    ]
    gpus = tuple(Gpu(f"gpu{index}", index, numa=0, model="H100") for index in range(4))
    links = tuple(GpuLink(gpu.key, SWITCH, 18 if gpu.index != 2 else 17) for gpu in gpus)
    found = [text.strip("│├└─ ") for text in tree(Machine(gpus=gpus, gpu_links=links))[2:8]]
    assert [text.split("  ")[0] for text in found] == [
        "GPU 0, 1", "NVLink: 18 to a switch", "GPU 2", "NVLink: 17 to a switch", "GPU 3", "NVLink: 18 to a switch",
    ]  # fmt: skip


def test_software_interfaces_are_apart_and_nothing_known_is_said() -> None:
    nics = (
        Nic("bond0", ports=(Port(rate_bits_per_s=2e11),), virtual="bond"),
        Nic("eth0", ports=(Port(shaped_bits_per_s=1e9),), virtual="veth"),
        Nic("eth1", ports=(Port(),), virtual="virtio"),
        Nic("eth2", virtual="virtio"),
    )
    machine = Machine(nics=nics, unknown={"nics/eth1/ports/1/rate_bits_per_s": "virtual (virtio): its speed means nothing"})
    assert tree(machine)[0] == "host name unknown: GPUs unknown, no NIC, 4 virtual interfaces"
    assert tree(machine)[2:4] == [
        "interfaces without a speed: eth0 (veth, shaped to 1 Gb/s), eth1, eth2 (virtio)",
        "interfaces made of others: bond0 (bond, 200 Gb/s)",
    ]
    assert not [text for text in tree(machine) if "means nothing" in text]
    assert tree(Machine()) == ["host name unknown: GPUs unknown, NICs unknown", "└─ NUMA nodes unknown", "read from: nothing"]


def test_reasons_doubts_and_disagreements_are_reported() -> None:
    machine = replace(
        laptop(),
        unknown={
            "gpus": "no driver", "system/driver": "no driver", "system/dma_buf": "no driver", "nics/enp2s0/ports/1/mtu_bytes": "cut off",
            "nics/enp2s0/ports/2/lid": "cut off", "nics/enp2s0/address": "cut off", "pci/0000:02:00.0/link": "not read",
            "pci/0000:00:1c.0/parent": "not read", "system/peer_memory": "no driver", "pci/0000:02:00.0/numa": "the kernel reports -1",
            "system/shm_bytes": "not asked", "gpu_links/gpu0>switch/bytes_per_s": "not printed", "new/fact_s": "not printed",
        },
        doubts=("a veth reports 10000 Mb/s",),
        disagreements=(Disagreement("system/cores", "4", "sysfs", "8", "hwloc"),),
    )  # fmt: skip
    assert tree(machine)[-10:-1] == [
        "unknown:",
        "  MTU of enp2s0; LID of enp2s0 port 2; PCI address of enp2s0: cut off",
        "  PCIe link of enp2s0; bridge above of device 0000:00:1c.0: not read",
        "  size of /dev/shm: not asked",
        "  speed of a link of gpu0 to a switch; new of fact_s: not printed",
        "doubts:", "  a veth reports 10000 Mb/s", "sources disagree:", "  number of cores: 4 (sysfs) taken, not 8 (hwloc)",
    ]  # fmt: skip


@pytest.mark.parametrize("name", MACHINES)
def test_hostile_names_stay_on_their_line(name: str) -> None:
    evil = "x\x1b[2J\n\u202e\u200by\udc80"
    machine = MACHINES[name]()
    machine = replace(
        machine, hostname=evil, sources=(evil,), doubts=(evil,), unknown={evil: evil}, system=System(cpu_model=evil, kernel=evil),
        pci=tuple(replace(device, name=evil) for device in machine.pci),
        gpus=tuple(replace(gpu, model=evil) for gpu in machine.gpus),
        nics=tuple(replace(nic, name=f"{evil}{place}", virtual=nic.virtual and evil) for place, nic in enumerate(machine.nics)),
    )  # fmt: skip
    found = tree(machine)
    assert all(text.isprintable() for text in found)
    assert len([text for text in found if "NIC x?[2J???y?" in text]) == sum(nic.virtual is None for nic in machine.nics)


# The table of distances.


def matrix(machine: Machine) -> list[str]:
    return [line.text for line in matrix_lines(machine)]


def test_links_memory_alone_virtual_interfaces_and_too_many_parts() -> None:
    assert matrix(mesh())[1] == "GPU0  X     NV4   NV4   NV4   PIX   SYS   SYS   SYS   18-23,66-71   3"
    assert matrix(Machine(numa_nodes=(NumaNode(4, ""),), gpus=(Gpu("gpu0"),)))[1] == "GPU0  X     –             4"
    assert matrix(laptop())[0].split() == ["NIC0", "CPU", "affinity", "NUMA"]
    assert matrix(Machine()) == ["GPUs unknown, NICs unknown: no distances, since fewer than two parts are known"]
    found = matrix(Machine(nics=tuple(Nic(f"eth{number}") for number in range(MOST_PARTS + 72))))
    assert (len(found), found[-1]) == (1 + MOST_PARTS + 4, "72 more parts are not shown: see --format json")


SEVERE = Finding("CB2101", "severe", "dgx01", "GPU 0 runs on 8 of 16 lanes", "LnkSta x8", "reseat the card")
NOTE = Finding("CB2104", "note", "dgx01", "1 link at 2.5 GT/s", "LnkSta 2.5 GT/s", "read it again")


def doctor_output(*findings: Finding, machines: Sequence[Machine] = (dgx(),), **options: Any) -> tuple[str, int]:
    """What is printed, and the exit code."""
    stream = io.StringIO()
    code = print_findings(findings, machines, (), stream=stream, **{"format": "table", "color": "never", **options})
    return stream.getvalue(), code


def test_verbose_adds_the_meaning_the_check_by_hand_and_all_hosts() -> None:
    hosts = [f"node{number}" for number in range(9)]
    machines = [replace(dgx(), hostname=host) for host in hosts]
    text, _ = doctor_output(*(replace(NOTE, hostname=host) for host in hosts), machines=machines, verbose=True)
    first, _, _, means, check, *commands = text.splitlines()
    assert all(host in first for host in hosts)
    page = pages()["CB2104"]
    assert (means, check) == (f"  means:    {' '.join(page.means.split())}", "  check:")
    assert commands[: len(page.check.strip().splitlines())] == [f"    {line}" for line in page.check.strip().splitlines()]


def test_the_exit_code_the_colour_and_the_format_and_no_control_characters() -> None:
    assert (doctor_output(NOTE)[1], doctor_output(SEVERE, NOTE)[1]) == (0, 1)
    assert doctor_output(SEVERE, color="always")[0].startswith("\x1b[1;31msevere")
    assert "\x1b" not in doctor_output(SEVERE, color="auto")[0]
    assert "\x1b" not in doctor_output(replace(SEVERE, what="\x1b[2J"))[0]
    with pytest.raises(UsageError, match=r"--format 'xml': .*table, json"):
        doctor_output(SEVERE, format="xml")


def test_the_same_finding_on_several_nodes_is_reported_once() -> None:
    machines = tuple(replace(dgx(), hostname=f"dgx0{number}") for number in (1, 2, 3))
    text, _ = doctor_output(SEVERE, replace(SEVERE, hostname="dgx03"), machines=machines)
    assert text.splitlines()[0] == "severe   CB2101  dgx01 and dgx03: GPU 0 runs on 8 of 16 lanes"
    assert "2 findings: 2 severe" in text
