"""A Linux machine out of its files: GPUs that drivers list, the captured machines, and this one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest

from collbench.machine.files import Folder
from collbench.machine.model import GpuLink, System
from collbench.machine.readers import linux
from tests.machine.trees import Tree, pci, tree

NVIDIA, AMD = "0x10de", "0x1002"
GPUS = "/proc/driver/nvidia/gpus"


def gpu(bus: str, vendor: str = NVIDIA, **facts: str) -> tuple[dict[str, str], dict[str, str]]:
    return pci(f"pci0000:{bus}/0000:{bus}:00.0", **{"class": "0x030200"}, vendor=vendor, **facts)


def test_an_nvidia_gpu_has_its_name_of_the_driver_and_its_place_of_the_bus() -> None:
    uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef"
    text = f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t {uuid}\nBus Location: \t 0000:19:00.0"
    (found,) = linux.read(tree(gpu("19", numa_node="1"), {f"{GPUS}/0000:19:00.0/information": text})).gpus
    assert (found.key, found.address, found.index, found.vendor) == ("0000:19:00.0", "0000:19:00.0", 0, "nvidia")
    assert (found.model, found.uuid, found.numa, found.memory_bytes) == ("NVIDIA H100 80GB HBM3", uuid, 1, None)


def test_a_gpu_that_was_never_opened_has_no_name_and_no_uuid() -> None:
    text = "Model: \t\t Unknown\nGPU UUID: \t GPU-????????-????-????-????-????????????"
    machine = linux.read(tree(gpu("19"), {f"{GPUS}/0000:19:00.0/information": text}))
    assert (machine.gpus[0].model, machine.gpus[0].uuid) == (None, None)
    assert "the driver" in machine.unknown["gpus/0000:19:00.0/model"]


def test_gpus_are_numbered_in_the_order_of_the_bus() -> None:
    machine = linux.read(tree(gpu("c1"), gpu("19"), gpu("0a")))
    assert [(each.index, each.address) for each in machine.gpus] == [(0, "0000:0a:00.0"), (1, "0000:19:00.0"), (2, "0000:c1:00.0")]


def test_a_container_that_was_given_some_gpus_has_these_alone() -> None:
    machine = linux.read(
        tree(gpu("19"), gpu("3b"), gpu("4c"), {f"{GPUS}/0000:3b:00.0/information": "", f"{GPUS}/0000:4c:00.0/information": ""})
    )
    assert [(each.index, each.address) for each in machine.gpus] == [(0, "0000:3b:00.0"), (1, "0000:4c:00.0")]
    assert [device.address for device in machine.pci if device.kind == "gpu"] == ["0000:19:00.0", "0000:3b:00.0", "0000:4c:00.0"]
    assert machine.doubts[0].startswith("1 of 3 NVIDIA GPUs ")


def test_a_gpu_that_only_the_driver_shows_is_one() -> None:
    machine = linux.read(Tree({f"{GPUS}/0000:19:00.0/information": "Model: \t NVIDIA L4"}))
    assert [(each.address, each.model, each.numa) for each in machine.gpus] == [("0000:19:00.0", "NVIDIA L4", None)]
    assert not machine.doubts


def test_virtual_functions_for_guests_are_no_gpus_of_the_host() -> None:
    virtual = pci("pci0000:19/0000:19:00.4", **{"class": "0x030200"}, vendor=NVIDIA)
    physfn = {"/sys/devices/pci0000:19/0000:19:00.4/physfn": "../0000:19:00.0"}
    assert [each.address for each in linux.read(tree(gpu("19"), virtual, ({}, physfn))).gpus] == ["0000:19:00.0"]


def test_amd_gpus_have_what_kfd_shows() -> None:
    node = "/sys/class/kfd/kfd/topology/nodes"
    properties = "simd_count 1216\nlocation_id {}\ndomain 0\ngfx_target_version 90402"
    link = "type 11\nnode_to {}\nmin_bandwidth 64000\nmax_bandwidth 64000"
    nodes = {f"{node}/{number}/properties": properties.format(bus << 8) for number, bus in ((1, 0x05), (2, 0x26))}
    links = {f"{node}/{number}/io_links/0/properties": link.format(3 - number) for number in (1, 2)}
    machine = linux.read(
        tree(gpu("05", AMD, product_name="AMD Instinct MI300X OAM", mem_info_vram_total="206141652992"), gpu("26", AMD), nodes, links)
    )
    first = machine.gpus[0]
    assert (first.vendor, first.model, first.architecture) == ("amd", "AMD Instinct MI300X OAM", "gfx942")
    assert (first.memory_bytes, first.numa) == (206141652992, 0)
    assert machine.gpu_links[0] == GpuLink("0000:05:00.0", "0000:26:00.0", 1, "xgmi", 64e9)
    assert machine.links_of("0000:26:00.0") == 1


def test_a_gpu_takes_the_node_of_its_local_cpus_and_minus_one_stays_unknown() -> None:
    nodes = {"/sys/devices/system/node/node0/cpulist": "0-3", "/sys/devices/system/node/node8/cpulist": "4-7"}
    machine = linux.read(tree(nodes, gpu("19", numa_node="-1", local_cpulist="4-7"), gpu("3b", numa_node="-1", local_cpulist="0-7")))
    assert [each.numa for each in machine.gpus] == [8, None]
    assert [path for path in machine.unknown if path.endswith("/numa")] == ["pci/0000:3b:00.0/numa", "gpus/0000:3b:00.0/numa"]


def test_nothing_there_is_a_machine_with_reasons() -> None:
    machine = linux.read(Tree({}))
    assert machine.sources == (linux.KIND,)
    assert (machine.system, machine.pci, machine.gpus, machine.numa_nodes, machine.hostname) == (System(), (), (), (), None)
    assert {"pci", "gpus", "numa_nodes", "system/kernel", "system/iommu", "system/container", "system/virtualization"} <= set(
        machine.unknown
    )


def test_this_machine_is_as_other_tools_report() -> None:
    machine = linux.read(Folder(Path("/")))
    assert machine.system.threads == psutil.cpu_count()
    assert machine.system.memory_bytes == psutil.virtual_memory().total
    assert machine.system.kernel == subprocess.run(["uname", "-r"], capture_output=True, text=True, check=True).stdout.strip()
    assert machine.system.architecture == subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()
    assert machine.hostname == subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout.strip()


def test_this_machines_processors_are_those_of_lscpu() -> None:
    try:
        done = subprocess.run(["lscpu", "--parse=SOCKET,CORE"], capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("needs lscpu (util-linux)")
    lines = {line for line in done.stdout.splitlines() if line and line[0] != "#"}
    found = linux.read(Folder(Path("/"))).system
    assert (found.cores, found.sockets) == (len(lines), len({line.partition(",")[0] for line in lines}))
