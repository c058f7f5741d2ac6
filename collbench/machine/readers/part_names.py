"""Names of GPUs and adapters by their PCI ids, for sources that give ids alone (https://pci-ids.ucw.cz/), and what the names imply."""

from __future__ import annotations

import re

from collbench.machine.model import Gpu
from collbench.machine.readers.text import printable, whole

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
    (NVIDIA, 0x20B3): "A100-SXM-64GB",
    (NVIDIA, 0x20B5): "A100 80GB PCIe",
    (NVIDIA, 0x20B7): "A30 PCIe",
    (NVIDIA, 0x20BD): "A800-SXM4-40GB",
    (NVIDIA, 0x20F1): "A100 40GB PCIe",
    (NVIDIA, 0x20F3): "A800-SXM4-80GB",
    (NVIDIA, 0x20F5): "A800 80GB PCIe",
    (NVIDIA, 0x20F6): "A800 40GB PCIe",
    (NVIDIA, 0x2235): "A40",
    (NVIDIA, 0x2236): "A10",
    (NVIDIA, 0x2321): "H100 NVL",
    (NVIDIA, 0x2322): "H800 PCIe",
    (NVIDIA, 0x2324): "H800",
    (NVIDIA, 0x2329): "H20",
    (NVIDIA, 0x232C): "H20 141GB",
    (NVIDIA, 0x2330): "H100 SXM5 80GB",
    (NVIDIA, 0x2331): "H100 PCIe",
    (NVIDIA, 0x2335): "H200",
    (NVIDIA, 0x2336): "H100 SXM5",
    (NVIDIA, 0x2337): "H100 SXM5 64GB",
    (NVIDIA, 0x2338): "H100 SXM5 96GB",
    (NVIDIA, 0x2339): "H100 SXM5 94GB",
    (NVIDIA, 0x233B): "H200 NVL",
    (NVIDIA, 0x2342): "GH200 480GB",
    (NVIDIA, 0x2348): "GH200 144G HBM3e",
    (NVIDIA, 0x26B5): "L40",
    (NVIDIA, 0x26B9): "L40S",
    (NVIDIA, 0x27B8): "L4",
    (NVIDIA, 0x2901): "B200",
    (NVIDIA, 0x2909): "B200",
    (NVIDIA, 0x2920): "B100",
    (NVIDIA, 0x2941): "GB200",
    (NVIDIA, 0x29BC): "B100",
    (NVIDIA, 0x2BB5): "RTX PRO 6000 Blackwell Server Edition",
    (NVIDIA, 0x2E12): "GB10",
    (NVIDIA, 0x3182): "B300",
    (NVIDIA, 0x31A1): "GB300",
    (NVIDIA, 0x31C2): "GB300",
    (NVIDIA, 0x31C3): "GB300",
    (AMD, 0x66A1): "MI50",
    (AMD, 0x738C): "MI100",
    (AMD, 0x738E): "MI100",
    (AMD, 0x7408): "MI250X",
    (AMD, 0x740C): "MI250X or MI250",
    (AMD, 0x740F): "MI210",
    (AMD, 0x74A0): "MI300A",
    (AMD, 0x74A1): "MI300X",
    (AMD, 0x74A2): "MI308X",
    (AMD, 0x74A5): "MI325X",
    (AMD, 0x74A9): "MI300X HF",
    (AMD, 0x74B5): "MI300X VF",
    (AMD, 0x74B9): "MI325X VF",
    (AMD, 0x74BD): "MI300X HF",
    (AMD, 0x75A0): "MI350X",
    (AMD, 0x75A3): "MI355X",
    (AMD, 0x75A8): "MI350P",
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


# Modules that are soldered or socketed together with their links; cards in slots have links only over a bridge.
_MODULES = re.compile(r"SXM|\b(?:H20|H200|H800|B[123]00|G[BH][123]00)\b(?! NVL| PCIe)|\bMI(?:250X?|3\d\d(?!P)[AX]?)\b|\bHGX\b")
_OF_MODULES = frozenset({"sm_70", "sm_80", "sm_90", "sm_100", "sm_103", "gfx942", "gfx950"})  # and, some of them, of cards
_FEWEST = 4  # GPUs of a server whose architecture alone is known
_WITH_CPU = re.compile(r"\bG[BH](?:[123]00|10)\b")


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


def has_built_in_links(gpu: Gpu, gpus: int) -> bool:
    """Whether a GPU is of a kind that is built with NVLink or xGMI to its siblings: of `gpus` in the machine, none without is believed."""
    if gpu.model:
        return bool(_MODULES.search(gpu.model))
    return gpu.architecture in _OF_MODULES and gpus >= _FEWEST


def is_with_cpu(model: str | None) -> bool:
    """Whether a GPU is on a module with its CPU (GH200, GB200, GB300, GB10): NVLink-C2C joins them, not PCIe."""
    return bool(_WITH_CPU.search(model or ""))
