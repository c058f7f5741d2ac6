"""`ibv_devinfo` and `ibv_devinfo -v`: RDMA devices with their ports. Only -v prints the speed.

The words and codes: rdma-core libibverbs/examples/devinfo.c, and enum ibv_port_state in libibverbs/verbs.h.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from collbench.machine.model import Machine, Nic, Port
from collbench.machine.readers.doubts import few
from collbench.machine.readers.infiniband_rate import LANES, port_rate
from collbench.machine.readers.part_names import AMAZON, MELLANOX, part_name
from collbench.machine.readers.rdma_words import IS_DOWN, MTUS, NO_LID, guid, lid, lines_of, link_layer, state, why_software
from collbench.machine.readers.text import HEAD, Reader, Unreadable, printable, whole

KIND = "ibv_devinfo"

_DEVICE = re.compile(r"^[ \t]*hca_id:", re.MULTILINE)
_NONE = "No IB devices found"
_LINE = re.compile(r"^([a-z_]+):\s*(\S.*)$")
_SPEEDS = {1: "SDR", 2: "DDR", 4: "QDR", 8: "FDR10", 16: "FDR", 32: "EDR", 64: "HDR", 128: "NDR", 256: "XDR"}
_PCI_VENDORS = {0x02C9: MELLANOX, 0x15B3: MELLANOX, 0x1D0F: AMAZON}  # Mellanox is printed by its Ethernet prefix
_MOST_DEVICES = 1024

Facts = dict[str, str]


@dataclass
class _Device:
    facts: Facts
    ports: list[Facts] = field(default_factory=list)


def looks_like(text: str, name: str) -> bool:
    """It has an hca_id line, or says that there is no device."""
    head = text[:HEAD]
    return bool(_DEVICE.search(head)) or head.strip().startswith(_NONE)


def starts(line: str) -> bool:
    """Whether the line begins a device."""
    return bool(_DEVICE.match(line))


def read(text: str, name: str) -> Machine:
    """The RDMA devices that are listed, and their ports. A port that is down has no rate and no MTU, whatever is printed.

    Raises Unreadable for text without a device.
    """
    source = (f"{KIND} {printable(name)}",)
    if text.strip().startswith(_NONE):
        return Machine(sources=source, unknown={"nics": "ibv_devinfo found no RDMA device: a container, or no driver"})
    devices = _devices(text, name)
    if not devices:
        raise Unreadable(f"{printable(name)} has no hca_id line, which begins each device of ibv_devinfo: save `ibv_devinfo -v` again")
    if len(devices) > _MOST_DEVICES:
        raise Unreadable(f"{printable(name)} lists {len(devices)} devices, more than a machine has: give the output for one machine")
    unknown: dict[str, str] = {}
    nics: dict[str, Nic] = {}
    doubts = []
    for device in devices:
        nic = _nic(device, unknown)
        if nic.name in nics:
            doubts.append(f"{nic.name} is listed twice in {printable(name)}: the first was taken")
        nics.setdefault(nic.name, nic)
    return Machine(sources=source, nics=tuple(nics.values()), unknown=unknown, doubts=few(list(dict.fromkeys(doubts))))


def _devices(text: str, name: str) -> list[_Device]:
    """The lines of each device and of each of its ports; the first of two lines with one name counts."""
    devices: list[_Device] = []
    for line in lines_of(text, name):
        match = _LINE.match(line)
        if not match or (not devices and match[1] != "hca_id"):
            continue
        if match[1] == "hca_id":
            devices.append(_Device({}))
        elif match[1] == "port":
            devices[-1].ports.append({})
        facts = devices[-1].ports[-1] if devices[-1].ports else devices[-1].facts
        facts.setdefault(match[1], match[2])
    return devices


def _nic(device: _Device, unknown: dict[str, str]) -> Nic:
    facts = device.facts
    name = printable(facts["hca_id"], 64)
    vendor = _PCI_VENDORS.get(whole(facts.get("vendor_id"), 0, 0xFFFFFF) or 0)
    ports: dict[int, Port] = {}
    for lines in device.ports:
        number = whole(lines.get("port"), 1, 255)
        if number is not None and number not in ports:
            ports[number] = _port(number, lines, f"nics/{name}/ports/{number}", unknown)
    if not ports:
        unknown[f"nics/{name}/ports"] = "ibv_devinfo lists no port of it"
    return Nic(
        name=name,
        model=part_name(vendor, whole(facts.get("vendor_part_id"), 0, 0xFFFF)),
        rdma=True,
        ports=tuple(ports.values()),
        virtual=why_software(name),
        firmware=printable(facts.get("fw_ver", ""), 60) or None,
        guid=guid(facts.get("node_guid")),
    )


def _port(number: int, lines: Mapping[str, str], path: str, unknown: dict[str, str]) -> Port:
    layer = link_layer(lines.get("link_layer"))
    logical, physical = state(lines.get("state")), state(lines.get("phys_state"))
    reasons: dict[str, str | None] = {}
    mtu = whole((lines.get("active_mtu") or "").split(" ")[0])
    mtu, reasons["mtu_bytes"] = (mtu, None) if mtu in MTUS else (None, "ibv_devinfo prints no active_mtu that ports have")
    text = _rate_text(lines)
    rate = port_rate(text, layer or "infiniband") if text else None
    reasons["rate_bits_per_s"] = None if rate else _why_no_rate(lines)
    if logical == "down":
        rate = mtu = None
        reasons = {"mtu_bytes": IS_DOWN, "rate_bits_per_s": IS_DOWN}
    infiniband = layer == "infiniband"
    local = lid(lines.get("port_lid")) if infiniband else None
    reasons["lid"] = NO_LID if infiniband and local is None else None
    unknown.update({f"{path}/{key}": why for key, why in reasons.items() if why})
    return Port(
        number=number,
        rate_bits_per_s=rate,
        rate_text=text,
        state=logical,
        phys_state=physical,
        link_layer=layer,
        mtu_bytes=mtu,
        lid=local,
        sm_lid=whole(lines.get("sm_lid"), 0, 0xFFFF) if infiniband else None,
    )


def _rate_text(lines: Mapping[str, str]) -> str | None:
    """As the kernel prints it, "400 Gb/sec (4X NDR)", of active_width "4X (2)" and active_speed "100.0 Gbps (128)"."""
    width = re.match(r"(\d{1,2})X?\b", lines.get("active_width", ""))
    code = re.search(r"\((\d{1,3})\)$", lines.get("active_speed", ""))
    speed = _SPEEDS.get(int(code[1])) if code else None
    return f"{int(width[1]) * LANES[speed].printed / 1e9:g} Gb/sec ({int(width[1])}X {speed})" if width and speed else None


def _why_no_rate(lines: Mapping[str, str]) -> str:
    if "active_speed" not in lines:
        return "ibv_devinfo prints the speed only with -v"
    return f"'{printable(lines.get('active_width', ''), 30)}' at '{printable(lines['active_speed'], 40)}' is no rate that a port has"


IBV_DEVINFO = Reader(KIND, looks_like, read, lists=frozenset({"nics"}), starts=starts)
