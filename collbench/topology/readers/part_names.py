"""Names of GPUs and adapters by their PCI ids, for sources that give ids alone (https://pci-ids.ucw.cz/)."""

from __future__ import annotations

from collbench.topology.text import printable, whole

NVIDIA, AMD, INTEL, MELLANOX, AMAZON = 0x10DE, 0x1002, 0x8086, 0x15B3, 0x1D0F

_NAMES = {
    (NVIDIA, 0x15F8): "P100 PCIe 16GB",
    (NVIDIA, 0x15F9): "P100-SXM2-16GB",
    (NVIDIA, 0x1DB1): "V100-SXM2-16GB",
    (NVIDIA, 0x1DB4): "V100 PCIe 16GB",
    (NVIDIA, 0x1DB5): "V100-SXM2-32GB",
    (NVIDIA, 0x1DB6): "V100 PCIe 32GB",
    (NVIDIA, 0x1EB8): "T4",
    (NVIDIA, 0x20B0): "A100-SXM4-40GB",
    (NVIDIA, 0x20B2): "A100-SXM4-80GB",
    (NVIDIA, 0x20B5): "A100 80GB PCIe",
    (NVIDIA, 0x20B7): "A30 PCIe",
    (NVIDIA, 0x20F1): "A100 40GB PCIe",
    (NVIDIA, 0x20F3): "A800-SXM4-80GB",
    (NVIDIA, 0x2235): "A40",
    (NVIDIA, 0x2236): "A10",
    (NVIDIA, 0x2322): "H800 PCIe",
    (NVIDIA, 0x2324): "H800",
    (NVIDIA, 0x2330): "H100 SXM5 80GB",
    (NVIDIA, 0x2331): "H100 PCIe",
    (NVIDIA, 0x2335): "H200",
    (NVIDIA, 0x26B5): "L40",
    (NVIDIA, 0x27B8): "L4",
    (AMD, 0x738C): "MI100",
    (AMD, 0x7408): "MI250X",
    (AMD, 0x740C): "MI250X or MI250",
    (AMD, 0x740F): "MI210",
    (AMD, 0x74A1): "MI300X",
    (MELLANOX, 0x1003): "ConnectX-3",
    (MELLANOX, 0x1007): "ConnectX-3 Pro",
    (MELLANOX, 0x1011): "Connect-IB",
    (MELLANOX, 0x1013): "ConnectX-4",
    (MELLANOX, 0x1015): "ConnectX-4 Lx",
    (MELLANOX, 0x1017): "ConnectX-5",
    (MELLANOX, 0x1019): "ConnectX-5 Ex",
    (MELLANOX, 0x101B): "ConnectX-6",
    (MELLANOX, 0x101D): "ConnectX-6 Dx",
    (MELLANOX, 0x101F): "ConnectX-6 Lx",
    (MELLANOX, 0x1021): "ConnectX-7",
    (MELLANOX, 0x1023): "ConnectX-8",
    (MELLANOX, 0xA2D2): "BlueField",
    (MELLANOX, 0xA2D6): "BlueField-2",
    (MELLANOX, 0xA2DC): "BlueField-3",
    (AMAZON, 0xEFA0): "Elastic Fabric Adapter",
    (AMAZON, 0xEFA1): "Elastic Fabric Adapter",
    (AMAZON, 0xEFA2): "Elastic Fabric Adapter",
}


def part_name(vendor_id: int | None, device_id: int | None) -> str | None:
    """What people call a part: "H200", "ConnectX-7". None for ids that are not in the list."""
    return _NAMES.get((vendor_id, device_id)) if vendor_id is not None and device_id is not None else None


def adapter_name(type_name: str | None) -> str | None:
    """ "ConnectX-7" of "MT4129", as Mellanox's driver names the type: its digits are the PCI device id. Other names as they are."""
    text = printable(type_name or "", 60)
    return part_name(MELLANOX, whole(text[2:], 0, 0xFFFF) if text.startswith("MT") else None) or text or None


def has_verbs(vendor_id: int | None, device_id: int | None) -> bool:
    """The part is an RDMA adapter by its ids: Mellanox, or Amazon's EFA."""
    return vendor_id == MELLANOX or (vendor_id == AMAZON and device_id is not None and device_id >> 4 == 0xEFA)
