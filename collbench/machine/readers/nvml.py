"""The GPUs of this machine as NVIDIA's driver reports them live, through NVML.

Functions, codes and units: https://docs.nvidia.com/deploy/nvml-api/. The kernel's files have the bridge and NUMA node of a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL, byref
from importlib import import_module
from typing import Any, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, PciDevice, PcieLink, System
from collbench.machine.readers.pci import NVIDIA
from collbench.machine.readers.text import Notes, lanes, numa_of, pci_address, printable

# Connections between GPUs in NVML: NVLinks that are up or off, and peer access.

_MOST_LINKS = 36
_NO_SUCH_LINK = {"", "Not Supported", "Invalid Argument"}  # NVML's results beyond the last link, by release
_CPU, _SWITCH = 1, 2  # nvmlIntNvLinkDeviceType_t
_READ = 0  # nvmlGpuP2PCapsIndex_t; pynvml 13 has a tuple under its name
_PEER = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}  # nvmlGpuP2PStatus_t as in `nvidia-smi topo -p2p`
_VALUES = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}  # nvmlValueType_t
_SPEED_OF_LINK, _SPEED_OF_ALL = "NVML_FI_DEV_NVLINK_GET_SPEED", "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON"
_MOST_MEGABYTES = 1_000_000
_LIBRARY = "libnvidia-ml.so.1"
_NO_DRIVER = f"no NVIDIA driver: {_LIBRARY} is not there"


def load_nvml() -> Any:
    """Return pynvml. Raises OSError without the driver's library, ImportError without the package.

    The library is loaded first: hosts without a GPU do not import pynvml, which takes a rank 12 ms and 2 MiB.
    """
    CDLL(_LIBRARY)
    return import_module("pynvml")


class Session(Notes):
    """An NVML session from its start to its end, with reasons for missing facts and doubts."""

    def __init__(self, nvml: Any) -> None:
        super().__init__()
        self.nvml = nvml

    def query(self, path: str, function: str, *arguments: Any) -> Any:
        """Return the answer of an NVML function; None on an error, which becomes the reason of the fact path."""
        answer, why = self.try_to(function, *arguments)
        if why:
            self.unknown[path] = f"NVML does not report it: {why}"
        return answer

    def try_to(self, function: str, *arguments: Any) -> tuple[Any, str]:
        """Return the answer and "", or None and NVML's error. A release of pynvml may lack the function."""
        try:
            return getattr(self.nvml, function)(*arguments), ""
        except (self.nvml.NVMLError, AttributeError, TypeError, ValueError, OSError) as why:
            return None, printable(str(why), 100) or type(why).__name__


def nvlinks(session: Session, key: str, handle: Any, gpus: set[str]) -> tuple[list[GpuLink], int | None]:
    """Return the links of a GPU that are up, by far end, and how many are off; None if NVML shows no link.

    `gpus` are the keys of this machine's GPUs. Links to a CPU (POWER9) are not links between GPUs.
    """
    speeds: dict[str | None, list[float | None]] = {}
    off = queried = 0
    why = ""
    for link in range(_MOST_LINKS):
        active, why = session.try_to("nvmlDeviceGetNvLinkState", handle, link)
        if why:
            break
        queried += 1
        off += not active
        remote = session.try_to("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)[0] if active else None
        if active and remote != _CPU:
            end = SWITCH if remote == _SWITCH else _peer(session, handle, link, gpus)
            speeds.setdefault(end, []).append(_speed(session, handle, link))
    if not queried or why not in _NO_SUCH_LINK:
        session.unknown[f"gpus/{key}/links_off"] = f"NVML does not show the NVLinks of this GPU: {why}"
        return [], None
    if not speeds:
        return [GpuLink(key, None, 0)], off
    links = []
    for end, link_speeds in speeds.items():
        rates = sorted({speed for speed in link_speeds if speed is not None})
        if len(rates) > 1:
            session.doubt(f"the NVLinks of GPU {key} run at different speeds, {rates[0] / 1e9:g} to {rates[-1] / 1e9:g} GB/s")
        if len(rates) != 1:
            why = "the links run at different speeds" if rates else "NVML does not report the speed of an NVLink"
            session.unknown[f"gpu_links/{key}>{end or '?'}/bytes_per_s"] = why
        links.append(GpuLink(key, end, len(link_speeds), "nvlink", rates[0] if len(rates) == 1 else None))
    return links, off


def _peer(session: Session, handle: Any, link: int, gpus: set[str]) -> str | None:
    """Return the GPU at the far end; None for one that is not visible here, as in a container with some of the GPUs."""
    info, _ = session.try_to("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
    text = getattr(info, "busId", "")
    address = pci_address(text.decode("ascii", errors="replace") if isinstance(text, bytes) else str(text))
    return address if address in gpus else None


def _speed(session: Session, handle: Any, link: int) -> float | None:
    """Return the raw bytes/s of one direction (H100: 26.562 GB/s; NVML has 10^6 bytes). Older drivers have one speed for all links."""
    nvml = session.nvml
    for field in ((getattr(nvml, _SPEED_OF_LINK, None), link), getattr(nvml, _SPEED_OF_ALL, None)):
        values, _ = session.try_to("nvmlDeviceGetFieldValues", handle, [field])
        kind = _VALUES.get(values[0].valueType) if values and values[0].nvmlReturn == 0 else None
        megabytes = float(getattr(values[0].value, kind)) if kind else 0.0
        if 0 < megabytes <= _MOST_MEGABYTES:
            return megabytes * 1e6
    return None


def peer_access(session: Session, handles: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return whether a GPU can read another's memory, by (key, key): "OK"; no by chipset "CNS", GPU "GNS", topology "TNS", "DR", "NS"."""
    access: dict[tuple[str, str], str] = {}
    for a, first in handles.items():
        for b, second in handles.items():
            status, why = session.try_to("nvmlDeviceGetP2PStatus", first, second, _READ) if a != b else (None, "")
            if status in _PEER:
                access[a, b] = _PEER[status]
            elif why:
                session.unknown[f"peer_access/{a}>{b}"] = f"NVML does not report it: {why}"
    return access


KIND = "NVML"

_GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}  # per lane, by PCIe generation
_MOST_MEMORY = 1 << 50
_FABRIC_COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
_UUID_BYTES = 16


class _Card(NamedTuple):
    """A GPU with its NVML handle (None without one) and its PCI function."""

    gpu: Gpu
    handle: Any
    device: PciDevice | None


def read(library: Any = None) -> Machine:
    """Return the GPUs with their PCI links and NVLinks. Never raises: without a driver, an empty machine with the reason.

    `library` is pynvml, or a substitute. A GPU that does not answer is listed, with NVML's error as the reason for missing facts.
    """
    try:
        nvml = library or load_nvml()
    except OSError:
        return Machine(unknown={"gpus": _NO_DRIVER})
    except ImportError:
        return Machine(unknown={"gpus": "the package nvidia-ml-py is not installed"})
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        answer = printable(str(error), 100)
        if "Library Not Found" in answer:
            return Machine(unknown={"gpus": _NO_DRIVER})
        return Machine(unknown={"gpus": f"the NVIDIA driver does not answer: {answer}"})
    session = Session(nvml)
    try:
        return _machine(session)
    finally:
        session.try_to("nvmlShutdown")


def _machine(session: Session) -> Machine:
    cards = [_card(session, index) for index in range(session.query("gpus", "nvmlDeviceGetCount") or 0)]
    handles = {card.gpu.key: card.handle for card in cards if card.handle is not None}
    gpus: list[Gpu] = []
    links: list[GpuLink] = []
    for card in cards:
        up, off = nvlinks(session, card.gpu.key, card.handle, set(handles)) if card.handle is not None else ([], None)
        gpus.append(replace(card.gpu, links_off=off))
        links += up
    return Machine(
        sources=(KIND,),
        system=System(driver=_name(session.query("system/driver", "nvmlSystemGetDriverVersion"))),
        pci=tuple(card.device for card in cards if card.device),
        gpus=tuple(gpus),
        gpu_links=tuple(links),
        peer_access=peer_access(session, handles),
        unknown=session.unknown,
        doubts=tuple(session.doubts),
    )


def _card(session: Session, index: int) -> _Card:
    """Return one GPU. Its key is its PCI address; "gpu3" where NVML does not show it."""
    handle = session.query(f"gpus/gpu{index}/address", "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return _Card(Gpu(f"gpu{index}", index=index, vendor="nvidia"), None, None)
    info = session.query(f"gpus/gpu{index}/address", "nvmlDeviceGetPciInfo", handle)
    address = pci_address(_name(getattr(info, "busId", None)) or "")
    key = address or f"gpu{index}"
    capability = session.query(f"gpus/{key}/architecture", "nvmlDeviceGetCudaComputeCapability", handle)
    memory = session.query(f"gpus/{key}/memory_bytes", "nvmlDeviceGetMemoryInfo", handle)
    gpu = Gpu(
        key=key,
        index=index,
        address=address,
        vendor="nvidia",
        model=_name(session.query(f"gpus/{key}/model", "nvmlDeviceGetName", handle)),
        architecture=f"sm_{capability[0]}{capability[1]}" if capability else None,
        memory_bytes=_within(getattr(memory, "total", None), _MOST_MEMORY),
        uuid=_name(session.query(f"gpus/{key}/uuid", "nvmlDeviceGetUUID", handle)),
        memory_numa=numa_of(str(session.try_to("nvmlDeviceGetNumaNodeId", handle)[0])),
        clique=_clique(session, handle),
    )
    return _Card(gpu, handle, _device(session, address, info, gpu.model, handle) if address else None)


def _clique(session: Session, handle: Any) -> str | None:
    """Return the GPU's multi-node NVLink domain as "cluster UUID/clique id"; None on nodes without one (zero UUID)."""
    info, why = session.try_to("c_nvmlGpuFabricInfo_t")
    if not why:
        _, why = session.try_to("nvmlDeviceGetGpuFabricInfo", handle, byref(info))
    if why or getattr(info, "state", None) != _FABRIC_COMPLETED or getattr(info, "status", 1) != 0:
        return None
    cluster = bytes(info.clusterUuid)
    return f"{UUID(bytes=cluster)}/{int(info.cliqueId)}" if any(cluster) and len(cluster) == _UUID_BYTES else None


def _device(session: Session, address: str, info: Any, model: str | None, handle: Any) -> PciDevice:
    ids = _within(getattr(info, "pciDeviceId", None), 0xFFFFFFFF)  # the device's id in the upper 16 bits, the vendor's in the lower ones
    session.unknown[f"pci/{address}/parent"] = "NVML does not report the bridge above a GPU"

    def answer(field: str, function: str) -> Any:
        return session.query(f"pci/{address}/link.{field}", function, handle)

    return PciDevice(
        address=address,
        kind="gpu",
        vendor_id=NVIDIA,
        device_id=ids >> 16 if ids else None,
        name=model,
        link=PcieLink(
            speed_gt_per_s=_GT_PER_S.get(answer("speed_gt_per_s", "nvmlDeviceGetCurrPcieLinkGeneration")),
            width=lanes(str(answer("width", "nvmlDeviceGetCurrPcieLinkWidth"))),
            max_speed_gt_per_s=_GT_PER_S.get(answer("max_speed_gt_per_s", "nvmlDeviceGetGpuMaxPcieLinkGeneration")),
            max_width=lanes(str(answer("max_width", "nvmlDeviceGetMaxPcieLinkWidth"))),
        ),
        driver="nvidia",
    )


def _name(value: Any) -> str | None:
    """Return text of NVML, which some releases return as bytes."""
    text = value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
    return printable(text) or None if isinstance(text, str) else None


def _within(value: Any, most: int) -> int | None:
    return value if isinstance(value, int) and 0 < value <= most else None
