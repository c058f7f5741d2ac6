"""Text of InfiniBand tools: `iblinkinfo`, `ibportstate`, `ibstat`, `ibv_devinfo`, and `ibnetdiscover` (plain, -f, -g, and -p).

Format of ibnetdiscover: ibnetdiscover(8), "TOPOLOGY FILE FORMAT", and `ibnetdiscover.c` of infiniband-diags. With -p an adapter
has its port's GUID. A cable is listed once for each end. One entry is enough, so a truncated text can be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from collbench.machine.fabric import Cable, End, Fabric, FabricNode, Kind
from collbench.machine.model import FabricLink, Machine, Nic, Port, name_by_lid
from collbench.machine.readers.pci import AMAZON, MELLANOX, adapter_name, part_name
from collbench.machine.readers.rdma import (
    IS_DOWN,
    LANES,
    MTUS,
    NO_LID,
    WIDTHS,
    LinkLayer,
    fabric_rate,
    lane_name,
    lines_of,
    link_layer,
    parse_guid,
    parse_lid,
    port_rate,
    state,
    why_software,
)
from collbench.machine.readers.text import HEAD, Reader, Unreadable, decoded, few, printable, several, whole
from collbench.units import plural
from collbench.untrusted import read_file

# The output of `iblinkinfo`: the connections of hosts and switches with width and speed. Each section lists the ports of one node.

IBLINKINFO_KIND = "iblinkinfo"

_SECTION = re.compile(r"^(CA|Switch|RT): *(0x[0-9a-f]{1,16} )? *(.*?):?\s*$", re.IGNORECASE)
_ARROW = re.compile(r"==\((.*?)\)==>")
_NEAR = re.compile(r"(?:^|\s)(\d{1,5})\s+(\d{1,3})\[\s*\]\s*$")
_FAR = re.compile(r'^\s*(?:0x[0-9a-f]+\s+)?(?:(\d{1,5})\s+(\d{1,3}))?\s*\[\s*\]\s*"([^"]*)"\s*\(\s*(.*?)\s*\)\s*$')
_SPEED = re.compile(r"^\s*(\d{1,3})X\s+(\d{1,4}(?:\.\d{1,5})?)\s+Gbps\s")
_LONGEST_LINE = 1000
_NO_HOST = "aggregation node"  # of SHARP: a part of a switch that appears as an adapter
_NAMELESS = "mellanox technologies"  # an adapter without its host's name


@dataclass(frozen=True)
class _Row:
    """One port: its section, and both ends."""

    kind: Literal["CA", "Switch", "RT"]
    node: str
    port: int
    width: int | None
    lane: float | None
    peer: str | None
    peer_port: int | None
    note: str


def looks_like_iblinkinfo(text: str, name: str) -> bool:
    """Return whether the start of a text is iblinkinfo's."""
    return "==>" in text[:HEAD] and any(_ARROW.search(line[:_LONGEST_LINE]) for line in text[:HEAD].splitlines())


def starts(line: str) -> bool:
    """Return whether the line begins a node's section."""
    return bool(_SECTION.match(line[:_LONGEST_LINE]))


def read_iblinkinfo(text: str, name: str) -> Machine:
    """Return the hosts' cables in `fabric`; lanes are signalling rates, before line coding. Raises Unreadable without a readable row."""
    doubts: list[str] = []
    rows = list(_rows(text, doubts))
    if not rows:
        raise Unreadable(
            f"{printable(name)} holds no link of iblinkinfo below a 'CA:' or 'Switch:' line: save the output of plain `iblinkinfo`"
        )
    adapters = [row for row in rows if row.kind == "CA"]
    switches = {row.node for row in rows if row.kind == "Switch"}
    ends = adapters or [turned for row in rows if row.kind == "Switch" and row.peer not in switches for turned in _turned(row)]
    hosts = [row for row in ends if _NO_HOST not in row.node.lower()]
    notes: dict[str, list[str]] = {}
    for row in hosts:
        notes.setdefault(row.note, []).append(f"{row.node} port {row.port}")
    noted = [f"{several(ports)}: {IBLINKINFO_KIND} notes '{note}', both ends could do better" for note, ports in notes.items() if note]
    return Machine(
        sources=(f"{IBLINKINFO_KIND} {printable(name)}",), fabric=tuple(_link(row) for row in hosts), doubts=(*doubts, *few(noted))
    )


def _rows(text: str, doubts: list[str]) -> Iterator[_Row]:
    kind: str | None = None
    node, odd = "", 0
    for line in text.splitlines():
        section = _SECTION.match(line[:_LONGEST_LINE])
        if section:
            kind, node = section[1], _node(section[3], section[2])
        elif "==>" in line and kind:
            row = _row(kind, node, line[:_LONGEST_LINE])
            odd += row is None or (row.peer is not None and row.lane is None)
            yield from [row] if row else []
    if odd:
        doubts.append(f"{IBLINKINFO_KIND}: {odd} links could not be read whole")


def _row(kind: str, node: str, line: str) -> _Row | None:
    arrow = _ARROW.search(line)
    near, far = (_NEAR.search(line[: arrow.start()]), _FAR.match(line[arrow.end() :])) if arrow else (None, None)
    if not arrow or not near or not far:
        return None
    width, lane = _speed(arrow[1])
    known: Literal["CA", "Switch", "RT"] = "CA" if kind.upper() == "CA" else "Switch" if kind.lower() == "switch" else "RT"
    return _Row(known, node, int(near[2]), width, lane, _node(far[3], None) or None, whole(far[2], 0, 255), printable(far[4], 80))


def _speed(text: str) -> tuple[int | None, float | None]:
    """Return (lanes, bits/s of one before line coding); (None, None) for a port that is down and for unknown rates."""
    match = _SPEED.match(text)
    width, lane = (int(match[1]), float(match[2]) * 1e9) if match else (0, 0.0)
    return (width, lane) if width in WIDTHS and lane_name(lane) else (None, None)


def _node(description: str, guid: str | None) -> str:
    """Return a node's description, or its GUID if the description is only the vendor's."""
    name = printable(description).strip(' "')
    nameless = not name or (_NAMELESS in name.lower() and _NO_HOST not in name.lower())
    return guid.strip() if guid and nameless else name


def _turned(row: _Row) -> Iterable[_Row]:
    """Return a switch's row as seen from the host at its other end."""
    return [_Row("CA", row.peer, row.peer_port, row.width, row.lane, row.node, row.port, row.note)] if row.peer and row.peer_port else []


def _link(row: _Row) -> FabricLink:
    host, _, device = row.node.partition(" ")
    return FabricLink(host, device.strip() or None, row.port, row.width, row.lane, row.peer, row.peer_port)


IBLINKINFO = Reader(IBLINKINFO_KIND, looks_like_iblinkinfo, read_iblinkinfo, lists=frozenset({"fabric"}), starts=starts)


# `ibportstate LID PORT`: one InfiniBand port of an adapter, its state, and its active and supported lanes.
#
# The lines: rdma-core infiniband-diags/ibportstate.c ("LinkWidthActive:.................4X"). The tool prints no device, only the LID.

IBPORTSTATE_KIND = "ibportstate"
_IBPORTSTATE_SECTION = re.compile(r"^# Port info: (?:Lid (\d{1,5}) port (\d{1,3})|DR path .{0,80})$")
_OTHER_SECTION = re.compile(r"^# .{1,100}$")
_LINE = re.compile(r"^([A-Za-z0-9]{3,40}):\.*\s*(.*)$")
_LANES = re.compile(r"\b(\d{1,2})X\b")
_LANE_SPEED = re.compile(r"^(\d{1,3}(?:\.\d{1,5})?) Gbps\b")
_SPEEDS = ("LinkSpeedExtActive2", "LinkSpeedExtActive", "LinkSpeedActive")


def looks_like_ibportstate(text: str, name: str) -> bool:
    """Return whether the text has ibportstate's dotted lines."""
    start = text[:HEAD]
    return "LinkWidthActive:." in start and "PhysLinkState:." in start and "==(" not in start


def read_ibportstate(text: str, name: str) -> Machine:
    """Return the port as a NIC named after its LID, "LID 12"; merging finds the NIC that another source lists with this LID.

    Raises Unreadable for a switch's port, and for text without a LID or a width.
    """
    called = printable(name)
    lines = list(lines_of(text, name))
    if any("Switch PortInfo" in line for line in lines):
        raise Unreadable(
            f"{called} describes the port of a switch: give the port of an adapter, `ibportstate LID PORT` with LIDs of `ibstat`"
        )
    facts, number, fdr10 = _facts(lines)
    local, width = parse_lid(facts.get("Lid")), _lanes(facts.get("LinkWidthActive"))
    if local is None or width is None:
        raise Unreadable(f"{called} has no Lid or no LinkWidthActive: save the whole output of `ibportstate LID PORT` again")
    nic = name_by_lid(local)
    logical = state(facts.get("LinkState"))
    speed = 10.3125 if fdr10 else next((found for key in _SPEEDS if (found := _speed_ibportstate(facts.get(key)))), None)
    rate = None if logical == "down" or speed is None else fabric_rate(width, speed * 1e9)
    why = IS_DOWN if logical == "down" else "ibportstate prints no speed that a port has"
    port = Port(
        number=number,
        rate_bits_per_s=rate,
        rate_text=f"{width}X at {speed:g} Gb/s a lane" if speed else None,
        state=logical,
        phys_state=state(facts.get("PhysLinkState")),
        link_layer="infiniband",
        lid=local,
        sm_lid=whole(facts.get("SMLid"), 0, 0xFFFF),
        lanes=None if logical == "down" else width,
        max_lanes=_widest(facts),
    )
    unknown = {f"nics/{nic}/address": "ibportstate names no device"}
    unknown |= {} if rate else {f"nics/{nic}/ports/{number}/rate_bits_per_s": why}
    return Machine(sources=(f"{IBPORTSTATE_KIND} {called}",), nics=(Nic(nic, rdma=True, ports=(port,)),), unknown=unknown)


def _facts(lines: list[str]) -> tuple[dict[str, str], int, bool]:
    """Return the lines of the last section (the port's current state), the port's number, and whether the speed is FDR10."""
    facts: dict[str, str] = {}
    number, inside, fdr10 = 1, False, False
    for line in lines:
        if match := _IBPORTSTATE_SECTION.match(line):
            facts, inside, fdr10 = {}, True, False
            number = int(match[2]) if match[2] else 1
        elif _OTHER_SECTION.match(line):
            inside = False
        elif match := _LINE.match(line):
            if inside:
                facts.setdefault(match[1], match[2])
            elif facts and match[1] == "LinkSpeedActive":
                fdr10 = (whole(match[2], 0, 255) or 0) == 1
    return facts, number, fdr10


def _lanes(text: str | None) -> int | None:
    match = _LANES.search(text or "")
    return int(match[1]) if match else None


def _widest(facts: Mapping[str, str]) -> int | None:
    """Return the largest number of lanes that is supported and enabled."""
    both = [{int(width) for width in _LANES.findall(facts.get(key, ""))} for key in ("LinkWidthSupported", "LinkWidthEnabled")]
    return max(both[0] & both[1], default=None) if all(both) else None


def _speed_ibportstate(text: str | None) -> float | None:
    match = _LANE_SPEED.match(text or "")
    return float(match[1]) if match else None


IBPORTSTATE = Reader(IBPORTSTATE_KIND, looks_like_ibportstate, read_ibportstate)


# `ibstat` and `ibstatus`: RDMA devices with their ports. ibstat prints a rate without its name: "Rate: 400".
#
# The lines: rdma-core infiniband-diags/ibstat.c and infiniband-diags/scripts/ibstatus.in.

IBSTAT_KIND = "ibstat"

_DEVICE = re.compile(r"^CA:? '([^']*)'$")
_STATUS = re.compile(r"^Infiniband device '([^']*)' port (\d{1,3}) status:$")
_IBSTAT_PORT = re.compile(r"^Port (\d{1,3}):$")
_IBSTAT_LINE = re.compile(r"^([A-Za-z][A-Za-z _]{1,30}):\s*(\S.*)$")
_HEADS = re.compile(r"^[ \t]*(CA:? '|Infiniband device ')", re.MULTILINE)
_MOST_DEVICES = 1024

# Gb/s that identify one rate at any width: from EDR on the printed rate is the data rate, see infiniband_rate.
_PLAIN = {"25", "50", "100", "200", "400", "800", "1600"}
_NAMED = {"14": "1X FDR", "20": "4X DDR", "56": "4X FDR"}
_ETHERNET = _PLAIN | {"1", "10", "40", "56"}
_TWO_MEANINGS = {
    "10": "10 is SDR, 8 Gb/s of data, or what is printed for a speed that the kernel does not know",
    "40": "40 is QDR, 32 Gb/s of data, or FDR10, 40: /sys/class/infiniband shows which",
}


@dataclass
class _Device:
    name: str
    facts: dict[str, str] = field(default_factory=dict)
    ports: dict[int, dict[str, str]] = field(default_factory=dict)
    last: int | None = None

    def note(self, key: str, value: str) -> None:
        """Store a line for the current port, else for the device. Of two lines with one name the first counts."""
        (self.facts if self.last is None else self.ports[self.last]).setdefault(key, value)


def looks_like_ibstat(text: str, name: str) -> bool:
    """Return whether the text has a line like "CA 'mlx5_0'" or "Infiniband device 'mlx5_0' port 1 status:"."""
    return bool(_HEADS.search(text[:HEAD]))


def starts_ibstat(line: str) -> bool:
    """Return whether the line begins a device or a port."""
    return bool(_HEADS.match(line))


def read_ibstat(text: str, name: str) -> Machine:
    """Return the listed RDMA devices and ports. A port that is down has no rate, even if one is printed; MTUs are not printed.

    Raises Unreadable for text without a device.
    """
    called = printable(name)
    devices = _devices(text, name)
    if not devices:
        raise Unreadable(f"{called} has no line like \"CA 'mlx5_0'\", which begins each device of ibstat: save its output again")
    if len(devices) > _MOST_DEVICES:
        raise Unreadable(f"{called} lists {len(devices)} devices, more than a machine has: give the output for one machine")
    unknown: dict[str, str] = {}
    doubts: list[str] = []
    nics = tuple(_nic(device, unknown, doubts) for device in devices)
    return Machine(sources=(f"{IBSTAT_KIND} {called}",), nics=nics, unknown=unknown, doubts=few(doubts))


def _devices(text: str, name: str) -> list[_Device]:
    devices: dict[str, _Device] = {}
    now: _Device | None = None
    for line in lines_of(text, name):
        head, port, entry = _DEVICE.match(line) or _STATUS.match(line), _IBSTAT_PORT.match(line), _IBSTAT_LINE.match(line)
        if head:
            called = printable(head[1], 64) or "?"
            now = devices.setdefault(called, _Device(called))
            now.last = None
        number = head[2] if head and head.re is _STATUS else port[1] if port else None
        if now and number:
            now.last = int(number)
            now.ports.setdefault(now.last, {})
        elif now and entry:
            now.note(entry[1].lower().replace("_", " "), entry[2])
    return list(devices.values())


def _nic(device: _Device, unknown: dict[str, str], doubts: list[str]) -> Nic:
    ports = tuple(_port(number, lines, device.name, unknown, doubts) for number, lines in device.ports.items())
    if not ports:
        unknown[f"nics/{device.name}/ports"] = "ibstat lists no port of it"
    return Nic(
        name=device.name,
        model=adapter_name(device.facts.get("ca type")),
        rdma=True,
        ports=ports,
        virtual=why_software(device.name),
        firmware=printable(device.facts.get("firmware version", ""), 60) or None,
        guid=parse_guid(device.facts.get("node guid")),
    )


def _port(number: int, lines: Mapping[str, str], name: str, unknown: dict[str, str], doubts: list[str]) -> Port:
    path = f"nics/{name}/ports/{number}"
    layer, logical = link_layer(lines.get("link layer")), state(lines.get("state"))
    text = printable(lines.get("rate", ""), 60)
    rate, why = (None, IS_DOWN) if logical == "down" else _rate(text, layer)
    if rate is None:
        unknown[f"{path}/rate_bits_per_s"] = why
    elif why:
        doubts.append(f"{name} port {number}: {why}")
    unknown[f"{path}/mtu_bytes"] = "ibstat prints no MTU"
    infiniband = layer == "infiniband"
    local = parse_lid(lines.get("base lid")) if infiniband else None
    if infiniband and local is None:
        unknown[f"{path}/lid"] = NO_LID
    return Port(
        number=number,
        rate_bits_per_s=rate,
        rate_text=text or None,
        state=logical,
        phys_state=state(lines.get("physical state") or lines.get("phys state")),
        link_layer=layer,
        lid=local,
        sm_lid=whole(lines.get("sm lid"), 0, 0xFFFF) if infiniband else None,
    )


def _rate(text: str, layer: LinkLayer | None) -> tuple[float | None, str]:
    """Return the data bits/s, and why it is None or doubtful ("" for neither)."""
    if "Gb/sec" in text:
        rate = port_rate(text, layer or "infiniband")
        return rate, "" if rate else f"'{text}' is not a valid port rate"
    if text in _PLAIN or (layer == "ethernet" and text in _ETHERNET):
        return int(text) * 1e9, "10 is also printed for a speed that the kernel does not know" if text == "10" else ""
    if layer != "ethernet" and text in _NAMED:
        return port_rate(f"{text} Gb/sec ({_NAMED[text]})"), ""
    return None, _TWO_MEANINGS.get(text) or f"'{text}' is not a valid port rate"


IBSTAT = Reader(IBSTAT_KIND, looks_like_ibstat, read_ibstat, lists=frozenset({"nics"}), starts=starts_ibstat)


# `ibv_devinfo` and `ibv_devinfo -v`: RDMA devices with their ports. Only -v prints the speed.
#
# The words and codes: rdma-core libibverbs/examples/devinfo.c, and enum ibv_port_state in libibverbs/verbs.h.

IBV_DEVINFO_KIND = "ibv_devinfo"

_IBV_DEVINFO_DEVICE = re.compile(r"^[ \t]*hca_id:", re.MULTILINE)
_NONE = "No IB devices found"
_IBV_DEVINFO_LINE = re.compile(r"^([a-z_]+):\s*(\S.*)$")
_IBV_DEVINFO_SPEEDS = {1: "SDR", 2: "DDR", 4: "QDR", 8: "FDR10", 16: "FDR", 32: "EDR", 64: "HDR", 128: "NDR", 256: "XDR"}
_PCI_VENDORS = {0x02C9: MELLANOX, 0x15B3: MELLANOX, 0x1D0F: AMAZON}  # Mellanox is printed by its Ethernet prefix

Facts = dict[str, str]


@dataclass
class _IbvDevinfoDevice:
    facts: Facts
    ports: list[Facts] = field(default_factory=list)


def looks_like_ibv_devinfo(text: str, name: str) -> bool:
    """Return whether the text has an hca_id line, or ibv_devinfo's message for a host without devices."""
    head = text[:HEAD]
    return bool(_IBV_DEVINFO_DEVICE.search(head)) or head.strip().startswith(_NONE)


def starts_ibv_devinfo(line: str) -> bool:
    """Return whether the line begins a device."""
    return bool(_IBV_DEVINFO_DEVICE.match(line))


def read_ibv_devinfo(text: str, name: str) -> Machine:
    """Return the listed RDMA devices and ports. A port that is down has no rate and no MTU, even if one is printed.

    Raises Unreadable for text without a device.
    """
    source = (f"{IBV_DEVINFO_KIND} {printable(name)}",)
    if text.strip().startswith(_NONE):
        return Machine(sources=source, unknown={"nics": "ibv_devinfo found no RDMA device: a container, or no driver"})
    devices = _devices_ibv_devinfo(text, name)
    if not devices:
        raise Unreadable(f"{printable(name)} has no hca_id line, which begins each device of ibv_devinfo: save `ibv_devinfo -v` again")
    if len(devices) > _MOST_DEVICES:
        raise Unreadable(f"{printable(name)} lists {len(devices)} devices, more than a machine has: give the output for one machine")
    unknown: dict[str, str] = {}
    nics: dict[str, Nic] = {}
    doubts = []
    for device in devices:
        nic = _nic_ibv_devinfo(device, unknown)
        if nic.name in nics:
            doubts.append(f"{nic.name} is listed twice in {printable(name)}: the first was taken")
        nics.setdefault(nic.name, nic)
    return Machine(sources=source, nics=tuple(nics.values()), unknown=unknown, doubts=few(list(dict.fromkeys(doubts))))


def _devices_ibv_devinfo(text: str, name: str) -> list[_IbvDevinfoDevice]:
    """Return the lines of each device and of its ports; of two lines with one name the first counts."""
    devices: list[_IbvDevinfoDevice] = []
    for line in lines_of(text, name):
        match = _IBV_DEVINFO_LINE.match(line)
        if not match or (not devices and match[1] != "hca_id"):
            continue
        if match[1] == "hca_id":
            devices.append(_IbvDevinfoDevice({}))
        elif match[1] == "port":
            devices[-1].ports.append({})
        facts = devices[-1].ports[-1] if devices[-1].ports else devices[-1].facts
        facts.setdefault(match[1], match[2])
    return devices


def _nic_ibv_devinfo(device: _IbvDevinfoDevice, unknown: dict[str, str]) -> Nic:
    facts = device.facts
    name = printable(facts["hca_id"], 64)
    vendor = _PCI_VENDORS.get(whole(facts.get("vendor_id"), 0, 0xFFFFFF) or 0)
    ports: dict[int, Port] = {}
    for lines in device.ports:
        number = whole(lines.get("port"), 1, 255)
        if number is not None and number not in ports:
            ports[number] = _port_ibv_devinfo(number, lines, f"nics/{name}/ports/{number}", unknown)
    if not ports:
        unknown[f"nics/{name}/ports"] = "ibv_devinfo lists no port of it"
    return Nic(
        name=name,
        model=part_name(vendor, whole(facts.get("vendor_part_id"), 0, 0xFFFF)),
        rdma=True,
        ports=tuple(ports.values()),
        virtual=why_software(name),
        firmware=printable(facts.get("fw_ver", ""), 60) or None,
        guid=parse_guid(facts.get("node_guid")),
    )


def _port_ibv_devinfo(number: int, lines: Mapping[str, str], path: str, unknown: dict[str, str]) -> Port:
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
    local = parse_lid(lines.get("port_lid")) if infiniband else None
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
    """Return the rate in the kernel's form, "400 Gb/sec (4X NDR)", from active_width "4X (2)" and active_speed "100.0 Gbps (128)"."""
    width = re.match(r"(\d{1,2})X?\b", lines.get("active_width", ""))
    code = re.search(r"\((\d{1,3})\)$", lines.get("active_speed", ""))
    speed = _IBV_DEVINFO_SPEEDS.get(int(code[1])) if code else None
    return f"{int(width[1]) * LANES[speed].printed / 1e9:g} Gb/sec ({int(width[1])}X {speed})" if width and speed else None


def _why_no_rate(lines: Mapping[str, str]) -> str:
    if "active_speed" not in lines:
        return "ibv_devinfo prints the speed only with -v"
    return f"'{printable(lines.get('active_width', ''), 30)}' at '{printable(lines['active_speed'], 40)}' is not a valid port rate"


IBV_DEVINFO = Reader(IBV_DEVINFO_KIND, looks_like_ibv_devinfo, read_ibv_devinfo, lists=frozenset({"nics"}), starts=starts_ibv_devinfo)


KIND = "ibnetdiscover"

_MOST_BYTES = 16 << 20  # about 5,000 hosts have 2 MB
_GUID = r"(?:0x)?([0-9a-f]{1,16})"
_EXTERNAL = r"(?:\[ext \d{1,4}\])?"
_OWN_GUID = r"(?:\((?:0x)?[0-9a-f]{1,16}\))?"
_NODE = re.compile(rf'\s*+(?:Switch|Ca|Rt)\s++\d++\s++"([SHR])-{_GUID}"\s*+#\s*+"(.*)"', re.IGNORECASE | re.ASCII)
_PORT = re.compile(
    rf'\s*+\[(\d{{1,3}})\]{_EXTERNAL}{_OWN_GUID}\s*+"([SHR])-{_GUID}"\[(\d{{1,3}})\]{_EXTERNAL}\s*+{_OWN_GUID}\s*+#(.*)',
    re.IGNORECASE | re.ASCII,
)
_PORT_LIKE = re.compile(r'\s*+\[\d++\].*"[SHR]-', re.IGNORECASE | re.ASCII)
_TAIL = re.compile(r"\s*+lid (\d{1,5})(?:\s++(\d{1,2})x([A-Z]{3}(?:10)?))?", re.ASCII)
_OWN_LID = re.compile(r"\s*+lid (\d{1,5}) lmc \d", re.ASCII)
_SIDE = r"(CA|SW|RT)\s++(\d{1,5})\s++(\d{1,3})\s++0x([0-9a-f]{16})"
_ROW = re.compile(rf"\s*+{_SIDE}\s++(\S{{1,8}}?)x\s++(\S{{1,8}})\s++-\s++{_SIDE}\s*+\((.*)\)\s*+", re.IGNORECASE | re.ASCII)
_KINDS: dict[str, Kind] = {"S": "switch", "H": "host", "R": "router", "SW": "switch", "CA": "host", "RT": "router"}


def looks_like(text: str, name: str) -> bool:
    """Return whether the start of a text is ibnetdiscover's, in either form."""
    return any(_NODE.match(line[:_LONGEST_LINE]) or _ROW.fullmatch(line[:_LONGEST_LINE]) for line in text[:HEAD].splitlines())


def read_fabric(path: Path) -> Fabric:
    """Return the fabric in a file. Raises Unreadable, with one sentence, when it cannot be read or has no cable."""
    try:
        data = read_file(path, _MOST_BYTES)
    except OSError as error:
        problem = f"fabric file '{printable(str(path))}' cannot be read ({error.strerror or error})"
        raise Unreadable(f"{problem}: save the output of `ibnetdiscover` into a file and name it") from error
    return read(decoded(data, f"fabric file '{printable(str(path))}'"), str(path))


def read(text: str, name: str) -> Fabric:
    """Return the fabric that a text lists. Raises Unreadable when it has no cable."""
    found = _ParsedLines()
    for line in text.splitlines():
        found.take(line[:_LONGEST_LINE])
    if not found.cables:
        raise Unreadable(
            f"fabric file '{printable(name)}' holds no cable between two ports: save the whole output of `ibnetdiscover`, "
            "plain or with -p (not -l, -H or -S)"
        )
    cables = tuple(dict.fromkeys(found.cables.values()))
    return Fabric(f"{KIND} {printable(name)}", found.nodes, cables, found.lids, tuple(found.doubts()))


@dataclass
class _ParsedLines:
    """The content of the lines so far. node: the one that the listed ports belong to."""

    nodes: dict[str, FabricNode] = field(default_factory=dict)
    cables: dict[End, Cable] = field(default_factory=dict)
    lids: dict[End, int] = field(default_factory=dict)
    node: str | None = None
    odd: int = 0
    against: list[End] = field(default_factory=list)

    def take(self, line: str) -> None:
        """Process one line; lines other than those of nodes and ports are ignored."""
        if header := _NODE.match(line):
            self.node = self._known(header[2], header[1], header[3])
        elif row := _ROW.fullmatch(line):
            self._row(row)
        elif (port := _PORT.match(line)) and self.node:
            self._port(self.node, port)
        else:
            self.odd += bool(_PORT_LIKE.match(line))

    def doubts(self) -> Iterator[str]:
        """Yield sentences about what was left out."""
        if self.odd:
            yield f"{KIND}: {plural(self.odd, 'line')} could not be read"
        if self.against:
            guid, port = self.against[0]
            more = f" and {len(self.against) - 1} more" if len(self.against) > 1 else ""
            yield f"{KIND}: {guid} port {port}{more} is listed with two cables: the first is used"

    def _known(self, guid: str, kind: str, description: str) -> str:
        full = guid.lower().zfill(16)
        name = printable(description)
        if full not in self.nodes or (name and not self.nodes[full].description):
            self.nodes[full] = FabricNode(full, _KINDS[kind.upper()], name)
        return full

    def _port(self, node: str, port: re.Match[str]) -> None:
        before, _, quoted = port[5].partition('"')
        description, _, after = quoted.rpartition('"')
        tail, own = _TAIL.match(after), _OWN_LID.match(before)
        peer = self._known(port[3], port[2], description)
        near, far = (node, int(port[1])), (peer, int(port[4]))
        self._lid(near, own[1] if own else None)
        self._lid(far if self.nodes[peer].kind != "switch" else (peer, 0), tail[1] if tail else None)
        self._cable(near, far, *((tail[2], tail[3]) if tail else (None, None)))

    def _row(self, row: re.Match[str]) -> None:
        near, far = (part.strip().strip("'") for part in (*row[11].split("' - '", 1), "")[:2])
        ends = []
        for kind, lid, port, guid, description in ((*row.group(1, 2, 3, 4), near), (*row.group(7, 8, 9, 10), far)):
            node = self._known(guid, kind, description)
            ends.append((node, int(port)))
            self._lid(ends[-1] if self.nodes[node].kind != "switch" else (node, 0), lid)
        self._cable(ends[0], ends[1], row[5], row[6])

    def _lid(self, end: End, text: str | None) -> None:
        lid = whole(text, 1, 0xBFFF)
        if lid:
            self.lids.setdefault(end, lid)

    def _cable(self, near: End, far: End, width: str | None, lane: str | None) -> None:
        lanes = whole(width)
        known = lanes if lanes in WIDTHS and lane in LANES else None
        rate, bits = (f"{known}x{lane}", LANES[lane].data * known) if known and lane else ("", None)
        cable = Cable(min(near, far), max(near, far), rate, bits)
        there = [self.cables[end] for end in cable.ends if end in self.cables]
        if near == far or any({*each.ends} != {*cable.ends} for each in there):
            self.against.append(near)
        elif not there or not there[0].rate:
            self.cables |= dict.fromkeys(cable.ends, cable)
