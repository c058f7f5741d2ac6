"""What NVML says of the ways between GPUs: NVLinks, up and off, and access to each other's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from collbench.machine.model import SWITCH, GpuLink
from collbench.machine.readers.text import pci_address, printable

_MOST_LINKS = 36
_NO_SUCH_LINK = {"", "Not Supported", "Invalid Argument"}  # what NVML says past the last link, by release
_CPU, _SWITCH = 1, 2  # nvmlIntNvLinkDeviceType_t
_READ = 0  # nvmlGpuP2PCapsIndex_t; pynvml 13 has a tuple under its name
_PEER = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}  # nvmlGpuP2PStatus_t in the words of `nvidia-smi topo -p2p`
_VALUES = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}  # nvmlValueType_t
_SPEED_OF_LINK, _SPEED_OF_ALL = "NVML_FI_DEV_NVLINK_GET_SPEED", "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON"
_MOST_MEGABYTES = 1_000_000


@dataclass
class Session:
    """NVML between its start and its end; why what it did not tell is None, and what should not be relied on."""

    nvml: Any
    unknown: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)

    def ask(self, path: str, function: str, *arguments: Any) -> Any:
        """The answer of one of NVML's functions, or None with its error as the reason of the fact path."""
        answer, why = self.try_to(function, *arguments)
        if why:
            self.unknown[path] = f"NVML does not tell: {why}"
        return answer

    def try_to(self, function: str, *arguments: Any) -> tuple[Any, str]:
        """The answer and "", or None and NVML's error. A release of pynvml may lack the function."""
        try:
            return getattr(self.nvml, function)(*arguments), ""
        except (self.nvml.NVMLError, AttributeError, TypeError, ValueError, OSError) as why:
            return None, printable(str(why), 100) or type(why).__name__


def nvlinks(session: Session, key: str, handle: Any, known: set[str]) -> tuple[list[GpuLink], int | None]:
    """The links of a GPU that are up, by far end, and how many are off; None where NVML shows no link.

    `known` are the keys of this machine's GPUs. Links to a CPU (POWER9) are no links between GPUs.
    """
    speeds: dict[str | None, list[float | None]] = {}
    off = asked = 0
    why = ""
    for link in range(_MOST_LINKS):
        active, why = session.try_to("nvmlDeviceGetNvLinkState", handle, link)
        if why:
            break
        asked += 1
        off += not active
        remote = session.try_to("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)[0] if active else None
        if active and remote != _CPU:
            end = SWITCH if remote == _SWITCH else _peer(session, handle, link, known)
            speeds.setdefault(end, []).append(_speed(session, handle, link))
    if not asked or why not in _NO_SUCH_LINK:
        session.unknown[f"gpus/{key}/links_off"] = f"NVML does not show the NVLinks of this GPU: {why}"
        return [], None
    if not speeds:
        return [GpuLink(key, None, 0)], off
    return [_link(session, key, end, found) for end, found in speeds.items()], off


def _link(session: Session, key: str, end: str | None, speeds: list[float | None]) -> GpuLink:
    """Links to one far end, with their speed where all have the same."""
    told = sorted({speed for speed in speeds if speed is not None})
    if len(told) > 1:
        session.doubts.append(f"the NVLinks of GPU {key} run at different speeds, {told[0] / 1e9:g} to {told[-1] / 1e9:g} GB/s")
    if len(told) != 1:
        why = "the links run at different speeds" if told else "NVML does not tell the speed of an NVLink"
        session.unknown[f"gpu_links/{key}>{end or '?'}/bytes_per_s"] = why
    return GpuLink(key, end, len(speeds), "nvlink", told[0] if len(told) == 1 else None)


def _peer(session: Session, handle: Any, link: int, known: set[str]) -> str | None:
    """The GPU at the far end; None for one that is not shown here, as in a container that has some of the GPUs."""
    info, _ = session.try_to("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
    text = getattr(info, "busId", "")
    address = pci_address(text.decode("ascii", errors="replace") if isinstance(text, bytes) else str(text))
    return address if address in known else None


def _speed(session: Session, handle: Any, link: int) -> float | None:
    """Bytes/s of one direction, raw (26.562 GB/s on an H100); NVML counts in 10^6 bytes. Older drivers know one speed for all links."""
    of_link, of_all = (getattr(session.nvml, name, None) for name in (_SPEED_OF_LINK, _SPEED_OF_ALL))
    for asked in ((of_link, link), of_all):
        values, _ = session.try_to("nvmlDeviceGetFieldValues", handle, [asked])
        megabytes = _value(values[0]) if values else None
        if megabytes and 0 < megabytes <= _MOST_MEGABYTES:
            return megabytes * 1e6
    return None


def _value(entry: Any) -> float | None:
    name = _VALUES.get(entry.valueType)
    return float(getattr(entry.value, name)) if name and entry.nvmlReturn == 0 else None


def peer_access(session: Session, handles: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Whether a GPU can read another's memory: (key, key) -> "OK", or not for its chipset "CNS", GPU "GNS", topology "TNS", "DR", "NS"."""
    found: dict[tuple[str, str], str] = {}
    for a, first in handles.items():
        for b, second in handles.items():
            status, why = session.try_to("nvmlDeviceGetP2PStatus", first, second, _READ) if a != b else (None, "")
            if status in _PEER:
                found[a, b] = _PEER[status]
            elif why:
                session.unknown[f"peer_access/{a}>{b}"] = f"NVML does not tell: {why}"
    return found
