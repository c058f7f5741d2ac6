"""How far parts are from each other: what a source states, links between GPUs, and the PCI tree."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.machine.distance import ORDER, Distances, closeness
from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic, NumaNode, PciDevice, System
from collbench.machine.readers import nccl_xml
from tests.machine.machines import bridge, dgx, gpu_device, laptop, mesh, nic_device, pcie_box
from tests.machine.readers.nccl_files import gpu

GPU, NIC = "0000:18:00.0", "0000:1a:00.0"


def parts(*pci: PciDevice, numa: tuple[int | None, int | None] = (0, 0), **changes: Any) -> Machine:
    """A GPU and a NIC ("nic") on the addresses above, with the bridges given."""
    facts = {"numa_nodes": (NumaNode(0), NumaNode(1)), **changes}
    return Machine(pci=pci, gpus=(Gpu(GPU, 0, GPU, numa=numa[0]),), nics=(Nic("nic", NIC, rdma=True, numa=numa[1]),), **facts)


def below(*bridges: PciDevice, gpu: str | None, nic: str | None, **changes: Any) -> Machine:
    """A GPU and a NIC below these bridges, on NUMA node 0."""
    return parts(*bridges, gpu_device(GPU, gpu, 0), nic_device(NIC, nic, 0), **changes)


TOP = bridge("0000:10:00.0", None, 0)
SWITCH_TREE = [bridge("0000:10:00.0", None, 0, "bridge"), bridge("0000:11:00.0", "0000:10:00.0", 0)]
SWITCH_TREE += [bridge(f"0000:12:0{port}.0", "0000:11:00.0", 0) for port in (0, 1)]
LOWER = [bridge("0000:16:00.0", "0000:12:00.0", 0), bridge("0000:17:00.0", "0000:16:00.0", 0)]
HOST_BRIDGE = [bridge("0000:10:00.0", None, 0, "root", class_id=0x060000)]
HOST_BRIDGE += [bridge(f"0000:10:0{port}.0", "0000:10:00.0", 0, "bridge") for port in (1, 2)]
NO_PARENT = {f"pci/{GPU}/parent": "NVML does not report the bridge above a GPU"}
VIRTUAL_NICS = replace(dgx(), pci=tuple(replace(device, virtual=device.kind == "nic") for device in dgx().pci))
NODE = '<cpu numaid="{}" arch="x86_64" vendor="GenuineIntel" affinity="00000000,00000001">{}</cpu>'
CPUS = NODE.format(0, gpu("0000:18:00.0") + gpu("0000:2a:00.0", 1)) + NODE.format(1, gpu("0000:9a:00.0", 2))
OF_NCCL = nccl_xml.read(f'<system version="1">{CPUS}</system>', "topo.xml")
PATHS: dict[str, tuple[Machine, str, str, str]] = {
    "NCCL's XML leaves out root ports": (OF_NCCL, "0000:18:00.0", "0000:2a:00.0", "PHB"),
    "NCCL's XML, another processor": (OF_NCCL, "0000:18:00.0", "0000:9a:00.0", "SYS"),
    "itself": (dgx(), GPU, GPU, "X"),
    "over the NVSwitch": (dgx(), GPU, "0000:c4:00.0", "NV18"),
    "upstream and downstream ports of one switch": (dgx(), GPU, "mlx5_0", "PIX"),
    "other host bridges": (dgx(), GPU, "mlx5_2", "NODE"),
    "other sockets": (dgx(), GPU, "mlx5_4", "SYS"),
    "a mesh": (mesh(), "0000:03:00.0", "0000:83:00.0", "NV4"),
    "NUMA nodes of one socket": (mesh(), "0000:03:00.0", "mlx5_1", "SYS"),
    "two GPUs of a switch": (pcie_box(), "0000:03:00.0", "0000:04:00.0", "PIX"),
    "two root ports of one host bridge": (pcie_box(), "0000:81:00.0", "0000:82:00.0", "PHB"),
    "a box, other host bridges": (pcie_box(), "0000:03:00.0", "mlx5_0", "NODE"),
    "a box, other sockets": (pcie_box(), "0000:03:00.0", "0000:81:00.0", "SYS"),
    "functions of one card": (pcie_box(), "eno1", "eno2", "PIX"),
    "what a source states wins": (replace(dgx(), paths={(GPU, "mlx5_4"): "PXB"}), GPU, "mlx5_4", "PXB"),
    "switches below switches": (below(*SWITCH_TREE, *LOWER, gpu="0000:17:00.0", nic="0000:12:01.0"), GPU, "nic", "PXB"),
    "NCCL's XML shows a switch as one bridge": (below(TOP, gpu=TOP.address, nic=TOP.address), GPU, "nic", "PIX"),
    "NCCL's XML, a second switch": (below(TOP, bridge("0000:16:00.0", TOP.address, 0), gpu="0000:16:00.0", nic=TOP.address), GPU, "nic",
        "PXB"),
    "without root ports no other host bridge is claimed": (below(gpu=None, nic=None), GPU, "nic", "PHB"),
    "two NUMA nodes are far below any bridge": (parts(gpu_device(GPU, None, 0), nic_device(NIC, None, 1), numa=(0, 1), unknown=NO_PARENT),
        GPU, "nic", "SYS"),
    "a host bridge that is listed": (below(*HOST_BRIDGE, gpu="0000:10:01.0", nic="0000:10:02.0"), GPU, "nic", "PHB"),
    # Azure's files name their switches so: such a bridge cannot be read, but the file shows which devices it joins
    "a switch that a topology file names": (below(bridge("ffff:ff:01.0", None, 0, virtual=True), gpu="ffff:ff:01.0", nic="ffff:ff:01.0"),
        GPU, "nic", "PIX"),
    "a virtual function is where its bridge is": (VIRTUAL_NICS, GPU, "mlx5_0", "PIX"),
    "one NUMA node has all parts": (parts(gpu_device(GPU, None, None), nic_device(NIC, None, None), numa=(None, None),
        numa_nodes=(NumaNode(0),)), GPU, "nic", "PHB"),
}  # fmt: skip


@pytest.mark.parametrize("name", PATHS)
def test_path(name: str) -> None:
    machine, a, b, expected = PATHS[name]
    assert Distances(machine).path(a, b) == expected == Distances(machine).path(b, a)
    assert Distances(machine).why_unknown(a, b) is None


@pytest.mark.parametrize(("machine", "why"), [
    (parts(), "no PCI tree was read"),
    (parts(TOP), f"PCI device {GPU} was not read and PCI device {NIC} was not read"),
    (replace(parts(), gpus=(Gpu(GPU),)), f"{GPU} has no known PCI address"),
    (replace(parts(), gpus=(Gpu(GPU),), paths={("gpu1", "nic"): "PIX"}), "the matrix of distances has no row for it"),
    (replace(parts(), nics=()), "nic is not among the machine's parts"),
    (below(replace(TOP, virtual=True), gpu=TOP.address, nic=TOP.address), "a hypervisor made up the bridges above them"),
    (below(bridge(TOP.address, GPU, 0), gpu=TOP.address, nic=None), f"the bridges above {GPU} go in circles"),
    (below(gpu=None, nic=None, system=System(virtualization="kvm")), "a virtual machine (kvm) hides the PCIe switches"),
    (parts(gpu_device(GPU, None, None), nic_device(NIC, None, 0), numa=(None, 0)), f"the NUMA node of {GPU} is unknown"),
    (below(gpu=None, nic=None, unknown={f"pci/{GPU}/parent": "the tree was cut"}), "the tree was cut"),
])  # fmt: skip
def test_unknown_has_a_reason(machine: Machine, why: str) -> None:
    assert Distances(machine).path(GPU, "nic") is None
    assert Distances(machine).why_unknown(GPU, "nic") == why


@pytest.mark.parametrize(("links", "expected"), [
    ((GpuLink("a", "b", 4), GpuLink("b", "a", 4)), "NV4"), ((GpuLink("a", "b", 2), GpuLink("a", "b", 2)), "NV4"),
    ((GpuLink("b", "a", 12),), "NV12"), ((GpuLink("a", "b", 1, "xgmi"),), "XG1"),
    ((GpuLink("a", SWITCH, 18), GpuLink("b", SWITCH, 16)), "NV16"), ((GpuLink("a", SWITCH, 18),), None),
    ((GpuLink("a", "b", 0), GpuLink("b", "a", -3)), None),
])  # fmt: skip
def test_links_between_gpus_are_counted(links: tuple[GpuLink, ...], expected: str | None) -> None:
    assert Distances(Machine(gpus=(Gpu("a"), Gpu("b")), gpu_links=links)).path("a", "b") == expected


def test_links_whose_far_end_is_unknown_and_parts_in_one_circle_of_bridges() -> None:
    machine = dgx()
    counted = Distances(replace(machine, gpu_links=tuple(replace(link, b=None) for link in machine.gpu_links)))
    assert (counted.path(GPU, "0000:19:00.0"), counted.path(GPU, "mlx5_0")) == (None, "PIX")
    assert "counts the GPUs' links" in counted.why_unknown(GPU, "0000:19:00.0")
    # The GPU is above the NIC, and the NIC above the GPU: which bridge they have in common depends on where one starts
    tree = (PciDevice(GPU, "gpu", "0000:05:00.0"), PciDevice("0000:05:00.0", "switch", NIC, virtual=True), PciDevice(NIC, "nic", GPU))
    circle = Distances(parts(*tree))
    assert circle.path(GPU, "nic") is circle.path("nic", GPU) is None
    assert circle.why_unknown(GPU, "nic") == f"the bridges above {GPU} go in circles"


def near_top() -> Machine:
    """Two NICs below one switch, "nic" below the GPU's own switch in it."""
    top, ports = "0000:10:00.0", ["0000:20:00.0", "0000:30:00.0"]
    pci = [bridge(top, None, 0), *(bridge(port, top, 0) for port in ports), bridge("0000:22:00.0", ports[0], 0)]
    pci += [gpu_device(GPU, "0000:22:00.0", 0), nic_device(NIC, ports[0], 0), nic_device("0000:31:00.0", ports[1], 0)]
    machine = parts(*pci)
    return replace(machine, nics=(*machine.nics, Nic("far", "0000:31:00.0", rdma=True, numa=0)))


NICS = (Nic("eth0", virtual="bridge"), Nic("eth1"), Nic("eth2"))
BY_PATHS = Machine(gpus=(Gpu("gpu0"),), nics=NICS, paths={("gpu0", "eth0"): "PIX", ("gpu0", "eth1"): "SYS", ("gpu0", "eth2"): "PXB"})
WITH_RDMA = replace(
    BY_PATHS, nics=(*NICS[:2], replace(NICS[2], rdma=False), Nic("mlx5_0", rdma=True)), paths={**BY_PATHS.paths, ("gpu0", "mlx5_0"): "NODE"}
)
NEAR: dict[str, tuple[Machine, str, list[str]]] = {
    "two NICs of a switch": (dgx(), GPU, ["mlx5_0", "mlx5_1"]), "one NIC beside each GPU": (mesh(), "0000:83:00.0", ["mlx5_2"]),
    "a nearer one is no RDMA device": (pcie_box(), "0000:81:00.0", ["mlx5_0"]),
    "no NIC is near": (parts(), GPU, []), "the NIC below the GPU's own switch": (near_top(), GPU, ["nic"]),
    "a virtual interface is not the nearest NIC": (BY_PATHS, "gpu0", ["eth2"]),
    "an RDMA device is nearer than others": (WITH_RDMA, "gpu0", ["mlx5_0"]),
}  # fmt: skip


@pytest.mark.parametrize(("machine", "gpu", "names"), NEAR.values(), ids=NEAR)
def test_near_nics(machine: Machine, gpu: str, names: list[str]) -> None:
    assert [nic.name for nic in Distances(machine).near_nics(gpu)] == names


def test_near_words_come_first_and_a_single_numa_node_is_that_of_all_parts() -> None:
    words = ["SYS", "NODE", "PHB", "PXB", "PIX", "NV18", "X", "oddity"]
    assert sorted(words, key=closeness) == ["X", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS", "oddity"]
    assert {Distances(near_top()).path(GPU, nic) for nic in ("nic", "far")} == {"PXB"}
    assert Distances(PATHS["one NUMA node has all parts"][0]).numa_of("nic") == Distances(laptop()).numa_of("docker0") == 0


ADDRESSES = [f"0000:{bus:02x}:00.0" for bus in range(6)]
DEVICES = st.builds(
    PciDevice, st.sampled_from(ADDRESSES), st.sampled_from(["gpu", "nic", "switch", "bridge", "root"]), st.sampled_from([None, *ADDRESSES]),
    numa=st.sampled_from([None, 0, 1]), virtual=st.booleans(),
)  # fmt: skip


@given(st.lists(DEVICES, max_size=8), st.sampled_from([None, *ADDRESSES]), st.sampled_from([None, *ADDRESSES]))
def test_any_tree_gives_a_word_or_a_reason(devices: list[PciDevice], gpu: str | None, nic: str | None) -> None:
    machine = Machine(pci=tuple(devices), gpus=(Gpu("gpu0", address=gpu),), nics=(Nic("nic", nic),))
    found, why = Distances(machine).path("gpu0", "nic"), Distances(machine).why_unknown("gpu0", "nic")
    assert found in ORDER if found else why
    assert found == Distances(machine).path("nic", "gpu0")
