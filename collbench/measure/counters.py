"""What the GPUs of this host have counted, by NVML's field values: one call a GPU, of the fields that its driver has.

Fields and units: nvml.h, https://docs.nvidia.com/deploy/nvml-api/group__nvmlFieldValueEnums.html. nvmlDeviceGetPcieThroughput is not
asked: it blocks 20 ms.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from collbench.machine.readers.nvml_links import Session
from collbench.machine.readers.text import pci_address
from collbench.measure.sysfs_numbers import Counts

_LIBRARY = "libnvidia-ml.so.1"
_ALL_LINKS = 2**32 - 1
_EACH_LINK = range(36)  # NVML_NVLINK_MAX_LINKS of nvidia-ml-py 13.615; for links that a GPU has not, it does not answer
_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}  # of nvmlValue_t, by nvmlValueType_t
_UNSIGNED_INT = 1
_CORE = 0  # NVML_TEMPERATURE_GPU
# nvmlClocksEventReason…: why clocks are lower than they could be. Idle, and clocks that somebody chose, are no slow-down.
REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost", 0x20: "software thermal", 0x40: "hardware thermal",
           0x80: "power brake"}  # fmt: skip


@dataclass(frozen=True)
class _Field:
    """A counter of ours: NVML's field, its unit in ours, and the scopes (links) whose values are added."""

    name: str
    constant: str
    unit: int = 1
    scopes: Sequence[int] = (0,)


# Where two fields have one name, the first that the driver answers is taken: NVLink 5 (Blackwell) counts by link, in fields of its own.
_FIELDS = (
    _Field("nvlink_tx_bytes", "NVLINK_THROUGHPUT_DATA_TX", 1024, (_ALL_LINKS,)),
    _Field("nvlink_rx_bytes", "NVLINK_THROUGHPUT_DATA_RX", 1024, (_ALL_LINKS,)),
    _Field("nvlink_tx_bytes", "NVLINK_COUNT_XMIT_BYTES", 1, _EACH_LINK),
    _Field("nvlink_rx_bytes", "NVLINK_COUNT_RCV_BYTES", 1, _EACH_LINK),
    _Field("nvlink_crc_flit_errors", "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"),
    _Field("nvlink_crc_data_errors", "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL"),
    _Field("nvlink_replays", "NVLINK_REPLAY_ERROR_COUNT_TOTAL"),
    _Field("nvlink_recoveries", "NVLINK_RECOVERY_ERROR_COUNT_TOTAL"),
    _Field("nvlink_recoveries", "NVLINK_COUNT_LINK_RECOVERY_EVENTS", 1, _EACH_LINK),
    _Field("nvlink_symbol_errors", "NVLINK_COUNT_SYMBOL_ERRORS", 1, _EACH_LINK),
    _Field("pcie_tx_bytes", "PCIE_COUNT_TX_BYTES"),
    _Field("pcie_rx_bytes", "PCIE_COUNT_RX_BYTES"),
    _Field("pcie_replays", "PCIE_REPLAY_COUNTER"),
    _Field("ecc_corrected", "ECC_SBE_VOL_TOTAL"),
    _Field("ecc_uncorrected", "ECC_DBE_VOL_TOTAL"),
    _Field("rows_remapped_corrected", "REMAPPED_COR"),
    _Field("rows_remapped_uncorrected", "REMAPPED_UNC"),
)


@dataclass(frozen=True)
class _Gpu:
    handle: Any
    address: str
    fields: tuple[_Field, ...]


class Gpus:
    """The GPUs that NVML shows here, NVML held open: starting it takes far longer than a reading. In a container other jobs' are hidden."""

    def __init__(self, session: Session) -> None:
        self._session = session
        count = session.try_to("nvmlDeviceGetCount")[0] or 0
        handles = (session.try_to("nvmlDeviceGetHandleByIndex", index)[0] for index in range(count))
        self._gpus = [self._known(handle, index) for index, handle in enumerate(handles) if handle is not None]

    @classmethod
    def open(cls, library: Any = None) -> Self | None:
        """NVML started, or None where there is no driver. `library` is pynvml, or what stands in for it. Never raises."""
        nvml = library or _pynvml()
        if nvml is None:
            return None
        session = Session(nvml)
        return None if session.try_to("nvmlInit")[1] else cls(session)

    def read(self) -> tuple[dict[str, Counts], dict[str, dict[str, Any]]]:
        """(counters, states) by PCI address; what a GPU does not answer is left out."""
        return {gpu.address: self._counts(gpu) for gpu in self._gpus}, {gpu.address: self._state(gpu.handle) for gpu in self._gpus}

    def clocks(self) -> dict[str, dict[str, Any]]:
        """By PCI address temperature_c, slowed_by, power_w, sm_mhz and memory_mhz; None where NVML does not tell."""
        return {gpu.address: {**self._state(gpu.handle), **self._pace(gpu.handle)} for gpu in self._gpus}

    def close(self) -> None:
        """Leaves NVML."""
        self._session.try_to("nvmlShutdown")

    def _known(self, handle: Any, index: int) -> _Gpu:
        """The GPU with the fields that its driver answers."""
        info = self._session.try_to("nvmlDeviceGetPciInfo", handle)[0]
        bus = getattr(info, "busId", "")
        address = pci_address(bus.decode("ascii", errors="replace") if isinstance(bus, bytes) else str(bus)) or f"gpu{index}"
        there = [one for one in _FIELDS if hasattr(self._session.nvml, _constant(one))]
        answered = self._values(handle, there)
        first = {one.name: replace(one, scopes=tuple(values)) for one in reversed(there) if (values := answered[one.constant])}
        return _Gpu(handle, address, tuple(first.values()))

    def _counts(self, gpu: _Gpu) -> Counts:
        values = self._values(gpu.handle, gpu.fields)
        whole = [one for one in gpu.fields if len(values[one.constant]) == len(one.scopes)]  # a link that is gone would be missed
        return {one.name: sum(values[one.constant].values()) * one.unit for one in whole}

    def _values(self, handle: Any, fields: Iterable[_Field]) -> dict[str, dict[int, int]]:
        """NVML's values by field and scope, of the scopes that answer."""
        asked = [(one, scope) for one in fields for scope in one.scopes]
        ids = [(getattr(self._session.nvml, _constant(one)), scope) for one, scope in asked]
        found = self._session.try_to("nvmlDeviceGetFieldValues", handle, ids)[0] if ids else None
        values: dict[str, dict[int, int]] = {one.constant: {} for one, _ in asked}
        for (one, scope), value in zip(asked, found or (), strict=False):
            number = None if _wraps(one, value) else _number(value)
            if number is not None:
                values[one.constant][scope] = number
        return values

    def _state(self, handle: Any) -> dict[str, Any]:
        bits = self._first(handle, ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"))
        slowed = None if bits is None else [word for bit, word in REASONS.items() if bits & bit]
        return {"temperature_c": self._session.try_to("nvmlDeviceGetTemperature", handle, _CORE)[0], "slowed_by": slowed}

    def _pace(self, handle: Any) -> Mapping[str, Any]:
        milliwatts = self._session.try_to("nvmlDeviceGetPowerUsage", handle)[0]
        sm, memory = (self._session.try_to("nvmlDeviceGetClockInfo", handle, kind)[0] for kind in (1, 2))  # NVML_CLOCK_SM, NVML_CLOCK_MEM
        return {"power_w": None if milliwatts is None else milliwatts / 1000, "sm_mhz": sm, "memory_mhz": memory}

    def _first(self, handle: Any, functions: Iterable[str]) -> int | None:
        answers: Iterator[Any] = (self._session.try_to(function, handle)[0] for function in functions)
        return next((answer for answer in answers if isinstance(answer, int)), None)


def _constant(one: _Field) -> str:
    return f"NVML_FI_DEV_{one.constant}"


def _wraps(one: _Field, value: Any) -> bool:
    """Whether it counts bytes in 32 bits: they come round several times a second, so that no difference says anything."""
    return one.name.endswith("_bytes") and one.unit == 1 and value.valueType == _UNSIGNED_INT


def _number(value: Any) -> int | None:
    member = _MEMBERS.get(value.valueType)
    number = getattr(value.value, member) if value.nvmlReturn == 0 and member else None
    return number if isinstance(number, int) and number >= 0 else None


def _pynvml() -> Any:
    """The package, imported only where the driver's library is: most hosts without it need not pay for the import."""
    try:
        ctypes.CDLL(_LIBRARY)
        import pynvml
    except (OSError, ImportError):
        return None
    return pynvml
