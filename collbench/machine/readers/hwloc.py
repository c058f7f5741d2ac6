"""hwloc's XML (`lstopo --of xml`), versions 1 to 3: NUMA nodes, processors, the PCI tree, GPUs and their NVLinks, NICs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from collbench.machine.model import Gpu, Machine, NumaNode, System
from collbench.machine.readers.cpu_sets import cpu_mask, written
from collbench.machine.readers.doubts import few
from collbench.machine.readers.hwloc_devices import Devices, devices
from collbench.machine.readers.hwloc_links import nvlinks
from collbench.machine.readers.hwloc_xml import Thing, infos, number_of, root, things
from collbench.machine.readers.text import HEAD, Reader, Unreadable, printable

KIND = "hwloc XML"
_TOPOLOGY = re.compile(r"<topology[\s>]")


def looks_like(text: str, name: str) -> bool:
    """A <topology> of hwloc's near the beginning."""
    start = text[:HEAD]
    return bool(_TOPOLOGY.search(start)) and "<object" in start


def read(text: str, name: str) -> Machine:
    """The machine. Raises Unreadable for other XML, broken or hostile one, and for several machines in one file."""
    topology = root(text, name)
    found = things(topology)
    machines = [thing for thing in found if thing.type == "Machine"]
    if len(machines) != 1:
        raise Unreadable(f"{printable(name)} has {len(machines)} objects of type Machine: give the XML of one machine")
    nodes = _numa_nodes(found, machines[0])
    version = {"2": 2, "3": 3}.get(topology.get("version", "1")[:1], 1)
    parts = devices(found, version, frozenset(node.id for node in nodes))
    links = nvlinks(topology, parts.ends, {gpu.key: gpu.model for gpu in parts.gpus})
    told = infos(topology) | machines[0].infos
    return Machine(
        hostname=told.get("HostName") or None,
        sources=(f"{KIND} {printable(name)}",),
        system=_system(found, told, nodes),
        numa_nodes=nodes,
        pci=parts.pci,
        gpus=tuple(_with_cpu_links(gpu, links.processors) for gpu in parts.gpus),
        gpu_links=links.links,
        nics=parts.nics,
        paths=links.paths,
        unknown=parts.unknown | ({"gpu_links": links.unknown} if links.unknown else {}) | _lists(parts),
        doubts=(*few(parts.doubts), *few(links.doubts), *_restricted(found, told.get("Architecture"))),
    )


def _with_cpu_links(gpu: Gpu, processors: Mapping[str, tuple[int, float]]) -> Gpu:
    count, rate = processors.get(gpu.key, (None, None))
    return replace(gpu, cpu_links=count, cpu_link_bytes_per_s=rate)


def _lists(parts: Devices) -> dict[str, str]:
    """Why lists are empty that lstopo may leave out: without I/O devices it writes none, and filters drop network devices."""
    if not parts.pci:
        return dict.fromkeys(("pci", "gpus", "nics"), "the XML has no PCI devices (lstopo without I/O devices)")
    return {} if parts.nics else {"nics": "the XML has no network devices: lstopo may have been told to leave them out"}


def _restricted(found: Sequence[Thing], architecture: str | None) -> list[str]:
    """A doubt where CPU numbers have gaps. POWER counts threads that are switched off, others count what is there."""
    cpus = frozenset(number for thing in found if thing.type == "PU" and (number := number_of(thing, "os_index")) is not None)
    if architecture not in ("x86_64", "aarch64") or len(cpus) == max(cpus, default=-1) + 1:
        return []
    return [
        f"hwloc lists the CPUs {written(cpus)} alone: of a part of the machine (a job's), or others are offline; there may be more cores"
    ]


def _numa_nodes(found: Sequence[Thing], machine: Thing) -> tuple[NumaNode, ...]:
    """The nodes that are not a GPU's memory; version 1 writes none for a machine with one, whose memory is the machine's."""
    nodes: dict[int, NumaNode] = {}
    for thing in (thing for thing in found if thing.type == "NUMANode" and thing.element.get("subtype") != "GPUMemory"):
        number = number_of(thing, "os_index")
        if number is not None and number < 4096:
            cpus = _cpus(thing)
            nodes.setdefault(number, NumaNode(number, cpus, number_of(thing, "local_memory")))
    memory = number_of(machine, "local_memory")
    if not nodes and memory:
        return (NumaNode(0, _cpus(machine), memory),)
    return tuple(nodes[number] for number in sorted(nodes))


def _cpus(thing: Thing) -> str | None:
    return written(cpu_mask(thing.element.get("cpuset")) or ()) or None


def _system(found: Sequence[Thing], told: Mapping[str, str], nodes: Sequence[NumaNode]) -> System:
    packages = [thing for thing in found if thing.type == "Package"]
    chip = packages[0].infos if packages else {}
    memory = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    return System(
        architecture=told.get("Architecture"),
        cpu_model=chip.get("CPUModel") or told.get("CPUModel"),
        cpu_vendor=chip.get("CPUVendor") or told.get("CPUVendor"),
        sockets=len(packages) or None,
        cores=sum(thing.type == "Core" for thing in found) or None,
        threads=sum(thing.type == "PU" for thing in found) or None,
        memory_bytes=sum(memory) if memory and len(memory) == len(nodes) else None,
        kernel=told.get("OSRelease"),
    )


HWLOC = Reader(KIND, looks_like, read, lists=frozenset({"numa_nodes", "pci", "gpus"}))
