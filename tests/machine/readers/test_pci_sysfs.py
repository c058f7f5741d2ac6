"""PCI functions out of sysfs: kinds, the bridge above, links, what hypervisors make up, trees that cannot be; AMD's KFD topology."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.machine.model import Gpu, GpuLink, Machine, PcieLink
from collbench.machine.readers import pci_sysfs
from tests.machine.machines import has_doubt
from tests.machine.trees import Tree, pci, tree

BRIDGE = {"class": "0x060400", "vendor": "0x1000", "device": "0xc030"}
H100 = {"class": "0x030200", "vendor": "0x10de", "device": "0x2330"}
NDR = {"class": "0x020700", "vendor": "0x15b3", "device": "0x1021"}
GEN5 = {"current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"}
SWITCH = "pci0000:15/0000:15:01.0/0000:16:00.0"  # a root port, and the upstream port of the switch below it


BOX = tree(
    pci("pci0000:15/0000:15:00.0", **{"class": "0x060000"}, vendor="0x8086", device="0x09a2"), pci("pci0000:15/0000:15:01.0", **BRIDGE),
    pci(SWITCH, **BRIDGE), pci(f"{SWITCH}/0000:17:00.0", **BRIDGE), pci(f"{SWITCH}/0000:17:02.0", **BRIDGE),
    pci(f"{SWITCH}/0000:17:00.0/0000:18:00.0", **H100, **GEN5), pci(f"{SWITCH}/0000:17:02.0/0000:19:00.0", **NDR, **GEN5),
)  # fmt: skip
PLACE = "pci0000:00/0000:01:00.0"
EVENT = "DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:1021\nPCI_SUBSYS_ID=15B3:0041"
PORT, CONVERTER, PHYSICAL = "pci0000:00/0000:00:1c.0", "pci0000:00/0000:00:1c.0/0000:04:00.0", "pci0000:15/0000:15:01.0/0000:18:00.0"
VGA = pci(f"{CONVERTER}/0000:05:00.0", **{"class": "0x030000"}, vendor="0x1a03", device="0x2000")
VMBUS = "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001/pci0001:00/0001:00:00.0"
VMD = pci("pci0000:00/0000:00:0e.0", **{"class": "0x010400"}), pci("pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0", **BRIDGE)
FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"
ASTRAY = Tree(
    pci("pci0000:00/0000:00:01.0", **BRIDGE)[0], {"/sys/bus/pci/devices/0000:09:00.0": "../../../devices/pci0000:00/0000:00:01.0"}
)
DRIVER = {"/sys/bus/pci/drivers/nvidia/uevent": ""}, {f"/sys/devices/{PLACE}/driver": "../../../bus/pci/drivers/nvidia"}
PHYSFN = {}, {f"/sys/devices/{PHYSICAL[:-1]}1/physfn": "../0000:18:00.0"}


def ids(machine: Machine) -> list[tuple[int | None, int | None, int | None, str | None]]:
    return [(device.vendor_id, device.device_id, device.class_id, device.driver) for device in machine.pci]


def parents(machine: Machine) -> dict[str, str | None]:
    return {device.address: device.parent for device in machine.pci}


TREES: dict[str, tuple[Tree, Callable[[Machine], Any], Any]] = {
    "parents are of the real paths, and ports of a switch are no root ports": (BOX,
        lambda m: [(device.address, device.parent, device.kind) for device in m.pci],
        [("0000:15:00.0", None, "other"), ("0000:15:01.0", None, "bridge"), ("0000:16:00.0", "0000:15:01.0", "switch"),
        ("0000:17:00.0", "0000:16:00.0", "switch"), ("0000:17:02.0", "0000:16:00.0", "switch"), ("0000:18:00.0", "0000:17:00.0", "gpu"),
        ("0000:19:00.0", "0000:17:02.0", "nic")]),
    **{f"kind of class {class_id!r} and vendor {vendor!r}": (tree(pci(PLACE, **{"class": class_id}, vendor=vendor)),
        lambda m: m.pci[0].kind, kind)
        for class_id, vendor, kind in (("0x030200", "0x10de", "gpu"), ("0x120000", "0x8086", "other"), ("0x030000", "0x1a03", "other"),
        ("0x028000", "0x1d0f", "nic"), ("", "", "other"), ("display", "nvidia", "other"), ("0x030200", "", "other"))},
    "a lone bridge to a board's VGA is no switch": (tree(pci(PORT, **BRIDGE), pci(CONVERTER, **BRIDGE), VGA),
        lambda m: [device.kind for device in m.pci], ["bridge", "bridge", "other"]),
    "ids and driver in one read": (tree(pci(PLACE, uevent=EVENT)), ids, [(0x15B3, 0x1021, 0x020700, "mlx5_core")]),
    "ids from files": (tree(pci(PLACE, **NDR)), ids, [(0x15B3, 0x1021, 0x020700, None)]),
    "a driver is where its link leads": (tree(pci(PLACE, **H100), DRIVER), lambda m: [device.driver for device in m.pci], ["nvidia"]),
    "a link is read now and at most": (tree(pci(PLACE, **H100,
        **(GEN5 | {"current_link_speed": "2.5 GT/s PCIe", "current_link_width": "8"}))), lambda m: m.pci[0].link,
        PcieLink(2.5, 8, 32.0, 16)),
    "more lanes than there are": (tree(pci(PLACE, **H100, **(GEN5 | {"max_link_width": "8"}))),
        lambda m: has_doubt(m, f"{FIRST}: its link runs on 16 lanes"), True),
    "a virtual function by the host's word": (tree(pci("pci0000:15/0000:15:01.0", **BRIDGE), pci(PHYSICAL, **NDR),
        pci(f"{PHYSICAL[:-1]}1", **NDR, **GEN5), PHYSFN),
        lambda m: ([(device.address, device.virtual) for device in m.pci[1:]], m.pci[2].link),
        ([("0000:18:00.0", False), ("0000:18:00.1", True)], PcieLink())),
    "a virtual function by a guest's id": (tree(pci(PLACE, **(NDR | {"device": "0x101c"}))), lambda m: m.pci[0].virtual, True),
    "a physical function in a guest": (tree(pci(PLACE, **(NDR | {"device": "0x101b"}))), lambda m: m.pci[0].virtual, False),
    "other domains keep their addresses and are roots of their own": (tree(pci(VMBUS, **H100), *VMD),
        lambda m: (parents(m), m.doubts, m.unknown), (dict.fromkeys(("0000:00:0e.0", "0001:00:00.0", "10000:e0:06.0")), (), {})),
    "without the real paths parents are unknown": (Tree({"/sys/bus/pci/devices/0004:05:00.0/class": "0x030000"}),
        lambda m: ([(path, "what it hangs from" in why) for path, why in m.unknown.items()], m.doubts),
        ([("pci/0004:05:00.0/parent", True)], ())),
    "no PCI bus": (Tree({}), lambda m: (m.pci, [(path, "/sys/bus/pci/devices lists nothing" in why) for path, why in m.unknown.items()]),
        ((), [("pci", True)])),
    "parents in a circle are cut where they go up": (tree(pci(f"pci0000:00/{SECOND}/{FIRST}", **BRIDGE),
        pci(f"pci0000:00/{FIRST}/{SECOND}", **BRIDGE)), lambda m: (parents(m), has_doubt(m, f"{FIRST}: its path leads through {SECOND}, ")),
        ({FIRST: None, SECOND: FIRST}, True)),
    "an entry that leads to another function": (ASTRAY, lambda m: has_doubt(m, "0000:09:00.0: its entry leads to 0000:00:01.0"), True),
    "names that are no addresses": (Tree({"/sys/bus/pci/devices/..%2f\x1b[31m/class": "0x030200"}), lambda m: m.pci, ()),
    **{f"NUMA node {text!r}": (tree(pci(PLACE, **(H100 | {"numa_node": text}))), lambda m: m.pci[0].numa, numa)
        for text, numa in (("0", 0), ("8", 8), ("-1", None), ("", None), ("two", None), ("99999", None))},
}  # fmt: skip


@pytest.mark.parametrize(("files", "facts", "expected"), TREES.values(), ids=TREES)
def test_a_tree(files: Tree, facts: Callable[[Machine], Any], expected: Any) -> None:
    assert facts(pci_sysfs.read(files)) == expected


@pytest.mark.parametrize("speed", ["Unknown", "", "Unknown speed", "-8 GT/s", "1000000000000000000 GT/s", "0 GT/s", "7 GT/s"])
@pytest.mark.parametrize("width", ["0", "63", "255", "", "-1", "x", "1000000000000000000"])
def test_what_the_kernel_does_not_know_of_a_link_is_unknown(speed: str, width: str) -> None:
    facts = {"current_link_speed": speed, "current_link_width": width, "max_link_speed": speed, "max_link_width": width}
    assert [device.link for device in pci_sysfs.read(tree(pci(PLACE, **H100, **facts))).pci] == [PcieLink()]


@pytest.mark.parametrize(("vendor", "device", "speed", "virtual"), [
    ("0x1b36", "0x000c", "2.5 GT/s PCIe", True), ("0x1b36", "0x000c", "16.0 GT/s PCIe", True), ("0x104c", "0x8232", "2.5 GT/s PCIe", True),
    ("0x104c", "0x8233", "16.0 GT/s PCIe", True), ("0x8086", "0x347a", "2.5 GT/s PCIe", False),
])  # fmt: skip
def test_bridges_of_hypervisors_are_virtual_and_have_no_link(vendor: str, device: str, speed: str, virtual: bool) -> None:
    link = {"current_link_speed": speed, "current_link_width": "1", "max_link_speed": speed, "max_link_width": "1"}
    machine = pci_sysfs.read(tree(pci(PLACE, **{"class": "0x060400"}, vendor=vendor, device=device, **link)))
    assert [(found.virtual, found.link == PcieLink()) for found in machine.pci] == [(virtual, virtual)]
    assert ("pci/0000:01:00.0/link" in machine.unknown) is virtual


@pytest.mark.parametrize(("path", "others", "why"), [
    ("pci0000:00/0000:00:01.0/0000:01:00.0", [], "0000:00:01.0, which is not listed"),
    ("pci0000:00/0000:00:01.0/0000:01:00.0", [pci("pci0000:00/0000:00:01.0", **NDR)], "0000:00:01.0, which is not a bridge"),
    ("pci0000:00/0000:01:00.0/0000:01:00.0", [], "0000:01:00.0, which is not a bridge"),
    ("pci0001:00/0001:00:01.0/0000:01:00.0", [pci("pci0001:00/0001:00:01.0", **BRIDGE)], "not on a bus before its own"),
])  # fmt: skip
def test_a_parent_that_cannot_be_is_unknown_with_a_doubt(path: str, others: list[Any], why: str) -> None:
    found = pci_sysfs.read(tree(*others, pci(path, **H100)))
    assert next(device.parent for device in found.pci if device.kind == "gpu") is None
    assert [why in doubt for doubt in found.doubts] == [True]
    assert "pci/0000:01:00.0/parent" in found.unknown


TEXTS = st.one_of(st.text(max_size=40), st.sampled_from(["0x060400", "0x030200", "0x10de", "-1", "8.0 GT/s", "16", "10DE:2330", "\x00"]))
NAMES = ("class", "vendor", "device", "numa_node", "uevent", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
PARTS = st.sampled_from(["pci0000:00", "0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "10000:00:01.0", "..", "junk"])


@given(st.lists(st.tuples(st.lists(PARTS, max_size=5), st.dictionaries(st.sampled_from(NAMES), TEXTS)), max_size=5))
def test_any_tree_reads_and_no_function_is_its_own_ancestor(functions: list[tuple[list[str], dict[str, str]]]) -> None:
    machine = pci_sysfs.read(tree(*(pci("/".join(["pci0000:00", *path]), **facts) for path, facts in functions)))
    above = parents(machine)
    for address in above:
        for _ in above:
            address = above.get(address)  # noqa: PLW2901
        assert address is None


NODES = "/sys/class/kfd/kfd/topology/nodes"
CPU = "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\ngfx_target_version 0"
XGMI, PCIE = 11, 2


def gpu(location: int, version: int = 90402, domain: int = 0) -> str:
    return f"cpu_cores_count 0\nsimd_count 1216\nvendor_id 4098\nlocation_id {location}\ndomain {domain}\ngfx_target_version {version}"


def link(to: int, kind: int = XGMI, one: int = 64000, most: int = 64000, weight: int = 15) -> str:
    return f"type {kind}\nnode_from 1\nnode_to {to}\nweight {weight}\nmin_bandwidth {one}\nmax_bandwidth {most}"


def nodes(*texts: str) -> dict[str, str]:
    return {f"{NODES}/{number}/properties": text for number, text in enumerate(texts)}


def links(node: int, *texts: str) -> dict[str, str]:
    return {f"{NODES}/{node}/io_links/{number}/properties": text for number, text in enumerate(texts)}


PAIR = nodes(CPU, gpu(0x0500), gpu(0x2600))
A, B = "0000:05:00.0", "0000:26:00.0"


def bank(size: int) -> dict[str, str]:
    return {f"{NODES}/1/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {size}\nwidth 8192"}


KFD: dict[str, tuple[dict[str, str], Callable[[Machine], Any], Any]] = {
    "nodes with SIMDs are GPUs at the address of their location": (PAIR | bank(206141652992), lambda m: m.gpus,
        (Gpu(A, 0, A, "amd", architecture="gfx942", memory_bytes=206141652992), Gpu(B, 1, B, "amd", architecture="gfx942"))),
    "memory that no GPU has": (PAIR | bank(10**18), lambda m: m.gpus[0].memory_bytes, None),
    "a pair has links from both ends": (PAIR | links(1, link(2)) | links(2, link(1)), lambda m: m.gpu_links,
        (GpuLink(A, B, 1, "xgmi", 64e9), GpuLink(B, A, 1, "xgmi", 64e9))),
    "links to processors and over PCIe are not counted": (PAIR | links(1, link(0), link(2, PCIE)), lambda m: m.gpu_links, ()),
    "partitions of one GPU are counted once": (nodes(CPU, gpu(0x0500), gpu(0x0500)),
        lambda m: ([each.key for each in m.gpus], has_doubt(m, f"{A}: the driver lists it in several partitions")), ([A], True)),
    "a node that may not be read is no GPU": ({f"{NODES}/1/properties": "", f"{NODES}/x/properties": gpu(1)}, lambda m: m.gpus, ()),
    "no nodes": ({}, lambda m: m, Machine()),
}  # fmt: skip


@pytest.mark.parametrize(("files", "facts", "expected"), KFD.values(), ids=KFD)
def test_amds_topology(files: dict[str, str], facts: Callable[[Machine], Any], expected: Any) -> None:
    assert facts(pci_sysfs.read_kfd(Tree(files))) == expected


@pytest.mark.parametrize(("location", "domain", "address"), [
    (0x0500, 0, "0000:05:00.0"), (0xC1FB, 0, "0000:c1:1f.3"), (0x0100, 2, "0002:01:00.0"), (0x0100, 0x10000, "10000:01:00.0"), (0, 0, None),
])  # fmt: skip
def test_a_location_is_bus_device_and_function(location: int, domain: int, address: str | None) -> None:
    assert pci_sysfs.address({"location_id": location, "domain": domain}) == address


@pytest.mark.parametrize(("version", "name"), [
    (90402, "gfx942"), (90010, "gfx90a"), (90006, "gfx906"), (90008, "gfx908"), (90500, "gfx950"), (100306, "gfx1036"), (110000, "gfx1100"),
    (120001, "gfx1201"), (0, None), (None, None), (10**18, None),
])  # fmt: skip
def test_an_architecture_is_named_with_hexadecimal_digits(version: int | None, name: str | None) -> None:
    assert pci_sysfs.architecture(version) == name


@pytest.mark.parametrize(("one", "most", "weight", "count", "doubted"), [
    (50000, 200000, 15, 4, False),  # the two dies of an MI250X
    (50000, 0, 30, 0, False),  # reach each other over other dies
    (0, 0, 15, 1, False),  # MI100, MI50: the kernel gives no figures
    (50000, 50000, 15, 1, False), (0, 0, 30, 0, False), (50000, 60000, 15, 1, True), (0, 50000, 15, 1, True), (1, 10**18, 15, 1, True),
])  # fmt: skip
def test_links_of_a_pair_are_its_bandwidth_over_that_of_one_where_both_fit_together(one, most, weight, count, doubted) -> None:
    found = pci_sysfs.read_kfd(Tree(PAIR | links(1, link(2, XGMI, one, most, weight))))
    assert sum(each.count for each in found.gpu_links) == count
    assert found.doubts == ((f"an xGMI link of {most} MB/s made of links of {one} MB/s: counted as one",) if doubted else ())


WORDS = st.sampled_from(["simd_count", "location_id", "domain", "type", "node_to", "min_bandwidth", "max_bandwidth", "gfx_target_version"])
LINES = st.tuples(WORDS, st.one_of(st.integers().map(str), st.text(max_size=5), st.sampled_from(["1", "2", "11", "90402"]))).map(" ".join)


@given(st.lists(st.lists(LINES, max_size=8).map("\n".join), min_size=4, max_size=4))
def test_any_properties_read(texts: list[str]) -> None:
    found = pci_sysfs.read_kfd(Tree(nodes(*texts[:2]) | links(0, *texts[2:]) | links(1, *texts[2:])))
    assert len({each.key for each in found.gpus}) == len(found.gpus) <= 2
    assert all(0 < each.count <= 16 and each.a != each.b for each in found.gpu_links)
