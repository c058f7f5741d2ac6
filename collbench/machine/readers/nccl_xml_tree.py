"""The walk over NCCL's topology XML: from the elements to a machine's parts, and what only the whole tree tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from collbench.machine.model import Gpu, GpuLink, Nic, NumaNode, PciDevice, PcieLink
from collbench.machine.readers import nccl_xml_parts as parts
from collbench.machine.readers import pci_parts
from collbench.machine.readers.cpu_sets import cpu_mask, written
from collbench.machine.readers.part_names import has_built_in_links
from collbench.machine.readers.text import Unreadable, numa_of, pci_address

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


@dataclass
class Found:
    """What the walk has found: parts by their keys, in the file's order."""

    notes: parts.Notes = field(default_factory=parts.Notes)
    numa: dict[int, NumaNode] = field(default_factory=dict)
    pci: dict[str, PciDevice] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)
    gpus: dict[str, tuple[Gpu, Element | None]] = field(default_factory=dict)
    links: list[GpuLink] = field(default_factory=list)
    nics: dict[str, Nic] = field(default_factory=dict)

    @property
    def dump(self) -> bool:
        """NCCL wrote it: a template has no <gpu> and no <net>."""
        return any(element is not None for _, element in self.gpus.values()) or any(nic.ports for nic in self.nics.values())


def walk(cpus: Sequence[Element], nics_alone: bool) -> Found:
    """Everything below <cpu> elements. `nics_alone`: functions without a class are NICs.

    Raises Unreadable for a PCI address that is missing, wrong or there twice.
    """
    found = Found()
    for cpu in cpus:
        numa = numa_of(cpu.get("numaid"))
        if numa is not None:
            found.numa.setdefault(numa, NumaNode(numa, cpus=written(cpu_mask(cpu.get("affinity")) or ()) or None))
        for element, parent in _elements(cpu, found):
            _take(element, parent, numa, found)
    _link(found)
    _name_kinds(found, nics_alone)
    _drop_impossible_links(found)
    _add_bare_nics(found)
    _mark_unions(found)
    return found


def _elements(cpu: Element, found: Found) -> Iterator[tuple[Element, PciDevice | None]]:
    """Every <pci> and <net> below a <cpu> with the PCI function that it is in, outer ones first, in the file's order."""
    waiting: list[tuple[Element, PciDevice | None]] = [(element, None) for element in reversed(cpu)]
    while waiting:
        element, parent = waiting.pop()
        yield element, parent
        below = found.pci[pci_address(element.get("busid", "")) or ""] if element.tag == "pci" else parent
        waiting += [(child, below) for child in reversed(element)] if element.tag in {"pci", "nic"} else []


def _take(element: Element, parent: PciDevice | None, numa: int | None, found: Found) -> None:
    if element.tag == "net":
        _take_net(parts.nic(element, parent, numa, found.notes), found)
    if element.tag != "pci":
        return
    device, gpu = parts.pci_device(element, parent.address if parent else None, numa), element.find("gpu")
    if device.address in found.pci:
        raise Unreadable(f"it names {device.address} twice")
    device = replace(device, kind="gpu") if gpu is not None else device
    found.pci[device.address] = device
    if parent:
        found.children.setdefault(parent.address, []).append(device.address)
    else:
        found.notes.unknown[f"pci/{device.address}/parent"] = "NCCL's topology leaves out the root ports"
    if device.virtual:
        found.notes.unknown[f"pci/{device.address}/link"] = pci_parts.VIRTUAL_LINK
    if device.kind == "gpu":
        found.gpus[device.address] = (parts.gpu(gpu, device), gpu)


def _take_net(nic: Nic, found: Found) -> None:
    """A new NIC, or one port more of a NIC that is there already."""
    known = found.nics.get(nic.name)
    if known is None:
        found.nics[nic.name] = nic
    elif nic.address != known.address or nic.ports[0].number in {port.number for port in known.ports}:
        found.notes.doubt(f"{nic.name} port {nic.ports[0].number}", "the file names it twice, and the first was taken")
    else:
        found.nics[nic.name] = replace(known, ports=(*known.ports, *nic.ports))


def _link(found: Found) -> None:
    """Links between GPUs, once all GPUs are known. A GPU without links among GPUs with links was counted: it has none."""
    known = set(found.gpus)
    for key, (_, element) in found.gpus.items():
        if element is not None:
            found.links += parts.gpu_links(element, key, known, found.notes)
            _add_switches(element, found)
    linked = {link.a for link in found.links}
    without = [key for key, (_, element) in found.gpus.items() if element is not None and key not in linked]
    found.links += [GpuLink(key, None, 0, found.links[0].kind) for key in without] if linked else []
    if not known:
        found.notes.unknown["gpus"] = "the file names no GPU"
    elif not linked and len(known) > 1:
        _no_links(found)


def _no_links(found: Found) -> None:
    """No GPU of the file has a link: unknown for a template and for modules that are built with links, else there are none."""
    dumped = [gpu for gpu, element in found.gpus.values() if element is not None]
    built = [gpu for gpu in dumped if has_built_in_links(gpu, len(found.gpus))]
    if built:
        why = f"the file lists none, but {built[0].model or built[0].architecture} GPUs are built with them"
        found.notes.unknown["gpu_links"] = why
        found.notes.doubt("links between GPUs", why)
    else:
        found.links += [GpuLink(gpu.key, None, 0, "xgmi" if gpu.vendor == "amd" else "nvlink") for gpu in dumped]


def _add_switches(gpu: Element, found: Found) -> None:
    """NVSwitches are PCI functions that NCCL names only as far ends. A virtual machine hides them: fffffff:ffff:ff is none."""
    for link in gpu:
        address = pci_address(link.get("target", "")) if parts.is_nvswitch(link) else None
        if address and address not in found.pci and not set(address) <= set("f0:."):
            found.pci[address] = PciDevice(address, "nvswitch", class_id=0x068000)
            found.notes.unknown[f"pci/{address}/parent"] = "the file names it as the far end of NVLinks alone"


def _name_kinds(found: Found, nics_alone: bool) -> None:
    """NICs are told by their <net>, switches by their children: several under one; a bridge with one child is a port of something."""
    ported = {nic.address for nic in found.nics.values()}
    for address, device in found.pci.items():
        children = len(found.children.get(address, ()))
        if children and device.kind in {"bridge", "other"}:
            found.pci[address] = replace(device, kind="switch" if children > 1 else "bridge")
        elif device.kind == "other" and (address in ported or (nics_alone and device.class_id is None)):
            found.pci[address] = replace(device, kind="nic")
    nameless = sum(device.kind == "other" and device.class_id is None for device in found.pci.values())
    if nameless:
        why = f"{nameless} PCI functions have no class in the file: each may be a GPU or a NIC"
        found.notes.unknown |= {"nics": why, "gpus": why}
    elif not found.nics and not any(device.kind == "nic" for device in found.pci.values()):
        found.notes.unknown["nics"] = "the file names no NIC"


def _drop_impossible_links(found: Found) -> None:
    rates = {nic.address: nic.ports[0].rate_bits_per_s for nic in found.nics.values()}
    for address, device in found.pci.items():
        below = [found.pci[child] for child in found.children.get(address, ())]
        why = _why_impossible(device, below, rates.get(address))
        if why:
            found.notes.unknown[f"pci/{address}/link"] = why
            found.notes.doubt(address, why)
            found.pci[address] = replace(device, link=PcieLink(max_width=device.link.max_width if below else None))


def _why_impossible(device: PciDevice, below: Sequence[PciDevice], rate: float | None) -> str:
    """Why the speed in the file cannot be the link's; "" where it can."""
    speed = device.link.max_speed_gt_per_s
    fastest = max((child.link.max_speed_gt_per_s or 0 for child in below), default=0)
    if speed is not None and speed <= 5 and fastest >= 16:
        return f"the file gives it {speed:g} GT/s above devices at {fastest:g} GT/s, which the ports of one switch do not do"
    if speed == 2.5 and device.link.max_width == 1 and rate and rate > 2e9:
        return f"the file gives it 2.5 GT/s x1, which integrated devices claim, for a port of {rate / 1e9:g} Gb/s"
    return ""


def _add_bare_nics(found: Found) -> None:
    """Network cards of which the file names no port."""
    ported = {nic.address for nic in found.nics.values()}
    physical = pci_parts.physical_nics(found.pci.values())
    for device in found.pci.values():
        if device.kind == "nic" and device.address not in ported:
            found.nics[device.address] = pci_parts.nic(device, physical)
            found.notes.unknown[f"nics/{device.address}/ports"] = "the file names no port of it, and so no rate"


def _mark_unions(found: Found) -> None:
    """Newer NCCL joins ports into "mlx5_0+mlx5_1"; where the ports are there as well, the union is no port of its own."""
    for name, nic in found.nics.items():
        if "+" in name and set(name.split("+")) <= set(found.nics):
            found.nics[name] = replace(nic, virtual=f"NCCL's union of {name}")
