"""The text of lspci, cut into one block of facts per function: `lspci`, `-nn`, `-vvv`, `-vvvnn`, with and without domains (`-D`)."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

from collbench.machine.model import PcieLink
from collbench.machine.readers.text import Unreadable, gigatransfers, lanes, numa_of, pci_address, printable

_MOST_FUNCTIONS, _LONGEST_LINE = 65536, 2000
_HEAD = re.compile(r"^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?:Class )?(\S.{0,99}?): (.*)$", re.IGNORECASE)
_CLASS = re.compile(r"(?:^|\[)([0-9a-f]{4})\]?$", re.IGNORECASE)
_IDS = re.compile(r"\[?\b([0-9a-f]{4}):([0-9a-f]{4})\b\]?", re.IGNORECASE)
_TAIL = re.compile(r"\s*\((?:rev|prog-if)\b[^()]*\)")
_DEVICE = re.compile(r"\bDevice ([0-9a-f]{4})$")
_LINE = re.compile(r"^\s+(NUMA node|LnkCap|LnkSta|ACSCtl|Bus|Kernel driver in use|Capabilities):\s*(.*)$")
_WIDTH = re.compile(r"Width x(\d{1,3})\b")
_BUS = re.compile(r"primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})", re.IGNORECASE)
_PORT_TYPE = re.compile(r"Express (?:\(v\d\) )?(?:to PCI/PCI-X Bridge|([A-Z][A-Za-z ]+?))(?= \(|, |\s*$)")
# Classes by the names that pci.ids gives them (https://pci-ids.ucw.cz), for output without -nn.
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


@dataclass
class Function:
    """What lspci prints of one function.

    buses       primary and secondary bus of a bridge
    port_type   "Root Port", "Upstream Port", "Endpoint"…; None when not printed
    acs         control bits that are on; None when not printed
    denied      capabilities were not shown: lspci ran without root
    """

    address: str
    vendor_id: int | None = None
    device_id: int | None = None
    class_id: int | None = None
    name: str | None = None
    numa: int | None = None
    now: tuple[float | None, int | None] = (None, None)
    most: tuple[float | None, int | None] = (None, None)
    acs: tuple[str, ...] | None = None
    driver: str | None = None
    buses: tuple[int, int] | None = None
    port_type: str | None = None
    denied: bool = False

    @property
    def link(self) -> PcieLink:
        """LnkSta and LnkCap."""
        return PcieLink(*self.now, *self.most)


def is_head(line: str) -> bool:
    """The line is a function's first one."""
    return bool(_HEAD.match(line[:_LONGEST_LINE]))


def functions(text: str, name: str) -> Iterator[Function]:
    """Every function in the order of the text. Raises Unreadable when one is listed twice, or far too many are."""
    seen: set[str] = set()
    current: Function | None = None
    for line in io.StringIO(text):
        if match := _HEAD.match(line.rstrip()[:_LONGEST_LINE]):
            if current:
                yield current
            current = _function(match)
            if current.address in seen or len(seen) >= _MOST_FUNCTIONS:
                raise Unreadable(f"{printable(name)} lists {current.address} twice: give the output for one machine")
            seen.add(current.address)
        elif current and (match := _LINE.match(line.rstrip()[:_LONGEST_LINE])):
            _take(current, match[1], match[2])
    if current:
        yield current


def _function(match: re.Match[str]) -> Function:
    rest = _TAIL.sub("", match[3]).strip()
    ids = list(_IDS.finditer(rest))
    called = printable((rest[: ids[-1].start()] + rest[ids[-1].end() :]).strip() if ids else rest)
    device = _DEVICE.search(called)
    return Function(
        pci_address(match[1]) or match[1].lower(),
        int(ids[-1][1], 16) if ids else next((number for vendor, number in _VENDORS.items() if called.startswith(vendor)), None),
        int(ids[-1][2], 16) if ids else int(device[1], 16) if device else None,
        _class(match[2].strip()),
        called or None,
    )


def _class(text: str) -> int | None:
    """0x030200 of "3D controller [0302]", "0302" and "3D controller"; None for names that say nothing here."""
    match = _CLASS.search(text)
    number = int(match[1], 16) if match else _CLASSES.get(text.lower())
    return number << 8 if number is not None else None


def _take(function: Function, word: str, value: str) -> None:
    if word == "NUMA node":
        function.numa = numa_of(value)
    elif word == "LnkSta":
        function.now = _link(value)
    elif word == "LnkCap":
        function.most = _link(value)
    elif word == "ACSCtl":
        function.acs = tuple(re.findall(r"\b([A-Za-z]{3,20})\+", value))
    elif word == "Kernel driver in use":
        function.driver = printable(value, 60) or None
    elif word == "Bus" and (match := _BUS.search(value)):
        function.buses = (int(match[1], 16), int(match[2], 16))
    elif word == "Capabilities":
        function.denied |= "access denied" in value
        function.port_type = function.port_type or _port_type(value)


def _link(value: str) -> tuple[float | None, int | None]:
    """GT/s and lanes; "Speed unknown, Width x0" is (None, None)."""
    width = _WIDTH.search(value)
    return gigatransfers(value), lanes(width[1]) if width else None


def _port_type(value: str) -> str | None:
    match = _PORT_TYPE.search(value)
    return (match[1] or "PCI bridge") if match else None
