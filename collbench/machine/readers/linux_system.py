"""What a Linux machine is once: kernel, driver, IOMMU, peer memory, hypervisor, container."""

from __future__ import annotations

import re

from collbench.machine.files import Files
from collbench.machine.model import System
from collbench.machine.readers.processors import Found
from collbench.machine.readers.start_parameters import shown
from collbench.machine.readers.text import printable

_MOST_COMMAND_LINE = 4096  # COMMAND_LINE_SIZE of the larger architectures
_NVIDIA_VERSION = re.compile(r"Kernel Module(?:\s+for\s+\S+)?\s+(\d{2,4}(?:\.\d{1,4}){1,3})\b")
_ARCHITECTURES = ("x86_64", "aarch64", "ppc64le", "ppc64", "riscv64", "s390x", "i686")
_HWLOC_NOTE = "/proc/hwloc-nofile-info"  # what hwloc-gather-topology notes down of uname

# NCCL looks for NVIDIA's (net_ib/gdr.cc), RCCL for AMD's, whose place differs between kernels.
_PEER_MEMORY = (
    ("nv_mem", "/sys/kernel/mm/memory_peers/nv_mem/version"),
    ("nv_mem_nc", "/sys/kernel/mm/memory_peers/nv_mem_nc/version"),
    ("nvidia_peermem", "/sys/module/nvidia_peermem/version"),
    ("amdkfd", "/sys/kernel/mm/memory_peers/amdkfd/version"),
    ("amdkfd", "/sys/kernel/memory_peers/amdkfd/version"),
    ("amdkfd", "/sys/memory_peers/amdkfd/version"),
)

# (vendor of the machine, product) as its DMI table gives them -> hypervisor; "" matches any.
_MADE_BY = (
    ("QEMU", "", "kvm"), ("", "KVM", "kvm"), ("VMware", "", "vmware"), ("Xen", "", "xen"), ("innotek GmbH", "", "virtualbox"),
    ("Microsoft Corporation", "Virtual Machine", "microsoft"),
)  # fmt: skip
# These sell bare metal too: only together with the processor's own word that there is a hypervisor.
_CLOUDS = (
    ("Amazon EC2", "", "kvm"), ("Google", "", "kvm"), ("Alibaba Cloud", "", "kvm"), ("OpenStack Foundation", "", "kvm"),
    ("Red Hat", "", "kvm"), ("OracleCloud.com", "", "kvm"), ("DigitalOcean", "", "kvm"), ("Hetzner", "", "kvm"),
)  # fmt: skip
_CLOCKS = (("kvm-clock", "kvm"), ("hyperv", "microsoft"), ("xen", "xen"))


def read(files: Files, processors: Found) -> tuple[System, dict[str, str]]:
    """The system's facts, IOMMU and shared memory aside, and why some are unknown; never raises."""
    kernel = _kernel(files)
    virtualization, why_virtualization = _virtualization(files, processors)
    container, why_container = _container(files)
    driver = _driver(files)
    system = System(
        _architecture(files, kernel, processors), processors.model, processors.vendor, processors.sockets, processors.cores,
        processors.threads, processors.memory_bytes, kernel, command_line(files), driver, _peer_memory(files),
        virtualization=virtualization, container=container,
    )  # fmt: skip
    reasons = {
        "system/driver": None if driver else "no NVIDIA or AMD GPU driver tells its version",
        "system/virtualization": why_virtualization,
        "system/container": why_container,
        "system/dma_buf": "files do not tell whether the GPU driver exports its memory: ask the driver",
        "system/peer_memory": None if system.peer_memory is not None else "/sys/module is not there",
        "system/kernel": None if kernel else "/proc/sys/kernel/osrelease and /proc/version are not there",
    }
    return system, {path: why for path, why in reasons.items() if why}


def hostname(files: Files) -> str | None:
    """The machine's own name, of the kernel, else of /etc/hostname."""
    names = (files.text("/proc/sys/kernel/hostname"), files.text("/etc/hostname"), _noted(files, "HostName"))
    return next((printable(name.splitlines()[0], 253) for name in names if name), None)


def command_line(files: Files) -> str | None:
    """What the kernel was started with, without what nobody else may know: this ends up in reports and tickets."""
    text = files.text("/proc/cmdline")
    return printable(shown(text), _MOST_COMMAND_LINE) if text else None


def _kernel(files: Files) -> str | None:
    release = files.text("/proc/sys/kernel/osrelease")
    version = re.match(r"Linux version (\S{1,120})", files.text("/proc/version") or "")
    found = release or (version[1] if version else None)
    return printable(found) if found else None


def _noted(files: Files, name: str) -> str | None:
    found = re.search(rf"^{name}: *(\S{{1,200}})$", files.text(_HWLOC_NOTE) or "", re.M)
    return found[1] if found else None


def _architecture(files: Files, kernel: str | None, processors: Found) -> str | None:
    """As uname -m says; only newer kernels have it in a file, distributions in the release's name, x86 in its flags."""
    named = [files.text("/proc/sys/kernel/arch"), _noted(files, "Architecture"), (kernel or "").rpartition(".")[2]]
    of_flags = "x86_64" if "lm" in (processors.flags or ()) else "aarch64" if "asimd" in (processors.flags or ()) else None
    return next((each for each in named if each in _ARCHITECTURES), of_flags)


def _driver(files: Files) -> str | None:
    nvidia = _NVIDIA_VERSION.search(files.text("/proc/driver/nvidia/version") or "")
    amd = files.text("/sys/module/amdgpu/version")
    return nvidia[1] if nvidia else printable(amd) if amd else None


def _peer_memory(files: Files) -> tuple[str, ...] | None:
    """Modules there, by name. That a module is loaded does not prove that it works."""
    found = dict.fromkeys(name for name, path in _PEER_MEMORY if files.text(path) is not None)
    return tuple(found) if found or files.names("/sys/module") else None


def _matches(table: tuple[tuple[str, str, str], ...], vendor: str, product: str) -> str | None:
    return next((found for made_by, name, found in table if vendor.startswith(made_by) and product.startswith(name)), None)


def _virtualization(files: Files, processors: Found) -> tuple[str | None, str | None]:
    """The hypervisor, "" on bare metal; None and why. "hypervisor": there is one, and nothing tells which."""
    vendor, product = (files.text(f"/sys/class/dmi/id/{name}") or "" for name in ("sys_vendor", "product_name"))
    known = _matches(_MADE_BY, vendor, product) or ("xen" if files.text("/sys/hypervisor/type") == "xen" else None)
    if known:
        return known, None
    if processors.platform in ("PowerNV", "pSeries"):
        return ("" if processors.platform == "PowerNV" else "hypervisor"), None
    if processors.flags is None or "fpu" not in processors.flags:
        return None, "this processor's /proc/cpuinfo has no mark for hypervisors, and the machine's maker is none"
    if "hypervisor" not in processors.flags:
        return "", None
    return _matches(_CLOUDS, vendor, product) or _of_clock(files) or "hypervisor", None


def _of_clock(files: Files) -> str | None:
    clocks = files.text("/sys/devices/system/clocksource/clocksource0/available_clocksource") or ""
    return next((found for clock, found in _CLOCKS if clock in clocks), None)


def _container(files: Files) -> tuple[str | None, str | None]:
    """What encloses the processes that read these files; "" when nothing does; None and why."""
    groups = files.text("/proc/self/cgroup")
    marks = (
        ("apptainer", files.real("/.singularity.d") is not None),
        ("kubernetes", "kubepods" in (groups or "") or files.real("/var/run/secrets/kubernetes.io") is not None),
        ("podman", files.real("/run/.containerenv") is not None or "libpod-" in (groups or "")),
        ("docker", files.real("/.dockerenv") is not None or re.search("/docker[/-]", groups or "") is not None),
        ("lxc", "/lxc" in (groups or "")),
        ("slurm", re.search(r"slurm.*/job_\d", groups or "") is not None),
    )
    found = next((name for name, there in marks if there), None)
    if found:
        return found, None
    if groups is None or files.real("/etc") is None:
        return None, "/proc/self/cgroup is not there, or only some of the machine's files are"
    if re.search(r"^\S+ / overlay ", files.text("/proc/self/mounts") or files.text("/proc/mounts") or "", re.M):
        return None, "the root is an overlay: a container, or a node that was started over the network"
    return "", None
