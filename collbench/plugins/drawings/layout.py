"""The layout of a machine's drawing: positions in pixels of NUMA nodes, switches, GPUs and NICs.

Top to bottom: the NUMA node, switches above other switches, NICs, switches, GPUs. GPUs are at the bottom, above their own links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from collbench.machine.model import Gpu, Nic, PciDevice
from collbench.plugins.drawings.svg import Box
from collbench.report.machine import Domain, Part, Switch

CARD, GAP, LANE, PAD = 106.0, 12.0, 22.0, 16.0
CARD_HEIGHT, SWITCH_HEIGHT, WIRE = 62.0, 30.0, 48.0
TOP, HEADER = 94.0, 52.0
_EMPTY = 230.0


class Wire(msgspec.Struct, frozen=True):
    """The line of a device's PCIe link: vertical at x, from one edge to another."""

    device: PciDevice | None
    address: str | None
    x: float
    above: float
    below: float
    gpu: bool = False
    label_at: float = 0.0
    is_virtual: bool = False  # not a PCIe link


class PictureLayout:
    """The positions of all boxes and links of the picture; `devices` has the PCI devices by address."""

    def __init__(self, domains: Sequence[Domain], devices: Mapping[str, PciDevice]) -> None:
        self.domains: list[tuple[Domain, Box]] = []
        self.switches: list[tuple[Switch, Box]] = []
        self.parts: list[tuple[Part, Box]] = []
        self.wires: list[Wire] = []
        self._devices = devices
        self._place_rows(domains)
        x = PAD
        for domain in domains:  # from left to right
            inner = sum(map(_width, domain.below)) + GAP * max(0, len(domain.below) - 1)
            width = max(inner, _EMPTY if not domain.below else CARD + LANE) + 2 * PAD
            self.domains.append((domain, Box(x, TOP, width, self.bottom - TOP)))
            self._row(domain.below, x + PAD, TOP + PAD + HEADER, 0)
            x += width + GAP
        self.width = max(x - GAP + PAD, 480.0)

    def _place_rows(self, domains: Sequence[Domain]) -> None:
        kinds = {type(part) for domain in domains for part in _flat(domain.below)}
        self._bar_y = TOP + PAD + HEADER + WIRE
        self._nic_y = self._bar_y + max((_depth(domain.below) for domain in domains), default=0) * (SWITCH_HEIGHT + WIRE)
        self._switch_y = self._nic_y + (CARD_HEIGHT + WIRE if Nic in kinds else 0.0)
        self._gpu_y = self._switch_y + (SWITCH_HEIGHT + WIRE if Switch in kinds else 0.0)
        end = self._gpu_y + (CARD_HEIGHT + WIRE if Gpu in kinds else 0.0) - WIRE
        self.bottom = end + (PAD if kinds & {Nic, Gpu} else 2.5 * PAD)

    def _row(self, below: tuple[Switch | Part, ...], x: float, above: float, level: int) -> None:
        for part in below:
            if not isinstance(part, Switch):
                self._part(part, x, above)
            elif any(isinstance(inner, Switch) for inner in part.below):
                box = self._switch(part, x, self._bar_y + level * (SWITCH_HEIGHT + WIRE), above)
                self._row(part.below, x + LANE, box.bottom, level + 1)
            else:
                self._leaf(part, x, above)
            x += _width(part) + GAP

    def _part(self, part: Part, x: float, above: float) -> None:
        box = Box(x, self._gpu_y if isinstance(part, Gpu) else self._nic_y, CARD, CARD_HEIGHT)
        self.parts.append((part, box))
        self._wire(part, box.middle, above, box.y, box.y - 14)

    def _switch(self, switch: Switch, x: float, y: float, above: float) -> Box:
        box = Box(x, y, _width(switch), SWITCH_HEIGHT)
        self.switches.append((switch, box))
        self.wires.append(Wire(switch.device, switch.device.address, x + LANE / 2 - 2, above, y, label_at=above + 20))
        return box

    def _leaf(self, switch: Switch, x: float, above: float) -> None:
        box = self._switch(switch, x, self._switch_y, above)
        for kind in (Nic, Gpu):
            for place, part in enumerate(inner for inner in switch.below if isinstance(inner, kind)):
                at = x + LANE + place * (CARD + GAP)
                if kind is Gpu:
                    self._part(part, at, box.bottom)
                else:
                    self.parts.append((part, Box(at, self._nic_y, CARD, CARD_HEIGHT)))
                    self._wire(part, at + CARD / 2, self._nic_y + CARD_HEIGHT, box.y, box.y - 20)

    def _wire(self, part: Part, x: float, above: float, below: float, label_at: float) -> None:
        device = self._devices.get(part.address) if part.address else None
        is_virtual = isinstance(part, Nic) and part.virtual is not None
        self.wires.append(Wire(device, part.address, x, above, below, isinstance(part, Gpu), label_at, is_virtual))


def _width(part: Switch | Part) -> float:
    if not isinstance(part, Switch):
        return CARD
    if any(isinstance(inner, Switch) for inner in part.below):
        return LANE + sum(map(_width, part.below)) + GAP * (len(part.below) - 1)
    gpus = sum(isinstance(inner, Gpu) for inner in part.below)
    columns = max(gpus, len(part.below) - gpus)
    return LANE + columns * CARD + (columns - 1) * GAP


def _depth(below: tuple[Switch | Part, ...]) -> int:
    """Return the number of rows of switches above other switches."""
    bars = [switch for switch in below if isinstance(switch, Switch) and any(isinstance(part, Switch) for part in switch.below)]
    return max((1 + _depth(switch.below) for switch in bars), default=0)


def _flat(below: tuple[Switch | Part, ...]) -> list[Switch | Part]:
    parts: list[Switch | Part] = []
    for part in below:
        parts.append(part)
        if isinstance(part, Switch):
            parts += _flat(part.below)
    return parts
