"""hwloc's XML, versions 1 to 3: nodes, processors, the PCI tree and its links, NVLinks counted, NICs; hostile XML is refused."""

import shutil
import subprocess
from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, NumaNode, PciDevice, PcieLink, Port
from collbench.machine.readers import hwloc
from collbench.machine.readers.hwloc import HwlocLinks, nvlinks, pcie

PROLOGUE = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'


def core(first: int) -> str:
    return f'<object type="Core"><object type="PU" os_index="{first}"/><object type="PU" os_index="{first + 1}"/></object>'


def socket(number: int, children: str = "") -> str:
    """A package with a NUMA node of 1 GiB and two cores with two threads."""
    cpus, node = f"0x000000{'f0' if number else '0f'}", f"0x0000000{1 << number}"
    return (
        f'<object type="Package" os_index="{number}" cpuset="{cpus}" nodeset="{node}">'
        '<info name="CPUVendor" value="GenuineIntel"/><info name="CPUModel" value="A processor"/>'
        f'<object type="NUMANode" os_index="{number}" cpuset="{cpus}" nodeset="{node}" local_memory="1073741824"/>'
        f"{core(4 * number)}{core(4 * number + 2)}{children}</object>"
    )


def gpu(address: str, index: int, model: str = "NVIDIA H100 80GB HBM3", speed: str = "63.015385") -> str:
    return (
        f'<object type="PCIDev" gp_index="{100 + index}" pci_busid="{address}" pci_type="0302 [10de:2330] [10de:16c1] a1 00" '
        f'pci_link_speed="{speed}"><object type="OSDev" gp_index="{200 + index}" name="nvml{index}" osdev_type="12">'
        f'<info name="GPUModel" value="{model}"/><info name="NVIDIAUUID" value="GPU-{index}"/></object></object>'
    )


def bridge(address: str, children: str, gp_index: int = 300) -> str:
    return (
        f'<object type="Bridge" gp_index="{gp_index}" bridge_type="1-1" depth="1" bridge_pci="0000:[01-0f]" pci_busid="{address}" '
        f'pci_type="0604 [1000:c030] [1000:c030] b0 00" pci_link_speed="63.015385">{children}</object>'
    )


NIC = (
    '<object type="PCIDev" gp_index="110" pci_busid="0000:05:00.0" pci_type="0207 [15b3:101b] [15b3:0007] 00 00">'
    '<info name="PCIVendor" value="Mellanox Technologies"/><info name="PCIDevice" value="MT28908 Family [ConnectX-6]"/>'
    '<object type="OSDev" name="ib0" osdev_type="16"/>'
    '<object type="OSDev" name="mlx5_0" osdev_type="48"><info name="NodeGUID" value="0002:c903:00f9:bfa0"/>'
    '<info name="Port1State" value="4"/><info name="Port1LID" value="0x3a4"/><info name="Port2State" value="1"/>'
    '<info name="Port2LID" value="0x0"/></object></object>'
)
ETHERNET = (
    '<object type="PCIDev" gp_index="111" pci_busid="0000:06:00.0" pci_type="0200 [8086:1521] [8086:0001] 01 00" pci_link_speed="2.000000">'
    '<object type="OSDev" name="eth0" osdev_type="16"/></object>'
)
SWITCHES = "".join(
    f'<object type="PCIDev" gp_index="{120 + at}" subtype="NVSwitch" pci_busid="0000:0{7 + at}:00.0" '
    f'pci_type="{kind}" pci_link_speed="1.000000"/>'
    for at, kind in enumerate(("0680 [10de:22a3] [0000:0000] a1 00", "0000 [0000:0000] [0000:0000] 00 00"))
)


def matrix(names: str, values: str, name: str = "NVLinkBandwidth") -> str:
    count = len(names.split())
    return (
        f'<distances2hetero nbobjs="{count}" kind="25" name="{name}"><indexes length="9">{names} </indexes>'
        f'<u64values length="9">{values} </u64values></distances2hetero>'
    )


def topology(inside: str, after: str = "", version: str = ' version="3.0"') -> str:
    return (
        f'{PROLOGUE}<topology{version}><object type="Machine" os_index="0" cpuset="0x000000ff" nodeset="0x00000003">'
        '<info name="HostName" value="node7"/><info name="OSRelease" value="6.8.0"/><info name="Architecture" value="x86_64"/>'
        f"{inside}</object>{after}</topology>\n"
    )


BELOW_FIRST = bridge("0000:01:00.0", bridge("0000:02:00.0", gpu("0000:03:00.0", 0), 302) + NIC, 301) + SWITCHES
BRIDGES = bridge("0000:00:01.0", BELOW_FIRST) + bridge("0000:00:02.0", gpu("0000:04:00.0", 1) + ETHERNET, 303)
IO = f'<object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[00-0f]">{BRIDGES}</object>'
NVLINKS = matrix(
    "OSDev:200 OSDev:201 PCIDev:120 PCIDev:121", "1000000 0 225000 225000 0 1000000 225000 225000 225000 225000 0 0 225000 225000 0 0"
)
WHOLE = topology(socket(0, IO) + socket(1), NVLINKS)


def at(machine: Machine, address: str) -> PciDevice:
    return next(device for device in machine.pci if device.address == address)


VERSION_1 = (
    '<?xml version="1.0"?><!DOCTYPE topology SYSTEM "hwloc.dtd"><topology><object type="Machine" os_index="0" cpuset="0x0000000f">'
    '<object type="NUMANode" os_index="0" cpuset="0x00000003" nodeset="0x00000001" local_memory="1024"><object type="Socket"/></object>'
    '<object type="NUMANode" os_index="1" cpuset="0x0000000c" nodeset="0x00000002" local_memory="1024"><object type="Socket">'
    '<object type="PCIDev" pci_busid="0000:03:00.0" pci_type="0200 [15b3:1013] [15b3:0020] 00" name="MT27700" pci_link_speed="15.753846"/>'
    "</object></object></object></topology>"
)
ONE_NODE = '<topology><object type="Machine" cpuset="0x0000000f" local_memory="4096"/></topology>'
GPU_MEMORY = '<object type="NUMANode" os_index="255" subtype="GPUMemory" nodeset="0x1" local_memory="17179869184"/>'
P100_LINKS = matrix("OSDev:200 OSDev:201 Package:3", "1000000 40000 40000 40000 1000000 40000 40000 40000 1000000")
PASCAL = WHOLE.replace("NVIDIA H100 80GB HBM3", "Tesla P100-SXM2-16GB").replace(NVLINKS, P100_LINKS)
OLDER = WHOLE.replace('osdev_type="48"', 'osdev_type="3"').replace('osdev_type="16"', 'osdev_type="2"')
XGMI = WHOLE.replace(NVLINKS, matrix("OSDev:200 OSDev:201", "1000000 100000 100000 1000000", "XGMIBandwidth"))
KEYS = "0000:03:00.0", "0000:04:00.0"
PLACES = "0:01", "1:00", "3:00", "5:00", "7:00", "8:00"
CASES: dict[str, tuple[str, Callable[[Machine], Any], Any]] = {
    "host, source and doubts": (WHOLE, lambda m: (m.hostname, m.sources, m.doubts), ("node7", ("hwloc XML m",), ())),
    "NUMA nodes": (WHOLE, lambda m: m.numa_nodes, (NumaNode(0, "0-3", 1 << 30), NumaNode(1, "4-7", 1 << 30))),
    "processors": (WHOLE, lambda m: (m.system.sockets, m.system.cores, m.system.threads, m.system.memory_bytes, m.system.architecture),
        (2, 4, 8, 2 << 30, "x86_64")),
    "names": (WHOLE, lambda m: (m.system.cpu_model, m.system.cpu_vendor, m.system.kernel), ("A processor", "GenuineIntel", "6.8.0")),
    "the PCI tree and its kinds": (WHOLE,
        lambda m: [(each.kind, each.parent, each.numa) for each in (at(m, f"0000:0{address}.0") for address in PLACES)],
        [("bridge", None, 0), ("switch", "0000:00:01.0", 0), ("gpu", "0000:02:00.0", 0), ("nic", "0000:01:00.0", 0),
        ("nvswitch", "0000:00:01.0", 0), ("nvswitch", "0000:00:01.0", 0)]),
    "ids that hwloc could not read": (WHOLE, lambda m: at(m, "0000:08:00.0").vendor_id, None),
    "ids": (WHOLE, lambda m: (at(m, KEYS[0]).vendor_id, at(m, KEYS[0]).class_id), (0x10DE, 0x030200)),
    "GPUs have what the driver reports": (WHOLE, lambda m: m.gpus[0],
        Gpu(KEYS[0], 0, KEYS[0], "nvidia", "NVIDIA H100 80GB HBM3", numa=0, uuid="GPU-0")),
    "NICs": (WHOLE, lambda m: [(each.name, each.address, each.model, each.rdma, each.interfaces, each.guid, each.numa) for each in m.nics],
        [("mlx5_0", "0000:05:00.0", "ConnectX-6", True, ("ib0",), "0002:c903:00f9:bfa0", 0),
        ("eth0", "0000:06:00.0", None, False, ("eth0",), None, 0)]),
    "ports": (WHOLE, lambda m: [each.ports for each in m.nics],
        [(Port(1, state="active", link_layer="infiniband", lid=0x3A4), Port(2, state="down")), ()]),
    "version 1 has sockets and nodes around them": (VERSION_1, lambda m: (m.numa_nodes, m.system.sockets),
        ((NumaNode(0, "0-1", 1024), NumaNode(1, "2-3", 1024)), 2)),
    "PCI functions of version 1": (VERSION_1, lambda m: [(each.numa, each.name, each.link) for each in m.pci],
        [(1, "MT27700", PcieLink(8.0, 16))]),
    "version 1 writes no node for a machine with one": (ONE_NODE, lambda m: (m.numa_nodes, m.system.sockets),
        ((NumaNode(0, "0-3", 4096),), None)),
    "memory of GPUs is no NUMA node": (topology(socket(0, GPU_MEMORY) + socket(1)),
        lambda m: ([node.id for node in m.numa_nodes], m.system.memory_bytes), ([0, 1], 2 << 30)),
    "a device near several nodes has no node": (topology(socket(0) + socket(1) + ETHERNET), lambda m: m.pci[0].numa, None),
    "NVLinks to switches are counted": (WHOLE, lambda m: m.gpu_links, tuple(GpuLink(key, SWITCH, 18, bytes_per_s=25e9) for key in KEYS)),
    "NVLinks between GPUs are counted and those to processors left out": (PASCAL,
        lambda m: {(link.a, link.b, link.count, link.bytes_per_s) for link in m.gpu_links}, {(*KEYS, 2, 20e9), (*KEYS[::-1], 2, 20e9)}),
    "NVLinks of a GPU without a known model are not counted": (WHOLE.replace("NVIDIA H100 80GB HBM3", "A new one"),
        lambda m: (m.gpu_links, len(m.doubts)), ((), 2)),
    "AMD's pairs are named but their links not counted": (XGMI,
        lambda m: (m.paths[KEYS], m.gpu_links, "not the number of links" in m.unknown["gpu_links"]), ("XGMI", (), True)),
    **{f"formats{version} number devices otherwise": (OLDER.replace(' version="3.0"', version), lambda m: m.nics,
        hwloc.read(WHOLE, "m").nics) for version in ("", ' version="2.0"')},
    "a part of a machine": (WHOLE.replace('type="PU" os_index="2"', 'type="PU" os_index="64"'),
        lambda m: m.doubts[0].startswith("hwloc lists the CPUs 0-1,3-7,64 "), True),
    "of a function listed twice the first is taken": (WHOLE.replace("0000:06:00.0", KEYS[0]),
        lambda m: (f"{KEYS[0]} twice" in m.doubts[0], at(m, KEYS[0]).kind), (True, "gpu")),
}  # fmt: skip


@pytest.mark.parametrize(("text", "facts", "expected"), CASES.values(), ids=CASES)
def test_a_fact(text: str, facts: Callable[[Machine], Any], expected: Any) -> None:
    assert facts(hwloc.read(text, "m")) == expected


@pytest.mark.parametrize(("bent", "doubt"), [
    (NVLINKS.replace("225000", "225001"), "not a multiple of one link"),
    (NVLINKS.replace("225000", "999975000"), "not a multiple of one link"), (NVLINKS.replace("225000", "-25000"), "is damaged: not read"),
    (NVLINKS.replace("225000 225000", "225000"), "has 12 values for 4 objects"),
    (NVLINKS.replace("OSDev:201", "OSDev:200"), "is damaged: not read"),
])  # fmt: skip
def test_nvlink_figures_that_cannot_be_are_doubted_and_not_counted(bent: str, doubt: str) -> None:
    machine = hwloc.read(WHOLE.replace(NVLINKS, bent), "m")
    assert machine.gpu_links == () and doubt in machine.doubts[0]


@pytest.mark.contract
def test_this_machine_by_lstopo() -> None:
    if not shutil.which("lstopo"):
        pytest.skip("lstopo is not installed: apt-get install hwloc-nox")
    text = subprocess.run(["lstopo", "--of", "xml"], capture_output=True, text=True, timeout=30, check=True).stdout
    machine = hwloc.read(text, "lstopo")
    assert machine.system.threads == text.count('type="PU"') and len(machine.numa_nodes) == text.count('type="NUMANode"')
    assert len(machine.pci) == text.count("pci_busid=")


@pytest.mark.parametrize(("expected", "part", "found"), [
    ("63.015385", None, (PcieLink(32.0, 16), None)),  # nothing else has as much
    ("0.250000", None, (PcieLink(2.5, 1), None)), ("0.984615", None, (PcieLink(8.0, 1), None)),
    ("15.753846", "Tesla V100-SXM3-32GB-H", (PcieLink(8.0, 16), None)), ("15.753846", "ConnectX-5", (PcieLink(8.0, 16), None)),
    ("31.507692", "NVIDIA A100-SXM4-80GB", (PcieLink(16.0, 16), None)), ("121.000000", "ConnectX-8", (PcieLink(64.0, 16), None)),
    *((expected, part, (PcieLink(), why)) for expected, part, why in (
        ("15.753846", None, "hwloc has 15.7538 GB/s, which is 8 GT/s x16 or 16 GT/s x8 or 32 GT/s x4"),
        ("15.753846", "NVIDIA A100-SXM4-80GB", "hwloc has 15.7538 GB/s, which is 8 GT/s x16 or 16 GT/s x8"),
        ("12.345000", None, "hwloc has 12.345 GB/s, which is not the rate of a PCIe link"),
        ("0.000000", None, "hwloc has no speed"), (None, None, "hwloc has no speed"), ("-4", None, "hwloc has no speed"),
        ("1e18", None, "hwloc has no speed"), ("nan", None, "hwloc has no speed"), ("fast", None, "hwloc's figure is not a number"),
    )),
])  # fmt: skip
def test_a_link_is_known_where_one_answer_fits_and_else_unknown_with_its_reason(expected, part, found) -> None:
    assert pcie(expected, part) == found


def links(values: str, model: str) -> HwlocLinks:
    """Those of hwloc's matrix of two GPUs and the processor that NVLink joins them to."""
    of_file = fromstring(f"<topology>{matrix('OSDev:11 OSDev:12 NUMANode:3', values)}</topology>")
    return nvlinks(of_file, {"OSDev:11": "gpu0", "OSDev:12": "gpu1"}, {"gpu0": model, "gpu1": model})


def test_links_to_a_processor_are_counted_apart_from_those_between_gpus() -> None:
    found = links("1000000 75000 50000 75000 1000000 75000 50000 75000 0", "Tesla V100-SXM2-16GB")
    assert [(link.a, link.b, link.count) for link in found.links] == [("gpu0", "gpu1", 3), ("gpu1", "gpu0", 3)]
    assert found.processors == {"gpu0": (2, 25e9), "gpu1": (3, 25e9)}
    uneven = links("0 75000 40000 75000 0 0 40000 0 0", "V100")  # no whole number of links
    assert (uneven.processors, uneven.links[0]) == ({}, GpuLink("gpu0", "gpu1", 3, bytes_per_s=25e9))
