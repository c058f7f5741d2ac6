"""RDMA devices with their ports, and Ethernet interfaces, from sysfs: rate, state, MTU and counters.

File contents: Linux Documentation/ABI/stable/sysfs-class-infiniband. No file has InfiniBand's active MTU; RoCE's follows from the
interface's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from collbench.machine.files import Files, Folder
from collbench.machine.interfaces import LOOPBACK, made_of, shapes, speed_of, why_virtual
from collbench.machine.model import Machine, Nic, Port
from collbench.machine.readers.pci import adapter_name
from collbench.machine.readers.rdma import (
    IS_DOWN,
    MTUS,
    NO_LID,
    falls_back,
    link_layer,
    parse_guid,
    parse_lid,
    port_rate,
    state,
    why_software,
)
from collbench.machine.readers.text import few, numa_of, pci_address, printable, whole

# Counters of errors and congestion, out of about a hundred.
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
_ADDRESSES = 8  # read at most, of up to 256; the first ones are in use
_MOST_SPEED = 10_000_000  # Mb/s


@dataclass
class PortNotes:
    """What a reader found besides the facts; see `Machine`."""

    unknown: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PortPlace:
    """The location of a port, and its device: `key` names the device in sentences and fact paths, `type` is "MT4129"."""

    files: Files
    folder: str
    key: str
    type: str | None
    virtual: str | None
    interfaces: Sequence[str]

    def text(self, name: str) -> str | None:
        """Return the content of a file of the port."""
        return self.files.text(f"{self.folder}/{name}")


def read_port(place: PortPlace, number: int, notes: PortNotes) -> Port:
    """Return the port. Unknown facts and their reasons are added to `notes`. Never raises."""
    layer = link_layer(place.text("link_layer"))
    fabric = layer == "infiniband"  # Ethernet has neither LIDs nor a subnet manager, and sysfs prints zeros
    rate = place.text("rate")
    port = Port(
        number=number,
        rate_text=printable(rate) if rate else None,
        state=state(place.text("state")),
        phys_state=state(place.text("phys_state")),
        link_layer=layer,
        lid=parse_lid(place.text("lid")) if fabric else None,
        sm_lid=whole(place.text("sm_lid"), 0, 0xFFFF) if fabric else None,
        counters={**_counters(place, "counters", COUNTERS), **_counters(place, "hw_counters", HW_COUNTERS)},
    )
    if fabric and port.lid is None:
        notes.unknown[f"nics/{place.key}/ports/{number}/lid"] = NO_LID
    return replace(port, rate_bits_per_s=_rate(place, port, notes), mtu_bytes=_mtu(place, port, notes))


def interfaces_of_port(files: Files, folder: str) -> tuple[str, ...]:
    """Return the network interfaces in a port's address table: a bond appears only there."""
    names = (files.text(f"{folder}/gid_attrs/ndevs/{index}") for index in range(_ADDRESSES))
    return tuple(dict.fromkeys(printable(name) for name in names if name))


def _counters(place: PortPlace, folder: str, names: Sequence[str]) -> dict[str, int]:
    there = set(place.files.names(f"{place.folder}/{folder}"))
    values = {name: whole(place.text(f"{folder}/{name}")) for name in names if name in there}
    return {name: value for name, value in values.items() if value is not None}


def _rate(place: PortPlace, port: Port, notes: PortNotes) -> float | None:
    rate, why = _rate_or_why(place, port)
    if why:
        notes.unknown[f"nics/{place.key}/ports/{port.number}/rate_bits_per_s"] = why
    if port.rate_text and falls_back(port.rate_text) and rate is not None and port.link_layer == "infiniband":
        notes.doubts.append(f"{place.key} port {port.number} is read at SDR, which the kernel also prints for speeds it does not know")
    return rate


def _rate_or_why(place: PortPlace, port: Port) -> tuple[float | None, str | None]:
    text = port.rate_text
    if _is_down(port):
        return None, IS_DOWN
    if text is None:
        return None, "the files hold no rate of this port"
    if falls_back(text) and port.link_layer == "ethernet":
        speed = _speed(place, port.number)
        return speed, None if speed else f"the kernel prints '{text}' for unknown speeds, and the interface reports none"
    if falls_back(text) and _NEVER_AT_SDR.match(place.type or ""):
        return None, f"the kernel prints '{text}' for speeds it does not know, and {place.type} does not run at SDR: ask the switch"
    rate = port_rate(text, port.link_layer or "infiniband")
    return rate, None if rate else f"'{text}' is not a valid port rate"


def _is_down(port: Port) -> bool:
    return port.state == "down" or (port.state is None and port.phys_state in {"disabled", "polling", "sleep"})


def _speed(place: PortPlace, number: int) -> float | None:
    name = _interface(place, number)
    megabits = whole(place.files.text(f"/sys/class/net/{name}/speed"), 1, _MOST_SPEED) if name and not place.virtual else None
    return megabits * 1e6 if megabits else None


def _mtu(place: PortPlace, port: Port, notes: PortNotes) -> int | None:
    """Return the MTU. RoCE uses the largest InfiniBand MTU that fits into the interface's with the headers."""
    name = _interface(place, port.number) if port.link_layer == "ethernet" else None
    mtu = whole(place.files.text(f"/sys/class/net/{name}/mtu"), 1, 1 << 20) if name else None
    found = next((size for size in MTUS if mtu and size <= mtu - _ROCE_HEADERS and not _is_down(port)), None)
    if found is None:
        why = IS_DOWN if _is_down(port) else "sysfs does not hold it: give the output of ibv_devinfo"
        notes.unknown[f"nics/{place.key}/ports/{port.number}/mtu_bytes"] = why
    return found


def _interface(place: PortPlace, number: int) -> str | None:
    """Return the interface that carries a port: from its address table, else the device's own by port, else the only one."""
    own = interfaces_of_port(place.files, place.folder)
    if own:
        return own[0]
    ports = {name: whole(place.files.text(f"/sys/class/net/{name}/dev_port"), 0, 254) for name in place.interfaces}
    matching = [name for name, port in ports.items() if port == number - 1]
    return matching[0] if len(matching) == 1 else place.interfaces[0] if len(place.interfaces) == 1 else None


# RDMA devices (InfiniBand, RoCE, EFA, software) as /sys/class/infiniband shows them.

KIND = "InfiniBand sysfs"
CLASS = "/sys/class/infiniband"


def read(files: Files) -> Machine:
    """Return the RDMA devices with their ports, sorted by name; an empty machine without any. Never raises."""
    notes = PortNotes()
    nics = tuple(_device(files, name, notes) for name in files.names(CLASS))
    return Machine(sources=(KIND,), nics=nics, unknown=notes.unknown, doubts=few(notes.doubts)) if nics else Machine()


def interfaces_of(files: Files, device: str) -> tuple[str, ...]:
    """Return the network interfaces of an RDMA device: under a software device, on the same PCI function, and in its address tables."""
    folder = f"{CLASS}/{device}"
    below, function = _word(files, f"{folder}/parent"), _function(files, device)
    siblings = files.names(f"{function}/net") if function and not below else ()
    named = [name for port in files.names(f"{folder}/ports") for name in interfaces_of_port(files, f"{folder}/ports/{port}")]
    return tuple(dict.fromkeys(name for name in (below, *map(printable, siblings), *named) if name))


def owned_interfaces(files: Files) -> set[str]:
    """Return the network interfaces of RDMA hardware. An interface under a software device carries that device instead."""
    return {owned for name in files.names(CLASS) if not _why_virtual(files, name) for owned in interfaces_of(files, name)}


def pci_folder(path: str | None) -> str:
    """Return the folder of the PCI function in a path, "" without one. A USB device does not belong to its controller's function."""
    parts = (path or "").split("/")
    functions = [index for index, part in enumerate(parts) if part.count(":") == 2 and pci_address(part)]
    on_usb = any(part.startswith("usb") for part in parts)
    return "/".join(parts[: functions[-1] + 1]) if functions and not on_usb else ""


def _device(files: Files, name: str, notes: PortNotes) -> Nic:
    folder, key, virtual = f"{CLASS}/{name}", printable(name), _why_virtual(files, name)
    function = "" if virtual else _function(files, name)
    if not virtual and not function:
        notes.unknown[f"nics/{key}/address"] = "the files do not show its PCI device"
    kind, interfaces = _word(files, f"{folder}/hca_type"), interfaces_of(files, name)
    ports = (
        read_port(PortPlace(files, f"{folder}/ports/{number}", key, kind, virtual, interfaces), number, notes)
        for number in sorted(int(port) for port in files.names(f"{folder}/ports") if port.isdecimal() and whole(port, 1, 255))
    )
    return Nic(
        name=key,
        address=pci_address(function.rpartition("/")[2]),
        model=adapter_name(kind),
        rdma=True,
        numa=numa_of(files.text(f"{function}/numa_node")) if function else None,
        ports=tuple(ports),
        interfaces=interfaces,
        virtual=virtual,
        firmware=_word(files, f"{folder}/fw_ver"),
        guid=parse_guid(files.text(f"{folder}/node_guid")),
    )


def _function(files: Files, name: str) -> str:
    """Return the PCI function of a device, from its class link or its device link."""
    return pci_folder(files.real(f"{CLASS}/{name}")) or pci_folder(files.real(f"{CLASS}/{name}/device"))


def _why_virtual(files: Files, name: str) -> str | None:
    """Return why a device is virtual.

    Software devices may be under the PCI device of their interface; names and own files identify them.
    """
    below = _word(files, f"{CLASS}/{name}/parent")  # only rxe has it
    software = why_software("rxe" if below else name)
    if software:
        return f"{software} over {below}" if below else software
    return "no hardware behind it" if (files.real(f"{CLASS}/{name}") or "").startswith("/sys/devices/virtual/") else None


def _word(files: Files, path: str) -> str | None:
    return printable(files.text(path) or "") or None


# Network interfaces without an RDMA device: physical ones, and virtual ones with the reason.
#
# The contents of the files: Linux Documentation/ABI/testing/sysfs-class-net.

ETHERNET_KIND = "network sysfs"
ETHERNET_CLASS = "/sys/class/net"
_INFINIBAND = "32"
_HARDWARE = {"1", _INFINIBAND}  # ARPHRD_ETHER, ARPHRD_INFINIBAND of linux/if_arp.h
_STATES = {"up": "active", "down": "down", "lowerlayerdown": "down", "notpresent": "down"}


def read_ethernet(files: Files) -> Machine:
    """Return the interfaces sorted by name, without loopback and those of RDMA hardware; an empty machine without any. Never raises.

    Rate limits of traffic shapers are read only on the live machine.
    """
    owned = owned_interfaces(files)
    names = [
        name for name in files.names(ETHERNET_CLASS) if name != LOOPBACK and not _belongs(files, name, owned) and _is_interface(files, name)
    ]
    shaped = shapes() if names and isinstance(files, Folder) and files.root == Path("/") else {}
    unknown: dict[str, str] = {}
    nics = tuple(_nic(files, name, shaped, unknown) for name in names)
    return Machine(sources=(ETHERNET_KIND,), nics=nics, unknown=unknown) if nics else Machine()


def _is_interface(files: Files, name: str) -> bool:
    """Return whether it is an interface, not a file such as bonding_masters. A link with an unknown target may be one."""
    return bool(files.names(f"{ETHERNET_CLASS}/{name}")) or files.real(f"{ETHERNET_CLASS}/{name}") is None


def _belongs(files: Files, name: str, owned: set[str]) -> bool:
    """Return whether it belongs to an RDMA device; a port of a bond belongs to the device of the bond."""
    master = (files.real(f"{ETHERNET_CLASS}/{name}/master") or "").rpartition("/")[2]
    return name in owned or (bool(master) and master in owned)


def _nic(files: Files, name: str, shaped: Mapping[str, float], unknown: dict[str, str]) -> Nic:
    folder, key = f"{ETHERNET_CLASS}/{name}", printable(name)
    virtual, function = _why_none(files, folder), pci_folder(files.real(f"{folder}/device") or files.real(folder))
    state = _state(files, folder)
    rate = speed_of(files, folder)
    why = _why_no_rate(virtual, state, rate)
    if why:
        unknown[f"nics/{key}/ports/1/rate_bits_per_s"] = why
    port = Port(
        rate_bits_per_s=None if why else rate,
        rate_text=f"{rate / 1e6:.0f} Mb/s" if rate else None,
        state=state,
        phys_state="linkup" if files.text(f"{folder}/carrier") == "1" else None,
        link_layer="infiniband" if files.text(f"{folder}/type") == _INFINIBAND else "ethernet",
        mtu_bytes=whole(files.text(f"{folder}/mtu"), 1, 1 << 20),
        shaped_bits_per_s=shaped.get(name),
    )
    address, numa = pci_address(function.rpartition("/")[2]), numa_of(files.text(f"{function}/numa_node")) if function else None
    return Nic(name=key, address=address, numa=numa, ports=(port,), interfaces=(key,), virtual=virtual)


def _why_none(files: Files, folder: str) -> str | None:
    """Return why it is not a port of the machine: a bond has a speed but consists of ports that are already counted."""
    kind = files.text(f"{folder}/type")
    return made_of(files, folder) or why_virtual(files, folder) or (None if kind is None or kind in _HARDWARE else "tunnel or the like")


def _why_no_rate(virtual: str | None, state: str | None, rate: float | None) -> str | None:
    if virtual and virtual not in {"bond", "VLAN"}:
        return f"virtual ({virtual}): its speed means nothing"
    if state == "down":
        return "the interface is down"
    return None if rate else "its driver reports no speed"


def _state(files: Files, folder: str) -> str | None:
    """Return the state. Drivers without link detection report "unknown": then the carrier decides."""
    known = files.text(f"{folder}/operstate") or ""
    return _STATES.get(known) or ({"1": "active", "0": "down"}.get(files.text(f"{folder}/carrier") or ""))
