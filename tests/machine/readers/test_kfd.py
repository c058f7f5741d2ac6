"""AMD's KFD topology: which nodes are GPUs, where they are on the PCI bus, and how many xGMI links a pair has."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.model import Gpu, GpuLink, Machine
from collbench.machine.readers import pci_sysfs
from tests.machine.trees import Tree

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
