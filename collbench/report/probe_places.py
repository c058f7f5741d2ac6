"""Where everything of the machine's picture stands: pixels for NUMA nodes, switches, GPUs and NICs. Nothing is drawn here.

Top to bottom: the NUMA node, switches above other switches, NICs, switches, GPUs. GPUs are so at the bottom, where their own links are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from collbench.machine.model import Gpu, PciDevice
from collbench.report.probe_layout import Domain, Part, Switch

CARD, GAP, LANE, PAD = 106.0, 12.0, 22.0, 16.0
CARD_HEIGHT, SWITCH_HEIGHT, WIRE = 62.0, 30.0, 48.0
TOP, HEADER = 94.0, 52.0
_EMPTY = 230.0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """Its centre, across."""
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class Wire:
    """A PCIe link: of which device, straight down or up at x from one edge to another."""

    device: PciDevice | None
    address: str | None
    x: float
    above: float
    below: float
    gpu: bool = False
    label_at: float = 0.0


@dataclass
class Plan:
    """All boxes and links of the picture."""

    domains: list[tuple[Domain, Box]] = field(default_factory=list)
    switches: list[tuple[Switch, Box]] = field(default_factory=list)
    parts: list[tuple[Part, Box]] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    width: float = 0.0
    bottom: float = 0.0


class Planner:
    """Places domains from left to right; `device_of` gives a part's PCI device."""

    def __init__(self, domains: list[Domain], devices: dict[str, PciDevice]) -> None:
        self._devices = devices
        self.plan = Plan()
        self._bars = max((_depth(domain.below) for domain in domains), default=0)
        flat = [each for domain in domains for each in _flat(domain.below)]
        self._nics = any(not isinstance(part, Gpu | Switch) for part in flat)
        self._leaves = any(isinstance(each, Switch) for each in flat)
        self._gpus = any(isinstance(part, Gpu) for part in flat)
        self._rows()
        x = PAD
        for domain in domains:
            x = self._domain(domain, x) + GAP
        self.plan.width = max(x - GAP + PAD, 480.0)
        self.plan.bottom = self._end

    def _rows(self) -> None:
        """The height of each row that this machine needs."""
        y = TOP + PAD + HEADER
        self._bar_y = y + WIRE
        y += self._bars * (SWITCH_HEIGHT + WIRE)
        self._nic_y = y + WIRE
        y += CARD_HEIGHT + WIRE if self._nics else 0.0
        self._switch_y = y + WIRE
        y += SWITCH_HEIGHT + WIRE if self._leaves else 0.0
        self._gpu_y = y + WIRE
        y += CARD_HEIGHT + WIRE if self._gpus else 0.0
        self._end = y + (PAD if self._nics or self._gpus else 2.5 * PAD)

    def _domain(self, domain: Domain, x: float) -> float:
        inner = sum(map(_width, domain.below)) + GAP * max(0, len(domain.below) - 1)
        width = max(inner, _EMPTY if not domain.below else CARD + LANE) + 2 * PAD
        self.plan.domains.append((domain, Box(x, TOP, width, self._end - TOP)))
        self._row(domain.below, x + PAD, TOP + PAD + HEADER, 0)
        return x + width

    def _row(self, below: tuple[Switch | Part, ...], x: float, above: float, level: int) -> None:
        """What hangs below the edge `above`, from left to right."""
        for each in below:
            if not isinstance(each, Switch):
                self._part(each, x, above)
            elif any(isinstance(inner, Switch) for inner in each.below):
                self._bar(each, x, above, level)
            else:
                self._leaf(each, x, above)
            x += _width(each) + GAP

    def _part(self, part: Part, x: float, above: float) -> None:
        box = Box(x, self._gpu_y if isinstance(part, Gpu) else self._nic_y, CARD, CARD_HEIGHT)
        self.plan.parts.append((part, box))
        self._wire(part, box.middle, above, box.y, box.y - 14)

    def _bar(self, switch: Switch, x: float, above: float, level: int) -> None:
        box = Box(x, self._bar_y + level * (SWITCH_HEIGHT + WIRE), _width(switch), SWITCH_HEIGHT)
        self.plan.switches.append((switch, box))
        self._up(switch, x, above, box.y)
        self._row(switch.below, x + LANE, box.bottom, level + 1)

    def _leaf(self, switch: Switch, x: float, above: float) -> None:
        box = Box(x, self._switch_y, _width(switch), SWITCH_HEIGHT)
        self.plan.switches.append((switch, box))
        self._up(switch, x, above, box.y)
        for row in (self._kind(switch, False), self._kind(switch, True)):
            for place, part in enumerate(row):
                at = x + LANE + place * (CARD + GAP)
                if isinstance(part, Gpu):
                    self._part(part, at, box.bottom)
                else:
                    self.plan.parts.append((part, Box(at, self._nic_y, CARD, CARD_HEIGHT)))
                    self._wire(part, at + CARD / 2, self._nic_y + CARD_HEIGHT, box.y, box.y - 20)

    def _kind(self, switch: Switch, gpus: bool) -> list[Part]:
        return [each for each in switch.below if not isinstance(each, Switch) and isinstance(each, Gpu) == gpus]

    def _up(self, switch: Switch, x: float, above: float, y: float) -> None:
        self.plan.wires.append(Wire(switch.device, switch.device.address, x + LANE / 2 - 2, above, y, label_at=above + 20))

    def _wire(self, part: Part, x: float, above: float, below: float, label_at: float) -> None:
        device = self._devices.get(part.address) if part.address else None
        self.plan.wires.append(Wire(device, part.address, x, above, below, isinstance(part, Gpu), label_at))


def _width(each: Switch | Part) -> float:
    if not isinstance(each, Switch):
        return CARD
    if any(isinstance(inner, Switch) for inner in each.below):
        return LANE + sum(map(_width, each.below)) + GAP * (len(each.below) - 1)
    gpus = sum(isinstance(part, Gpu) for part in each.below)
    columns = max(gpus, len(each.below) - gpus)
    return LANE + columns * CARD + (columns - 1) * GAP


def _depth(below: tuple[Switch | Part, ...]) -> int:
    """How many rows of switches stand above other switches."""
    inner = [_depth(each.below) for each in below if isinstance(each, Switch)]
    nested = [1 + depth for each, depth in zip((each for each in below if isinstance(each, Switch)), inner, strict=True)
              if any(isinstance(part, Switch) for part in each.below)]  # fmt: skip
    return max(nested, default=0)


def _flat(below: tuple[Switch | Part, ...]) -> list[Switch | Part]:
    """All parts and switches at any depth."""
    return [found for each in below for found in ([each, *_flat(each.below)] if isinstance(each, Switch) else [each])]
