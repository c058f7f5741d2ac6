"""What a PCI function is, by its class and ids, and what hypervisors and files make up: one table for every source that lists functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from collbench.machine.distance import NAMED_BY_A_FILE
from collbench.machine.model import Gpu, Nic, PciDevice, PciKind
from collbench.machine.readers.part_names import AMD, INTEL, MELLANOX, NVIDIA, has_verbs, part_name

Vendor = Literal["nvidia", "amd", "intel"]
VENDORS: Final[Mapping[int, Vendor]] = {NVIDIA: "nvidia", AMD: "amd", INTEL: "intel"}  # who makes GPUs that compute
MAKERS: Final[frozenset[int | None]] = frozenset(VENDORS)
MAKERS_OR_UNNAMED = MAKERS | {None}  # of a source that names no vendor where it means a GPU
ETHERNET, INFINIBAND, FABRIC = 0x0200, 0x0207, 0x0208  # class and subclass
VIRTUAL_LINK = "a virtual function's or a hypervisor's bridge's link says nothing"

_DISPLAYS = (0x0300, 0x0302, 0x0380)  # VGA, 3D controller, display controller
_ACCELERATOR, _PCI_BRIDGE, _BRIDGE_OTHER, _NETWORK = 0x1200, 0x0604, 0x0680, 0x02
_INTEGRATED = re.compile(r":00:02\.0$")  # where Intel's graphics inside the processor always sit
_QEMU, _TEXAS, _VMWARE = 0x1B36, 0x104C, 0x15AD
_EMULATED_SWITCH = (0x8232, 0x8233)  # the TI XIO3130 that QEMU imitates; the real one is Gen1 x1 and never above a GPU
# Functions that are virtual by their very id (https://pci-ids.ucw.cz): a guest does not see the physical one they belong to.
_VIRTUAL_NICS = (0x1002, 0x1004, 0x1012, 0x1014, 0x1016, 0x1018, 0x101A, 0x101C, 0x101E)


def kind_of(address: str, vendor_id: int | None, class_id: int | None, makers: frozenset[int | None] = MAKERS) -> PciKind:
    """By class (0x030200) and vendor: a server's own VGA (ASPEED, Matrox) is no GPU, nor are graphics inside an Intel processor.

    makers    the vendors whose displays are GPUs; with None among them also functions whose vendor is not named
    """
    number = (class_id or 0) >> 8
    if number == _PCI_BRIDGE:
        return "bridge"
    if number >> 8 == _NETWORK:
        return "nic"
    if vendor_id not in makers:
        return "other"
    if number == _BRIDGE_OTHER:
        return "nvswitch" if vendor_id in (NVIDIA, None) else "other"
    if number == _ACCELERATOR:
        return "gpu" if vendor_id in (AMD, None) else "other"
    inside = vendor_id == INTEL and _INTEGRATED.search(address)
    return "gpu" if number in _DISPLAYS and not inside else "other"


def is_virtual(address: str, vendor_id: int | None, device_id: int | None, class_id: int | None, name: str | None = None) -> bool:
    """A virtual function, or a bridge that a hypervisor or a cloud's file made up: what its link says means nothing."""
    if address.startswith(NAMED_BY_A_FILE) or (vendor_id == MELLANOX and device_id in _VIRTUAL_NICS):
        return True
    bridge = class_id is None or class_id >> 8 == _PCI_BRIDGE
    if bridge and (vendor_id in (_QEMU, _VMWARE) or (vendor_id == _TEXAS and device_id in _EMULATED_SWITCH)):
        return True
    return "virtual function" in (name or "").lower()


def link_doubt(device: PciDevice) -> str | None:
    """Why its link cannot be as it is told: it runs faster or wider than it can; None where it can be."""
    link = device.link
    if (link.width or 0) > (link.max_width or 32):
        return f"{device.address}: its link runs on {link.width} lanes, more than the {link.max_width} it is said to have"
    if (link.speed_gt_per_s or 0) > (link.max_speed_gt_per_s or 128):
        return (
            f"{device.address}: its link runs at {link.speed_gt_per_s:g} GT/s, more than the {link.max_speed_gt_per_s:g} it is said to do"
        )
    return None


def with_switches(devices: Sequence[PciDevice]) -> tuple[PciDevice, ...]:
    """The devices, their bridges told from ports of switches: below a bridge with bridges below it (upstream), or below such a one.

    A root port is the bridge at the root; a lone bridge to a board's VGA has no bridges below it.
    """
    above = {device.address: device.parent for device in devices if device.kind in ("bridge", "switch")}
    below = {address: parent for address, parent in above.items() if parent in above}
    upstream = {parent for parent in below.values() if parent in below}
    ports = upstream | {address for address, parent in below.items() if parent in upstream}
    return tuple(replace(device, kind="switch") if device.address in ports else device for device in devices)


def gpu(device: PciDevice, index: int | None = None, model: str | None = None, uuid: str | None = None) -> Gpu:
    """The GPU on a function."""
    vendor = VENDORS.get(device.vendor_id or 0)
    return Gpu(device.address, index, device.address, vendor, model or model_of(device), numa=device.numa, uuid=uuid)


def physical_nics(devices: Iterable[PciDevice]) -> frozenset[int | None]:
    """The vendors that have a NIC here which is no virtual function."""
    return frozenset(device.vendor_id for device in devices if device.kind == "nic" and not device.virtual)


def nic(device: PciDevice, physical: frozenset[int | None]) -> Nic:
    """The NIC on a function, named by its address. A virtual function beside physical ones of its vendor is no port of the machine."""
    return Nic(
        device.address,
        device.address,
        model_of(device),
        rdma=is_rdma_card(device),
        numa=device.numa,
        virtual="a virtual function" if device.virtual and device.vendor_id in physical else None,
    )


def is_rdma_card(device: PciDevice) -> bool:
    """Whether a network function has RDMA: InfiniBand and Omni-Path by its class, RoCE and EFA by its ids."""
    return (device.class_id or 0) >> 8 in (INFINIBAND, FABRIC) or has_verbs(device.vendor_id, device.device_id)


def model_of(device: PciDevice) -> str | None:
    """What people call a part: by its ids, else what stands in brackets at the end of its name."""
    return part_name(device.vendor_id, device.device_id) or bracketed(device.name)


def bracketed(name: str | None) -> str | None:
    """What people call a part, "A100 SXM4 80GB" of "NVIDIA Corporation GA100 [A100 SXM4 80GB]"; None without such a name."""
    match = re.search(r"\[([^\[\]]+)\]$", name or "")
    return match[1] if match else None
