"""`ibstat` and `ibstatus`: RDMA devices with their ports. ibstat prints a rate without its name: "Rate: 400".

The lines: rdma-core infiniband-diags/ibstat.c and infiniband-diags/scripts/ibstatus.in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from collbench.machine.model import Machine, Nic, Port
from collbench.machine.readers.doubts import few
from collbench.machine.readers.infiniband_rate import LinkLayer, port_rate
from collbench.machine.readers.part_names import adapter_name
from collbench.machine.readers.rdma_words import IS_DOWN, NO_LID, guid, lid, lines_of, link_layer, state, why_software
from collbench.machine.readers.text import HEAD, Reader, Unreadable, printable, whole

KIND = "ibstat"

_DEVICE = re.compile(r"^CA:? '([^']*)'$")
_STATUS = re.compile(r"^Infiniband device '([^']*)' port (\d{1,3}) status:$")
_PORT = re.compile(r"^Port (\d{1,3}):$")
_LINE = re.compile(r"^([A-Za-z][A-Za-z _]{1,30}):\s*(\S.*)$")
_HEADS = re.compile(r"^[ \t]*(CA:? '|Infiniband device ')", re.MULTILINE)
_MOST_DEVICES = 1024

# Gb/s that name one rate alone, whatever the width: from EDR on the printed rate is the data rate, see infiniband_rate.
_PLAIN = {"25", "50", "100", "200", "400", "800", "1600"}
_NAMED = {"14": "1X FDR", "20": "4X DDR", "56": "4X FDR"}
_ETHERNET = _PLAIN | {"1", "10", "40", "56"}
_TWO_MEANINGS = {
    "10": "10 is SDR, 8 Gb/s of data, or what is printed for a speed that the kernel does not know",
    "40": "40 is QDR, 32 Gb/s of data, or FDR10, 40: /sys/class/infiniband tells which",
}


@dataclass
class _Device:
    name: str
    facts: dict[str, str] = field(default_factory=dict)
    ports: dict[int, dict[str, str]] = field(default_factory=dict)
    last: int | None = None

    def note(self, key: str, value: str) -> None:
        """Keep a line of the port that was begun last, else of the device; of two lines with one name the first."""
        (self.facts if self.last is None else self.ports[self.last]).setdefault(key, value)


def looks_like(text: str, name: str) -> bool:
    """It has a line like "CA 'mlx5_0'" or "Infiniband device 'mlx5_0' port 1 status:"."""
    return bool(_HEADS.search(text[:HEAD]))


def starts(line: str) -> bool:
    """Whether the line begins a device or a port."""
    return bool(_HEADS.match(line))


def read(text: str, name: str) -> Machine:
    """The RDMA devices that are listed, and their ports. A port that is down has no rate, whatever is printed; MTUs are not printed.

    Raises Unreadable for text without a device.
    """
    called = printable(name)
    devices = _devices(text, name)
    if not devices:
        raise Unreadable(f"{called} has no line like \"CA 'mlx5_0'\", which begins each device of ibstat: save its output again")
    if len(devices) > _MOST_DEVICES:
        raise Unreadable(f"{called} lists {len(devices)} devices, more than a machine has: give the output for one machine")
    unknown: dict[str, str] = {}
    doubts: list[str] = []
    nics = tuple(_nic(device, unknown, doubts) for device in devices)
    return Machine(sources=(f"{KIND} {called}",), nics=nics, unknown=unknown, doubts=few(doubts))


def _devices(text: str, name: str) -> list[_Device]:
    devices: dict[str, _Device] = {}
    now: _Device | None = None
    for line in lines_of(text, name):
        head, port, entry = _DEVICE.match(line) or _STATUS.match(line), _PORT.match(line), _LINE.match(line)
        if head:
            called = printable(head[1], 64) or "?"
            now = devices.setdefault(called, _Device(called))
            now.last = None
        number = head[2] if head and head.re is _STATUS else port[1] if port else None
        if now and number:
            now.last = int(number)
            now.ports.setdefault(now.last, {})
        elif now and entry:
            now.note(entry[1].lower().replace("_", " "), entry[2])
    return list(devices.values())


def _nic(device: _Device, unknown: dict[str, str], doubts: list[str]) -> Nic:
    ports = tuple(_port(number, lines, device.name, unknown, doubts) for number, lines in device.ports.items())
    if not ports:
        unknown[f"nics/{device.name}/ports"] = "ibstat lists no port of it"
    return Nic(
        name=device.name,
        model=adapter_name(device.facts.get("ca type")),
        rdma=True,
        ports=ports,
        virtual=why_software(device.name),
        firmware=printable(device.facts.get("firmware version", ""), 60) or None,
        guid=guid(device.facts.get("node guid")),
    )


def _port(number: int, lines: Mapping[str, str], name: str, unknown: dict[str, str], doubts: list[str]) -> Port:
    path = f"nics/{name}/ports/{number}"
    layer, logical = link_layer(lines.get("link layer")), state(lines.get("state"))
    text = printable(lines.get("rate", ""), 60)
    rate, why = (None, IS_DOWN) if logical == "down" else _rate(text, layer)
    if rate is None:
        unknown[f"{path}/rate_bits_per_s"] = why
    elif why:
        doubts.append(f"{name} port {number}: {why}")
    unknown[f"{path}/mtu_bytes"] = "ibstat prints no MTU"
    infiniband = layer == "infiniband"
    local = lid(lines.get("base lid")) if infiniband else None
    if infiniband and local is None:
        unknown[f"{path}/lid"] = NO_LID
    return Port(
        number=number,
        rate_bits_per_s=rate,
        rate_text=text or None,
        state=logical,
        phys_state=state(lines.get("physical state") or lines.get("phys state")),
        link_layer=layer,
        lid=local,
        sm_lid=whole(lines.get("sm lid"), 0, 0xFFFF) if infiniband else None,
    )


def _rate(text: str, layer: LinkLayer | None) -> tuple[float | None, str]:
    """Data bits/s, and why it is None or doubtful ("" for neither)."""
    if "Gb/sec" in text:
        rate = port_rate(text, layer or "infiniband")
        return rate, "" if rate else f"'{text}' is no rate that a port has"
    if text in _PLAIN or (layer == "ethernet" and text in _ETHERNET):
        return int(text) * 1e9, "10 is also printed for a speed that the kernel does not know" if text == "10" else ""
    if layer != "ethernet" and text in _NAMED:
        return port_rate(f"{text} Gb/sec ({_NAMED[text]})"), ""
    return None, _TWO_MEANINGS.get(text) or f"'{text}' is no rate that a port has"


IBSTAT = Reader(KIND, looks_like, read, lists=frozenset({"nics"}), starts=starts)
