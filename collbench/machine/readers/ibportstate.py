"""`ibportstate LID PORT`: one InfiniBand port of an adapter, its state, and the lanes that it uses and may use.

The lines: rdma-core infiniband-diags/ibportstate.c ("LinkWidthActive:.................4X"). The tool names no device, only the LID.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from collbench.machine.model import Machine, Nic, Port
from collbench.machine.readers.infiniband_rate import fabric_rate
from collbench.machine.readers.rdma_words import IS_DOWN, lid, lines_of, state
from collbench.machine.readers.text import HEAD, Reader, Unreadable, printable, whole

KIND = "ibportstate"
_SECTION = re.compile(r"^# Port info: (?:Lid (\d{1,5}) port (\d{1,3})|DR path .{0,80})$")
_OTHER_SECTION = re.compile(r"^# .{1,100}$")
_LINE = re.compile(r"^([A-Za-z0-9]{3,40}):\.*\s*(.*)$")
_LANES = re.compile(r"\b(\d{1,2})X\b")
_LANE_SPEED = re.compile(r"^(\d{1,3}(?:\.\d{1,5})?) Gbps\b")
_SPEEDS = ("LinkSpeedExtActive2", "LinkSpeedExtActive", "LinkSpeedActive")


def looks_like(text: str, name: str) -> bool:
    """Its dotted lines."""
    start = text[:HEAD]
    return "LinkWidthActive:." in start and "PhysLinkState:." in start and "==(" not in start


def read(text: str, name: str) -> Machine:
    """The port as a NIC called after its LID, "LID 12"; where another source lists a port with this LID, it is that NIC.

    Raises Unreadable for a switch's port, and for text without a LID or a width.
    """
    called = printable(name)
    lines = list(lines_of(text, name))
    if any("Switch PortInfo" in line for line in lines):
        raise Unreadable(
            f"{called} describes the port of a switch: give the port of an adapter, `ibportstate LID PORT` with LIDs of `ibstat`"
        )
    facts, number, fdr10 = _facts(lines)
    local, width = lid(facts.get("Lid")), _lanes(facts.get("LinkWidthActive"))
    if local is None or width is None:
        raise Unreadable(f"{called} has no Lid or no LinkWidthActive: save the whole output of `ibportstate LID PORT` again")
    nic = f"LID {local}"
    logical = state(facts.get("LinkState"))
    speed = 10.3125 if fdr10 else next((found for key in _SPEEDS if (found := _speed(facts.get(key)))), None)
    rate = None if logical == "down" or speed is None else fabric_rate(width, speed * 1e9)
    why = IS_DOWN if logical == "down" else "ibportstate prints no speed that a port has"
    port = Port(
        number=number,
        rate_bits_per_s=rate,
        rate_text=f"{width}X at {speed:g} Gb/s a lane" if speed else None,
        state=logical,
        phys_state=state(facts.get("PhysLinkState")),
        link_layer="infiniband",
        lid=local,
        sm_lid=whole(facts.get("SMLid"), 0, 0xFFFF),
        lanes=None if logical == "down" else width,
        max_lanes=_widest(facts),
    )
    unknown = {f"nics/{nic}/address": "ibportstate names no device"}
    unknown |= {} if rate else {f"nics/{nic}/ports/{number}/rate_bits_per_s": why}
    return Machine(sources=(f"{KIND} {called}",), nics=(Nic(nic, rdma=True, ports=(port,)),), unknown=unknown)


def _facts(lines: list[str]) -> tuple[dict[str, str], int, bool]:
    """The lines of the last section (after a change the port as it is now), the port's number, and whether the speed is FDR10."""
    facts: dict[str, str] = {}
    number, inside, fdr10 = 1, False, False
    for line in lines:
        if match := _SECTION.match(line):
            facts, inside, fdr10 = {}, True, False
            number = int(match[2]) if match[2] else 1
        elif _OTHER_SECTION.match(line):
            inside = False
        elif match := _LINE.match(line):
            if inside:
                facts.setdefault(match[1], match[2])
            elif facts and match[1] == "LinkSpeedActive":
                fdr10 = (whole(match[2], 0, 255) or 0) == 1
    return facts, number, fdr10


def _lanes(text: str | None) -> int | None:
    match = _LANES.search(text or "")
    return int(match[1]) if match else None


def _widest(facts: Mapping[str, str]) -> int | None:
    """The most lanes that are supported and enabled."""
    both = [{int(width) for width in _LANES.findall(facts.get(key, ""))} for key in ("LinkWidthSupported", "LinkWidthEnabled")]
    return max(both[0] & both[1], default=None) if all(both) else None


def _speed(text: str | None) -> float | None:
    match = _LANE_SPEED.match(text or "")
    return float(match[1]) if match else None


IBPORTSTATE = Reader(KIND, looks_like, read)
