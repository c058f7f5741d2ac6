"""RDMA devices with their ports, and Ethernet interfaces, from sysfs: rate, state, MTU and counters.

File contents: Linux Documentation/ABI/stable/sysfs-class-infiniband. No file has InfiniBand's active MTU; the interface's gives RoCE's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from collbench.machine.files import Files, Folder
from collbench.machine.interfaces import LOOPBACK, made_of, shapes, speed_of, why_virtual
from collbench.machine.model import Machine, Nic, Port
from collbench.machine.readers.pci import adapter_name
from collbench.machine.readers.rdma import (
    IS_DOWN,
    MTUS,
    OF_ONE_PORT,
    LinkLayer,
    falls_back,
    is_bond,
    link_layer,
    parse_guid,
    parse_lid,
    port_rate,
    state,
    why_no_lid,
    why_software,
)
from collbench.machine.readers.text import Notes, few, numa_of, pci_address, printable, whole

# Counters of errors and congestion, out of about a hundred.
COUNTERS = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors"),
    *("port_rcv_switch_relay_errors", "port_rcv_constraint_errors", "port_xmit_constraint_errors", "port_xmit_discards"),
    *("port_xmit_wait", "local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped"),
)
HW_COUNTERS = (
    *("out_of_sequence", "out_of_buffer", "packet_seq_err", "duplicate_request", "implied_nak_seq_err", "local_ack_timeout_err"),
    *("rnr_nak_retry_err", "roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart_cnps", "np_cnp_sent"),
    *("np_ecn_marked_roce_packets", "rp_cnp_handled", "rp_cnp_ignored", "rx_icrc_encapsulated", "out_of_seq_request"),
    *("rcvd_seq_err", "retry_exceeded_err", "rx_drops"),
)

_NEVER_AT_SDR = re.compile(r"^MT41[1-9]")  # ConnectX-4 (MT4115) and later, BlueField (MT416xx)
_ROCE_HEADERS = 96  # bytes; iboe_get_mtu() in Linux include/rdma/ib_addr.h
_ADDRESSES = 8  # read at most, of up to 256; the first ones are in use


class PortPlace(msgspec.Struct, frozen=True):
    """A port's number and folder, and its device: `key` names the device in sentences and fact paths, `type` is "MT4129"."""

    number: int
    files: Files
    folder: str
    key: str
    type: str | None
    virtual: str | None
    interfaces: Sequence[str]

    def text(self, name: str) -> str | None:
        """Return the content of a file of the port."""
        return self.files.text(f"{self.folder}/{name}")


def _read_port(place: PortPlace, notes: Notes) -> Port:
    """Return the port. Unknown facts and their reasons are added to `notes`. Never raises."""
    layer = link_layer(place.text("link_layer"))
    logical_state = state(place.text("state"))
    physical_state = state(place.text("phys_state"))
    infiniband = layer == "infiniband"  # Ethernet has neither LIDs nor a subnet manager, and sysfs prints zeros
    down = logical_state == "down" or (logical_state is None and physical_state in {"disabled", "polling", "sleep"})
    carrier = _carrier(place)
    rate, why_rate = (None, IS_DOWN) if down else _rate(place, layer, carrier, notes)
    # RoCE uses the largest InfiniBand MTU that fits into the interface's with the headers
    mtu = None
    if carrier and layer == "ethernet" and not down:
        carrier_mtu = whole(place.files.text(f"{ETHERNET_CLASS}/{carrier}/mtu"), 1, 1 << 20) or 0
        mtu = next((size for size in MTUS if size <= carrier_mtu - _ROCE_HEADERS), None)
    lid = parse_lid(place.text("lid")) if infiniband else None
    path = f"nics/{place.key}/ports/{place.number}"
    if infiniband and lid is None:
        notes.unknown[f"{path}/lid"] = why_no_lid(place.text("lid"))
    if not rate:
        notes.unknown[f"{path}/rate_bits_per_s"] = why_rate
    if not mtu:
        notes.unknown[f"{path}/mtu_bytes"] = IS_DOWN if down else "sysfs does not hold it: give the output of ibv_devinfo"
    return Port(
        number=place.number,
        rate_bits_per_s=rate,
        rate_text=printable(place.text("rate") or "") or None,
        state=logical_state,
        phys_state=physical_state,
        link_layer=layer,
        mtu_bytes=mtu,
        lid=lid,
        sm_lid=whole(place.text("sm_lid"), 0, 0xFFFF) if infiniband else None,
        counters={**_counters(place, "counters", COUNTERS), **_counters(place, "hw_counters", HW_COUNTERS)},
    )


def _counters(place: PortPlace, folder: str, names: Sequence[str]) -> dict[str, int]:
    files = set(place.files.names(f"{place.folder}/{folder}"))
    values = {name: whole(place.text(f"{folder}/{name}")) for name in names if name in files}
    return {name: value for name, value in values.items() if value is not None}


def _rate(place: PortPlace, layer: LinkLayer | None, carrier: str | None, notes: Notes) -> tuple[float | None, str]:
    """Return the rate of a port that is up, and why it is unknown. The kernel prints SDR also for speeds that it does not know."""
    text = printable(place.text("rate") or "")
    if not text:
        return None, "the files hold no rate of this port"
    if layer == "ethernet" and is_bond(place.key):
        return _speed_of_bond(place.files, carrier), OF_ONE_PORT
    if falls_back(text) and layer == "ethernet":
        speed = speed_of(place.files, f"{ETHERNET_CLASS}/{carrier}") if carrier and not place.virtual else None
        return speed, f"the kernel prints '{text}' for unknown speeds, and the interface reports none"
    if falls_back(text) and _NEVER_AT_SDR.match(place.type or ""):
        return None, f"the kernel prints '{text}' for speeds it does not know, and {place.type} does not run at SDR: ask the switch"
    rate = port_rate(text, layer or "infiniband")
    if rate and falls_back(text) and layer == "infiniband":
        notes.doubt(f"{place.key} port {place.number} is read at SDR, which the kernel also prints for speeds it does not know")
    return rate, f"'{text}' is not a valid port rate"


def _speed_of_bond(files: Files, carrier: str | None) -> float | None:
    """Return the speed of all ports of a bond in use together; None if its interface is not visible. carrier: the bond, or a port of it."""
    bond = (files.real(f"{ETHERNET_CLASS}/{carrier}/master") or "").rpartition("/")[2] or carrier
    folder = f"{ETHERNET_CLASS}/{bond}"
    return speed_of(files, folder) if made_of(files, folder) else None


def _interfaces_of_port(files: Files, folder: str) -> tuple[str, ...]:
    """Return the network interfaces in a port's address table: a bond appears only there."""
    names = (files.text(f"{folder}/gid_attrs/ndevs/{index}") for index in range(_ADDRESSES))
    return tuple(dict.fromkeys(printable(name) for name in names if name))


def _carrier(place: PortPlace) -> str | None:
    """Return the interface that carries a port: from its address table, else the device's own by port, else the only one."""
    listed = _interfaces_of_port(place.files, place.folder)
    if listed:
        return listed[0]
    ports = {name: whole(place.files.text(f"{ETHERNET_CLASS}/{name}/dev_port"), 0, 254) for name in place.interfaces}
    matching = [name for name, port in ports.items() if port == place.number - 1]
    candidates = matching if len(matching) == 1 else place.interfaces
    return candidates[0] if len(candidates) == 1 else None


# RDMA devices (InfiniBand, RoCE, EFA, software) as /sys/class/infiniband shows them.

KIND = "InfiniBand sysfs"
CLASS = "/sys/class/infiniband"


def read(files: Files) -> Machine:
    """Return the RDMA devices with their ports, sorted by name; an empty machine without any. Never raises."""
    notes = Notes()
    nics = tuple(_device(files, name, notes) for name in files.names(CLASS))
    return Machine(sources=(KIND,), nics=nics, unknown=notes.unknown, doubts=few(notes.doubts)) if nics else Machine()


def interfaces_of(files: Files, device: str) -> tuple[str, ...]:
    """Return the network interfaces of an RDMA device: under a software device, on the same PCI function, and in its address tables."""
    folder = f"{CLASS}/{device}"
    parent = _word(files, f"{folder}/parent")
    function = _function(files, device)
    siblings = files.names(f"{function}/net") if function and not parent else ()
    port_interfaces = [name for port in files.names(f"{folder}/ports") for name in _interfaces_of_port(files, f"{folder}/ports/{port}")]
    return tuple(dict.fromkeys(name for name in (parent, *map(printable, siblings), *port_interfaces) if name))


def pci_folder(path: str | None) -> str:
    """Return the folder of the PCI function in a path, "" without one. A USB device does not belong to its controller's function."""
    parts = (path or "").split("/")
    functions = [index for index, part in enumerate(parts) if part.count(":") == 2 and pci_address(part)]
    on_usb = any(part.startswith("usb") for part in parts)
    return "/".join(parts[: functions[-1] + 1]) if functions and not on_usb else ""


def _device(files: Files, name: str, notes: Notes) -> Nic:
    folder = f"{CLASS}/{name}"
    key = printable(name)
    virtual = _why_virtual(files, name)
    function = "" if virtual else _function(files, name)
    if not virtual and not function:
        notes.unknown[f"nics/{key}/address"] = "the files do not show its PCI device"
    kind = _word(files, f"{folder}/hca_type")
    interfaces = interfaces_of(files, name)
    ports = (
        _read_port(PortPlace(number, files, f"{folder}/ports/{number}", key, kind, virtual, interfaces), notes)
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
        gdr=_reaches_gpus(files, function) if function else None,
        guid=parse_guid(files.text(f"{folder}/node_guid")),
        card_guid=parse_guid(files.text(f"{folder}/sys_image_guid")),
    )


def _reaches_gpus(files: Files, function: str) -> bool | None:
    """Return whether Amazon's driver reports that it reaches NVIDIA GPUs by itself, without a peer-memory module; None if it does not.

    Its file is `p2p` ("NVIDIA", "NVIDIA peermem"), in older releases `gdr` (kernel/linux/efa/src/efa_sysfs.c and efa_p2p.c of
    https://github.com/amzn/amzn-drivers).
    """
    reaches = (files.text(f"{function}/p2p") or "").startswith("NVIDIA") or files.text(f"{function}/gdr") == "1"
    return True if reaches else None


def _function(files: Files, name: str) -> str:
    return pci_folder(files.real(f"{CLASS}/{name}")) or pci_folder(files.real(f"{CLASS}/{name}/device"))


def _why_virtual(files: Files, name: str) -> str | None:
    """Return why a device is virtual. Software devices may be under their interface's PCI device: names and own files identify them."""
    parent = _word(files, f"{CLASS}/{name}/parent")  # only rxe has it
    software = why_software("rxe" if parent else name)
    if software:
        return f"{software} over {parent}" if parent else software
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
    devices = [name for name in files.names(CLASS) if not _why_virtual(files, name)]
    device_interfaces = {interface for device in devices for interface in interfaces_of(files, device)}
    names = []
    for name in files.names(ETHERNET_CLASS):
        folder = f"{ETHERNET_CLASS}/{name}"
        master = (files.real(f"{folder}/master") or "").rpartition("/")[2]  # a port of a bond belongs to the device of the bond
        # a file such as bonding_masters is not an interface, but a link with an unknown target may be one
        is_interface = bool(files.names(folder)) or files.real(folder) is None
        if is_interface and name != LOOPBACK and name not in device_interfaces and master not in device_interfaces:
            names.append(name)
    shaped = shapes() if names and isinstance(files, Folder) and files.root == Path("/") else {}
    unknown: dict[str, str] = {}
    nics = tuple(_nic(files, name, shaped, unknown) for name in names)
    return Machine(sources=(ETHERNET_KIND,), nics=nics, unknown=unknown) if nics else Machine()


def _nic(files: Files, name: str, shaped: Mapping[str, float], unknown: dict[str, str]) -> Nic:
    folder = f"{ETHERNET_CLASS}/{name}"
    key = printable(name)
    kind = files.text(f"{folder}/type")
    virtual = made_of(files, folder) or why_virtual(files, folder)  # a bond has a speed but consists of ports that are already counted
    if not virtual and kind is not None and kind not in _HARDWARE:
        virtual = "tunnel or the like"
    function = pci_folder(files.real(f"{folder}/device") or files.real(folder))
    carrier = files.text(f"{folder}/carrier") or ""  # it decides where a driver without link detection reports "unknown"
    state = _STATES.get(files.text(f"{folder}/operstate") or "") or {"1": "active", "0": "down"}.get(carrier)
    rate = speed_of(files, folder)
    why = None if rate else "its driver reports no speed"
    if state == "down":
        why = "the interface is down"
    if virtual and virtual not in {"bond", "VLAN"}:
        why = f"virtual ({virtual}): its speed means nothing"
    if why:
        unknown[f"nics/{key}/ports/1/rate_bits_per_s"] = why
    port = Port(
        rate_bits_per_s=None if why else rate,
        rate_text=f"{rate / 1e6:.0f} Mb/s" if rate else None,
        state=state,
        phys_state="linkup" if carrier == "1" else None,
        link_layer="infiniband" if kind == _INFINIBAND else "ethernet",
        mtu_bytes=whole(files.text(f"{folder}/mtu"), 1, 1 << 20),
        shaped_bits_per_s=shaped.get(name),
    )
    address = pci_address(function.rpartition("/")[2])
    numa = numa_of(files.text(f"{function}/numa_node")) if function else None
    return Nic(name=key, address=address, numa=numa, ports=(port,), interfaces=(key,), virtual=virtual)
