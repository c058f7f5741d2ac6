"""Classification of PCI functions by class and ids, with emulated and virtual ones; shared by all sources that list functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from msgspec.structs import replace

from collbench.machine.model import Gpu, Nic, PciDevice, PcieLink, PciKind
from collbench.machine.readers.text import printable, whole

# Names of GPUs and adapters by their PCI ids (pci_names.toml), for sources without names, and what the names imply.

NVIDIA, AMD, INTEL, MELLANOX, AMAZON = 0x10DE, 0x1002, 0x8086, 0x15B3, 0x1D0F
# Modules that are soldered or socketed together with their links. Cards in slots have links only over a bridge.
_MODULES = re.compile(
    r"SXM|\bH100 \d\dGB HBM3\b|\b(?:H20|H200|H800|B[123]00|G[BH][123]00)\b(?! NVL| PCIe)|\bMI(?:250X?|3\d\d(?!P)[AX]?)\b|\bHGX\b"
)
_OF_MODULES = frozenset({"sm_70", "sm_80", "sm_90", "sm_100", "sm_103", "gfx942", "gfx950"})  # some of them are also cards
_FEWEST = 4  # GPUs of a server with only the architecture known
_WITH_CPU = re.compile(r"\bG[BH](?:[123]00|10)\b")


def part_name(vendor_id: int | None, device_id: int | None) -> str | None:
    """Return the product name of a part: "H200", "ConnectX-7". None for unknown ids."""
    return None if vendor_id is None or device_id is None else _names().get(f"{vendor_id:04x}", {}).get(f"{device_id:04x}")


@cache
def _names() -> dict[str, dict[str, str]]:
    import tomllib

    return tomllib.loads(Path(__file__).with_name("pci_names.toml").read_text(encoding="utf-8"))


def adapter_name(type_name: str | None) -> str | None:
    """Return "ConnectX-7" for "MT4129", Mellanox's type name with the PCI device id as digits. Other names stay."""
    text = printable(type_name or "", 60)
    return part_name(MELLANOX, whole(text[2:], 0, 0xFFFF) if text.startswith("MT") else None) or text or None


def has_built_in_links(gpu: Gpu, gpus: int) -> bool:
    """Return whether a GPU, one of `gpus`, is of a kind with built-in NVLink or xGMI: a report of no links is then rejected."""
    if gpu.model:
        return bool(_MODULES.search(gpu.model))
    return gpu.architecture in _OF_MODULES and gpus >= _FEWEST


# Cards whose NVLinks lead over a bridge to one other card: https://www.nvidia.com/en-us/design-visualization/nvlink-bridges/ (Quadro, RTX),
# https://www.nvidia.com/en-us/data-center/a40/, https://www.nvidia.com/en-us/data-center/h100/ (NVL). H200 NVL also has bridges of four.
_BRIDGED = re.compile(r"PCI[eE]|\bH100 NVL\b|\bA[34]0\b|\bRTX\b|\bQuadro\b")


def is_bridged(model: str | None) -> bool:
    """Return whether a GPU is a card of which NVLinks, if any, lead to one other card."""
    return bool(_BRIDGED.search(model or ""))


def is_with_cpu(model: str | None) -> bool:
    """Return whether a GPU is on a module with its CPU (GH200, GB200, GB300, GB10): NVLink-C2C joins them, not PCIe."""
    return bool(_WITH_CPU.search(model or ""))


Vendor = Literal["nvidia", "amd", "intel"]
VENDORS: Final[Mapping[int, Vendor]] = {NVIDIA: "nvidia", AMD: "amd", INTEL: "intel"}  # makers of GPUs for computing
MAKERS: Final[frozenset[int | None]] = frozenset(VENDORS)
MAKERS_OR_UNNAMED = MAKERS | {None}  # for a source that does not name the vendor of a GPU
ETHERNET, INFINIBAND, FABRIC = 0x0200, 0x0207, 0x0208  # class and subclass
VIRTUAL_LINK = "the link of a virtual function, or of a hypervisor's bridge, means nothing"

_DISPLAYS = (0x0300, 0x0302, 0x0380)  # VGA, 3D controller, display controller
_ACCELERATOR, _PCI_BRIDGE, _BRIDGE_OTHER, _NETWORK = 0x1200, 0x0604, 0x0680, 0x02
_INTEGRATED = re.compile(r":00:02\.0$")  # the address of Intel's graphics inside the processor
_QEMU, _TEXAS, _VMWARE = 0x1B36, 0x104C, 0x15AD
_EMULATED_SWITCH = (0x8232, 0x8233)  # the TI XIO3130, which QEMU emulates; the real one is Gen1 x1 and never above a GPU
# Functions with the id of a virtual function (https://pci-ids.ucw.cz): a guest does not see the physical one.
_VIRTUAL_NICS = (0x1002, 0x1004, 0x1012, 0x1014, 0x1016, 0x1018, 0x101A, 0x101C, 0x101E)


def kind_of(address: str, vendor_id: int | None, class_id: int | None, makers: frozenset[int | None] = MAKERS) -> PciKind:
    """Return the kind by class (0x030200) and vendor. A server's VGA (ASPEED, Matrox) and graphics inside an Intel processor are not GPUs.

    makers    the vendors of displays that are GPUs; with None among them also functions without a vendor
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
    """Return whether it is a virtual function, or a bridge that a hypervisor or a cloud's file invents: its link is meaningless."""
    if address.startswith(NAMED_BY_A_FILE) or (vendor_id == MELLANOX and device_id in _VIRTUAL_NICS):
        return True
    bridge = class_id is None or class_id >> 8 == _PCI_BRIDGE
    if bridge and (vendor_id in (_QEMU, _VMWARE) or (vendor_id == _TEXAS and device_id in _EMULATED_SWITCH)):
        return True
    return "virtual function" in (name or "").lower()


def function(
    address: str, vendor_id: int | None, device_id: int | None, class_id: int | None, link: PcieLink, *,
    makers: frozenset[int | None] = MAKERS, virtual: bool = False, name: str | None = None, **facts: Any,
) -> PciDevice:  # fmt: skip
    """Return a PCI function with its kind, and without the link of a virtual one. makers: as of `kind_of`; facts: of `PciDevice`."""
    virtual = virtual or is_virtual(address, vendor_id, device_id, class_id, name)
    return PciDevice(
        address, facts.pop("kind", None) or kind_of(address, vendor_id, class_id, makers), vendor_id=vendor_id, device_id=device_id,
        class_id=class_id, name=name, link=PcieLink() if virtual else link, virtual=virtual, **facts,
    )  # fmt: skip


def link_doubt(device: PciDevice) -> str | None:
    """Return why the reported link is impossible (faster or wider than its maximum); None if it is possible."""
    link = device.link
    if (link.width or 0) > (link.max_width or 32):
        return f"{device.address}: its link runs on {link.width} lanes, more than its maximum of {link.max_width}"
    if (link.speed_gt_per_s or 0) > (link.max_speed_gt_per_s or 128):
        return f"{device.address}: its link runs at {link.speed_gt_per_s:g} GT/s, more than its maximum of {link.max_speed_gt_per_s:g}"
    return None


def with_switches(devices: Sequence[PciDevice]) -> tuple[PciDevice, ...]:
    """Return the devices with switch ports marked: a bridge with bridges below it (upstream), and bridges below such a one.

    A root port is the bridge at the root. A lone bridge to a board's VGA has no bridges below it.
    """
    above = {device.address: device.parent for device in devices if device.kind in ("bridge", "switch")}
    below = {address: parent for address, parent in above.items() if parent in above}
    upstream = {parent for parent in below.values() if parent in below}
    ports = upstream | {address for address, parent in below.items() if parent in upstream}
    return tuple(replace(device, kind="switch") if device.address in ports else device for device in devices)


def gpu(device: PciDevice, index: int | None = None, model: str | None = None, uuid: str | None = None) -> Gpu:
    """Return the GPU on a function."""
    vendor = VENDORS.get(device.vendor_id or 0)
    return Gpu(device.address, index, device.address, vendor, model or model_of(device), numa=device.numa, uuid=uuid)


def physical_nics(devices: Iterable[PciDevice]) -> frozenset[int | None]:
    """Return the vendors with a NIC here that is not a virtual function."""
    return frozenset(device.vendor_id for device in devices if device.kind == "nic" and not device.virtual)


def nic(device: PciDevice, physical: frozenset[int | None]) -> Nic:
    """Return the NIC on a function, named by its address. Virtual functions of a vendor with physical ones are not ports of the machine."""
    return Nic(
        device.address,
        device.address,
        model_of(device),
        rdma=is_rdma_card(device),
        numa=device.numa,
        virtual="a virtual function" if device.virtual and device.vendor_id in physical else None,
    )


def card_of(address: str) -> str:
    """Return the card of a PCI function: "0000:19:00" of "0000:19:00.0"."""
    return address.rpartition(".")[0]


def is_rdma_card(device: PciDevice) -> bool:
    """Return whether a network function supports RDMA: InfiniBand and Omni-Path by its class, RoCE (Mellanox) and EFA by its ids."""
    is_efa = device.vendor_id == AMAZON and (device.device_id or 0) >> 4 == 0xEFA
    return (device.class_id or 0) >> 8 in (INFINIBAND, FABRIC) or device.vendor_id == MELLANOX or is_efa


# Slingshot's NICs (HPE Cassini) by vendor and device, as in drivers/net/ethernet/hpe/ss1/cass_core.h of
# https://github.com/HewlettPackard/shs-cxi-driver. Linux shows them as Ethernet; libraries send over libfabric (provider cxi), not TCP.
_SLINGSHOT = ((0x17DB, 0x0501), (0x1590, 0x0371))


def is_slingshot(device: PciDevice | None) -> bool:
    """Return whether a network function is of Slingshot: Ethernet without verbs, over which libraries use RDMA on all ports at once."""
    return device is not None and (device.vendor_id, device.device_id) in _SLINGSHOT


def model_of(device: PciDevice) -> str | None:
    """Return the product name of a part: by its ids, else the text in brackets at the end of its name."""
    return part_name(device.vendor_id, device.device_id) or bracketed(device.name)


def bracketed(name: str | None) -> str | None:
    """Return "A100 SXM4 80GB" for "NVIDIA Corporation GA100 [A100 SXM4 80GB]"; None without brackets."""
    match = re.search(r"\[([^\[\]]+)\]$", name or "")
    return match[1] if match else None


# the addresses of switches in the topology files of clouds: not of real bridges, but in the right place
NAMED_BY_A_FILE: Final = "ffff:ff:"
