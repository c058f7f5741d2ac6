"""`lspci -vvv | grep ACSCtl`: how many ports have access control on, without the addresses that would say which."""

from __future__ import annotations

import re

from collbench.machine.model import Machine, System
from collbench.machine.readers.text import HEAD, Reader, Unreadable, bounded, printable

KIND = "lspci | grep ACSCtl"
REDIRECTS = ("ReqRedir", "CmpltRedir", "UpstreamFwd")
_LINE = re.compile(r"^(?:\S{1,200}:)?\s*ACSCtl:\s*(.*)$")
_BITS = re.compile(r"\b(SrcValid|TransBlk|ReqRedir|CmpltRedir|UpstreamFwd|EgressCtrl|DirectTrans)([+-])")
_MOST_CHARACTERS = 2 << 20


def looks_like(text: str, name: str) -> bool:
    """Every line is one of ACSCtl."""
    lines = [line for line in text[:HEAD].splitlines() if line.strip()]
    return bool(lines) and all(_LINE.match(line[:400]) for line in lines[:-1]) and bool(_LINE.match(lines[0][:400]))


def read(text: str, name: str) -> Machine:
    """How many ports print their access control, and at how many requests are redirected. Raises Unreadable for other lines."""
    bounded(text, name, _MOST_CHARACTERS, "a machine's ports fill", "give one machine's output")
    ports, on = 0, 0
    for line in text.splitlines():
        if not line.strip():
            continue
        match = _LINE.match(line[:400])
        bits = dict(_BITS.findall(match[1])) if match else {}
        if not bits:
            raise Unreadable(f"{printable(name)}: the line {printable(line.strip(), 60)!r} has no bits of ACSCtl: save the output again")
        ports += 1
        on += any(bits.get(bit) == "+" for bit in REDIRECTS)
    return Machine(
        sources=(f"{KIND} {printable(name)}",),
        system=System(acs_ports=ports, acs_on=on),
        unknown={"pci": "the lines name no device: `lspci -vvv`, as root, without grep does"},
    )


ACS_LINES = Reader(KIND, looks_like, read)
