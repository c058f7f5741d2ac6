"""hwloc's XML as a flat list of objects, each knowing the one it is in: what all versions of the format share.

Version 1 has no version attribute and puts what it knows into attributes; versions 2 and 3 add memory and I/O children
(https://www.open-mpi.org/projects/hwloc/doc/, "Importing and exporting topologies from/to XML files").
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collbench.topology.text import Unreadable, pci_address, printable, whole

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_DEEPEST, _MOST_ELEMENTS, _MOST_CHARACTERS = 256, 500_000, 32 << 20
_LONGEST_TAG, _MOST_BITS = 1 << 20, 1 << 16
_AGAIN = "save it again with `lstopo --of xml`"


@dataclass(frozen=True, eq=False)
class Thing:
    """An <object>, and the one that it is in."""

    element: Element
    inside: Thing | None

    @property
    def type(self) -> str:
        """ "Package", "PCIDev"…; version 1's "Socket" is a Package."""
        found = self.element.get("type", "")
        return "Package" if found == "Socket" else found

    @property
    def address(self) -> str | None:
        """Of a PCI device or bridge; None for other objects."""
        return pci_address(self.element.get("pci_busid", "")) if self.type in ("PCIDev", "Bridge") else None

    @property
    def infos(self) -> dict[str, str]:
        """Its <info> children by name."""
        return infos(self.element)

    def up(self) -> Iterator[Thing]:
        """What it is in, from the innermost."""
        at = self.inside
        while at:
            yield at
            at = at.inside


def root(text: str, name: str) -> Element:
    """The <topology>. Raises Unreadable for other or broken XML, entities, and what is bigger than a machine."""
    from defusedxml.ElementTree import iterparse

    if len(text) > _MOST_CHARACTERS:
        raise Unreadable(f"{printable(name)} has {len(text) >> 20} Mi characters, more than a machine's hwloc XML: {_AGAIN}")
    if any(len(tag) > _LONGEST_TAG for tag in text.split(">")):  # the parser begins such a one anew with every block that it reads
        raise Unreadable(f"{printable(name)} has a tag longer than {_LONGEST_TAG >> 20} Mi characters, which no machine has: {_AGAIN}")
    depth = count = 0
    top: Element | None = None
    try:
        for event, element in iterparse(io.StringIO(text.lstrip("\ufeff \t\r\n")), events=("start", "end"), forbid_dtd=False):
            top = element if top is None else top
            depth += 1 if event == "start" else -1
            count += event == "start"
            if depth > _DEEPEST or count > _MOST_ELEMENTS:
                raise Unreadable(f"{printable(name)} nests deeper or has more elements than a machine does: {_AGAIN}")
    except (SyntaxError, ValueError, LookupError) as why:
        reason = printable(str(why) or type(why).__name__, 120)
        raise Unreadable(f"{printable(name)} is XML that cannot be read ({reason}): {_AGAIN}") from None
    if top is None or top.tag != "topology":
        raise Unreadable(f"{printable(name)} holds no <topology> of hwloc's: {_AGAIN}")
    return top


def things(topology: Element) -> list[Thing]:
    """Every <object>, outer ones first."""
    found: list[Thing] = []
    waiting: list[tuple[Element, Thing | None]] = [(topology, None)]
    while waiting:
        element, inside = waiting.pop()
        thing = Thing(element, inside) if element.tag == "object" else inside
        if element.tag == "object" and thing:
            found.append(thing)
        waiting += [(child, thing) for child in reversed(element) if child.tag == "object"]
    return found


def infos(element: Element) -> dict[str, str]:
    """The <info> children by name."""
    return {child.get("name", ""): printable(child.get("value", "")) for child in element if child.tag == "info"}


def bits(text: str | None) -> frozenset[int] | None:
    """The numbers in a set such as "0x00000003" or "0x1,,0x00ff00ff" (32 bits a word); None for endless and other sets."""
    words = text.split(",") if text and len(text) < _MOST_BITS else []
    if not words or not all(re.fullmatch(r"(0x[0-9a-fA-F]{1,8})?", word) for word in words):
        return None
    value = 0
    for word in words:
        value = value << 32 | int(word or "0", 16)
    return frozenset(place for place, bit in enumerate(reversed(f"{value:b}")) if bit == "1")


def ranges(numbers: frozenset[int] | None) -> str | None:
    """A list as the kernel writes it, "0-31,64-95"; None for none."""
    runs: list[list[int]] = []
    for number in sorted(numbers or ()):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs) or None


def number_of(thing: Thing, attribute: str) -> int | None:
    """A whole number in an attribute; None for nonsense."""
    return whole(thing.element.get(attribute), 0, 1 << 60)
