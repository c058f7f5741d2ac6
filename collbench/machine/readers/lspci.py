"""Text of lspci: PCI functions, their current and maximum links, the PCI tree, access control, and which are GPUs and NICs."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from collbench.machine.model import Machine, PciDevice, PcieLink, System
from collbench.machine.readers import pci
from collbench.machine.readers.text import HEAD, Reader, Unreadable, bounded, few, gigatransfers, lanes, numa_of, pci_address, printable

# `lspci -vvv | grep ACSCtl`: the number of ports with access control, without their addresses.

ACS_LINES_KIND = "lspci | grep ACSCtl"
REDIRECTS = ("ReqRedir", "CmpltRedir", "UpstreamFwd")
_LINE = re.compile(r"^(?:\S{1,200}:)?\s*ACSCtl:\s*(.*)$")
_BITS = re.compile(r"\b(SrcValid|TransBlk|ReqRedir|CmpltRedir|UpstreamFwd|EgressCtrl|DirectTrans)([+-])")
_COMMAND = re.compile(r"\blspci\b.{0,200}\bACS(?:Ctl)?\b", re.IGNORECASE)
_PROMPT = re.compile(r"^\S{0,100}(?: ?[\w~/.-]{1,100}\]?)?[$#%>]\s*$")
_MOST_CHARACTERS = 2 << 20


def looks_like_acs_lines(start: str) -> bool:
    """Return whether every line is an ACSCtl line, also below the command in a shell."""
    lines = _without_command(start)
    return bool(lines) and all(_LINE.match(line[:400]) for line in lines[:-1]) and bool(_LINE.match(lines[0][:400]))


def _without_command(text: str) -> list[str]:
    """Return the lines that are not blank, without "$ lspci -vvv | grep ACSCtl" as the first one and an empty prompt as the last one."""
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and _COMMAND.search(lines[0][:400]):
        lines = lines[1:]
    return lines[:-1] if lines and _PROMPT.match(lines[-1][-400:]) else lines


def read_acs_lines(text: str, name: str) -> Machine:
    """Return a machine with the number of ports with access control, and of those that redirect requests. Raises Unreadable."""
    bounded(text, name, _MOST_CHARACTERS, "a machine's ports fill", "give one machine's output")
    ports = 0
    redirecting = 0
    for line in _without_command(text):
        match = _LINE.match(line[:400])
        bits = dict(_BITS.findall(match[1])) if match else {}
        if not bits:
            raise Unreadable(f"{printable(name)}: the line {printable(line.strip(), 60)!r} has no bits of ACSCtl: save the output again")
        ports += 1
        redirecting += any(bits.get(bit) == "+" for bit in REDIRECTS)
    return Machine(
        sources=(f"{ACS_LINES_KIND} {printable(name)}",),
        system=System(acs_ports=ports, acs_on=redirecting),
        unknown={"pci": "the lines name no device: `lspci -vvv`, as root, without grep does"},
    )


ACS_LINES = Reader(ACS_LINES_KIND, looks_like_acs_lines, read_acs_lines)


# The text of lspci, split into one block of facts per function: `lspci`, `-nn`, `-vvv`, `-vvvnn`, with and without domains (`-D`).

_MOST_FUNCTIONS = 65536
_LONGEST_LINE = 2000
_HEAD = re.compile(r"^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?:Class )?(\S.{0,99}?): (.*)$", re.IGNORECASE)
_CLASS = re.compile(r"(?:^|\[)([0-9a-f]{4})\]?$", re.IGNORECASE)
_IDS = re.compile(r"\[?\b([0-9a-f]{4}):([0-9a-f]{4})\b\]?", re.IGNORECASE)
_TAIL = re.compile(r"\s*\((?:rev|prog-if)\b[^()]*\)")
_DEVICE = re.compile(r"\bDevice ([0-9a-f]{4})$")
_TEXT_LINE = re.compile(r"^\s+(NUMA node|LnkCap|LnkSta|ACSCtl|Bus|Kernel driver in use|Capabilities):\s*(.*)$")
_WIDTH = re.compile(r"Width x(\d{1,3})\b")
_BUS = re.compile(r"primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})", re.IGNORECASE)
_PORT_TYPE = re.compile(r"Express (?:\(v\d\) )?(?:to PCI/PCI-X Bridge|([A-Z][A-Za-z ]+?))(?= \(|, |\s*$)")
# Classes by their names in pci.ids (https://pci-ids.ucw.cz), for output without -nn.
_CLASSES = {
    "vga compatible controller": 0x0300, "3d controller": 0x0302, "display controller": 0x0380, "processing accelerators": 0x1200,
    "ethernet controller": 0x0200, "infiniband controller": 0x0207, "fabric controller": 0x0208, "network controller": 0x0280,
    "host bridge": 0x0600, "pci bridge": 0x0604, "bridge": 0x0680,
}  # fmt: skip
_VENDORS = {
    "NVIDIA Corporation": 0x10DE, "Mellanox Technologies": 0x15B3, "Advanced Micro Devices, Inc. [AMD/ATI]": 0x1002,
    "Advanced Micro Devices, Inc. [AMD]": 0x1022, "Intel Corporation": 0x8086, "Amazon.com, Inc.": 0x1D0F, "Red Hat, Inc.": 0x1B36,
    "VMware": 0x15AD,
}  # fmt: skip


class _Function(msgspec.Struct):
    """The facts that lspci prints of one function.

    buses       primary and secondary bus of a bridge
    port_type   "Root Port", "Upstream Port", "Endpoint"…; None when not printed
    acs         control bits that are set; None when not printed
    denied      whether capabilities were hidden: lspci ran without root
    """

    address: str
    vendor_id: int | None = None
    device_id: int | None = None
    class_id: int | None = None
    name: str | None = None
    numa: int | None = None
    current_link: tuple[float | None, int | None] = (None, None)
    max_link: tuple[float | None, int | None] = (None, None)
    acs: tuple[str, ...] | None = None
    driver: str | None = None
    buses: tuple[int, int] | None = None
    port_type: str | None = None
    denied: bool = False


def _functions(text: str, name: str) -> Iterator[_Function]:
    """Yield every function in the order of the text. Raises Unreadable when one is listed twice, or far too many are."""
    seen: set[str] = set()
    current: _Function | None = None
    for line in io.StringIO(text):
        if match := _HEAD.match(line.rstrip()[:_LONGEST_LINE]):
            if current:
                yield current
            current = _function(match)
            if current.address in seen or len(seen) >= _MOST_FUNCTIONS:
                raise Unreadable(f"{printable(name)} lists {current.address} twice: give the output for one machine")
            seen.add(current.address)
        elif current and (match := _TEXT_LINE.match(line.rstrip()[:_LONGEST_LINE])):
            _take(current, match[1], match[2])
    if current:
        yield current


def _function(match: re.Match[str]) -> _Function:
    rest = _TAIL.sub("", match[3]).strip()
    all_ids = list(_IDS.finditer(rest))
    if all_ids:
        ids = all_ids[-1]
        name = printable((rest[: ids.start()] + rest[ids.end() :]).strip())
        vendor_id: int | None = int(ids[1], 16)
        device_id: int | None = int(ids[2], 16)
    else:
        name = printable(rest)
        vendor_id = next((number for vendor, number in _VENDORS.items() if name.startswith(vendor)), None)
        device = _DEVICE.search(name)
        device_id = int(device[1], 16) if device else None
    class_name = match[2].strip()  # "3D controller [0302]", "0302", "3D controller"; other names are irrelevant
    number = _CLASS.search(class_name)
    class_id = int(number[1], 16) if number else _CLASSES.get(class_name.lower())
    address = pci_address(match[1]) or match[1].lower()
    return _Function(address, vendor_id, device_id, None if class_id is None else class_id << 8, name or None)


def _take(function: _Function, word: str, value: str) -> None:
    if word == "NUMA node":
        function.numa = numa_of(value)
    elif word == "LnkSta":
        function.current_link = _link(value)
    elif word == "LnkCap":
        function.max_link = _link(value)
    elif word == "ACSCtl":
        function.acs = tuple(re.findall(r"\b([A-Za-z]{3,20})\+", value))
    elif word == "Kernel driver in use":
        function.driver = printable(value, 60) or None
    elif word == "Bus" and (match := _BUS.search(value)):
        function.buses = (int(match[1], 16), int(match[2], 16))
    elif word == "Capabilities":
        function.denied |= "access denied" in value
        port_type = _PORT_TYPE.search(value)
        if port_type and not function.port_type:
            function.port_type = port_type[1] or "PCI bridge"


def _link(value: str) -> tuple[float | None, int | None]:
    width = _WIDTH.search(value)
    return gigatransfers(value), lanes(width[1]) if width else None


KIND = "lspci"
_PORTS = {"Upstream Port", "Downstream Port"}
_NEVER_AT_A_ROOT = {*_PORTS, "Endpoint", "Legacy Endpoint"}
_NO_TREE = "this output of lspci has no bridges' buses: save `lspci -vvv`, run by root"
_NO_BRIDGE = "the bridge above it is not in the text"
_DENIED = "lspci ran without root and could not read it"


def looks_like(start: str) -> bool:
    """Return whether the text has a line like "19:00.0 3D controller: NVIDIA Corporation …"."""
    return any(_HEAD.match(line[:_LONGEST_LINE]) for line in start.splitlines())


def read(text: str, name: str) -> Machine:
    """Return the machine's PCI devices; NICs have their addresses as names. Raises Unreadable when no function is listed, or one twice."""
    functions = list(_functions(text, name))
    if not functions:
        listed = "link lines without the devices they belong to" if "LnkSta:" in text[:HEAD] else "no PCI functions"
        raise Unreadable(f"{printable(name)} has {listed}: save the whole output of `lspci -vvv`, run by root")
    doubts: list[str] = []
    parents = _parents(functions, doubts)
    devices = pci.with_switches([_device(function, parents.get(function.address)) for function in functions])
    physical = pci.physical_nics(devices)
    return Machine(
        sources=(f"{KIND} {printable(name)}",),
        pci=devices,
        gpus=tuple(pci.gpu(device) for device in devices if device.kind == "gpu"),
        nics=tuple(pci.nic(device, physical) for device in devices if device.kind == "nic"),
        unknown=_unknown(functions, devices),
        doubts=(*few(doubts), *few(list(filter(None, map(pci.link_doubt, devices))))),
    )


def _device(function: _Function, parent: str | None) -> PciDevice:
    """Return one function. A switch port is recognized only where capabilities are printed."""
    device = pci.function(
        function.address, function.vendor_id, function.device_id, function.class_id, PcieLink(*function.current_link, *function.max_link),
        name=function.name, parent=parent, numa=function.numa, acs=function.acs, driver=function.driver,
    )  # fmt: skip
    return replace(device, kind="switch") if device.kind == "bridge" and function.port_type in _PORTS else device


def _parents(functions: Sequence[_Function], doubts: list[str]) -> dict[str, str]:
    """Return the bridge above each function, by secondary buses. One that does not come after the bridge's own is rejected: no circles."""
    bridges: dict[tuple[str, int], list[str]] = defaultdict(list)
    for function in functions:
        domain, bus = _place(function.address)
        if function.buses and function.buses[1] > bus:
            bridges[domain, function.buses[1]].append(function.address)
        elif function.buses and function.buses[1]:
            doubts.append(f"{function.address}: its secondary bus {function.buses[1]:02x} does not come after its own: not believed")
    for (_, bus), addresses in bridges.items():
        if len(addresses) > 1:
            doubts.append(f"{' and '.join(addresses[:4])} both claim bus {bus:02x}: neither is used")
    above = {function.address: bridges.get(_place(function.address), []) for function in functions}
    return {address: addresses[0] for address, addresses in above.items() if len(addresses) == 1}


def _place(address: str) -> tuple[str, int]:
    domain, bus, _ = address.split(":")
    return domain, int(bus, 16)


def _unknown(functions: Sequence[_Function], devices: Sequence[PciDevice]) -> dict[str, str]:
    tree = any(function.buses for function in functions)
    unknown: dict[str, str] = {}
    for function, device in zip(functions, devices, strict=True):
        path = f"pci/{device.address}"
        if device.parent is None and (not tree or function.port_type in _NEVER_AT_A_ROOT):
            unknown[f"{path}/parent"] = _NO_BRIDGE if tree else _NO_TREE
        if device.kind != "other" and device.virtual:
            unknown[f"{path}/link"] = pci.VIRTUAL_LINK
        elif device.kind != "other" and device.link == PcieLink():
            unknown[f"{path}/link"] = _DENIED if function.denied else "lspci does not print it"
        if function.denied:
            unknown[f"{path}/acs"] = _DENIED
    return unknown


LSPCI = Reader(KIND, looks_like, read, lists=frozenset({"pci", "gpus", "nics"}), starts=lambda line: _HEAD.match(line[:_LONGEST_LINE]))
