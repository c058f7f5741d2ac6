"""NCCL's and RCCL's topology XML: the output of NCCL_TOPO_DUMP_FILE, and vendors' templates for NCCL_TOPO_FILE.

A template lists PCI functions without <gpu> and <net>. Its link speeds are the vendor's choice for NCCL.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from collbench.machine.model import NCCL_TOPOLOGY, SWITCH, Gpu, GpuLink, LinkKind, Machine, Nic, NumaNode, PciDevice, PcieLink, Port, System
from collbench.machine.readers import pci
from collbench.machine.readers.pci import INTEL, MELLANOX, has_built_in_links, part_name
from collbench.machine.readers.rdma import LANES, OF_ONE_PORT, LinkLayer, is_bond, parse_guid
from collbench.machine.readers.text import (
    FileLimits,
    Notes,
    Reader,
    Unreadable,
    cpu_mask,
    few,
    gigatransfers,
    lanes,
    nested,
    numa_of,
    pci_address,
    printable,
    top_element,
    whole,
    written,
)

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


# One element of NCCL's topology XML: a PCI function, a GPU, its links, a port.
#
# NCCL writes the attributes in src/graph/xml.cc and reads them in src/graph/topo.cc (https://github.com/NVIDIA/nccl).

_NVSWITCH, _PROCESSOR = "0x068000", "0x068001"  # classes of the far ends of links
_LINKS: dict[str, LinkKind] = {"nvlink": "nvlink", "xgmi": "xgmi"}
_MADE_UP_NETS = re.compile(r"^(veth|docker|br-|virbr|tap|tun|cali|cni|flannel|vxlan|dummy|scif)|^lo$")
_MOST_C2C_MEGABYTES = 1_000_000
_MOST_MEGABITS = 3_200_000  # eight lanes at 400 Gb/s, twice the fastest available port
_RATES = {1000, 2500, 5000, 10000, 20000, 25000, 40000, 50000, 56000, 100000, 200000, 400000, 800000}  # Mb/s
# InfiniBand's data rate if it is lower than the printed one: 8b10b up to QDR, and FDR (see infiniband_rate).
_INFINIBAND_DATA = {round(lane.printed * 4 / 1e6): lane.data * 4 for lane in (LANES["DDR"], LANES["QDR"], LANES["FDR"])}


def _pci_device(element: Element, parent: str | None, numa: int | None) -> PciDevice:
    """Return the device of a <pci> element; NCCL writes only maximum link speeds. Raises Unreadable for an element without an address."""
    address = pci_address(element.get("busid", ""))
    if not address:
        raise Unreadable(f"a <pci> element has the busid '{printable(element.get('busid', ''), 40)}', which is not a valid PCI address")
    vendor_id, device_id = (whole(element.get(attribute), 0, 0xFFFE) for attribute in ("vendor", "device"))
    class_id = whole(element.get("class"), 0, 0xFFFFFF)
    link = PcieLink(max_speed_gt_per_s=gigatransfers(element.get("link_speed", "")), max_width=lanes(element.get("link_width", "")))
    name = part_name(vendor_id, device_id)
    makers = pci.MAKERS_OR_UNNAMED
    return pci.function(address, vendor_id, device_id, class_id, link, makers=makers, name=name, parent=parent, numa=numa)


def _gpu(element: Element | None, device: PciDevice) -> Gpu:
    """Return the GPU of a <gpu> element, or of none, on a PCI function. sm: NVIDIA's compute capability, AMD's number of compute units."""
    if element is None:
        return pci.gpu(device)
    gcn = element.get("gcn")
    sm = whole(element.get("sm"), 10, 999)
    gpu = pci.gpu(device, whole(element.get("dev"), 0, 4095))
    vendor = gpu.vendor
    if vendor is None and (gcn or sm):
        vendor = "amd" if gcn else "nvidia"
    architecture = f"sm_{sm}" if sm and vendor == "nvidia" else None
    if gcn:  # "gfx942", or "906"; 910 is the old number of gfx90a
        digits = re.fullmatch(r"(?:gfx)?([0-9a-f]{3,5})", gcn.strip().lower())
        architecture = f"gfx{'90a' if digits[1] == '910' else digits[1]}" if digits else None
    to_cpu = sum(whole(link.get("count"), 1, 1000) or 0 for link in element if link.tag == "nvlink" and _class_of(link) == _PROCESSOR)
    c2c = element.find("c2c")  # ncclTopoAddC2c in src/graph/topo.cc: MB/s times count
    megabytes = whole(c2c.get("bw"), 1, _MOST_C2C_MEGABYTES) if c2c is not None else None
    return replace(
        gpu,
        vendor=vendor,
        architecture=architecture,
        cpu_links=to_cpu or None,
        c2c_links=whole(c2c.get("count"), 1, 1000) if c2c is not None else None,
        c2c_bytes_per_s=megabytes * 1e6 if megabytes else None,
    )


def _gpu_links(element: Element, key: str, gpus: Iterable[str], notes: Notes) -> list[GpuLink]:
    """Return the <nvlink> and <xgmi> of a GPU, by far end, without those to CPUs. Virtual machines hide far ends as fffffff:ffff:ff."""
    ends = {*gpus, SWITCH} - {key}
    counts: Counter[tuple[str | None, LinkKind]] = Counter()
    for link in element:
        kind = _LINKS.get(link.tag)
        count = whole(link.get("count"), 1, 1000)
        if kind is None or _class_of(link) == _PROCESSOR:
            continue
        if count is None:
            notes.doubt(f"the count of one of its links is '{printable(link.get('count', ''), 40)}', which was left out", f"GPU {key}")
            continue
        target = SWITCH if _class_of(link) == _NVSWITCH else pci_address(link.get("target", ""))
        if target == key:
            notes.doubt(f"its {link.tag} leads to itself in the file, and only the count was taken", f"GPU {key}")
        elif target not in ends:
            notes.doubt(f"its {link.tag} leads to {target or 'no address'}, no GPU of the file, and only the count was taken", f"GPU {key}")
        counts[target if target in ends else None, kind] += count
    return [GpuLink(key, end, count, kind) for (end, kind), count in counts.items()]


def _class_of(link: Element) -> str:
    return link.get("tclass", "").lower()


def _nic(element: Element, device: PciDevice | None, numa: int | None, notes: Notes) -> Nic:
    """Return the NIC of a <net> element, which is one port. A virtual network, or one without a known function, has no PCI device.

    NCCL writes port 0 for sockets and the verbs port, from 1, for RDMA; names like "mlx5_0" and interfaces like "eth0".
    """
    name = printable(element.get("name", ""), 64) or f"net{printable(element.get('dev', ''), 8)}"
    rdma = (whole(element.get("port"), 0, 255) or 0) > 0
    made_up = _MADE_UP_NETS.match(name) if not rdma else None
    virtual = made_up[0].rstrip("-") if made_up else None
    return Nic(
        name=name,
        address=device.address if device else None,
        model=device.name if device else None,
        rdma=rdma,
        numa=device.numa if device else numa,
        ports=(_port(element, name, device, virtual, notes),),
        interfaces=() if rdma else (name,),
        virtual=virtual,
        gdr={"0": False, "1": True}.get(element.get("gdr", "")),
        card_guid=_guid(element.get("guid", ""), device) if rdma else None,  # ncclIbDevs[].guid is the system image GUID
    )


def _port(element: Element, name: str, device: PciDevice | None, virtual: str | None, notes: Notes) -> Port:
    number = whole(element.get("port"), 1, 255) or 1
    speed = printable(element.get("speed", ""), 40)
    subclass = ((device.class_id if device else None) or 0) >> 8
    layer: LinkLayer | None = None
    if subclass == pci.INFINIBAND:
        layer = "infiniband"
    elif device and subclass == pci.ETHERNET and device.vendor_id in {MELLANOX, INTEL}:
        layer = "ethernet"
    rate, why = (None, f"the speed of a {virtual} is made up") if virtual else _rate(speed, layer == "infiniband")
    if rate and is_bond(name):
        rate, why = None, OF_ONE_PORT
    if rate is None:
        notes.unknown[f"nics/{name}/ports/{number}/rate_bits_per_s"] = why
    elif why:
        notes.doubt(why, f"{name} port {number}")
    return Port(number=number, rate_bits_per_s=rate, rate_text=f"{speed} Mb/s" if speed else None, link_layer=layer)


def _rate(speed: str, infiniband: bool) -> tuple[float | None, str]:
    """Return the data bits/s of NCCL's speed in Mb/s, and why it is None or doubtful ("" for neither)."""
    megabits = whole(speed, 1, _MOST_MEGABITS)
    if megabits is None:
        return None, f"the file gives the speed as '{speed}' Mb/s, which no port has"
    if megabits == 10000:
        return (None if infiniband else 10e9), "10000 Mb/s is also what NCCL writes for a speed that it could not read"
    if infiniband and megabits == 40000:
        return 32e9, "40000 Mb/s was taken as QDR, 32 Gb/s of data; FDR10 would carry 40"
    rate = _INFINIBAND_DATA.get(megabits, megabits * 1e6) if infiniband else megabits * 1e6
    unusual = f"{megabits} Mb/s is not a speed of one port: set by hand, or the sum of several ports"
    return rate, "" if megabits in _RATES else unusual


def _guid(text: str, device: PciDevice | None) -> str | None:
    """Return "58a2:e103:00b1:7ca8" for 0xa87cb10003e1a258.

    NCCL prints the bytes in memory order; other releases reverse them first. Mellanox's fourth byte is 03, which shows the order.
    """
    value = whole(text, 1, (1 << 64) - 1)
    if value is None or value < 1 << 32:
        return None
    data = value.to_bytes(8)
    mellanox = device is None or device.vendor_id in {None, MELLANOX}
    if mellanox and data[4] == 3 and data[3] != 3:
        data = data[::-1]
    return parse_guid(data.hex())


# Conversion of NCCL's topology XML: from the elements to a machine's parts, and facts that need the whole tree.


@dataclass
class ParsedTopology(Notes):
    """The parts of the file by their keys, in the file's order."""

    numa: dict[int, NumaNode] = field(default_factory=dict)
    pci: dict[str, PciDevice] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)
    gpus: dict[str, tuple[Gpu, Element | None]] = field(default_factory=dict)
    links: list[GpuLink] = field(default_factory=list)
    nics: dict[str, Nic] = field(default_factory=dict)
    guids: dict[str | None, set[str]] = field(default_factory=dict)  # by GUID: as the file writes it


def _walk(cpus: Sequence[Element], nics_alone: bool) -> ParsedTopology:
    """Return the parts below <cpu>s. nics_alone: functions without a class are NICs. Raises Unreadable for a bad or repeated address."""
    topology = ParsedTopology()
    for cpu in cpus:
        numa = numa_of(cpu.get("numaid"))
        if numa is not None:
            topology.numa.setdefault(numa, NumaNode(numa, cpus=written(cpu_mask(cpu.get("affinity")) or ()) or None))
        functions: dict[Element | None, PciDevice | None] = {}  # of an element, or of the one around it
        for element, inside in nested(cpu, {"pci", "nic", "net"}):
            parent = functions.get(inside)
            if element.tag == "net":
                _take_port(_nic(element, parent, numa, topology), element.get("guid", ""), topology)
            functions[element] = _take_function(element, parent, numa, topology) if element.tag == "pci" else parent
    _link_tree(topology)
    _name_kinds(topology, nics_alone)
    _drop_impossible_links(topology)
    _add_bare_nics(topology)
    for name, nic in topology.nics.items():  # one NCCL does not write a GUID in both byte orders: the file was edited
        if nic.card_guid and len(topology.guids.get(nic.card_guid, ())) > 1:
            topology.nics[name] = replace(nic, card_guid=None)
            topology.doubt("the file has the GUID in two byte orders, and it was left out", name)
    return topology


def _take_port(nic: Nic, guid: str, topology: ParsedTopology) -> None:
    topology.guids.setdefault(nic.card_guid, set()).add(guid)
    listed = topology.nics.setdefault(nic.name, nic)
    if listed is nic:
        return
    number = nic.ports[0].number
    if nic.address != listed.address or number in {port.number for port in listed.ports}:
        topology.doubt("the file names it twice, and the first was taken", f"{nic.name} port {number}")
    else:
        topology.nics[nic.name] = replace(listed, ports=(*listed.ports, *nic.ports))


def _take_function(element: Element, parent: PciDevice | None, numa: int | None, topology: ParsedTopology) -> PciDevice:
    device = _pci_device(element, parent.address if parent else None, numa)
    gpu = element.find("gpu")
    if device.address in topology.pci:
        raise Unreadable(f"it names {device.address} twice")
    if gpu is not None:
        device = replace(device, kind="gpu")
    topology.pci[device.address] = device
    if parent:
        topology.children.setdefault(parent.address, []).append(device.address)
    else:
        topology.unknown[f"pci/{device.address}/parent"] = "NCCL's topology leaves out the root ports"
    if device.virtual:
        topology.unknown[f"pci/{device.address}/link"] = pci.VIRTUAL_LINK
    if device.kind == "gpu":
        topology.gpus[device.address] = (_gpu(gpu, device), gpu)
    return device


def _link_tree(topology: ParsedTopology) -> None:
    """Add the links between GPUs once all GPUs are known. A GPU without links among GPUs with links has none.

    NVSwitches are listed only as far ends. A virtual machine hides their addresses: fffffff:ffff:ff is skipped.
    """
    listed = [(gpu, element) for gpu, element in topology.gpus.values() if element is not None]
    for gpu, element in listed:
        topology.links += _gpu_links(element, gpu.key, topology.gpus, topology)
        for address in (pci_address(link.get("target", "")) for link in element if _class_of(link) == _NVSWITCH):
            if address and address not in topology.pci and not set(address) <= set("f0:."):
                topology.pci[address] = PciDevice(address, "nvswitch", class_id=0x068000)
                topology.unknown[f"pci/{address}/parent"] = "the file names it as the far end of NVLinks alone"
    linked = {link.a for link in topology.links}
    module = next((gpu for gpu, _ in listed if has_built_in_links(gpu, len(topology.gpus))), None)
    if not topology.gpus:
        topology.unknown["gpus"] = "the file names no GPU"
    elif linked:
        topology.links += [GpuLink(gpu.key, None, 0, topology.links[0].kind) for gpu, _ in listed if gpu.key not in linked]
    elif module and len(topology.gpus) > 1:
        why = f"the file lists none, but {module.model or module.architecture} GPUs are built with them"
        topology.unknown["gpu_links"] = why
        topology.doubt(why, "links between GPUs")
    elif len(topology.gpus) > 1:
        topology.links += [GpuLink(gpu.key, None, 0, "xgmi" if gpu.vendor == "amd" else "nvlink") for gpu, _ in listed]


def _name_kinds(topology: ParsedTopology, nics_alone: bool) -> None:
    """Set the kinds of devices: NICs by their <net>, switches by several children; a bridge with one child is a port."""
    nic_addresses = {nic.address for nic in topology.nics.values()}
    for address, device in topology.pci.items():
        children = len(topology.children.get(address, ()))
        if children and device.kind in {"bridge", "other"}:
            topology.pci[address] = replace(device, kind="switch" if children > 1 else "bridge")
        elif device.kind == "other" and (address in nic_addresses or (nics_alone and device.class_id is None)):
            topology.pci[address] = replace(device, kind="nic")
    nameless = sum(device.kind == "other" and device.class_id is None for device in topology.pci.values())
    if nameless:
        why = f"{nameless} PCI functions have no class in the file: each may be a GPU or a NIC"
        topology.unknown |= {"nics": why, "gpus": why}
    elif not topology.nics and not any(device.kind == "nic" for device in topology.pci.values()):
        topology.unknown["nics"] = "the file names no NIC"


def _drop_impossible_links(topology: ParsedTopology) -> None:
    rates = {nic.address: nic.ports[0].rate_bits_per_s for nic in topology.nics.values()}
    for address, device in topology.pci.items():
        children = [topology.pci[child] for child in topology.children.get(address, ())]
        speed = device.link.max_speed_gt_per_s
        rate = rates.get(address)
        fastest = max((child.link.max_speed_gt_per_s or 0 for child in children), default=0)
        if speed is not None and speed <= 5 and fastest >= 16:
            why = f"the file gives it {speed:g} GT/s above devices at {fastest:g} GT/s, which the ports of one switch do not do"
        elif speed == 2.5 and device.link.max_width == 1 and rate and rate > 2e9:
            why = f"the file gives it 2.5 GT/s x1, which integrated devices claim, for a port of {rate / 1e9:g} Gb/s"
        else:
            continue
        topology.unknown[f"pci/{address}/link"] = why
        topology.doubt(why, address)
        topology.pci[address] = replace(device, link=PcieLink(max_width=device.link.max_width if children else None))


def _add_bare_nics(topology: ParsedTopology) -> None:
    """Add network cards for which the file has no port. Unions of listed ones ("mlx5_0+mlx5_1", newer NCCL) are virtual."""
    nic_addresses = {nic.address for nic in topology.nics.values()}
    physical = pci.physical_nics(topology.pci.values())
    for device in topology.pci.values():
        if device.kind == "nic" and device.address not in nic_addresses:
            topology.nics[device.address] = pci.nic(device, physical)
            topology.unknown[f"nics/{device.address}/ports"] = "the file names no port of it, and so no rate"
    for name, nic in topology.nics.items():
        if "+" in name and set(name.split("+")) <= set(topology.nics):
            topology.nics[name] = replace(nic, virtual=f"NCCL's union of {name}")


KIND = NCCL_TOPOLOGY

_AGAIN = "have NCCL write it with NCCL_TOPO_DUMP_FILE"
_LIMITS = FileLimits("a machine's topology", _AGAIN, 8 << 20, depth=64, elements=200_000)  # the largest known one has 100,000 characters
_NICS_ALONE = "GPUs are not reported in this file"  # a comment in Amazon's templates; their PCI functions have no class


def looks_like(start: str) -> bool:
    """Return whether the start of a text has NCCL's <system> with <cpu>, or <graphs>, for which `read` gives a helpful error."""
    return bool(re.search(r"<system\b", start) and re.search(r"<cpu\b", start)) or bool(re.search(r"<graphs\b", start))


def read(text: str, name: str) -> Machine:
    """Return the machine that the XML describes. Link speeds are maxima; parents end below the root ports, which NCCL omits.

    Raises Unreadable for other or hostile XML, and for a PCI address that is missing, wrong or repeated.
    """
    shown_name = printable(name)
    top = top_element(text, shown_name, _LIMITS)
    if top.tag == "graphs":
        raise Unreadable(f"{shown_name} holds the rings and trees that NCCL chose (NCCL_GRAPH_DUMP_FILE), no topology: {_AGAIN}")
    if top.tag != "system":
        raise Unreadable(f"{shown_name} begins with <{printable(top.tag, 40)}>, not with NCCL's <system>: {_AGAIN}")
    hosts = list(dict.fromkeys(cpu.get("host_hash") for cpu in top.iterfind("cpu")))
    cpus = [cpu for cpu in top.iterfind("cpu") if cpu.get("host_hash") == hosts[0]]
    try:
        topology = _walk(cpus, nics_alone=_NICS_ALONE in text)
    except Unreadable as why:
        raise Unreadable(f"{shown_name} is not as NCCL writes it: {why}; {_AGAIN}") from None
    if not topology.pci and not topology.nics:
        raise Unreadable(f"{shown_name} names no PCI device and no network: {_AGAIN}")
    if len(hosts) > 1:
        topology.doubt(f"it holds {len(hosts)} hosts, and only the first was read", shown_name)
    if all(element is None for _, element in topology.gpus.values()) and not any(nic.ports for nic in topology.nics.values()):
        topology.doubt("a vendor's template, not what NCCL found: its link speeds are not measured", shown_name)
    architecture, vendor = (printable(cpus[0].get(attribute, ""), 64) or None for attribute in ("arch", "vendor"))
    return Machine(
        sources=(f"{KIND} {shown_name}",),
        system=System(architecture=architecture, cpu_vendor=vendor),
        numa_nodes=tuple(topology.numa[key] for key in sorted(topology.numa)),
        pci=tuple(topology.pci.values()),
        gpus=tuple(gpu for gpu, _ in topology.gpus.values()),
        gpu_links=tuple(topology.links),
        nics=tuple(topology.nics.values()),
        unknown=topology.unknown,
        doubts=few(topology.doubts),
    )


NCCL_XML = Reader(KIND, looks_like, read, lists=frozenset({"pci"}))
