"""Pictures (SVG) of machines: NUMA nodes with their switches, GPUs and NICs; lines as wide as their links are fast.

A part that is down, or slower than its maximum, is dashed or hatched and has the reason as text: color alone has no meaning.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from xml.sax.saxutils import escape, quoteattr

from collbench.errors import UsageError
from collbench.machine.distance import Distances
from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic, PciDevice, Port
from collbench.machine.pcie_links import PcieLinks
from collbench.machine.snapshot import topology_json
from collbench.report.frame import printable
from collbench.report.machine import (
    LINK_NAMES,
    Domain,
    Part,
    Switch,
    arrange,
    each_rate,
    first_parts,
    gigatransfers_in_all,
    gpu_model,
    gpu_name,
    gpu_number,
    idle,
    links_text,
    memory,
    nic_name,
    numa_facts,
    pcie,
    pcie_short,
    port_rate,
    port_state,
    port_text,
    safe,
    shown_parts,
    slower,
    switch_text,
    system_text,
)
from collbench.units import first_of

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
    is_virtual: bool = False  # it is no PCIe link


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
        flat = [each for domain in domains for each in _flat(domain.below)]
        kinds = {type(each) for each in flat}
        self._bar_y = TOP + PAD + HEADER + WIRE
        self._nic_y = self._bar_y + max((_depth(domain.below) for domain in domains), default=0) * (SWITCH_HEIGHT + WIRE)
        self._switch_y = self._nic_y + (CARD_HEIGHT + WIRE if Nic in kinds else 0.0)
        self._gpu_y = self._switch_y + (SWITCH_HEIGHT + WIRE if Switch in kinds else 0.0)
        end = self._gpu_y + (CARD_HEIGHT + WIRE if Gpu in kinds else 0.0) - WIRE
        self.bottom = end + (PAD if kinds & {Nic, Gpu} else 2.5 * PAD)

    def _row(self, below: tuple[Switch | Part, ...], x: float, above: float, level: int) -> None:
        for each in below:
            if not isinstance(each, Switch):
                self._part(each, x, above)
            elif any(isinstance(inner, Switch) for inner in each.below):
                box = self._switch(each, x, self._bar_y + level * (SWITCH_HEIGHT + WIRE), above)
                self._row(each.below, x + LANE, box.bottom, level + 1)
            else:
                self._leaf(each, x, above)
            x += _width(each) + GAP

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
            for place, part in enumerate(each for each in switch.below if isinstance(each, kind)):
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
    bars = [each for each in below if isinstance(each, Switch) and any(isinstance(part, Switch) for part in each.below)]
    return max((1 + _depth(each.below) for each in bars), default=0)


def _flat(below: tuple[Switch | Part, ...]) -> list[Switch | Part]:
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
    return f"{tag}>{_tooltip(title)}</rect>" if title else f"{tag}/>"


def text(x: float, y: float, words: str, style: str = "", *, room: float | None = None, size: float = 12) -> str:
    """Return a line of text at its base line; text wider than `room` pixels ends in an ellipsis and is complete in its tooltip."""
    shown = fitting(words, room, size) if room is not None else safe(words, 1000)
    whole = _tooltip(words) if shown != safe(words, 1000) else ""
    named = f' class="{style}"' if style else ""
    return f'<text{named} x="{x:g}" y="{y:g}">{whole}{escape(shown)}</text>'


def curve(path: str, width: float, style: str, title: str = "") -> str:
    """Return a stroke along an SVG path."""
    tag = f'<path class="{style}" d="{path}" stroke-width="{width:.2g}"'
    return f"{tag}>{_tooltip(title)}</path>" if title else f"{tag}/>"


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
    words = f"{_tooltip(title)}<desc>{escape(safe(description, 2000))}</desc>"
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


@cache
def _style_element() -> str:
    """Return the style sheet without comments and line breaks."""
    without_comments = re.sub(r"/\*.*?\*/", "", style(), flags=re.DOTALL)
    packed = re.sub(r"\s*([{};,])\s*", r"\1", without_comments).strip().replace(": ", ":")
    return f"<style>{packed}</style>"


def _tooltip(words: str) -> str:
    return f"<title>{escape(safe(words, 1000))}</title>"


# The links between GPUs in the machine's picture: a bar for switches, arcs for meshes.

_DROP, _BAR = 46.0, 34.0
_DEEPEST = 150.0
_GT_BYTES = 123e6  # bytes per second of one GT/s over one PCIe lane: Gen5 x16 with 512 of them has 63 GB/s


def gpu_links(machine: Machine, plan: PictureLayout, limiting: frozenset[str]) -> tuple[list[str], float]:
    """Return the drawing below the GPUs, and its lower edge. Links with unknown far end become a sentence."""
    boxes = {part.key: box for part, box in plan.parts if isinstance(part, Gpu)}
    links = [link for link in machine.gpu_links if link.a in boxes and link.count > 0]
    to_switch = [link for link in links if link.b == SWITCH]
    pairs: dict[frozenset[str], GpuLink] = {}  # each pair of GPUs once, with the larger count of its two ends
    for link in links:
        ends = frozenset((link.a, link.b or ""))
        if link.b in boxes and len(ends) == 2 and (ends not in pairs or pairs[ends].count < link.count):
            pairs[ends] = link
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


def _switch(links: list[GpuLink], boxes: dict[str, Box], top: float, limiting: frozenset[str]) -> Iterator[str]:
    most = max(link.count for link in links)
    left, right = min(boxes[link.a].x for link in links), max(boxes[link.a].x + boxes[link.a].width for link in links)
    bar = Box(left, top + _DROP, right - left, _BAR)
    for link in links:
        box, fewer = boxes[link.a], link.count < most
        line = f"M{box.middle:g} {box.bottom:g}V{bar.y:g}"
        if link.key in limiting:
            yield curve(line, _stroke(link) + 9, "halo")
        yield curve(line, _stroke(link), f"nv{' slow' if fewer else ''}", f"{link.count} links")
        words = f"{link.count} of {most}" if fewer else f"×{link.count}"
        yield text(box.middle + _stroke(link) / 2 + 5, top - 4, words, f"small{' bad' if fewer else ''}")
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
    links = list(pairs.values())
    name = f"{_kind(links)}{'' if links[0].count == 1 and same else 's'}"
    words = f"{f'{links[0].count} {name} per pair' if same else f'{name}: counts on the lines'}{_each(links)}"
    return [*drawn, text(middle, bottom - 4, words, "soft mid")], bottom


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
    width = min(_stroke(link), 4.5)
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
        first, second = sorted(pair, key=lambda key: boxes[key].x)
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


def _stroke(link: GpuLink) -> float:
    if link.bytes_per_s is None:
        return 3.0
    return 1.2 + 5.8 * min(1.4, math.sqrt(max(0.0, link.count * link.bytes_per_s / _GT_BYTES / 1024)))


def _kind(links: list[GpuLink]) -> str:
    return "xGMI link" if links[0].kind == "xgmi" else LINK_NAMES[links[0].kind]


def _each(links: list[GpuLink]) -> str:
    rates = {link.bytes_per_s for link in links}
    return each_rate(next(iter(rates))) if len(rates) == 1 else ""


MOST_PARTS = 96


@dataclass(frozen=True, slots=True)
class UsedInterface:
    """What the picture shows of an interface that carried traffic or limits: its rate as text ("": that of its ports), and its mark."""

    rate: str
    mark: str = ""


def picture(machine: Machine, limiting: frozenset[str] = frozenset(), used: Mapping[str, UsedInterface] = MappingProxyType({})) -> str:
    """Return the machine as one SVG document.

    `limiting` are the parts to mark as limits: NICs by name (their ports), PCIe links by the address of the device below them (a GPU's by
    its key), GPU links by `GpuLink.key`. `used` has the interfaces that carried traffic by name: virtual ones are drawn only if they are
    among them. For a machine with more than 96 GPUs and NICs only the first ones are drawn, with a note.
    """
    distances = Distances(machine)
    drawn = first_parts(machine, MOST_PARTS, used)
    domains = arrange(drawn, distances, used)
    empty = [domain for domain in domains if not domain.below]
    shown = [domain for domain in domains if domain.below] or domains[:8]
    pcie_links = PcieLinks(machine)
    plan = PictureLayout(shown, {device.address: replace(device, link=pcie_links.of(device)) for device in machine.pci})
    plan.width = max(plan.width, min(900, 48 + round(max(map(text_width, system_text(machine.system)), default=0.0))))
    links, bottom = gpu_links(drawn, plan, limiting)
    name = safe(machine.hostname) if machine.hostname else "machine without a name"
    about = system_text(machine.system) or ["nothing is known of its processors"]
    boxes = []
    for switch, box in plan.switches:
        address = safe(switch.device.address)
        short = address.removeprefix("0000:")
        label = _that_fits([f"PCIe switch {address}", f"switch {short}", short], box.width - 8)
        boxes.append(rect(box, "switch", switch_text(switch.device)))
        boxes.append(text(box.middle, box.y + 19.5, label, "mid", room=box.width - 8))
    body = [
        text(20, 34, name, "h1", room=plan.width - 40, size=18),
        *(text(20, 56 + 18 * place, words, "soft", room=plan.width - 40) for place, words in enumerate(about)),
        *_domains(plan, machine),
        *_wires(plan, limiting),
        *boxes,
        *links,
        *_parts(plan, machine, limiting, used),
    ]
    left_out = len(machine.gpus) + len(machine.nics) - len(drawn.gpus) - len(drawn.nics)
    hidden = [nic_name(nic) for nic in machine.nics if nic.virtual is not None and nic.name not in used]
    notes = list(_notes(empty if len(empty) < len(domains) else [], left_out, hidden, plan))
    body += [text(20, bottom + 22 + 17 * place, note, "small", room=plan.width - 40, size=10.5) for place, note in enumerate(notes)]
    gpus = [f"{gpu_name(gpu)}: {gpu_model(gpu)}. {links_text(machine, gpu)}" for gpu in machine.gpus[:16]]
    nics = [f"{nic_name(nic)}: {'; '.join(map(port_text, nic.ports))}" for nic in drawn.nics[:32]]
    shown_nics = len(shown_parts(machine, used)) - len(machine.gpus)
    counts = f"{len(machine.numa_nodes)} NUMA nodes, {len(machine.gpus)} GPUs, {shown_nics} NICs"
    return document(plan.width, bottom + 22 + 17 * len(notes), name, f"{counts}. {'. '.join([*gpus, *nics])}", body)


def _domains(plan: PictureLayout, machine: Machine) -> Iterator[str]:
    for domain, box in plan.domains:
        name, *about = numa_facts(domain.node, machine)
        yield rect(box, "panel", radius=12)
        yield rect(Box(box.x + PAD, box.y + PAD, box.width - 2 * PAD, HEADER), "cpu")
        yield text(box.middle, box.y + 38, name, "name mid", room=box.width - 40, size=BOLD)
        yield text(box.middle, box.y + 56, _that_fits([", ".join(about), *about[:1]], box.width - 38), "soft mid", room=box.width - 38)
        if not domain.below:
            is_virtual = any(nic.virtual for nic in machine.nics)
            yield text(box.middle, box.y + 92, f"no GPU, no{' physical' if is_virtual else ''} NIC", "small mid")


def _wires(plan: PictureLayout, limiting: frozenset[str]) -> Iterator[str]:
    for wire in plan.wires:
        line = f"M{wire.x:g} {wire.above:g}V{wire.below:g}"
        link = wire.device.link if wire.device and not wire.device.virtual else None
        rate = gigatransfers_in_all(link) if link else None
        bad = link is not None and slower(link) and not idle(link, wire.gpu)
        width = 1.2 + 5.8 * min(1.0, (rate / 1024) ** 0.5) if rate else 1.6
        style = f"wire{' slow' if bad else ''}{'' if rate else ' dim'}"
        if wire.is_virtual:
            yield curve(line, width, style)
            continue
        if wire.address in limiting:
            yield curve(line, width + 9, "halo")
        yield curve(line, width, style, f"PCIe {pcie(link, wire.gpu) if link else 'unknown'}")
        now, most = pcie_short(link) if link else ("", "")
        x, y = wire.x + 8, wire.label_at
        if now and bad:
            yield text(x, y - 11, now, "small bad") + text(x, y + 1, f"of {most}", "small bad")
        elif link and slower(link):
            yield text(x, y - 11, now, "small") + text(x, y + 1, "idle", "small")
        else:
            yield text(x, y, now or (f"≤{most}" if most else "?"), "small")
        if wire.address in limiting:
            yield tag(wire.x, y - 32 if bad else y - 18)


def _that_fits(choices: list[str], room: float, size: float = 12) -> str:
    """Return the first choice that fits without cutting; else the last."""
    return next((words for words in choices if fitting(words, room, size) == words), choices[-1])


def _parts(plan: PictureLayout, machine: Machine, limiting: frozenset[str], used: Mapping[str, UsedInterface]) -> Iterator[str]:
    for part, box in plan.parts:
        if isinstance(part, Gpu):
            number = gpu_number(part)
            name = _that_fits([f"GPU {number}", number, number.removeprefix("0000:")], CARD - 8, BOLD)
            yield from card(box, "gpu", name, [gpu_model(part), memory(part.memory_bytes)], links_text(machine, part))
        else:
            down = any(port.state not in (None, "active") for port in part.ports)
            name = _that_fits([nic_name(part), nic_name(part).removeprefix("0000:")], CARD - 8, BOLD)
            about = f"{safe(part.model or '')} {'; '.join(map(port_text, part.ports)) or 'ports unknown'}"
            lines = _port_lines(part)
            mark = "limits" if part.key in limiting else ""
            if part.name in used:
                lines[0] = used[part.name].rate or lines[0]
                mark = used[part.name].mark or mark
            yield from card(box, "nic", name, lines, about, bad=down, mark=mark)


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


def card(box: Box, kind: str, name: str, lines: Sequence[str], about: str, *, bad: bool = False, mark: str = "") -> Iterator[str]:
    """Yield a box with a name, two lines of facts, a tooltip, and its mark above."""
    style = f"{kind}{' down' if bad else ''}{' limit' if mark else ''}"
    yield rect(box, style, f"{name}: {about}")
    if bad:
        yield rect(box, "hatch")
    yield text(box.middle, box.y + 20, name, "name mid", room=box.width - 8, size=BOLD)
    yield text(box.middle, box.y + 37, lines[0], "small mid", room=box.width - 6, size=10.5)
    yield text(box.middle, box.y + 52, lines[1], f"small mid{' bad' if bad else ''}", room=box.width - 6, size=10.5)
    if mark:
        yield tag(box.middle, box.y - 4, mark)


def _notes(empty: list[Domain], left_out: int, hidden: list[str], plan: PictureLayout) -> Iterator[str]:
    """Yield the lines below the picture: how to read it, and what it leaves out."""
    if plan.wires:
        yield "Lines are as wide as their links are fast; dotted: unknown."
        yield "Dashed, with the reason as text: slower than the device could be, or down."
    nodes = ", ".join(str(domain.node.id) for domain in empty if domain.node)
    if nodes:
        yield f"Without GPU or NIC: NUMA {'nodes' if ',' in nodes else 'node'} {nodes}."
    if hidden:
        yield f"Virtual interfaces are not drawn: {first_of(hidden, 6)}."
    if left_out > len(hidden):
        yield f"{left_out - len(hidden)} more GPUs and NICs are not drawn."


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
    hosts = [_NOT_IN_NAMES.sub("_", machine.hostname or "") or str(place) for place, machine in enumerate(chosen, 1)]
    files = [file] if len(chosen) == 1 else [file.with_name(f"{file.stem}-{host}{file.suffix}") for host in hosts]
    for target, machine in zip(files, chosen, strict=True):
        try:
            target.write_text(picture(machine), encoding="utf-8")
        except (OSError, ValueError) as why:
            reason = getattr(why, "strerror", None) or str(why)
            raise UsageError(f"--svg {printable(str(target))} cannot be written ({reason}): name a file in a folder of your own") from None
    return files
