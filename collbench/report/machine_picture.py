"""Pictures (SVG) of machines: NUMA nodes with their switches, GPUs and NICs; lines as wide as their links are fast.

A part that is down, or slower than its maximum, is dashed or hatched and has the reason as text: color alone has no meaning.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from collbench.errors import UsageError
from collbench.machine.distance import Distances
from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic, PciDevice, Port
from collbench.machine.snapshot import topology_json
from collbench.report.machine import (
    LINK_NAMES,
    Domain,
    Part,
    Switch,
    arrange,
    first_parts,
    gigatransfers_in_all,
    gpu_model,
    gpu_name,
    gpu_number,
    idle,
    links_text,
    listed,
    memory,
    nic_name,
    numa_facts,
    pcie,
    pcie_short,
    port_rate,
    port_state,
    port_text,
    safe,
    slower,
    switch_text,
    system_text,
)
from collbench.report.table import printable

# The layout of the picture: positions in pixels of NUMA nodes, switches, GPUs and NICs.
#
# Top to bottom: the NUMA node, switches above other switches, NICs, switches, GPUs. GPUs are at the bottom, above their own links.

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
        """Return its horizontal center."""
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        """Return its lower edge."""
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class Wire:
    """The line of a device's PCIe link: vertical at x, from one edge to another."""

    device: PciDevice | None
    address: str | None
    x: float
    above: float
    below: float
    gpu: bool = False
    label_at: float = 0.0


@dataclass
class PictureLayout:
    """The positions of all boxes and links of the picture."""

    domains: list[tuple[Domain, Box]] = field(default_factory=list)
    switches: list[tuple[Switch, Box]] = field(default_factory=list)
    parts: list[tuple[Part, Box]] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    width: float = 0.0
    bottom: float = 0.0


class Planner:
    """Places domains from left to right; `device_of` has each part's PCI device."""

    def __init__(self, domains: list[Domain], devices: dict[str, PciDevice]) -> None:
        self._devices = devices
        self.plan = PictureLayout()
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
        """Compute the height of each row that this machine needs."""
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
        """Place what is below the edge `above`, from left to right."""
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
    """Return the number of rows of switches above other switches."""
    inner = [_depth(each.below) for each in below if isinstance(each, Switch)]
    nested = [1 + depth for each, depth in zip((each for each in below if isinstance(each, Switch)), inner, strict=True)
              if any(isinstance(part, Switch) for part in each.below)]  # fmt: skip
    return max(nested, default=0)


def _flat(below: tuple[Switch | Part, ...]) -> list[Switch | Part]:
    """Return all parts and switches at any depth."""
    return [found for each in below for found in ([each, *_flat(each.below)] if isinstance(each, Switch) else [each])]


# SVG as text: elements, text that fits its box, and the one style sheet of the machine's picture (light and dark).

_WIDTH = 0.57  # of a letter of a sans-serif font, in font sizes, slightly too wide
BOLD = 14.5  # the size of an ordinary font with letters as wide as bold ones of 13 pixels
_STYLE = Path(__file__).with_name("probe.css")
_HATCH = (
    '<defs><pattern id="probe-hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line y2="7" stroke="var(--bad)" stroke-width="1.6" opacity=".45"/></pattern></defs>'
)


def rect(box: Box, style: str, title: str = "", radius: int = 7) -> str:
    """Return a rounded box; `title` is its tooltip."""
    tag = f'<rect class="{style}" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" rx="{radius}"'
    return f"{tag}>{_title_probe_svg(title)}</rect>" if title else f"{tag}/>"


def text(x: float, y: float, words: str, style: str = "", *, room: float | None = None, size: float = 12) -> str:
    """Return a line of text at its base line; text wider than `room` pixels ends in an ellipsis and is complete in its tooltip."""
    shown = fitting(words, room, size) if room is not None else safe(words, 1000)
    whole = _title_probe_svg(words) if shown != safe(words, 1000) else ""
    return f'<text{_class(style)} x="{x:g}" y="{y:g}">{whole}{escape(shown)}</text>'


def curve(path: str, width: float, style: str, title: str = "") -> str:
    """Return a stroke along an SVG path."""
    tag = f'<path class="{style}" d="{path}" stroke-width="{width:.2g}"'
    return f"{tag}>{_title_probe_svg(title)}</path>" if title else f"{tag}/>"


def tag(x: float, y: float, words: str = "limits") -> str:
    """Return a small label on a colored background, centred on x."""
    width = 14 + text_width(words, 10.5)
    return rect(Box(x - width / 2, y - 8, width, 16), "tag", radius=8) + text(x, y + 4, words, "tagged")


def fitting(words: str, room: float, size: float = 12) -> str:
    """Return `words`, printable, cut with an ellipsis to about `room` pixels."""
    whole = safe(words, 1000)
    letters = max(1, int(room / (size * _WIDTH)))
    return whole if len(whole) <= letters else whole[: letters - 1].rstrip() + "…"


def text_width(words: str, size: float = 12) -> float:
    """Return the approximate width of a text in pixels."""
    return len(words) * size * _WIDTH


@cache
def style() -> str:
    """Return the style sheet of all drawings: `document` carries it, and a page that embeds drawings has it in its own sheet."""
    return _STYLE.read_text(encoding="utf-8")


def document(width: float, height: float, title: str, description: str, body: list[str]) -> str:
    """Return the whole SVG with its style sheet and the text for screen readers."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="probe" role="img" {size}'
    words = f"{_title_probe_svg(title)}<desc>{escape(safe(description, 2000))}</desc>"
    ground = f'<rect class="page" width="{width:g}" height="{height:g}"/>'
    label = f" aria-label={quoteattr(safe(title))}"
    return f"{head}{label}>{words}{_style_element()}{_HATCH}{ground}{''.join(body)}</svg>\n"


def embedded(svg: str, *, first: bool) -> str:
    """Return a `document` as an element of a page, without its style: the page has `style()` in its own sheet, the only one that it allows.

    The first drawing of a page brings the pattern that all of them use.
    """
    width = re.search(r' width="([\d.]+)" height="[\d.]+"', svg)
    sized = svg.replace(width[0], f' style="max-width:{width[1]}px"', 1) if width else svg
    return sized.replace(f"{_style_element()}{'' if first else _HATCH}", "", 1)


def _style_element() -> str:
    return f"<style>{_packed(style())}</style>"


@cache
def _packed(sheet: str) -> str:
    """Return the sheet without comments and line breaks."""
    return re.sub(r"\s*([{};,])\s*", r"\1", re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL)).strip().replace(": ", ":")


def _title_probe_svg(words: str) -> str:
    return f"<title>{escape(safe(words, 1000))}</title>"


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""


# The links between GPUs in the machine's picture: a bar for switches, arcs for meshes.

_DROP, _BAR = 46.0, 34.0
_DEEPEST = 150.0
_GT_BYTES = 123e6  # bytes per second of one GT/s over one PCIe lane: Gen5 x16 with 512 of them has 63 GB/s


def gpu_links(machine: Machine, plan: PictureLayout, limiting: frozenset[str]) -> tuple[list[str], float]:
    """Return the drawing below the GPUs, and its lower edge. Links with unknown far end become a sentence."""
    boxes = {part.key: box for part, box in plan.parts if isinstance(part, Gpu)}
    links = [link for link in machine.gpu_links if link.a in boxes and link.count > 0]
    to_switch = [link for link in links if link.b == SWITCH]
    pairs = _pairs([link for link in links if link.b in boxes])
    drawn: list[str] = []
    bottom = plan.bottom
    if pairs:
        arcs, bottom = _mesh(pairs, boxes, bottom, limiting)
        drawn += arcs
    if to_switch:
        drawn += _switch(to_switch, boxes, bottom, limiting)
        bottom += _DROP + _BAR
    unknown = sorted({link.count for link in links if link.b is None})
    if unknown:
        bottom += 22
        counts = " or ".join(map(str, unknown))
        drawn.append(
            text(plan.width / 2, bottom - 4, f"{counts} {_kind(links)}s per GPU, far ends unknown", "soft mid", room=plan.width - 40)
        )
    return drawn, bottom


def _pairs(links: list[GpuLink]) -> dict[frozenset[str], GpuLink]:
    """Return each pair of GPUs once, with the larger count of its two ends; a link of a GPU to itself is left out."""
    found: dict[frozenset[str], GpuLink] = {}
    for link in links:
        ends = frozenset((link.a, link.b or ""))
        if len(ends) == 2 and (ends not in found or found[ends].count < link.count):
            found[ends] = link
    return found


def _switch(links: list[GpuLink], boxes: dict[str, Box], top: float, limiting: frozenset[str]) -> Iterator[str]:
    most = max(link.count for link in links)
    left, right = min(boxes[link.a].x for link in links), max(boxes[link.a].x + boxes[link.a].width for link in links)
    bar = Box(left, top + _DROP, right - left, _BAR)
    for link in links:
        box, fewer = boxes[link.a], link.count < most
        line = f"M{box.middle:g} {box.bottom:g}V{bar.y:g}"
        if link.key in limiting:
            yield curve(line, _width_probe_wires(link) + 9, "halo")
        yield curve(line, _width_probe_wires(link), f"nv{' slow' if fewer else ''}", f"{link.count} links")
        words = f"{link.count} of {most}" if fewer else f"×{link.count}"
        yield text(box.middle + _width_probe_wires(link) / 2 + 5, top - 4, words, f"small{' bad' if fewer else ''}")
        if link.key in limiting:
            yield tag(box.middle, bar.y - 10)
    yield rect(bar, "gpu")
    name = "NVSwitch" if links[0].kind == "nvlink" else "xGMI switch"
    yield text(bar.middle, bar.y + 21.5, f"{name}: {most} {_kind(links)}s per GPU{_each(links)}", "name mid", room=bar.width - 8, size=BOLD)


def _mesh(pairs: dict[frozenset[str], GpuLink], boxes: dict[str, Box], top: float, limiting: frozenset[str]) -> tuple[list[str], float]:
    """Return an arc for every pair, on levels where arcs do not overlap; with counts on the arcs if they differ; and the lower edge."""
    ports = _ports(pairs, boxes)
    levels = _levels(ports)
    lowest = max(levels.values())
    step = min(30.0, _DEEPEST / (lowest + 1))
    same = len({link.count for link in pairs.values()}) == 1
    drawn: list[str] = []
    for ends, link in pairs.items():
        limits = not limiting.isdisjoint((link.key, f"{link.b}>{link.a}"))
        down = boxes[link.a].bottom, top + 8 + step * (levels[ends] + 1)
        drawn += _arc(link, ports[ends], down, counted=not same, limits=limits)
    bottom = top + 8 + step * (lowest + 1) + 24
    middle = sum(box.middle for box in boxes.values()) / len(boxes)
    return [*drawn, text(middle, bottom - 4, _mesh_words(list(pairs.values()), same), "soft mid")], bottom


def _mesh_words(links: list[GpuLink], same: bool) -> str:
    name = f"{_kind(links)}{'' if links[0].count == 1 and same else 's'}"
    return f"{f'{links[0].count} {name} per pair' if same else f'{name}: counts on the lines'}{_each(links)}"


def _levels(ports: dict[frozenset[str], tuple[float, float]]) -> dict[frozenset[str], int]:
    """Return the level of each arc: short arcs first, each on the highest level that is free over its whole width."""
    taken: list[list[tuple[float, float]]] = []
    found: dict[frozenset[str], int] = {}
    for ends, (left, right) in sorted(ports.items(), key=lambda item: item[1][1] - item[1][0]):
        free = (level for level, arcs in enumerate(taken) if all(right < start or end < left for start, end in arcs))
        level = next(free, len(taken))
        taken += [[]] if level == len(taken) else []
        taken[level].append((left, right))
        found[ends] = level
    return found


def _arc(link: GpuLink, ends: tuple[float, float], down: tuple[float, float], *, counted: bool, limits: bool) -> Iterator[str]:
    (left, right), (start, depth) = ends, down
    bend = min(14.0, (right - left) / 2)
    line = f"M{left:g} {start:g}V{depth - bend:g}q0 {bend:g} {bend:g} {bend:g}H{right - bend:g}q{bend:g} 0 {bend:g} -{bend:g}V{start:g}"
    width = min(_width_probe_wires(link), 4.5)
    if limits:
        yield curve(line, width + 9, "halo")
    yield curve(line, width, "nv", f"{link.count} links")
    if counted:
        yield text((left + right) / 2, depth - 4, f"{link.count}", "count small mid")
    if limits:
        yield tag((left + right) / 2, depth)


def _ports(pairs: dict[frozenset[str], GpuLink], boxes: dict[str, Box]) -> dict[frozenset[str], tuple[float, float]]:
    """Return where each arc leaves its two GPUs: side by side along their lower edges, so that arcs do not overlap."""
    ends: defaultdict[str, list[tuple[float, frozenset[str]]]] = defaultdict(list)
    for pair in pairs:
        first, second = pair
        ends[first].append((boxes[second].middle, pair))
        ends[second].append((boxes[first].middle, pair))
    found: defaultdict[frozenset[str], list[float]] = defaultdict(list)
    for key, far in ends.items():
        box = boxes[key]
        left, right = ([each for each in sorted(far, reverse=True) if (each[0] < box.middle) == before] for before in (True, False))
        order = [*left, *right]  # the nearest neighbor on the outside
        for place, (_, pair) in enumerate(order):
            found[pair].append(box.x + box.width * (place + 1) / (len(order) + 1))
    return {pair: (min(xs), max(xs)) for pair, xs in found.items()}


def _width_probe_wires(link: GpuLink) -> float:
    if link.bytes_per_s is None:
        return 3.0
    return 1.2 + 5.8 * min(1.4, math.sqrt(max(0.0, link.count * link.bytes_per_s / _GT_BYTES / 1024)))


def _kind(links: list[GpuLink]) -> str:
    return "xGMI link" if links[0].kind == "xgmi" else LINK_NAMES[links[0].kind]


def _each(links: list[GpuLink]) -> str:
    rates = {link.bytes_per_s for link in links}
    rate = next(iter(rates)) if len(rates) == 1 else None
    return f", each {rate / 1e9:.3g} GB/s" if rate else ""


MOST_PARTS = 96


def picture(machine: Machine, limiting: frozenset[str] = frozenset()) -> str:
    """Return the machine as one SVG document.

    `limiting` are the parts to mark as limits: NICs by name (their ports), PCIe links by the address of the device below them (a GPU's by
    its key), GPU links by `GpuLink.key`. For a machine with more than 96 GPUs and NICs only the first ones are drawn, with a note.
    """
    distances = Distances(machine)
    drawn = first_parts(machine, MOST_PARTS)
    domains = arrange(drawn, distances)
    empty = [domain for domain in domains if not domain.below]
    shown = [domain for domain in domains if domain.below] or domains[:8]
    plan = Planner(shown, {device.address: device for device in machine.pci}).plan
    plan.width = max(plan.width, min(900, 48 + round(max(map(text_width, system_text(machine.system)), default=0.0))))
    links, bottom = gpu_links(drawn, plan, limiting)
    body = [
        *_head(machine, plan.width),
        *_domains(plan, machine),
        *_wires(plan, limiting),
        *_boxes(plan),
        *links,
        *_parts(plan, machine, limiting),
    ]
    left_out = len(machine.gpus) + len(machine.nics) - len(drawn.gpus) - len(drawn.nics)
    notes = list(_notes(empty if len(empty) < len(domains) else [], left_out, plan, machine))
    body += [text(20, bottom + 22 + 17 * place, note, "small", room=plan.width - 40, size=10.5) for place, note in enumerate(notes)]
    return document(plan.width, bottom + 22 + 17 * len(notes), _title(machine), _description(machine), body)


def _title(machine: Machine) -> str:
    return safe(machine.hostname) if machine.hostname else "machine without a name"


def _description(machine: Machine) -> str:
    gpus = [f"{gpu_name(gpu)}: {gpu_model(gpu)}. {links_text(machine, gpu)}" for gpu in machine.gpus[:16]]
    nics = [f"{nic_name(nic)}: {'; '.join(map(port_text, nic.ports))}" for nic in machine.nics[:32] if nic.virtual is None]
    return f"{len(machine.numa_nodes)} NUMA nodes, {len(machine.gpus)} GPUs, {len(machine.nics)} NICs. " + ". ".join([*gpus, *nics])


def _head(machine: Machine, width: float) -> Iterator[str]:
    yield text(20, 34, _title(machine), "h1", room=width - 40, size=18)
    about = system_text(machine.system) or ["nothing is known of its processors"]
    for place, words in enumerate(about):
        yield text(20, 56 + 18 * place, words, "soft", room=width - 40)


def _domains(plan: PictureLayout, machine: Machine) -> Iterator[str]:
    for domain, box in plan.domains:
        name, *about = numa_facts(domain.node, machine)
        yield rect(box, "panel", radius=12)
        yield rect(Box(box.x + PAD, box.y + PAD, box.width - 2 * PAD, HEADER), "cpu")
        yield text(box.middle, box.y + 38, name, "name mid", room=box.width - 40, size=BOLD)
        yield text(box.middle, box.y + 56, _that_fits([", ".join(about), *about[:1]], box.width - 38), "soft mid", room=box.width - 38)
        if not domain.below:
            yield text(box.middle, box.y + 92, "no GPU, no NIC", "small mid")


def _wires(plan: PictureLayout, limiting: frozenset[str]) -> Iterator[str]:
    for wire in plan.wires:
        line = f"M{wire.x:g} {wire.above:g}V{wire.below:g}"
        link = wire.device.link if wire.device and not wire.device.virtual else None
        rate = gigatransfers_in_all(link) if link else None
        bad = link is not None and slower(link) and not idle(link, wire.gpu)
        width = 1.2 + 5.8 * min(1.0, (rate / 1024) ** 0.5) if rate else 1.6
        limits = wire.address in limiting
        if limits:
            yield curve(line, width + 9, "halo")
        yield curve(
            line, width, f"wire{' slow' if bad else ''}{'' if rate else ' dim'}", f"PCIe {pcie(link, wire.gpu) if link else 'unknown'}"
        )
        yield from _label(wire, bad, limits)


def _label(wire: Wire, bad: bool, limits: bool) -> Iterator[str]:
    link = wire.device.link if wire.device and not wire.device.virtual else None
    now, most = pcie_short(link) if link else ("", "")
    x, y = wire.x + 8, wire.label_at
    if now and bad:
        yield text(x, y - 11, now, "small bad") + text(x, y + 1, f"of {most}", "small bad")
    elif link and slower(link):
        yield text(x, y - 11, now, "small") + text(x, y + 1, "idle", "small")
    else:
        yield text(x, y, now or (f"≤{most}" if most else "?"), "small")
    if limits:
        yield tag(wire.x, y - 32 if bad else y - 18)


def _boxes(plan: PictureLayout) -> Iterator[str]:
    for switch, box in plan.switches:
        yield rect(box, "switch", switch_text(switch.device))
        yield text(box.middle, box.y + 19.5, _switch_name(switch, box.width), "mid", room=box.width - 8)


def _switch_name(switch: Switch, room: float) -> str:
    address = safe(switch.device.address)
    short = address.removeprefix("0000:")
    return _that_fits([f"PCIe switch {address}", f"switch {short}", short], room - 8)


def _that_fits(choices: list[str], room: float, size: float = 12) -> str:
    """Return the first choice that fits without cutting; else the last."""
    return next((words for words in choices if fitting(words, room, size) == words), choices[-1])


def _parts(plan: PictureLayout, machine: Machine, limiting: frozenset[str]) -> Iterator[str]:
    for part, box in plan.parts:
        if isinstance(part, Gpu):
            lines = [gpu_model(part), memory(part.memory_bytes)]
            yield from _card(box, "gpu", _gpu_name(part), lines, links_text(machine, part), bad=False)
        else:
            yield from _nic(part, box, part.key in limiting)


def _gpu_name(gpu: Gpu) -> str:
    number = gpu_number(gpu)
    return _that_fits([f"GPU {number}", number, number.removeprefix("0000:")], CARD - 8, BOLD)


def _nic(nic: Nic, box: Box, limits: bool) -> Iterator[str]:
    down = [port for port in nic.ports if port.state not in (None, "active")]
    name = _that_fits([nic_name(nic), nic_name(nic).removeprefix("0000:")], CARD - 8, BOLD)
    titles = "; ".join(map(port_text, nic.ports)) or "ports unknown"
    yield from _card(box, "nic", name, _port_lines(nic), f"{safe(nic.model or '')} {titles}", bad=bool(down), limits=limits)


def _port_lines(nic: Nic) -> list[str]:
    """Return two lines for any number of ports: rates, then states."""
    if not nic.ports:
        return ["ports unknown", ""]
    shared = {(_rate(port), port_state(port)) for port in nic.ports}
    times = f"{len(nic.ports)} × " if len(nic.ports) > 1 and len(shared) == 1 else ""
    if times or len(nic.ports) == 1:
        return [times + _rate(nic.ports[0]), port_state(nic.ports[0])]
    return [f"{port.number}: {_rate(port)}, {port.state or 'state unknown'}" for port in nic.ports[:2]]


def _rate(port: Port) -> str:
    whole = port_rate(port)
    short = whole.replace("InfiniBand", "IB").replace("Ethernet", "Eth")
    return _that_fits([whole, short, short.replace("link layer unknown", "layer ?")], CARD - 6, 10.5)


def _card(box: Box, kind: str, name: str, lines: list[str], about: str, *, bad: bool, limits: bool = False) -> Iterator[str]:
    style = f"{kind}{' down' if bad else ''}{' limit' if limits else ''}"
    yield rect(box, style, f"{name}: {about}")
    if bad:
        yield rect(box, "hatch")
    yield text(box.middle, box.y + 20, name, "name mid", room=box.width - 8, size=BOLD)
    yield text(box.middle, box.y + 37, lines[0], "small mid", room=box.width - 6, size=10.5)
    yield text(box.middle, box.y + 52, lines[1], f"small mid{' bad' if bad else ''}", room=box.width - 6, size=10.5)
    if limits:
        yield tag(box.middle, box.y - 4)


def _notes(empty: list[Domain], left_out: int, plan: PictureLayout, machine: Machine) -> Iterator[str]:
    """Yield the lines below the picture: how to read it, and what it leaves out."""
    if plan.wires:
        yield "Lines are as wide as their links are fast; dotted: unknown."
        yield "Dashed, with the reason as text: slower than the device could be, or down."
    nodes = ", ".join(str(domain.node.id) for domain in empty if domain.node)
    if nodes:
        yield f"Without GPU or NIC: NUMA {'nodes' if ',' in nodes else 'node'} {nodes}."
    virtual = [nic_name(nic) for nic in machine.nics if nic.virtual is not None]
    if virtual:
        yield f"Virtual interfaces are not drawn: {listed(virtual, 6)}."
    if left_out > len(virtual):
        yield f"{left_out - len(virtual)} more GPUs and NICs are not drawn."


# Pictures of probed machines as files.

_MOST = 64  # pictures of one cluster
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")


def write_pictures(machines: Sequence[Machine], file: Path) -> list[Path]:
    """Write one SVG file per machine, equal ones once, and return the paths.

    The file is `file` for one machine, else "file-host.svg" for each, at most 64. Raises UsageError if a file cannot be written.
    """
    names = [entry["hostnames"][0] for entry in topology_json(machines)["machines"]]
    by_name = {machine.hostname: machine for machine in machines}
    chosen = [by_name[name] for name in names][:_MOST] if len(by_name) == len(machines) else list(machines)[:_MOST]
    files = [file] if len(chosen) == 1 else [_named(file, machine, place) for place, machine in enumerate(chosen, 1)]
    for target, machine in zip(files, chosen, strict=True):
        try:
            target.write_text(picture(machine), encoding="utf-8")
        except (OSError, ValueError) as why:
            reason = getattr(why, "strerror", None) or str(why)
            raise UsageError(f"--svg {printable(str(target))} cannot be written ({reason}): name a file in a folder of your own") from None
    return files


def _named(file: Path, machine: Machine, place: int) -> Path:
    host = _NOT_IN_NAMES.sub("_", machine.hostname or "") or str(place)
    return file.with_name(f"{file.stem}-{host}{file.suffix}")
