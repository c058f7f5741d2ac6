"""What is unknown of a machine, and what its sources say differently, in people's words: "MTU of mlx5_0: sysfs does not hold it"."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set

from collbench.machine.model import Gpu, Machine, Nic
from collbench.report.probe_words import gpu_name, listed, safe

_MOST_PARTS = 8
_FACTS = {
    "acs": "ACS",
    "address": "PCI address",
    "architecture": "architecture",
    "bytes_per_s": "speed of a link",
    "command_line": "kernel's command line",
    "container": "container or not",
    "cores": "number of cores",
    "cpu_model": "processor",
    "cpu_vendor": "processor's maker",
    "cpus": "CPUs",
    "device_id": "device",
    "dma_buf": "dma-buf of the GPU driver",
    "driver": "GPU driver",
    "fabric": "cables",
    "firmware": "firmware",
    "gdr": "reach of GPUs",
    "gpu_links": "links between GPUs",
    "gpus": "GPUs",
    "guid": "GUID",
    "hostname": "host name",
    "iommu": "IOMMU",
    "kernel": "kernel",
    "lid": "LID",
    "link": "PCIe link",
    "link_layer": "link layer",
    "links_off": "links that are off",
    "memory_numa": "NUMA node of its memory",
    "max_speed_gt_per_s": "most PCIe speed",
    "max_width": "most PCIe lanes",
    "memory_bytes": "memory",
    "model": "model",
    "mtu_bytes": "MTU",
    "nics": "NICs",
    "numa": "NUMA node",
    "numa_nodes": "NUMA nodes",
    "parent": "bridge above",
    "paths": "distances",
    "pci": "PCI devices",
    "peer_access": "peer access",
    "peer_memory": "peer-memory modules",
    "phys_state": "physical state",
    "ports": "ports",
    "rate_bits_per_s": "speed",
    "rdma": "RDMA",
    "shaped_bits_per_s": "shaper's rate",
    "shm_bytes": "size of /dev/shm",
    "sm_lid": "subnet manager's LID",
    "sockets": "number of sockets",
    "speed_gt_per_s": "PCIe speed",
    "state": "state",
    "threads": "number of threads",
    "uuid": "serial number",
    "vendor": "maker",
    "virtualization": "virtual machine or not",
    "width": "PCIe lanes",
}
# Lists: the headline tells of parts, distances follow from the PCI tree, and cables and peer access are read on request.
_ELSEWHERE = frozenset({"gpus", "nics", "pci", "fabric", "paths", "peer_access"})
_OF_GPUS = frozenset({"system/driver", "system/dma_buf", "system/peer_memory"})  # nobody misses them on a machine without GPUs


def unknown_lines(machine: Machine) -> Iterator[str]:
    """ "facts of parts: reason", each reason once; not what the tree tells where it is missing, nor what matters to no part drawn."""
    names = _names(machine)
    nics, addresses = {nic.key: nic for nic in machine.nics}, {part.address for part in _parts(machine)}
    facts: defaultdict[str, defaultdict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    for path, why in machine.unknown.items():
        if _matters(machine, path, nics, addresses):
            fact, part = _split(path, names)
            facts[why][fact][part] = None
    for why, found in facts.items():
        yield f"{'; '.join(_told(fact, list(filter(None, parts))) for fact, parts in found.items())}: {safe(why)}"


def disagreement_lines(machine: Machine) -> Iterator[str]:
    """ "fact of a part: what was taken (source) taken, not the other (source)"."""
    names = _names(machine)
    for each in machine.disagreements:
        fact, part = _split(each.path, names)
        told = _told(fact, [part] if part else [])
        yield f"{told}: {safe(each.taken)} ({safe(each.taken_from)}) taken, not {safe(each.other)} ({safe(each.other_from)})"


def _names(machine: Machine) -> dict[str, str]:
    """What people call a part, by its key. A PCI device is called after the GPU or NIC on it."""
    parts = {part.address: part for part in _parts(machine) if part.address}
    names = {str(address): gpu_name(part) if isinstance(part, Gpu) else part.name for address, part in parts.items()}
    return {**names, **{gpu.key: gpu_name(gpu) for gpu in machine.gpus}}


def _parts(machine: Machine) -> list[Gpu | Nic]:
    return [*machine.nics, *machine.gpus]


def _split(path: str, names: Mapping[str, str]) -> tuple[str, str]:
    """A fact in words and whose it is ("" for the machine's own)."""
    head, *rest = path.split("/")
    if head == "system" and rest:
        return _word(rest[-1]), ""
    if not rest:
        return _word(head), ""
    key, *below = rest
    ends = [names.get(end, end) for end in key.split(">")]
    part = " to ".join("a switch" if end == "switch" else "what is unknown" if end == "?" else end for end in ends)
    port = f" port {below[1]}" if below[:1] == ["ports"] and len(below) > 2 and below[1] != "1" else ""
    part = f"node {part}" if head == "numa_nodes" else f"device {part}" if head == "pci" and key not in names else part
    return _word(below[-1] if below else head), safe(part + port)


def _word(fact: str) -> str:
    name = fact.rpartition(".")[2]
    return _FACTS.get(name) or safe(name.replace("_", " "))


def _told(fact: str, parts: list[str]) -> str:
    shorter = [parts[0], *(part.removeprefix("GPU ") if parts[0].startswith("GPU ") else part for part in parts[1:])] if parts else []
    return f"{fact} of {listed(shorter, _MOST_PARTS)}" if parts else fact


def _matters(machine: Machine, path: str, nics: Mapping[str, Nic], addresses: Set[str | None]) -> bool:
    """Return False for what the tree shows in its own place, and for what would change nothing if it were known."""
    head, _, rest = path.partition("/")
    key = rest.partition("/")[0]
    if path in _ELSEWHERE:
        return False
    if path in _OF_GPUS or path == "gpu_links":
        return len(machine.gpus) > (path == "gpu_links")
    if head == "pci" and path.endswith("/numa"):
        return len(machine.numa_nodes) > 1 and key in addresses
    if head != "nics" or not rest:
        return True
    nic = nics.get(key)
    return nic is None or (nic.virtual is None and (bool(nic.ports) or not path.endswith("/ports")))
