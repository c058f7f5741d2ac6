"""A machine as a tree of text, word for word where it matters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.machine.model import SWITCH, Disagreement, Gpu, GpuLink, Machine, Nic, NumaNode, PcieLink, Port, System
from collbench.report.machine import tree_lines
from tests.machine.machines import MACHINES, dgx, infiniband, laptop, mesh, pcie_box


def tree(machine: Machine) -> list[str]:
    return [line.text for line in tree_lines(machine)]


def line(machine: Machine, word: str) -> str:
    return next(text for text in tree(machine) if word in text)


def test_a_small_machine_whole() -> None:
    assert tree(laptop()) == [
        "laptop: no GPU on the PCI bus, 1 NIC at 1 Gb/s Ethernet",
        "  Intel(R) Core(TM) i5-8250U CPU @ 1.60GHz, 1 socket, 4 cores, 8 threads, 16 GiB, kernel 6.8.0-45-generic",
        "└─ NUMA node 0: CPUs 0-7, 16 GiB",
        "   └─ NIC enp2s0  0000:02:00.0  RTL8111, no RDMA  PCIe Gen1 x1",
        "         port 1: 1 Gb/s Ethernet, active, MTU 1500",
        "interfaces without a speed: docker0 (bridge)",
        "read from: hand-made",
    ]


def test_a_switch_with_what_is_below_it() -> None:
    assert tree(dgx())[2:12] == [
        "├─ NUMA node 0: CPUs 0-55,112-167, 1 TiB",
        "│  ├─ PCIe switch 0000:16:00.0, Gen5 x16 up",
        "│  │  ├─ GPU 0  0000:18:00.0  H100 80GB HBM3, 80 GiB  PCIe Gen5 x16",
        "│  │  │     NVLink: 18 to a switch, each 26.6 GB/s",
        "│  │  ├─ GPU 1  0000:19:00.0  H100 80GB HBM3, 80 GiB  PCIe Gen5 x16",
        "│  │  │     NVLink: 18 to a switch, each 26.6 GB/s",
        "│  │  ├─ NIC mlx5_0 (ib0)  0000:1a:00.0  ConnectX-7, RDMA  PCIe Gen5 x16",
        "│  │  │     port 1: 400 Gb/s InfiniBand, active, MTU 4096 [4X NDR]",
        "│  │  └─ NIC mlx5_1 (ib1)  0000:1b:00.0  ConnectX-7, RDMA  PCIe Gen5 x16",
        "│  │        port 1: 400 Gb/s InfiniBand, active, MTU 4096 [4X NDR]",
    ]


def test_gpudirect_once_per_state_and_reason() -> None:
    assert line(dgx(), "capable") == (
        "  capable; use not checked: nvidia_peermem is loaded, PIX apart: GPU 0, 1 with mlx5_0, mlx5_1; "
        "GPU 2, 3 with mlx5_2, mlx5_3; GPU 4, 5 with mlx5_4, mlx5_5; GPU 6, 7 with mlx5_6, mlx5_7"
    )
    assert line(pcie_box(), "capable").endswith(": GPU 0, 1, 2, 3 with mlx5_0")
    assert not [text for text in tree(laptop()) if "GPUDirect" in text]


def test_links_of_a_mesh_and_numa_nodes_without_parts() -> None:
    assert line(mesh(), "NVLink: 4 to GPU 0").strip(" │") == "NVLink: 4 to GPU 0, 4 to GPU 2, 4 to GPU 3, each 25 GB/s"
    assert line(mesh(), "NUMA node 0") == "├─ NUMA node 0: CPUs 0-5,48-53, 64 GiB"


def test_a_slow_link_shows_what_it_could_be() -> None:
    assert line(pcie_box(), "0000:82:00.0").endswith("PCIe Gen4 x8 of Gen4 x16 (downtrained)")
    machine = dgx()
    idle = tuple(replace(device, link=PcieLink(2.5, 16, 32.0, 16)) for device in machine.pci)
    sleepy = replace(machine, pci=idle)
    assert line(sleepy, "GPU 0 ").endswith("PCIe Gen1 x16 of Gen5 x16 (idle GPUs slow down)")
    assert "PCIe Gen1 x16 of Gen5 x16 (downtrained)" in line(sleepy, "NIC mlx5_0")


@pytest.mark.parametrize(
    ("port", "text"),
    [
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
    ],
)
def test_ports(port: Port, text: str) -> None:
    machine = Machine(numa_nodes=(NumaNode(0),), nics=(Nic("n", ports=(port,)),))
    assert tree(machine)[3].strip() == text


def test_a_machine_that_is_known_by_its_matrix_alone() -> None:
    gpus = tuple(Gpu(f"gpu{index}", index, vendor="nvidia", numa=index) for index in range(2))
    machine = Machine(
        gpus=gpus, nics=(Nic("mlx5_0", rdma=True),), gpu_links=(GpuLink("gpu0", "gpu1", 4), GpuLink("gpu1", None, 4)),
        paths={("gpu0", "mlx5_0"): "PXB", ("gpu1", "mlx5_0"): "SYS"}, sources=("matrix",),
    )  # fmt: skip
    assert tree(machine) == [
        "host name unknown: 2 × NVIDIA GPU, 1 NIC of unknown speed",
        "├─ NUMA node 0: CPUs unknown",
        "│  └─ GPU 0  NVIDIA GPU, memory unknown  PCIe unknown (no PCI address)",
        "│        NVLink: 4 to GPU 1",
        "├─ NUMA node 1: CPUs unknown",
        "│  └─ GPU 1  NVIDIA GPU, memory unknown  PCIe unknown (no PCI address)",
        "│        NVLink: 4 (far end unknown)",
        "└─ NUMA node unknown",
        "   └─ NIC mlx5_0  model unknown, RDMA  PCIe unknown (no PCI address)",
        "         ports unknown",
        "GPUDirect RDMA (a GPU and its nearest NICs):",
        "  unknown: peer-memory modules were not looked at, and dma-buf support is unknown: GPU 0 with mlx5_0",
        "  not capable: SYS apart: staged through the host: GPU 1 with mlx5_0",
        "read from: matrix",
    ]


def test_sixteen_gpus() -> None:
    gpus = tuple(Gpu(f"gpu{index}", index, numa=index // 8) for index in range(16))
    found = tree(Machine(gpus=gpus, gpu_links=tuple(GpuLink(gpu.key, SWITCH, 6) for gpu in gpus)))
    assert [text.split("─ ")[1].split("  ")[0] for text in found if "─ GPU " in text] == [
        "GPU 0, 1, 2, 3, 4, 5, 6, 7",
        "GPU 8, 9, 10, 11, 12, 13, 14, 15",
    ]


def test_parts_that_are_distinguished_are_not_reported_as_one() -> None:
    gpus = tuple(Gpu(f"gpu{index}", index, numa=0, model="H100") for index in range(4))
    links = tuple(GpuLink(gpu.key, SWITCH, 18 if gpu.index != 2 else 17) for gpu in gpus)
    found = [text.strip("│├└─ ") for text in tree(Machine(gpus=gpus, gpu_links=links))[2:8]]
    assert [text.split("  ")[0] for text in found] == [
        "GPU 0, 1", "NVLink: 18 to a switch", "GPU 2", "NVLink: 17 to a switch", "GPU 3", "NVLink: 18 to a switch",
    ]  # fmt: skip


def test_interfaces_of_software() -> None:
    nics = (
        Nic("bond0", ports=(Port(rate_bits_per_s=2e11),), virtual="bond"),
        Nic("eth0", ports=(Port(shaped_bits_per_s=1e9),), virtual="veth"),
        Nic("eth1", ports=(Port(),), virtual="virtio"),
        Nic("eth2", virtual="virtio"),
    )
    machine = Machine(nics=nics, unknown={"nics/eth1/ports/1/rate_bits_per_s": "virtual (virtio): its speed means nothing"})
    assert tree(machine)[0] == "host name unknown: GPUs unknown, no NIC but virtual ones"
    assert tree(machine)[2:4] == [
        "interfaces without a speed: eth0 (veth, shaped to 1 Gb/s), eth1, eth2 (virtio)",
        "interfaces made of others: bond0 (bond, 200 Gb/s)",
    ]
    assert not [text for text in tree(machine) if "means nothing" in text]


def test_nothing_known() -> None:
    assert tree(Machine()) == ["host name unknown: GPUs unknown, NICs unknown", "└─ NUMA nodes unknown", "read from: nothing"]


def test_reasons_doubts_and_disagreements_are_reported() -> None:
    machine = replace(
        laptop(),
        unknown={
            "gpus": "no driver",
            "system/driver": "no driver",
            "system/dma_buf": "no driver",
            "nics/enp2s0/ports/1/mtu_bytes": "cut off",
            "nics/enp2s0/ports/2/lid": "cut off",
            "nics/enp2s0/address": "cut off",
            "pci/0000:02:00.0/link": "not read",
            "pci/0000:00:1c.0/parent": "not read",
            "system/peer_memory": "no driver",
            "pci/0000:02:00.0/numa": "the kernel reports -1",
            "system/shm_bytes": "not asked",
            "gpu_links/gpu0>switch/bytes_per_s": "not printed",
            "new/fact_s": "not printed",
        },
        doubts=("a veth reports 10000 Mb/s",),
        disagreements=(Disagreement("system/cores", "4", "sysfs", "8", "hwloc"),),
    )
    assert tree(machine)[-10:-1] == [
        "unknown:",
        "  MTU of enp2s0; LID of enp2s0 port 2; PCI address of enp2s0: cut off",
        "  PCIe link of enp2s0; bridge above of device 0000:00:1c.0: not read",
        "  size of /dev/shm: not asked",
        "  speed of a link of gpu0 to a switch; new of fact_s: not printed",
        "doubts:",
        "  a veth reports 10000 Mb/s",
        "sources disagree:",
        "  number of cores: 4 (sysfs) taken, not 8 (hwloc)",
    ]


def test_a_bridge_slower_than_what_is_below_it_is_shown() -> None:
    machine = mesh()
    slow = PcieLink(16.0, 4, 16.0, 16)
    pci = tuple(replace(device, link=slow) if device.address == "0000:01:00.0" else device for device in machine.pci)
    alone = replace(machine, pci=pci, nics=machine.nics[1:])
    assert "PCIe switch 0000:01:00.0, Gen4 x4 of Gen4 x16 (downtrained) up" in line(alone, "0000:01:00.0")
    assert not [text for text in tree(replace(machine, nics=machine.nics[1:])) if "0000:01:00.0" in text]


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
