"""An InfiniBand fabric as a subnet manager's tools tell it: switches, the hosts' adapters, and the cables between their ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Kind = Literal["switch", "host", "router"]
End = tuple[str, int]  # a node's GUID, 16 hexadecimal digits, and the port's number

_NAMELESS = ("mellanox technologies", "aggregation node", "infinihost")  # adapters that nobody gave a host's name, and parts of switches


@dataclass(frozen=True)
class Node:
    """A switch, an adapter of a host, or a router. description: as its owner wrote it, "node07 HCA-1"."""

    guid: str
    kind: Kind
    description: str = ""

    @property
    def host(self) -> str | None:
        """The host of an adapter, "node07"; None of other nodes, and where the description names none."""
        words = self.description.split()
        nameless = any(part in self.description.lower() for part in _NAMELESS)
        return words[0] if self.kind == "host" and words and not nameless else None


@dataclass(frozen=True)
class Cable:
    """Between two ports. rate: "4xEDR", "" unknown; bits_per_s: of data each way, None unknown."""

    a: End
    b: End
    rate: str = ""
    bits_per_s: float | None = None

    @property
    def ends(self) -> tuple[End, End]:
        """Both of them."""
        return self.a, self.b


@dataclass(frozen=True)
class Fabric:
    """source: which file it was read from; nodes by GUID; lids: by port, those that are known (of a switch its port 0).

    doubts: what could not be read, a sentence each.
    """

    source: str
    nodes: Mapping[str, Node]
    cables: tuple[Cable, ...]
    lids: Mapping[End, int] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()

    def label(self, guid: str) -> str:
        """What people call a node: its description, with the GUID where several have the same; the GUID of one without."""
        described = self.nodes[guid].description
        return described if described and self._described[described] == 1 else f"{described} {guid}".strip()

    def port(self, end: End) -> str:
        """ "leaf1 port 17"."""
        return f"{self.label(end[0])} port {end[1]}"

    @cached_property
    def _described(self) -> Counter[str]:
        return Counter(node.description for node in self.nodes.values())
