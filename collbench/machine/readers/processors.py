"""Processors and NUMA nodes out of /proc/cpuinfo, /proc/meminfo and /sys/devices/system."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from collbench.machine.files import Files
from collbench.machine.model import NumaNode
from collbench.machine.readers.cpu_sets import cpu_list, cpu_mask, written
from collbench.machine.readers.text import printable, whole

KIND = "Linux sysfs processors"
_CPUS = "/sys/devices/system/cpu"
_NODES = "/sys/devices/system/node"
_NVIDIA_GPUS = "/proc/driver/nvidia/gpus"
_CUT = 1_000_000  # Files.text stops at 1 MiB: a longer /proc/cpuinfo is not whole
# ARM's designers of cores, as Linux names them: arch/arm64/include/asm/cputype.h.
_ARM_DESIGNERS = {0x41: "ARM", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0x51: "Qualcomm", 0xC0: "Ampere"}


@dataclass(frozen=True, slots=True)
class Found:
    """What there is to compute with; None is unknown. `flags` are /proc/cpuinfo's, None where a processor has no such line."""

    model: str | None = None
    vendor: str | None = None
    sockets: int | None = None
    cores: int | None = None
    threads: int | None = None
    memory_bytes: int | None = None
    flags: frozenset[str] | None = None
    platform: str | None = None
    numa_nodes: tuple[NumaNode, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)


def read(files: Files) -> Found:
    """Sockets, cores, threads that are online, memory and NUMA nodes of the processors (not of GPUs); never raises."""
    text = files.text("/proc/cpuinfo") or ""
    first = _fields(text.partition("\n\n")[0])
    online = _online(files)
    sockets, cores = _packages_and_cores(files, online) if online else _of_cpuinfo(text)
    nodes, of_gpus = _numa_nodes(files, online)
    designer = _ARM_DESIGNERS.get(whole(first.get("CPU implementer")) or 0)
    flags = first.get("flags") or first.get("Features")
    found = {"model": first.get("model name") or first.get("cpu"), "vendor": first.get("vendor_id") or designer}
    return Found(
        **{name: printable(" ".join(value.split())) if value else None for name, value in found.items()},
        sockets=sockets, cores=cores, threads=len(online) or len(re.findall(r"^processor\s*:", text, re.M)) or None,
        memory_bytes=_memory(files, nodes, of_gpus),
        flags=frozenset(flags.split()) if flags else None, platform=_fields(text[-4096:]).get("platform"),
        numa_nodes=nodes, unknown=_reasons(text, first, sockets, nodes),
    )  # fmt: skip


def node_of(files: Files, folder: str, nodes: Iterable[NumaNode]) -> int | None:
    """The one NUMA node whose CPUs are exactly those local to a device; None when it is as near to several, or there is just one."""
    several = [node for node in nodes if node.cpus]
    local = (cpu_list(files.text(f"{folder}/local_cpulist")) or cpu_mask(files.text(f"{folder}/local_cpus"))) if len(several) > 1 else None
    found = [node.id for node in several if cpu_list(node.cpus) == local]
    return found[0] if len(found) == 1 else None


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _online(files: Files) -> frozenset[int]:
    there = frozenset(int(name[3:]) for name in files.names(_CPUS) if re.fullmatch(r"cpu\d{1,5}", name))
    online = cpu_list(files.text(f"{_CPUS}/online"))
    return online & there if online and there else online or there


def _packages_and_cores(files: Files, online: frozenset[int]) -> tuple[int | None, int | None]:
    """Sockets and cores. Two reads per core: its siblings are not asked again."""
    packages: set[int | None] = set()
    cores, left = 0, set(online)
    while left:
        cpu = min(left) if len(left) == len(online) else next(iter(left))
        folder = f"{_CPUS}/cpu{cpu}/topology"
        siblings = cpu_list(files.text(f"{folder}/thread_siblings_list")) or cpu_mask(files.text(f"{folder}/thread_siblings"))
        if not siblings or cpu not in siblings:
            return None, None
        packages.add(whole(files.text(f"{folder}/physical_package_id")))
        left -= siblings
        cores += 1
    return (None if None in packages else len(packages)), cores


def _of_cpuinfo(text: str) -> tuple[int | None, int | None]:
    """Sockets and cores where there is no sysfs: core ids count anew on each socket."""
    blocks = [] if len(text) > _CUT else [_fields(block) for block in text.split("\n\n")]
    found = {(block["physical id"], block["core id"]) for block in blocks if "physical id" in block and "core id" in block}
    return (len({socket for socket, _ in found}), len(found)) if found else (None, None)


def _numa_nodes(files: Files, online: frozenset[int]) -> tuple[tuple[NumaNode, ...], bool]:
    """The processors' NUMA nodes, and whether GPUs' memory was among those the kernel lists (POWER9, Grace)."""
    ids = sorted(int(name[4:]) for name in files.names(_NODES) if re.fullmatch(r"node\d{1,4}", name))
    of_gpus = _nodes_of_gpus(files)
    nodes = [_node(files, each, online) for each in ids]
    kept = tuple(node for node in nodes if node.cpus or (node.memory_bytes != 0 and node.id not in of_gpus))
    return kept, any(node.id in of_gpus and not node.cpus for node in nodes)


def _node(files: Files, number: int, online: frozenset[int]) -> NumaNode:
    folder = f"{_NODES}/node{number}"
    listed = files.text(f"{folder}/cpulist")
    cpus = cpu_list(listed) if listed else cpu_mask(files.text(f"{folder}/cpumap")) or frozenset()
    known = listed is not None or bool(cpus)
    return NumaNode(number, written(cpus & online if online else cpus) if known else None, _kilobytes(files.text(f"{folder}/meminfo")))


def _nodes_of_gpus(files: Files) -> frozenset[int]:
    texts = [files.text(f"{_NVIDIA_GPUS}/{name}/numa_status") or "" for name in files.names(_NVIDIA_GPUS)]
    found = [whole(_fields(text).get("Node"), 0, 4095) for text in texts]
    return frozenset(each for each in found if each is not None)


def _memory(files: Files, nodes: tuple[NumaNode, ...], of_gpus: bool) -> int | None:
    """Bytes of main memory. /proc/meminfo counts GPUs' memory too where it is a NUMA node: then it is the sum over the others."""
    if not of_gpus:
        return _kilobytes(files.text("/proc/meminfo"))
    parts = [node.memory_bytes for node in nodes]
    return None if None in parts else sum(part for part in parts if part is not None)


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
