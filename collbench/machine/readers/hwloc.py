"""hwloc's XML (`lstopo --of xml`), versions 1 to 3: NUMA nodes, processors, the PCI tree, GPUs and their NVLinks, NICs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic, NumaNode, PciDevice, PcieLink, Port, System
from collbench.machine.readers import pci
from collbench.machine.readers.pci import part_name
from collbench.machine.readers.rdma import parse_guid, parse_lid
from collbench.machine.readers.text import (
    FileLimits,
    Notes,
    Reader,
    Unreadable,
    cpu_mask,
    few,
    nested,
    pci_address,
    printable,
    top_element,
    whole,
    written,
)

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


# The meaning of hwloc's rates: a PCIe link has GB/s after line coding, an NVLink matrix has MB/s of all links of a pair together.
#
# hwloc computes both from counted values (include/private/misc.h and hwloc/topology-nvml.c of https://github.com/open-mpi/hwloc). They
# are converted back only if exactly one count is possible.

_MOST_OBJECTS = 512
_MOST_LINKS = 18
_PROCESSORS = ("Package", "NUMANode", "Group", "Machine", "Die")  # for a POWER processor hwloc names the nearest of these
_LANES = (1, 2, 4, 8, 16)
# GB/s of a lane by GT/s: 8b/10b, 128b/130b, then 242 of 256 bytes of a flit (misc.h, hwloc__pci_link_speed).
_LANE_GB_PER_S = {2.5: 0.25, 5.0: 0.5, 8.0: 128 / 130, 16.0: 256 / 130, 32.0: 512 / 130, 64.0: 8 * 242 / 256, 128.0: 16 * 242 / 256}
# The fastest PCIe of a part by its data sheet, and the MB/s that hwloc reports for one of its NVLinks (topology-nvml.c).
_PARTS = (
    (re.compile(r"\bP100\b"), 8.0, 20000),
    (re.compile(r"\bV100\b"), 8.0, 25000),
    (re.compile(r"\bT4\b|\bConnectX-3|\bConnectX-4|\bConnect-IB\b|\bConnectX-5(?! Ex)"), 8.0, None),
    (re.compile(r"\bA(?:100|800|30)\b"), 16.0, 25000),
    (re.compile(r"\bA(?:10|40)\b|\bL40?S?\b|\bMI(?:100|2[15]0)|\bConnectX-5 Ex|\bConnectX-6|\bBlueField-2"), 16.0, None),
    (re.compile(r"\b(?:G?H[12]00|H800|H20)\b"), 32.0, 25000),
    (re.compile(r"\bMI3\d\d|\bConnectX-7|\bBlueField-3"), 32.0, None),
    (re.compile(r"\bConnectX-8"), 64.0, None),
    (re.compile(r"\bG?B[123]00\b"), 64.0, 50000),
)


class HwlocLinks(NamedTuple):
    """GPU links, paths between GPUs, why links are not counted, doubts, and per GPU the NVLinks to processors with their rate."""

    links: tuple[GpuLink, ...] = ()
    paths: Mapping[tuple[str, str], str] = {}
    unknown: str | None = None
    doubts: tuple[str, ...] = ()
    processors: Mapping[str, tuple[int, float]] = {}


def pcie(gigabytes_per_s: str | None, part: str | None) -> tuple[PcieLink, str | None]:
    """Return the current link, and why it is unknown. "15.753846" is 8 GT/s x16 if the part cannot do more; else it may be 16 GT/s x8."""
    try:
        rate = float((gigabytes_per_s or "0")[:32])
    except ValueError:
        return PcieLink(), "hwloc's figure is not a number"
    if not 0 < rate < 1e4:
        return PcieLink(), "hwloc has no speed"
    fastest = next((speed for pattern, speed, _ in _PARTS if pattern.search(part or "")), 128.0)
    lanes = [(speed, lane) for speed, lane in _LANE_GB_PER_S.items() if speed <= fastest]
    links = [(speed, width) for speed, lane in lanes for width in _LANES if abs(lane * width / rate - 1) < 1e-3]
    if len(links) == 1:
        return PcieLink(*links[0]), None
    candidates = " or ".join(f"{speed:g} GT/s x{width}" for speed, width in links) or "not the rate of a PCIe link"
    return PcieLink(), f"hwloc has {rate:g} GB/s, which is {candidates}"


def nvlinks(topology: Element, ends: Mapping[str, str], models: Mapping[str, str | None]) -> HwlocLinks:
    """Return the links in the matrix "NVLinkBandwidth", as far as its values are whole numbers of links.

    ends    key of a GPU, or SWITCH, by "OSDev:802" and "PCIDev:449"; other ends are processors (POWER)
    models  by GPU key
    """
    matrix = _matrix(topology, "NVLinkBandwidth")
    if matrix is None:
        return _xgmi(topology, ends)
    names, rows, doubt = matrix
    links: list[GpuLink] = []
    doubts = [doubt] if doubt else []
    processors: dict[str, tuple[int, float]] = {}
    for name, row in zip(names, rows, strict=True):
        gpu = ends.get(name, SWITCH)
        if gpu == SWITCH:
            continue
        per_link = next((rate for pattern, _, rate in _PARTS if rate and pattern.search(models.get(gpu) or "")), None)
        sums: Counter[str] = Counter()  # MB/s by far end, switches together; the value of a GPU with itself is meaningless
        to_processors = 0
        for far_name, value in zip(names, row, strict=True):
            if value and far_name in ends and ends[far_name] != gpu:
                sums[ends[far_name]] += value
            if far_name.partition(":")[0] in _PROCESSORS:
                to_processors += value
        if per_link and to_processors and to_processors % per_link == 0:
            processors[gpu] = (to_processors // per_link, per_link * 1e6)
        if per_link and not any(value % per_link for value in sums.values()) and sums.total() <= per_link * _MOST_LINKS:
            links += [GpuLink(gpu, end, value // per_link, bytes_per_s=per_link * 1e6) for end, value in sums.items()]
        elif sums:
            doubts.append(f"hwloc's NVLink figures of {gpu} are not a multiple of one link: not counted")
    return HwlocLinks(tuple(links), doubts=tuple(doubts), processors=processors)


def _xgmi(topology: Element, ends: Mapping[str, str]) -> HwlocLinks:
    """Return pairs only: AMD's matrix has one invented value for every pair joined by xGMI (topology-rsmi.c)."""
    names, rows, doubt = _matrix(topology, "XGMIBandwidth") or ([], [], None)
    paths = {
        (ends[a], ends[b]): "XGMI"
        for a, row in zip(names, rows, strict=True)
        for b, value in zip(names, row, strict=True)
        if value and a != b and a in ends and b in ends
    }
    why = "hwloc shows which GPUs xGMI joins, but not the number of links: read the machine's /sys/class/kfd too" if paths else None
    return HwlocLinks((), paths, why, (doubt,) if doubt else ())


def _matrix(topology: Element, name: str) -> tuple[list[str], list[list[int]], str | None] | None:
    """Return names of the objects ("OSDev:802"), rows of values and a doubt; None when the matrix is missing."""
    matrices = (element for element in topology if element.tag in ("distances2", "distances2hetero"))
    matrix = next((element for element in matrices if element.get("name") == name), None)
    if matrix is None:
        return None
    kind = matrix.get("type")
    names = [f"{kind}:{word}" if kind else word for word in _words(matrix, "indexes")]
    values = _words(matrix, "u64values")
    complete = len(names) <= _MOST_OBJECTS and len(set(names)) == len(names) and len(values) == len(names) ** 2
    if not complete or matrix.get("indexing", "gp") != "gp" or not all(re.fullmatch(r"\d{1,15}", word) for word in values):
        return [], [], f"hwloc's matrix {name} has {len(values)} values for {len(names)} objects, or is damaged: not read"
    numbers = [int(word) for word in values]
    return names, [numbers[start : start + len(names)] for start in range(0, len(numbers), len(names) or 1)], None


def _words(matrix: Element, tag: str) -> list[str]:
    return [word for child in matrix if child.tag == tag for word in (child.text or "").split()]


# hwloc's XML as a flat list of objects, each with its container, for all versions of the format.
#
# Version 1 has no version attribute and stores values in attributes; versions 2 and 3 add memory and I/O children
# (https://www.open-mpi.org/projects/hwloc/doc/, "Importing and exporting topologies from/to XML files").

_LIMITS = FileLimits("a machine's hwloc XML", "save it again with `lstopo --of xml`", 32 << 20, depth=256, elements=500_000, doctype=True)


class HwlocObject(msgspec.Struct, frozen=True, eq=False):
    """An <object> element, and the one that contains it."""

    element: Element
    inside: HwlocObject | None

    @property
    def type(self) -> str:
        """The type, such as "Package" or "PCIDev"; version 1's "Socket" is a Package."""
        name = self.element.get("type", "")
        return "Package" if name == "Socket" else name

    @property
    def address(self) -> str | None:
        """The PCI address of a device or bridge; None for other objects."""
        return pci_address(self.element.get("pci_busid", "")) if self.type in ("PCIDev", "Bridge") else None

    @property
    def infos(self) -> dict[str, str]:
        """The <info> children by name."""
        return infos(self.element)

    def number(self, attribute: str) -> int | None:
        """Return the integer in an attribute; None when it is invalid."""
        return whole(self.element.get(attribute), 0, 1 << 60)

    def containers(self) -> Iterator[HwlocObject]:
        """Yield the containing objects, innermost first."""
        container = self.inside
        while container:
            yield container
            container = container.inside

    def pci_device(self) -> str | None:
        """Return the PCI address of the device that this object is or belongs to; None without one."""
        return next((item.address for item in (self, *self.containers()) if item.type == "PCIDev"), None)


def infos(element: Element) -> dict[str, str]:
    """Return the <info> children by name."""
    return {child.get("name", ""): printable(child.get("value", "")) for child in element if child.tag == "info"}


# The devices in hwloc's XML: PCI functions and their tree, and the drivers' names of GPUs, network and RDMA devices.

_TYPE = re.compile(r"^([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\](?:.* [0-9a-f]{2} ([0-9a-f]{2})$)?", re.IGNORECASE)
_GPU_NAME = re.compile(r"^(nvml|rsmi)(\d{1,3})$")
_PORT = re.compile(r"^Port(\d{1,2})(?:State|LID)$")
_STATES = {"1": "down", "2": "init", "3": "armed", "4": "active"}  # of IBTA's PortInfo, as /sys/class/infiniband prints it
_NETWORK = {2: 2, 3: 16}  # osdev_type: one number in versions 1 and 2, bits in version 3 (hwloc.h)
_OPENFABRICS = {2: 3, 3: 32}
_MEMORY = ("CUDAGlobalMemorySize", "RSMIVRAMSize", "LevelZeroHBMSize")  # KiB


@dataclass
class Devices(Notes):
    """The devices found. `ends`: the GPU or switch of each object in a distance matrix."""

    pci: tuple[PciDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    ends: dict[str, str] = field(default_factory=dict)


def devices(objects: Sequence[HwlocObject], version: int, numa_ids: frozenset[int]) -> Devices:
    """Return everything below the bridges of a topology. `version` is the format's major version, 1 to 3."""
    parts = Devices()
    drivers: dict[str | None, list[HwlocObject]] = {}  # the operating system's devices, by the PCI function that they belong to
    for item in objects:
        if item.type == "OSDev":
            drivers.setdefault(item.pci_device(), []).append(item)
    functions: dict[str, PciDevice] = {}
    for item in objects:
        address = item.address
        if address and address in functions:
            parts.doubt(f"hwloc lists {address} twice: the first is taken")
        elif address:
            functions[address] = _pci(item, address, _model(drivers.get(address, ())), numa_ids, parts.unknown)
    parts.pci = pci.with_switches(tuple(functions.values()))
    parts.gpus = tuple(_gpu(device, drivers.get(device.address, ())) for device in parts.pci if device.kind == "gpu")
    parts.nics = tuple(_nics(parts.pci, drivers, version))
    for item in objects:
        device = functions.get(item.pci_device() or "")
        index = item.element.get("gp_index")
        if device and index and device.kind in ("gpu", "nvswitch"):
            parts.ends[f"{item.type}:{index}"] = SWITCH if device.kind == "nvswitch" else device.address
    return parts


def _pci(item: HwlocObject, address: str, model: str | None, numa_ids: frozenset[int], unknown: dict[str, str]) -> PciDevice:
    class_id = vendor_id = device_id = None
    if ids := _TYPE.match(item.element.get("pci_type", "").strip()):  # zeros mean unknown
        class_id = int(ids[1], 16) << 8 | int(ids[4] or "0", 16) or None
        vendor_id = int(ids[2], 16) or None
        device_id = int(ids[3], 16) or None
    kind = "bridge" if item.type == "Bridge" else None
    if item.element.get("subtype") == "NVSwitch":
        kind = "nvswitch"
    infos_name = " ".join(item.infos[word] for word in ("PCIVendor", "PCIDevice") if item.infos.get(word))
    name = infos_name or printable(item.element.get("name", "")) or None  # version 1 has a name attribute
    link, why = pcie(item.element.get("pci_link_speed"), model or part_name(vendor_id, device_id))
    parent = next((container.address for container in item.containers() if container.address), None)
    nodeset = next(filter(None, (container.element.get("nodeset") for container in item.containers())), None)
    nodes = (cpu_mask(nodeset) or frozenset()) & numa_ids
    numa = next(iter(nodes)) if len(nodes) == 1 else None
    device = pci.function(address, vendor_id, device_id, class_id, link, kind=kind, parent=parent, name=name, numa=numa)
    if device.kind != "other" and (why or device.virtual):
        unknown[f"pci/{address}/link"] = why or pci.VIRTUAL_LINK
    return device


def _model(drivers: Sequence[HwlocObject]) -> str | None:
    return next(filter(None, (driver.infos.get("GPUModel") for driver in drivers)), None)


def _gpu(device: PciDevice, drivers: Sequence[HwlocObject]) -> Gpu:
    """Return the GPU with the index, model and serial number of NVML or ROCm, if hwloc was built with them."""
    infos = {word: value for driver in drivers for word, value in driver.infos.items()}
    names = (_GPU_NAME.match(driver.element.get("name", "")) for driver in drivers)
    index = next((int(name[2]) for name in names if name), None)
    gpu = pci.gpu(device, index, _model(drivers), infos.get("NVIDIAUUID") or infos.get("AMDUUID"))
    kib = next((infos[word] for word in _MEMORY if re.fullmatch(r"\d{1,12}", infos.get(word, ""))), None)
    return replace(gpu, memory_bytes=int(kib) * 1024 if kib else None)


def _nics(functions: Sequence[PciDevice], drivers: Mapping[str | None, Sequence[HwlocObject]], version: int) -> list[Nic]:
    """Return RDMA devices with their interfaces, other interfaces, and functions without a driver's name."""
    nics: list[Nic] = []
    by_address = {device.address: device for device in functions}
    on_functions = [driver for address in drivers if address for driver in drivers[address]]
    has_drivers = any(_is_of_kind(driver, kinds, version) for driver in on_functions for kinds in (_OPENFABRICS, _NETWORK))
    physical = pci.physical_nics(functions)
    for address in [*by_address, None]:
        device = by_address.get(address) if address else None
        rdma = [driver for driver in drivers.get(address, ()) if _is_of_kind(driver, _OPENFABRICS, version)]
        nets = [driver for driver in drivers.get(address, ()) if _is_of_kind(driver, _NETWORK, version) and driver not in rdma]
        missing = has_drivers and device is not None and not device.virtual and pci.is_rdma_card(device)
        if rdma:
            nics += [_nic(driver, device, nets if len(rdma) == 1 else [], True) for driver in rdma]
        elif nets:
            nics += [replace(_nic(driver, device, [driver], False), rdma_missing=missing) for driver in nets]
        elif device and device.kind == "nic":
            card = pci.nic(device, physical)
            nics.append(replace(card, rdma=card.rdma and not missing, rdma_missing=missing))
    return list({nic.name: nic for nic in reversed(nics)}.values())[::-1]


def _is_of_kind(item: HwlocObject, numbers: Mapping[int, int], version: int) -> bool:
    kind = item.number("osdev_type")
    if kind is None or not item.element.get("name"):
        return False
    return bool(kind & numbers[3]) if version >= 3 else kind == numbers[2]


def _nic(item: HwlocObject, device: PciDevice | None, nets: Sequence[HwlocObject], rdma: bool) -> Nic:
    infos = item.infos
    ports = []
    for number in sorted({int(port[1]) for port in map(_PORT.match, infos) if port} - {0}):
        lid = parse_lid(infos.get(f"Port{number}LID"))  # hwloc has no rate, and only InfiniBand has LIDs
        state = _STATES.get(infos.get(f"Port{number}State", ""))
        ports.append(Port(number, state=state, link_layer="infiniband" if lid else None, lid=lid))
    return Nic(
        name=printable(item.element.get("name", ""), 64),
        address=device.address if device else None,
        model=pci.model_of(device) if device else None,
        rdma=rdma and item.element.get("subtype") != "BXI",
        numa=device.numa if device else None,
        ports=tuple(ports),
        interfaces=tuple(printable(net.element.get("name", ""), 64) for net in nets),
        guid=parse_guid(infos.get("NodeGUID")),
    )


KIND = "hwloc XML"
_TOPOLOGY = re.compile(r"<topology[\s>]")


def looks_like(start: str) -> bool:
    """Return whether the start of a text has hwloc's <topology>."""
    return bool(_TOPOLOGY.search(start)) and "<object" in start


def read(text: str, name: str) -> Machine:
    """Return the machine. Raises Unreadable for other, broken or hostile XML, and for several machines in one file."""
    topology = top_element(text, name, _LIMITS)
    if topology.tag != "topology":
        raise Unreadable(f"{printable(name)} holds no <topology> of hwloc's: {_LIMITS.again}")
    by_element: dict[Element | None, HwlocObject] = {}
    for element, inside in nested(topology, {"object"}):
        by_element[element] = HwlocObject(element, by_element.get(inside))
    objects = list(by_element.values())
    machines = [item for item in objects if item.type == "Machine"]
    if len(machines) != 1:
        raise Unreadable(f"{printable(name)} has {len(machines)} objects of type Machine: give the XML of one machine")
    nodes = _numa_nodes(objects, machines[0])
    version = {"2": 2, "3": 3}.get(topology.get("version", "1")[:1], 1)
    parts = devices(objects, version, frozenset(node.id for node in nodes))
    links = nvlinks(topology, parts.ends, {gpu.key: gpu.model for gpu in parts.gpus})
    machine_infos = infos(topology) | machines[0].infos
    unknown = parts.unknown
    if links.unknown:
        unknown["gpu_links"] = links.unknown
    if not parts.pci:
        unknown |= dict.fromkeys(("pci", "gpus", "nics"), "the XML has no PCI devices (lstopo without I/O devices)")
    elif not parts.nics:
        unknown["nics"] = "the XML has no network devices: lstopo may have left them out"
    gpus = []
    for gpu in parts.gpus:
        count, rate = links.processors.get(gpu.key, (None, None))
        gpus.append(replace(gpu, cpu_links=count, cpu_link_bytes_per_s=rate))
    numbers = (item.number("os_index") for item in objects if item.type == "PU")
    cpus = frozenset(number for number in numbers if number is not None)
    doubts = []
    # POWER numbers threads that are switched off; other processors do not
    if machine_infos.get("Architecture") in ("x86_64", "aarch64") and len(cpus) != max(cpus, default=-1) + 1:
        part = "of a part of the machine (a job's), or others are offline; there may be more cores"
        doubts.append(f"hwloc lists the CPUs {written(cpus)} alone: {part}")
    return Machine(
        hostname=machine_infos.get("HostName") or None,
        sources=(f"{KIND} {printable(name)}",),
        system=_system(objects, machine_infos, nodes),
        numa_nodes=nodes,
        pci=parts.pci,
        gpus=tuple(gpus),
        gpu_links=links.links,
        nics=parts.nics,
        paths=links.paths,
        unknown=unknown,
        doubts=(*few(parts.doubts), *few(links.doubts), *doubts),
    )


def _numa_nodes(objects: Sequence[HwlocObject], machine: HwlocObject) -> tuple[NumaNode, ...]:
    """Return the nodes that are not GPU memory. Version 1 writes none for a machine with one node."""
    nodes: dict[int, NumaNode] = {}
    for item in objects:
        number = item.number("os_index")
        is_node = item.type == "NUMANode" and item.element.get("subtype") != "GPUMemory"
        if is_node and number is not None and number < 4096:
            nodes.setdefault(number, NumaNode(number, _cpus(item), item.number("local_memory")))
    memory = machine.number("local_memory")
    if not nodes and memory:
        return (NumaNode(0, _cpus(machine), memory),)
    return tuple(nodes[number] for number in sorted(nodes))


def _cpus(item: HwlocObject) -> str | None:
    return written(cpu_mask(item.element.get("cpuset")) or ()) or None


def _system(objects: Sequence[HwlocObject], infos: Mapping[str, str], nodes: Sequence[NumaNode]) -> System:
    packages = [item for item in objects if item.type == "Package"]
    chip = packages[0].infos if packages else {}
    memory = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    return System(
        architecture=infos.get("Architecture"),
        cpu_model=chip.get("CPUModel") or infos.get("CPUModel"),
        cpu_vendor=chip.get("CPUVendor") or infos.get("CPUVendor"),
        sockets=len(packages) or None,
        cores=sum(item.type == "Core" for item in objects) or None,
        threads=sum(item.type == "PU" for item in objects) or None,
        memory_bytes=sum(memory) if memory and len(memory) == len(nodes) else None,
        kernel=infos.get("OSRelease"),
    )


HWLOC = Reader(KIND, looks_like, read, lists=frozenset({"numa_nodes", "pci", "gpus"}))
