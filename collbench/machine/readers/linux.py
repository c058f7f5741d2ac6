"""A Linux machine from sysfs and procfs, live or copied: system, NUMA nodes, PCI tree, GPUs. NICs have their own readers in `network`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from collbench.machine.files import Files
from collbench.machine.model import Machine, NumaNode, PciDevice, System
from collbench.machine.readers import pci_sysfs
from collbench.machine.readers.text import cpu_list, cpu_mask, printable, whole, written

# The IOMMU's mode for GPUs and NICs: off, passthrough, or translating (which slows transfers between them).

State = Literal["off", "passthrough", "translating"]
_GROUPS = "/sys/kernel/iommu_groups"
_CLASS = "/sys/class/iommu"


def state(files: Files, addresses: frozenset[str], system: System) -> tuple[State | None, str | None]:
    """Return the IOMMU's state for the devices at `addresses`, or for all devices if none of these is in a group; or None and why.

    The groups report it since Linux 4.11 (`type`); before, the kernel's command line where it has an entry. Without groups it is off.
    """
    groups = files.names(_GROUPS)
    if not groups and (files.real(_GROUPS) or files.real(_CLASS)) and not files.names(_CLASS):
        return "off", None
    device_groups = [group for group in groups if addresses & set(files.names(f"{_GROUPS}/{group}/devices"))]
    types = {files.text(f"{_GROUPS}/{group}/type") for group in device_groups or groups if whole(group) is not None}
    types &= {"identity", "DMA", "DMA-FQ"}
    if types:
        return ("passthrough" if types == {"identity"} else "translating"), None
    requested = _state_of_command_line(system.command_line or "", system.cpu_vendor, bool(groups))
    return requested, None if requested else f"{_GROUPS} and the kernel's command line do not show it"


def _state_of_command_line(line: str, vendor: str | None, groups: bool) -> State | None:
    """Return the state by the parameters that apply to this processor; the last of a name counts, and of "on,sm_on" the first part.

    Requested passthrough does not prove an IOMMU: groups do, or its own "on".
    """
    vendor_parameter = {"GenuineIntel": "intel_iommu", "AuthenticAMD": "amd_iommu"}.get(vendor or "", "iommu")
    pairs = (word.partition("=") for word in line.split() if re.match(rf"(?:iommu|{vendor_parameter}|iommu\.passthrough)=", word))
    parameters = {name: value.split(",")[0] for name, _, value in pairs}
    if not groups and "off" in parameters.values():
        return "off"
    on = "on" in parameters.values()
    if (groups or on) and (parameters.get("iommu") == "pt" or parameters.get("iommu.passthrough") == "1"):
        return "passthrough"
    return "translating" if on or (groups and parameters.get("iommu.passthrough") == "0") else None


# Processors and NUMA nodes from /proc/cpuinfo, /proc/meminfo and /sys/devices/system.

_CPUS = "/sys/devices/system/cpu"
_NODES = "/sys/devices/system/node"
_CUT = 1_000_000  # Files.text stops at 1 MiB, so a longer /proc/cpuinfo is incomplete
# ARM's core designers by the codes in Linux, arch/arm64/include/asm/cputype.h.
_ARM_DESIGNERS = {0x41: "ARM", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0x51: "Qualcomm", 0xC0: "Ampere"}


class Processors(msgspec.Struct, frozen=True):
    """The processors of a machine, with their facts of `system` (None: unknown) and the flags of /proc/cpuinfo (None: no such line)."""

    system: System
    flags: frozenset[str] | None
    platform: str | None
    numa_nodes: tuple[NumaNode, ...]
    unknown: Mapping[str, str]


def read_processors(files: Files) -> Processors:
    """Return sockets, cores, online threads, memory and NUMA nodes of the processors (not of GPUs). Never raises."""
    text = files.text("/proc/cpuinfo") or ""
    first = _fields(text.partition("\n\n")[0])
    present = frozenset(int(name[3:]) for name in files.names(_CPUS) if re.fullmatch(r"cpu\d{1,5}", name))
    online = cpu_list(files.text(f"{_CPUS}/online")) or present
    if present:
        online &= present
    sockets, cores = _packages_and_cores(files, online) if online else _sockets_and_cores(text)
    ids = sorted(int(name[4:]) for name in files.names(_NODES) if re.fullmatch(r"node\d{1,4}", name))
    states = [files.text(f"{pci_sysfs.NVIDIA_GPUS}/{name}/numa_status") or "" for name in files.names(pci_sysfs.NVIDIA_GPUS)]
    gpu_nodes = {whole(_fields(status).get("Node"), 0, 4095) for status in states} - {None}  # POWER9, Grace
    all_nodes = [_node(files, number, online) for number in ids]
    nodes = tuple(node for node in all_nodes if node.cpus or (node.memory_bytes != 0 and node.id not in gpu_nodes))
    memory_bytes = _kilobytes(files.text("/proc/meminfo"))
    if any(node.id in gpu_nodes and not node.cpus for node in all_nodes):  # it includes the memory of GPUs: sum over the other nodes
        sizes = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
        memory_bytes = sum(sizes) if len(sizes) == len(nodes) else None
    designer = _ARM_DESIGNERS.get(whole(first.get("CPU implementer")) or 0)
    flags = first.get("flags") or first.get("Features")
    names = (first.get("model name") or first.get("cpu"), first.get("vendor_id") or designer)
    model, vendor = (printable(" ".join(name.split())) if name else None for name in names)
    threads = len(online) or len(re.findall(r"^processor\s*:", text, re.M)) or None
    system = System(cpu_model=model, cpu_vendor=vendor, sockets=sockets, cores=cores, threads=threads, memory_bytes=memory_bytes)
    platform = _fields(text[-4096:]).get("platform")
    return Processors(system, frozenset(flags.split()) if flags else None, platform, nodes, _reasons(text, first, sockets, nodes))


def node_of(files: Files, folder: str, nodes: Iterable[NumaNode]) -> int | None:
    """Return the one NUMA node with exactly the CPUs local to a device; None when several match, or there is only one node."""
    cpu_nodes = [node for node in nodes if node.cpus]
    if len(cpu_nodes) < 2:
        return None
    local_cpus = cpu_list(files.text(f"{folder}/local_cpulist")) or cpu_mask(files.text(f"{folder}/local_cpus"))
    local_nodes = [node.id for node in cpu_nodes if cpu_list(node.cpus) == local_cpus]
    return local_nodes[0] if len(local_nodes) == 1 else None


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _packages_and_cores(files: Files, online: frozenset[int]) -> tuple[int | None, int | None]:
    """Return the numbers of sockets and cores. Two reads per core: siblings of a core are skipped."""
    packages: set[int | None] = set()
    cores = 0
    remaining = set(online)
    while remaining:
        cpu = next(iter(remaining)) if cores else min(remaining)
        folder = f"{_CPUS}/cpu{cpu}/topology"
        siblings = cpu_list(files.text(f"{folder}/thread_siblings_list")) or cpu_mask(files.text(f"{folder}/thread_siblings"))
        if not siblings or cpu not in siblings:
            return None, None
        packages.add(whole(files.text(f"{folder}/physical_package_id")))
        remaining -= siblings
        cores += 1
    return (None if None in packages else len(packages)), cores


def _sockets_and_cores(text: str) -> tuple[int | None, int | None]:
    """Return sockets and cores without sysfs: core ids start anew on each socket."""
    blocks = [] if len(text) > _CUT else [_fields(block) for block in text.split("\n\n")]
    cores = {(block["physical id"], block["core id"]) for block in blocks if "physical id" in block and "core id" in block}
    return (len({socket for socket, _ in cores}), len(cores)) if cores else (None, None)


def _node(files: Files, number: int, online: frozenset[int]) -> NumaNode:
    folder = f"{_NODES}/node{number}"
    listed = files.text(f"{folder}/cpulist")
    cpus = cpu_list(listed) if listed else cpu_mask(files.text(f"{folder}/cpumap")) or frozenset()
    shown_cpus = None
    if cpus or listed is not None:
        shown_cpus = written(cpus & online if online else cpus)
    return NumaNode(number, shown_cpus, _kilobytes(files.text(f"{folder}/meminfo")))


def _kilobytes(text: str | None) -> int | None:
    match = re.search(r"MemTotal:\s+(\d{1,12}) kB", text or "")
    return int(match[1]) << 10 if match else None


def _reasons(text: str, first: Mapping[str, str], sockets: int | None, nodes: tuple[NumaNode, ...]) -> dict[str, str]:
    reasons = {} if text else {"system/cpu_model": "/proc/cpuinfo is not there"}
    if text and not (first.get("model name") or first.get("cpu")):
        reasons["system/cpu_model"] = "/proc/cpuinfo names none"
    if sockets is None:
        reasons["system/sockets"] = f"{_CPUS} does not show how the processors are packed"
    if not nodes:
        reasons["numa_nodes"] = f"{_NODES} lists none: a kernel without NUMA, or not copied"
    return reasons


# The kernel's start parameters (/proc/cmdline), masked, since they can contain passwords, tokens, hosts and addresses.

MASKED = "masked"
_KNOWN = re.compile(
    r"^(?:(?:iommu|intel_|amd_|pci|numa|mitigations|isolcpus|nohz|rcu|huge|default_huge|transparent_huge|cgroup|systemd\.unified|nvidia|nouveau"
    r"|amdgpu|mlx|ib_|processor|cpu|idle|swiotlb|vfio)[\w.-]*|console|panic|module_blacklist|modprobe\.blacklist)$",
    re.IGNORECASE,
)
_FLAG = re.compile(r"^(?:auto|debug|no(?:apic|exec|hz|lapic|modeset|module|pat|pcid|pti|smt|splash)|pti|quiet|ro|rw|single|splash)$")
_NAME = re.compile(r"^[A-Za-z][\w.-]{0,60}$")
_SECRET = re.compile(r"passw|secret|token|key|credential", re.IGNORECASE)


def shown(line: str) -> str:
    """Return the kernel's command line without secrets; a line that was masked before stays as it is.

    Known parameters stay whole. Others keep their names, as their values may be anything; a bare word is treated like a value, and
    so is the text after "--", which is for the first program.
    """
    kernel_part, _, program_part = f" {' '.join(line.split())} ".partition(" -- ")
    words = [_shown(word) for word in kernel_part.split()]
    if program_part.strip():
        words += ["--", MASKED]
    return " ".join(words)


def _shown(word: str) -> str:
    name, equals, _ = word.partition("=")
    if _FLAG.match(word) or (_KNOWN.match(name) and not _SECRET.search(name)):
        return word
    return f"{name}={MASKED}" if equals and _NAME.match(name) else MASKED


# Facts of a Linux machine as a whole: kernel, driver, IOMMU, peer memory, hypervisor, container.

_MOST_COMMAND_LINE = 4096  # COMMAND_LINE_SIZE of the larger architectures
_NVIDIA_VERSION = re.compile(r"Kernel Module(?:\s+for\s+\S+)?\s+(\d{2,4}(?:\.\d{1,4}){1,3})\b")
_FLAGS = {"lm": "x86_64", "asimd": "aarch64"}  # of processors, by which their architecture is known
_ARCHITECTURES = ("x86_64", "aarch64", "ppc64le", "ppc64", "riscv64", "s390x", "i686")
_HWLOC_NOTE = "/proc/hwloc-nofile-info"  # the file in which hwloc-gather-topology stores uname

# NCCL uses NVIDIA's module (net_ib/gdr.cc), or Amazon's (https://github.com/openucx/ucx/pull/10704). RCCL uses AMD's; its path differs
# between kernels.
_PEER_MEMORY = (
    ("nv_mem", "/sys/kernel/mm/memory_peers/nv_mem/version"),
    ("nv_mem_nc", "/sys/kernel/mm/memory_peers/nv_mem_nc/version"),
    ("nvidia_peermem", "/sys/module/nvidia_peermem/version"),
    ("efa_nv_peermem", "/sys/module/efa_nv_peermem/version"),
    ("amdkfd", "/sys/kernel/mm/memory_peers/amdkfd/version"),
    ("amdkfd", "/sys/kernel/memory_peers/amdkfd/version"),
    ("amdkfd", "/sys/memory_peers/amdkfd/version"),
)

# (vendor of the machine, product) in its DMI table -> hypervisor; "" matches any.
_MADE_BY = (
    ("QEMU", "", "kvm"), ("", "KVM", "kvm"), ("VMware", "", "vmware"), ("Xen", "", "xen"), ("innotek GmbH", "", "virtualbox"),
    ("Microsoft Corporation", "Virtual Machine", "microsoft"),
)  # fmt: skip
# These vendors also offer bare metal: it is KVM only if the processor's flags show a hypervisor.
_KVM_CLOUDS = (
    "Amazon EC2", "Google", "Alibaba Cloud", "OpenStack Foundation", "Red Hat", "OracleCloud.com", "DigitalOcean", "Hetzner",
)  # fmt: skip
_CLOCKS = (("kvm-clock", "kvm"), ("hyperv", "microsoft"), ("xen", "xen"))


def read_system(files: Files, processors: Processors) -> tuple[System, dict[str, str]]:
    """Return the system's facts, except IOMMU and shared memory, and why some are unknown. Never raises."""
    version = re.match(r"Linux version (\S{1,120})", files.text("/proc/version") or "")
    kernel = printable(files.text("/proc/sys/kernel/osrelease") or (version[1] if version else "")) or None
    virtualization, why_virtualization = _virtualization(files, processors)
    container, why_container = _container(files)
    nvidia = _NVIDIA_VERSION.search(files.text("/proc/driver/nvidia/version") or "")
    driver = nvidia[1] if nvidia else printable(files.text("/sys/module/amdgpu/version") or "") or None
    # loaded, which does not prove that they work
    modules = dict.fromkeys(name for name, path in _PEER_MEMORY if files.text(path) is not None)
    peer_memory = tuple(modules) if modules or files.names("/sys/module") else None
    # as in uname -m: only newer kernels have it in a file; others have it in the release name, x86 in its flags
    by_flags = [name for flag, name in _FLAGS.items() if flag in (processors.flags or ())]
    names = (files.text("/proc/sys/kernel/arch"), _noted(files, "Architecture"), (kernel or "").rpartition(".")[2], *by_flags)
    system = replace(
        processors.system, architecture=next((name for name in names if name in _ARCHITECTURES), None), kernel=kernel,
        command_line=command_line(files), driver=driver, peer_memory=peer_memory, virtualization=virtualization, container=container,
    )  # fmt: skip
    reasons = {
        "system/driver": None if driver else "no NVIDIA or AMD GPU driver reports its version",
        "system/virtualization": why_virtualization,
        "system/container": why_container,
        "system/dma_buf": "files do not show whether the GPU driver exports its memory: run `probe` on the machine",
        "system/peer_memory": "/sys/module is not there" if peer_memory is None else None,
        "system/kernel": None if kernel else "/proc/sys/kernel/osrelease and /proc/version are not there",
    }
    return system, {path: why for path, why in reasons.items() if why}


def hostname(files: Files) -> str | None:
    """Return the machine's name from the kernel, else from /etc/hostname."""
    names = (files.text("/proc/sys/kernel/hostname"), files.text("/etc/hostname"), _noted(files, "HostName"))
    return next((printable(name.splitlines()[0], 253) for name in names if name), None)


def command_line(files: Files) -> str | None:
    """Return the kernel's command line without secrets, since it appears in reports and tickets."""
    text = files.text("/proc/cmdline")
    return printable(shown(text), _MOST_COMMAND_LINE) if text else None


def _noted(files: Files, name: str) -> str | None:
    match = re.search(rf"^{name}: *(\S{{1,200}})$", files.text(_HWLOC_NOTE) or "", re.M)
    return match[1] if match else None


def _virtualization(files: Files, processors: Processors) -> tuple[str | None, str | None]:
    """Return the hypervisor, "" on bare metal; or None and why. "hypervisor": an unidentified one."""
    vendor, product = (files.text(f"/sys/class/dmi/id/{name}") or "" for name in ("sys_vendor", "product_name"))
    made_by = (hypervisor for maker, name, hypervisor in _MADE_BY if vendor.startswith(maker) and product.startswith(name))
    hypervisor = next(made_by, None) or ("xen" if files.text("/sys/hypervisor/type") == "xen" else None)
    if hypervisor:
        return hypervisor, None
    if processors.platform in ("PowerNV", "pSeries"):
        return ("" if processors.platform == "PowerNV" else "hypervisor"), None
    if processors.flags is None or "fpu" not in processors.flags:
        return None, "this processor's /proc/cpuinfo has no mark for hypervisors, and the machine's maker is none"
    if "hypervisor" not in processors.flags:
        return "", None
    clocks = files.text("/sys/devices/system/clocksource/clocksource0/available_clocksource") or ""
    by_clock = next((hypervisor for clock, hypervisor in _CLOCKS if clock in clocks), "hypervisor")
    return "kvm" if vendor.startswith(_KVM_CLOUDS) else by_clock, None


def _container(files: Files) -> tuple[str | None, str | None]:
    """Return the container that encloses the processes that read these files, "" without one; or None and why."""
    groups = files.text("/proc/self/cgroup")
    marks = (
        ("apptainer", files.real("/.singularity.d") is not None),
        ("kubernetes", "kubepods" in (groups or "") or files.real("/var/run/secrets/kubernetes.io") is not None),
        ("podman", files.real("/run/.containerenv") is not None or "libpod-" in (groups or "")),
        ("docker", files.real("/.dockerenv") is not None or re.search("/docker[/-]", groups or "") is not None),
        ("lxc", "/lxc" in (groups or "")),
        ("slurm", re.search(r"slurm.*/job_\d", groups or "") is not None),
    )
    container = next((name for name, is_marked in marks if is_marked), None)
    if container:
        return container, None
    if groups is None or files.real("/etc") is None:
        return None, "/proc/self/cgroup is not there, or only some of the machine's files are"
    if re.search(r"^\S+ / overlay ", files.text("/proc/self/mounts") or files.text("/proc/mounts") or "", re.M):
        return None, "the root is an overlay: a container, or a node that was started over the network"
    return "", None


KIND = "Linux sysfs and procfs"


def read(files: Files) -> Machine:
    """Return the machine that the files show. Never raises. Missing facts are None, with the reason in `unknown`."""
    compute = read_processors(files)
    bus = pci_sysfs.read(files)
    accelerators = pci_sysfs.read_gpus(files, bus.pci)
    devices: list[PciDevice] = []
    for device in accelerators.pci:
        by_cpus = device.numa is None and device.kind in ("gpu", "nic")  # older kernels report only the CPUs
        folder = f"{pci_sysfs.DEVICES}/{device.address}"
        devices.append(replace(device, numa=node_of(files, folder, compute.numa_nodes)) if by_cpus else device)
    numa = {device.address: device.numa for device in devices}
    gpus = tuple(replace(gpu, numa=numa.get(gpu.key)) for gpu in accelerators.gpus)
    system, reasons = read_system(files, compute)
    gpus_and_nics = [device for device in devices if device.kind in ("gpu", "nic")]
    iommu, why_no_iommu = state(files, frozenset(device.address for device in gpus_and_nics), system)
    without_numa = [f"pci/{device.address}/numa" for device in gpus_and_nics if device.numa is None and not device.virtual]
    without_numa += [f"gpus/{gpu.key}/numa" for gpu in gpus if gpu.numa is None]
    unknown = {**compute.unknown, **reasons, **bus.unknown, **accelerators.unknown}
    unknown |= dict.fromkeys(without_numa, "the firmware does not report it (numa_node is -1 or absent)")
    if why_no_iommu:
        unknown["system/iommu"] = why_no_iommu
    return Machine(
        hostname(files), (KIND,), replace(system, iommu=iommu), compute.numa_nodes, tuple(devices), gpus, accelerators.gpu_links,
        unknown=unknown, doubts=bus.doubts + accelerators.doubts,
    )  # fmt: skip
