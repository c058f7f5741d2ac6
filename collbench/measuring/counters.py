"""Counters of this host, read from the kernel's files and NVML: network interfaces, RDMA ports, TCP segments and GPUs.

NVML's field values need one call per GPU, of the fields that its driver has. Fields and units: nvml.h,
https://docs.nvidia.com/deploy/nvml-api/group__nvmlFieldValueEnums.html. nvmlDeviceGetPcieThroughput is not used: it
blocks 20 ms.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from collbench.machine.readers.network import HW_COUNTERS
from collbench.machine.readers.nvml import Session, load_nvml
from collbench.machine.readers.text import pci_address

# Numbers in the kernel's files, read with little overhead, since a host with many ports has hundreds of them.

Counts = dict[str, int]
Grown = dict[str, dict[str, int | None]]
_MOST = 64  # characters of a number
_LONGEST = 4 << 20


def numbers(folder: str, names: Iterable[str]) -> Counts:
    """Return the integers in the files of a folder, by file name. A file that is missing or has no number is left out."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        values = {name: _number(name, descriptor) for name in names}
    finally:
        os.close(descriptor)
    return {name: value for name, value in values.items() if value is not None}


def entries(folder: str) -> list[str]:
    """Return the names in a folder, sorted; an empty list if it does not exist."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - Path.iterdir makes a Path per name
    except OSError:
        return []


def word(path: str) -> str:
    """Return the stripped content of a file; "" when it cannot be read."""
    return _read(path, _MOST).strip()


def text(path: str) -> str:
    """Return the content of a kernel file, 4 MiB at most; "" when it cannot be read."""
    return _read(path, _LONGEST)


def _read(path: str, most: int) -> str:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        parts = []
        while most > 0:  # the kernel returns a long file in pages
            part = os.read(file, most)
            if not part:
                break
            parts.append(part)
            most -= len(part)
        return b"".join(parts).decode("ascii", errors="replace")
    except OSError:
        return ""
    finally:
        os.close(file)


def _number(name: str, folder: int) -> int | None:
    try:
        file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    try:
        text = os.read(file, _MOST).strip()
        return int(text) if text.isdigit() else None
    except OSError:
        return None
    finally:
        os.close(file)


# Counters of this host's network interfaces (Linux Documentation/networking/statistics.rst).
#
# /proc/net/dev has all of them in one file, and takes a tenth of the time of the files in /sys/class/net/*/statistics. These are read if
# it is missing. It counts packets that were missed because of full buffers as dropped packets (net/core/net-procfs.c).

CLASS = "/sys/class/net"
NAMES = ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets", "tx_dropped", "rx_dropped", "tx_errors", "rx_errors")
_TABLE = "/proc/net/dev"
_MOST_DIGITS = 20  # of a 64-bit number
_COLUMNS = {
    "rx_bytes": 0,
    "rx_packets": 1,
    "rx_errors": 2,
    "rx_dropped": 3,
    "tx_bytes": 8,
    "tx_packets": 9,
    "tx_errors": 10,
    "tx_dropped": 11,
}
LOOPBACK = "lo"
HEADERS_BYTES = 66
_IP_OVER_INFINIBAND = "32"  # ARPHRD_INFINIBAND, Linux include/uapi/linux/if_arp.h


def read(root: str = "", inside: bool = False) -> tuple[dict[str, Counts], frozenset[str]]:
    """Return (counters by interface, names of the interfaces that count bytes leaving this host exactly once).

    inside: for a job inside this host, which sends nothing by those: their names, which take most of the time, are not looked for

    The names exclude interfaces that repeat the counts of others. A bond, VLAN or bridge repeats the interfaces below it.
    InfiniBand ports count the traffic of IP over InfiniBand. The host's end of a container's link carries bytes that leave by
    another interface.
    """
    counts: dict[str, Counts] = {}
    leaving: set[str] = set()
    table = _table(f"{root}{_TABLE}")
    for name in entries(f"{root}{CLASS}"):
        interface_counts = table.get(name) or numbers(f"{root}{CLASS}/{name}/statistics", NAMES)
        if not interface_counts:
            continue
        counts[name] = interface_counts
        if not inside and name != LOOPBACK and _leaves(f"{root}{CLASS}/{name}"):
            leaving.add(name)
            counts[name] |= numbers(f"{root}{CLASS}/{name}", ("carrier_changes",))
    return counts, frozenset(leaving)


def payload(counts: Mapping[str, int | None], direction: str) -> int | None:
    """Return the bytes of TCP payload among those counted in a direction ("tx" or "rx"); None if a counter is unknown.

    Each counted packet has 66 bytes of headers: Ethernet 14, IPv4 20, TCP 32 with timestamps (IPv6: 20 more, 1.3 % of a
    full frame). Depending on the driver, a counted packet is a frame, or a larger packet. The card splits the latter
    (64 KiB with one header, as on veth and virtio). Bytes and packets agree in both cases. Measured on veth with 80 MiB
    all-reduced or sent by Gloo over a 1 Gbit/s link: the counters showed 1.001 to 1.003 times the payload, and 1.0000 to
    1.0006 times after this correction.
    """
    bytes_counted = counts.get(f"{direction}_bytes", 0)
    packets = counts.get(f"{direction}_packets", 0)
    if bytes_counted is None or packets is None:
        return None
    return max(0, bytes_counted - HEADERS_BYTES * packets)


def _table(path: str) -> dict[str, Counts]:
    """Return the counters of /proc/net/dev by interface. Lines with an unexpected format are left out."""
    counts: dict[str, Counts] = {}
    for line in text(path).splitlines():
        name, _, rest = line.partition(":")
        values = rest.split()
        if len(values) >= len(_COLUMNS) * 2 and "".join(values).isdecimal() and max(map(len, values)) <= _MOST_DIGITS:
            counts[name.strip()] = {counter: int(values[column]) for counter, column in _COLUMNS.items()}
    return counts


def _leaves(folder: str) -> bool:
    """Return whether the bytes of an interface leave this host, and no other interface counts them."""
    names = entries(folder)
    first_lower = bisect_left(names, "lower_")  # the list is sorted, and long
    stacked = any(name.startswith("lower_") for name in names[first_lower : first_lower + 1])
    inner = "master" in names and "device" not in names
    return not stacked and not inner and word(f"{folder}/type") != _IP_OVER_INFINIBAND


# Counters of this host's active RDMA ports: /sys/class/infiniband/*/ports/*/counters and hw_counters.
#
# Linux Documentation/ABI/stable/sysfs-class-infiniband has the names; drivers add their own to hw_counters (mlx5: losses and
# congestion; rxe: sent_pkts, rcvd_pkts; EFA and bnxt_re: tx_bytes, rx_bytes).

INFINIBAND_CLASS = "/sys/class/infiniband"
# port_xmit_data and port_rcv_data count in units of 4 bytes, headers included (InfiniBand 16.1.3.5, PortCounters).
_DATA = {"port_xmit_data": ("tx_bytes", 4), "port_rcv_data": ("rx_bytes", 4), "port_xmit_packets": ("tx_packets", 1),
         "port_rcv_packets": ("rx_packets", 1)}  # fmt: skip
_SIGNS = ("port_xmit_wait", "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards",
          "local_link_integrity_errors", "excessive_buffer_overrun_errors")  # fmt: skip
_DRIVER_COUNTERS = ("tx_bytes", "rx_bytes", "tx_pkts", "rx_pkts", "rdma_read_bytes", "rdma_read_resp_bytes", "rdma_write_bytes",
               "rdma_write_recv_bytes", "sent_pkts", "rcvd_pkts", *HW_COUNTERS)  # fmt: skip
_STUCK = 2**32 - 1  # old 32-bit counters stop here (InfiniBand: "counters shall not roll over")


def read_infiniband(root: str = "") -> dict[str, Counts]:
    """Return counters by port ("mlx5_0/1"), of active ports. Old 32-bit counters that have reached their maximum are left out.

    Bytes and packets have the same names as for Ethernet, other counters their own.
    """
    counts: dict[str, Counts] = {}
    for device in entries(f"{root}{INFINIBAND_CLASS}"):
        for port in entries(f"{root}{INFINIBAND_CLASS}/{device}/ports"):
            folder = f"{root}{INFINIBAND_CLASS}/{device}/ports/{port}"
            if word(f"{folder}/state").endswith("ACTIVE"):
                counts[f"{device}/{port}"] = _port(folder)
    return counts


def moved(counts: Mapping[str, int | None], direction: str) -> int | None:
    """Return the bytes that crossed a port in a direction ("tx" or "rx"); None if unknown. Some drivers count RDMA separately."""
    names = {"tx": ("tx_bytes", "rdma_read_resp_bytes", "rdma_write_bytes"), "rx": ("rx_bytes", "rdma_read_bytes", "rdma_write_recv_bytes")}
    values = [counts.get(name, 0) for name in names[direction]]
    return None if None in values else sum(value for value in values if value)


def _port(folder: str) -> Counts:
    names = set(entries(f"{folder}/hw_counters"))
    driver_counts = numbers(f"{folder}/hw_counters", [name for name in _DRIVER_COUNTERS if name in names])
    standard = numbers(f"{folder}/counters", (*_DATA, *_SIGNS))
    valid = {name: value for name, value in standard.items() if value != _STUCK}
    signs = {name: value for name, value in valid.items() if name not in _DATA}
    data = {name: valid[file] * unit for file, (name, unit) in _DATA.items() if file in valid}
    return {**driver_counts, **signs, **data}


# TCP segments sent and retransmitted in this host's network namespace (RFC 4022: tcpOutSegs, tcpRetransSegs), and Linux's own counters
# (Documentation/networking/snmp_counter.rst): retransmitted segments that had arrived before, and recoveries from a loss.

_TCP_TABLES = {
    "/proc/net/snmp": ("Tcp:", {"RetransSegs": "retransmitted", "OutSegs": "sent"}),
    "/proc/net/netstat": (
        "TcpExt:",
        {
            "TCPDSACKRecv": "duplicates",
            "TCPSackRecovery": "recoveries",
            "TCPRenoRecovery": "recoveries",
            "TCPTimeouts": "recoveries",
            "TCPLossProbeRecovery": "recoveries",
        },
    ),
}


def read_tcp(root: str = "") -> Counts:
    """Return the TCP segments "sent" and "retransmitted" so far, "duplicates" and "recoveries"; those that the kernel counts."""
    counts: Counts = {}
    for path, (prefix, names) in _TCP_TABLES.items():
        rows = [line.split()[1:] for line in text(f"{root}{path}").splitlines() if line.startswith(prefix)]
        if len(rows) != 2 or len(rows[0]) != len(rows[1]):
            continue
        for name, value in zip(*rows, strict=True):
            if name in names and value.isdecimal():
                counts[names[name]] = counts.get(names[name], 0) + int(value)
    return counts


# The kernel pins the pages of another process while it copies from them (cross-memory attach); it counts them for the whole host.
_PINNED = "\nnr_foll_pin_acquired "


def read_pinned(root: str = "") -> int | None:
    """Return the bytes of the pages that the kernel has pinned so far; None if it does not count them (before Linux 5.8)."""
    _, name, rest = ("\n" + text(f"{root}/proc/vmstat")).partition(_PINNED)
    count = rest.partition("\n")[0]
    return int(count) * mmap.PAGESIZE if name and count.isdecimal() else None


_ALL_LINKS = 2**32 - 1
_EACH_LINK = range(36)  # NVML_NVLINK_MAX_LINKS of nvidia-ml-py 13.615; links that a GPU lacks are not reported
_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}  # of nvmlValue_t, by nvmlValueType_t
_UNSIGNED_INT = 1
_CORE = 0  # NVML_TEMPERATURE_GPU
# nvmlClocksEventReason…: why clocks are lower than possible. Idle, and clocks set by a user, are not slow-downs.
REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost", 0x20: "software thermal", 0x40: "hardware thermal",
           0x80: "power brake"}  # fmt: skip


class _Field(msgspec.Struct, frozen=True):
    """One counter of NVML: its field, the factor of its unit, and the scopes (links) that are added up."""

    name: str
    constant: str
    unit: int = 1
    scopes: Sequence[int] = (0,)

    @property
    def id_name(self) -> str:
        """Return the name of the field's number in NVML."""
        return f"NVML_FI_DEV_{self.constant}"


# Of two fields with the same name the first one that the driver reports is used: NVLink 5 (Blackwell) counts by link, in its own fields.
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


class _NvmlGpu(msgspec.Struct, frozen=True):
    handle: Any
    address: str
    fields: tuple[_Field, ...]


class Gpus:
    """The GPUs that NVML shows here. NVML stays open, because starting it takes far longer than a reading.

    In a container, GPUs of other jobs are hidden.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        count = session.try_to("nvmlDeviceGetCount")[0] or 0
        handles = (session.try_to("nvmlDeviceGetHandleByIndex", index)[0] for index in range(count))
        self._gpus = [self._gpu(handle, index) for index, handle in enumerate(handles) if handle is not None]

    @classmethod
    def open(cls, library: Any = None) -> Self | None:
        """Start NVML and return its GPUs, or None without a driver. `library` is pynvml, or a replacement for tests. Never raises."""
        if library is None:
            try:
                library = load_nvml()
            except (OSError, ImportError):
                return None
        session = Session(library)
        return None if session.try_to("nvmlInit")[1] else cls(session)

    def read(self) -> tuple[dict[str, Counts], dict[str, dict[str, Any]]]:
        """Return (counters, states), each by PCI address. Values that a GPU does not report are left out."""
        return {gpu.address: self._counts(gpu) for gpu in self._gpus}, {gpu.address: self._state(gpu.handle) for gpu in self._gpus}

    def clocks(self) -> dict[str, dict[str, Any]]:
        """Return by PCI address temperature_c, slowed_by, power_w, sm_mhz and memory_mhz; None if NVML does not report a value."""
        clocks = {}
        for gpu in self._gpus:
            milliwatts = self._session.try_to("nvmlDeviceGetPowerUsage", gpu.handle)[0]
            power_w = None if milliwatts is None else milliwatts / 1000
            kinds = (1, 2)  # NVML_CLOCK_SM, NVML_CLOCK_MEM
            sm, memory = (self._session.try_to("nvmlDeviceGetClockInfo", gpu.handle, kind)[0] for kind in kinds)
            clocks[gpu.address] = {**self._state(gpu.handle), "power_w": power_w, "sm_mhz": sm, "memory_mhz": memory}
        return clocks

    def close(self) -> None:
        """Shut NVML down."""
        self._session.try_to("nvmlShutdown")

    def _gpu(self, handle: Any, index: int) -> _NvmlGpu:
        """Return the GPU with the fields that its driver reports."""
        info = self._session.try_to("nvmlDeviceGetPciInfo", handle)[0]
        bus = getattr(info, "busId", "")
        address = pci_address(bus.decode("ascii", errors="replace") if isinstance(bus, bytes) else str(bus)) or f"gpu{index}"
        supported = [field for field in _FIELDS if hasattr(self._session.nvml, field.id_name)]
        values = self._values(handle, supported)
        reported = [replace(field, scopes=tuple(values[field.constant])) for field in reversed(supported) if values[field.constant]]
        first_of_name = {field.name: field for field in reported}
        return _NvmlGpu(handle, address, tuple(first_of_name.values()))

    def _counts(self, gpu: _NvmlGpu) -> Counts:
        values = self._values(gpu.handle, gpu.fields)
        # a sum without the missing link would be too small
        complete = [field for field in gpu.fields if len(values[field.constant]) == len(field.scopes)]
        return {field.name: sum(values[field.constant].values()) * field.unit for field in complete}

    def _values(self, handle: Any, fields: Iterable[_Field]) -> dict[str, dict[int, int]]:
        """Return NVML's values by field and scope, for the scopes that NVML reports."""
        queries = [(field, scope) for field in fields for scope in field.scopes]
        ids = [(getattr(self._session.nvml, field.id_name), scope) for field, scope in queries]
        replies = self._session.try_to("nvmlDeviceGetFieldValues", handle, ids)[0] if ids else None
        values: dict[str, dict[int, int]] = {field.constant: {} for field, _ in queries}
        for (field, scope), reply in zip(queries, replies or (), strict=False):
            # in 32 bits a counter of bytes wraps several times a second, so that differences mean nothing
            wraps = field.name.endswith("_bytes") and field.unit == 1 and reply.valueType == _UNSIGNED_INT
            member = _MEMBERS.get(reply.valueType)
            number = getattr(reply.value, member) if reply.nvmlReturn == 0 and member and not wraps else None
            if isinstance(number, int) and number >= 0:
                values[field.constant][scope] = number
        return values

    def _state(self, handle: Any) -> dict[str, Any]:
        functions = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        answers: Iterator[Any] = (self._session.try_to(function, handle)[0] for function in functions)
        bits = next((answer for answer in answers if isinstance(answer, int)), None)
        slowed_by = None if bits is None else [reason for bit, reason in REASONS.items() if bits & bit]
        return {"temperature_c": self._session.try_to("nvmlDeviceGetTemperature", handle, _CORE)[0], "slowed_by": slowed_by}
