"""GPUs of a Linux machine: PCI functions that a GPU driver lists, or, without such a list, all that are GPUs by class and vendor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collbench.machine.files import Files
from collbench.machine.model import Gpu, GpuLink, PciDevice
from collbench.machine.readers import kfd, pci_sysfs
from collbench.machine.readers.doubts import few
from collbench.machine.readers.pci_parts import VENDORS, Vendor
from collbench.machine.readers.text import numa_of, pci_address, printable, whole

_NVIDIA_GPUS = "/proc/driver/nvidia/gpus"
_DISPLAY = 0x03  # base class; a capture may tell the class alone
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Found:
    """GPUs in the order of their addresses, their links, `devices` with the kind of those that only a driver knew, and the rest."""

    gpus: tuple[Gpu, ...]
    links: tuple[GpuLink, ...]
    devices: tuple[PciDevice, ...]
    unknown: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


def read(files: Files, devices: Sequence[PciDevice]) -> Found:
    """GPUs of `devices`; never raises. Virtual functions that the host hands to guests are no GPUs of the host."""
    listed = _nvidia_listed(files)
    amd = kfd.read(files)
    kinds = tuple(_told_by_driver(device, listed) for device in devices)
    by_vendor: dict[Vendor, list[PciDevice]] = {"nvidia": [], "amd": [], "intel": []}
    for device in kinds:
        vendor = "nvidia" if device.address in listed else VENDORS.get(device.vendor_id or 0)
        if device.kind == "gpu" and not device.virtual and vendor:
            by_vendor[vendor].append(device)
    doubts = list(amd.doubts)
    nvidia = _of_driver("nvidia", by_vendor["nvidia"], listed, _NVIDIA_GPUS, doubts)
    known_amd = {gpu.key: gpu for gpu in amd.gpus}
    of_amd = _of_driver("amd", by_vendor["amd"], known_amd, "/sys/class/kfd", doubts)
    gpus = (
        [_nvidia(files, listed, gpu) for gpu in nvidia]
        + [_amd(files, known_amd.get(gpu.key), gpu) for gpu in of_amd]
        + _numbered("intel", by_vendor["intel"])
    )
    return Found(tuple(gpus), amd.links, kinds, _reasons(gpus, devices), few(doubts))


def _nvidia_listed(files: Files) -> dict[str, str]:
    """Addresses of the GPUs that the NVIDIA driver lists, and their folders' names."""
    return {address: name for name in files.names(_NVIDIA_GPUS) if (address := pci_address(name))}


def _told_by_driver(device: PciDevice, listed: Mapping[str, str]) -> PciDevice:
    """A display function whose vendor was not copied, which the driver lists, is a GPU."""
    known = device.address in listed and device.kind == "other" and (device.class_id or 0) >> 16 == _DISPLAY
    return replace(device, kind="gpu") if known else device


def _of_driver(vendor: Vendor, devices: Sequence[PciDevice], listed: Iterable[str], where: str, doubts: list[str]) -> list[Gpu]:
    """The GPUs of one vendor: what the driver lists where it lists any, else all on the bus. In containers these may be fewer."""
    names = frozenset(listed)
    if not names:
        return _numbered(vendor, devices)
    taken = [device for device in devices if device.address in names]
    there = {device.address for device in taken}
    if len(taken) < len(devices):
        doubts.append(
            f"{len(devices) - len(taken)} of {len(devices)} {vendor.upper()} GPUs on the PCI bus are not listed in {where}: not counted"
            " (a container that was given some of them, or GPUs that the driver lost)"
        )
    absent = [PciDevice(name, "gpu") for name in sorted(names - there)]
    return _numbered(vendor, sorted([*taken, *absent], key=_place))


def _place(device: PciDevice) -> tuple[int, str]:
    """Sorts by the length of the domain first: "10000:01:00.0" comes after "ffff:…"."""
    return len(device.address), device.address


def _numbered(vendor: Vendor, devices: Sequence[PciDevice]) -> list[Gpu]:
    return [
        Gpu(device.address, index, device.address if pci_address(device.address) else None, vendor, numa=device.numa)
        for index, device in enumerate(devices)
    ]


def _nvidia(files: Files, listed: Mapping[str, str], gpu: Gpu) -> Gpu:
    text = files.text(f"{_NVIDIA_GPUS}/{listed[gpu.key]}/information") if gpu.key in listed else None
    fields = dict(re.findall(r"^([A-Za-z ]+?):[ \t]+(\S.*)$", text or "", re.M))
    model = printable(fields.get("Model", ""))
    status = files.text(f"{_NVIDIA_GPUS}/{listed[gpu.key]}/numa_status") if gpu.key in listed else None
    node = re.search(r"^Node:\s*(\d+)\s*$", status or "", re.M)
    uuid = _UUID.fullmatch(fields.get("GPU UUID", "").strip().replace("gpu-", "GPU-"))
    named = model if model not in ("", "Unknown") else None
    return replace(gpu, model=named, uuid=uuid[0] if uuid else None, memory_numa=numa_of(node[1]) if node else None)


def _amd(files: Files, known: Gpu | None, gpu: Gpu) -> Gpu:
    folder = f"{pci_sysfs.DEVICES}/{gpu.key}"
    memory = known.memory_bytes if known else None
    model = printable(files.text(f"{folder}/product_name") or "")
    return replace(
        gpu, model=model or None, architecture=known.architecture if known else None,
        memory_bytes=memory or whole(files.text(f"{folder}/mem_info_vram_total"), 1, 1 << 50),
    )  # fmt: skip


def _reasons(gpus: Sequence[Gpu], devices: Sequence[PciDevice]) -> dict[str, str]:
    """Return why a GPU's model or memory is unknown, or why no GPU can be seen."""
    if not gpus:
        return {} if devices else {"gpus": "the files show no PCI bus and no GPU driver"}
    nameless = {f"gpus/{gpu.key}/model": "the driver gives no name in its files" for gpu in gpus if not gpu.model}
    return nameless | {
        f"gpus/{gpu.key}/memory_bytes": "sysfs does not tell it: nvidia-smi or NVML do" for gpu in gpus if not gpu.memory_bytes
    }
