"""One port of an RDMA device: rate, state, MTU and counters out of its folder in sysfs.

What a file holds: Linux Documentation/ABI/stable/sysfs-class-infiniband. None tells InfiniBand's active MTU; RoCE's follows from the
interface's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from collbench.machine.files import Files
from collbench.machine.model import Port
from collbench.machine.readers.infiniband_rate import falls_back, port_rate
from collbench.machine.readers.rdma_words import IS_DOWN, MTUS, NO_LID, lid, link_layer, state
from collbench.machine.readers.text import printable, whole

# Errors and signs of congestion, among some hundred counters.
COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_rcv_constraint_errors",
    "port_xmit_constraint_errors",
    "port_xmit_discards",
    "port_xmit_wait",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
)
HW_COUNTERS = (
    "out_of_sequence",
    "out_of_buffer",
    "packet_seq_err",
    "duplicate_request",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart_cnps",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "rx_icrc_encapsulated",
    "out_of_seq_request",
    "rcvd_seq_err",
    "retry_exceeded_err",
    "rx_drops",
)

_NEVER_AT_SDR = re.compile(r"^MT41[1-9]")  # ConnectX-4 (MT4115) and later, BlueField (MT416xx)
_ROCE_HEADERS = 96  # bytes; iboe_get_mtu() in Linux include/rdma/ib_addr.h
_ADDRESSES = 8  # looked at, of up to 256: the first ones are in use
_MOST_SPEED = 10_000_000  # Mb/s


@dataclass
class Notes:
    """What a reader found out beside the facts; see Machine."""

    unknown: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """Where a port is read from, and what its device is: `key` names the device in sentences and fact paths, `type` is "MT4129"."""

    files: Files
    folder: str
    key: str
    type: str | None
    virtual: str | None
    interfaces: Sequence[str]

    def text(self, name: str) -> str | None:
        """A file of the port."""
        return self.files.text(f"{self.folder}/{name}")


def read_port(place: Place, number: int, notes: Notes) -> Port:
    """The port; what is not known and why goes into `notes`. Never raises."""
    layer = link_layer(place.text("link_layer"))
    fabric = layer == "infiniband"  # Ethernet has neither lids nor a subnet manager, and sysfs prints zeros
    rate = place.text("rate")
    port = Port(
        number=number,
        rate_text=printable(rate) if rate else None,
        state=state(place.text("state")),
        phys_state=state(place.text("phys_state")),
        link_layer=layer,
        lid=lid(place.text("lid")) if fabric else None,
        sm_lid=whole(place.text("sm_lid"), 0, 0xFFFF) if fabric else None,
        counters={**_counters(place, "counters", COUNTERS), **_counters(place, "hw_counters", HW_COUNTERS)},
    )
    if fabric and port.lid is None:
        notes.unknown[f"nics/{place.key}/ports/{number}/lid"] = NO_LID
    return replace(port, rate_bits_per_s=_rate(place, port, notes), mtu_bytes=_mtu(place, port, notes))


def interfaces_of_port(files: Files, folder: str) -> tuple[str, ...]:
    """The network interfaces in a port's table of addresses: a bond shows only here."""
    names = (files.text(f"{folder}/gid_attrs/ndevs/{index}") for index in range(_ADDRESSES))
    return tuple(dict.fromkeys(printable(name) for name in names if name))


def _counters(place: Place, folder: str, wanted: Sequence[str]) -> dict[str, int]:
    there = set(place.files.names(f"{place.folder}/{folder}"))
    values = {name: whole(place.text(f"{folder}/{name}")) for name in wanted if name in there}
    return {name: value for name, value in values.items() if value is not None}


def _rate(place: Place, port: Port, notes: Notes) -> float | None:
    rate, why = _rate_or_why(place, port)
    if why:
        notes.unknown[f"nics/{place.key}/ports/{port.number}/rate_bits_per_s"] = why
    if port.rate_text and falls_back(port.rate_text) and rate is not None and port.link_layer == "infiniband":
        notes.doubts.append(f"{place.key} port {port.number} is read at SDR, which the kernel also prints for speeds it does not know")
    return rate


def _rate_or_why(place: Place, port: Port) -> tuple[float | None, str | None]:
    text = port.rate_text
    if _is_down(port):
        return None, IS_DOWN
    if text is None:
        return None, "the files hold no rate of this port"
    if falls_back(text) and port.link_layer == "ethernet":
        speed = _speed(place, port.number)
        return speed, None if speed else f"the kernel prints '{text}' for speeds it cannot name, and the interface tells none"
    if falls_back(text) and _NEVER_AT_SDR.match(place.type or ""):
        return None, f"the kernel prints '{text}' for speeds it does not know, and {place.type} does not run at SDR: ask the switch"
    rate = port_rate(text, port.link_layer or "infiniband")
    return rate, None if rate else f"'{text}' is no rate that a port has"


def _is_down(port: Port) -> bool:
    return port.state == "down" or (port.state is None and port.phys_state in {"disabled", "polling", "sleep"})


def _speed(place: Place, number: int) -> float | None:
    name = _interface(place, number)
    megabits = whole(place.files.text(f"/sys/class/net/{name}/speed"), 1, _MOST_SPEED) if name and not place.virtual else None
    return megabits * 1e6 if megabits else None


def _mtu(place: Place, port: Port, notes: Notes) -> int | None:
    """RoCE takes the largest of InfiniBand's MTUs that fits into the interface's beside its headers."""
    name = _interface(place, port.number) if port.link_layer == "ethernet" else None
    mtu = whole(place.files.text(f"/sys/class/net/{name}/mtu"), 1, 1 << 20) if name else None
    found = next((size for size in MTUS if mtu and size <= mtu - _ROCE_HEADERS and not _is_down(port)), None)
    if found is None:
        why = IS_DOWN if _is_down(port) else "sysfs does not hold it: give the output of ibv_devinfo"
        notes.unknown[f"nics/{place.key}/ports/{port.number}/mtu_bytes"] = why
    return found


def _interface(place: Place, number: int) -> str | None:
    """The interface that carries a port: of its address table, else the device's own by its port, else the only one."""
    own = interfaces_of_port(place.files, place.folder)
    if own:
        return own[0]
    ports = {name: whole(place.files.text(f"/sys/class/net/{name}/dev_port"), 0, 254) for name in place.interfaces}
    matching = [name for name, port in ports.items() if port == number - 1]
    return matching[0] if len(matching) == 1 else place.interfaces[0] if len(place.interfaces) == 1 else None
