"""Text of InfiniBand tools: `iblinkinfo`, `ibportstate`, `ibstat`, `ibv_devinfo`, `rdma link`, and `ibnetdiscover` (plain, -f, -g, and -p).

Format of ibnetdiscover: ibnetdiscover(8), "TOPOLOGY FILE FORMAT", and `ibnetdiscover.c` of infiniband-diags. With -p an adapter
has its port's GUID. A cable is listed once for each end. One entry is enough, so a truncated text can be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from collbench.machine.fabric import Cable, End, Fabric, FabricNode, Kind
from collbench.machine.model import FabricLink, Machine, Nic, Port, name_by_lid
from collbench.machine.readers.pci import AMAZON, MELLANOX, adapter_name, part_name
from collbench.machine.readers.rdma import (
    IS_DOWN,
    LANES,
    MTUS,
    OF_ONE_PORT,
    WIDTHS,
    LinkLayer,
    fabric_rate,
    is_bond,
    lane_name,
    lines_of,
    link_layer,
    parse_guid,
    parse_lid,
    port_rate,
    state,
    why_no_lid,
    why_software,
)
from collbench.machine.readers.text import HEAD, Notes, Reader, Unreadable, decoded, few, json_of, printable, whole
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


class _Row(NamedTuple):
    """One port: the kind of its section in upper case, and both ends."""

    kind: str
    node: str
    port: int
    width: int | None
    lane: float | None
    peer: str | None
    peer_port: int | None
    note: str


def looks_like_iblinkinfo(start: str) -> bool:
    """Return whether the start of a text is iblinkinfo's."""
    return "==>" in start and any(_ARROW.search(line[:_LONGEST_LINE]) for line in start.splitlines())


def read_iblinkinfo(text: str, name: str) -> Machine:
    """Return the hosts' cables in `fabric`; lanes are signalling rates, before line coding. Raises Unreadable without a readable row."""
    doubts: list[str] = []
    rows = list(_rows(text, doubts))
    if not rows:
        raise Unreadable(
            f"{printable(name)} holds no link of iblinkinfo below a 'CA:' or 'Switch:' line: save the output of plain `iblinkinfo`"
        )
    switches = {row.node for row in rows if row.kind == "SWITCH"}
    ends = [row for row in rows if row.kind == "CA"] or [
        _Row("CA", row.peer, row.peer_port, row.width, row.lane, row.node, row.port, row.note)  # as seen from the host
        for row in rows
        if row.kind == "SWITCH" and row.peer not in switches and row.peer and row.peer_port
    ]
    links: list[FabricLink] = []
    notes = Notes()
    for row in ends:
        if _NO_HOST in row.node.lower():
            continue
        host, _, device = row.node.partition(" ")
        links.append(FabricLink(host, device.strip() or None, row.port, row.width, row.lane, row.peer, row.peer_port))
        if row.note:
            notes.doubt(f"{IBLINKINFO_KIND} notes '{row.note}', both ends could do better", f"{row.node} port {row.port}")
    return Machine(sources=(f"{IBLINKINFO_KIND} {printable(name)}",), fabric=tuple(links), doubts=(*doubts, *few(notes.doubts)))


def _rows(text: str, doubts: list[str]) -> Iterator[_Row]:
    kind = node = ""
    incomplete = 0
    for line in text.splitlines():
        if section := _SECTION.match(line[:_LONGEST_LINE]):
            kind = section[1].upper()
            node = _node(section[3], section[2])
        elif "==>" in line and kind:
            row = _row(kind, node, line[:_LONGEST_LINE])
            incomplete += row is None or (row.peer is not None and row.lane is None)
            if row:
                yield row
    if incomplete:
        doubts.append(f"{IBLINKINFO_KIND}: {incomplete} links could not be read whole")


def _row(kind: str, node: str, line: str) -> _Row | None:
    """Return the row of a line. Lanes and speed are None for a port that is down and for unknown rates."""
    arrow = _ARROW.search(line)
    near = _NEAR.search(line[: arrow.start()]) if arrow else None
    far = _FAR.match(line[arrow.end() :]) if arrow else None
    if not arrow or not near or not far:
        return None
    speed = _SPEED.match(arrow[1])
    width = int(speed[1]) if speed else None
    lane = float(speed[2]) * 1e9 if speed else None
    if width not in WIDTHS or not lane or not lane_name(lane):
        width = lane = None
    return _Row(kind, node, int(near[2]), width, lane, _node(far[3], None) or None, whole(far[2], 0, 255), printable(far[4], 80))


def _node(description: str, guid: str | None) -> str:
    """Return a node's description, or its GUID if the description is only the vendor's."""
    name = printable(description).strip(' "')
    nameless = not name or (_NAMELESS in name.lower() and _NO_HOST not in name.lower())
    return guid.strip() if guid and nameless else name


IBLINKINFO = Reader(
    IBLINKINFO_KIND,
    looks_like_iblinkinfo,
    read_iblinkinfo,
    lists=frozenset({"fabric"}),
    starts=lambda line: _SECTION.match(line[:_LONGEST_LINE]),
)


# `ibportstate LID PORT`: one InfiniBand port of an adapter, its state, and its active and supported lanes.
#
# The lines: rdma-core infiniband-diags/ibportstate.c ("LinkWidthActive:.................4X"). The tool prints no device, only the LID;
# older versions print it only in the title of the section.

IBPORTSTATE_KIND = "ibportstate"
_IBPORTSTATE_SECTION = re.compile(r"^# Port info: (?:Lid (\d{1,5}) port (\d{1,3})|DR path .{0,80})$")
_OTHER_SECTION = re.compile(r"^# .{1,100}$")
_LINE = re.compile(r"^([A-Za-z0-9]{3,40}):\.*\s*(.*)$")
_LANES = re.compile(r"\b(\d{1,2})X\b")
_LANE_SPEED = re.compile(r"^(\d{1,3}(?:\.\d{1,5})?) Gbps\b")
_SPEEDS = ("LinkSpeedExtActive2", "LinkSpeedExtActive", "LinkSpeedActive")


def looks_like_ibportstate(start: str) -> bool:
    """Return whether the start of a text has ibportstate's dotted lines."""
    return "LinkWidthActive:." in start and "PhysLinkState:." in start and "==(" not in start


def read_ibportstate(text: str, name: str) -> Machine:
    """Return the port as a NIC named after its LID, "LID 12"; merging finds the NIC that another source lists with this LID.

    Raises Unreadable for a switch's port, and for text without a LID or a width.
    """
    shown_name = printable(name)
    lines = list(lines_of(text, name))
    if any("Switch PortInfo" in line for line in lines):
        raise Unreadable(
            f"{shown_name} describes the port of a switch: give the port of an adapter, `ibportstate LID PORT` with LIDs of `ibstat`"
        )
    facts, number, fdr10 = _current_facts(lines)
    lid = parse_lid(facts.get("Lid"))
    width = _LANES.search(facts.get("LinkWidthActive", ""))
    if lid is None or width is None:
        raise Unreadable(f"{shown_name} has no Lid or no LinkWidthActive: save the whole output of `ibportstate LID PORT` again")
    down = state(facts.get("LinkState")) == "down"
    speeds = [float(match[1]) for match in (_LANE_SPEED.match(facts.get(key, "")) for key in _SPEEDS) if match]
    speed = 10.3125 if fdr10 else next(filter(None, speeds), None)
    rate = None if down or speed is None else fabric_rate(int(width[1]), speed * 1e9)
    supported, enabled = (set(map(int, _LANES.findall(facts.get(key, "")))) for key in ("LinkWidthSupported", "LinkWidthEnabled"))
    port = Port(
        number=number,
        rate_bits_per_s=rate,
        rate_text=f"{width[1]}X at {speed:g} Gb/s a lane" if speed else None,
        state=state(facts.get("LinkState")),
        phys_state=state(facts.get("PhysLinkState")),
        link_layer="infiniband",
        lid=lid,
        sm_lid=whole(facts.get("SMLid"), 0, 0xFFFF),
        lanes=None if down else int(width[1]),
        max_lanes=max(supported & enabled, default=None),
    )
    nic = name_by_lid(lid)
    unknown = {f"nics/{nic}/address": "ibportstate names no device"}
    if rate is None:
        unknown[f"nics/{nic}/ports/{number}/rate_bits_per_s"] = IS_DOWN if down else "ibportstate prints no speed that a port has"
    return Machine(sources=(f"{IBPORTSTATE_KIND} {shown_name}",), nics=(Nic(nic, rdma=True, ports=(port,)),), unknown=unknown)


def _current_facts(lines: list[str]) -> tuple[dict[str, str], int, bool]:
    """Return the lines of the last section (the port's current state), the port's number, and whether the speed is FDR10."""
    facts: dict[str, str] = {}
    number = 1
    inside = fdr10 = False
    for line in lines:
        if section := _IBPORTSTATE_SECTION.match(line):
            facts = {"Lid": section[1]} if section[1] else {}
            number = int(section[2] or 1)
            inside = True
            fdr10 = False
        elif _OTHER_SECTION.match(line):
            inside = False
        elif entry := _LINE.match(line):
            key, value = entry.groups()
            if inside and (key == "Lid" or key not in facts):
                facts[key] = value
            elif facts and key == "LinkSpeedActive":
                fdr10 = whole(value, 0, 255) == 1
    return facts, number, fdr10


IBPORTSTATE = Reader(IBPORTSTATE_KIND, looks_like_ibportstate, read_ibportstate)


# `ibstat`, `ibstatus` and `ibv_devinfo`: RDMA devices with their ports, as lines "key: value" of a device, then of each of its ports.
#
# The lines: rdma-core infiniband-diags/ibstat.c, infiniband-diags/scripts/ibstatus.in, and libibverbs/examples/devinfo.c with
# enum ibv_port_state in libibverbs/verbs.h. ibstat prints a rate without its name ("Rate: 400"), ibv_devinfo the speed only with -v.

_MOST_DEVICES = 1024
_DEVICE_KEY = "<device>"  # of a line that begins a device
_PORT_KEY = "<port>"
_IBV_KEYS = {"hca_id": _DEVICE_KEY, "port": _PORT_KEY}
_SAME_KEYS = {"base lid": "port lid", "sys image guid": "system image guid", "physical state": "phys state", "firmware version": "fw ver"}
_KEY_LINE = re.compile(r"^([A-Za-z][A-Za-z _]{1,30}):\s*(\S.*)$")
# a line like "CA 'mlx5_0'" or "Infiniband device 'mlx5_0' port 1 status:"
_IBSTAT_HEAD = re.compile(r"^[ \t]*(CA:? '|Infiniband device ')", re.MULTILINE)
_IBSTAT_DEVICE = re.compile(r"^(?:CA:? '([^']*)'|Infiniband device '([^']*)' port (\d{1,3}) status:)$")
_IBSTAT_PORT = re.compile(r"^Port (\d{1,3}):$")
_IBV_HEAD = re.compile(r"^[ \t]*hca_id:", re.MULTILINE)
_NO_DEVICES = "No IB devices found"

# Gb/s that identify one rate at any width: from EDR on the printed rate is the data rate, see `rdma`.
_PLAIN = {"25", "50", "100", "200", "400", "800", "1600"}
_NAMED = {"14": "1X FDR", "20": "4X DDR", "56": "4X FDR"}
_ETHERNET = _PLAIN | {"1", "10", "40", "56"}
_TWO_MEANINGS = {
    "10": "10 is SDR, 8 Gb/s of data, or what is printed for a speed that the kernel does not know",
    "40": "40 is QDR, 32 Gb/s of data, or FDR10, 40: /sys/class/infiniband shows which",
}
_IBV_SPEEDS = {1: "SDR", 2: "DDR", 4: "QDR", 8: "FDR10", 16: "FDR", 32: "EDR", 64: "HDR", 128: "NDR", 256: "XDR"}
_PCI_VENDORS = {0x02C9: MELLANOX, 0x15B3: MELLANOX, 0x1D0F: AMAZON}  # Mellanox is printed by its Ethernet prefix

Facts = dict[str, str]
Rate = tuple[str | None, float | None, str]  # as printed, data bits/s, and why it is None or doubtful ("" for neither)


class _Device(msgspec.Struct):
    """The lines of a device and of its ports, with keys in lower case; of two lines with one key the first counts."""

    name: str
    facts: Facts = msgspec.field(default_factory=dict)
    ports: dict[int, Facts] = msgspec.field(default_factory=dict)


def read_ibstat(text: str, name: str) -> Machine:
    """Return the listed RDMA devices and ports; one that is down has no rate. Raises Unreadable for text without a device."""
    devices, _ = _devices(_words_of_ibstat(lines_of(text, name)), name)  # of a port that is listed again, more lines may be known
    if not devices:
        raise Unreadable(f"{printable(name)} has no line like \"CA 'mlx5_0'\", which begins each device of ibstat: save its output again")
    return _machine(f"ibstat {printable(name)}", devices, _rate_of_ibstat, "ibstat prints no MTU")


def _words_of_ibstat(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (key, value) of each line. ibstatus has a device and its port in one line."""
    for line in lines:
        if device := _IBSTAT_DEVICE.match(line):
            yield _DEVICE_KEY, device[1] or device[2] or "?"
            if device[3]:
                yield _PORT_KEY, device[3]
        elif port := _IBSTAT_PORT.match(line):
            yield _PORT_KEY, port[1]
        elif entry := _KEY_LINE.match(line):
            yield entry[1], entry[2]


def _rate_of_ibstat(lines: Mapping[str, str], layer: LinkLayer | None) -> Rate:
    text = printable(lines.get("rate", ""), 60)
    if "Gb/sec" in text:
        rate = port_rate(text, layer or "infiniband")
        return text, rate, "" if rate else f"'{text}' is not a valid port rate"
    if text in _PLAIN or (layer == "ethernet" and text in _ETHERNET):
        return text, int(text) * 1e9, "10 is also printed for a speed that the kernel does not know" if text == "10" else ""
    if layer != "ethernet" and text in _NAMED:
        return text, port_rate(f"{text} Gb/sec ({_NAMED[text]})"), ""
    return text or None, None, _TWO_MEANINGS.get(text) or f"'{text}' is not a valid port rate"


IBSTAT = Reader("ibstat", _IBSTAT_HEAD.search, read_ibstat, lists=frozenset({"nics"}), starts=_IBSTAT_HEAD.match)


def looks_like_ibv_devinfo(start: str) -> bool:
    """Return whether the start of a text has an hca_id line, or ibv_devinfo's message for a host without devices."""
    return bool(_IBV_HEAD.search(start)) or start.strip().startswith(_NO_DEVICES)


def read_ibv_devinfo(text: str, name: str) -> Machine:
    """Return the listed RDMA devices and ports; one that is down has no rate and no MTU. Raises Unreadable for text without a device."""
    source = f"ibv_devinfo {printable(name)}"
    if text.strip().startswith(_NO_DEVICES):
        return Machine(sources=(source,), unknown={"nics": "ibv_devinfo found no RDMA device: a container, or no driver"})
    entries = (entry for line in lines_of(text, name) if (entry := _KEY_LINE.match(line)))
    devices, repeated = _devices(((_IBV_KEYS.get(entry[1], entry[1]), entry[2]) for entry in entries), name)
    if not devices:
        raise Unreadable(f"{printable(name)} has no hca_id line, which begins each device of ibv_devinfo: save `ibv_devinfo -v` again")
    machine = _machine(source, devices, _rate_of_ibv_devinfo, "ibv_devinfo prints no active_mtu that ports have")
    return replace(machine, doubts=few([f"{device} is listed twice in {printable(name)}: the first was taken" for device in repeated]))


def _rate_of_ibv_devinfo(lines: Mapping[str, str], layer: LinkLayer | None) -> Rate:
    """Return the rate in the kernel's form, "400 Gb/sec (4X NDR)", from active_width "4X (2)" and active_speed "100.0 Gbps (128)"."""
    width = re.match(r"(\d{1,2})X?\b", lines.get("active width", ""))
    code = re.search(r"\((\d{1,3})\)$", lines.get("active speed", ""))
    speed = _IBV_SPEEDS.get(int(code[1])) if code else None
    text = f"{int(width[1]) * LANES[speed].printed / 1e9:g} Gb/sec ({int(width[1])}X {speed})" if width and speed else None
    rate = port_rate(text or "", layer or "infiniband")
    if rate:
        return text, rate, ""
    if "active speed" not in lines:
        return text, None, "ibv_devinfo prints the speed only with -v"
    printed_width = printable(lines.get("active width", ""), 30)
    return text, None, f"'{printed_width}' at '{printable(lines['active speed'], 40)}' is not a valid port rate"


IBV_DEVINFO = Reader("ibv_devinfo", looks_like_ibv_devinfo, read_ibv_devinfo, lists=frozenset({"nics"}), starts=_IBV_HEAD.match)


# `rdma link`, as text and JSON (-j): the ports of RDMA devices without their rates (iproute2 rdma/link.c).
#
# Old versions print "0/1: mlx5_0/1: …" instead of "link mlx5_0/1 …". A port of InfiniBand has a LID; one of RoCE a network interface.

_RDMA_LINK = re.compile(r"^[ \t]*(?:link|\d{1,5}/\d{1,3}:) ([\w.-]{1,64})/(\d{1,3}):? (.{0,400}\bstate \w+.{0,400})$", re.MULTILINE)
_RDMA_LINK_JSON = re.compile(r'"ifname"\s*:\s*"[\w.-]{1,64}"\s*,\s*"port"\s*:')
_RDMA_LINK_WORDS = {"lid": "port lid", "sm_lid": "sm lid", "state": "state", "physical_state": "phys state", "netdev": "netdev"}


def looks_like_rdma_link(start: str) -> bool:
    """Return whether the start of a text has a line like "link mlx5_0/1 state ACTIVE", or such an object in JSON."""
    return bool(_RDMA_LINK.search(start) or _RDMA_LINK_JSON.search(start))


def read_rdma_link(text: str, name: str) -> Machine:
    """Return the listed RDMA devices and ports, without rates and MTUs. Raises Unreadable for incomplete JSON."""
    ports = list(_rdma_link_ports(text, name))
    words: list[tuple[str, str]] = []  # as of ibstat
    for port in ports:
        words += [(_DEVICE_KEY, port["device"]), (_PORT_KEY, port.get("port", ""))]
        if "lid" in port or "subnet_prefix" in port:
            words.append(("link layer", "InfiniBand"))
        elif "netdev" in port:
            words.append(("link layer", "Ethernet"))
        words += [(key, port[word]) for word, key in _RDMA_LINK_WORDS.items() if word in port]
    devices, _ = _devices(words, name)
    no_rate: Rate = (None, None, "rdma link prints no rate: `ibstat` and `ibv_devinfo -v` do")
    machine = _machine(f"rdma link {printable(name)}", devices, lambda lines, layer: no_rate, "rdma link prints no MTU")
    interfaces: dict[str, tuple[str, ...]] = {}
    for port in ports:
        if "netdev" in port:
            interfaces[port["device"]] = (*interfaces.get(port["device"], ()), printable(port["netdev"], 64))
    return replace(machine, nics=tuple(replace(nic, interfaces=interfaces.get(nic.name, ())) for nic in machine.nics))


def _rdma_link_ports(text: str, name: str) -> Iterator[Facts]:
    """Yield each port's words with their values, its "device" and its "port"."""
    if _RDMA_LINK_JSON.search(text[:HEAD]):
        problem = f"{printable(name)}: invalid JSON, perhaps cut off: save the output of `rdma -j link` again"
        entries = json_of(text[text.find("[") : text.rfind("]") + 1], problem)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and "ifname" in entry:
                yield {**{key: str(value) for key, value in entry.items()}, "device": str(entry["ifname"])}
        return
    for line in lines_of(text, name):
        if link := _RDMA_LINK.match(line):
            yield {**dict(pairwise(link[3].split())), "device": link[1], "port": link[2]}


RDMA_LINK = Reader("rdma link", looks_like_rdma_link, read_rdma_link, lists=frozenset({"nics"}), starts=_RDMA_LINK.match)


def _devices(words: Iterable[Sequence[str]], name: str) -> tuple[list[_Device], list[str]]:
    """Return the devices from keys with their values, and the names of those with a port listed twice."""
    devices: dict[str, _Device] = {}
    repeated: dict[str, None] = {}
    device = _Device("")
    facts = device.facts
    for word, value in words:
        key = word.lower().replace("_", " ")
        key = _SAME_KEYS.get(key, key)
        if key == _DEVICE_KEY:
            device_name = printable(value, 64) or "?"
            device = devices.setdefault(device_name, _Device(device_name))
            facts = device.facts
        elif key == _PORT_KEY:
            number = whole(value, 1, 255)
            if number in device.ports:
                repeated[device.name] = None
            facts = {} if number is None else device.ports.setdefault(number, {})
        facts.setdefault(key, value)
    if len(devices) > _MOST_DEVICES:
        raise Unreadable(f"{printable(name)} lists {len(devices)} devices, more than a machine has: give the output for one machine")
    return list(devices.values()), list(repeated)


def _machine(source: str, devices: Iterable[_Device], rate_of: Callable[[Facts, LinkLayer | None], Rate], no_mtu: str) -> Machine:
    """Return the machine with these devices. rate_of: the tool's way to print a rate; no_mtu: why it does not print the MTU."""
    unknown: dict[str, str] = {}
    doubts: list[str] = []
    nics: list[Nic] = []
    for device in devices:
        facts = device.facts
        vendor = _PCI_VENDORS.get(whole(facts.get("vendor id"), 0, 0xFFFFFF) or 0)
        ports: list[Port] = []
        for number, lines in device.ports.items():
            layer = link_layer(lines.get("link layer"))
            rate = rate_of(lines, layer)
            if layer == "ethernet" and rate[1] and is_bond(device.name):
                rate = (rate[0], None, OF_ONE_PORT)
            port, reasons = _port(number, lines, rate, no_mtu)
            ports.append(port)
            doubt = rate[2]
            if doubt and port.rate_bits_per_s is not None:
                doubts.append(f"{device.name} port {number}: {doubt}")
            unknown |= {f"nics/{device.name}/ports/{number}/{fact}": reason for fact, reason in reasons.items()}
        if not ports:
            unknown[f"nics/{device.name}/ports"] = f"{source.partition(' ')[0]} lists no port of it"
        nic = Nic(
            name=device.name,
            model=adapter_name(facts.get("ca type")) or part_name(vendor, whole(facts.get("vendor part id"), 0, 0xFFFF)),
            rdma=True,
            ports=tuple(ports),
            virtual=why_software(device.name),
            firmware=printable(facts.get("fw ver", ""), 60) or None,
            guid=parse_guid(facts.get("node guid")),
            card_guid=parse_guid(facts.get("system image guid")),
        )
        nics.append(nic)
    return Machine(sources=(source,), nics=tuple(nics), unknown=unknown, doubts=few(doubts))


def _port(number: int, lines: Mapping[str, str], rate: Rate, no_mtu: str) -> tuple[Port, dict[str, str]]:
    """Return the port, and by field why its value is unknown."""
    rate_text, rate_bits_per_s, why_no_rate = rate
    layer = link_layer(lines.get("link layer"))
    infiniband = layer == "infiniband"
    logical_state = state(lines.get("state"))
    down = logical_state == "down"
    lid = parse_lid(lines.get("port lid")) if infiniband else None
    mtu = whole(lines.get("active mtu", "").partition(" ")[0])
    reasons = {}
    if mtu not in MTUS or down:
        mtu = None
        reasons["mtu_bytes"] = IS_DOWN if down and "active mtu" in lines else no_mtu
    if infiniband and lid is None:
        reasons["lid"] = why_no_lid(lines.get("port lid"))
    if rate_bits_per_s is None or down:
        rate_bits_per_s = None
        reasons["rate_bits_per_s"] = IS_DOWN if down else why_no_rate
    port = Port(
        number=number,
        rate_bits_per_s=rate_bits_per_s,
        rate_text=rate_text,
        state=logical_state,
        phys_state=state(lines.get("phys state")),
        link_layer=layer,
        mtu_bytes=mtu,
        lid=lid,
        sm_lid=whole(lines.get("sm lid"), 0, 0xFFFF) if infiniband else None,
        guid=parse_guid(lines.get("port guid")),
    )
    return port, reasons


# `ibnetdiscover`: the cables of a fabric, in two forms.

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
_NEAR_LID = re.compile(r"\s*+lid (\d{1,5}) lmc \d", re.ASCII)
_SIDE = r"(CA|SW|RT)\s++(\d{1,5})\s++(\d{1,3})\s++0x([0-9a-f]{16})"
_ROW = re.compile(rf"\s*+{_SIDE}\s++(\S{{1,8}}?)x\s++(\S{{1,8}})\s++-\s++{_SIDE}\s*+\((.*)\)\s*+", re.IGNORECASE | re.ASCII)
_KINDS: dict[str, Kind] = {"S": "switch", "H": "host", "R": "router", "SW": "switch", "CA": "host", "RT": "router"}


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
    parsed = _ParsedLines()
    for line in text.splitlines():
        parsed.take(line[:_LONGEST_LINE])
    if not parsed.cables:
        raise Unreadable(
            f"fabric file '{printable(name)}' holds no cable between two ports: save the whole output of `ibnetdiscover`, "
            "plain or with -p (not -l, -H or -S)"
        )
    cables = tuple(dict.fromkeys(parsed.cables.values()))
    return Fabric(f"{KIND} {printable(name)}", parsed.nodes, cables, parsed.lids, tuple(parsed.doubts()))


class _ParsedLines(msgspec.Struct):
    """The content of the lines so far. node: the one that the listed ports belong to."""

    nodes: dict[str, FabricNode] = msgspec.field(default_factory=dict)
    cables: dict[End, Cable] = msgspec.field(default_factory=dict)
    lids: dict[End, int] = msgspec.field(default_factory=dict)
    node: str | None = None
    unread: int = 0
    contradictory: list[End] = msgspec.field(default_factory=list)

    def take(self, line: str) -> None:
        """Process one line; lines other than those of nodes and ports are ignored."""
        if header := _NODE.match(line):
            self.node = self._add_node(header[2], header[1], header[3])
        elif row := _ROW.fullmatch(line):
            self._add_row(row)
        elif (port := _PORT.match(line)) and self.node:
            self._add_port(self.node, port)
        else:
            self.unread += bool(_PORT_LIKE.match(line))

    def doubts(self) -> Iterator[str]:
        """Yield sentences about what was left out."""
        if self.unread:
            yield f"{KIND}: {plural(self.unread, 'line')} could not be read"
        if self.contradictory:
            guid, port = self.contradictory[0]
            more = f" and {len(self.contradictory) - 1} more" if len(self.contradictory) > 1 else ""
            yield f"{KIND}: {guid} port {port}{more} is listed with two cables: the first is used"

    def _add_node(self, guid: str, kind: str, description: str) -> str:
        full_guid = guid.lower().zfill(16)
        name = printable(description)
        if full_guid not in self.nodes or (name and not self.nodes[full_guid].description):
            self.nodes[full_guid] = FabricNode(full_guid, _KINDS[kind.upper()], name)
        return full_guid

    def _add_port(self, node: str, port: re.Match[str]) -> None:
        before, _, quoted = port[5].partition('"')
        description, _, after = quoted.rpartition('"')
        near_lid = _NEAR_LID.match(before)
        far_lid, width, lane = tail.groups() if (tail := _TAIL.match(after)) else (None, None, None)
        near = (node, int(port[1]))
        far = (self._add_node(port[3], port[2], description), int(port[4]))
        self._add_lid(near, near_lid[1] if near_lid else None)
        self._add_lid(self._end_of_lid(far), far_lid)
        self._add_cable(near, far, width, lane)

    def _add_row(self, row: re.Match[str]) -> None:
        near, far = (part.strip().strip("'") for part in (*row[11].split("' - '", 1), "")[:2])
        ends = []
        for kind, lid, port, guid, description in ((*row.group(1, 2, 3, 4), near), (*row.group(7, 8, 9, 10), far)):
            end = (self._add_node(guid, kind, description), int(port))
            ends.append(end)
            self._add_lid(self._end_of_lid(end), lid)
        self._add_cable(ends[0], ends[1], row[5], row[6])

    def _end_of_lid(self, end: End) -> End:
        return (end[0], 0) if self.nodes[end[0]].kind == "switch" else end

    def _add_lid(self, end: End, text: str | None) -> None:
        lid = whole(text, 1, 0xBFFF)
        if lid:
            self.lids.setdefault(end, lid)

    def _add_cable(self, near: End, far: End, width: str | None, lane: str | None) -> None:
        cable = Cable(min(near, far), max(near, far))
        lanes = whole(width)
        if lanes in WIDTHS and lane in LANES:
            cable = replace(cable, rate=f"{lanes}x{lane}", bits_per_s=LANES[lane].data * lanes)
        listed_cables = [self.cables[end] for end in cable.ends if end in self.cables]
        if near == far or any(listed.ends != cable.ends for listed in listed_cables):
            self.contradictory.append(near)
        elif not listed_cables or not listed_cables[0].rate:
            self.cables |= dict.fromkeys(cable.ends, cable)
