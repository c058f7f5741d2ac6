"""The text of `iblinkinfo`: which host hangs at which switch, how wide and how fast. Its sections list the ports of one node each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from collbench.machine.model import FabricLink, Machine
from collbench.machine.readers.doubts import few, several
from collbench.machine.readers.infiniband_rate import WIDTHS, lane_name
from collbench.machine.readers.text import HEAD, Reader, Unreadable, printable, whole

KIND = "iblinkinfo"

_SECTION = re.compile(r"^(CA|Switch|RT): *(0x[0-9a-f]{1,16} )? *(.*?):?\s*$", re.IGNORECASE)
_ARROW = re.compile(r"==\((.*?)\)==>")
_NEAR = re.compile(r"(?:^|\s)(\d{1,5})\s+(\d{1,3})\[\s*\]\s*$")
_FAR = re.compile(r'^\s*(?:0x[0-9a-f]+\s+)?(?:(\d{1,5})\s+(\d{1,3}))?\s*\[\s*\]\s*"([^"]*)"\s*\(\s*(.*?)\s*\)\s*$')
_SPEED = re.compile(r"^\s*(\d{1,3})X\s+(\d{1,4}(?:\.\d{1,5})?)\s+Gbps\s")
_LONGEST_LINE = 1000
_NO_HOST = "aggregation node"  # of SHARP: a part of a switch that answers as an adapter
_NAMELESS = "mellanox technologies"  # an adapter that nobody gave its host's name


@dataclass(frozen=True)
class _Row:
    """One port: the section it stands in, and both ends."""

    kind: Literal["CA", "Switch", "RT"]
    node: str
    port: int
    width: int | None
    lane: float | None
    peer: str | None
    peer_port: int | None
    note: str


def looks_like(text: str, name: str) -> bool:
    """Whether the start of a text is iblinkinfo's."""
    return "==>" in text[:HEAD] and any(_ARROW.search(line[:_LONGEST_LINE]) for line in text[:HEAD].splitlines())


def starts(line: str) -> bool:
    """Whether the line begins a node's section."""
    return bool(_SECTION.match(line[:_LONGEST_LINE]))


def read(text: str, name: str) -> Machine:
    """The cables of the hosts in `fabric`; lanes are signalling rates, before line coding. Raises Unreadable when no row can be read."""
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
    noted = [f"{several(ports)}: {KIND} notes '{note}', both ends could do better" for note, ports in notes.items() if note]
    return Machine(sources=(f"{KIND} {printable(name)}",), fabric=tuple(_link(row) for row in hosts), doubts=(*doubts, *few(noted)))


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
        doubts.append(f"{KIND}: {odd} links could not be read whole")


def _row(kind: str, node: str, line: str) -> _Row | None:
    arrow = _ARROW.search(line)
    near, far = (_NEAR.search(line[: arrow.start()]), _FAR.match(line[arrow.end() :])) if arrow else (None, None)
    if not arrow or not near or not far:
        return None
    width, lane = _speed(arrow[1])
    known: Literal["CA", "Switch", "RT"] = "CA" if kind.upper() == "CA" else "Switch" if kind.lower() == "switch" else "RT"
    return _Row(known, node, int(near[2]), width, lane, _node(far[3], None) or None, whole(far[2], 0, 255), printable(far[4], 80))


def _speed(text: str) -> tuple[int | None, float | None]:
    """(lanes, bits/s of one before line coding); (None, None) of a port that is down and of rates that no port has."""
    match = _SPEED.match(text)
    width, lane = (int(match[1]), float(match[2]) * 1e9) if match else (0, 0.0)
    return (width, lane) if width in WIDTHS and lane_name(lane) else (None, None)


def _node(description: str, guid: str | None) -> str:
    """A node's description; the GUID of one that only names its maker."""
    name = printable(description).strip(' "')
    nameless = not name or (_NAMELESS in name.lower() and _NO_HOST not in name.lower())
    return guid.strip() if guid and nameless else name


def _turned(row: _Row) -> Iterable[_Row]:
    """A switch's row seen from the host at its other end."""
    return [_Row("CA", row.peer, row.peer_port, row.width, row.lane, row.node, row.port, row.note)] if row.peer and row.peer_port else []


def _link(row: _Row) -> FabricLink:
    host, _, device = row.node.partition(" ")
    return FabricLink(host, device.strip() or None, row.port, row.width, row.lane, row.peer, row.peer_port)


IBLINKINFO = Reader(KIND, looks_like, read, lists=frozenset({"fabric"}), starts=starts)
