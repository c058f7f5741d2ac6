"""A Linux machine out of its files: GPUs that drivers list, its system facts, and this machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.files import Folder
from collbench.machine.model import GpuLink, System
from collbench.machine.readers import linux
from collbench.machine.readers.linux import shown
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


@pytest.mark.contract
def test_this_machine_is_as_other_tools_report() -> None:
    machine = linux.read(Folder(Path("/")))
    assert machine.system.threads == psutil.cpu_count()
    assert machine.system.memory_bytes == psutil.virtual_memory().total
    assert machine.system.kernel == subprocess.run(["uname", "-r"], capture_output=True, text=True, check=True).stdout.strip()
    assert machine.system.architecture == subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()
    assert machine.hostname == subprocess.run(["uname", "-n"], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.contract
def test_this_machines_processors_are_those_of_lscpu() -> None:
    try:
        done = subprocess.run(["lscpu", "--parse=SOCKET,CORE"], capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("needs lscpu (util-linux)")
    lines = {line for line in done.stdout.splitlines() if line and line[0] != "#"}
    found = linux.read(Folder(Path("/"))).system
    assert (found.cores, found.sockets) == (len(lines), len({line.partition(",")[0] for line in lines}))


GPU = pci("pci0000:19/0000:19:00.0", **{"class": "0x030200"}, vendor="0x10de")
GROUPS = "/sys/kernel/iommu_groups"
DMI = "/sys/class/dmi/id"
FLAGS = "flags : fpu lm"
VM_FLAGS = "flags : fpu lm hypervisor"


def system(*parts: Any) -> System:
    return linux.read(tree(*parts)).system


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (dvs-builder@U16)", "550.54.15"),
        ("NVRM version: NVIDIA UNIX ppc64le Kernel Module  418.39  Sat Feb  9 19:10:36 CST 2019", "418.39"),
        ("NVRM version: \x00", None),
    ],
)
def test_the_nvidia_drivers_version(line: str, version: str | None) -> None:
    assert system({"/proc/driver/nvidia/version": line}).driver == version


def test_the_amd_drivers_version() -> None:
    assert system({"/sys/module/amdgpu/version": "6.8.5"}).driver == "6.8.5"


def test_kernel_architecture_and_name() -> None:
    machine = linux.read(
        Tree({"/proc/sys/kernel/osrelease": "5.15.0-91-generic", "/proc/sys/kernel/hostname": "n1", "/proc/cpuinfo": FLAGS})
    )
    assert (machine.system.kernel, machine.system.architecture, machine.hostname) == ("5.15.0-91-generic", "x86_64", "n1")
    of_version = system({"/proc/version": "Linux version 4.18.0-80.el8.ppc64le (mockbuild@x) #1"})
    assert (of_version.kernel, of_version.architecture) == ("4.18.0-80.el8.ppc64le", "ppc64le")
    assert system({"/proc/sys/kernel/arch": "aarch64"}).architecture == "aarch64"


def test_the_command_line_is_shown_without_what_its_parameters_hold() -> None:
    line = "ro rd.iscsi.password=hunter2 ks=https://me:pw@host/ks.cfg api_token=abc iommu=pt keyboard quiet"
    shown = "ro rd.iscsi.password=masked ks=masked api_token=masked iommu=pt masked quiet"
    assert system({"/proc/cmdline": line}).command_line == shown


@pytest.mark.parametrize(
    ("files", "modules"),
    [
        ({"/sys/module/nvidia_peermem/version": "535.104.05"}, ("nvidia_peermem",)),
        ({"/sys/kernel/mm/memory_peers/nv_mem/version": "1.3"}, ("nv_mem",)),
        ({"/sys/kernel/mm/memory_peers/nv_mem_nc/version": "1.3"}, ("nv_mem_nc",)),
        ({"/sys/kernel/mm/memory_peers/amdkfd/version": "1"}, ("amdkfd",)),
        ({"/sys/kernel/memory_peers/amdkfd/version": "1", "/sys/memory_peers/amdkfd/version": "1"}, ("amdkfd",)),
        ({"/sys/module/gdrdrv/version": "2.3"}, ()),
        ({}, None),
    ],
)
def test_peer_memory_is_what_nccl_and_rccl_look_for(files: dict[str, str], modules: tuple[str, ...] | None) -> None:
    assert system(files).peer_memory == modules


def groups(*types: str) -> dict[str, str]:
    return {f"{GROUPS}/{number}/type": text for number, text in enumerate(types)}


INTEL, EPYC = {"/proc/cpuinfo": "vendor_id : GenuineIntel"}, {"/proc/cpuinfo": "vendor_id : AuthenticAMD"}


@pytest.mark.parametrize(
    ("files", "line", "state"),
    [
        (groups("identity", "identity"), "", "passthrough"),
        (groups("identity", "DMA-FQ"), "iommu=pt", "translating"),
        (groups("DMA"), "", "translating"),
        (groups("unknown"), "iommu=pt", "passthrough"),
        (groups("unknown"), "iommu.passthrough=1", "passthrough"),
        (groups("unknown"), "iommu.passthrough=0", "translating"),
        (groups("unknown"), "quiet", None),
        ({f"{GROUPS}/": ""}, "iommu=pt intel_iommu=on", "off"),
        ({f"{GROUPS}/": "", "/sys/class/iommu/dmar0/": ""} | INTEL, "intel_iommu=on", "translating"),
        (INTEL, "intel_iommu=on iommu=pt", "passthrough"),
        (INTEL, "intel_iommu=on,sm_on", "translating"),
        (INTEL, "intel_iommu=off", "off"),
        (EPYC, "intel_iommu=off", None),
        (EPYC, "amd_iommu=off", "off"),
        (INTEL, "iommu=pt", None),
        (INTEL, "iommu=pt iommu=off", "off"),
        ({}, "", None),
    ],
)
def test_the_iommu_is_as_its_groups_have_it_and_else_as_the_kernel_command_line(
    files: dict[str, str], line: str, state: str | None
) -> None:
    machine = linux.read(Tree(files | {"/proc/cmdline": line}))
    assert machine.system.iommu == state
    assert ("system/iommu" in machine.unknown) is (state is None)


def test_the_groups_of_gpus_and_nics_count_and_not_those_of_other_devices() -> None:
    ours = {f"{GROUPS}/0/devices/0000:19:00.0": "", **groups("identity", "DMA")}
    assert system(GPU, ours).iommu == "passthrough"
    assert system(GPU, groups("identity", "DMA")).iommu == "translating"


@pytest.mark.parametrize(
    ("flags", "vendor", "product", "found"),
    [
        (FLAGS, "Dell Inc.", "PowerEdge XE9680", ""),
        (FLAGS, "", "", ""),
        (VM_FLAGS, "QEMU", "Standard PC (Q35 + ICH9, 2009)", "kvm"),
        (FLAGS, "QEMU", "Standard PC", "kvm"),
        (VM_FLAGS, "Amazon EC2", "p5.48xlarge", "kvm"),
        (FLAGS, "Amazon EC2", "c5.metal", ""),
        (VM_FLAGS, "Google", "Google Compute Engine", "kvm"),
        (VM_FLAGS, "Microsoft Corporation", "Virtual Machine", "microsoft"),
        (FLAGS, "Microsoft Corporation", "C2188", ""),
        (VM_FLAGS, "VMware, Inc.", "VMware7,1", "vmware"),
        (VM_FLAGS, "Xen", "HVM domU", "xen"),
        (VM_FLAGS, "Somebody", "Something", "hypervisor"),
        ("platform : PowerNV", "", "", ""),
        ("platform : pSeries", "", "", "hypervisor"),
        ("Features : fp asimd", "Supermicro", "ARS-111GL", None),
        ("Features : fp asimd", "QEMU", "virt", "kvm"),
    ],
)
def test_a_hypervisor_is_known_by_the_machines_maker_and_the_processors_flag(
    flags: str, vendor: str, product: str, found: str | None
) -> None:
    files = {"/proc/cpuinfo": flags, f"{DMI}/sys_vendor": vendor, f"{DMI}/product_name": product}
    assert system(files).virtualization == found


def test_without_a_maker_the_clock_shows_the_hypervisor() -> None:
    clock = {"/sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc kvm-clock acpi_pm"}
    assert system({"/proc/cpuinfo": VM_FLAGS}, clock).virtualization == "kvm"
    assert system({"/proc/cpuinfo": FLAGS}, clock).virtualization == ""


@pytest.mark.parametrize(
    ("files", "container"),
    [
        ({}, ""),
        ({"/.dockerenv": ""}, "docker"),
        ({"/run/.containerenv": "engine=podman"}, "podman"),
        ({"/.singularity.d/runscript": ""}, "apptainer"),
        ({"/proc/self/cgroup": "12:memory:/docker/0123"}, "docker"),
        ({"/proc/self/cgroup": "0::/kubepods.slice/pod1/cri-containerd-2"}, "kubernetes"),
        ({"/.dockerenv": "", "/proc/self/cgroup": "0::/kubepods/besteffort/pod1"}, "kubernetes"),
        ({"/var/run/secrets/kubernetes.io/serviceaccount/": ""}, "kubernetes"),
        ({"/proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_17/step_0"}, "slurm"),
        ({"/proc/self/cgroup": "0::/lxc/17"}, "lxc"),
        ({"/proc/self/cgroup": "0::/system.slice/docker-0123.scope"}, "docker"),
        ({"/proc/self/cgroup": "0::/system.slice/docker.service"}, ""),
        ({"/proc/self/mounts": "overlay / overlay rw 0 0"}, None),
        ({"/proc/self/mounts": "/dev/sda1 / ext4 rw 0 0\noverlay /x overlay rw 0 0"}, ""),
    ],
)
def test_a_container_is_known_by_its_marks(files: dict[str, str], container: str | None) -> None:
    assert system({"/etc/": "", "/proc/self/cgroup": "0::/user.slice", **files}).container == container


def test_a_part_of_a_machines_files_shows_nothing_about_a_container() -> None:
    assert system({"/proc/self/cgroup": "0::/"}).container is None


PATHS = [
    "/proc/cmdline", "/proc/version", "/proc/self/cgroup", "/proc/self/mounts", "/proc/driver/nvidia/version", "/etc/hostname",
    "/proc/driver/nvidia/gpus/0000:19:00.0/information", f"{GROUPS}/0/type", f"{DMI}/sys_vendor", "/proc/cpuinfo",
    "/sys/module/amdgpu/version", "/sys/bus/pci/devices/0000:19:00.0/class", "/sys/bus/pci/devices/0000:19:00.0/uevent",
    "/proc/hwloc-nofile-info",
]  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=80), st.sampled_from([VM_FLAGS, "0x030200", "PCI_ID=10DE:2330", "Model: \t x", "iommu=pt", "DMA", "Linux version"])
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(PATHS), TEXTS))
def test_any_files_read_without_control_characters_in_names(files: dict[str, str]) -> None:
    machine = linux.read(Tree(files))
    names = [machine.hostname, machine.system.kernel, machine.system.command_line, machine.system.driver, machine.system.cpu_model]
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", "".join(name or "" for name in [*names, *(each.model for each in machine.gpus)]))


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("ro quiet iommu=pt intel_iommu=on,sm_on amd_iommu=off iommu.passthrough=1", None),
        ("pcie_aspm=off pci=noats,realloc numa_balancing=disable mitigations=auto,nosmt isolcpus=1-7 hugepagesz=1G", None),
        ("console=ttyS0,115200 panic=1 modprobe.blacklist=nouveau nvidia-drm.modeset=1 systemd.unified_cgroup_hierarchy=1", None),
        ("BOOT_IMAGE=/vmlinuz root=UUID=0b1d ip=10.1.2.3", "BOOT_IMAGE=masked root=masked ip=masked"),
        ("hunter2 alice swordfish", "masked masked masked"),
        ("https://me:pw@host/ks?x=1", "masked"),
        ("nvidia.license_key=abc cgroup_token=x pci_password=x", "nvidia.license_key=masked cgroup_token=masked pci_password=masked"),
        ('x="a secret" quiet', "x=masked masked quiet"),
        ("quiet -- --token abc quiet iommu=pt", "quiet -- masked"),
        ("quiet --", "quiet"),
        ("", ""),
    ],
)
def test_known_parameters_stay_and_of_others_the_name(line: str, left: str | None) -> None:
    assert shown(line) == (line if left is None else left)


@given(st.text(max_size=80))
def test_what_was_shown_stays_as_it_is(line: str) -> None:
    assert shown(shown(line)) == shown(line)
