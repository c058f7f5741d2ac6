"""What operators trip on, one by one: a machine with that fault gets its code, and the same machine without it gets none."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from collbench.machine.doctor.examine import examine
from collbench.machine.doctor.finding import pages
from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic, NumaNode, PcieLink, Port
from collbench.machine.readers.nccl_log import NcclLog, read
from tests.doctor.machines import changed, codes, with_link, with_port, with_system
from tests.machine.machines import dgx, ethernet, mesh, pcie_box

GPU, GPU_PORT, NIC = "0000:18:00.0", "0000:17:00.0", "0000:1a:00.0"
ROCE = replace(dgx(), nics=tuple(replace(nic, ports=(ethernet(400, 4096),)) for nic in dgx().nics))
BLUEFIELD = Nic("mlx5_bond_0", "0000:aa:00.0", "BlueField-3", True, 1, (ethernet(200, 4096),), ("bond0",))
UNDRIVEN = Nic(NIC, NIC, "ConnectX-7", rdma_missing=True)
SCIF = Nic("scif0", None, None, True, virtual="scif")
PLAIN = replace(dgx(), nics=(Nic("eth0", None, "ConnectX-6", False, 0, (ethernet(100, 9000),), ("eth0",)),))
HALF_RATE = with_link(with_link(dgx(), NIC, PcieLink(32.0, 8, 32.0, 8)), "0000:17:02.0", PcieLink(32.0, 8, 32.0, 8))
LOST = tuple(replace(link, count=2) if link.a == GPU else link for link in dgx().gpu_links)
WAITS = tuple(replace(nic, ports=(replace(nic.ports[0], counters={"port_xmit_wait": 10**9}),)) for nic in dgx().nics)
NODES = (NumaNode(0, "0-79"), NumaNode(8, "80-159"))


def log(*lines: str) -> NcclLog:
    """A log of these messages."""
    return read("\n".join(f"dgx01:1:2 [0] NCCL INFO {line}" for line in lines), "nccl.log")


SEND, RECEIVE = "Channel 00/0 : 0[0] -> 8[0] [send] via {}", "Channel 00/0 : 8[0] -> 0[0] [receive] via {}"
DIRECT = [line.format("NET/IB/0/GDRDMA") for line in (SEND, RECEIVE)]

FAULTS = [
    ("a link on fewer lanes", "CB2101", with_link(dgx(), GPU, PcieLink(32.0, 8, 32.0, 16)), dgx()),
    ("a link at a lower speed", "CB2102", with_link(dgx(), NIC, PcieLink(16.0, 16, 32.0, 16)), dgx()),
    ("an idle GPU", "CB2104", with_link(dgx(), GPU, PcieLink(2.5, 16, 32.0, 16)), dgx()),
    ("a slot with less than the card", "CB2103", with_link(dgx(), GPU_PORT, PcieLink(16.0, 16, 16.0, 16)), dgx()),
    ("ACS above GPUs and NICs", "CB2105", changed(dgx(), "pci", GPU_PORT, acs=("SrcValid", "ReqRedir")), dgx()),
    ("ACS at ports without a name", "CB2108", with_system(Machine(), acs_ports=8, acs_on=3), with_system(Machine(), acs_ports=8, acs_on=0)),
    ("an IOMMU that translates", "CB2106", with_system(dgx(), iommu="translating"), with_system(dgx(), iommu="passthrough")),
    ("a NIC at another socket", "CB2501", pcie_box(), mesh()),
    ("a GPU without a near NIC", "CB2502", replace(dgx(), nics=dgx().nics[:2]), dgx()),
    ("a NUMA node of -1", "CB2402", replace(dgx(), gpus=(*dgx().gpus, Gpu("gpu8", model="L4"))), dgx()),
    ("a slot slower than the wire", "CB2201", HALF_RATE, dgx()),
    ("a port down", "CB2202", with_port(dgx(), "mlx5_3", state="down", phys_state="polling"), dgx()),
    ("no subnet manager", "CB2203", with_port(dgx(), "mlx5_3", state="init", sm_lid=0), dgx()),
    ("another fabric among the rails", "CB2204", replace(dgx(), nics=(*dgx().nics, BLUEFIELD)), ROCE),
    ("a network of software", "CB2205", replace(dgx(), nics=(*dgx().nics, SCIF)), dgx()),
    ("RoCE in small packets", "CB2206", with_port(ROCE, "mlx5_0", mtu_bytes=1024), ROCE),
    ("TCP in small frames", "CB2207", with_port(PLAIN, "eth0", mtu_bytes=1500), PLAIN),
    ("a slow rail", "CB2208", with_port(dgx(), "mlx5_3", rate_bits_per_s=100e9), dgx()),
    ("lost lanes", "CB2209", with_port(dgx(), "mlx5_3", lanes=1, max_lanes=4), with_port(dgx(), "mlx5_3", lanes=4, max_lanes=4)),
    ("an RDMA card without a driver", "CB2210", replace(dgx(), nics=(*dgx().nics[1:], UNDRIVEN)), dgx()),
    ("errors on the wire", "CB2221", with_port(dgx(), "mlx5_3", counters={"symbol_error": 65535}), dgx()),
    ("a link that flaps", "CB2222", with_port(dgx(), "mlx5_3", counters={"link_downed": 255}), dgx()),
    ("packets lost", "CB2223", with_port(dgx(), "mlx5_3", counters={"out_of_sequence": 100_000}), dgx()),
    ("congestion", "CB2224", with_port(ROCE, "mlx5_3", counters={"rp_cnp_handled": 10**9}), ROCE),
    ("a port that waits", "CB2225", with_port(replace(dgx(), nics=WAITS), "mlx5_3", counters={"port_xmit_wait": 10**11}), dgx()),
    ("a GPU that lost its NVLinks", "CB2301", replace(dgx(), gpu_links=LOST), dgx()),
    ("GPU memory as NUMA nodes", "CB2304", replace(dgx(), numa_nodes=(*NODES, NumaNode(252, ""))), replace(dgx(), numa_nodes=NODES)),
    ("no peer-to-peer", "CB2303", replace(dgx(), peer_access={(GPU, "0000:19:00.0"): "CNS"}), dgx()),
    ("a misleading file", "CB2403", replace(dgx(), doubts=("16 GT/s for a V100",)), dgx()),
    ("a small /dev/shm", "CB2401", with_system(dgx(), shm_bytes=64 << 20), with_system(dgx(), shm_bytes=64 << 30)),
    ("no way for GPUDirect RDMA", "CB2503", with_system(dgx(), peer_memory=(), dma_buf=False), dgx()),
]  # fmt: skip
LOGS = [
    ("a fall back to TCP", "CB2511", [SEND.format("NET/Socket/0")]),
    ("staged through the host", "CB2512", [SEND.format("NET/IB/0")]),
    ("half a proof", "CB2513", DIRECT[:1]),
    ("via SHM", "CB2514", [*DIRECT, "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"]),
    ("a speed made up", "CB2515", [*DIRECT, "Could not get speed from /sys/class/net/eth1/speed. Defaulting to 10 Gbps."]),
]


@pytest.mark.parametrize(("code", "sick", "healthy"), [each[1:] for each in FAULTS], ids=[each[0] for each in FAULTS])
def test_a_fault_and_the_same_machine_without_it(code: str, sick: Machine, healthy: Machine) -> None:
    assert code in codes(sick)
    assert codes(healthy) == []


@pytest.mark.parametrize(("code", "lines"), [each[1:] for each in LOGS], ids=[each[0] for each in LOGS])
def test_a_log_with_a_fault_and_one_without(code: str, lines: list[str]) -> None:
    assert codes(dgx(), logs=(log(*lines),)) == [code]
    assert codes(dgx(), logs=(log(*DIRECT),)) == []


def test_a_pcie_card_with_links_that_are_off_is_normal() -> None:
    """H100 PCIe has 12 of 18 links on."""
    cards = tuple(replace(gpu, model="H100 PCIe", links_off=6) for gpu in dgx().gpus)
    assert not codes(replace(dgx(), gpus=cards, gpu_links=tuple(GpuLink(gpu.key, SWITCH, 12) for gpu in cards)))


def test_what_a_virtual_machine_shows_of_its_links_is_unknown() -> None:
    slow = PcieLink(2.5, 1, 32.0, 16)
    guest = with_system(with_link(with_link(dgx(), GPU, slow), NIC, slow), virtualization="kvm", iommu="translating")
    assert not codes(changed(guest, "pci", GPU_PORT, acs=("SrcValid", "ReqRedir")))


def test_a_container_that_sees_two_of_eight_gpus() -> None:
    """The kernel shows all PCI devices, the driver two GPUs; no module of the host is seen."""
    inside = replace(dgx(), gpus=dgx().gpus[:2], gpu_links=dgx().gpu_links[:2])
    assert not codes(with_system(inside, container="docker", peer_memory=(), dma_buf=False))


def test_a_machine_of_which_only_the_matrix_is_known() -> None:
    paths = {(gpu.key, nic.key): "PIX" if place == other else "SYS" for place, gpu in enumerate(dgx().gpus)
             for other, nic in enumerate(dgx().nics)}  # fmt: skip
    bare = [Nic(nic.name, rdma=True) for nic in dgx().nics]
    gpus = [Gpu(gpu.key, place) for place, gpu in enumerate(dgx().gpus)]
    assert not codes(Machine(gpus=tuple(gpus), nics=tuple(bare), gpu_links=dgx().gpu_links, paths=paths))


def test_ports_of_a_laptop_are_left_alone() -> None:
    dock = Nic("enx00", None, "RTL8153", False, None, (Port(state="down", link_layer="ethernet"),), ("enx00",))
    assert not codes(Machine("laptop", nics=(dock,)))


def test_every_finding_has_figures_and_something_to_do() -> None:
    found = [finding for _, _, sick, _ in FAULTS for finding in examine([sick])]
    found += [finding for _, _, lines in LOGS for finding in examine([dgx()], [log(*lines)])]
    assert all(finding.evidence and finding.remedy and not finding.remedy.endswith(".") for finding in found)
    numbered = {code for code in pages() if re.match("CB2([1-4]|50|51[1-6])", code)} - {"CB2107", "CB2302", "CB2404", "CB2504", "CB2516"}
    assert numbered <= {finding.code for finding in found}
