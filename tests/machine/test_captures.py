"""Every captured machine, its whole folder read as a user would give it: every expected fact, and every trap."""

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from collbench.machine.archive import open_archive
from collbench.machine.distance import Distances
from collbench.machine.gather import write
from collbench.machine.merge import merge
from collbench.machine.model import SWITCH, Machine, Nic, PciDevice, PcieLink, Port
from collbench.machine.readers import linux, network
from collbench.machine.readers.rdma import fabric_rate, lane_name
from collbench.machine.readers.text import Unreadable
from collbench.machine.snapshot import from_json, to_json
from collbench.machine.sources import read_paths
from tests.conftest import needs_plugin
from tests.machines import captures, reduce

NO_TOPOLOGY = {"nccl-debug-log", "nccl-tests-log"}
FRAGMENT = "lspci-downtrained"  # lines out of two listings, without the devices they belong to
OTHERS = [name for name in captures.NAMES if name == FRAGMENT or NO_TOPOLOGY & set(captures.expected(name)["kind"])]
READ = [name for name in captures.NAMES if name not in OTHERS]


@cache
def machine_of(name: str) -> Machine:
    (machine,) = read_paths([captures.folder(name)])
    return machine


def devices(machine: Machine, parts: Iterable[Any]) -> list[PciDevice]:
    found = {device.address: device for device in machine.pci}
    return [found[part.address] for part in parts if part.address in found]


def of_kind(machine: Machine, kind: str) -> list[PciDevice]:
    return [device for device in machine.pci if device.kind == kind]


def real(machine: Machine) -> list[Nic]:
    return [nic for nic in machine.nics if nic.virtual is None]


def ports(machine: Machine) -> list[Port]:
    return [port for nic in real(machine) for port in nic.ports]


def links(found: Iterable[PciDevice]) -> str:
    """The most that the links can do, as "16 GT/s x16"."""
    most = {(device.link.max_speed_gt_per_s, device.link.max_width) for device in found}
    return ", ".join(sorted(f"{speed:g} GT/s x{width}" if speed else "unknown" for speed, width in most))


def below_switches(machine: Machine, kind: str) -> int:
    """How many functions of a kind hang directly under each switch that has one."""
    switches = {device.address for device in of_kind(machine, "switch")}
    (count,) = set(Counter(device.parent for device in of_kind(machine, kind) if device.parent in switches).values())
    return count


def one(values: Iterable[Any]) -> Any:
    (value,) = set(values)
    return value


def number(value: int | None) -> str:
    return f"{value or 0:#06x}"


def class_of(found: Iterable[PciDevice]) -> str:
    return f"{one(device.class_id for device in found):#08x}"


def close_nics(machine: Machine) -> list[list[str]]:
    path = Distances(machine).path
    return [[nic.name for nic in real(machine) if path(gpu.key, nic.name) in ("PIX", "PXB")] for gpu in machine.gpus]


def linked_pairs(machine: Machine) -> list[list[int]]:
    index = {gpu.key: gpu.index for gpu in machine.gpus}
    return sorted([index[link.a], index[link.b]] for link in machine.gpu_links if link.count and link.b in index and link.a < link.b)


def slow(machine: Machine) -> list[PciDevice]:
    """The functions whose links are below what they can do."""
    known = [device for device in machine.pci if device.link.width]
    now = [(device.link.speed_gt_per_s, device.link.width) for device in known]
    most = [(device.link.max_speed_gt_per_s, device.link.max_width) for device in known]
    return [device for device, link, best in zip(known, now, most, strict=True) if link != best]


def on_nodes(machine: Machine, parts: Iterable[Any]) -> dict[str, int]:
    counts = Counter(part.numa for part in parts)
    return {str(node.id): counts[node.id] for node in machine.numa_nodes}


# The facts that a capture may expect, out of a machine.
FACTS: dict[str, Callable[[Machine], Any]] = {
    "cpu_architecture": lambda m: m.system.architecture,
    "cpu_vendor": lambda m: m.system.cpu_vendor,
    "sockets": lambda m: m.system.sockets,
    "numa_nodes": lambda m: len(m.numa_nodes),
    "switches": lambda m: len(of_kind(m, "switch")),
    "nvswitches": lambda m: len(of_kind(m, "nvswitch")),
    "nvswitch_device": lambda m: number(one(device.device_id for device in of_kind(m, "nvswitch"))),
    "nvswitch_link": lambda m: links(of_kind(m, "nvswitch")),
    "slow_links": lambda m: len(slow(m)),
    "gpus": lambda m: len(m.gpus),
    "gpu_addresses": lambda m: [gpu.address for gpu in m.gpus],
    "gpu_vendor": lambda m: one(gpu.vendor for gpu in m.gpus),
    "gpu_model": lambda m: one(gpu.model for gpu in m.gpus),
    "architecture": lambda m: one(gpu.architecture for gpu in m.gpus),
    "gpu_device": lambda m: number(one(device.device_id for device in devices(m, m.gpus))),
    "gpu_class": lambda m: class_of(devices(m, m.gpus)),
    "gpu_link": lambda m: links(devices(m, m.gpus)),
    "gpu_numa": lambda m: sorted({gpu.numa for gpu in m.gpus} - {None}),
    "gpus_on_numa": lambda m: on_nodes(m, m.gpus),
    "gpus_per_switch": lambda m: below_switches(m, "gpu"),
    "links_per_gpu": lambda m: one(m.links_of(gpu.key) or 0 for gpu in m.gpus),
    "link_kind": lambda m: one(link.kind for link in m.gpu_links),
    "link_GBps": lambda m: sorted({(link.bytes_per_s or 0) / 1e9 for link in m.gpu_links}),
    "links_off": lambda m: sum(gpu.links_off or 0 for gpu in m.gpus),
    "links_per_pair": lambda m: one(link.count for link in m.gpu_links),
    "full_mesh": lambda m: len(m.gpu_links) == len(m.gpus) * (len(m.gpus) - 1),
    "nvlink_pairs": linked_pairs,
    "switched": lambda m: m.switched,
    "peer_access": lambda m: {" ".join(pair): word for pair, word in m.peer_access.items()},
    "nics": lambda m: len(real(m)),
    "interfaces": lambda m: len(m.nics),  # virtual ones too
    "nic_names": lambda m: [nic.name for nic in real(m)],
    "rdma_devices": lambda m: [nic.name for nic in m.nics if nic.rdma],
    "nic_models": lambda m: dict(Counter(nic.model for nic in real(m) if nic.rdma)),
    "firmware": lambda m: one(nic.firmware for nic in m.nics),
    "nic_functions": lambda m: len({nic.address for nic in m.nics}),
    "nic_class": lambda m: class_of(devices(m, real(m))),
    "nic_link": lambda m: links(devices(m, real(m))),
    "nics_on_numa": lambda m: on_nodes(m, real(m)),
    "nics_per_switch": lambda m: below_switches(m, "nic"),
    "nic_Gbps": lambda m: sorted({port.rate_bits_per_s / 1e9 for port in ports(m) if port.rate_bits_per_s}),
    "nic_gdr": lambda m: one(nic.gdr for nic in real(m)),
    "ports_per_nic": lambda m: max(Counter(nic.address for nic in m.nics).values()),
    "port_states": lambda m: [port.state for port in ports(m)],
    "infiniband_Gbps": lambda m: [(port.rate_bits_per_s or 0) / 1e9 for port in ports(m) if port.link_layer == "infiniband"],
    "close_nics": close_nics,
    "rails": lambda m: len(set(map(tuple, close_nics(m)))),
    "fabric_hosts": lambda m: sorted(link.host for link in m.fabric),
    "fabric_width": lambda m: one(link.width for link in m.fabric),
    "fabric_lane_Gbps": lambda m: sorted({(link.lane_bits_per_s or 0) / 1e9 for link in m.fabric}),
    "doubted": lambda m: bool(m.doubts),
}
# What other tests compare: the rates of tests/peak, and lstopo's facts.
ELSEWHERE = {"nvlink_GBps_dir_per_gpu", "xgmi_GBps_dir_per_gpu", "nic_total_GBps_dir", "nic_total_GBps_dir_as_written", "ib_total_GBps_dir"}
ELSEWHERE |= {"kind", "traps", "lstopo"}


@pytest.mark.parametrize("name", READ)
def test_it_reads_as_expected(name: str) -> None:
    expected = {key: value for key, value in captures.expected(name).items() if key not in ELSEWHERE}
    assert {key: FACTS[key](machine_of(name)) for key in expected} == expected


def distances(machine: Machine, a: str, b: Iterable[str]) -> set[str | None]:
    return {machine.paths.get((a, each)) for each in b}


def acs(machine: Machine) -> Any:
    """Of the 42 ports of the switches above the GPUs: how many have ACS, and where it is on; where it is on above GPUs and fast NICs."""
    ports_ = [device for device in machine.pci if "PEX890xx" in (device.name or "")]
    on = {device.address for device in machine.pci if "SrcValid" in (device.acs or ())}
    fast = [device.address for device in devices(machine, (*machine.gpus, *(nic for nic in machine.nics if nic.rdma)))]
    return len(ports_), [sum(device.acs == kind for device in ports_) for kind in ((), None)], len(on), on & above(machine, fast)


def above(machine: Machine, addresses: Iterable[str]) -> set[str]:
    parents = {device.address: device.parent for device in machine.pci}
    found: set[str] = set()
    for address in addresses:
        parent = parents[address]
        while parent:
            found.add(parent)
            parent = parents[parent]
    return found


def upstream(machine: Machine) -> list[PciDevice]:
    return [device for device in of_kind(machine, "switch") if device.parent is None]


def unknown(machine: Machine, path: str, text: str) -> bool:
    return text in machine.unknown[path]


# Capture, what is special about it, and the facts that show how it is read.
TRAPS: list[tuple[str, str, Callable[[Machine], Any], Any]] = [
    ("a100-container-2of8-8nic", "a container leaves the nodes unknown",
        lambda m: ({gpu.numa for gpu in m.gpus}, unknown(m, "gpus/gpu0/numa", "as in a container")), ({None}, True)),
    ("a100x8-10nic-mangled-nps4", "glued columns come apart",
        lambda m: [m.paths[pair] for pair in (("gpu6", "mlx5_7"), ("gpu6", "mlx5_8"), ("mlx5_7", "mlx5_8"), ("mlx5_9", "mlx5_8"))],
        ["PXB", "SYS", "SYS", "PIX"]),
    ("a100x8-10nic-mangled-nps4", "the legend names the NICs",
        lambda m: {nic.name for nic in m.nics} >= {"mlx5_2", "mlx5_0", "mlx5_6", "mlx5_8", "mlx5_9", "mlx5_4"}, True),
    ("amd-mi100-4-intel", "a veth without a PCI device is not a NIC", lambda m: [(nic.name, nic.virtual) for nic in m.nics],
        [("enp96s0f0", None), ("veth608058c", "veth")]),
    ("amd-mi250x-8mod-16gcd", "links of its dies differ by target",
        lambda m: ({link.count for link in m.gpu_links}, {sum(link.a == gpu.key for link in m.gpu_links) for gpu in m.gpus}),
        ({1, 2, 4}, {3, 4})),
    ("amd-mi300x-8-intel", "a GPU of another class", lambda m: {device.class_id for device in of_kind(m, "gpu")}, {0x120000}),
    ("amd-mi50-8-pcie-2nic", "no links", lambda m: {(link.b, link.count, link.kind) for link in m.gpu_links}, {(None, 0, "xgmi")}),
    *((name, "a template is not a measurement",
        lambda m: (len(m.doubts), "nccl-topo.xml: a vendor's template" in m.doubts[0], {device.link.speed_gt_per_s for device in m.pci},
        {f"nics/{nic.key}/ports" for nic in m.nics} - set(m.unknown)), (1, True, {None}, set()))
        for name in ("aws-p4d-24xl", "azure-nd40rs-v2-v100", "azure-nd96asr-v4-a100", "oci-bm-gpu4-8-a100")),
    ("aws-p5-48xl-2023", "GPUs are not in the file", lambda m: "gpus" in m.unknown, True),
    ("azure-nc96ads-a100-v4", "NVLinks that name their own GPU",
        lambda m: ({(link.b, link.count) for link in m.gpu_links}, any("leads to itself" in doubt for doubt in m.doubts),
        {device.link for device in m.pci}), ({(None, 12)}, True, {PcieLink()})),
    ("azure-nd96asr-v4-a100", "made-up bridges, and domains of 16 bits",
        lambda m: ([device.address for device in m.pci if device.virtual], sorted(nic.address for nic in m.nics)),
        ([f"ffff:ff:0{n}.0" for n in (1, 2, 3, 4)], [f"010{n}:00:00.0" for n in range(1, 9)])),
    ("gpud-azure-a100-nvlink", "a guest: functions without a tree, virtual functions of InfiniBand",
        lambda m: ({device.parent for device in m.pci}, len(m.unknown) >= len(m.pci),
        Counter((device.device_id, device.virtual) for device in m.pci if device.class_id == 0x020700)),
        ({None}, True, {(0x101C, True): 8})),
    ("gpud-azure-a100-nvlink", "two sources that fit together",
        lambda m: (all(gpu.address and gpu.index is not None for gpu in m.gpus), m.disagreements), (True, ())),
    ("gpud-h100-8ndr-sysfs", "a bond in addition to the fabric",
        lambda m: [(port.rate_text, port.rate_bits_per_s, port.link_layer) for nic in m.nics if nic.name == "mlx5_bond_0"
        for port in nic.ports], [("200 Gb/sec (2X NDR)", None, "ethernet")]),
    ("gpud-h100-8ndr-sysfs", "no PCI bus", lambda m: (m.pci, m.gpus, unknown(m, "gpus", "no PCI bus")), ((), (), True)),
    ("gpud-xe9680-h100-lspci", "slow links only where they are harmless",
        lambda m: ({device.kind for device in slow(m)} & {"gpu", "nvswitch"},
        above(m, [gpu.key for gpu in m.gpus]) & {device.address for device in slow(m)}), (set(), set())),
    ("gpud-xe9680-h100-lspci", "ACS is on away from GPUs and fast NICs", acs, (42, [34, 8], 6, set())),
    ("gpud-xe9680-h100-lspci", "links of its NICs", lambda m: {nic.model: links(devices(m, [nic])) for nic in m.nics if nic.rdma},
        {"ConnectX-7": "32 GT/s x16", "ConnectX-6 Dx": "16 GT/s x16"}),
    ("h100-4nic-alternate-partial", "missing rows",
        lambda m: ({path for gpu in m.gpus[:7] for path in distances(m, gpu.key, ("NIC4", "NIC5"))}, m.gpus[7].numa, m.links_of("gpu7"),
        [gpu.index for gpu in m.gpus if "PIX" in distances(m, gpu.key, [nic.name for nic in m.nics])]), ({"SYS"}, None, 18, [0, 2, 4, 6])),
    ("hwloc-32em64t-2n8c-dax-nvme-mic-dimms", "a Xeon Phi and a board's VGA are not GPUs, and a Xeon Phi's link is not a NIC",
        lambda m: ({nic.name: nic.virtual for nic in m.nics if nic.rdma},
        [device.address for device in m.pci if (device.class_id or 0) >> 8 == 0x0300], of_kind(m, "gpu"), m.system.cores, len(m.pci)),
        ({"mlx4_0": None, "scif0": "scif"}, ["0000:05:00.0"], [], 16, 137)),
    ("hwloc-32em64t-2n8c-dax-nvme-mic-dimms", "an old rate",
        lambda m: [(nic.address, nic.ports[0].rate_bits_per_s) for nic in m.nics if nic.name == "mlx4_0"], [("0000:82:00.0", 54.5e9)]),
    *((name, "Ethernet", lambda m: ({nic.name: nic.ports[0].rate_bits_per_s for nic in m.nics if nic.name in ("eth0", "eth1", "ib0")},
        {nic.virtual for nic in m.nics if nic.name.startswith("eth") and "." not in nic.name}), ({"eth0": 1e9, "eth1": None}, {None}))
        for name in ("hwloc-32em64t-2n8c-dax-nvme-mic-dimms", "hwloc-fakepcilocalities")),
    ("hwloc-dgx2-xml", "links to the switches; ids of one cannot be read; their PCIe is management",
        lambda m: ({link.b for link in m.gpu_links}, len(m.gpu_links), [gpu.index for gpu in m.gpus],
        {device.link for device in devices(m, m.gpus)}, sum(device.vendor_id == 0x10DE for device in of_kind(m, "nvswitch")),
        {device.link for device in of_kind(m, "nvswitch")}, "0-1,24-25 alone" in m.doubts[0]),
        ({SWITCH}, 16, list(range(16)), {PcieLink(8.0, 16)}, 11, {PcieLink()}, True)),
    ("hwloc-power9-6gpu", "memory of GPUs is neither a NUMA node nor main memory",
        lambda m: ([(node.id, node.cpus) for node in m.numa_nodes], m.system.memory_bytes,
        sum(node.memory_bytes or 0 for node in m.numa_nodes), [gpu.numa for gpu in m.gpus], m.system.cores, m.system.threads,
        m.system.virtualization), ([(0, "0-15"), (8, "88-103")], 263791104 << 10, 263791104 << 10, [0, 0, 0, 8, 8, 8], 8, 32, "")),
    ("iblinkinfo-edr-on-hdr-switch", "adapters slower than their switch are not suspects; SHARP's node is not a host",
        lambda m: (m.doubts,
        {f"{lane_name(link.lane_bits_per_s)} {fabric_rate(link.width, link.lane_bits_per_s) / 1e9:g}" for link in m.fabric},
        all("MQM8700" in link.peer for link in m.fabric), [link for link in m.fabric if "Aggregation" in f"{link.host} {link.device}"]),
        ((), {"EDR 100"}, True, [])),
    ("ibv-devinfo-port-down", "an MTU is printed, and the subnet manager is missing",
        lambda m: ([(port.rate_bits_per_s, port.mtu_bytes, port.lid, port.sm_lid) for port in ports(m)],
        unknown(m, "nics/mlx5_0/ports/1/mtu_bytes", "the port is down")), ([(None, None, None, 0)], True)),
    ("oci-bm-gpu-h100-8", "two ports a card, lowered speeds and slow upstream ports",
        lambda m: ({len({nic.guid for nic in m.nics if nic.address == address}) for address in {nic.address for nic in m.nics}},
        "and 12 more: 180000 Mb/s " in m.doubts[0], {device.link for device in upstream(m)}, len(upstream(m))),
        ({1}, True, {PcieLink(max_width=16)}, 8)),
    ("v100x8-oneflow-1edr", "a hybrid mesh: GPUs that are not joined, NUMA nodes by their CPUs",
        lambda m: (distances(m, "gpu0", ("gpu5", "gpu6", "gpu7")), [m.paths[gpu.key, "mlx5_0"] for gpu in m.gpus],
        len({m.unknown[f"gpus/{gpu.key}/numa"] for gpu in m.gpus}), unknown(m, "gpus/gpu4/numa", "12-23,36-47")),
        ({"SYS"}, ["NODE"] * 2 + ["PIX"] * 2 + ["SYS"] * 4, 2, True)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "trap", "facts", "expected"), TRAPS, ids=[f"{name}: {trap}" for name, trap, *_ in TRAPS])
def test_trap(name: str, trap: str, facts: Callable[[Machine], Any], expected: Any) -> None:
    assert facts(machine_of(name)) == expected


@pytest.mark.parametrize("name", READ)
def test_it_survives_json_and_merging(name: str) -> None:
    machine = machine_of(name)
    assert from_json(json.loads(json.dumps(to_json(machine)))) == machine
    again = merge([machine])
    assert (again.pci, again.gpus, again.nics, again.gpu_links) == (machine.pci, machine.gpus, machine.nics, machine.gpu_links)
    assert set(machine.origins.values()) <= {*machine.sources, ", ".join(machine.sources)}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_topology_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read_paths([captures.folder(name)])
    assert "\n" not in str(refused.value)
    if captures.expected(name)["kind"] == ["nccl-debug-log"]:
        assert "is a log of NCCL" in str(refused.value)


@needs_plugin("importers")  # the script asks it which texts are results
def test_a_reduced_capture_is_read_as_the_whole_one(tmp_path: Path) -> None:
    """The script that makes the captures keeps what the readers read, and drops and masks the rest."""
    capture = tmp_path / "mine"
    capture.mkdir()
    listing = captures.text("gpud-azure-a100-nvlink", "nvidia-smi-nvlink-s.txt")
    (capture / "nvidia-smi-nvlink-s.txt").write_text("a banner of myhost\n" + listing)
    (capture / "nccl-topo.xml").write_text(captures.text("azure-nc96ads-a100-v4", "nccl-topo.xml").replace("<system", '<system extra="1"'))
    (capture / "nccl.log").write_text("myhost:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\nnothing\n")
    (capture / "EXPECTED.json").write_text('{"gpus": 8, "nics": null, "by name": {"a": [1]}}')
    (capture / "SOURCE.txt").write_text("here\n")
    reduce.main([str(capture), "--rename", "myhost=node1", "--out", str(tmp_path)])
    made = tomllib.loads((tmp_path / "mine.toml").read_text())
    assert (made["source"], made["expected"]) == ("here", {"gpus": 8, "by name": {"a": [1]}})
    assert sorted(made["files"]) == ["nccl-topo.xml", "nccl.log", "nvidia-smi-nvlink-s.txt"]
    assert made["files"]["nccl.log"] == "node1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    assert made["files"]["nccl-topo.xml"] == captures.text("azure-nc96ads-a100-v4", "nccl-topo.xml")
    assert "banner" not in made["files"]["nvidia-smi-nvlink-s.txt"]


def test_a_reduced_tree_is_read_as_the_whole_one(tmp_path: Path) -> None:
    name = "hwloc-power9-6gpu"
    write(tmp_path / "again.tar.xz", reduce.reduced_tree(captures.tree(name)))
    again = open_archive(tmp_path / "again.tar.xz")
    assert linux.read(again).gpus == linux.read(captures.tree(name)).gpus
    assert network.read(again) == network.read(captures.tree(name))
