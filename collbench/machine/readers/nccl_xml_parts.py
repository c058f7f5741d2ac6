"""What one element of NCCL's topology XML says: a PCI function, a GPU, its links, a port.

NCCL writes the attributes in src/graph/xml.cc and reads them in src/graph/topo.cc (https://github.com/NVIDIA/nccl).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from collbench.machine.model import SWITCH, Gpu, GpuLink, LinkKind, Nic, PciDevice, PcieLink, Port
from collbench.machine.readers import pci_parts
from collbench.machine.readers.doubts import several
from collbench.machine.readers.infiniband_rate import LANES
from collbench.machine.readers.part_names import INTEL, MELLANOX, part_name
from collbench.machine.readers.rdma_words import guid as guid_of
from collbench.machine.readers.text import Unreadable, gigatransfers, lanes, pci_address, printable, whole

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_LINKS: dict[str, LinkKind] = {"nvlink": "nvlink", "xgmi": "xgmi"}
_MADE_UP_NETS = re.compile(r"^(veth|docker|br-|virbr|tap|tun|cali|cni|flannel|vxlan|dummy|scif)|^lo$")
_MOST_C2C_MEGABYTES = 1_000_000
_MOST_MEGABITS = 3_200_000  # eight lanes at 400 Gb/s: twice the fastest port that is sold
_RATES = {1000, 2500, 5000, 10000, 20000, 25000, 40000, 50000, 56000, 100000, 200000, 400000, 800000}  # Mb/s
# InfiniBand's data rate where it is less than what is printed: 8b10b up to QDR, and FDR (see infiniband_rate).
_INFINIBAND_DATA = {round(lane.printed * 4 / 1e6): lane.data * 4 for lane in (LANES["DDR"], LANES["QDR"], LANES["FDR"])}


@dataclass
class Notes:
    """What could not be known, by fact path, and what should not be relied on."""

    unknown: dict[str, str] = field(default_factory=dict)
    _doubts: dict[str, list[str]] = field(default_factory=dict)

    def doubt(self, part: str, why: str) -> None:
        """Say why what the file says of a part should not be relied on."""
        self._doubts.setdefault(why, []).append(part)

    def doubts(self) -> list[str]:
        """A sentence for each reason, with the parts that it holds for."""
        return [f"{several(parts)}: {why}" for why, parts in self._doubts.items()]


def pci_device(element: Element, parent: str | None, numa: int | None) -> PciDevice:
    """A <pci> element, its kind by its PCI class. NCCL writes what a link could do at most at both ends: speeds of now are None.

    Raises Unreadable for one without an address.
    """
    address = pci_address(element.get("busid", ""))
    if not address:
        raise Unreadable(f"a <pci> element has the busid '{printable(element.get('busid', ''), 40)}', which is no PCI address")
    vendor, device = (whole(element.get(name), 0, 0xFFFE) for name in ("vendor", "device"))
    class_id = whole(element.get("class"), 0, 0xFFFFFF)
    virtual = pci_parts.is_virtual(address, vendor, device, class_id)
    return PciDevice(
        address=address,
        kind=pci_parts.kind_of(address, vendor, class_id, pci_parts.MAKERS_OR_UNNAMED),
        parent=parent,
        vendor_id=vendor,
        device_id=device,
        class_id=class_id,
        name=part_name(vendor, device),
        numa=numa,
        link=PcieLink() if virtual else _link(element),
        virtual=virtual,
    )


def _link(element: Element) -> PcieLink:
    return PcieLink(max_speed_gt_per_s=gigatransfers(element.get("link_speed", "")), max_width=lanes(element.get("link_width", "")))


def gpu(element: Element | None, device: PciDevice) -> Gpu:
    """A <gpu> element, or none, on its PCI function. NVIDIA's sm is the compute capability, AMD's counts compute units."""
    attributes = element.attrib if element is not None else {}
    gcn = attributes.get("gcn")
    sm = whole(attributes.get("sm"), 10, 999)
    found = pci_parts.gpu(device, whole(attributes.get("dev"), 0, 4095))
    vendor = found.vendor or ("amd" if gcn else "nvidia" if sm else None)
    nvidia = f"sm_{sm}" if sm and vendor == "nvidia" else None
    links, rate = _c2c(element.find("c2c") if element is not None else None)
    return replace(
        found, cpu_links=cpu_links(element), vendor=vendor, architecture=_gfx(gcn) if gcn else nvidia, c2c_links=links, c2c_bytes_per_s=rate
    )


def _c2c(element: Element | None) -> tuple[int | None, float | None]:
    """Number of a GPU's links to its CPU, and bytes/s of one of them (ncclTopoAddC2c in src/graph/topo.cc: MB/s times count)."""
    if element is None:
        return None, None
    megabytes = whole(element.get("bw"), 1, _MOST_C2C_MEGABYTES)
    return whole(element.get("count"), 1, 1000), megabytes * 1e6 if megabytes else None


def _gfx(gcn: str) -> str | None:
    """ "gfx942" of "gfx942", "gfx906" of "906"; 910 is how old releases numbered gfx90a."""
    match = re.fullmatch(r"(?:gfx)?([0-9a-f]{3,5})", gcn.strip().lower())
    return f"gfx{'90a' if match[1] == '910' else match[1]}" if match else None


def gpu_links(element: Element, key: str, known: set[str], notes: Notes) -> list[GpuLink]:
    """The <nvlink> and <xgmi> elements of a GPU, summed by far end. Links to CPUs (class 0x068001) are no links between GPUs."""
    counts: dict[tuple[str | None, LinkKind], int] = {}
    for link in element:
        kind, count = _LINKS.get(link.tag), whole(link.get("count"), 1, 1000)
        if kind is None or _is_processor(link):
            continue
        if count is None:
            notes.doubt(f"GPU {key}", f"the count of one of its links is '{printable(link.get('count', ''), 40)}', which was left out")
            continue
        end = _far_end(link, key, known, notes)
        counts[end, kind] = counts.get((end, kind), 0) + count
    return [GpuLink(key, end, count, kind) for (end, kind), count in counts.items()]


def cpu_links(element: Element | None) -> int | None:
    """How many <nvlink>s of a GPU lead to a processor; None where none is listed."""
    links = [link for link in element if link.tag == "nvlink" and _is_processor(link)] if element is not None else []
    return sum(whole(link.get("count"), 1, 1000) or 0 for link in links) or None


def _is_processor(link: Element) -> bool:
    return link.get("tclass", "").lower() == "0x068001"


def _far_end(link: Element, key: str, known: set[str], notes: Notes) -> str | None:
    if is_nvswitch(link):
        return SWITCH
    target = pci_address(link.get("target", ""))
    if target == key:
        notes.doubt(f"GPU {key}", f"its {link.tag} leads to itself in the file, and only the count was taken")
    elif target not in known:
        notes.doubt(f"GPU {key}", f"its {link.tag} leads to {target or 'no address'}, no GPU of the file, and only the count was taken")
    return target if target in known and target != key else None


def is_nvswitch(link: Element) -> bool:
    """The far end is an NVSwitch; where a virtual machine hides it, NCCL writes this class with the target fffffff:ffff:ff."""
    return link.get("tclass", "").lower() == "0x068000"


def nic(element: Element, device: PciDevice | None, numa: int | None, notes: Notes) -> Nic:
    """A <net> element: one port. On a PCI function or, a virtual network or one that NCCL found no function for, on none.

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
        guid=_guid(element.get("guid", ""), device) if rdma else None,
    )


def _port(element: Element, name: str, device: PciDevice | None, virtual: str | None, notes: Notes) -> Port:
    number = whole(element.get("port"), 1, 255) or 1
    speed = printable(element.get("speed", ""), 40)
    infiniband = ((device.class_id if device else None) or 0) >> 8 == pci_parts.INFINIBAND
    ethernet = device is not None and (device.class_id or 0) >> 8 == pci_parts.ETHERNET and device.vendor_id in {MELLANOX, INTEL}
    rate, why = (None, f"the speed of a {virtual} is made up") if virtual else _rate(speed, infiniband)
    if rate is None:
        notes.unknown[f"nics/{name}/ports/{number}/rate_bits_per_s"] = why
    elif why:
        notes.doubt(f"{name} port {number}", why)
    layer: Literal["infiniband", "ethernet"] | None = "infiniband" if infiniband else "ethernet" if ethernet else None
    return Port(number=number, rate_bits_per_s=rate, rate_text=f"{speed} Mb/s" if speed else None, link_layer=layer)


def _rate(speed: str, infiniband: bool) -> tuple[float | None, str]:
    """Data bits/s of NCCL's speed in Mb/s, and why it is None or doubtful ("" for neither)."""
    megabits = whole(speed, 1, _MOST_MEGABITS)
    if megabits is None:
        return None, f"the file gives the speed as '{speed}' Mb/s, which no port has"
    if megabits == 10000:
        return (None if infiniband else 10e9), "10000 Mb/s is also what NCCL writes for a speed that it could not read"
    if infiniband and megabits == 40000:
        return 32e9, "40000 Mb/s was taken as QDR, 32 Gb/s of data; FDR10 would carry 40"
    unusual = f"{megabits} Mb/s is no speed that ports have: set by hand, or several ports in one"
    return (_INFINIBAND_DATA.get(megabits, megabits * 1e6) if infiniband else megabits * 1e6), "" if megabits in _RATES else unusual


def _guid(text: str, device: PciDevice | None) -> str | None:
    """ "58a2:e103:00b1:7ca8" of 0xa87cb10003e1a258.

    NCCL prints the number with its bytes in memory order; other releases turn it first. Mellanox's fourth byte is 03, which tells.
    """
    value = whole(text, 1, (1 << 64) - 1)
    if value is None or value < 1 << 32:
        return None
    data = value.to_bytes(8)
    mellanox = device is None or device.vendor_id in {None, MELLANOX}
    if mellanox and data[4] == 3 and data[3] != 3:
        data = data[::-1]
    return guid_of(data.hex())
