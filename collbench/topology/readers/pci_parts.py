"""What a PCI function is, by its class and ids, for sources that list functions: lspci and hwloc. sysfs is read by `pci_sysfs`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from collbench.topology.model import Gpu, Nic, PciDevice, PciKind
from collbench.topology.readers.part_names import AMD, INTEL, NVIDIA, has_verbs, is_virtual_function, part_name

_DISPLAYS = (0x0300, 0x0302, 0x0380)  # VGA, 3D controller, display controller
_ACCELERATOR, _PCI_BRIDGE, _BRIDGE_OTHER, _INFINIBAND, _NETWORK = 0x1200, 0x0604, 0x0680, 0x0207, 0x02
_INTEGRATED = re.compile(r":00:02\.0$")  # where Intel's graphics inside the processor always sit
_QEMU, _TEXAS, _VMWARE = 0x1B36, 0x104C, 0x15AD
_EMULATED_SWITCH = (0x8232, 0x8233)  # the TI XIO3130 that QEMU imitates
_VENDORS: dict[int, Literal["nvidia", "amd", "intel"]] = {NVIDIA: "nvidia", AMD: "amd", INTEL: "intel"}


def kind_of(address: str, vendor_id: int | None, class_id: int | None) -> PciKind:
    """By class (0x030200) and vendor: a server's own VGA (ASPEED, Matrox) is no GPU, nor are graphics inside an Intel processor."""
    number = (class_id or 0) >> 8
    if number == _PCI_BRIDGE:
        return "bridge"
    if vendor_id == NVIDIA and number == _BRIDGE_OTHER:
        return "nvswitch"
    if number >> 8 == _NETWORK:
        return "nic"
    if number in _DISPLAYS and vendor_id in _VENDORS:
        return "other" if vendor_id == INTEL and _INTEGRATED.search(address) else "gpu"
    return "gpu" if number == _ACCELERATOR and vendor_id == AMD else "other"


def is_virtual(kind: PciKind, vendor_id: int | None, device_id: int | None, name: str | None) -> bool:
    """A virtual function, or a bridge that a hypervisor made up: what its link says means nothing."""
    if kind == "bridge":
        return vendor_id in (_QEMU, _VMWARE) or (vendor_id == _TEXAS and device_id in _EMULATED_SWITCH)
    return is_virtual_function(vendor_id, device_id) or "virtual function" in (name or "").lower()


def with_switches(devices: Sequence[PciDevice]) -> tuple[PciDevice, ...]:
    """The devices, their bridges told from ports of switches: below a bridge with bridges below it (upstream), or below such a one."""
    above = {device.address: device.parent for device in devices if device.kind in ("bridge", "switch")}
    below = {address: parent for address, parent in above.items() if parent in above}
    upstream = {parent for parent in below.values() if parent in below}
    ports = upstream | {address for address, parent in below.items() if parent in upstream}
    return tuple(replace(device, kind="switch") if device.address in ports else device for device in devices)


def gpu(device: PciDevice, index: int | None = None, model: str | None = None, uuid: str | None = None) -> Gpu:
    """The GPU on a function."""
    called = model or part_name(device.vendor_id, device.device_id) or bracketed(device.name)
    vendor = _VENDORS.get(device.vendor_id or 0)
    return Gpu(device.address, index, device.address, vendor, called, numa=device.numa, uuid=uuid)


def physical_nics(devices: Iterable[PciDevice]) -> frozenset[int | None]:
    """The vendors that have a NIC here which is no virtual function."""
    return frozenset(device.vendor_id for device in devices if device.kind == "nic" and not device.virtual)


def nic(device: PciDevice, physical: frozenset[int | None]) -> Nic:
    """The NIC on a function, named by its address. A virtual function beside physical ones of its vendor is no port of the machine."""
    return Nic(
        device.address,
        device.address,
        bracketed(device.name) or part_name(device.vendor_id, device.device_id),
        rdma=(device.class_id or 0) >> 8 == _INFINIBAND or has_verbs(device.vendor_id, device.device_id),
        numa=device.numa,
        virtual="a virtual function" if device.virtual and device.vendor_id in physical else None,
    )


def bracketed(name: str | None) -> str | None:
    """What people call a part, "A100 SXM4 80GB" of "NVIDIA Corporation GA100 [A100 SXM4 80GB]"; None without such a name."""
    match = re.search(r"\[([^\[\]]+)\]$", name or "")
    return match[1] if match else None
