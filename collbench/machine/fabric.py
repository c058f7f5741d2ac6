"""An InfiniBand fabric as a subnet manager's tools list it: switches, adapters, cables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import msgspec

Kind = Literal["switch", "host", "router"]
End = tuple[str, int]  # a node's GUID, 16 hexadecimal digits, and the port's number

_NAMELESS = ("mellanox technologies", "aggregation node", "infinihost")  # adapters without a host's name, and parts of switches


class FabricNode(msgspec.Struct, frozen=True):
    """A switch, a host's adapter, or a router. description: as set by the administrator, such as "node07 HCA-1"."""

    guid: str
    kind: Kind
    description: str = ""

    @property
    def host(self) -> str | None:
        """The host of an adapter, such as "node07"; None for other nodes, and where the description has no host name."""
        words = self.description.split()
        nameless = any(text in self.description.lower() for text in _NAMELESS)
        return words[0] if self.kind == "host" and words and not nameless else None


class Cable(msgspec.Struct, frozen=True):
    """A cable between two ports. rate: such as "4xEDR", "" when unknown. bits_per_s: data rate of each direction, None when unknown."""

    a: End
    b: End
    rate: str = ""
    bits_per_s: float | None = None

    @property
    def ends(self) -> tuple[End, End]:
        """Both ends of the cable."""
        return self.a, self.b


class Fabric(msgspec.Struct, frozen=True, dict=True):
    """The nodes and cables of an InfiniBand fabric.

    source: the file it was read from; nodes: by GUID; lids: the known LIDs by port (for a switch by its port 0).
    doubts: what could not be read, one sentence each.
    """

    source: str
    nodes: Mapping[str, FabricNode]
    cables: tuple[Cable, ...]
    lids: Mapping[End, int] = msgspec.field(default_factory=dict)
    doubts: tuple[str, ...] = ()

    def label(self, guid: str) -> str:
        """Return the name of a node for users: its description, with the GUID where it is not unique; without a description the GUID."""
        description = self.nodes[guid].description
        return description if description and self._descriptions[description] == 1 else f"{description} {guid}".strip()

    def port(self, end: End) -> str:
        """Return the name of a port for users: "leaf1 port 17"."""
        return f"{self.label(end[0])} port {end[1]}"

    @cached_property
    def _descriptions(self) -> Counter[str]:
        return Counter(node.description for node in self.nodes.values())
