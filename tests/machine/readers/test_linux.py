"""A Linux machine out of its files: GPUs that drivers list, its system facts, and this machine."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.machine.model import Gpu, GpuLink, Machine, System
from collbench.machine.readers import linux
from collbench.machine.readers.linux import shown
from tests.machine.trees import Tree, pci, tree

NVIDIA, AMD = "0x10de", "0x1002"
GPUS = "/proc/driver/nvidia/gpus"


def gpu(bus: str, vendor: str = NVIDIA, **facts: str) -> tuple[dict[str, str], dict[str, str]]:
    return pci(f"pci0000:{bus}/0000:{bus}:00.0", **{"class": "0x030200"}, vendor=vendor, **facts)


UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"
INFORMATION = f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t {UUID}\nBus Location: \t 0000:19:00.0"
NEVER_OPENED = "Model: \t\t Unknown\nGPU UUID: \t GPU-????????-????-????-????-????????????"
SHARE = pci("pci0000:19/0000:19:00.4", **{"class": "0x030200"}, vendor=NVIDIA)
PHYSFN = {}, {"/sys/devices/pci0000:19/0000:19:00.4/physfn": "../0000:19:00.0"}
NODES = {"/sys/devices/system/node/node0/cpulist": "0-3", "/sys/devices/system/node/node8/cpulist": "4-7"}
KFD = "/sys/class/kfd/kfd/topology/nodes"
OF_KFD = {
    f"{KFD}/{number}/properties": f"simd_count 1216\nlocation_id {bus << 8}\ndomain 0\ngfx_target_version 90402"
    for number, bus in ((1, 0x05), (2, 0x26))
}
OF_KFD |= {
    f"{KFD}/{number}/io_links/0/properties": f"type 11\nnode_to {3 - number}\nmin_bandwidth 64000\nmax_bandwidth 64000" for number in (1, 2)
}
INSTINCT = gpu("05", AMD, product_name="AMD Instinct MI300X OAM", mem_info_vram_total="206141652992")


def driver(*buses: str, text: str = "") -> dict[str, str]:
    """What NVIDIA's driver shows of the GPUs on these buses."""
    return {f"{GPUS}/0000:{bus}:00.0/information": text for bus in buses}


def numbered(machine: Machine) -> list[tuple[int | None, str | None]]:
    return [(each.index, each.address) for each in machine.gpus]


MACHINES: dict[str, tuple[Tree, Callable[[Machine], Any], Any]] = {
    "an NVIDIA GPU has its name of the driver and its place of the bus": (tree(gpu("19", numa_node="1"), driver("19", text=INFORMATION)),
        lambda m: m.gpus, (Gpu("0000:19:00.0", 0, "0000:19:00.0", "nvidia", "NVIDIA H100 80GB HBM3", numa=1, uuid=UUID),)),
    "a GPU that was never opened has no name and no UUID": (tree(gpu("19"), driver("19", text=NEVER_OPENED)),
        lambda m: (m.gpus[0].model, m.gpus[0].uuid, "the driver" in m.unknown["gpus/0000:19:00.0/model"]), (None, None, True)),
    "GPUs are numbered in the order of the bus": (tree(gpu("c1"), gpu("19"), gpu("0a")), numbered,
        [(0, "0000:0a:00.0"), (1, "0000:19:00.0"), (2, "0000:c1:00.0")]),
    "a container that was given some GPUs has these alone": (tree(gpu("19"), gpu("3b"), gpu("4c"), driver("3b", "4c")),
        lambda m: (numbered(m), [device.address for device in m.pci if device.kind == "gpu"],
        m.doubts[0].startswith("1 of 3 NVIDIA GPUs ")),
        ([(0, "0000:3b:00.0"), (1, "0000:4c:00.0")], ["0000:19:00.0", "0000:3b:00.0", "0000:4c:00.0"], True)),
    "a GPU that only the driver shows": (Tree(driver("19", text="Model: \t NVIDIA L4")),
        lambda m: ([(each.address, each.model, each.numa) for each in m.gpus], m.doubts), ([("0000:19:00.0", "NVIDIA L4", None)], ())),
    "virtual functions for guests are no GPUs of the host": (tree(gpu("19"), SHARE, PHYSFN), numbered, [(0, "0000:19:00.0")]),
    "AMD's GPUs have what KFD shows": (tree(INSTINCT, gpu("26", AMD), OF_KFD),
        lambda m: [(each.vendor, each.model, each.architecture, each.memory_bytes, each.numa) for each in m.gpus[:1]],
        [("amd", "AMD Instinct MI300X OAM", "gfx942", 206141652992, 0)]),
    "links between AMD's GPUs": (tree(INSTINCT, gpu("26", AMD), OF_KFD), lambda m: (m.gpu_links[0], m.links_of("0000:26:00.0")),
        (GpuLink("0000:05:00.0", "0000:26:00.0", 1, "xgmi", 64e9), 1)),
    "a GPU takes the node of its local CPUs, and -1 stays unknown": (tree(NODES, gpu("19", numa_node="-1", local_cpulist="4-7"),
        gpu("3b", numa_node="-1", local_cpulist="0-7")),
        lambda m: ([each.numa for each in m.gpus], [path for path in m.unknown if path.endswith("/numa")]),
        ([8, None], ["pci/0000:3b:00.0/numa", "gpus/0000:3b:00.0/numa"])),
}  # fmt: skip


@pytest.mark.parametrize(("files", "facts", "expected"), MACHINES.values(), ids=MACHINES)
def test_gpus(files: Tree, facts: Callable[[Machine], Any], expected: Any) -> None:
    assert facts(linux.read(files)) == expected


def test_nothing_there_is_a_machine_with_reasons() -> None:
    machine = linux.read(Tree({}))
    assert machine.sources == (linux.KIND,)
    assert (machine.system, machine.pci, machine.gpus, machine.numa_nodes, machine.hostname) == (System(), (), (), (), None)
    unknown = {"pci", "gpus", "numa_nodes", "system/kernel", "system/iommu", "system/container", "system/virtualization", "system/dma_buf"}
    assert unknown <= set(machine.unknown)
    assert linux.read(Tree({"/proc/sys/kernel/hostname": "n1"})).hostname == "n1"


GPU = pci("pci0000:19/0000:19:00.0", **{"class": "0x030200"}, vendor="0x10de")
GROUPS = "/sys/kernel/iommu_groups"
DMI = "/sys/class/dmi/id"
FLAGS = "flags : fpu lm"
VM_FLAGS = "flags : fpu lm hypervisor"


def system(*parts: Any) -> System:
    return linux.read(tree(*parts)).system


NVRM = "/proc/driver/nvidia/version"
PEERS = "/sys/kernel/mm/memory_peers"
LINE = "ro rd.iscsi.password=hunter2 ks=https://me:pw@host/ks.cfg api_token=abc iommu=pt keyboard quiet"
SYSTEMS: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("NVIDIA's driver", {NVRM: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023"},
        {"driver": "535.104.05"}),
    ("NVIDIA's open driver", {NVRM: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (dvs-builder@U16)"},
        {"driver": "550.54.15"}),
    ("NVIDIA's driver on POWER", {NVRM: "NVRM version: NVIDIA UNIX ppc64le Kernel Module  418.39  Sat Feb  9 19:10:36 CST 2019"},
        {"driver": "418.39"}),
    ("no version", {NVRM: "NVRM version: \x00"}, {"driver": None}),
    ("AMD's driver", {"/sys/module/amdgpu/version": "6.8.5"}, {"driver": "6.8.5"}),
    ("kernel", {"/proc/sys/kernel/osrelease": "5.15.0-91-generic", "/proc/cpuinfo": FLAGS},
        {"kernel": "5.15.0-91-generic", "architecture": "x86_64"}),
    ("kernel by its version", {"/proc/version": "Linux version 4.18.0-80.el8.ppc64le (mockbuild@x) #1"},
        {"kernel": "4.18.0-80.el8.ppc64le", "architecture": "ppc64le"}),
    ("architecture", {"/proc/sys/kernel/arch": "aarch64"}, {"architecture": "aarch64"}),
    ("command line", {"/proc/cmdline": LINE},
        {"command_line": "ro rd.iscsi.password=masked ks=masked api_token=masked iommu=pt masked quiet"}),
    ("nvidia_peermem", {"/sys/module/nvidia_peermem/version": "535.104.05"}, {"peer_memory": ("nvidia_peermem",)}),
    ("efa_nv_peermem", {"/sys/module/efa_nv_peermem/version": "1.0.0"}, {"peer_memory": ("efa_nv_peermem",)}),
    ("nv_mem", {f"{PEERS}/nv_mem/version": "1.3"}, {"peer_memory": ("nv_mem",)}),
    ("nv_mem_nc", {f"{PEERS}/nv_mem_nc/version": "1.3"}, {"peer_memory": ("nv_mem_nc",)}),
    ("amdkfd", {f"{PEERS}/amdkfd/version": "1"}, {"peer_memory": ("amdkfd",)}),
    ("amdkfd twice", {"/sys/kernel/memory_peers/amdkfd/version": "1", "/sys/memory_peers/amdkfd/version": "1"},
        {"peer_memory": ("amdkfd",)}),
    ("another module", {"/sys/module/gdrdrv/version": "2.3"}, {"peer_memory": ()}),
    ("nothing", {}, {"peer_memory": None}),
]  # fmt: skip


@pytest.mark.parametrize(("files", "facts"), [row[1:] for row in SYSTEMS], ids=[name for name, *_ in SYSTEMS])
def test_drivers_kernel_and_peer_memory(files: dict[str, str], facts: dict[str, Any]) -> None:
    assert {name: getattr(system(files), name) for name in facts} == facts


def groups(*types: str) -> dict[str, str]:
    return {f"{GROUPS}/{number}/type": text for number, text in enumerate(types)}


INTEL, EPYC = {"/proc/cpuinfo": "vendor_id : GenuineIntel"}, {"/proc/cpuinfo": "vendor_id : AuthenticAMD"}


@pytest.mark.parametrize(("files", "line", "state"), [
    (groups("identity", "identity"), "", "passthrough"), (groups("identity", "DMA-FQ"), "iommu=pt", "translating"),
    (groups("DMA"), "", "translating"), (groups("unknown"), "iommu=pt", "passthrough"),
    (groups("unknown"), "iommu.passthrough=1", "passthrough"), (groups("unknown"), "iommu.passthrough=0", "translating"),
    (groups("unknown"), "quiet", None), ({f"{GROUPS}/": ""}, "iommu=pt intel_iommu=on", "off"),
    ({f"{GROUPS}/": "", "/sys/class/iommu/dmar0/": ""} | INTEL, "intel_iommu=on", "translating"),
    (INTEL, "intel_iommu=on iommu=pt", "passthrough"), (INTEL, "intel_iommu=on,sm_on", "translating"), (INTEL, "intel_iommu=off", "off"),
    (EPYC, "intel_iommu=off", None), (EPYC, "amd_iommu=off", "off"), (INTEL, "iommu=pt", None), (INTEL, "iommu=pt iommu=off", "off"),
    ({}, "", None),
])  # fmt: skip
def test_the_iommu_is_as_its_groups_have_it_and_else_as_the_kernel_command_line(files, line, state) -> None:
    machine = linux.read(Tree(files | {"/proc/cmdline": line}))
    assert machine.system.iommu == state
    assert ("system/iommu" in machine.unknown) is (state is None)


def test_what_else_shows_an_iommu_a_hypervisor_and_a_container() -> None:
    ours = {f"{GROUPS}/0/devices/0000:19:00.0": "", **groups("identity", "DMA")}  # groups of other devices do not count
    assert (system(GPU, ours).iommu, system(GPU, groups("identity", "DMA")).iommu) == ("passthrough", "translating")
    clock = {"/sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc kvm-clock acpi_pm"}
    assert [system({"/proc/cpuinfo": flags}, clock).virtualization for flags in (VM_FLAGS, FLAGS)] == ["kvm", ""]
    assert system({"/proc/self/cgroup": "0::/"}).container is None  # a part of a machine's files shows nothing


@pytest.mark.parametrize(("flags", "vendor", "product", "found"), [
    (FLAGS, "Dell Inc.", "PowerEdge XE9680", ""), (FLAGS, "", "", ""), (VM_FLAGS, "QEMU", "Standard PC (Q35 + ICH9, 2009)", "kvm"),
    (FLAGS, "QEMU", "Standard PC", "kvm"), (VM_FLAGS, "Amazon EC2", "p5.48xlarge", "kvm"), (FLAGS, "Amazon EC2", "c5.metal", ""),
    (VM_FLAGS, "Google", "Google Compute Engine", "kvm"), (VM_FLAGS, "Microsoft Corporation", "Virtual Machine", "microsoft"),
    (FLAGS, "Microsoft Corporation", "C2188", ""), (VM_FLAGS, "VMware, Inc.", "VMware7,1", "vmware"), (VM_FLAGS, "Xen", "HVM domU", "xen"),
    (VM_FLAGS, "Somebody", "Something", "hypervisor"), ("platform : PowerNV", "", "", ""), ("platform : pSeries", "", "", "hypervisor"),
    ("Features : fp asimd", "Supermicro", "ARS-111GL", None), ("Features : fp asimd", "QEMU", "virt", "kvm"),
])  # fmt: skip
def test_a_hypervisor_is_known_by_the_machines_maker_and_the_processors_flag(flags, vendor, product, found) -> None:
    files = {"/proc/cpuinfo": flags, f"{DMI}/sys_vendor": vendor, f"{DMI}/product_name": product}
    assert system(files).virtualization == found


@pytest.mark.parametrize(("files", "container"), [
    ({}, ""), ({"/.dockerenv": ""}, "docker"), ({"/run/.containerenv": "engine=podman"}, "podman"),
    ({"/.singularity.d/runscript": ""}, "apptainer"), ({"/proc/self/cgroup": "12:memory:/docker/0123"}, "docker"),
    ({"/proc/self/cgroup": "0::/kubepods.slice/pod1/cri-containerd-2"}, "kubernetes"),
    ({"/.dockerenv": "", "/proc/self/cgroup": "0::/kubepods/besteffort/pod1"}, "kubernetes"),
    ({"/var/run/secrets/kubernetes.io/serviceaccount/": ""}, "kubernetes"),
    ({"/proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_17/step_0"}, "slurm"),
    ({"/proc/self/cgroup": "0::/lxc/17"}, "lxc"), ({"/proc/self/cgroup": "0::/system.slice/docker-0123.scope"}, "docker"),
    ({"/proc/self/cgroup": "0::/system.slice/docker.service"}, ""), ({"/proc/self/mounts": "overlay / overlay rw 0 0"}, None),
    ({"/proc/self/mounts": "/dev/sda1 / ext4 rw 0 0\noverlay /x overlay rw 0 0"}, ""),
])  # fmt: skip
def test_a_container_is_known_by_its_marks(files: dict[str, str], container: str | None) -> None:
    assert system({"/etc/": "", "/proc/self/cgroup": "0::/user.slice", **files}).container == container


PATHS = [
    "/proc/cmdline", "/proc/version", "/proc/self/cgroup", "/proc/self/mounts", "/proc/driver/nvidia/version", "/etc/hostname",
    "/proc/driver/nvidia/gpus/0000:19:00.0/information", f"{GROUPS}/0/type", f"{DMI}/sys_vendor", "/proc/cpuinfo",
    "/sys/module/amdgpu/version", "/sys/bus/pci/devices/0000:19:00.0/class", "/sys/bus/pci/devices/0000:19:00.0/uevent",
    "/proc/hwloc-nofile-info",
]  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=80), st.sampled_from([VM_FLAGS, "0x030200", "PCI_ID=10DE:2330", "Model: \t x", "iommu=pt", "DMA", "Linux version"])
)


@given(st.dictionaries(st.sampled_from(PATHS), TEXTS))
def test_any_files_read_without_control_characters_in_names(files: dict[str, str]) -> None:
    machine = linux.read(Tree(files))
    names = [machine.hostname, machine.system.kernel, machine.system.command_line, machine.system.driver, machine.system.cpu_model]
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", "".join(name or "" for name in [*names, *(each.model for each in machine.gpus)]))


@pytest.mark.parametrize(("line", "left"), [
    ("ro quiet iommu=pt intel_iommu=on,sm_on amd_iommu=off iommu.passthrough=1", None),
    ("pcie_aspm=off pci=noats,realloc numa_balancing=disable mitigations=auto,nosmt isolcpus=1-7 hugepagesz=1G", None),
    ("console=ttyS0,115200 panic=1 modprobe.blacklist=nouveau nvidia-drm.modeset=1 systemd.unified_cgroup_hierarchy=1", None),
    ("BOOT_IMAGE=/vmlinuz root=UUID=0b1d ip=10.1.2.3", "BOOT_IMAGE=masked root=masked ip=masked"),
    ("hunter2 alice swordfish", "masked masked masked"), ("https://me:pw@host/ks?x=1", "masked"),
    ("nvidia.license_key=abc cgroup_token=x pci_password=x", "nvidia.license_key=masked cgroup_token=masked pci_password=masked"),
    ('x="a secret" quiet', "x=masked masked quiet"), ("quiet -- --token abc quiet iommu=pt", "quiet -- masked"), ("quiet --", "quiet"),
    ("", ""),
])  # fmt: skip
def test_known_parameters_stay_and_of_others_the_name(line: str, left: str | None) -> None:
    assert shown(line) == (line if left is None else left)


@given(st.text(max_size=80))
def test_what_was_shown_stays_as_it_is(line: str) -> None:
    assert shown(shown(line)) == shown(line)
