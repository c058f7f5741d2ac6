"""The text of `ibnetdiscover`: every switch, adapter and cable of a fabric; its plain form (also with -f or -g), and the ports of -p.

Format: ibnetdiscover(8), "TOPOLOGY FILE FORMAT", and what `ibnetdiscover.c` of infiniband-diags prints. In the form of -p an adapter
goes by its port's GUID. A cable stands in the text once for each end; one mention is enough, so that a text that was cut off can be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from collbench.machine.fabric import Cable, End, Fabric, Kind, Node
from collbench.machine.readers.infiniband_rate import LANES, WIDTHS
from collbench.machine.readers.text import HEAD, Unreadable, decoded, printable, whole
from collbench.untrusted import read_file

KIND = "ibnetdiscover"

_MOST_BYTES = 16 << 20  # some 5,000 hosts fill 2 MB
_LONGEST_LINE = 1000
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
    """Whether the start of a text is ibnetdiscover's, in either form."""
    return any(_NODE.match(line[:_LONGEST_LINE]) or _ROW.fullmatch(line[:_LONGEST_LINE]) for line in text[:HEAD].splitlines())


def read_fabric(path: Path) -> Fabric:
    """The fabric of a file. Raises Unreadable, one sentence, for one that cannot be read or holds no cable."""
    try:
        data = read_file(path, _MOST_BYTES)
    except OSError as error:
        said = f"fabric file '{printable(str(path))}' cannot be read ({error.strerror or error})"
        raise Unreadable(f"{said}: save the output of `ibnetdiscover` into a file and name it") from error
    return read(decoded(data, f"fabric file '{printable(str(path))}'"), str(path))


def read(text: str, name: str) -> Fabric:
    """The fabric that a text tells of. Raises Unreadable when it holds no cable."""
    found = _Found()
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
class _Found:
    """What the lines so far told; node: that whose ports are listed."""

    nodes: dict[str, Node] = field(default_factory=dict)
    cables: dict[End, Cable] = field(default_factory=dict)
    lids: dict[End, int] = field(default_factory=dict)
    node: str | None = None
    odd: int = 0
    against: list[End] = field(default_factory=list)

    def take(self, line: str) -> None:
        """One line; others than those of nodes and ports say nothing of the cables."""
        if header := _NODE.match(line):
            self.node = self._known(header[2], header[1], header[3])
        elif row := _ROW.fullmatch(line):
            self._row(row)
        elif (port := _PORT.match(line)) and self.node:
            self._port(self.node, port)
        else:
            self.odd += bool(_PORT_LIKE.match(line))

    def doubts(self) -> Iterator[str]:
        """Of what was left out."""
        if self.odd:
            yield f"{KIND}: what {'a line says of its port' if self.odd == 1 else f'{self.odd} lines say of their ports'} could not be read"
        if self.against:
            guid, port = self.against[0]
            more = f" and {len(self.against) - 1} more" if len(self.against) > 1 else ""
            yield f"{KIND}: two cables are told of {guid} port {port}{more}: the first was taken"

    def _known(self, guid: str, kind: str, description: str) -> str:
        full = guid.lower().zfill(16)
        name = printable(description)
        if full not in self.nodes or (name and not self.nodes[full].description):
            self.nodes[full] = Node(full, _KINDS[kind.upper()], name)
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
        mine, theirs = (part.strip().strip("'") for part in (*row[11].split("' - '", 1), "")[:2])
        ends = []
        for kind, lid, port, guid, description in ((*row.group(1, 2, 3, 4), mine), (*row.group(7, 8, 9, 10), theirs)):
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
