"""Sockets, cores, threads, memory and NUMA nodes out of procfs and sysfs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.model import NumaNode, System
from collbench.machine.readers import linux
from collbench.machine.readers.text import written
from tests.machine.trees import Tree

KIB = 1024
CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R)  Platinum 8480C\nflags\t\t: fpu lm avx"
POWER = "processor\t: 0\ncpu\t\t: POWER9, altivec supported\n\nprocessor\t: 1\n\ntimebase\t: 512000000\nplatform\t: PowerNV"
GRACE = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f"


def cpus(*cores: tuple[int, Sequence[int]]) -> dict[str, str]:
    """Files of cores: (socket, its threads)."""
    files = {f"{CPU}/online": written(cpu for _, threads in cores for cpu in threads)}
    for socket, threads in cores:
        for cpu in threads:
            files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = str(socket)
            files[f"{CPU}/cpu{cpu}/topology/thread_siblings_list"] = written(threads)
    return files


def node(number: int, cpu_list: str | None, kilobytes: int | None) -> dict[str, str]:
    files = {f"{NODE}/node{number}/cpulist": cpu_list} if cpu_list is not None else {}
    memory = {f"{NODE}/node{number}/meminfo": f"Node {number} MemTotal:  {kilobytes} kB\nNode {number} MemFree: 1 kB"}
    return files | (memory if kilobytes is not None else {})


def read(*parts: Mapping[str, str]) -> linux.Processors:
    return linux.read_processors(Tree({path: text for part in parts for path, text in part.items()}))


def test_sockets_cores_and_threads_are_counted_apart() -> None:
    found = read({"/proc/cpuinfo": INTEL}, cpus((0, [0, 4]), (0, [1, 5]), (1, [2, 6]), (1, [3, 7])))
    assert (found.system.sockets, found.system.cores, found.system.threads) == (2, 4, 8)
    assert (found.system.cpu_model, found.system.cpu_vendor) == ("Intel(R) Xeon(R) Platinum 8480C", "GenuineIntel")


def test_threads_that_are_offline_do_not_count() -> None:
    files = cpus((0, [0, 2]), (0, [1, 3])) | {f"{CPU}/online": "0-1"}
    assert (read(files).system.cores, read(files).system.threads) == (2, 2)


def test_cores_cost_two_reads_each_however_many_threads_they_have() -> None:
    tree = Tree(cpus(*((0, range(8 * core, 8 * core + 8)) for core in range(32))))
    assert linux.read_processors(tree).system.threads == 256
    assert sum(count for path, count in tree.reads.items() if "topology" in path) == 2 * 32


def test_power_has_other_fields_and_sockets_that_are_not_counted_from_0_up() -> None:
    siblings = {f"{CPU}/cpu{cpu}/topology/thread_siblings": "0000000f" if cpu < 4 else "00000f00,00000000" for cpu in (0, 1, 2, 3, 40, 41)}
    package = {f"{CPU}/cpu{cpu}/topology/physical_package_id": "0" if cpu < 4 else "8" for cpu in (0, 1, 2, 3, 40, 41)}
    found = read({"/proc/cpuinfo": POWER, f"{CPU}/online": "0-3,40-41"}, siblings, package)
    assert (found.system.sockets, found.system.cores, found.system.threads) == (2, 2, 6)
    assert (found.system.cpu_model, found.system.cpu_vendor, found.platform) == ("POWER9, altivec supported", None, "PowerNV")


def test_arm_names_its_designer_alone() -> None:
    found = read({"/proc/cpuinfo": GRACE})
    assert (found.system.cpu_model, found.system.cpu_vendor, found.system.threads) == (None, "ARM", 1)
    assert found.unknown["system/cpu_model"] == "/proc/cpuinfo names none"


def test_without_sysfs_cpuinfo_counts() -> None:
    block = "processor\t: {}\nphysical id\t: {}\ncore id\t\t: {}"
    text = "\n\n".join(block.format(cpu, cpu % 2, cpu // 2 % 2) for cpu in range(8))
    found = read({"/proc/cpuinfo": text})
    assert (found.system.sockets, found.system.cores, found.system.threads) == (2, 4, 8)


def test_nothing_there_is_all_unknown() -> None:
    found = read({})
    assert (found.system, found.numa_nodes) == (System(), ())
    assert set(found.unknown) == {"system/cpu_model", "system/sockets", "numa_nodes"}


def test_numa_nodes_have_their_cpus_and_memory() -> None:
    found = read({"/proc/meminfo": "MemTotal: 300 kB"}, node(0, "0-3,8-11", 200), node(1, "4-7,12-15", 100))
    assert found.numa_nodes == (NumaNode(0, "0-3,8-11", 200 * KIB), NumaNode(1, "4-7,12-15", 100 * KIB))
    assert found.system.memory_bytes == 300 * KIB


def test_numa_ids_may_have_gaps_and_are_in_order_of_numbers() -> None:
    assert [each.id for each in read(node(10, "2", 1), node(8, "1", 1), node(0, "0", 1)).numa_nodes] == [0, 8, 10]


def test_nodes_of_memory_alone_stay_and_empty_ones_go() -> None:
    found = read(node(0, "0-3", 100), node(1, "", 500), node(2, "", 0), node(3, "4-7", 0))
    assert found.numa_nodes == (NumaNode(0, "0-3", 100 * KIB), NumaNode(1, "", 500 * KIB), NumaNode(3, "4-7", 0))


def test_a_node_of_which_nothing_is_readable_is_there_with_unknown_facts() -> None:
    assert read({f"{NODE}/node0/distance": "10"}).numa_nodes == (NumaNode(0),)


def test_cpus_come_from_the_mask_where_there_is_no_list_and_offline_ones_are_left_out() -> None:
    found = read({f"{NODE}/node0/cpumap": "00000001,0000000f", f"{CPU}/online": "0-1,32"})
    assert found.numa_nodes == (NumaNode(0, "0-1,32"),)


def test_memory_of_gpus_is_neither_a_numa_node_nor_main_memory() -> None:
    gpus = {"/proc/driver/nvidia/gpus/0004:05:00.0/numa_status": "Node:      255\nStatus:    online\nAddress:   40000000000"}
    found = read({"/proc/meminfo": "MemTotal: 316 kB"}, gpus, node(0, "0-3", 200), node(8, "4-7", 100), node(255, "", 16))
    assert [each.id for each in found.numa_nodes] == [0, 8]
    assert found.system.memory_bytes == 300 * KIB


def test_a_node_with_cpus_is_never_taken_for_a_gpus() -> None:
    gpus = {"/proc/driver/nvidia/gpus/0004:05:00.0/numa_status": "Node: 0\nStatus: offline"}
    found = read({"/proc/meminfo": "MemTotal: 100 kB"}, gpus, node(0, "0-3", 90))
    assert ([each.id for each in found.numa_nodes], found.system.memory_bytes) == ([0], 100 * KIB)


NODES = (NumaNode(0, "0-3"), NumaNode(8, "4-7"), NumaNode(9, ""))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"local_cpulist": "4-7"}, 8), ({"local_cpus": "0000000f"}, 0), ({"local_cpulist": "0-7"}, None), ({"local_cpulist": "4"}, None),
        ({}, None), ({"local_cpulist": ""}, None),
    ],
)  # fmt: skip
def test_a_devices_node_is_the_one_with_just_its_local_cpus(files: dict[str, str], expected: int | None) -> None:
    tree = Tree({f"/device/{name}": text for name, text in files.items()})
    assert linux.node_of(tree, "/device", NODES) == expected


def test_a_single_node_shows_nothing_about_a_device() -> None:
    assert linux.node_of(Tree({"/device/local_cpulist": "0-3"}), "/device", NODES[:1]) is None


def test_memory_that_no_machine_has_is_unknown() -> None:
    assert read({"/proc/meminfo": "MemTotal: 1000000000000000 kB"}).system.memory_bytes is None
    assert read({"/proc/meminfo": "MemTotal: -5 kB"}).system.memory_bytes is None


PATHS = [
    "/proc/cpuinfo", "/proc/meminfo", f"{CPU}/online", f"{CPU}/cpu0/topology/thread_siblings_list", f"{CPU}/cpu0/topology/thread_siblings",
    f"{CPU}/cpu1/topology/physical_package_id", f"{NODE}/node0/cpulist", f"{NODE}/node0/cpumap", f"{NODE}/node1/meminfo",
    "/proc/driver/nvidia/gpus/0/numa_status",
]  # fmt: skip
TEXTS = st.one_of(st.text(max_size=60), st.sampled_from([INTEL, POWER, GRACE, "0-1", "0", "-1", "3", "Node: 1", "MemTotal: 5 kB"]))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(PATHS), TEXTS))
def test_any_files_read(files: dict[str, str]) -> None:
    found = read(files)
    assert all(value is None or value > 0 for value in (found.system.sockets, found.system.cores, found.system.threads))
