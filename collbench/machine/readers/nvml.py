"""The GPUs of this machine as NVIDIA's driver tells them live, through NVML.

Functions, codes and units: https://docs.nvidia.com/deploy/nvml-api/. The kernel's files tell
which bridge and which NUMA node a GPU is near.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from collbench.machine.model import Gpu, GpuLink, Machine, PciDevice, PcieLink, System
from collbench.machine.readers.nvml_links import Session, nvlinks, peer_access
from collbench.machine.readers.part_names import NVIDIA
from collbench.machine.readers.text import lanes, numa_of, pci_address, printable

KIND = "NVML"

_GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}  # per lane, by PCIe generation
_MOST_MEMORY = 1 << 50
_FABRIC_COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
_UUID_BYTES = 16


@dataclass
class _Card:
    """A GPU with NVML's handle of it (None where NVML gave none) and its PCI function."""

    gpu: Gpu
    handle: Any
    device: PciDevice | None


def read(library: Any = None) -> Machine:
    """GPUs with their PCI links and NVLinks. Never raises: without a driver an empty machine that says why.

    `library` is pynvml, or what stands in for it. A GPU that does not answer is listed, with NVML's error as the reason for what is None.
    """
    nvml = library or _pynvml()
    if nvml is None:
        return Machine(unknown={"gpus": "the package nvidia-ml-py is not installed"})
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as why:
        return Machine(unknown={"gpus": _why_no_driver(str(why))})
    session = Session(nvml)
    try:
        return _machine(session)
    finally:
        session.try_to("nvmlShutdown")


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _why_no_driver(error: str) -> str:
    if "Library Not Found" in error:
        return "no NVIDIA driver: libnvidia-ml.so.1 is not there"
    return f"the NVIDIA driver does not answer: {printable(error, 100)}"


def _machine(session: Session) -> Machine:
    count = session.ask("gpus", "nvmlDeviceGetCount") or 0
    cards = [_card(session, index) for index in range(count)]
    handles = {card.gpu.key: card.handle for card in cards if card.handle is not None}
    gpus: list[Gpu] = []
    links: list[GpuLink] = []
    for card in cards:
        up, off = nvlinks(session, card.gpu.key, card.handle, set(handles)) if card.handle is not None else ([], None)
        gpus.append(replace(card.gpu, links_off=off))
        links += up
    return Machine(
        sources=(KIND,),
        system=System(driver=_name(session.ask("system/driver", "nvmlSystemGetDriverVersion"))),
        pci=tuple(card.device for card in cards if card.device),
        gpus=tuple(gpus),
        gpu_links=tuple(links),
        peer_access=peer_access(session, handles),
        unknown=session.unknown,
        doubts=tuple(session.doubts),
    )


def _card(session: Session, index: int) -> _Card:
    """One GPU. Its key is its PCI address; "gpu3" where NVML does not tell it."""
    handle = session.ask(f"gpus/gpu{index}/address", "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return _Card(Gpu(f"gpu{index}", index=index, vendor="nvidia"), None, None)
    info = session.ask(f"gpus/gpu{index}/address", "nvmlDeviceGetPciInfo", handle)
    address = pci_address(_name(getattr(info, "busId", None)) or "")
    key = address or f"gpu{index}"
    capability = session.ask(f"gpus/{key}/architecture", "nvmlDeviceGetCudaComputeCapability", handle)
    memory = session.ask(f"gpus/{key}/memory_bytes", "nvmlDeviceGetMemoryInfo", handle)
    gpu = Gpu(
        key=key,
        index=index,
        address=address,
        vendor="nvidia",
        model=_name(session.ask(f"gpus/{key}/model", "nvmlDeviceGetName", handle)),
        architecture=f"sm_{capability[0]}{capability[1]}" if capability else None,
        memory_bytes=_within(getattr(memory, "total", None), _MOST_MEMORY),
        uuid=_name(session.ask(f"gpus/{key}/uuid", "nvmlDeviceGetUUID", handle)),
        memory_numa=numa_of(str(session.try_to("nvmlDeviceGetNumaNodeId", handle)[0])),
        clique=_clique(session, handle),
    )
    return _Card(gpu, handle, _device(session, address, info, gpu.model, handle) if address else None)


def _clique(session: Session, handle: Any) -> str | None:
    """Return the GPU's multi-node NVLink domain as "cluster UUID/clique id"; None on nodes that have joined none (their UUID is zero)."""
    info, why = session.try_to("c_nvmlGpuFabricInfo_t")
    if not why:
        _, why = session.try_to("nvmlDeviceGetGpuFabricInfo", handle, byref(info))
    if why or getattr(info, "state", None) != _FABRIC_COMPLETED or getattr(info, "status", 1) != 0:
        return None
    cluster = bytes(info.clusterUuid)
    return f"{UUID(bytes=cluster)}/{int(info.cliqueId)}" if any(cluster) and len(cluster) == _UUID_BYTES else None


def _device(session: Session, address: str, info: Any, model: str | None, handle: Any) -> PciDevice:
    ids = _within(getattr(info, "pciDeviceId", None), 0xFFFFFFFF)  # the device's above the vendor's, 16 bits each
    session.unknown[f"pci/{address}/parent"] = "NVML does not tell the bridge above a GPU"
    return PciDevice(
        address=address,
        kind="gpu",
        vendor_id=NVIDIA,
        device_id=ids >> 16 if ids else None,
        name=model,
        link=_pcie_link(session, address, handle),
        driver="nvidia",
    )


def _pcie_link(session: Session, address: str, handle: Any) -> PcieLink:
    def told(field: str, function: str, known: Callable[[Any], Any]) -> Any:
        return known(session.ask(f"pci/{address}/link.{field}", function, handle))

    def width(value: Any) -> int | None:
        return lanes(str(value))

    return PcieLink(
        speed_gt_per_s=told("speed_gt_per_s", "nvmlDeviceGetCurrPcieLinkGeneration", _GT_PER_S.get),
        width=told("width", "nvmlDeviceGetCurrPcieLinkWidth", width),
        max_speed_gt_per_s=told("max_speed_gt_per_s", "nvmlDeviceGetGpuMaxPcieLinkGeneration", _GT_PER_S.get),
        max_width=told("max_width", "nvmlDeviceGetMaxPcieLinkWidth", width),
    )


def _name(value: Any) -> str | None:
    """Text of NVML, which some releases give as bytes."""
    text = value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
    return printable(text) or None if isinstance(text, str) else None


def _within(value: Any, most: int) -> int | None:
    return value if isinstance(value, int) and 0 < value <= most else None
