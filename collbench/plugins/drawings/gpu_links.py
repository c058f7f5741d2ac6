"""The links between GPUs in a machine's drawing: a bar for switches, arcs for meshes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine
from collbench.plugins.drawings.layout import PictureLayout
from collbench.plugins.drawings.svg import BOLD, Box, curve, rect, tag, text
from collbench.report.machine import LINK_NAMES, each_rate

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
    levels: dict[frozenset[str], int] = {}
    for ends, (left, right) in sorted(ports.items(), key=lambda item: item[1][1] - item[1][0]):
        free = (level for level, arcs in enumerate(taken) if all(right < start or end < left for start, end in arcs))
        level = next(free, len(taken))
        if level == len(taken):
            taken.append([])
        taken[level].append((left, right))
        levels[ends] = level
    return levels


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
    ports: defaultdict[frozenset[str], list[float]] = defaultdict(list)
    for key, far in ends.items():
        box = boxes[key]
        left, right = ([end for end in sorted(far, reverse=True) if (end[0] < box.middle) == before] for before in (True, False))
        order = [*left, *right]  # the nearest neighbor on the outside
        for place, (_, pair) in enumerate(order):
            ports[pair].append(box.x + box.width * (place + 1) / (len(order) + 1))
    return {pair: (min(xs), max(xs)) for pair, xs in ports.items()}


def _stroke(link: GpuLink) -> float:
    if link.bytes_per_s is None:
        return 3.0
    return 1.2 + 5.8 * min(1.4, math.sqrt(max(0.0, link.count * link.bytes_per_s / _GT_BYTES / 1024)))


def _kind(links: list[GpuLink]) -> str:
    return "xGMI link" if links[0].kind == "xgmi" else LINK_NAMES[links[0].kind]


def _each(links: list[GpuLink]) -> str:
    rates = {link.bytes_per_s for link in links}
    return each_rate(next(iter(rates))) if len(rates) == 1 else ""
