"""Output of `collbench probe`: machines as text (parts, trees, matrices of distances, unknown facts) and as JSON.

Unknown facts are shown as "unknown (reason)".
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO

import msgspec
from msgspec.structs import asdict

from collbench.columns import NOTHING
from collbench.machine.cluster import folded
from collbench.machine.distance import Capability, Distances, capability
from collbench.machine.doctor.finding import SEVERITIES, Finding
from collbench.machine.model import SWITCH, Gpu, Machine, Nic, NumaNode, PciDevice, PcieLink, Port, System, known_none
from collbench.machine.pcie_links import PcieLinks
from collbench.machine.ports import nvlink_management, physical_nics, shared_ports
from collbench.machine.readers.pci import NAMED_BY_A_FILE
from collbench.machine.readers.text import printable
from collbench.machine.snapshot import to_json, topology_json
from collbench.report.frame import Frame, Line, table_lines, text_columns
from collbench.report.frame import printable as clean
from collbench.report.screen import check_format, print_lines, wants_color, width_of, wrapped
from collbench.results.store import plain
from collbench.units import first_of, format_bytes, format_size, noun_of, plural

Part = Gpu | Nic
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
_LAYERS = {"infiniband": "InfiniBand", "ethernet": "Ethernet"}
_MOST_PEERS = 16
_NO_MODEL = "model unknown"
LINK_NAMES = {"nvlink": "NVLink", "xgmi": "xGMI"}
_VENDORS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
_PRINTED_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec \((.*)\)")
_IDLE_GT = 2.5  # the speed of idle GPUs


def safe(text: str, most: int = 200) -> str:
    """Return `text` with at most `most` characters, without control characters, direction marks and other non-printing ones."""
    return clean(printable(text, most))


def unknown(machine: Machine, path: str) -> str:
    """Return "unknown (reason)", or "unknown" where no source gave a reason for this fact."""
    reason = machine.unknown.get(path)
    return f"unknown ({safe(reason)})" if reason else "unknown"


def pcie(link: PcieLink, gpu: bool = False, both_ends: bool = True) -> str:
    """Return "Gen5 x16", "Gen4 x8 of Gen4 x16 (downtrained)", "Gen1 x16 of Gen5 x16 (idle GPUs slow down)"; "unknown" without figures.

    both_ends    False: the maximum is that of the card alone, and its slot may have less
    """
    present, maximum = pcie_short(link)
    if not present:
        return f"unknown, at most {maximum}" if maximum else "unknown"
    if not slower(link):
        return present
    if idle(link, gpu):
        return f"{present} of {maximum} (idle GPUs slow down)"
    return f"{present} of {maximum} ({'downtrained' if both_ends else 'downtrained, or its slot has less'})"


def pcie_short(link: PcieLink) -> tuple[str, str]:
    """Return the present link and the device's maximum, each "Gen4 x16" or ""."""
    return _pcie(link.speed_gt_per_s, link.width), _pcie(link.max_speed_gt_per_s, link.max_width)


def slower(link: PcieLink) -> bool:
    """Return whether the link runs with fewer or slower lanes than the device's maximum."""
    pairs = ((link.speed_gt_per_s, link.max_speed_gt_per_s), (link.width, link.max_width))
    return any(present is not None and maximum is not None and present < maximum for present, maximum in pairs)


def idle(link: PcieLink, gpu: bool) -> bool:
    """Return whether the link is slower without a fault: a GPU that saves power, with all its lanes."""
    has_all_lanes = link.width is None or link.max_width is None or link.width >= link.max_width
    return gpu and has_all_lanes and link.speed_gt_per_s == _IDLE_GT


def gigatransfers_in_all(link: PcieLink) -> float | None:
    """Return lanes times GT/s, to compare links; None if one of them is unknown."""
    return None if link.speed_gt_per_s is None or link.width is None else link.speed_gt_per_s * link.width


def gpu_number(gpu: Gpu) -> str:
    """Return "0", or the GPU's key where the source has no numbers."""
    return str(gpu.index) if gpu.index is not None else safe(gpu.key.removeprefix("gpu"))


def gpu_name(gpu: Gpu) -> str:
    """Return "GPU 0"."""
    return f"GPU {gpu_number(gpu)}"


def gpu_model(gpu: Gpu) -> str:
    """Return "H100 80GB HBM3"; the architecture or vendor if only that is known."""
    return safe(gpu.model or gpu.architecture or (f"{_VENDORS[gpu.vendor]} GPU" if gpu.vendor else _NO_MODEL))


def port_state(port: Port) -> str:
    """Return "active", "down (polling)" or "state unknown"."""
    physical = f" ({safe(port.phys_state)})" if port.phys_state and port.state != "active" else ""
    return f"{safe(port.state)}{physical}" if port.state else f"state unknown{physical}"


def gigabits(bits_per_s: float | None) -> str:
    """Return "400 Gb/s", "54.5 Gb/s" or "rate unknown"."""
    return "rate unknown" if bits_per_s is None else f"{bits_per_s / 1e9:.4g} Gb/s"


def port_rate(port: Port) -> str:
    """Return "400 Gb/s InfiniBand", with the shaper's rate if there is one; for a port that is down only its layer."""
    layer = _LAYERS[port.link_layer] if port.link_layer else "link layer unknown"
    shaped = f", shaped to {gigabits(port.shaped_bits_per_s)}" if port.shaped_bits_per_s is not None else ""
    if port.rate_bits_per_s is None and port.state == "down":
        return layer + shaped
    return f"{gigabits(port.rate_bits_per_s)}{'' if port.link_layer else ','} {layer}{shaped}"


def port_text(port: Port) -> str:
    """Return "port 1: 400 Gb/s InfiniBand, active, MTU 4096 [4X NDR]"; the printed rate only if it is another number."""
    mtu = f", MTU {port.mtu_bytes}" if port.mtu_bytes is not None else ""
    rate_text = port.rate_text or ""
    match = _PRINTED_RATE.fullmatch(rate_text)
    if match and port.rate_bits_per_s is not None and float(match[1]) * 1e9 == port.rate_bits_per_s:
        rate_text = match[2]
    printed = f" [{safe(rate_text)}]" if port.rate_text else ""
    manager = ", no subnet manager" if port.link_layer == "infiniband" and port.sm_lid == 0 else ""
    return f"port {port.number}: {port_rate(port)}, {port_state(port)}{mtu}{manager}{printed}"


def gpus_text(machine: Machine) -> str:
    """Return "8 × H100 80GB HBM3", of several models each; without a GPU whether there is none or that is unknown."""
    models = Counter(gpu_model(gpu) for gpu in machine.gpus)
    texts = [f"{count} × {model}" if model != _NO_MODEL else f"{plural(count, 'GPU')} ({_NO_MODEL})" for model, count in models.items()]
    if texts:
        return " + ".join(texts)
    return "no GPU on the PCI bus" if known_none(machine, "gpus") and machine.pci else f"GPUs {unknown(machine, 'gpus')}"


def nics_text(machine: Machine) -> str:
    """Return "8 NICs at 400 Gb/s InfiniBand, 1 down"; a NIC with several ports counts by its fastest."""
    management = nvlink_management(machine)
    speeds = Counter("to the NVLink switches" if nic.name in management else _nic_speed(nic) for nic in physical_nics(machine))
    if speeds:
        (first_speed, first_count), *other_speeds = speeds.items()
        first = f"{first_count} {noun_of(first_count, 'NIC')} {first_speed}"
        return ", ".join([first, *(f"{count} {speed}" for speed, count in other_speeds)])
    if machine.nics:
        return f"no NIC, {plural(len(machine.nics), 'virtual interface')}"
    return "no NIC" if known_none(machine, "nics") and machine.pci else f"NICs {unknown(machine, 'nics')}"


def _nic_speed(nic: Nic) -> str:
    fastest = max((port for port in nic.ports if port.state != "down"), key=lambda port: port.rate_bits_per_s or 0, default=None)
    if fastest is None:
        return "down" if nic.ports else "of unknown speed"
    layer = f" {_LAYERS[fastest.link_layer]}" if fastest.link_layer else ""
    return f"at {gigabits(fastest.rate_bits_per_s)}{layer}" if fastest.rate_bits_per_s is not None else f"of unknown speed{layer}"


def each_rate(bytes_per_s: float | None) -> str:
    """Return ", each 26.6 GB/s"; "" if the rate is unknown."""
    return f", each {bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s else ""


def links_text(machine: Machine, gpu: Gpu) -> str:
    """Return "NVLink: 18 to a switch × 26.6 GB/s", "NVLink: 4 to GPU 1, 4 to GPU 2", "xGMI: to GPU 1 and 2 (number of links unknown)".

    "" where no source lists links.
    """
    links = [link for link in machine.gpu_links if link.a == gpu.key and link.count > 0]
    off = f", {gpu.links_off} off" if gpu.links_off else ""
    names = {device.key: gpu_name(device) for device in machine.gpus}
    peers = [names[b].removeprefix("GPU ") for (a, b), path in machine.paths.items() if a == gpu.key and path == "XGMI" and b in names]
    texts: list[str] = []
    if links:
        rates = {link.bytes_per_s for link in links}
        rate = rates.pop() if len(rates) == 1 else None
        far_ends = {None: "(far end unknown)", SWITCH: "to a switch"}
        ends = ", ".join(f"{link.count} {far_ends.get(link.b, f'to {names.get(str(link.b)) or safe(str(link.b))}')}" for link in links)
        clique = f", multi-node NVLink domain {safe(gpu.clique)}" if gpu.clique else ""
        texts.append(f"{LINK_NAMES[links[0].kind]}: {ends}{each_rate(rate)}{off}{clique}")
    elif off:
        texts.append(f"NVLink: none up{off}")
    elif peers:
        texts.append(f"xGMI: to GPU {first_of(peers, _MOST_PEERS)} (number of links unknown)")
    if gpu.cpu_links:
        texts.append(f"NVLink: {gpu.cpu_links} to its processor{each_rate(gpu.cpu_link_bytes_per_s)}")
    return "; ".join(texts)


def numa_facts(node: NumaNode | None, machine: Machine) -> list[str]:
    """Return "NUMA node 0", its CPUs, and its memory where it is known; None is the place of parts with unknown node."""
    if node is None:
        has_parts = machine.numa_nodes or machine.gpus or machine.nics
        return ["NUMA node unknown" if has_parts else f"NUMA nodes {unknown(machine, 'numa_nodes')}"]
    cpus = "no CPUs" if node.cpus == "" else "CPUs unknown"
    facts = [f"NUMA node {node.id}", f"CPUs {safe(node.cpus)}" if node.cpus else cpus]
    if node.memory_bytes is not None:
        facts.append(format_bytes(node.memory_bytes))
    return facts


def switch_text(device: PciDevice) -> str:
    """Return "PCIe switch 0000:16:00.0, Gen5 x16 up"; a hypervisor's emulated bridge is marked."""
    word = {"switch": "PCIe switch", "root": "PCIe root"}.get(device.kind, "PCIe bridge")
    name = f" {safe(device.name)}" if device.name else ""
    link = ""
    if device.virtual:
        link = ", named by a topology file" if device.address.startswith(NAMED_BY_A_FILE) else ", made up by a hypervisor"
    elif device.parent:
        link = f", {pcie(device.link)} up" if any(pcie_short(device.link)) else ", link up unknown"
    return f"{word} {safe(device.address)}{name}{link}"


def nic_name(nic: Nic) -> str:
    """Return "mlx5_0"."""
    return safe(nic.name) or "(no name)"


def system_text(system: System) -> list[str]:
    """Return the machine in up to two lines: its processor; counts, memory, kernel. Unknown facts are left out."""
    counts = ((system.sockets, "socket"), (system.cores, "core"), (system.threads, "thread"))
    facts = [plural(number, word) for number, word in counts if number is not None]
    if system.memory_bytes is not None:
        facts.append(format_bytes(system.memory_bytes))
    if system.kernel:
        facts.append(f"kernel {safe(system.kernel)}")
    if system.virtualization:
        facts.append(f"virtual machine ({safe(system.virtualization)})")
    if system.container:
        facts.append(f"container ({safe(system.container)})")
    return [line for line in (safe(system.cpu_model or system.architecture or ""), ", ".join(facts)) if line]


def memory(memory_bytes: int | None) -> str:
    """Return "80 GiB", or "memory unknown"."""
    if memory_bytes is None:
        return "memory unknown"
    return format_size(memory_bytes) if memory_bytes < 1024 else format_bytes(memory_bytes)


def _pcie(speed: float | None, width: int | None) -> str:
    parts: list[str] = []
    if speed is not None:
        parts.append(f"Gen{_GENERATIONS[speed]}" if speed in _GENERATIONS else f"{speed:g} GT/s")
    if width is not None:
        parts.append(f"x{width}")
    return " ".join(parts)


# Distances between all GPUs and NICs as a table like that of `nvidia-smi topo -m`, from any source.

MOST_PARTS = 128  # a larger table is not readable, and its cost is quadratic
UNKNOWN = "?"
_LEGEND = (
    ("X", "X: itself"),
    ("NV", "NVk: k NVLinks"),
    ("XGMI", "XGMI: xGMI links, their number unknown"),
    ("XG", "XGk: k xGMI links"),
    ("PIX", "PIX: at most one PCIe switch"),
    ("PXB", "PXB: several PCIe switches, no host bridge"),
    ("PHB", "PHB: a PCIe host bridge, within a NUMA node"),
    ("NODE", "NODE: between host bridges of a NUMA node"),
    ("SYS", "SYS: between NUMA nodes"),
    ("PCIE", "PCIE: PCIe, the distance unknown"),
)
_AFFINITY = ("CPU affinity", "NUMA")


def matrix_lines(machine: Machine, width: int | None = None) -> Iterator[Line]:
    """Yield the table, a legend of its words, NIC numbers with their names, and why paths are unknown."""
    all_parts = shown_parts(machine)
    parts = all_parts[:MOST_PARTS]
    if not parts:
        yield Line(f"{gpus_text(machine)}, {nics_text(machine)}: no distances, since fewer than two parts are known")
        return
    distances = Distances(machine)
    gpus = [part for part in parts if isinstance(part, Gpu)]  # they come first
    names = [f"GPU{place if gpu.index is None else gpu.index}" for place, gpu in enumerate(gpus)]
    names += [f"NIC{number}" for number in range(len(parts) - len(gpus))]
    paths = [[distances.path(row.key, column.key) or UNKNOWN for column in parts] for row in parts]
    cpus = {node.id: node.cpus for node in machine.numa_nodes}
    table = []
    for name, part, row in zip(names, parts, paths, strict=True):
        node = distances.numa_of(part.key)
        affinity = None if node is None else cpus.get(node)
        no_affinity = NOTHING if affinity == "" else UNKNOWN
        table.append([name, *row, safe(affinity) if affinity else no_affinity, UNKNOWN if node is None else str(node)])
    columns = text_columns(["", *names, *_AFFINITY], drop=[*_AFFINITY, *reversed(names)])
    foot = list(_foot(distances, parts, names, paths, len(all_parts)))
    yield from table_lines(Frame(columns, table, foot=foot, names_hidden=True), width)


def _foot(distances: Distances, parts: list[Part], names: list[str], paths: list[list[str]], part_count: int) -> Iterator[str]:
    words = {path[:2] if path[:2] in ("NV", "XG") and path != "XGMI" else path for row in paths for path in row}
    yield "; ".join(text for word, text in _LEGEND if word in words)
    nics = [f"{name} {nic_name(part)}" for name, part in zip(names, parts, strict=True) if isinstance(part, Nic)]
    if nics:
        yield first_of(nics, MOST_PARTS)
    if UNKNOWN in words:  # one reason for each part, so that a missing fact is not repeated for every pair
        ends = [(part, parts[row.index(UNKNOWN)]) for part, row in zip(parts, paths, strict=True) if UNKNOWN in row]
        reasons = list(dict.fromkeys(safe(distances.why_unknown(a.key, b.key) or "") for a, b in ends))
        yield f"{UNKNOWN}: unknown ({'; '.join([reason for reason in reasons if reason][:4])})"
    if part_count > len(parts):
        yield f"{part_count - len(parts)} more parts are not shown: see --format json"


# The arrangement of a machine's parts for text and picture: NUMA nodes, then PCIe switches, then GPUs and NICs.


class Switch(msgspec.Struct, frozen=True):
    """A bridge that joins several parts, or is slower than what is below it, with the parts and bridges below."""

    device: PciDevice
    below: tuple[Switch | Part, ...]


class Domain(msgspec.Struct, frozen=True):
    """A NUMA node with its parts; None for parts with unknown node."""

    node: NumaNode | None
    below: tuple[Switch | Part, ...]


def arrange(machine: Machine, distances: Distances, virtual: Collection[str] = ()) -> list[Domain]:
    """Return the NUMA nodes in their order, then one for parts with unknown node, if any.

    virtual    names of the virtual interfaces that are shown, too; the others are left out
    """
    by_node: defaultdict[int | None, list[Part]] = defaultdict(list)
    for part in shown_parts(machine, virtual):
        by_node[distances.numa_of(part.key)].append(part)
    unlisted = by_node.keys() - {node.id for node in machine.numa_nodes}
    nodes = [*machine.numa_nodes, *map(NumaNode, sorted(number for number in unlisted if number is not None))]
    domains = [Domain(node, _branches(by_node.get(node.id, []), distances)) for node in nodes]
    if by_node.get(None) or not domains:
        domains.append(Domain(None, _branches(by_node.get(None, []), distances)))
    return domains


def shown_parts(machine: Machine, virtual: Collection[str] = ()) -> list[Part]:
    """Return the GPUs, then the NICs; of virtual interfaces those with a name in `virtual`."""
    return [*machine.gpus, *(nic for nic in machine.nics if nic.virtual is None or nic.name in virtual)]


def _branches(parts: list[Part], distances: Distances) -> tuple[Switch | Part, ...]:
    return _below([(part, list(reversed(distances.bridges(part.address))) if part.address else []) for part in parts], 0, distances)


def _below(parts: list[tuple[Part, list[PciDevice]]], depth: int, distances: Distances) -> tuple[Switch | Part, ...]:
    """Return what is below a bridge (or the host): the parts, and for each further bridge what is below it."""
    groups: dict[str, list[tuple[Part, list[PciDevice]]]] = {}
    for part, bridges in parts:
        groups.setdefault(bridges[depth].address if depth < len(bridges) else f" {part.key}", []).append((part, bridges))
    branches: list[Switch | Part] = []
    for group in groups.values():
        part, bridges = group[0]
        branches += _joined(bridges[depth], _below(group, depth + 1, distances), distances) if depth < len(bridges) else [part]
    return tuple(branches)


def _joined(device: PciDevice, below: tuple[Switch | Part, ...], distances: Distances) -> tuple[Switch | Part, ...]:
    """Return the bridge with what is below it; without the bridge if that is one device, unless the bridge's own link is slower."""
    devices = [entry.device if isinstance(entry, Switch) else distances.device(entry.address) for entry in below]
    slots = {child.address.rpartition(".")[0] if child else None for child in devices}
    above_rate = gigatransfers_in_all(device.link)
    inside_rate = gigatransfers_in_all(devices[0].link) if devices[0] else None
    slower = device.parent is not None and above_rate is not None and inside_rate is not None and above_rate < inside_rate
    return (Switch(device, below),) if slower or len(slots) > 1 else below


# Unknown facts of a machine, and facts on which its sources disagree, as text: "MTU of mlx5_0: sysfs does not hold it".

_MOST_PARTS = 8
# Lists of parts: the headline lists parts, distances follow from the PCI tree, and cables and peer access are read on request.
_ELSEWHERE = frozenset({"gpus", "nics", "pci", "fabric", "paths", "peer_access"})
_OF_GPUS = frozenset({"system/driver", "system/dma_buf", "system/peer_memory"})  # not needed on a machine without GPUs


def unknown_lines(machine: Machine) -> Iterator[str]:
    """Yield "facts of parts: reason", each reason once; without what the tree shows itself, and what affects no drawn part."""
    names = _part_names(machine)
    facts: defaultdict[str, defaultdict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    for path, reason in machine.unknown.items():
        if _matters(machine, path):
            fact, part = _split(path, names)
            facts[reason][fact][part] = None
    for reason, parts_by_fact in facts.items():
        yield f"{'; '.join(_describe_fact(fact, list(filter(None, parts))) for fact, parts in parts_by_fact.items())}: {safe(reason)}"


def disagreement_lines(machine: Machine) -> Iterator[str]:
    """Yield "fact of a part: what was taken (source) taken, not the other (source)"."""
    names = _part_names(machine)
    for disagreement in machine.disagreements:
        fact, part = _split(disagreement.path, names)
        taken = f"{safe(disagreement.taken)} ({safe(disagreement.taken_from)}) taken"
        rejected = f"{safe(disagreement.other)} ({safe(disagreement.other_from)})"
        yield f"{_describe_fact(fact, [part] if part else [])}: {taken}, not {rejected}"


def _part_names(machine: Machine) -> dict[str, str]:
    """Return the name of each part, by key. A PCI device has the name of its GPU or NIC."""
    parts: list[Part] = [*machine.nics, *machine.gpus]
    devices = {str(part.address): part.name if isinstance(part, Nic) else gpu_name(part) for part in parts if part.address}
    return {**devices, **{gpu.key: gpu_name(gpu) for gpu in machine.gpus}}


def _split(path: str, names: Mapping[str, str]) -> tuple[str, str]:
    """Return a fact as text and its owner ("" for the machine itself)."""
    head, *rest = path.split("/")
    if head == "system" and rest:
        return _word(rest[-1]), ""
    if not rest:
        return _word(head), ""
    key, *below = rest
    far_ends = {"switch": "a switch", "?": "what is unknown"}
    part = " to ".join(far_ends.get(names.get(end, end), names.get(end, end)) for end in key.split(">"))
    port = f" port {below[1]}" if below[:1] == ["ports"] and len(below) > 2 and below[1] != "1" else ""
    if head == "numa_nodes":
        part = f"node {part}"
    elif head == "pci" and key not in names:
        part = f"device {part}"
    return _word(below[-1] if below else head), safe(part + port)


def _word(fact: str) -> str:
    name = fact.rpartition(".")[2]
    return fact_names().get(name) or safe(name.replace("_", " "))


@cache
def fact_names() -> dict[str, str]:
    """Return the names of facts for people by the last part of their path, where these differ."""
    import tomllib

    return tomllib.loads(Path(__file__).with_name("fact_names.toml").read_text(encoding="utf-8"))


def _describe_fact(fact: str, parts: list[str]) -> str:
    return f"{fact} of {_gpus(parts, _MOST_PARTS)}" if parts else fact


def _matters(machine: Machine, path: str) -> bool:
    """Return False for what the tree shows itself, and for what has no effect."""
    head, _, rest = path.partition("/")
    key = rest.partition("/")[0]
    if path in _ELSEWHERE:
        return False
    if path == "gpu_links":
        return len(machine.gpus) > 1
    if path in _OF_GPUS:
        return bool(machine.gpus)
    if head == "pci" and path.endswith("/numa"):
        return len(machine.numa_nodes) > 1 and key in {*(nic.address for nic in machine.nics), *(gpu.address for gpu in machine.gpus)}
    nic = next((nic for nic in machine.nics if nic.key == key), None) if head == "nics" and rest else None
    return nic is None or (nic.virtual is None and (bool(nic.ports) or not path.endswith("/ports")))


# A machine as a tree of text: NUMA nodes, PCIe switches, GPUs and NICs with their links, and what is unknown with its reason.

_MOST_VIRTUAL = 12
_MOST_ALIKE = 16


def tree_lines(machine: Machine) -> Iterator[Line]:
    """Yield the machine line by line, never cut. Names from outside are made printable; figures keep their units."""
    distances = Distances(machine)
    yield Line(title(machine), "head")
    system = system_text(machine.system)
    if system:
        yield Line(f"  {', '.join(system)}")
    domains = arrange(machine, distances)
    for domain in domains:
        is_last = domain is domains[-1]
        name, *facts = numa_facts(domain.node, machine)
        yield Line(f"{'└─' if is_last else '├─'} {name}{': ' if facts else ''}{', '.join(facts)}")
        yield from map(Line, _branch_lines(machine, domain.below, distances, "   " if is_last else "│  "))
    yield from map(Line, _virtual(machine))
    yield from _section("GPUDirect RDMA (a GPU and its nearest NICs)", _gpudirect(machine, distances))
    yield from _section("unknown", unknown_lines(machine))
    yield from _section("doubts", [safe(doubt, 1000) for doubt in machine.doubts])
    yield from _section("sources disagree", disagreement_lines(machine))
    yield Line(f"read from: {'; '.join(map(safe, machine.sources)) or 'nothing'}", "foot")


def title(machine: Machine, name: str | None = None) -> str:
    """Return the headline of a machine: "node1: 8 × H100 80GB HBM3, 8 NICs at 400 Gb/s InfiniBand"; `name` replaces its own."""
    return f"{name or safe(machine.hostname or 'host name unknown')}: {gpus_text(machine)}, {nics_text(machine)}"


def part_texts(machine: Machine, virtual: Collection[str] = ()) -> dict[str, PartText]:
    """Return each GPU and NIC with its ports, by key, as the tree shows them; of virtual interfaces those with a name in `virtual`."""
    distances = Distances(machine)
    return {part.key: _described(machine, part, distances) for part in shown_parts(machine, virtual)}


def _branch_lines(machine: Machine, below: tuple[Switch | Part, ...], distances: Distances, indent: str) -> Iterator[str]:
    """Yield the parts below a node or a switch. Equal parts without an address are combined, with all their names."""
    described = [(branch, _described(machine, branch, distances)) for branch in below]

    def shared(described_branch: tuple[Switch | Part, PartText]) -> object:
        """Return what parts must have in common to be shown in one line."""
        branch, text = described_branch
        return id(branch) if isinstance(branch, Switch) or branch.address else (type(branch), text.facts, text.lines)

    groups = [list(group) for _, group in groupby(described, shared)]
    for place, ((branch, text), *equal_parts) in enumerate(groups):
        is_last = place == len(groups) - 1
        inner = indent + ("   " if is_last else "│  ")
        names = first_of([text.title, *(equal_text.name for _, equal_text in equal_parts)], _MOST_ALIKE)
        yield f"{indent}{'└─' if is_last else '├─'} {'  '.join([names, *text.facts])}"
        yield from (f"{inner}   {line}" for line in text.lines)
        if isinstance(branch, Switch):
            yield from _branch_lines(machine, branch.below, distances, inner)


class PartText(msgspec.Struct, frozen=True):
    """A part of a machine as text.

    kind, name   "GPU", "0"
    facts        in the same line: its address, model, PCIe link
    lines        the lines below: its links, its ports
    """

    kind: str
    name: str
    facts: tuple[str, ...]
    lines: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Return "GPU 0"."""
        return f"{self.kind} {self.name}".strip()

    @property
    def about(self) -> str:
        """Return all its facts in one line."""
        return "; ".join([", ".join(self.facts), *self.lines])

    def __str__(self) -> str:
        return "; ".join(["  ".join([self.title, *self.facts]), *self.lines])


def _described(machine: Machine, branch: Switch | Part, distances: Distances) -> PartText:
    if isinstance(branch, Switch):
        return PartText("", switch_text(branch.device), ())
    slot = _slot(machine, branch, distances)
    return _gpu_text(machine, branch, slot) if isinstance(branch, Gpu) else _nic_text(machine, branch, slot)


def _gpu_text(machine: Machine, gpu: Gpu, slot: str) -> PartText:
    facts = [f"{gpu_model(gpu)}, {memory(gpu.memory_bytes)}", slot]
    if gpu.address and gpu.index is not None:
        facts.insert(0, safe(gpu.address))
    c2c = f"C2C: {gpu.c2c_links} to its CPU{each_rate(gpu.c2c_bytes_per_s)}" if gpu.c2c_links else ""
    links = [text for text in (links_text(machine, gpu), c2c) if text]
    return PartText("GPU", gpu_number(gpu), tuple(facts), tuple(links))


def _nic_text(machine: Machine, nic: Nic, slot: str) -> PartText:
    rdma = "no RDMA" if nic.model or nic.ports else "RDMA unknown"
    if nic.rdma or nic.rdma_missing:
        rdma = "RDMA" if nic.rdma else "no RDMA device (driver not loaded)"
    facts = [f"{safe(nic.model or _NO_MODEL)}, {rdma}", slot]
    if nic.address and nic.address != nic.name:
        facts.insert(0, safe(nic.address))
    interfaces = f" ({first_of(map(safe, nic.interfaces), 12)})" if nic.interfaces not in ((), (nic.name,)) else ""
    ports = [port_text(port) for port in nic.ports] or [f"ports {unknown(machine, f'nics/{nic.key}/ports')}"]
    if nic.name in nvlink_management(machine):
        ports.append("leads to the NVLink switches, not to the network")
    owner = next((port.names[0] for port in shared_ports(machine) if port.certain and nic.name in port.names[1:]), None)
    if owner:
        ports.append(f"another function of the port of {safe(owner)}")
    return PartText("NIC", f"{nic_name(nic)}{interfaces}", tuple(facts), tuple(ports))


def _slot(machine: Machine, part: Part, distances: Distances) -> str:
    """Return the PCIe link with the maximum of both its ends: a card in a smaller slot is not downtrained."""
    device = distances.device(part.address)
    if device is None:
        return f"PCIe {unknown(machine, f'pci/{part.address}') if part.address else 'unknown (no PCI address)'}"
    if device.virtual:
        return "PCIe link of a virtual function: unknown"
    links = PcieLinks(machine)
    text = pcie(links.of(device), isinstance(part, Gpu), links.has_both_ends(device))
    return f"PCIe {unknown(machine, f'pci/{device.address}/link') if text == 'unknown' else text}"


def _virtual(machine: Machine) -> list[str]:
    """Return interfaces that are not ports of the machine: those with unknown speed, and those that other ports carry."""
    without_speed: defaultdict[str, list[str]] = defaultdict(list)
    made_of_others: defaultdict[str, list[str]] = defaultdict(list)
    for nic in (nic for nic in machine.nics if nic.virtual is not None):
        rates = [gigabits(port.rate_bits_per_s) for port in nic.ports if port.rate_bits_per_s is not None]
        shaped = [f"shaped to {gigabits(port.shaped_bits_per_s)}" for port in nic.ports if port.shaped_bits_per_s is not None]
        names_by_kind = made_of_others if rates else without_speed
        names_by_kind[", ".join([safe(nic.virtual or ""), *rates, *shaped])].append(nic_name(nic))
    sections = {"interfaces without a speed": without_speed, "interfaces made of others": made_of_others}
    return [
        f"{title}: {', '.join(f'{first_of(names, _MOST_VIRTUAL)} ({kind})' for kind, names in names_by_kind.items())}"
        for title, names_by_kind in sections.items()
        if names_by_kind
    ]


def _gpudirect(machine: Machine, distances: Distances) -> list[str]:
    """Return one line per state and reason, with its GPUs and NICs."""
    nics = [nic for nic in machine.nics if nic.virtual is None]
    groups: defaultdict[Capability, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for gpu in machine.gpus if nics else ():
        near: defaultdict[Capability, list[str]] = defaultdict(list)
        for nic in distances.near_nics(gpu.key):
            near[capability(machine, gpu, nic, distances=distances)].append(nic_name(nic))
        if not near:
            near[Capability("unknown", f"no path to a NIC is known ({distances.why_unknown(gpu.key, nics[0].key)})")] = []
        for state, names in near.items():
            groups[state][first_of(names, 12)].append(gpu_name(gpu))
    lines = []
    for state, gpus_by_nics in groups.items():
        pairs = [f"{_gpus(gpus, 32)} with {nics}" if nics else _gpus(gpus, 32) for nics, gpus in gpus_by_nics.items()]
        lines.append(f"{state.state}: {safe(state.why)}: {'; '.join(pairs)}")
    return lines


def _gpus(names: list[str], most: int) -> str:
    numbers = [name.removeprefix("GPU ") if names[0].startswith("GPU ") else name for name in names[1:]]
    return first_of([*names[:1], *numbers], most)


def _section(title: str, texts: Iterable[str]) -> list[Line]:
    lines = [Line(f"  {text}") for text in texts]
    return [Line(f"{title}:", "head"), *lines] if lines else []


# Several machines: their number, their differences, a tree of each common kind, and the differences of the others from it.

_MOST_TREES = 3
_COMMON = 0.1  # of all machines; a rarer kind is described by its differences
_MOST_ODD = 8  # kinds
_MOST_ODD_PARTS = 4  # of one kind


class _Kind(msgspec.Struct, frozen=True):
    """A kind of machine: machines with equal trees; `lines` is the first one's tree without its title."""

    lines: tuple[Line, ...]
    machines: list[Machine]

    @property
    def names(self) -> str:
        """Return all their names, folded as Slurm does."""
        return safe(folded([machine.hostname or "host name unknown" for machine in self.machines]), 1000)


def cluster_lines(machines: Sequence[Machine], differences: Sequence[str], matrix: bool, width: int | None = None) -> Iterator[Line]:
    """Yield several machines; with `matrix` their distances, within `width` columns, instead of their trees."""
    kinds = _kinds(machines, partial(matrix_lines, width=width) if matrix else tree_lines)
    drawn = [kinds[0], *(kind for kind in kinds[1:_MOST_TREES] if len(kind.machines) >= _COMMON * len(machines))]
    yield Line(_summary(kinds, len(machines), has_differences=bool(differences)), "head")
    if differences:
        yield Line("differences between nodes:", "head")
        yield from (Line(f"  {safe(difference, 1000)}") for difference in differences)
    odd = [kind for kind in kinds if kind not in drawn]
    for kind in odd[:_MOST_ODD]:
        yield from _odd(kind, drawn[0])
    if len(odd) > _MOST_ODD:
        yield Line(f"{sum(len(kind.machines) for kind in odd[_MOST_ODD:])} more nodes differ: `collbench probe --format json` has them all")
    for kind in drawn:
        yield from (Line(""), Line(kind.names if matrix else title(kind.machines[0], kind.names), "head"), *kind.lines)


def _kinds(machines: Sequence[Machine], draw: Callable[[Machine], Iterable[Line]]) -> list[_Kind]:
    """Return the kinds, the most frequent first. Equal machines are drawn once; a few KiB more memory do not make another kind."""
    kinds: dict[tuple[Line, ...], _Kind] = {}
    by_name = {machine.hostname: machine for machine in machines}
    groups = [[machine] for machine in machines]
    if len(by_name) == len(machines):  # else the names of topology_json are ambiguous
        groups = [[by_name[name] for name in entry["hostnames"]] for entry in topology_json(machines)["machines"]]
    for equal in groups:
        lines = tuple(line for line in draw(equal[0]) if line.text != title(equal[0]))
        kinds.setdefault(lines, _Kind(lines, [])).machines.extend(equal)
    return sorted(kinds.values(), key=lambda kind: -len(kind.machines))


def _summary(kinds: Sequence[_Kind], nodes: int, *, has_differences: bool) -> str:
    alike = len(kinds[0].machines)
    if len(kinds) == 1:
        return f"{nodes} nodes with the same parts" if has_differences else f"{nodes} nodes, all alike"
    if alike == 1:
        return f"{nodes} nodes, no two alike"
    return f"{nodes} nodes: {alike} alike, {nodes - alike} {'differs' if nodes - alike == 1 else 'differ'}"


def _odd(kind: _Kind, common: _Kind) -> Iterator[Line]:
    """Yield the parts of an unusual machine that differ from the common one; nothing if its parts are equal."""
    parts = part_texts(kind.machines[0])
    common_parts = part_texts(common.machines[0])
    texts = [f"without {text}" for key, text in common_parts.items() if key not in parts]
    texts += [str(text) if key in common_parts else f"also {text}" for key, text in parts.items() if common_parts.get(key) != text]
    if texts:
        yield Line(f"{kind.names}, unlike {safe(common.machines[0].hostname or 'the others')}:")
        yield from (Line(f"  {text}") for text in texts[:_MOST_ODD_PARTS])
    if len(texts) > _MOST_ODD_PARTS:
        yield Line(f"  and {len(texts) - _MOST_ODD_PARTS} more parts")


# `collbench probe`: a tree per machine, the matrix of distances, or one JSON document.

FORMATS = ("table", "matrix", "json")
SCHEMA = 1
_FINDING_FIELDS = ("code", "severity", "what", "evidence", "remedy")


def probe_text(
    machines: Sequence[Machine],
    differences: Sequence[str],
    format: str,
    stream: TextIO,
    color: str = "auto",
    *,
    findings: Sequence[Finding] | None = None,
) -> None:
    """Print machines in one of FORMATS on `stream`; `color` is auto, always or never; `findings` are the doctor's if they are known.

    A narrow terminal wraps lines between words, and shows the first columns of a matrix. Raises UsageError for an unknown format or color.
    """
    check_format(format, FORMATS)
    if findings is None and format != "matrix":
        from collbench.machine.doctor.examine import examine

        findings = examine(machines)
    width = None if format == "json" else width_of(stream)
    print_lines(wrapped(_lines(machines, differences, format, findings or (), width), width), stream, wants_color(stream, color))


def document(machines: Sequence[Machine], differences: Sequence[str], findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the JSON document, which `topology.snapshot.machines_of` reads. Unknown values and numbers that are not finite are null.

    Findings between machines are listed with the first one.
    """
    names = {machine.hostname for machine in machines}
    entries = []
    for place, machine in enumerate(machines):
        listed = [finding for finding in findings if finding.hostname == machine.hostname]
        if place == 0:
            listed += [finding for finding in findings if finding.hostname not in names]
        cpus = {"model": machine.system.cpu_model, "vendor": machine.system.cpu_vendor}
        cpus |= {name: getattr(machine.system, name) for name in ("architecture", "sockets", "cores", "threads")}
        finding_entries = [{name: getattr(finding, name) for name in _FINDING_FIELDS} for finding in listed]
        entries.append({**to_json(machine), "cpus": cpus, "links": list(_links(machine)), "findings": finding_entries})
    page: dict[str, Any] = plain({"schema": SCHEMA, "machines": entries, "differences": differences})
    return page


def _lines(
    machines: Sequence[Machine], differences: Sequence[str], format: str, findings: Sequence[Finding], width: int | None
) -> Iterator[Line]:
    if format == "json":
        yield Line(json.dumps(document(machines, differences, findings), indent=2, allow_nan=False))
        return
    matrix = format == "matrix"
    if len(machines) > 1:
        yield from cluster_lines(machines, differences, matrix, width)
    else:
        yield from (line for machine in machines for line in (matrix_lines(machine, width) if matrix else tree_lines(machine)))
    if not matrix:
        counts = Counter(finding.severity for finding in findings)
        words = [f"{counts[severity]} {severity}" for severity in SEVERITIES if counts[severity]]
        summary = f"findings: {', '.join(words)}; `collbench doctor` shows them" if words else "findings: none"
        yield from (Line(""), Line(summary, "head"))


def _links(machine: Machine) -> Iterator[dict[str, Any]]:
    """Yield PCIe links, GPU links, and paths between GPUs and NICs (at most 128 parts in all) with the state of GPUDirect RDMA."""
    for device in machine.pci:
        yield {"kind": "pcie", "from": device.address, "to": device.parent, **asdict(device.link)}
    for link in machine.gpu_links:
        yield {"kind": link.kind, "from": link.a, "to": link.b, "count": link.count, "bytes_per_s": link.bytes_per_s}
    distances = Distances(machine)
    gpus = machine.gpus[:MOST_PARTS]
    nics = [nic for nic in machine.nics if nic.virtual is None][: MOST_PARTS - len(gpus)]
    for gpu, nic in ((gpu, nic) for gpu in gpus for nic in nics):
        state = capability(machine, gpu, nic, distances=distances)
        path = distances.path(gpu.key, nic.key)
        yield {"kind": "gpudirect", "from": gpu.key, "to": nic.key, "path": path, "state": state.state, "why": state.why}
