"""PCI functions out of /sys/bus/pci/devices: what each is, the bridge above it, its link, its NUMA node.

A handful of reads per function whatever the machine's size. Nothing here needs root: the config space is not read, so `acs` stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from collbench.machine.files import Files
from collbench.machine.model import PciDevice, PcieLink
from collbench.machine.readers.doubts import few
from collbench.machine.readers.pci_parts import VIRTUAL_LINK, is_virtual, kind_of, link_doubt, with_switches
from collbench.machine.readers.text import gigatransfers, lanes, numa_of, pci_address, printable, whole

KIND = "Linux sysfs PCI"
DEVICES = "/sys/bus/pci/devices"
_BRIDGES = 0x06  # base class of every bridge
_SPEED = re.compile(r"\d{1,3}(?:\.\d)? ?GT/s")  # as the kernel prints it, and no part of a longer number


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
    devices = with_switches([replace(device, parent=above[device.address] or None) for device in seen.values()])
    lost = {f"pci/{address}/parent": "the tree does not show what it hangs from" for address, parent in above.items() if parent is None}
    lost |= {f"pci/{device.address}/link": VIRTUAL_LINK for device in devices if device.virtual and device.kind != "other"}
    impossible = [doubt for device in devices if (doubt := link_doubt(device))]
    return Found(devices, lost, (*few(doubts), *few(impossible)))


def _order(address: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in re.split("[:.]", address))


def _device(files: Files, address: str, folder: str, doubts: list[str]) -> PciDevice:
    """One function, `parent` as its path says, not yet looked at."""
    names = frozenset(files.names(folder))
    event = _pairs(files.text(f"{folder}/uevent")) if "uevent" in names else {}
    vendor, device_id, class_id = _ids(files, folder, event)
    kind = kind_of(address, vendor, class_id)
    virtual = "physfn" in names or is_virtual(address, vendor, device_id, class_id)
    return PciDevice(
        address, kind, _path_parent(files, address, folder, doubts), vendor, device_id, class_id,
        numa=numa_of(files.text(f"{folder}/numa_node")) if "numa_node" in names else None,
        link=PcieLink() if virtual else _link(files, folder, names),
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


def _link(files: Files, folder: str, names: frozenset[str]) -> PcieLink:
    def text(name: str) -> str:
        return (files.text(f"{folder}/{name}") or "") if name in names else ""

    speeds = [gigatransfers(said) if _SPEED.match(said := text(f"{which}_link_speed")) else None for which in ("current", "max")]
    widths = [lanes(text(f"{which}_link_width")) for which in ("current", "max")]
    return PcieLink(speeds[0], widths[0], speeds[1], widths[1])


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
