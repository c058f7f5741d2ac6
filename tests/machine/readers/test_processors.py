"""Sockets, cores, threads, memory and NUMA nodes out of procfs and sysfs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
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


POWER_CPUS = (0, 1, 2, 3, 40, 41)
OF_POWER = {"/proc/cpuinfo": POWER, f"{CPU}/online": "0-3,40-41"}
OF_POWER |= {f"{CPU}/cpu{cpu}/topology/thread_siblings": "0000000f" if cpu < 4 else "00000f00,00000000" for cpu in POWER_CPUS}
OF_POWER |= {f"{CPU}/cpu{cpu}/topology/physical_package_id": "0" if cpu < 4 else "8" for cpu in POWER_CPUS}
BLOCKS = "\n\n".join(f"processor\t: {cpu}\nphysical id\t: {cpu % 2}\ncore id\t\t: {cpu // 2 % 2}" for cpu in range(8))
STATUS = "/proc/driver/nvidia/gpus/0004:05:00.0/numa_status"


def memory(kilobytes: int) -> dict[str, str]:
    return {"/proc/meminfo": f"MemTotal: {kilobytes} kB"}


def counts(found: linux.Processors) -> tuple[int | None, int | None, int | None]:
    return found.system.sockets, found.system.cores, found.system.threads


def names(found: linux.Processors) -> tuple[str | None, str | None, str | None]:
    return found.system.cpu_model, found.system.cpu_vendor, found.platform


def numa_ids(found: linux.Processors) -> list[int]:
    return [each.id for each in found.numa_nodes]


CASES: dict[str, tuple[list[Mapping[str, str]], Callable[[linux.Processors], Any], Any]] = {
    "sockets, cores and threads": ([{"/proc/cpuinfo": INTEL}, cpus((0, [0, 4]), (0, [1, 5]), (1, [2, 6]), (1, [3, 7]))], counts, (2, 4, 8)),
    "names": ([{"/proc/cpuinfo": INTEL}], names, ("Intel(R) Xeon(R) Platinum 8480C", "GenuineIntel", None)),
    "threads that are offline do not count": ([cpus((0, [0, 2]), (0, [1, 3])), {f"{CPU}/online": "0-1"}], lambda found: counts(found)[1:],
        (2, 2)),
    "sockets of POWER are not counted from 0 up": ([OF_POWER], counts, (2, 2, 6)),
    "POWER has other fields": ([OF_POWER], names, ("POWER9, altivec supported", None, "PowerNV")),
    "Arm names its designer alone": ([{"/proc/cpuinfo": GRACE}],
        lambda found: (names(found)[:2], found.system.threads, found.unknown["system/cpu_model"]),
        ((None, "ARM"), 1, "/proc/cpuinfo names none")),
    "without sysfs cpuinfo counts": ([{"/proc/cpuinfo": BLOCKS}], counts, (2, 4, 8)),
    "nothing there": ([], lambda found: (found.system, found.numa_nodes, set(found.unknown)),
        (System(), (), {"system/cpu_model", "system/sockets", "numa_nodes"})),
    "NUMA nodes have their CPUs and memory": ([memory(300), node(0, "0-3,8-11", 200), node(1, "4-7,12-15", 100)],
        lambda found: (found.numa_nodes, found.system.memory_bytes),
        ((NumaNode(0, "0-3,8-11", 200 * KIB), NumaNode(1, "4-7,12-15", 100 * KIB)), 300 * KIB)),
    "NUMA ids may have gaps and are in order of numbers": ([node(10, "2", 1), node(8, "1", 1), node(0, "0", 1)], numa_ids, [0, 8, 10]),
    "nodes of memory alone stay and empty ones go": ([node(0, "0-3", 100), node(1, "", 500), node(2, "", 0), node(3, "4-7", 0)],
        lambda found: found.numa_nodes, (NumaNode(0, "0-3", 100 * KIB), NumaNode(1, "", 500 * KIB), NumaNode(3, "4-7", 0))),
    "a node of which nothing is readable": ([{f"{NODE}/node0/distance": "10"}], lambda found: found.numa_nodes, (NumaNode(0),)),
    "CPUs come from the mask where there is no list, without those that are offline": ([{f"{NODE}/node0/cpumap": "00000001,0000000f",
        f"{CPU}/online": "0-1,32"}], lambda found: found.numa_nodes, (NumaNode(0, "0-1,32"),)),
    "memory of GPUs is neither a NUMA node nor main memory": ([memory(316),
        {STATUS: "Node:      255\nStatus:    online\nAddress:   40000000000"}, node(0, "0-3", 200), node(8, "4-7", 100), node(255, "", 16)],
        lambda found: (numa_ids(found), found.system.memory_bytes), ([0, 8], 300 * KIB)),
    "a node with CPUs is never taken for a GPU's": ([memory(100), {STATUS: "Node: 0\nStatus: offline"}, node(0, "0-3", 90)],
        lambda found: (numa_ids(found), found.system.memory_bytes), ([0], 100 * KIB)),
    "more memory than a machine has": ([memory(10**15)], lambda found: found.system.memory_bytes, None),
    "less memory than a machine has": ([memory(-5)], lambda found: found.system.memory_bytes, None),
}  # fmt: skip


@pytest.mark.parametrize(("files", "facts", "expected"), CASES.values(), ids=CASES)
def test_processors_and_memory(files: list[Mapping[str, str]], facts: Callable[[linux.Processors], Any], expected: Any) -> None:
    assert facts(read(*files)) == expected


def test_cores_cost_two_reads_each_however_many_threads_they_have() -> None:
    tree = Tree(cpus(*((0, range(8 * core, 8 * core + 8)) for core in range(32))))
    assert linux.read_processors(tree).system.threads == 256
    assert sum(count for path, count in tree.reads.items() if "topology" in path) == 2 * 32


NODES = (NumaNode(0, "0-3"), NumaNode(8, "4-7"), NumaNode(9, ""))


@pytest.mark.parametrize(("files", "expected"), [
    ({"local_cpulist": "4-7"}, 8), ({"local_cpus": "0000000f"}, 0), ({"local_cpulist": "0-7"}, None), ({"local_cpulist": "4"}, None),
    ({}, None), ({"local_cpulist": ""}, None), ({"local_cpulist": "0-3"}, 0),
])  # fmt: skip
def test_a_devices_node_is_the_one_with_just_its_local_cpus(files: dict[str, str], expected: int | None) -> None:
    tree = Tree({f"/device/{name}": text for name, text in files.items()})
    assert linux.node_of(tree, "/device", NODES) == expected
    assert linux.node_of(tree, "/device", NODES[:1]) is None  # a single node shows nothing


PATHS = [
    "/proc/cpuinfo", "/proc/meminfo", f"{CPU}/online", f"{CPU}/cpu0/topology/thread_siblings_list", f"{CPU}/cpu0/topology/thread_siblings",
    f"{CPU}/cpu1/topology/physical_package_id", f"{NODE}/node0/cpulist", f"{NODE}/node0/cpumap", f"{NODE}/node1/meminfo",
    "/proc/driver/nvidia/gpus/0/numa_status",
]  # fmt: skip
TEXTS = st.one_of(st.text(max_size=60), st.sampled_from([INTEL, POWER, GRACE, "0-1", "0", "-1", "3", "Node: 1", "MemTotal: 5 kB"]))


@given(st.dictionaries(st.sampled_from(PATHS), TEXTS))
def test_any_files_read(files: dict[str, str]) -> None:
    found = read(files)
    assert all(value is None or value > 0 for value in (found.system.sockets, found.system.cores, found.system.threads))
