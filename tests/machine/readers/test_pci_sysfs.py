"""PCI functions out of sysfs: kinds, the bridge above, links, what hypervisors make up, trees that cannot be; AMD's KFD topology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.model import Gpu, GpuLink, Machine, PciDevice, PcieLink
from collbench.machine.readers import pci_sysfs
from tests.machine.trees import Tree, pci, tree

BRIDGE = {"class": "0x060400", "vendor": "0x1000", "device": "0xc030"}
H100 = {"class": "0x030200", "vendor": "0x10de", "device": "0x2330"}
NDR = {"class": "0x020700", "vendor": "0x15b3", "device": "0x1021"}
GEN5 = {"current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"}
SWITCH = "pci0000:15/0000:15:01.0/0000:16:00.0"  # a root port, and the upstream port of the switch below it


def box() -> Tree:
    """A root port, a switch with a GPU and a NIC."""
    return tree(
        pci("pci0000:15/0000:15:00.0", **{"class": "0x060000"}, vendor="0x8086", device="0x09a2"),
        pci("pci0000:15/0000:15:01.0", **BRIDGE),
        pci(SWITCH, **BRIDGE),
        pci(f"{SWITCH}/0000:17:00.0", **BRIDGE),
        pci(f"{SWITCH}/0000:17:02.0", **BRIDGE),
        pci(f"{SWITCH}/0000:17:00.0/0000:18:00.0", **H100, **GEN5),
        pci(f"{SWITCH}/0000:17:02.0/0000:19:00.0", **NDR, **GEN5),
    )


def by_address(files: Tree) -> Mapping[str, PciDevice]:
    return {device.address: device for device in pci_sysfs.read(files).pci}


def only(**facts: Any) -> PciDevice:
    (device,) = pci_sysfs.read(tree(pci("pci0000:00/0000:01:00.0", **facts))).pci
    return device


def test_every_function_has_its_parent_from_its_real_path_in_the_order_of_addresses() -> None:
    assert {address: device.parent for address, device in by_address(box()).items()} == {
        "0000:15:00.0": None, "0000:15:01.0": None, "0000:16:00.0": "0000:15:01.0", "0000:17:00.0": "0000:16:00.0",
        "0000:17:02.0": "0000:16:00.0", "0000:18:00.0": "0000:17:00.0", "0000:19:00.0": "0000:17:02.0",
    }  # fmt: skip
    assert list(by_address(box())) == sorted(by_address(box()))


def test_ports_of_a_switch_are_distinguished_from_root_ports() -> None:
    assert [device.kind for device in by_address(box()).values()] == ["other", "bridge", "switch", "switch", "switch", "gpu", "nic"]


def test_a_lone_bridge_to_a_boards_vga_is_no_switch() -> None:
    port, converter = "pci0000:00/0000:00:1c.0", "pci0000:00/0000:00:1c.0/0000:04:00.0"
    vga = pci(f"{converter}/0000:05:00.0", **{"class": "0x030000"}, vendor="0x1a03", device="0x2000")
    found = by_address(tree(pci(port, **BRIDGE), pci(converter, **BRIDGE), vga))
    assert [device.kind for device in found.values()] == ["bridge", "bridge", "other"]


@pytest.mark.parametrize(
    ("class_id", "vendor", "kind"),
    [
        ("0x030200", "0x10de", "gpu"), ("0x120000", "0x8086", "other"), ("0x030000", "0x1a03", "other"), ("0x028000", "0x1d0f", "nic"),
        ("", "", "other"), ("display", "nvidia", "other"), ("0x030200", "", "other"),
    ],
)  # fmt: skip
def test_a_kind_is_of_class_and_vendor(class_id: str, vendor: str, kind: str) -> None:
    """The table is that of `pci_parts`."""
    assert only(**{"class": class_id}, vendor=vendor).kind == kind


def test_ids_and_driver_come_from_uevent_in_one_read_and_else_from_files() -> None:
    event = "DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:1021\nPCI_SUBSYS_ID=15B3:0041"
    of_event, of_files = only(uevent=event), only(**NDR)
    assert (of_event.vendor_id, of_event.device_id, of_event.class_id, of_event.driver) == (0x15B3, 0x1021, 0x020700, "mlx5_core")
    assert (of_files.vendor_id, of_files.device_id, of_files.class_id, of_files.driver) == (0x15B3, 0x1021, 0x020700, None)


def test_a_driver_is_where_its_link_leads() -> None:
    link = {"/sys/devices/pci0000:00/0000:01:00.0/driver": "../../../bus/pci/drivers/nvidia"}
    files = tree(pci("pci0000:00/0000:01:00.0", **H100), ({"/sys/bus/pci/drivers/nvidia/uevent": ""}, link))
    assert [device.driver for device in pci_sysfs.read(files).pci] == ["nvidia"]


def test_a_link_is_read_now_and_at_most() -> None:
    downtrained = GEN5 | {"current_link_speed": "2.5 GT/s PCIe", "current_link_width": "8"}
    assert only(**H100, **downtrained).link == PcieLink(2.5, 8, 32.0, 16)


@pytest.mark.parametrize("speed", ["Unknown", "", "Unknown speed", "-8 GT/s", "1000000000000000000 GT/s", "0 GT/s", "7 GT/s"])
@pytest.mark.parametrize("width", ["0", "63", "255", "", "-1", "x", "1000000000000000000"])
def test_what_the_kernel_does_not_know_of_a_link_is_unknown(speed: str, width: str) -> None:
    facts = {"current_link_speed": speed, "current_link_width": width, "max_link_speed": speed, "max_link_width": width}
    assert only(**H100, **facts).link == PcieLink()


def test_more_lanes_than_there_are_is_doubted() -> None:
    found = pci_sysfs.read(tree(pci("pci0000:00/0000:01:00.0", **H100, **(GEN5 | {"max_link_width": "8"}))))
    assert len(found.doubts) == 1 and "0000:01:00.0: its link runs on 16 lanes" in found.doubts[0]


@pytest.mark.parametrize(("text", "numa"), [("0", 0), ("8", 8), ("-1", None), ("", None), ("two", None), ("99999", None)])
def test_minus_one_is_an_unknown_numa_node_and_not_node_0(text: str, numa: int | None) -> None:
    assert only(**(H100 | {"numa_node": text})).numa == numa


@pytest.mark.parametrize(
    ("vendor", "device", "speed", "virtual"),
    [
        ("0x1b36", "0x000c", "2.5 GT/s PCIe", True), ("0x1b36", "0x000c", "16.0 GT/s PCIe", True),
        ("0x104c", "0x8232", "2.5 GT/s PCIe", True), ("0x104c", "0x8233", "16.0 GT/s PCIe", True),
        ("0x8086", "0x347a", "2.5 GT/s PCIe", False),
    ],
)  # fmt: skip
def test_bridges_of_hypervisors_are_virtual_and_have_no_link(vendor: str, device: str, speed: str, virtual: bool) -> None:
    link = {"current_link_speed": speed, "current_link_width": "1", "max_link_speed": speed, "max_link_width": "1"}
    found = only(**{"class": "0x060400"}, vendor=vendor, device=device, **link)
    assert found.virtual is virtual
    assert (found.link == PcieLink()) is virtual
    unknown = pci_sysfs.read(tree(pci("pci0000:00/0000:01:00.0", **{"class": "0x060400"}, vendor=vendor, device=device, **link))).unknown
    assert ("pci/0000:01:00.0/link" in unknown) is virtual


def test_virtual_functions_are_virtual_by_the_hosts_word_or_a_guests_id() -> None:
    physical = "pci0000:15/0000:15:01.0/0000:18:00.0"
    links = {f"/sys/devices/{physical[:-1]}1/physfn": "../0000:18:00.0"}
    files = tree(pci("pci0000:15/0000:15:01.0", **BRIDGE), pci(physical, **NDR), pci(f"{physical[:-1]}1", **NDR, **GEN5), ({}, links))
    found = by_address(files)
    assert [found[f"0000:18:00.{number}"].virtual for number in (0, 1)] == [False, True]
    assert found["0000:18:00.1"].link == PcieLink()
    assert only(**(NDR | {"device": "0x101c"})).virtual
    assert not only(**(NDR | {"device": "0x101b"})).virtual


def test_other_domains_keep_their_addresses_and_are_roots_of_their_own() -> None:
    vmbus = "LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001/pci0001:00/0001:00:00.0"
    behind_vmd = "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0"
    found = pci_sysfs.read(tree(pci(vmbus, **H100), pci("pci0000:00/0000:00:0e.0", **{"class": "0x010400"}), pci(behind_vmd, **BRIDGE)))
    assert {device.address: device.parent for device in found.pci} == dict.fromkeys(("0000:00:0e.0", "0001:00:00.0", "10000:e0:06.0"))
    assert not found.doubts
    assert not found.unknown


def test_a_tree_without_the_real_paths_has_unknown_parents() -> None:
    found = pci_sysfs.read(Tree({"/sys/bus/pci/devices/0004:05:00.0/class": "0x030000"}))
    assert list(found.unknown) == ["pci/0004:05:00.0/parent"] and "what it hangs from" in found.unknown["pci/0004:05:00.0/parent"]
    assert not found.doubts


def test_no_pci_bus_is_an_unknown_one() -> None:
    found = pci_sysfs.read(Tree({}))
    assert found.pci == ()
    assert list(found.unknown) == ["pci"] and "/sys/bus/pci/devices lists nothing" in found.unknown["pci"]


def test_parents_in_a_circle_are_cut_where_they_go_up() -> None:
    a, b = "0000:01:00.0", "0000:02:00.0"
    found = pci_sysfs.read(tree(pci(f"pci0000:00/{b}/{a}", **BRIDGE), pci(f"pci0000:00/{a}/{b}", **BRIDGE)))
    assert {device.address: device.parent for device in found.pci} == {a: None, b: a}
    assert len(found.doubts) == 1 and f"{a}: its path leads through {b}, " in found.doubts[0]


@pytest.mark.parametrize(
    ("path", "others", "why"),
    [
        ("pci0000:00/0000:00:01.0/0000:01:00.0", [], "0000:00:01.0, which is not listed"),
        ("pci0000:00/0000:00:01.0/0000:01:00.0", [pci("pci0000:00/0000:00:01.0", **NDR)], "0000:00:01.0, which is not a bridge"),
        ("pci0000:00/0000:01:00.0/0000:01:00.0", [], "0000:01:00.0, which is not a bridge"),
        ("pci0001:00/0001:00:01.0/0000:01:00.0", [pci("pci0001:00/0001:00:01.0", **BRIDGE)], "not on a bus before its own"),
    ],
)  # fmt: skip
def test_a_parent_that_cannot_be_is_unknown_with_a_doubt(path: str, others: list[Any], why: str) -> None:
    found = pci_sysfs.read(tree(*others, pci(path, **H100)))
    assert next(device.parent for device in found.pci if device.kind == "gpu") is None
    assert [why in doubt for doubt in found.doubts] == [True]
    assert "pci/0000:01:00.0/parent" in found.unknown


def test_an_entry_that_leads_to_another_function_is_doubted() -> None:
    files, _ = pci("pci0000:00/0000:00:01.0", **BRIDGE)
    found = pci_sysfs.read(Tree(files, {"/sys/bus/pci/devices/0000:09:00.0": "../../../devices/pci0000:00/0000:00:01.0"}))
    assert len(found.doubts) == 1 and "0000:09:00.0: its entry leads to 0000:00:01.0" in found.doubts[0]


def test_names_that_are_no_addresses_are_left_out() -> None:
    assert pci_sysfs.read(Tree({"/sys/bus/pci/devices/..%2f\x1b[31m/class": "0x030200"})).pci == ()


TEXTS = st.one_of(st.text(max_size=40), st.sampled_from(["0x060400", "0x030200", "0x10de", "-1", "8.0 GT/s", "16", "10DE:2330", "\x00"]))
NAMES = ("class", "vendor", "device", "numa_node", "uevent", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
PARTS = st.sampled_from(["pci0000:00", "0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "10000:00:01.0", "..", "junk"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.lists(PARTS, max_size=5), st.dictionaries(st.sampled_from(NAMES), TEXTS)), max_size=5))
def test_any_tree_reads_and_no_function_is_its_own_ancestor(functions: list[tuple[list[str], dict[str, str]]]) -> None:
    found = by_address(tree(*(pci("/".join(["pci0000:00", *path]), **facts) for path, facts in functions)))
    for start in found:
        address: str | None = start
        for _ in found:
            address = found[address].parent if address else None
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


def test_nodes_with_simds_are_gpus_at_the_address_of_their_location() -> None:
    banks = {f"{NODES}/1/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 206141652992\nwidth 8192"}
    assert pci_sysfs.read_kfd(Tree(PAIR | banks)).gpus == (
        Gpu(A, 0, A, "amd", architecture="gfx942", memory_bytes=206141652992),
        Gpu(B, 1, B, "amd", architecture="gfx942"),
    )


def test_memory_that_no_gpu_has_is_unknown() -> None:
    banks = {f"{NODES}/1/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {10**18}"}
    assert pci_sysfs.read_kfd(Tree(PAIR | banks)).gpus[0].memory_bytes is None


@pytest.mark.parametrize(
    ("location", "domain", "address"),
    [
        (0x0500, 0, "0000:05:00.0"),
        (0xC1FB, 0, "0000:c1:1f.3"),
        (0x0100, 2, "0002:01:00.0"),
        (0x0100, 0x10000, "10000:01:00.0"),
        (0, 0, None),
    ],
)
def test_a_location_is_bus_device_and_function(location: int, domain: int, address: str | None) -> None:
    assert pci_sysfs.address({"location_id": location, "domain": domain}) == address


@pytest.mark.parametrize(
    ("version", "name"),
    [(90402, "gfx942"), (90010, "gfx90a"), (90006, "gfx906"), (90008, "gfx908"), (90500, "gfx950"), (100306, "gfx1036"),
     (110000, "gfx1100"), (120001, "gfx1201"), (0, None), (None, None), (10**18, None)],
)  # fmt: skip
def test_an_architecture_is_named_with_hexadecimal_digits(version: int | None, name: str | None) -> None:
    assert pci_sysfs.architecture(version) == name


def test_a_pair_has_links_from_both_ends() -> None:
    files = Tree(PAIR | links(1, link(2)) | links(2, link(1)))
    assert pci_sysfs.read_kfd(files).gpu_links == (GpuLink(A, B, 1, "xgmi", 64e9), GpuLink(B, A, 1, "xgmi", 64e9))


def test_links_to_processors_and_over_pcie_are_not_counted() -> None:
    assert pci_sysfs.read_kfd(Tree(PAIR | links(1, link(0), link(2, PCIE)))).gpu_links == ()


@pytest.mark.parametrize(
    ("one", "most", "weight", "count"),
    [
        (50000, 200000, 15, 4),  # the two dies of an MI250X
        (50000, 50000, 15, 1),
        (50000, 0, 30, 0),  # reach each other over other dies
        (0, 0, 15, 1),  # MI100, MI50: the kernel gives no figures
        (0, 0, 30, 0),
    ],
)
def test_links_of_a_pair_are_its_bandwidth_over_that_of_one(one: int, most: int, weight: int, count: int) -> None:
    found = pci_sysfs.read_kfd(Tree(PAIR | links(1, link(2, XGMI, one, most, weight))))
    assert sum(each.count for each in found.gpu_links) == count
    assert found.doubts == ()


@pytest.mark.parametrize(("one", "most"), [(50000, 60000), (0, 50000), (1, 10**18)])
def test_bandwidths_that_do_not_fit_together_are_doubted(one: int, most: int) -> None:
    found = pci_sysfs.read_kfd(Tree(PAIR | links(1, link(2, XGMI, one, most))))
    assert [each.count for each in found.gpu_links] == [1]
    assert found.doubts == (f"an xGMI link of {most} MB/s made of links of {one} MB/s: counted as one",)


def test_partitions_of_one_gpu_are_counted_once() -> None:
    found = pci_sysfs.read_kfd(Tree(nodes(CPU, gpu(0x0500), gpu(0x0500))))
    assert [each.key for each in found.gpus] == [A]
    assert len(found.doubts) == 1 and f"{A}: the driver lists it in several partitions" in found.doubts[0]


def test_a_node_that_may_not_be_read_is_no_gpu() -> None:
    assert pci_sysfs.read_kfd(Tree({f"{NODES}/1/properties": "", f"{NODES}/x/properties": gpu(1)})).gpus == ()
    assert pci_sysfs.read_kfd(Tree({})) == Machine()


WORDS = st.sampled_from(["simd_count", "location_id", "domain", "type", "node_to", "min_bandwidth", "max_bandwidth", "gfx_target_version"])
LINES = st.tuples(WORDS, st.one_of(st.integers().map(str), st.text(max_size=5), st.sampled_from(["1", "2", "11", "90402"]))).map(" ".join)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(LINES, max_size=8).map("\n".join), min_size=4, max_size=4))
def test_any_properties_read(texts: list[str]) -> None:
    found = pci_sysfs.read_kfd(Tree(nodes(*texts[:2]) | links(0, *texts[2:]) | links(1, *texts[2:])))
    assert len({each.key for each in found.gpus}) == len(found.gpus) <= 2
    assert all(0 < each.count <= 16 and each.a != each.b for each in found.gpu_links)
