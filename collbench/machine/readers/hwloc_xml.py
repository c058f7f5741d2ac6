"""hwloc's XML as a flat list of objects, each knowing the one it is in: what all versions of the format share.

Version 1 has no version attribute and puts what it knows into attributes; versions 2 and 3 add memory and I/O children
(https://www.open-mpi.org/projects/hwloc/doc/, "Importing and exporting topologies from/to XML files").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collbench.machine.readers.safe_xml import Limits, top_element
from collbench.machine.readers.text import Unreadable, pci_address, printable, whole

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_LIMITS = Limits("a machine's hwloc XML", "save it again with `lstopo --of xml`", 32 << 20, depth=256, elements=500_000, doctype=True)


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
    top = top_element(text, name, _LIMITS)
    if top.tag != "topology":
        raise Unreadable(f"{printable(name)} holds no <topology> of hwloc's: {_LIMITS.again}")
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


def number_of(thing: Thing, attribute: str) -> int | None:
    """A whole number in an attribute; None for nonsense."""
    return whole(thing.element.get(attribute), 0, 1 << 60)
