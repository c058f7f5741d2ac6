"""PCI functions out of /sys/bus/pci/devices: what each is, the bridge above it, its link, its NUMA node.

A handful of reads per function whatever the machine's size. Nothing here needs root: the config space is not read, so `acs` stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from collbench.topology.files import Files
from collbench.topology.model import PciDevice, PcieLink, PciKind
from collbench.topology.text import gigatransfers, lanes, numa_of, pci_address, printable, whole

KIND = "Linux sysfs PCI"
DEVICES = "/sys/bus/pci/devices"
NVIDIA, AMD, INTEL = 0x10DE, 0x1002, 0x8086
_MELLANOX, _QEMU, _TEXAS = 0x15B3, 0x1B36, 0x104C

_BRIDGES = 0x06  # base class of every bridge
_PCI_BRIDGE, _BRIDGE_OTHER, _ACCELERATOR = 0x0604, 0x0680, 0x1200
_DISPLAYS = (0x0300, 0x0302, 0x0380)  # VGA, 3D controller, display controller
_NICS = (0x0200, 0x0207, 0x0280)  # Ethernet, InfiniBand, other (Mellanox sometimes, EFA's successors)
_SPEED = re.compile(r"\d{1,3}(?:\.\d)? ?GT/s")  # as the kernel prints it, and no part of a longer number
_INTEGRATED = re.compile(r":00:02\.0$")  # where Intel's graphics inside the processor always sit

# Functions that are virtual by their very id (https://pci-ids.ucw.cz): a guest does not see the physical one they belong to.
_VIRTUAL_NICS = (0x1002, 0x1004, 0x1012, 0x1014, 0x1016, 0x1018, 0x101A, 0x101C, 0x101E)
_EMULATED_SWITCH = (0x8232, 0x8233)  # the TI XIO3130 that QEMU imitates


@dataclass(frozen=True, slots=True)
class Found:
    """PCI functions in the order of their addresses; why facts of them are unknown, and sentences about what cannot be relied on."""

    devices: tuple[PciDevice, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


def read(files: Files) -> Found:
    """Every function listed in /sys/bus/pci/devices; never raises. Links and parents that cannot be true are left out, with a doubt."""
    names = {address: name for name in reversed(files.names(DEVICES)) if (address := pci_address(name))}
    if not names:
        return Found(unknown={"pci": f"{DEVICES} lists nothing: no PCI bus, or it was not copied"})
    doubts: list[str] = []
    seen = {address: _device(files, address, f"{DEVICES}/{names[address]}", doubts) for address in sorted(names, key=_order)}
    above = {device.address: _parent(device, seen, doubts) for device in seen.values()}
    switches = _switch_ports(seen, above)
    devices = tuple(
        replace(device, parent=above[device.address] or None, kind="switch" if device.address in switches else device.kind)
        for device in seen.values()
    )
    lost = {f"pci/{address}/parent": "the tree does not show what it hangs from" for address, parent in above.items() if parent is None}
    return Found(devices, lost, tuple(doubts))


def _order(address: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in re.split("[:.]", address))


def _device(files: Files, address: str, folder: str, doubts: list[str]) -> PciDevice:
    """One function, `parent` as its path says, not yet looked at."""
    names = frozenset(files.names(folder))
    event = _pairs(files.text(f"{folder}/uevent")) if "uevent" in names else {}
    vendor, device_id, class_id = _ids(files, folder, event)
    kind = _kind(address, vendor, class_id)
    virtual = "physfn" in names or (vendor == _MELLANOX and kind == "nic" and device_id in _VIRTUAL_NICS)
    link = _link(files, folder, names)
    virtual = virtual or _made_up(kind, vendor, device_id, link)
    if not virtual and (link.width or 0) > (link.max_width or 32):
        doubts.append(f"{address}: its link runs on {link.width} lanes, more than the {link.max_width} it is said to have")
    return PciDevice(
        address, kind, _path_parent(files, address, folder, doubts), vendor, device_id, class_id,
        numa=numa_of(files.text(f"{folder}/numa_node")) if "numa_node" in names else None,
        link=PcieLink() if virtual else link,
        driver=event.get("DRIVER") or _driver(files, folder, names), virtual=virtual,
    )  # fmt: skip


def _pairs(text: str | None) -> dict[str, str]:
    lines = (line.partition("=") for line in (text or "").splitlines())
    return {name: printable(value) for name, equals, value in lines if equals}


def _ids(files: Files, folder: str, event: Mapping[str, str]) -> tuple[int | None, int | None, int | None]:
    """Vendor, device and class: of uevent, which has all in one read, else of their own files."""
    vendor, _, device = event.get("PCI_ID", "").partition(":")

    def number(name: str, text: str) -> int | None:
        return whole(f"0x{text}" if text else files.text(f"{folder}/{name}"), 0, 0xFFFFFF)

    return number("vendor", vendor), number("device", device), number("class", event.get("PCI_CLASS", ""))


def _kind(address: str, vendor: int | None, class_id: int | None) -> PciKind:
    """What a function is, of its class (class, subclass, interface: 0x030200) and vendor. Switch ports are told from bridges later."""
    if class_id is None:
        return "other"
    subclass = class_id >> 8
    if subclass == _PCI_BRIDGE:
        return "bridge"
    if vendor == NVIDIA and subclass == _BRIDGE_OTHER:
        return "nvswitch"
    if subclass in _NICS:
        return "nic"
    return "gpu" if _is_gpu(address, vendor, subclass) else "other"


def _is_gpu(address: str, vendor: int | None, subclass: int) -> bool:
    """Displays of the three makers of compute GPUs: not a board's own VGA (ASPEED, Matrox), not graphics inside an Intel processor."""
    if vendor == INTEL:
        return subclass == 0x0380 or (subclass in _DISPLAYS and not _INTEGRATED.search(address))
    if vendor == AMD and subclass == _ACCELERATOR:
        return True
    return vendor in (NVIDIA, AMD) and subclass in _DISPLAYS


def _link(files: Files, folder: str, names: frozenset[str]) -> PcieLink:
    def text(name: str) -> str:
        return (files.text(f"{folder}/{name}") or "") if name in names else ""

    speeds = [gigatransfers(said) if _SPEED.match(said := text(f"{which}_link_speed")) else None for which in ("current", "max")]
    widths = [lanes(text(f"{which}_link_width")) for which in ("current", "max")]
    return PcieLink(speeds[0], widths[0], speeds[1], widths[1])


def _made_up(kind: PciKind, vendor: int | None, device_id: int | None, link: PcieLink) -> bool:
    """A hypervisor's bridge: QEMU's own ids, or the TI switch it imitates (the real one is as slow, and never above a GPU)."""
    if kind != "bridge":
        return False
    slow = (link.max_speed_gt_per_s or 2.5) <= 2.5 and (link.max_width or 1) <= 1
    return vendor == _QEMU or (vendor == _TEXAS and device_id in _EMULATED_SWITCH and slow)


def _driver(files: Files, folder: str, names: frozenset[str]) -> str | None:
    found = files.real(f"{folder}/driver") if "driver" in names else None
    return printable(found.rpartition("/")[2]) if found else None


def _path_parent(files: Files, address: str, folder: str, doubts: list[str]) -> str | None:
    """The address before the last one in /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0; "" where the path tells that it is a root's."""
    parts = (files.real(folder) or folder).split("/")
    if "devices" not in parts[:3]:
        return None
    if pci_address(parts[-1]) != address:
        doubts.append(f"{address}: its entry leads to {printable(parts[-1])}: where it is in the PCI tree is unknown")
        return None
    return pci_address(parts[-2]) or ""


def _parent(device: PciDevice, seen: Mapping[str, PciDevice], doubts: list[str]) -> str | None:
    """The bridge above, checked; "" at a root, None when unknown."""
    if not device.parent:
        return device.parent
    why = _impossible(device, device.parent, seen.get(device.parent))
    if why is None:
        return device.parent
    doubts.append(f"{device.address}: its path leads through {device.parent}, {why}: its parent is unknown")
    return None


def _impossible(device: PciDevice, address: str, parent: PciDevice | None) -> str | None:
    """Why that cannot be the parent. Buses are numbered downwards, so every circle of parents has a link that goes up."""
    if parent is None:
        return "which is not listed"
    if parent.class_id is not None and parent.class_id >> 16 != _BRIDGES:
        return "which is no bridge"
    below, above = _order(device.address), _order(address)
    return None if below[0] == above[0] and below[1] > above[1] else "whose bus does not come before its own"


def _switch_ports(seen: Mapping[str, PciDevice], above: Mapping[str, str | None]) -> frozenset[str]:
    """Bridges that are ports of a PCIe switch: an upstream port (below a bridge, with bridges below it) and its downstream ports.

    A root port is the bridge at the root; a lone bridge to a board's VGA has no bridges below it.
    """
    bridges = {device.address for device in seen.values() if device.kind == "bridge"}
    below = {address: parent for address in bridges if (parent := above[address]) in bridges}
    upstream = {parent for parent in below.values() if parent in below}
    return frozenset(upstream | {address for address, parent in below.items() if parent in upstream})
